"""Looks up where the log of a leader epoch ends, at a partition's leader (KIP-320).

Stateless; runs on a fetcher thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from zkconsumer.broker.api_versions import OFFSET_FOR_LEADER_EPOCH
from zkconsumer.broker.connection import BrokerConnection, error_from_code, mapped_errors
from zkconsumer.broker.messages import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from zkconsumer.broker.types import EpochEnd, EpochEnds
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.errors import BrokerError

_VERSION: Final = 3
"""Version of the request, since 2.3. Older versions need a follower's permission."""
_CONSUMER: Final = -1


def epoch_ends(
    connection: BrokerConnection, epochs: Mapping[TopicPartition, tuple[int, int]]
) -> EpochEnds:
    """Look up the end of an epoch for many partitions.

    ``epochs``: for each partition, the known epoch of its leader and the epoch to look up. The
    result is ``None`` for partitions for which the broker returns no answer or an error. Raises the
    errors of ``BrokerConnection.exchange``.
    """
    connection.open()
    if connection.highest(OFFSET_FOR_LEADER_EPOCH) < _VERSION:
        return dict.fromkeys(epochs)
    topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    partition = topic.OffsetForLeaderPartition
    by_topic: defaultdict[str, list[Any]] = defaultdict(list)
    for (name, number), (leader, epoch) in epochs.items():
        by_topic[name].append(
            partition(
                partition=number, current_leader_epoch=leader, leader_epoch=epoch, version=_VERSION
            )
        )
    request = OffsetForLeaderEpochRequest(
        replica_id=_CONSUMER,
        topics=[
            topic(topic=name, partitions=parts, version=_VERSION)
            for name, parts in by_topic.items()
        ],
    )
    response = connection.call(request, OffsetForLeaderEpochResponse, _VERSION)
    missing = BrokerError("the broker left the partition out of its answer")
    ends: dict[TopicPartition, EpochEnd | BrokerError | None] = dict.fromkeys(epochs, missing)
    with mapped_errors(connection.endpoint):
        for entry in response.topics:
            for part in entry.partitions:
                key = TopicPartition(entry.topic, part.partition)
                if part.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                    ends[key] = None
                elif part.error_code:
                    ends[key] = error_from_code(part.error_code, f"leader epochs of {key}")
                else:
                    ends[key] = EpochEnd(part.leader_epoch, part.end_offset)
    return {key: ends[key] for key in epochs}
