"""A simulated member: the real machine and the real scripts on a ``FakeSession``, in virtual time.

Owns what a live connector adds around the core for ZooKeeper: the session's facts, carrying out
scripts. Everything runs inside kernel events, in the thread that runs the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

from zkconsumer.core import facts, orders
from zkconsumer.core.facts import Fact
from zkconsumer.core.invariants import MemberAtRest, Observer
from zkconsumer.core.machine import RebalanceMachine
from zkconsumer.core.ops import OffsetOp, Reply, ZkOp
from zkconsumer.core.orders import Order
from zkconsumer.core.scripts.common import MemberScript, ScriptContext
from zkconsumer.core.scripts.table import ZkOrder, script_for
from zkconsumer.core.view import MemberSpec
from zkconsumer.journal.recorder import MemberObserver
from zkconsumer.journal.wire import Cost
from zkconsumer.sim.bulk import BulkViews, read_now
from zkconsumer.sim.process import LEASE, Habits, SimLog, SimProcess
from zkconsumer.sim.zk import FakeZk, SessionState, WatchEvent

#: When simulations begin, in milliseconds since 1970: timestamps are as long as real ones.
EPOCH_MS = 1_500_000_000_000


class SimMember(SimProcess):
    """One member. Call ``start`` once; ``session`` is its ZooKeeper session."""

    def __init__(
        self,
        zk: FakeZk,
        spec: MemberSpec,
        log: SimLog | None = None,
        observer: Observer | None = None,
        habits: Habits = Habits(),  # noqa: B008
        note: Callable[[str], object] | None = None,
        watchers: Sequence[MemberObserver] = (),
        bulk: BulkViews | None = None,
    ) -> None:
        super().__init__(zk.kernel, spec.consumer_id, spec.auto_commit, log, observer, habits, note)
        self.spec = spec
        self.machine = RebalanceMachine(spec)
        self._zk = zk
        self._watchers = watchers
        self._bulk = bulk
        self._context = ScriptContext(spec, 0, lambda: EPOCH_MS + zk.kernel.now_us // 1000)
        self._contact = 0.0

    def start(self) -> None:
        """Connect; everything else follows from that."""
        self.client = self._zk.connect(self.spec.session_timeout, self._on_watch, self._on_state)
        self._begin_delivery()

    # -- what a fault does

    def crash(self) -> None:
        """The process dies. Its session lives on until its timeout."""
        if self.alive:
            super().crash()
            if self._bulk is not None:
                self._bulk.abandon(self)
            self.client.kill()

    def pause(self, seconds: float) -> None:
        """The process stands still (SIGSTOP); longer than the session timeout ends the session."""
        stands = self.alive and not self.paused
        super().pause(seconds)
        timeout = self.spec.session_timeout
        if stands and seconds > timeout:
            self._kernel.schedule(timeout, partial(self._starve, self.session, seconds - timeout))

    def _starve(self, session: int, unnoticed: float) -> None:
        if self.alive and self.client.session_id == session:
            self.client.expire(unnoticed)

    def at_rest(self) -> MemberAtRest:
        """What the invariants at rest need to know."""
        machine = self.machine
        return MemberAtRest(
            self.spec.consumer_id,
            self.session,
            self.spec.scala,
            frozenset(machine.fetching) if self._log is None else self.fetching,
            machine.view and replace(machine.view, brokers=self.brokers),
            machine.decision.mine,
        )

    # -- mailbox

    def _take(self, fact: Fact) -> None:
        if self._record is not None:
            self._say(f"{fact}")
        self.active_us = self._kernel.now_us
        for watcher in self._watchers:
            watcher.fact(fact, self.session, self.machine.attempts)
        for order in self.machine.on(fact):
            for watcher in self._watchers:
                watcher.order(order, self.session, self.machine.attempts)
            self._carry_out(order)

    # -- session

    def _on_watch(self, event: WatchEvent) -> None:
        self.post(facts.Changed(event.path))

    def _on_state(self, state: SessionState, session_id: int) -> None:
        self._enqueue(partial(self._state_changed, state, session_id, self._kernel.now))

    def _state_changed(self, state: SessionState, session_id: int, at: float) -> None:
        if state is SessionState.CONNECTED:
            self._contact = at  # not now: the process may have stood still since
            if session_id == self.session:
                self._take(facts.SessionResumed())
                return
            self.session = session_id
            if self._observer is not None and self.spec.scala:
                self._observer.legacy_sessions.add(session_id)
            self._context.session_id = session_id
            self._take(facts.SessionOpened(session_id))
        elif state is SessionState.LOST:
            self.session = 0
            self._take(facts.SessionLost())

    # -- orders

    def _carry_out(self, order: Order) -> None:
        match order:
            case orders.CloseSession():
                self._closed(order.faults)
                self.client.close()
            case _ if not self._carry_out_common(order):
                script = script_for(cast(ZkOrder, order), self._context)
                if self._bulk is not None and isinstance(order, orders.LoadView):
                    self._bulk.expect(self, order, script)
                self.step(self.session, script, None)

    def step(self, session: int, script: MemberScript[Fact], reply: Reply | None) -> None:
        """Send a script its reply. Scripts of a session that is lost are abandoned."""
        if session != self.session:
            return
        try:
            op = next(script) if reply is None else script.send(reply)
        except StopIteration as end:
            self.post(end.value)
            return
        assert not isinstance(op, OffsetOp), "the simulator has no offsets in Kafka"
        if self._bulk is None or not self._bulk.takes(self, session, script, op):
            self.send(op, partial(self.step, session, script))

    def send(
        self, op: ZkOp, on_reply: Callable[[Reply], object], sent_us: int | None = None
    ) -> None:
        """Send ``op`` (as if at ``sent_us``); ``on_reply`` is called from the mailbox."""
        sent = self._kernel.now_us if sent_us is None else sent_us
        session = self.session

        def answered(reply: Reply) -> None:
            for watcher in self._watchers:
                watcher.op(op, reply, sent, session, self.machine.attempts)
            self._enqueue(partial(on_reply, reply))

        self.client.submit(op, answered, sent_us)

    def bulk_done(self, began_us: int, spent: Cost, path: str) -> None:
        """Reads that were simulated in bulk are answered."""
        for watcher in self._watchers:
            watcher.reads(path, spent, began_us, self.session, self.machine.attempts)

    def _may_deliver(self) -> bool:
        """The lease: ZooKeeper confirmed the session not too long ago."""
        if self.spec.scala:
            return True
        if self.client.state is SessionState.CONNECTED and self._zk.session_alive(self.session):
            self._contact = self._kernel.now
        return self._kernel.now - self._contact < LEASE * self.spec.session_timeout


def run_now(zk: FakeZk, order: ZkOrder, context: ScriptContext) -> Fact:
    """Run a script that only reads against the committed state, at once and without a session."""
    script = script_for(order, context)
    op = next(script)
    while True:
        try:
            op = script.send(read_now(zk, op))
        except StopIteration as end:
            result: Fact = end.value
            return result
