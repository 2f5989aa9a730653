"""Clients for groups in ZooKeeper that have, or may have, offsets in Kafka.

With ``offsets.storage=kafka`` the offsets are in Kafka. Otherwise a member checks once whether a
client with other settings has committed to Kafka, such as pykafka, or a JVM consumer with
``offsets.storage=kafka``. A member that stores offsets in ZooKeeper ignores those and starts by
``auto.offset.reset``. Runs on a thread that ends after one answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.core.zookeeper.ops import Exists, Ok, Reply
from zkconsumer.core.zookeeper.znodes import BROKER_TOPICS
from zkconsumer.errors import ZkConsumerError
from zkconsumer.runtime.membership.threads import start_new

if TYPE_CHECKING:
    from zkconsumer.broker.groups.classic_client import GroupClient
    from zkconsumer.broker.groups.group_coordinators import GroupCoordinators
    from zkconsumer.broker.security import KafkaSecurity
    from zkconsumer.config import ConsumerConfig
    from zkconsumer.runtime.delivery.data_plane import DataPlane
    from zkconsumer.runtime.membership.zookeeper import ZkPort

logger = logging.getLogger("zkconsumer.member")

_OFFSETS_TOPIC: Final = Exists(f"{BROKER_TOPICS}/__consumer_offsets")
"""Without this topic Kafka has no offsets, and a request for one would create it."""
_MOST: Final = 1_000
"""Largest number of partitions to request."""


def offset_client(
    config: ConsumerConfig,
    plane: DataPlane,
    requests_to: Callable[[BrokerEndpoint], int],
    security: KafkaSecurity,
) -> GroupClient:
    """Return a client that reads and commits offsets in Kafka, for ``offsets.storage=kafka``."""
    from zkconsumer.broker.groups.classic_client import GroupClient
    from zkconsumer.broker.known_brokers import KnownBrokers

    return GroupClient(
        config.group_id,
        config.client_id,
        None,
        KnownBrokers(lambda: plane.brokers, requests_to),
        timeout=config.offsets_channel_socket_timeout_ms / 1000,
        security=security,
    )


def look_into_kafka(
    partitions: Iterable[TopicPartition],
    config: ConsumerConfig,
    security: KafkaSecurity,
    plane: DataPlane,
    patience: float,
    consumer_id: str,
    zk: ZkPort,
    session_id: int,
) -> None:
    """Warn, on a separate thread, of offsets in Kafka for partitions that have none in
    ZooKeeper."""
    from zkconsumer.broker.groups.group_coordinators import GroupCoordinators

    def answered(reply: Reply) -> None:
        if isinstance(reply, Ok) and reply.value is not None:
            client = GroupCoordinators(
                config.client_id, lambda: plane.brokers, patience=patience, security=security
            )
            start_new(
                f"{consumer_id}_kafka_offsets",
                lambda: _warn_of_offsets_in_kafka(config.group_id, client, partitions),
            )

    zk.submit(_OFFSETS_TOPIC, session_id, answered)


def _warn_of_offsets_in_kafka(
    group: str, client: GroupCoordinators, partitions: Iterable[TopicPartition]
) -> None:
    """Warn if the group has offsets of ``partitions`` in Kafka but not in ZooKeeper."""
    try:
        stored = client.stored(group, sorted(partitions)[:_MOST])
    except ZkConsumerError as error:
        logger.info("offsets of group %s in Kafka are not known: %s", group, error)
        return
    finally:
        client.close()
    if stored:
        first = min(stored)
        logger.warning(
            "group %s has offsets in Kafka for %d partitions that have none in ZooKeeper, such as "
            "%s at %d: this member does not use them; if they are the right ones, stop the group "
            "and set offsets.storage=kafka",
            group,
            len(stored),
            first,
            stored[first].offset,
        )
