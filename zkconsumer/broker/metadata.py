"""Finds the leader of each partition through any broker, without creating topics.

Stateless; runs on the leader finder's thread.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from zkconsumer.broker.api_versions import METADATA
from zkconsumer.broker.connection import BrokerConnection, error_from_code, mapped_errors
from zkconsumer.broker.messages import MetadataRequest, MetadataResponse
from zkconsumer.broker.types import ClusterMetadata
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.errors import BrokerError, BrokerUnavailableError


class Metadata(NamedTuple):
    """A broker's answer. ``brokers`` is sorted and never empty; ``topics`` are kafka-python's
    objects."""

    version: int
    cluster_id: str | None
    brokers: tuple[BrokerEndpoint, ...]
    topics: list[Any]


def ask_metadata(
    connection: BrokerConnection,
    topics: Collection[str] | Collection[uuid.UUID] | None,
    ask: Callable[[Any, type[Any], int], Any] | None = None,
    versions: Sequence[int] = (4, 0),
) -> Metadata:
    """Return a broker's answer about ``topics``, given by name or by id; ``None`` asks for all.

    Since 0.11 the request can forbid the creation of topics. Older brokers would create a named
    topic, so all topics are requested from them instead, which creates none. ``ask`` sends a
    request, ``connection.call`` by default; ``versions`` are in order of preference.

    Raises the errors of ``BrokerConnection.exchange``, and BrokerUnavailableError if the answer
    names no broker, because a broker that is starting knows neither brokers nor topics. Java's
    client ignores such answers.
    """
    version = connection.version(METADATA, *versions)
    topic = MetadataRequest.MetadataRequestTopic
    wanted = [
        topic(name=wanted, version=version)
        if isinstance(wanted, str)
        else topic(topic_id=wanted, name=None, version=version)
        for wanted in sorted(topics or ())
        if version
    ]
    request = MetadataRequest(
        topics=None if version and topics is None else wanted, allow_auto_topic_creation=False
    )
    answer = (ask or connection.call)(request, MetadataResponse, version)
    at = connection.endpoint
    if not answer.brokers:
        raise BrokerUnavailableError(
            f"broker {at.broker_id} at {at.host}:{at.port} has not received its cluster's metadata "
            "yet"
        )
    with mapped_errors(at):
        nodes = sorted(answer.brokers, key=lambda broker: broker.node_id)
        brokers = tuple(BrokerEndpoint(node.node_id, node.host, node.port) for node in nodes)
        return Metadata(version, answer.cluster_id if version else None, brokers, answer.topics)


def fetch_metadata(connection: BrokerConnection, topics: Collection[str]) -> ClusterMetadata:
    """Request the leaders of ``topics``. Raises the errors of ``BrokerConnection.exchange``."""
    wanted = set(topics)
    response = ask_metadata(connection, wanted, versions=(10, 9, 4, 0))
    leaders: dict[TopicPartition, int] = {}
    epochs: dict[TopicPartition, int] = {}
    topic_ids: dict[str, str] = {}
    hidden: set[str] = set()
    absent: set[str] = set()
    errors: dict[str, BrokerError] = {}
    with mapped_errors(connection.endpoint):
        brokers = {broker.broker_id: broker for broker in response.brokers}
        for entry in response.topics:
            if entry.name not in wanted:
                continue
            if entry.error_code:
                errors[entry.name] = error_from_code(entry.error_code, f"topic {entry.name}")
            if entry.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                hidden.add(entry.name)
            elif entry.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                absent.add(entry.name)
            for part in entry.partitions:
                if part.leader_id >= 0:
                    tp = TopicPartition(entry.name, part.partition_index)
                    leaders[tp] = part.leader_id
                    if response.version >= 9:  # older ones may be stale (KAFKA-9212)
                        epochs[tp] = part.leader_epoch
            if response.version >= 10 and not entry.error_code and entry.topic_id is not None:
                topic_ids[entry.name] = str(entry.topic_id)
    for name in wanted - {entry.name for entry in response.topics}:
        errors[name] = error_from_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name}")
    return ClusterMetadata(
        brokers, leaders, errors, frozenset(hidden), frozenset(absent), epochs, topic_ids
    )
