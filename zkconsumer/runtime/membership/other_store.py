"""Looks for offsets of a group in ZooKeeper that are stored in Kafka instead.

A client with other settings may have committed there, such as pykafka, or a JVM consumer with
``offsets.storage=kafka``. A member that stores offsets in ZooKeeper does not see them and starts by
``auto.offset.reset``. Runs on a thread that ends after one answer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Exists
from zkconsumer.core.zookeeper.znodes import BROKER_TOPICS
from zkconsumer.errors import ZkConsumerError

if TYPE_CHECKING:
    from zkconsumer.broker.groups.group_coordinators import GroupCoordinators

logger = logging.getLogger("zkconsumer.member")

OFFSETS_TOPIC: Final = Exists(f"{BROKER_TOPICS}/__consumer_offsets")
"""Without this topic no offset is in Kafka, and to ask for one would create it."""
_MOST: Final = 1_000
"""Partitions that are asked for."""


def warn_of_offsets_in_kafka(
    group: str, client: GroupCoordinators, partitions: Iterable[TopicPartition]
) -> None:
    """Warn if the group has offsets of ``partitions`` in Kafka, because it has none in
    ZooKeeper."""
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
