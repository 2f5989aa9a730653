"""Measure rebalances of a group on the broker's coordinator.

A second member joins a group that has 1,000 partitions with one message each. The time
runs from its first call until both members own half of them and have a fetch response for each.
zkconsumer and kafka-python's ``KafkaConsumer`` run alternately. Both use the range strategy,
heartbeats every 100 ms and otherwise default settings. On a broker of Kafka 4 the two protocols of
zkconsumer alternate; that of ``consumer`` has the broker's default heartbeats, every 5 s.
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

from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.servers import LocalCluster, wait_until

PARTITIONS = 1000
WIDE = "wide"
BEAT = 100  # ms
PATIENCE = 120.0
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


def ours(cluster: LocalCluster, settings: Mapping[str, object]) -> float:
    """Seconds until both zkconsumer members own half of the partitions."""
    half = PARTITIONS // 2
    config = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": f"ours-{uuid.uuid4().hex[:8]}",
        "auto.offset.reset": "smallest",
        **settings,
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


def _fill(cluster: LocalCluster) -> None:
    """Create the topic, with one message in each partition."""
    cluster.create_topic(WIDE, PARTITIONS)
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap)
    for number in range(PARTITIONS):
        producer.send(WIDE, b"x", partition=number)
    producer.flush(120)
    producer.close(30)


def _alternately(rounds: int, ways: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds):
        for name in found if turn % 2 else reversed(found):
            found[name].append(ways[name]())
    return found


def run(rounds: int) -> Iterator[tuple[str, str, list[float]]]:
    """Yield the figures of all rounds. ``ratio`` is kafka-python's time divided by zkconsumer's."""
    case = "rebalance, 1,000 partitions"
    with LocalCluster("3.9") as cluster:
        _fill(cluster)
        ways: dict[str, Callable[[], float]] = {"kafka-python": partial(theirs, cluster)}
        for name in ("cooperative-sticky", "range"):
            settings = {"partition.assignment.strategy": name, **PROTOCOLS["classic"]}
            ways[name] = partial(ours, cluster, settings)
        found = _alternately(rounds, ways)
        for name, values in found.items():
            yield case, f"{name} s", values
        pairs = zip(found["kafka-python"], found["range"], strict=True)
        yield case, "ratio", [theirs / ours for theirs, ours in pairs]
    with LocalCluster("4") as cluster:
        _fill(cluster)
        ways = {name: partial(ours, cluster, PROTOCOLS[name]) for name in PROTOCOLS}
        for name, values in _alternately(rounds, ways).items():
            yield case, f"{name} s", values
