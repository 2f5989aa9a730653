"""ConnectorLoop: the one thread that owns a member's ``RebalanceMachine``.

Everything reaches it through the mailbox: replies, watches, session changes, timers, requests of
users. It runs scripts op by op, so a lost session overtakes a script that is under way. It never
waits for anything but the mailbox; what may block (waiting for a message in the application's
hands, the user's listener) runs on a thread of its own and posts its outcome.
"""

from __future__ import annotations

import itertools
import logging
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from zkconsumer.core import facts, orders
from zkconsumer.core.facts import Fact
from zkconsumer.core.machine import RebalanceMachine
from zkconsumer.core.ops import OffsetOp, Reply, ZkOp
from zkconsumer.core.orders import Order
from zkconsumer.core.scripts.common import MemberScript, ScriptContext
from zkconsumer.core.scripts.table import script_for
from zkconsumer.core.types import BrokerEndpoint, ConsumerThreadId, TopicPartition
from zkconsumer.core.view import MemberSpec
from zkconsumer.errors import ConnectorClosedError, ConnectorFailedError
from zkconsumer.journal.recorder import MemberObserver
from zkconsumer.runtime.answers import (
    SHUT_DOWN,
    CommitFuture,
    CommitRequests,
    Crashed,
    call_listener,
    run_blocking,
    wind_up,
)
from zkconsumer.runtime.gate import CLOCK, DeliveryGate
from zkconsumer.runtime.metrics import MemberCounts
from zkconsumer.runtime.timers import Timers
from zkconsumer.zk.driver import SessionEvent

logger = logging.getLogger("zkconsumer.member")

#: Seconds between the samples of rates, as in the JVM's meters.
_SAMPLE_INTERVAL = 5.0

#: Reports that tell of something going wrong; the rest is logged as information.
WARNINGS = frozenset(
    {
        "quarantined",
        "broken-offset",
        "foreign-commit",
        "fenced",
        "lost-owner",
        "listener-error",
        "refused",
        "rebalance-failed",
        "registration-gone",
        "commit-failed",
        "duplicate-id",
    }
)


class ZkPort(Protocol):
    """What the loop needs of ZooKeeper (``zkconsumer.zk.driver.ZkDriver``)."""

    @property
    def session_timeout(self) -> float:
        """Seconds after which the server ends a silent session."""

    def submit(self, op: ZkOp, session_id: int, on_reply: Callable[[Reply], object]) -> None:
        """Carry out ``op``; call ``on_reply`` once, on any thread."""

    def ping(self, on_answer: Callable[[], object]) -> None:
        """Call ``on_answer`` when the server answers."""

    def close(self) -> None:
        """End the session."""


