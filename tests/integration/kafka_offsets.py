"""A group's offsets in Kafka, for tests that read and store them next to members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.broker.groups.group_coordinators import GroupCoordinators
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.errors import BrokerError
from zkconsumer.servers import LocalCluster


class KafkaOffsets:
    """The offsets of one group, as numbers. The client retries for ``patience`` seconds."""

    def __init__(
        self, group: str, brokers: Sequence[BrokerEndpoint], patience: float = 30.0
    ) -> None:
        self.group = group
        self.client = GroupCoordinators("tests", lambda: brokers, 5.0, patience, 0.1)

    def fetch(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Return the stored offsets, ``None`` where there is none."""
        wanted = list(partitions)
        found = self.client.stored(self.group, wanted)
        return {tp: found[tp].offset if tp in found else None for tp in wanted}

    def commit(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, BrokerError]:
        """Store offsets; return the refused ones."""
        offsets = {tp: StoredOffset(position) for tp, position in positions.items()}
        return self.client.commit(self.group, offsets)

    def close(self) -> None:
        """Close the connections."""
        self.client.close()


def kafka_offsets(cluster: LocalCluster, group: str) -> KafkaOffsets:
    """The group's offsets, found through the cluster's broker."""
    host, _, port = cluster.bootstrap.partition(":")
    return KafkaOffsets(group, [BrokerEndpoint(0, host, int(port))])
