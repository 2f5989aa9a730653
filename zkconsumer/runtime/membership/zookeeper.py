"""ZooKeeperCoordination: carries out a member's commands in ZooKeeper.

Owns the member's view of the session, the scripts in progress and the lease. Runs on the host's
thread. ``SessionSignals`` report the session and watches. Scripts run one operation at a time, so
a lost session interrupts a script in progress.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from zkconsumer.config.security_keys import NO_SECURITY, ListenerChoice
from zkconsumer.core.common.expansion import Expansions
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper import commands, events
from zkconsumer.core.zookeeper.events import Event
from zkconsumer.core.zookeeper.machine import RebalanceMachine
from zkconsumer.core.zookeeper.ops import (
    Code,
    Failed,
    Multi,
    OffsetOp,
    Ok,
    Permit,
    Pipelined,
    Reply,
    SessionEvent,
    StoreOffsets,
    ZkOp,
    session_text,
)
from zkconsumer.core.zookeeper.scripts.by_command import script_for
from zkconsumer.core.zookeeper.scripts.common import CommitCounts, MemberScript, ScriptContext
from zkconsumer.core.zookeeper.states import CLOSING, IDLE, OUTSIDE, State
from zkconsumer.runtime.counters import RebalanceCounts
from zkconsumer.runtime.gate import LEASE, DeliveryGate
from zkconsumer.runtime.membership.loop import Host, MemberPort

if TYPE_CHECKING:
    from zkconsumer.journal.recorder import MemberObserver
    from zkconsumer.runtime.membership.cluster_directory import ClusterDirectory
    from zkconsumer.runtime.membership.kafka_offsets import KafkaOffsets

HOLD: Final = 1.0
"""Seconds without delivery after the connection is lost, unless a server answers. Another client
may have closed the session in that time. At most a sixth of the session timeout."""


class ZkPort(Protocol):
    """A member's access to ZooKeeper (``zkconsumer.zk.driver.ZkDriver``)."""

    @property
    def session_timeout(self) -> float:
        """Seconds after which the server ends a silent session."""

    def submit(
        self,
        op: ZkOp,
        session_id: int,
        on_reply: Callable[[Reply], object],
        resumed: int | None = None,
    ) -> None:
        """Carry out ``op``; call ``on_reply`` once, on any thread.

        ``resumed``: how often the session had been resumed before the oldest read on which ``op``
        depends. Servers that were restored from a backup reuse versions. So if the session was
        resumed since, a ``Multi`` is not sent, and its answer is ``CONNECTION_LOSS``.
        """

    def ping(self, on_answer: Callable[[], object]) -> None:
        """Ping the server, and call ``on_answer`` when it answers."""

    def close(self, timeout: float) -> None:
        """End the session within ``timeout`` seconds, even if the servers do not answer."""


@dataclass(slots=True)
class Running:
    """A script in progress, in one session."""

    command: Any
    script: MemberScript[Event]
    session_id: int
    resumed: int
    """See ``ZkPort.submit``. A script whose write is lost reads again what it needs."""
    ops: Sequence[ZkOp | OffsetOp] = ()
    """The operations in flight."""
    replies: dict[int, Reply] = field(default_factory=dict)
    """Replies to ``ops`` that have arrived, by position."""
    sent_us: int = 0
    """When ``ops`` were sent, in microseconds since 1970."""


def rebalance_counts() -> RebalanceCounts:
    """Return rebalance counts for a ZooKeeper member, all 0."""
    return RebalanceCounts(IDLE, OUTSIDE | CLOSING, {State.REGISTERING})


class SessionSignals:
    """Passes sessions and fired watches from a ZooKeeper client to a member.

    The client starts before there is a member. The client's reports change the gate immediately,
    and wait in the host's mailbox until the member starts.

    Args:
        host: runs the member.
        gate: kept open while the session is certain to be alive.
    """

    def __init__(self, host: Host, gate: DeliveryGate) -> None:
        self.drops = 0
        """How often the connection was lost. Written by the client's thread."""
        self._host = host
        self._gate = gate
        self._coordination: ZooKeeperCoordination

    def begin(self, coordination: ZooKeeperCoordination) -> None:
        """Report to ``coordination`` from now on. The host's thread only."""
        self._coordination = coordination

    def on_session(self, event: SessionEvent, session_id: int) -> None:
        """Report that the session was opened, resumed or lost. The client's thread only."""
        # At once; the loop takes the event later.
        if event is SessionEvent.LOST:
            self._gate.close()
        elif event is SessionEvent.SUSPENDED:
            self.drops += 1
            self._gate.hold()
        self._host.post(lambda: self._coordination.session_changed(event, session_id))

    def on_watch(self, path: str, zxid: int | None = None) -> None:
        """Report that a watch on ``path`` fired, with transaction ``zxid`` if known. Any thread."""
        self._host.post(lambda: self._coordination.watch_fired(path, zxid))


