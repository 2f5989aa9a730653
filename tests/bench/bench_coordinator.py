"""Measure rebalances and throughput of a group on the broker's coordinator.

Rebalance: a second member joins a group that has 1,000 partitions with one message each. The time
runs from its first call until both members own half of them and have a fetch response for each.
zkconsumer and kafka-python's ``KafkaConsumer`` run alternately. Both use the range strategy,
heartbeats every 100 ms and otherwise default settings. On a broker of Kafka 4 the two protocols of
zkconsumer alternate; that of ``consumer`` has the broker's default heartbeats, every 5 s.

Throughput: one stream reads a whole topic, from the first message to the last. The member is on the
coordinator, with either protocol, or in ZooKeeper.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
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
Settings = Mapping[str, Mapping[str, object]]
PROTOCOLS: Settings = {
    "classic": {"heartbeat.interval.ms": BEAT},
    "consumer": {"group.protocol": "consumer"},
}


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


def config(cluster: LocalCluster, settings: Mapping[str, object]) -> dict[str, object]:
    """Settings of a member of a new group."""
    servers = {} if "zookeeper.connect" in settings else {"bootstrap.servers": cluster.bootstrap}
    return {
        **servers,
        "group.id": f"ours-{uuid.uuid4().hex[:8]}",
        "auto.offset.reset": "smallest",
        **settings,
    }


def ours(cluster: LocalCluster, settings: Mapping[str, object]) -> float:
    """Seconds until both zkconsumer members own half of the partitions."""
    found, half = config(cluster, settings), PARTITIONS // 2

    def ready(member: CoordinatorConsumerConnector) -> int:
        assert member._plane is not None
        infos = [info for info, _ in list(member._plane._held.values())]
        return len(infos) if all(info.high_watermark is not None for info in infos) else 0

    def reads(member: CoordinatorConsumerConnector) -> None:
        (stream,) = member.create_message_streams({WIDE: 1})[WIDE]
        threading.Thread(target=lambda: [None for _ in stream], daemon=True).start()

    with CoordinatorConsumerConnector(found) as one:
        reads(one)
        wait_until(lambda: ready(one) == PARTITIONS, PATIENCE, "the first has all")
        with CoordinatorConsumerConnector(found) as two:
            began = time.perf_counter()
            reads(two)
            wait_until(lambda: ready(one) == ready(two) == half, PATIENCE, "both have their half")
            return time.perf_counter() - began


def read(cluster: LocalCluster, settings: Mapping[str, object], topic: str, messages: int) -> float:
    """Messages per second of one stream, from the first message on."""
    stores = "zookeeper.connect" in settings
    kind = ZookeeperConsumerConnector if stores else CoordinatorConsumerConnector
    with kind(config(cluster, settings)) as member:
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


def _alternately(rounds: int, ways: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds):
        for name in found if turn % 2 else reversed(found):
            found[name].append(ways[name]())
    return found


def _ratio(a: list[float], b: list[float]) -> list[float]:
    return [x / y for x, y in zip(a, b, strict=True)]


def _rates(
    cluster: LocalCluster, case: tuple[int, int, int], rounds: int, kinds: Settings
) -> Iterator[tuple[str, str, list[float]]]:
    partitions, size, messages = case
    topic = f"{size}-bytes-{partitions}-partitions"
    _fill(cluster, topic, partitions, size, messages)
    ways = {name: partial(read, cluster, kinds[name], topic, messages) for name in kinds}
    next(iter(ways.values()))()  # into the page cache
    found = _alternately(rounds, ways)
    for name, values in found.items():
        yield topic, f"{name} msg/s", values
    yield topic, " / ".join(kinds), _ratio(*found.values())


def run(rounds: int) -> Iterator[tuple[str, str, list[float]]]:
    """Yield the figures of all rounds. ``ratio`` is kafka-python's time divided by zkconsumer's."""
    case = "rebalance, 1,000 partitions"
    with LocalCluster("3.9") as cluster:
        _fill(cluster, WIDE, PARTITIONS, 10, PARTITIONS)
        ways: dict[str, Callable[[], float]] = {"kafka-python": partial(theirs, cluster)}
        for name in ("cooperative-sticky", "range"):
            settings = {"partition.assignment.strategy": name, **PROTOCOLS["classic"]}
            ways[name] = partial(ours, cluster, settings)
        found = _alternately(rounds, ways)
        for name, values in found.items():
            yield case, f"{name} s", values
        yield case, "ratio", _ratio(found["kafka-python"], found["range"])
        for size in CASES:
            stores: Settings = {"broker": {}, "zk": {"zookeeper.connect": cluster.zookeeper}}
            yield from _rates(cluster, size, rounds, stores)
    with LocalCluster("4") as cluster:
        _fill(cluster, WIDE, PARTITIONS, 10, PARTITIONS)
        ways = {name: partial(ours, cluster, PROTOCOLS[name]) for name in PROTOCOLS}
        for name, values in _alternately(rounds, ways).items():
            yield case, f"{name} s", values
        yield from _rates(cluster, CASES[1], rounds, PROTOCOLS)
