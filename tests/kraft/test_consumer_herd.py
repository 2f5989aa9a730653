"""The simulated KIP-848 group costs what a real one costs on a broker of Kafka 4."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.support.sized import SizedConnector
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.groups.states import State
from zkconsumer.herd.measures import Measures, measure
from zkconsumer.herd.parameters import HerdGroup
from zkconsumer.herd.tally import Tally
from zkconsumer.journal import JournalWriter, read_journal
from zkconsumer.journal.recorder import run_entry
from zkconsumer.servers import LocalCluster, wait_until
from zkconsumer.sim.runs.herd import Herd
from zkconsumer.sim.runs.herd_coordinator import simulate_any

MEMBERS: Final = 8
PARTITIONS: Final = 72
HEARTBEAT: Final = 2.0
SEEDS: Final = 10
SETTLED: Final = 120.0
BUSY: Final = 60.0
"""So much longer may a change take on a busy machine (seconds)."""
#: Requests that a change causes. Heartbeats and the periodic reads of topics continue all the time.
CAUSED: Final = ("find coordinator", "commit offsets", "leave group")


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalCluster]:
    """A broker whose members send heartbeats as often as the simulated ones."""
    settings = {
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.heartbeat.interval.ms": str(round(HEARTBEAT * 1000)),
    }
    with LocalCluster("4", properties=settings) as running:
        yield running


class Herded:
    """Real members that share a journal."""

    def __init__(self, broker: LocalCluster, group: str, topic: str, folder: Path) -> None:
        self._journal = folder / "journal"
        self._broker, self._group, self._topic = broker, group, topic
        self._stack = ExitStack()
        self._sink = self._stack.enter_context(JournalWriter(self._journal))
        self._sink.write(run_entry(time.time_ns() // 1000, "epoch", {}))
        self.members: list[SizedConnector] = []

    def start(self) -> None:
        """Start one member."""
        config: dict[str, object] = {
            "bootstrap.servers": self._broker.bootstrap,
            "group.id": self._group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 600_000,
            "zkconsumer.reread.interval.ms": 600_000,
        }
        member = SizedConnector(config, self._sink)
        self._stack.callback(member.shutdown)
        self.members.append(member)
        member.create_message_streams({self._topic: 1})

    def settle(self) -> None:
        """Wait until each partition has one owner that knows its position, shares are even, and
        members have one epoch."""

        least = PARTITIONS // len(self.members)

        def settled() -> bool:
            machines = [one._loop.machine for one in self.members if one._loop is not None]
            owned = [tp for machine in machines for tp in tuple(machine.held)]
            rest = all(machine.state is State.STABLE for machine in machines)
            known = [one.metrics() for one in self.members]
            rest = rest and all(len(one.lag) == one.owned_partitions for one in known)
            one_epoch = len({machine.generation for machine in machines}) == 1
            even = {len(machine.held) for machine in machines} <= {least, least + 1}
            return rest and one_epoch and even and len(owned) == len(set(owned)) == PARTITIONS

        wait_until(settled, SETTLED, "the group has settled")

    def close(self) -> None:
        """Stop all members."""
        self._stack.close()

    def measures(self, event: str, start: int, end: int) -> Measures:
        """The figures between two times (microseconds since 1970)."""
        tally = Tally(start=start)
        for entry in read_journal(self._journal):
            if entry["at"] <= end:
                tally.entry(entry)
        partitions = [TopicPartition(self._topic, number) for number in range(PARTITIONS)]
        herd = HerdGroup(MEMBERS, PARTITIONS, event=event, profile="consumer")
        return measure(tally, partitions, end, herd, mode="real")


def _requests(found: Measures) -> dict[str, int]:
    return {kind: found.by_kind[kind]["requests"] for kind in CAUSED if kind in found.by_kind}


def _beats(found: Measures) -> int:
    return found.by_kind["heartbeat"]["requests"]


@pytest.mark.parametrize("event", ["join", "leave"])
def test_a_change_costs_what_the_simulator_says(
    event: str, broker: LocalCluster, group: str, topic: str, tmp_path: Path
) -> None:
    """The same number of partitions moves, only those stop, and the same requests are sent. There
    are as many heartbeats as in the simulated runs, and more if this machine needs longer.

    The simulated seeds differ in the moments at which members send heartbeats. A real member that
    joins may get its partitions in several parts, if heartbeats of others are late.
    """
    broker.create_topic(topic, PARTITIONS)
    herd = Herded(broker, group, topic, tmp_path)
    try:
        for _ in range(MEMBERS):
            herd.start()
        herd.settle()
        start = time.time_ns() // 1000
        if event == "join":
            herd.start()
        else:
            herd.members.pop(MEMBERS // 2).shutdown()
        herd.settle()
        end = time.time_ns() // 1000
    finally:
        herd.close()
    real = herd.measures(event, start, end)
    runs = [
        simulate_any(Herd(MEMBERS, PARTITIONS, event=event, profile="consumer", seed=seed))
        for seed in range(SEEDS)
    ]
    moved = PARTITIONS // (MEMBERS + 1 if event == "join" else MEMBERS)
    for one in (real, *runs):
        assert (one.stopped, one.unowned_at_end) == (moved, 0), one.mode
    fetched, expected = (one.by_kind["fetch offsets"]["requests"] for one in (real, runs[0]))
    assert expected <= fetched <= expected + MEMBERS, real.by_kind
    assert {tuple(_requests(one).items()) for one in runs} == {tuple(_requests(real).items())}
    needed = [_beats(one) for one in runs]
    steady = MEMBERS * (real.seconds_observed / HEARTBEAT + 1)
    assert min(needed) - MEMBERS / 2 <= _beats(real) <= max(needed) + steady, real.by_kind
    times = [one.seconds_to_stable for one in runs if one.seconds_to_stable is not None]
    assert real.seconds_to_stable is not None
    assert min(times) / 2 <= real.seconds_to_stable <= max(times) + BUSY, times
