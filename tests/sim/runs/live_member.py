"""A simulated migratable member: the code of ``MigratableConsumerConnector`` in virtual time.

Owns its connections to both simulated servers and, for the judges, the coordinator's answers.
Machines, scripts, both coordinations, gate and offsets are those of production. Everything runs
inside kernel events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tests.sim.runs.at_rest import MemberAtRest
from tests.sim.runs.judged import JudgedInZooKeeper, JudgedOnBrokers
from tests.sim.runs.whole import WholePlane
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.groups import events as group_events
from zkconsumer.core.groups.assignors.strategies import Strategy
from zkconsumer.core.groups.formats.consumer_protocol import decode_assignment
from zkconsumer.core.groups.spec import ClassicSpec
from zkconsumer.core.migration.member import LiveMember
from zkconsumer.core.migration.member_scripts import scripts_of
from zkconsumer.core.migration.modes import Mode
from zkconsumer.core.migration.znodes import LIVE_CREDENTIAL, LivePaths
from zkconsumer.core.zookeeper import events
from zkconsumer.core.zookeeper.view import MemberSpec
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.membership.classic import BrokerCoordination
from zkconsumer.runtime.membership.kafka_offsets import KafkaOffsets
from zkconsumer.runtime.membership.live_move import DualGate, LiveCoordination, committer
from zkconsumer.runtime.membership.zookeeper import SessionSignals, ZooKeeperCoordination
from zkconsumer.sim.judges.invariants import Observer
from zkconsumer.sim.members.group_member import Brokers
from zkconsumer.sim.members.host import Habits
from zkconsumer.sim.members.plane import Source
from zkconsumer.sim.members.zookeeper import SimZk
from zkconsumer.sim.servers.zk import FakeZk
from zkconsumer.sim.servers.zk_tree import ANYONE


class SimLiveMember(JudgedInZooKeeper[LiveMember], JudgedOnBrokers[LiveMember]):
    """One migratable member. Call ``start`` once. ``usual``: see ``LiveMember``."""

    def __init__(
        self,
        zk: FakeZk,
        brokers: Brokers,
        spec: MemberSpec,
        group_spec: ClassicSpec,
        usual: tuple[Strategy, ...],
        data: Source,
        observer: Observer,
        habits: Habits,
        note: Callable[[str], object] | None,
        watchers: Sequence[Any] = (),
    ) -> None:
        super().__init__(
            zk.kernel, spec.consumer_id, spec.subscription, data, observer, habits, note
        )
        self.spec = spec
        self.group_spec = group_spec
        self._connect(brokers, 3)  # requests, heartbeats, offsets
        self.given: frozenset[TopicPartition] = frozenset()
        """The coordinator's assignment to it, according to its last answer."""
        self.lower: set[TopicPartition] = set()
        """Partitions that it claimed in mode ``zookeeper`` below their offset in Kafka."""
        self.in_kafka: Callable[[TopicPartition], int | None] = lambda tp: None
        """The committed offset in Kafka, for those who judge."""
        for line in self._lines:
            line.coordinator = brokers.home
        gate = self.gate
        assert isinstance(gate, DualGate)
        self._server = zk
        self._zk = SimZk(zk, self.host, spec.session_timeout)
        paths = LivePaths.of(spec.paths.group)
        machine = LiveMember(spec, group_spec, paths.mode, usual)
        requests, heartbeats, offsets = self._lines
        self._signals = SessionSignals(self.host, gate.zookeeper)
        commits = KafkaOffsets(
            self.host,
            offsets,
            group_spec.group,
            group_spec.session_timeout,
            group_spec.backoff,
            partial(committer, machine),
        )
        self._coordination = ZooKeeperCoordination(
            self.host,
            gate.zookeeper,
            self._zk,
            self._signals,
            spec.session_timeout,
            offsets=commits,
            scripts=scripts_of(paths, machine.live),
        )
        coordination = LiveCoordination(
            self._coordination,
            BrokerCoordination(
                group_spec,
                self.host,
                gate.group,
                requests,
                heartbeats,
                self.plane.progress,
                self.listener,
            ),
            commits,
            gate,
        )
        self._make_loop(machine, coordination, spec.auto_commit, watchers)
        if isinstance(self.plane, WholePlane):
            self.plane.on_start = self._starts
            self.plane.on_reset = lambda tp, old: self.post(events.OffsetReset(tp, old))
        self.loop.closed.add_done_callback(lambda _: self._leave())

    def _make_gate(self, always_open: bool) -> DeliveryGate:
        return DualGate(now=self.host.lease_now)

    def _starts(self, tp: TopicPartition, position: int | None) -> None:
        """Delivery of a partition begins: look whether the offset in Kafka was carried over."""
        stored = self.in_kafka(tp)
        self.lower.discard(tp)
        if stored is None or (position or 0) >= stored:
            return
        if not self._server.session_alive(self.session):
            return  # it claimed before its session ended, and is about to notice
        if self.mode in (None, Mode.ZOOKEEPER):
            self.lower.add(tp)
        else:
            self.broken("offset_carried_over", f"{tp}: begins at {position}, Kafka has {stored}")

    def start(self) -> None:
        """Connect; everything else follows from that."""
        self.cluster.members.append(self)
        super().start()
        self.client.identities = (ANYONE, ("digest", LIVE_CREDENTIAL))

    @property
    def mode(self) -> Mode | None:
        """The mode that the member acts on."""
        return self.machine.live.mode

    def _judge(self) -> None:
        super()._judge()
        gate, limit = self.gate, self.proved_group + self.group_spec.session_timeout + 1e-6
        if gate.valid_until > limit and gate.is_open and self.mode not in (None, Mode.ZOOKEEPER):
            text = f"{self.name}: open until {gate.valid_until}, the membership {limit}"
            self.broken("lease", text)

    def heard(self, command: Any, event: Any, sent: float) -> None:
        """See ``LinesProcess``."""
        super().heard(command, event, sent)
        group = self.machine.group
        if isinstance(event, group_events.Synced) and command.generation == group.generation:
            self.given = decode_assignment(event.assignment).partitions

    def at_rest(self) -> MemberAtRest:
        """The data that the invariants at rest need."""
        return MemberAtRest(self.name, self.session, False, self.fetching, None, {})


__all__ = ["SimLiveMember"]
