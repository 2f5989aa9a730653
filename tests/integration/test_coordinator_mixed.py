"""Members of kafka-python and of ours in one group on the broker's coordinator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka import KafkaConsumer
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.testing import LocalCluster, wait_until
from zkconsumer.testing.groups import Producer, Reader

ASSIGNORS: dict[str, Any] = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}


class Theirs:
    """kafka-python's consumer, polled by a thread of its own."""

    def __init__(self, bootstrap: str, group: str, topic: str, strategy: str, **more: Any) -> None:
        self.got: list[tuple[int, int]] = []
        self.partitions: set[int] = set()
        self.leads = False
        self._end = threading.Event()
        self._consumer = KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=200,
            session_timeout_ms=6000,
            heartbeat_interval_ms=200,
            partition_assignment_strategy=[ASSIGNORS[strategy]],
            **more,
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.is_set():
            for found in self._consumer.poll(timeout_ms=100).values():
                self.got += [(one.partition, one.offset) for one in found]
            self.partitions = {tp.partition for tp in self._consumer.assignment()}
        self._consumer.close()

    def close(self) -> None:
        self._end.set()
        self._thread.join(15)


@pytest.fixture
def theirs() -> Iterator[Callable[..., Theirs]]:
    """Makes kafka-python consumers that are closed after the test."""
    made: list[Theirs] = []

    def one(*arguments: Any, **more: Any) -> Theirs:
        made.append(Theirs(*arguments, **more))
        return made[-1]

    yield one
    for consumer in made:
        consumer.close()


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("first", ["ours", "theirs"])
@pytest.mark.parametrize("strategy", list(ASSIGNORS))
def test_one_group(
    cluster: LocalCluster,
    theirs: Callable[..., Theirs],
    group: str,
    topic: str,
    strategy: str,
    first: str,
    static: bool,
) -> None:
    """Whoever comes first leads: the partitions are shared evenly, and fall back when one leaves;
    everything is delivered, and nothing twice."""
    cluster.create_topic(topic, 4)
    config: dict[str, object] = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": group,
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 200,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 200,
        "partition.assignment.strategy": strategy,
    }
    other: dict[str, Any] = {}
    if static:
        config["group.instance.id"], other["group_instance_id"] = "ours", "theirs"

    with Producer(cluster.bootstrap, topic, range(4), interval=0.002) as producer:
        if first == "theirs":
            foreign = theirs(cluster.bootstrap, group, topic, strategy, **other)
            wait_until(lambda: len(foreign.partitions) == 4, 15, "theirs has all")
        member = CoordinatorConsumerConnector(config)
        with member:
            reader = Reader(member.create_message_streams({topic: 1})[topic])
            if first == "ours":
                foreign = theirs(cluster.bootstrap, group, topic, strategy, **other)
            assert member._loop is not None
            machine = member._loop.machine

            def shared() -> bool:
                mine = {tp.partition for tp in machine.held}
                return (
                    len(mine) == 2
                    and len(foreign.partitions) == 2
                    and not mine & foreign.partitions
                )

            wait_until(shared, 15, "shared evenly")
            assert machine.leads is (first == "ours")
            reader.wait(20)
            if first == "ours" and not static:
                foreign.close()
                wait_until(lambda: len(machine.held) == 4, 15, "ours has all again")
            sent = set(producer.stop())

            def got() -> list[tuple[int, int]]:
                return [(d.partition, d.offset) for d in reader.deliveries] + foreign.got

            wait_until(lambda: set(got()) >= sent, 15, "everything is delivered")
            assert not reader.errors
        twice = len(got()) - len(set(got()))
        assert twice == 0, f"{twice} messages twice"
