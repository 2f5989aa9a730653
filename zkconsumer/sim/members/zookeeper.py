"""A simulated member of a ZooKeeper group: the real loop and scripts on a ``FakeSession``.

Connects the member's ZooKeeper coordination to the simulated servers. Everything runs inside
kernel events, in the thread that runs the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from zkconsumer.core.zookeeper import commands
from zkconsumer.core.zookeeper.cluster_view import is_of_cluster
from zkconsumer.core.zookeeper.events import Event
from zkconsumer.core.zookeeper.machine import RebalanceMachine
from zkconsumer.core.zookeeper.ops import Reply, SessionEvent, ZkOp
from zkconsumer.core.zookeeper.scripts.common import MemberScript
from zkconsumer.core.zookeeper.view import MemberSpec
from zkconsumer.herd.wire import Cost
from zkconsumer.journal.recorder import MemberObserver
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.membership.cluster_directory import ClusterDirectory
from zkconsumer.runtime.membership.kafka_offsets import KafkaOffsets
from zkconsumer.runtime.membership.loop import MachineT
from zkconsumer.runtime.membership.zookeeper import (
    Running,
    SessionSignals,
    ZooKeeperCoordination,
)
from zkconsumer.sim.judges.invariants import Observer
from zkconsumer.sim.members.bulk import BulkViews
from zkconsumer.sim.members.host import Habits, SimHost
from zkconsumer.sim.members.plane import Source
from zkconsumer.sim.members.process import SimProcess
from zkconsumer.sim.servers.zk import FakeZk, SessionState, WatchEvent


class SimZk:
    """The ``ZkPort`` of a simulated member. Passes requests to a ``FakeSession``, and returns its
    events."""

    def __init__(self, zk: FakeZk, host: SimHost, session_timeout: float) -> None:
        self.session_timeout = session_timeout
        self.proved = -math.inf
        """When the last answered ping of this session was sent."""
        self.late_pings = 0.0
        """Probability that the client library passes on the answer to a ping late."""
        self.has_brokers = True
        """Whether the member may read its cluster from this ZooKeeper."""
        self._zk = zk
        self._host = host
        self._known = 0

    def connect(
        self,
        on_session: Callable[[SessionEvent, int], object],
        on_watch: Callable[[str, int | None], object],
    ) -> None:
        """Start a session. A suspended process gets the session's events when it continues."""

        def lost(session_id: int) -> None:
            self.proved = -math.inf  # not before: the process may be suspended
            on_session(SessionEvent.LOST, session_id)

        def state_changed(state: SessionState, session_id: int) -> None:
            if state is SessionState.CONNECTED:
                event = SessionEvent.OPENED
                if session_id == self._known:
                    event = SessionEvent.RESUMED
                self._known = session_id
                self._host.post(partial(on_session, event, session_id))
            elif state is SessionState.LOST:
                self._known = 0
                self._host.post(partial(lost, session_id))

        def fired(event: WatchEvent) -> None:
            self._host.post(partial(on_watch, event.path, event.zxid))

        self.client = self._zk.connect(self.session_timeout, fired, state_changed)

    def submit(
        self,
        op: ZkOp,
        session_id: int,
        on_reply: Callable[[Reply], object],
        resumed: int | None = None,
    ) -> None:
        """Implement ``ZkPort.submit``."""
        assert self.has_brokers or not is_of_cluster(op), f"{op}: is asked of the brokers"
        self.client.submit(op, on_reply, resumed=resumed)

    def ping(self, on_answer: Callable[[], object]) -> None:
        """Implement ``ZkPort.ping``."""
        host, sent, session = self._host, self._host.now(), self._known

        def answered() -> None:
            if session == self._known:
                self.proved = max(self.proved, sent)
            if self.late_pings and host.random.random() < self.late_pings:
                host.within((0.0, self.session_timeout), on_answer)
            else:
                host.post(on_answer)

        self.client.ping(answered)

    def close(self, timeout: float) -> None:
        """Implement ``ZkPort.close``."""
        self.client.close()


class ZkProcess(SimProcess[MachineT]):
    """A member's process with a session in ZooKeeper."""

    spec: MemberSpec
    _zk: SimZk
    _signals: SessionSignals
    _coordination: ZooKeeperCoordination

    def start(self) -> None:
        """Connect to ZooKeeper. The member then starts by itself."""
        self._zk.connect(self._on_session, self._signals.on_watch)
        self.loop.begin()
        self.plane.begin()

    def _on_session(self, event: SessionEvent, session_id: int) -> None:
        if event is SessionEvent.OPENED and self.observer is not None:
            self.observer.session_begins(session_id, self.name)
            if self.spec.scala:
                self.observer.legacy_sessions.add(session_id)
        self._signals.on_session(event, session_id)
        if event in (SessionEvent.OPENED, SessionEvent.RESUMED) and self.observer is not None:
            self.host.post(partial(self.observer.connected, self.name))

    @property
    def client(self) -> Any:
        """The client of the simulated ZooKeeper, through which faults are injected."""
        return self._zk.client

    @property
    def session(self) -> int:
        """The member's session in ZooKeeper, which owns the owner znodes."""
        return self._coordination.session_id

    # -- what a fault does

    def crash(self) -> None:
        """Kill the process. Its session lasts until its timeout."""
        if self.alive:
            super().crash()
            self.client.kill()

    def pause(self, seconds: float) -> None:
        """Suspend the process (SIGSTOP). A suspension longer than the session timeout ends the
        session."""
        stands = self.alive and not self.paused
        super().pause(seconds)
        timeout = self.spec.session_timeout
        if stands and seconds > timeout:
            self._kernel.schedule(timeout, partial(self._starve, self.session, seconds - timeout))

    def _starve(self, session: int, unnoticed: float) -> None:
        if self.alive and self.client.session_id == session:
            self.client.expire(unnoticed)