class DataPort(Protocol):
    """What the loop needs of fetchers and streams (``zkconsumer.runtime.data_plane``)."""

    def set_brokers(self, brokers: tuple[BrokerEndpoint, ...]) -> None:
        """These brokers exist."""

    def start(
        self, partitions: Mapping[TopicPartition, tuple[ConsumerThreadId, int | None]]
    ) -> None:
        """Fetch and deliver. Must not block."""

    def stop(self, partitions: Iterable[TopicPartition]) -> Callable[[], dict[TopicPartition, int]]:
        """Deliver nothing more of these. The result waits for messages in hand: positions."""

    def drop(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Deliver nothing more of these, at once; where they stand."""

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Stopped partitions are released: their positions are of no use any more."""

    def fail(self, error: Exception) -> None:
        """All streams raise ``error``, also those that are closed afterwards."""

    def positions(self) -> dict[TopicPartition, int]:
        """Consumed offsets of all partitions held."""

    def measure(self) -> None:
        """Take a sample for the rates."""

    def close(self, timeout: float = ...) -> None:
        """End all streams and fetchers; wait ``timeout`` seconds at most for their threads."""


class OffsetPort(Protocol):
    """What the loop needs of Kafka's offset store (``zkconsumer.runtime.offset_worker``)."""

    def submit(self, op: OffsetOp, on_reply: Callable[[Reply], object]) -> None:
        """Carry out ``op``; call ``on_reply`` once, on any thread."""

    def close(self) -> None:
        """Give up what is under way."""


class ConsumerRebalanceListener(Protocol):
    """Told before partitions are given up and before fetching begins.

    Source: Scala 1.1.1 ConsumerRebalanceListener. Called on a thread of its own; may commit
    offsets.
    """

    def before_releasing_partitions(self, partitions: Mapping[str, frozenset[int]]) -> None:
        """Topic to partitions that this member is about to release. Nothing of them is fetched."""

    def before_starting_fetchers(
        self, consumer_id: str, assignment: Mapping[str, Mapping[int, ConsumerThreadId]]
    ) -> None:
        """Topic to partition to owner, as far as this member could work it out."""


@dataclass(slots=True)
class _Running:
    """A script under way, in the session it belongs to."""

    script: MemberScript[Fact]
    session_id: int
    commits: bool
    op: ZkOp | OffsetOp | None = None
    """Waits for its answer."""
    sent_us: int = 0
    """When ``op`` was sent, microseconds since 1970."""


@dataclass(frozen=True, slots=True)
class _Answered:
    """A reply for the script with this number."""

    number: int
    reply: Reply


class _Stop:
    """Ends the loop's thread."""


class ConnectorLoop:
    """Runs one member. ``post`` may be called from any thread, everything else as it says."""

    def __init__(
        self,
        spec: MemberSpec,
        zk: ZkPort,
        data: DataPort,
        gate: DeliveryGate,
        listener: Callable[[], ConsumerRebalanceListener | None],
        *,
        auto_commit_interval: float | None,
        session_timeout: float,
        mailbox: queue.SimpleQueue[Any],
        offsets: OffsetPort | None = None,
        observer: MemberObserver | None = None,
    ) -> None:
        self.machine = RebalanceMachine(spec)
        self.spec = spec
        self.started: Future[orders.AnswerStart] = Future()
        self.closed: Future[tuple[str, ...]] = Future()
        self.reports: Counter[str] = Counter()
        """How often each event was reported; written by the loop's thread."""
        self.counts = MemberCounts(spec.paths.offsets)
        self._zk = zk
        self._data = data
        self._gate = gate
        self._listener = listener
        self._mailbox = mailbox
        self._offsets = offsets
        self._observer = observer
        self._session_timeout = session_timeout
        self._auto_commit_interval = auto_commit_interval
        self._context: ScriptContext | None = None
        self._scripts: dict[int, _Running] = {}
        self._numbers = itertools.count(1)
        self._timers = Timers()
        self._commits = CommitRequests()
        self._random = random.Random()
        self._thread = threading.Thread(
            target=self._run, name=f"{spec.consumer_id}_loop", daemon=True
        )

    # -- any thread ----------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def post(self, fact: Fact) -> None:
        """Hand a fact to the machine."""
        self._mailbox.put(fact)

    def commit(self, positions: Mapping[TopicPartition, int], strict: bool) -> CommitFuture:
        """Ask for a commit; the result is what went wrong, empty when all is stored."""
        number, future = self._commits.ask()
        self.post(facts.CommitRequested(number, positions, strict))
        return future

    def join(self, timeout: float) -> bool:
        """Wait for the thread's end; whether it has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # -- the loop's thread ---------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._timers.every(self._lease / 6, self._ping)
            self._timers.every(_SAMPLE_INTERVAL, self._data.measure)
            if self._auto_commit_interval is not None:
                self._timers.every(self._auto_commit_interval, self._auto_commit)
            while not self.closed.done():
                self._turn()
        except BaseException as error:
            self._crashed(error)
            raise
        finally:
            self._commits.end(SHUT_DOWN)
            if not self.started.done():
                self.started.set_exception(ConnectorClosedError("the connector was shut down"))

    def _turn(self) -> None:
        """Wait for the next item or timer, and deal with what is there."""
        item = self._timers.wait(self._mailbox)
        if isinstance(item, _Answered):
            self._resume(item)
        elif isinstance(item, Crashed):
            raise item.error
        elif isinstance(item, tuple):
            self._session_changed(*item)
        elif isinstance(item, str):
            self._take(facts.Changed(item))
        elif item is not None:
            self._take(item)

    def _crashed(self, error: BaseException) -> None:
        """A fault in this library: leave the group rather than be a member that does nothing."""
        wind_up(
            error,
            lambda _: self._gate.end(),
            lambda failure: self._commits.end(str(failure)),
            self._data.fail,
            self._end_futures,
            lambda _: self._data.close(),
            lambda _: self._close_ports(),
        )

    def _end_futures(self, failure: ConnectorFailedError) -> None:
        for future in (self.started, self.closed):
            if not future.done():
                future.set_exception(failure)

    def _close_ports(self) -> None:
        if self._offsets is not None:
            self._offsets.close()
        self._zk.close()

    def _session_changed(self, event: SessionEvent, session_id: int) -> None:
        if event is SessionEvent.OPENED:
            self._context = ScriptContext(self.spec, session_id, lambda: int(time.time() * 1000))
            self._ping()
            self._take(facts.SessionOpened(session_id))
        elif event is SessionEvent.RESUMED:
            self._ping()
            self._take(facts.SessionResumed())
        elif event is SessionEvent.LOST:
            self._gate.close()
            self._context = None
            for running in self._scripts.values():
                running.script.close()
            self._scripts.clear()
            if self._observer is not None and not self._gate.always_open:
                shut_us = int(self._gate.shut_seconds * 1e6)
                self._observer.shut(time.time_ns() // 1000 - shut_us)
            self._take(facts.SessionLost())

    def _ping(self) -> None:
        """Prove that the session lives: it is valid from the moment the request was sent."""
        context = self._context
        if context is None:
            return
        sent = time.clock_gettime(CLOCK)
        until = sent + self._lease * 2 / 3

        def answered() -> None:
            if self._context is context:
                self._gate.extend(until)

        self._zk.ping(answered)

    @property
    def _lease(self) -> float:
        """Seconds that the session lives without a word from us, as far as can be relied on."""
        return min(self._session_timeout, self._zk.session_timeout)

    def _auto_commit(self) -> None:
        self._take(facts.CommitRequested(None, self._data.positions()))

    def _take(self, fact: Fact) -> None:
        observer, session = self._observer, self._context.session_id if self._context else 0
        if observer is not None:
            observer.fact(fact, session, self.machine.attempts)
        following = self.machine.on(fact)
        self.counts.stepped(self.machine.state, following)
        for order in following:
            if observer is not None:
                observer.order(order, session, self.machine.attempts)
            self._carry_out(order)

    def _run_script(self, order: Any) -> None:
        context = self._context
        if context is None:
            return
        number = next(self._numbers)
        commits = isinstance(order, orders.Commit)
        running = _Running(script_for(order, context), context.session_id, commits)
        self._scripts[number] = running
        self._step(number, running, None)

    def _resume(self, answer: _Answered) -> None:
        running = self._scripts.get(answer.number)
        if running is not None:
            if running.commits:
                self.counts.committing(running.op, answer.reply)
            if self._observer is not None and running.op is not None:
                self._observer.op(
                    running.op,
                    answer.reply,
                    running.sent_us,
                    running.session_id,
                    self.machine.attempts,
                )
            self._step(answer.number, running, answer.reply)

    def _step(self, number: int, running: _Running, reply: Reply | None) -> None:
        try:
            op = next(running.script) if reply is None else running.script.send(reply)
            running.op = op
            running.sent_us = time.time_ns() // 1000
        except StopIteration as end:
            del self._scripts[number]
            self._mailbox.put(end.value)
            return

        def answered(reply: Reply) -> None:
            self._mailbox.put(_Answered(number, reply))

        if isinstance(op, OffsetOp):
            assert self._offsets is not None
            self._offsets.submit(op, answered)
        else:
            self._zk.submit(op, running.session_id, answered)

    def _carry_out(self, order: Order) -> None:
        match order:
            case orders.StopFetching(token, partitions):
                self._stop(token, self._data.stop(partitions))
            case orders.Drop(partitions):
                self._mailbox.put(facts.Dropped(self._data.drop(partitions)))
            case orders.StartFetching(token, starting):
                self._data.start(starting)
                self._mailbox.put(facts.FetchingStarted(token))
            case orders.NotifyReleasing(token, partitions):
                self._notify_releasing(token, partitions)
            case orders.NotifyStarting(token, assignment):
                self._notify_starting(token, assignment)
            case orders.SetBrokers(brokers):
                self._data.set_brokers(brokers)
            case orders.SetTimer(token, name, seconds, jitter):
                wait = seconds + self._random.uniform(0, jitter)
                self._timers.after(wait, lambda: self._take(facts.TimerFired(token, name)))
            case orders.AnswerCommit(request, faults):
                self._commits.answer(request, faults)
            case orders.AnswerStart():
                self.started.set_result(order)
            case orders.Report(event, text):
                self.reports[event] += 1
                logger.log(
                    logging.WARNING if event in WARNINGS else logging.INFO, "%s: %s", event, text
                )
            case orders.CloseSession(faults):
                self._gate.end()
                self._data.close()
                self._close_ports()
                self.closed.set_result(faults)
            case _:
                if isinstance(order, orders.Release):
                    self._data.forget(order.claims)
                self._run_script(order)

    def _stop(self, token: int, wait: Callable[[], dict[TopicPartition, int]]) -> None:
        self._blocking(lambda: facts.FetchingStopped(token, wait()))

    def _blocking(self, work: Callable[[], Fact]) -> None:
        """Do ``work`` on a thread of its own and post the fact it returns."""
        run_blocking(self._mailbox, work, f"{self.spec.consumer_id}_blocking")

    def _notify_releasing(self, token: int, partitions: frozenset[TopicPartition]) -> None:
        by_topic: dict[str, set[int]] = {}
        for tp in partitions:
            by_topic.setdefault(tp.topic, set()).add(tp.partition)
        released = {topic: frozenset(found) for topic, found in by_topic.items()}
        self._call_listener(token, lambda listener: listener.before_releasing_partitions(released))

    def _notify_starting(
        self, token: int, assignment: Mapping[TopicPartition, ConsumerThreadId]
    ) -> None:
        by_topic: dict[str, dict[int, ConsumerThreadId]] = {}
        for tp, thread in assignment.items():
            by_topic.setdefault(tp.topic, {})[tp.partition] = thread
        self._call_listener(
            token,
            lambda listener: listener.before_starting_fetchers(self.spec.consumer_id, by_topic),
        )

    def _call_listener(self, token: int, call: Callable[[ConsumerRebalanceListener], None]) -> None:
        listener = self._listener()
        if listener is None:
            self._mailbox.put(facts.ListenerDone(token))
            return

        self._blocking(lambda: facts.ListenerDone(token, call_listener(lambda: call(listener))))
