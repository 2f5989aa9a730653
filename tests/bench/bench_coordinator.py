"""Measure rebalances and throughput of a group on the broker's coordinator.

Rebalance: a second member joins a group that has 1,000 partitions with one message each. The time
runs from its first call until both members own half of them and have a fetch response for each.
zkconsumer and kafka-python's ``KafkaConsumer`` run alternately. Both use the range strategy,
heartbeats every 100 ms and otherwise default settings.

Throughput: one stream reads a whole topic, from the first message to the last. The member is on the
coordinator or in ZooKeeper.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from typing import Self

from kafka import KafkaConsumer, KafkaProducer
from kafka.coordinator.assignors.range import RangePartitionAssignor

from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.servers import LocalCluster, wait_until

PARTITIONS = 1000
WIDE = "wide"
BEAT = 100  # ms
PATIENCE = 120.0
CASES = ((1, 100, 600_000), (12, 100, 600_000))


class Theirs:
    """A ``KafkaConsumer`` that polls on its own thread."""

    def __init__(self, cluster: LocalCluster, group: str) -> None:
        self.ready = 0
        """Number of its partitions whose end offset it knows."""
        self._ended = threading.Event()
        self._consumer = KafkaConsumer(
            WIDE,
            bootstrap_servers=cluster.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=BEAT,
            partition_assignment_strategy=(RangePartitionAssignor,),
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._ended.is_set():
            self._consumer.poll(50)
            found = self._consumer.assignment()
            known = all(self._consumer.highwater(tp) is not None for tp in found)
            self.ready = len(found) if known else 0
        self._consumer.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(30)


def theirs(cluster: LocalCluster) -> float:
    """Seconds until both kafka-python consumers own half of the partitions."""
    group, half = f"theirs-{uuid.uuid4().hex[:8]}", PARTITIONS // 2
    with Theirs(cluster, group) as one:
        wait_until(lambda: one.ready == PARTITIONS, PATIENCE, "the first has all")
        began = time.perf_counter()
        with Theirs(cluster, group) as two:
            wait_until(lambda: one.ready == two.ready == half, PATIENCE, "both have their half")
            return time.perf_counter() - began


def ours(cluster: LocalCluster, strategy: str) -> float:
    """Seconds until both zkconsumer members own half of the partitions."""
    group, half = f"ours-{uuid.uuid4().hex[:8]}", PARTITIONS // 2
    config = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": group,
        "auto.offset.reset": "smallest",
        "heartbeat.interval.ms": BEAT,
        "partition.assignment.strategy": strategy,
    }

    def ready(member: CoordinatorConsumerConnector) -> int:
        assert member._plane is not None
        infos = [info for info, _ in list(member._plane._held.values())]
        return len(infos) if all(info.high_watermark is not None for info in infos) else 0

    def reads(member: CoordinatorConsumerConnector) -> None:
        (stream,) = member.create_message_streams({WIDE: 1})[WIDE]
        threading.Thread(target=lambda: [None for _ in stream], daemon=True).start()

    with CoordinatorConsumerConnector(config) as one:
        reads(one)
        wait_until(lambda: ready(one) == PARTITIONS, PATIENCE, "the first has all")
        with CoordinatorConsumerConnector(config) as two:
            began = time.perf_counter()
            reads(two)
            wait_until(lambda: ready(one) == ready(two) == half, PATIENCE, "both have their half")
            return time.perf_counter() - began


def read(
    cluster: LocalCluster,
    kind: type[CoordinatorConsumerConnector | ZookeeperConsumerConnector],
    topic: str,
    messages: int,
) -> float:
    """Messages per second of one stream, from the first message on."""
    config: dict[str, object] = {
        "group.id": f"read-{uuid.uuid4().hex[:8]}",
        "auto.offset.reset": "smallest",
    }
    if kind is ZookeeperConsumerConnector:
        config["zookeeper.connect"] = cluster.zookeeper
    else:
        config["bootstrap.servers"] = cluster.bootstrap
    with kind(config) as member:
        (stream,) = member.create_message_streams({topic: 1})[topic]
        begun = 0.0
        for count, message in enumerate(stream, 1):
            begun = begun or time.perf_counter()
            _ = message.key
            _ = message.value
            if count == messages:
                break
        return messages / (time.perf_counter() - begun)


def _fill(cluster: LocalCluster, topic: str, partitions: int, size: int, messages: int) -> None:
    cluster.create_topic(topic, partitions)
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, linger_ms=20, batch_size=65536)
    value = bytes(i % 251 for i in range(size))
    for i in range(messages):
        producer.send(topic, value, b"%08d" % i, partition=i % partitions)
    producer.flush(120)
    producer.close(30)


def run(rounds: int) -> Iterator[tuple[str, str, list[float]]]:
    """Yield the figures of all rounds. ``ratio`` is kafka-python's time divided by zkconsumer's."""
    with LocalCluster("3.9") as cluster:
        _fill(cluster, WIDE, PARTITIONS, 10, PARTITIONS)
        found: dict[str, list[float]] = {"range": [], "cooperative-sticky": [], "kafka-python": []}
        for turn in range(rounds):
            names = list(found)
            for name in names if turn % 2 else reversed(names):
                seconds = theirs(cluster) if name == "kafka-python" else ours(cluster, name)
                found[name].append(seconds)
        case = "rebalance, 1,000 partitions"
        for name, values in found.items():
            yield case, f"{name} s", values
        yield (
            case,
            "ratio",
            [a / b for a, b in zip(found["kafka-python"], found["range"], strict=True)],
        )
        for partitions, size, messages in CASES:
            topic = f"{size}-bytes-{partitions}-partitions"
            _fill(cluster, topic, partitions, size, messages)
            kinds = (CoordinatorConsumerConnector, ZookeeperConsumerConnector)
            rates: dict[type, list[float]] = {kind: [] for kind in kinds}
            read(cluster, CoordinatorConsumerConnector, topic, messages)  # into the page cache
            for turn in range(rounds):
                for kind in kinds if turn % 2 else reversed(kinds):
                    rates[kind].append(read(cluster, kind, topic, messages))
            on_broker, in_zookeeper = rates.values()
            yield topic, "coordinator msg/s", on_broker
            yield topic, "zookeeper msg/s", in_zookeeper
            shares = [a / b for a, b in zip(on_broker, in_zookeeper, strict=True)]
            yield topic, "coordinator / zk", shares