class SimMember(ZkProcess[RebalanceMachine]):
    """One member of a group in ZooKeeper. Call ``start`` once.

    ``bulk`` simulates the reads of registrations for many members at once
    (``zkconsumer.sim.members.bulk``).
    """

    def __init__(
        self,
        zk: FakeZk,
        spec: MemberSpec,
        data: Source | None = None,
        observer: Observer | None = None,
        habits: Habits = Habits(),  # noqa: B008
        note: Callable[[str], object] | None = None,
        watchers: Sequence[MemberObserver] = (),
        bulk: BulkViews | None = None,
    ) -> None:
        super().__init__(
            zk.kernel,
            spec.consumer_id,
            spec.subscription,
            data,
            observer,
            habits,
            note,
            always_open=spec.scala or data is None,
        )
        self.spec = spec
        self._bulk = bulk
        self._zk = SimZk(zk, self.host, spec.session_timeout)
        self._signals = SessionSignals(self.host, self.gate)
        if bulk is None:
            offsets, directory, interval = self._brokers(zk)
            self._coordination = ZooKeeperCoordination(
                self.host,
                self.gate,
                self._zk,
                self._signals,
                spec.session_timeout,
                offsets=offsets,
                directory=directory,
                directory_interval=interval,
            )
        else:
            self._coordination = BulkCoordination(
                self, self.host, self.gate, self._zk, self._signals, bulk
            )
        self._make_loop(RebalanceMachine(spec), self._coordination, spec.auto_commit, watchers)

    def _brokers(self, zk: FakeZk) -> tuple[KafkaOffsets | None, ClusterDirectory | None, float]:
        """Return the member's offset store and directory, and the interval of the directory."""
        return None, None, 0.0

    # -- what a fault does

    def crash(self) -> None:
        """Kill the process. Its session lasts until its timeout."""
        if self.alive:
            super().crash()
            if self._bulk is not None:
                self._bulk.abandon(self)

    # -- for ``BulkViews``

    def step(self, session: int, script: MemberScript[Event], reply: Reply | None) -> None:
        """Pass a reply to the script that waits for it."""
        assert isinstance(self._coordination, BulkCoordination)
        self._coordination.step(session, script, reply)

    def finish(self, script: MemberScript[Event], event: Event) -> None:
        """End a script, without running it, with the event that it would return."""
        assert isinstance(self._coordination, BulkCoordination)
        self._coordination.finish(script, event)

    def send(
        self, op: ZkOp, on_reply: Callable[[Reply], object], sent_us: int | None = None
    ) -> None:
        """Send ``op`` (as if at ``sent_us``); ``on_reply`` is called from the mailbox."""
        sent = self._kernel.now_us if sent_us is None else sent_us
        session = self.session

        def answered(reply: Reply) -> None:
            self.watchers.op(op, reply, sent, session, self.machine.attempts)
            self.host.post(partial(on_reply, reply))

        self.client.submit(op, answered, sent_us)

    def bulk_done(self, began_us: int, spent: Cost, path: str) -> None:
        """Handle the answers to reads that were simulated in bulk."""
        self.watchers.reads(path, spent, began_us, self.session, self.machine.attempts)


class BulkCoordination(ZooKeeperCoordination):
    """A ``ZooKeeperCoordination`` that leaves reads of registrations to ``BulkViews``."""

    def __init__(
        self,
        member: SimMember,
        host: SimHost,
        gate: DeliveryGate,
        zk: SimZk,
        signals: SessionSignals,
        bulk: BulkViews,
    ) -> None:
        super().__init__(host, gate, zk, signals, member.spec.session_timeout)
        self._owner = member
        self._bulk = bulk

    def _step(self, number: int, running: Running, reply: Reply | None) -> None:
        member, command, script = self._owner, running.command, running.script
        if isinstance(command, commands.LoadView) and reply is None:
            self._bulk.expect(member, command, script)
        if reply is None or not self._bulk.takes(member, running, reply):
            super()._step(number, running, reply)

    def step(self, session: int, script: MemberScript[Event], reply: Reply | None) -> None:
        """Pass a reply to the script that waits for it, or abandon the script if its session is
        lost."""
        number = self._number_of(script)
        if number is not None and session == self.session_id:
            self._step(number, self._scripts[number], reply)

    def finish(self, script: MemberScript[Event], event: Event) -> None:
        """End a script, without running it, with the event that it would return."""
        number = self._number_of(script)
        if number is not None:
            del self._scripts[number]
        script.close()
        self._member.post(event)

    def _number_of(self, script: MemberScript[Event]) -> int | None:
        return next((n for n, running in self._scripts.items() if running.script is script), None)
