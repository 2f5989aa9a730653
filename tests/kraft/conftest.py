"""Servers for these tests: brokers without ZooKeeper, and a ZooKeeper without brokers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing

import pytest
from kafka import KafkaConsumer, TopicPartition
from kazoo.client import KazooClient

from zkconsumer.broker.cluster_reader import ClusterReader
from zkconsumer.broker.groups.group_coordinators import GroupCoordinators
from zkconsumer.core.zookeeper.cluster_view import ClusterView
from zkconsumer.servers import LocalCluster, LocalZooKeeper
from zkconsumer.servers.produce import send


@pytest.fixture(scope="session")
def kraft() -> Iterator[LocalCluster]:
    """One broker of Kafka 4 for a whole worker. Tests leave it running."""
    quick = {
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.session.timeout.ms": "6000",
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.heartbeat.interval.ms": "300",
        "group.consumer.assignment.interval.ms": "0",
    }
    with LocalCluster("4", properties=quick) as running:
        yield running


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[str]:
    """Address of a ZooKeeper without brokers, for a whole worker."""
    with LocalZooKeeper("3.9") as running:
        yield running.zookeeper


class LeftBehind:
    """The ZooKeeper tree of a cluster that has been moved to KRaft."""

    def __init__(self, kraft: LocalCluster, zookeeper: str, chroot: str) -> None:
        self.kraft = kraft
        self.address = f"{zookeeper}/{chroot}"
        self.client = KazooClient(zookeeper, timeout=30.0)
        self.client.start(timeout=15)
        self.client.create(f"/{chroot}")
        self.client.chroot = f"/{chroot}"

    def close(self) -> None:
        """Delete the tree, since ``gate`` looks through the whole ensemble, and end the session."""
        chroot, self.client.chroot = self.client.chroot, ""
        self.client.delete(chroot, recursive=True)
        self.client.stop()
        self.client.close()

    def view(self) -> ClusterView:
        """The cluster as its brokers describe it."""
        reader = ClusterReader(self.kraft.bootstrap, "tests", 10.0)
        try:
            return reader.read()
        finally:
            reader.disconnect()

    def topic(self, name: str, partitions: int = 3, messages: int = 20) -> None:
        """Create a topic on the brokers with about this number of messages in each partition."""
        self.kraft.create_topic(name, partitions)
        pairs = ((b"%d" % number, b"v") for number in range(partitions * messages))
        send(self.kraft.bootstrap, name, pairs)

    def remember(self, name: str, topic_id: str | None = None) -> None:
        """Write the topic's znode as the old cluster left it, by default with the topic's current
        id."""
        found = self.view().topics[name]
        partitions = {number: [0] for number in found.partitions}
        content: dict[str, object] = {"version": 3, "partitions": partitions}
        if topic_id != "":
            content["topic_id"] = topic_id or found.topic_id
        path = f"/brokers/topics/{name}"
        self.client.create(path, json.dumps(content).encode(), makepath=True)

    def set_zk(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Write offset znodes."""
        for partition, offset in offsets.items():
            path = f"/consumers/{group}/offsets/{topic}/{partition}"
            self.client.create(path, b"%d" % offset, makepath=True)

    def ends(self, topic: str) -> dict[int, int]:
        """The log end of each partition."""
        with closing(KafkaConsumer(bootstrap_servers=self.kraft.bootstrap)) as asked:
            numbers = asked.partitions_for_topic(topic)
            ends = asked.end_offsets([TopicPartition(topic, number) for number in numbers])
        return {tp.partition: end for tp, end in ends.items()}

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """The offsets that the coordinator stores."""
        view = self.view()
        with GroupCoordinators("tests", lambda: view.brokers, 10.0, 30.0) as kafka:
            found = kafka.fetch(group, [])
        return {tp.partition: one.offset for tp, one in found.items() if tp.topic == topic}


@pytest.fixture
def left(kraft: LocalCluster, zookeeper: str, unique: str) -> Iterator[LeftBehind]:
    """An empty tree next to the brokers of ``kraft``."""
    made = LeftBehind(kraft, zookeeper, unique)
    yield made
    made.close()
