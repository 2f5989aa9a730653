"""Finds the leader of each partition through any broker, without creating topics.

Stateless; runs on the leader finder's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from zkconsumer.broker.api_versions import METADATA
from zkconsumer.broker.connection import BrokerConnection, error_from_code, mapped_errors
from zkconsumer.broker.messages import MetadataRequest, MetadataResponse
from zkconsumer.broker.types import ClusterMetadata
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.errors import BrokerError, BrokerUnavailableError


def ask_metadata(
    connection: BrokerConnection,
    topics: Collection[str] | None,
    ask: Callable[[Any, type[Any], int], Any] | None = None,
) -> Any:
    """Return the answer about ``topics``, ``None`` for all, as kafka-python's object.

    Since 0.11 the request says that topics must not be created. Older brokers would create a named
    topic, so they are asked for all topics instead, which creates none. ``ask`` sends a request,
    ``connection.call`` by default.

    Raises the errors of ``BrokerConnection.exchange``.
    """
    version = connection.version(METADATA, 4, 0)
    if version:
        topic = MetadataRequest.MetadataRequestTopic
        named = [topic(name=name, version=version) for name in sorted(topics or ())]
        request = MetadataRequest(
            topics=None if topics is None else named, allow_auto_topic_creation=False
        )
    else:
        request = MetadataRequest(topics=[])
    answer = (ask or connection.call)(request, MetadataResponse, version)
    check_brokers(connection, answer)
    return answer


def check_brokers(connection: BrokerConnection, answer: Any) -> None:
    """Raise BrokerUnavailableError if an answer names no broker.

    A broker that is starting knows neither brokers nor topics. Java's client ignores such answers.
    """
    if not answer.brokers:
        at = connection.endpoint
        raise BrokerUnavailableError(
            f"broker {at.broker_id} at {at.host}:{at.port} does not know its cluster yet"
        )


def fetch_metadata(connection: BrokerConnection, topics: Collection[str]) -> ClusterMetadata:
    """Ask for the leaders of ``topics``. Raises the errors of ``BrokerConnection.exchange``."""
    wanted = set(topics)
    response = ask_metadata(connection, wanted)
    leaders: dict[TopicPartition, int] = {}
    hidden: set[str] = set()
    absent: set[str] = set()
    errors: dict[str, BrokerError] = {}
    with mapped_errors(connection.endpoint):
        brokers = {
            node.node_id: BrokerEndpoint(node.node_id, node.host, node.port)
            for node in response.brokers
        }
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
                    leaders[TopicPartition(entry.name, part.partition_index)] = part.leader_id
    for name in wanted - {entry.name for entry in response.topics}:
        errors[name] = error_from_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name}")
    return ClusterMetadata(brokers, leaders, errors, frozenset(hidden), frozenset(absent))