class ZooKeeperCoordination:
    """The ZooKeeper side of one member.

    Args:
        host: runs the member.
        gate: kept open while the session is certain to be alive.
        zk: the client, which reports to ``signals``.
        session_timeout: seconds, as configured; the server may grant less.
        offsets: stores offsets in Kafka, if configured.
        directory: finds the brokers if ZooKeeper does not list them.
        directory_interval: seconds after which ``directory`` asks the brokers again.
        scripts: the script for each command.
        listener: chooses the listener of a registered broker to connect to.
    """

    def __init__(
        self,
        host: Host,
        gate: DeliveryGate,
        zk: ZkPort,
        signals: SessionSignals,
        session_timeout: float,
        *,
        offsets: KafkaOffsets | None = None,
        directory: ClusterDirectory | None = None,
        directory_interval: float = 10.0,
        scripts: Callable[[Any, ScriptContext], MemberScript[Any]] = script_for,
        listener: ListenerChoice = NO_SECURITY.listener,
    ) -> None:
        self.offsets = offsets
        self.directory = directory
        self.zk = zk
        self._signals = signals
        self._directory_interval = directory_interval
        self._scripts_of = scripts
        self.stored = CommitCounts()
        self.pauses: dict[TopicPartition, float] = {}
        """See ``ScriptContext``."""
        self.sessions = 0
        """Number of sessions opened. Host's thread."""
        self._host = host
        self._gate = gate
        self._session_timeout = session_timeout
        self._listener = listener
        self._observer: MemberObserver | None = None
        """The member's observer, called with every operation."""
        self._member: MemberPort[RebalanceMachine]
        self._context: ScriptContext | None = None
        """``None`` while there is no session."""
        self._last: ScriptContext | None = None
        """The context of the current or last session."""
        self._resumed = 0
        """How often the current session was resumed."""
        self._opened_at = 0.0
        """When the session was opened, on the lease's clock."""
        self._scripts: dict[int, Running] = {}
        self._numbers = itertools.count(1)

    # -- the host's thread ---------------------------------------------------------------------

    def begin(self, member: MemberPort[RebalanceMachine]) -> None:
        """Implement ``Coordination.begin``."""
        self._member = member
        self._observer = cast("MemberObserver | None", member.observer)
        self._signals.begin(self)
        if self.directory is not None:
            member.every(self._directory_interval, self.directory.refresh)
        if not self._gate.always_open:
            member.every(self._lease / 6, self._ping)

    def stamp(self) -> tuple[int, int]:
        """Implement ``Coordination.stamp``: session id (0: none) and attempt."""
        return self.session_id, self._member.machine.attempts

    @property
    def disconnections(self) -> int:
        """Number of times that the connection was lost."""
        return self._signals.drops

    @property
    def session_id(self) -> int:
        """The member's session; 0 while there is none. Any thread."""
        context = self._context
        return 0 if context is None else context.session_id

    def carry_out(self, command: Any) -> None:
        """Run the script of ``command``."""
        context = self._context
        if context is None:
            return
        if isinstance(command, commands.Release):
            self._member.data.forget(command.claims)
        number = next(self._numbers)
        script = self._scripts_of(command, context)
        running = Running(command, script, context.session_id, self._resumed)
        self._scripts[number] = running
        self._step(number, running, None)

    def close(self, timeout: float) -> None:
        """Implement ``Coordination.close``."""
        if self.offsets is not None:
            self.offsets.close()
        if self.directory is not None:
            self.directory.close()
        self.zk.close(timeout)

    def watch_fired(self, path: str, zxid: int | None) -> None:
        """Handle a fired watch on ``path``."""
        self._member.take(events.Changed(path, zxid))

    def session_changed(self, event: SessionEvent, session_id: int) -> None:
        """Handle an opened, resumed or lost session."""
        member = self._member
        if event is SessionEvent.OPENED:
            spec, last = member.machine.spec, self._last
            self._context = self._last = ScriptContext(
                spec,
                session_id,
                self._host.wall_ms,
                expansions=Expansions() if last is None else last.expansions,
                decoded={} if last is None else last.decoded,
                stored=self.stored,
                pauses=self.pauses,
                listener=self._listener,
            )
            self.sessions, self._opened_at = self.sessions + 1, self._host.lease_now()
            self._resumed = 0
            self._log(f"ZooKeeper session {session_text(session_id)} opened")
            self._ping()
            member.take(events.SessionOpened(session_id))
        elif event is SessionEvent.RESUMED:
            self._resumed += 1
            self._ping()
            member.take(events.SessionResumed())
        elif event is SessionEvent.SUSPENDED:
            release = partial(self._release, self._signals.drops)
            self._host.after(min(HOLD, self._lease / 6), release)
        elif event is SessionEvent.LOST:
            self._gate.close()
            lived = self._host.lease_now() - self._opened_at
            self._log(f"ZooKeeper session {session_text(self.session_id)} lost after {lived:.1f} s")
            self._context = None
            if self.offsets is not None:
                self.offsets.interrupt_ended()
            for running in self._scripts.values():
                running.script.close()
            self._scripts.clear()
            if self._observer is not None and not self._gate.always_open:
                shut_us = int(self._gate.shut_seconds * 1e6)
                self._observer.shut(self._host.wall_us() - shut_us)
            member.take(events.SessionLost())

    def _log(self, text: str) -> None:
        self._host.log(logging.INFO, text)

    def _permit(self, op: OffsetOp, running: Running) -> Permit:
        """See ``Permission``: an offset is stored only while the session is certainly alive. A
        lost session closes the gate before the next session opens it, so the gate is read first."""
        if self._gate.always_open:
            return Permit.GRANTED  # the JVM has no lease
        sure, stores = self._gate.is_open, isinstance(op, StoreOffsets)
        if running.session_id != self.session_id:
            return Permit.ENDED
        if stores and running.resumed != self._resumed:
            return Permit.OUTDATED
        return Permit.GRANTED if sure or not stores else Permit.WAIT

    def _release(self, drops: int) -> None:
        """Resume delivery until the lease expires. While no server answers, no other client can
        close the session."""
        if drops == self._signals.drops:
            self._gate.release()

    def _ping(self) -> None:
        """Prove that the session is alive. It was valid when the request was sent."""
        context = self._context
        if context is None or self._gate.always_open:
            return
        until = self._host.lease_now() + self._lease * LEASE
        drops = self._signals.drops

        def answered() -> None:
            if self._context is context and self._signals.drops == drops:
                self._gate.extend(until)

        self.zk.ping(answered)

    @property
    def _lease(self) -> float:
        """Return the seconds for which the session certainly survives without a request."""
        return min(self._session_timeout, self.zk.session_timeout)

    def _answered(self, number: int, position: int, reply: Reply) -> None:
        running = self._scripts.get(number)
        if running is None:
            return
        op, attempt = running.ops[position], self._member.machine.attempts
        if self._observer is not None:
            self._observer.op(op, reply, running.sent_us, running.session_id, attempt)
        if reply == Failed(Code.CONNECTION_LOSS) and isinstance(op, Multi | StoreOffsets):
            running.resumed = self._resumed
        replies = running.replies
        replies[position] = reply
        if len(replies) < len(running.ops):
            return
        if len(replies) > 1:
            reply = Ok(tuple(replies[place] for place in range(len(replies))))
        self._step(number, running, reply)

    def _step(self, number: int, running: Running, reply: Reply | None) -> None:
        try:
            op = next(running.script) if reply is None else running.script.send(reply)
        except StopIteration as end:
            del self._scripts[number]
            # A script that sends nothing ends while the machine's commands are carried out.
            result = self._member.post if reply is None else self._member.take
            result(end.value)
            return
        running.ops = op.ops if isinstance(op, Pipelined) else (op,)
        running.replies, running.sent_us = {}, self._host.wall_us()
        for position, part in enumerate(running.ops):
            self._submit(number, position, running, part)

    def _submit(self, number: int, position: int, running: Running, op: ZkOp | OffsetOp) -> None:
        def answered(reply: Reply, *_sent: float) -> None:
            self._host.post(partial(self._answered, number, position, reply))

        if self.directory is not None and self.directory.takes(op):
            self.directory.submit(op, answered)
        elif isinstance(op, OffsetOp):
            assert self.offsets is not None
            self.offsets.submit(op, answered, partial(self._permit, op, running))
        else:
            self.zk.submit(op, running.session_id, answered, running.resumed)
