"""A simulated member: the real machine and the real scripts on a ``FakeSession``, in virtual time.

Owns everything a live connector adds around the core: carrying out orders, timers, the session's
facts, delivery to an application, automatic commits; and the faults of a process (pause, crash).
Everything runs inside kernel events, in the thread that runs the kernel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from zkconsumer.core import facts, orders
from zkconsumer.core.facts import Fact
from zkconsumer.core.invariants import MemberAtRest, Observer
from zkconsumer.core.machine import RebalanceMachine
from zkconsumer.core.ops import (
    OffsetOp,
    Reply,
    ZkOp,
)
from zkconsumer.core.orders import Order
from zkconsumer.core.scripts.common import MemberScript, ScriptContext
from zkconsumer.core.scripts.table import ZkOrder, script_for
from zkconsumer.core.types import BrokerEndpoint, TopicPartition
from zkconsumer.core.view import MemberSpec
from zkconsumer.journal.recorder import MemberObserver
from zkconsumer.journal.wire import Cost
from zkconsumer.sim.bulk import BulkViews, read_now
from zkconsumer.sim.kernel import Handle, Kernel
from zkconsumer.sim.zk import FakeZk, SessionState, WatchEvent

#: When simulations begin, in milliseconds since 1970: timestamps are as long as real ones.
EPOCH_MS = 1_500_000_000_000
#: Part of the session timeout after which silence of ZooKeeper stops delivery.
LEASE = 2 / 3


class SimLog:
    """The partitions' messages: each partition grows by ``rate`` messages a second until ``stop``.

    Messages are their offsets. A partition keeps its messages when its topic is deleted.
    """

    def __init__(self, kernel: Kernel, rate: float) -> None:
        self._kernel = kernel
        self._rate = rate
        self._created: dict[TopicPartition, float] = {}
        self._stopped: float | None = None

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """New partitions, empty; those that are there already stay as they are."""
        for tp in partitions:
            self._created.setdefault(tp, self._kernel.now)

    def stop(self) -> None:
        """Nothing is written any more."""
        self._stopped = self._kernel.now

    def end(self, tp: TopicPartition) -> int:
        """The log-end offset now."""
        now = self._kernel.now if self._stopped is None else self._stopped
        return int(max(0.0, now - self._created[tp]) * self._rate)


@dataclass(frozen=True, slots=True)
class Habits:
    """How a member's process behaves. Pairs are ranges; times are seconds.

    ``poll``: between two looks for messages, up to ``burst`` of each partition being taken.
    ``stop``: until fetchers have stopped. ``listener``: in the user's listener, which raises with
    probability ``listener_error``.
    """

    poll: tuple[float, float] = (0.3, 0.7)
    burst: int = 8
    stop: tuple[float, float] = (0.0, 0.1)
    listener: tuple[float, float] = (0.0, 0.05)
    listener_error: float = 0.0
    commit_interval: float = 2.0


@dataclass(slots=True)
class _Reading:
    """A partition being delivered: ``position`` is consumed up to; one message may be in hand.

    ``stopping`` is the token of the ``StopFetching`` that ended delivery.
    """

    session: int
    position: int
    in_hand: bool = False
    stopping: int | None = None


class SimMember:
    """One member. Call ``start`` once; ``observer`` and ``log`` switch delivery on.

    Readable: ``machine``, ``session`` (0 while it has none), ``alive`` (neither crashed nor left),
    ``paused``, ``brokers``, ``outcome`` (of the first rebalance), ``reports`` (count by event),
    ``answers`` (faults by commit request), ``close_faults``, ``active_us`` (its
    last fact).
    """

    def __init__(
        self,
        zk: FakeZk,
        spec: MemberSpec,
        log: SimLog | None = None,
        observer: Observer | None = None,
        habits: Habits = Habits(),
        note: Callable[[str], object] | None = None,
        watchers: Sequence[MemberObserver] = (),
        bulk: BulkViews | None = None,
    ) -> None:
        self.spec = spec
        self.machine = RebalanceMachine(spec)
        self.session = 0
        self.alive = True
        self.paused = False
        self.outcome: orders.Outcome | None = None
        self.reports: dict[str, int] = {}
        self.brokers: tuple[BrokerEndpoint, ...] = ()
        self.answers: dict[int, tuple[str, ...]] = {}
        self.close_faults: tuple[str, ...] | None = None
        self.active_us = 0
        self._zk = zk
        self._kernel = zk.kernel
        self._log = log
        self._observer = observer
        self._habits = habits
        self._record = note
        self._watchers = watchers
        self._bulk = bulk
        self._context = ScriptContext(spec, 0, lambda: EPOCH_MS + zk.kernel.now_us // 1000)
        self._inbox: deque[Callable[[], object]] = deque()
        self._busy = False
        self._timers: dict[str, Handle] = {}
        self._reading: dict[TopicPartition, _Reading] = {}
        self._contact = 0.0
        self._requests = 0

    def start(self) -> None:
        """Connect; everything else follows from that."""
        self.client = self._zk.connect(self.spec.session_timeout, self._on_watch, self._on_state)
        if self._log is not None:
            self._after(self._habits.poll, self._poll)
            if self.spec.auto_commit:
                interval = self._habits.commit_interval
                self._after((0.0, interval), self._auto_commit)

    # -- what a user or a fault does

    def commit(self, positions: Mapping[TopicPartition, int] | None = None) -> int:
        """Ask for a commit of ``positions``, or of all consumed ones; returns the request."""
        self._requests += 1
        strict = positions is not None
        wanted = self.positions() if positions is None else positions
        self._post(facts.CommitRequested(self._requests, wanted, strict))
        return self._requests

    @property
    def unanswered(self) -> int:
        """Commit requests without an answer."""
        return self._requests - len(self.answers)

    def positions(self) -> dict[TopicPartition, int]:
        """The consumed offset of each partition being delivered."""
        return {tp: reading.position for tp, reading in self._reading.items()}

    def close(self) -> None:
        """Leave the group in order."""
        self._post(facts.CloseRequested())

    def crash(self) -> None:
        """The process dies. Its session lives on until its timeout."""
        if self.alive:
            self._say("crash")
            self.alive = False
            self._take_reading(self._reading)
            if self._bulk is not None:
                self._bulk.abandon(self)
            self.client.kill()

    def pause(self, seconds: float) -> None:
        """The process stands still (SIGSTOP); longer than the session timeout ends the session."""
        if not self.alive or self.paused:
            return
        self._say(f"pause {seconds:.3f}")
        self.paused = True
        # The application may have passed the lease's check before, and deliver one message after.
        late = self._log is not None and self._may_deliver() and self._kernel.rng.random() < 0.5
        timeout = self.spec.session_timeout
        if seconds > timeout:
            self._kernel.schedule(timeout, partial(self._starve, self.session, seconds - timeout))
        self._kernel.schedule(seconds, partial(self._resume, late))

    def _starve(self, session: int, unnoticed: float) -> None:
        if self.alive and self.client.session_id == session:
            self.client.expire(unnoticed)

    def _resume(self, late: bool) -> None:
        if not self.alive:
            return
        self.paused = False
        self._say("resume")
        if late:
            for tp, reading in list(self._reading.items())[:1]:
                if reading.stopping is None:
                    self._deliver(tp, reading, 1)
        self._work()

    def at_rest(self) -> MemberAtRest:
        """What the invariants at rest need to know."""
        machine = self.machine
        fetching = frozenset(tp for tp, r in self._reading.items() if r.stopping is None)
        return MemberAtRest(
            self.spec.consumer_id,
            self.session,
            self.spec.scala,
            frozenset(machine.fetching) if self._log is None else fetching,
            machine.view and replace(machine.view, brokers=self.brokers),
            machine.decision.mine,
        )

    # -- mailbox

    def _say(self, text: str) -> None:
        if self._record is not None:
            self._record(f"{self._kernel.now_us} {self.spec.consumer_id} {text}")

    def _post(self, fact: Fact) -> None:
        self._enqueue(partial(self._take, fact))

    def _enqueue(self, action: Callable[[], object]) -> None:
        self._inbox.append(action)
        if not self._busy:
            self._work()

    def _work(self) -> None:
        """Do what is in the mailbox, one after the other; never within one another."""
        self._busy = True
        while self._inbox and self.alive and not self.paused:
            self._inbox.popleft()()
        self._busy = False

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

    def _after(self, bounds: tuple[float, float], action: Callable[[], object]) -> None:
        low, high = bounds
        delay = low + (high - low) * self._kernel.rng.random()
        self._kernel.schedule(delay, action)

    # -- session

    def _on_watch(self, event: WatchEvent) -> None:
        self._post(facts.Changed(event.path))

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
            case orders.SetTimer():
                self._set_timer(order)
            case orders.StopFetching():
                for tp in order.partitions & self._reading.keys():
                    self._reading[tp].stopping = order.token
                self._after(self._habits.stop, partial(self._enqueue, partial(self._halt, order)))
            case orders.StartFetching():
                self._start_reading(order)
                self._post(facts.FetchingStarted(order.token))
            case orders.Drop():
                taken = self._take_reading(order.partitions)
                self._post(facts.Dropped({tp: r.position for tp, r in taken.items()}))
            case orders.NotifyReleasing() | orders.NotifyStarting():
                raised = self._kernel.rng.random() < self._habits.listener_error
                answer = facts.ListenerDone(order.token, "listener raised" if raised else None)
                self._after(self._habits.listener, partial(self._post, answer))
            case orders.AnswerCommit():
                self.answers[order.request] = order.faults
            case orders.AnswerStart():
                self.outcome = order.outcome
            case orders.Report():
                self.reports[order.event] = self.reports.get(order.event, 0) + 1
            case orders.CloseSession():
                self._say(f"closed {order.faults}")
                self.close_faults = order.faults
                self._take_reading(self._reading)
                self.client.close()
                self.alive = False
            case orders.SetBrokers():
                self.brokers = order.brokers
            case _:
                script = script_for(order, self._context)
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
            self._post(end.value)
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

    def post(self, fact: Fact) -> None:
        """Put a fact into the mailbox."""
        self._post(fact)

    def _set_timer(self, order: orders.SetTimer) -> None:
        earlier = self._timers.get(order.name)
        if earlier is not None:
            self._kernel.cancel(earlier)
        delay = order.seconds + order.jitter * self._kernel.rng.random()
        fact = facts.TimerFired(order.token, order.name)
        self._timers[order.name] = self._kernel.schedule(delay, partial(self._post, fact))

    # -- delivery

    def _start_reading(self, order: orders.StartFetching) -> None:
        for tp, (_, start) in order.partitions.items():
            self._reading[tp] = _Reading(self.session, start or 0)
            if self._observer is not None:
                self._observer.started(self._kernel.now, tp, self.session, start or 0)

    def _take_reading(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, _Reading]:
        """End the reading of these; returns where it stood."""
        taken = {tp: self._reading.pop(tp) for tp in sorted(partitions) if tp in self._reading}
        if self._observer is not None:
            for tp, reading in taken.items():
                self._observer.stopped(tp, reading.session)
        return taken

    def _halt(self, order: orders.StopFetching) -> None:
        """The fetchers have stopped; a message in hand was finished meanwhile, or was not."""
        stopped = [tp for tp, r in self._reading.items() if r.stopping == order.token]
        positions: dict[TopicPartition, int] = {}
        for tp, reading in self._take_reading(stopped).items():
            finished = reading.in_hand and self._kernel.rng.random() < 0.8
            positions[tp] = reading.position + finished
        self._take(facts.FetchingStopped(order.token, positions))

    def _may_deliver(self) -> bool:
        """The lease: ZooKeeper confirmed the session not too long ago."""
        if self.spec.scala:
            return True
        if self.client.state is SessionState.CONNECTED and self._zk.session_alive(self.session):
            self._contact = self._kernel.now
        return self._kernel.now - self._contact < LEASE * self.spec.session_timeout

    def _poll(self) -> None:
        if not self.alive:
            return
        if not self.paused and self._may_deliver():
            for tp, reading in self._reading.items():
                if reading.stopping is None:
                    self._deliver(tp, reading, self._habits.burst)
        self._after(self._habits.poll, self._poll)

    def _deliver(self, tp: TopicPartition, reading: _Reading, most: int) -> None:
        """Ask for messages: asking for the next one makes the one in hand consumed."""
        assert self._log is not None
        if reading.in_hand:
            reading.position += 1
            reading.in_hand = False
        count = min(self._log.end(tp) - reading.position, most)
        if count <= 0:
            return
        first = reading.position
        reading.position += count - 1
        reading.in_hand = True
        if self._record is not None:
            self._say(f"delivers {tp} {first}..{reading.position} in {reading.session}")
        if self._observer is not None:
            self._observer.delivered(self._kernel.now, tp, reading.session, first, reading.position)

    def _auto_commit(self) -> None:
        if not self.alive:
            return
        if not self.paused and self._reading and self._may_deliver():
            self._post(facts.CommitRequested(None, self.positions()))
        self._kernel.schedule(self._habits.commit_interval, self._auto_commit)


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
