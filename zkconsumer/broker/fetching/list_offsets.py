"""Looks up the first and next offset of partitions at their leader.

Stateless; runs on a fetcher thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final

from zkconsumer.broker.api_versions import LIST_OFFSETS
from zkconsumer.broker.connection import BrokerConnection, error_from_code, mapped_errors
from zkconsumer.broker.fetching.fetch import NEEDS
from zkconsumer.broker.messages import ListOffsetsRequest, ListOffsetsResponse
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.errors import BrokerError

EARLIEST: Final = -2
"""The offset of the first message that the broker still has."""
LATEST: Final = -1
"""The offset of the next message to be written; with ``committed``, the last stable offset."""
NONE: Final = -1
"""There is no message with this timestamp or a later one."""


def list_offsets(
    connection: BrokerConnection,
    partitions: Collection[TopicPartition],
    which: int | Mapping[TopicPartition, int],
    *,
    committed: bool = False,
) -> Mapping[TopicPartition, int | BrokerError]:
    """Look up ``EARLIEST`` or ``LATEST`` for many partitions in one request.

    With brokers since 0.10.1, ``which`` may also be a time in milliseconds since 1970, or a time
    for each partition. The result is then the offset of the first message with that time or a later
    one; ``NONE`` if there is no such message. ``committed``: messages from the first open
    transaction on do not count (0.11 and later).

    Return an offset or an error for every requested partition. Raises the errors of
    ``BrokerConnection.exchange``.
    """
    times = which if isinstance(which, Mapping) else dict.fromkeys(partitions, which)
    by_time = min(times.values(), default=0) >= 0
    if committed:
        version = connection.version(LIST_OFFSETS, 2, needs=NEEDS)
    else:
        version = connection.version(LIST_OFFSETS, *((1,) if by_time else (1, 0)))
    topic = ListOffsetsRequest.ListOffsetsTopic
    partition = topic.ListOffsetsPartition
    by_topic: defaultdict[str, list[int]] = defaultdict(list)
    for name, index in partitions:
        by_topic[name].append(index)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(committed),
        topics=[
            topic(
                name=name,
                partitions=[
                    partition(
                        partition_index=index,
                        timestamp=times[TopicPartition(name, index)],
                        max_num_offsets=1,
                        version=version,
                    )
                    for index in indexes
                ],
                version=version,
            )
            for name, indexes in by_topic.items()
        ],
    )
    response = connection.call(request, ListOffsetsResponse, version)
    offsets: dict[TopicPartition, int | BrokerError] = {}
    with mapped_errors(connection.endpoint):
        for entry in response.topics:
            for part in entry.partitions:
                key = TopicPartition(entry.name, part.partition_index)
                if part.error_code:
                    offsets[key] = error_from_code(part.error_code, f"offsets of {key}")
                    continue
                offset = part.offset if version else next(iter(part.old_style_offsets), -1)
                offsets[key] = (
                    offset
                    if offset >= 0 or (by_time and offset == NONE)
                    else BrokerError(f"offsets of {key}: the broker returned no offset")
                )
    missing = BrokerError("the broker left the partition out of its answer")
    return {key: offsets.get(key, missing) for key in partitions}
