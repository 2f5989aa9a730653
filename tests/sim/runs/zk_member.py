"""A complete simulated member of a ZooKeeper group: with fetching, and offsets also in Kafka.

Also runs scripts that only read at once, to compare a member's view with the tree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.sim.runs.at_rest import MemberAtRest
from tests.sim.runs.cluster_port import SimClusterPort
from tests.sim.runs.judged import JudgedInZooKeeper
from tests.sim.runs.offset_store import SimOffsets
from tests.sim.runs.whole import WholePlane
from tests.support.scripts import one_by_one
from zkconsumer.core.zookeeper import events
from zkconsumer.core.zookeeper.commands import ScriptCommand
from zkconsumer.core.zookeeper.events import Event
from zkconsumer.core.zookeeper.machine import RebalanceMachine
from zkconsumer.core.zookeeper.scripts.by_command import script_for
from zkconsumer.core.zookeeper.scripts.common import ScriptContext
from zkconsumer.core.zookeeper.view import MemberSpec
from zkconsumer.runtime.membership.cluster_directory import ClusterDirectory
from zkconsumer.runtime.membership.kafka_offsets import KafkaOffsets
from zkconsumer.sim.judges.invariants import Observer
from zkconsumer.sim.members.bulk import read_now
from zkconsumer.sim.members.host import Habits
from zkconsumer.sim.members.plane import Source
from zkconsumer.sim.members.zookeeper import SimMember
from zkconsumer.sim.servers.zk import FakeZk

_ASK_BROKERS_S = 1.0
"""Seconds between two times that a member asks the brokers what their cluster consists of."""


class WholeMember(JudgedInZooKeeper[RebalanceMachine], SimMember):
    """A member whose offsets may be stored in Kafka, and which may learn the cluster from the
    brokers (``spec.bootstrap``)."""

    def __init__(
        self,
        zk: FakeZk,
        spec: MemberSpec,
        data: Source,
        observer: Observer,
        habits: Habits,
        note: Callable[[str], object] | None,
        offsets: SimOffsets | None = None,
    ) -> None:
        self._offset_store = offsets
        super().__init__(zk, spec, data, observer, habits, note)
        self._zk.has_brokers = not spec.bootstrap
        if isinstance(self.plane, WholePlane):
            self.plane.on_reset = lambda tp, old: self.post(events.OffsetReset(tp, old))

    def _brokers(self, zk: FakeZk) -> tuple[KafkaOffsets | None, ClusterDirectory | None, float]:
        offsets = directory = None
        if self.spec.bootstrap:
            port: Any = SimClusterPort(zk, self.host)
            directory = ClusterDirectory(self.host, port, False, self._signals.on_watch)
        if self._offset_store is not None:
            offsets = self._offset_store.of_member(self.host, lambda: self.session, self._surely_in)
        return offsets, directory, _ASK_BROKERS_S

    def _surely_in(self, session: int) -> bool:
        """Whether the session is this member's, and surely lives."""
        limit = self.proved + self.spec.session_timeout
        return self.spec.scala or (session == self.session and self._kernel.now < limit)

    def slow_pings(self, probability: float) -> None:
        """Hand over the answers to pings late at times."""
        self._zk.late_pings = probability

    def crash(self) -> None:
        """See ``SimMember``: an offset that is on its way may still be stored."""
        lives = self.alive
        super().crash()
        if lives and self._coordination.offsets is not None:
            self._coordination.offsets.close()

    def at_rest(self) -> MemberAtRest:
        """The data that the invariants at rest need."""
        machine = self.machine
        return MemberAtRest(
            self.spec.consumer_id,
            self.session,
            self.spec.scala,
            self.fetching if self._delivers else frozenset(machine.fetching),
            machine.view and replace(machine.view, brokers=self.plane.brokers),
            machine.decision.mine,
        )


def run_now(zk: FakeZk, command: ScriptCommand, context: ScriptContext) -> Event:
    """Run a script that only reads against the committed state, at once and without a session."""
    script = one_by_one(script_for(command, context))
    op = next(script)
    while True:
        try:
            op = script.send(read_now(zk, op))
        except StopIteration as end:
            result: Event = end.value
            return result


__all__ = ["WholeMember", "run_now"]
