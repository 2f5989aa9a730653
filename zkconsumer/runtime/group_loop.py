"""GroupLoop: the one thread that owns the machine of a member on the broker's coordinator.

The same shape as ``zkconsumer.runtime.loop``: all reach it through its mailbox. Beside it run one
thread for requests that may wait for other members (JoinGroup, SyncGroup) and all other requests,
and one for heartbeats alone, so that neither a rebalance nor the application delays them.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, get_args

from zkconsumer.broker.group import GroupClient, RequestOrder
from zkconsumer.core import facts as common
from zkconsumer.core import orders as common_orders
from zkconsumer.core.membership import facts, orders
from zkconsumer.core.membership.facts import MembershipFact
from zkconsumer.core.membership.machine import MembershipMachine
from zkconsumer.core.membership.orders import MembershipOrder
from zkconsumer.core.membership.reactions import UNREACHABLE
from zkconsumer.core.membership.spec import GroupSpec
from zkconsumer.core.membership.states import ENDED, State
from zkconsumer.core.types import TopicPartition
from zkconsumer.errors import (
    BrokerError,
    ConnectorClosedError,
    ConnectorFailedError,
    UnsupportedBrokerError,
)
from zkconsumer.journal.group import GroupObserver
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
from zkconsumer.runtime.group_listener import Calls, GroupListener
from zkconsumer.runtime.loop import DataPort
from zkconsumer.runtime.streams import KafkaStream
from zkconsumer.runtime.timers import Timers

logger = logging.getLogger("zkconsumer.member")

_SAMPLE_INTERVAL: Final = 5.0
_KNOWN: Final = (0, 27)
"""Answers to a heartbeat which say that the coordinator counts this member in."""
_AWAY: Final = ENDED | {State.OUTSIDE}
_UNSUPPORTED: Final = 35
_REQUESTS: Final = get_args(RequestOrder)
_WARNINGS: Final = frozenset({"commit-failed", "listener-error", "lost", "poll-expired"})


@dataclass(frozen=True, slots=True)
class _Answered:
    """A request came to its end; ``sent_us`` is microseconds since 1970."""

    order: RequestOrder
    fact: MembershipFact
    sent_us: int


class _GiveUp:
    """Ends the loop's thread."""


class GroupLoop:
    """Runs one member. ``post``, ``commit`` and ``join`` may be called from any thread."""

    def __init__(
        self,
        spec: GroupSpec,
        client: GroupClient,
        heart: GroupClient,
        data: DataPort,
        gate: DeliveryGate,
        streams: Sequence[KafkaStream],
        listener: Callable[[], GroupListener | None],
        *,
        auto_commit_interval: float | None,
        observer: GroupObserver | None = None,
    ) -> None:
        self.machine = MembershipMachine(spec)
        self.spec = spec
        self.started: Future[common_orders.AnswerStart] = Future()
        self.closed: Future[tuple[str, ...]] = Future()
        self.reports: Counter[str] = Counter()
        """How often each event was reported; written by the loop's thread."""
        self.rebalances = 0
        self.rebalance_seconds = 0.0
        self.last_rebalance_seconds = 0.0
        self.committed = 0
        """Offsets stored; written by the loop's thread, as are the three above."""
        self.last_fault = ""
        """Why the latest answered request failed; empty if it did not. Loop's thread."""
        self._client = client
        self._heart = heart
        self._data = data
        self._gate = gate
        self._streams = tuple(streams)
        self._listener = listener
        self._auto_commit_interval = auto_commit_interval
        self._observer = observer
        self._mailbox: queue.SimpleQueue[MembershipFact | _Answered | Crashed | _GiveUp] = (
            queue.SimpleQueue()
        )
        self._requests: queue.SimpleQueue[RequestOrder | None] = queue.SimpleQueue()
        self._beats: queue.SimpleQueue[orders.Heartbeat | None] = queue.SimpleQueue()
        self._timers = Timers()
        self._commits = CommitRequests()
        self._begun: float | None = None
        self._settled_at = -math.inf
        """CLOCK_BOOTTIME seconds when the coordinator was last asked in a settled generation."""
        self._hands: dict[KafkaStream, tuple[object, float]] = {}
        self._slow = False
        self._joining: int | None = None
        """Token of a JoinGroup that is not answered."""
        self._listening = threading.Lock()
        """One call of the listener after the other."""
        self._called: float | None = None
        """When the listener's present call began."""
        name = spec.consumer_id
        self._thread = self._make_thread(self._run, f"{name}_loop")
        self._worker = self._make_thread(lambda: self._ask(self._work), f"{name}_requests")
        self._heart_thread = self._make_thread(lambda: self._ask(self._beat), f"{name}_heartbeat")

    @staticmethod
    def _make_thread(run: Callable[[], None], name: str) -> threading.Thread:
        return threading.Thread(target=run, name=name, daemon=True)

    # -- any thread ----------------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads; the member joins."""
        self.post(facts.Started())
        for thread in (self._thread, self._worker, self._heart_thread):
            thread.start()

    def post(self, fact: MembershipFact | _GiveUp) -> None:
        """Hand a fact to the machine."""
        self._mailbox.put(fact)

    def commit(self, positions: Mapping[TopicPartition, int], strict: bool) -> CommitFuture:
        """Ask for a commit; the result is what went wrong, empty when all is stored."""
        number, future = self._commits.ask()
        self.post(common.CommitRequested(number, positions, strict))
        return future

    def give_up(self, timeout: float) -> None:
        """End within ``timeout`` seconds without leaving: the coordinator does not answer."""
        self._end(timeout)
        self.post(_GiveUp())

    def join(self, timeout: float) -> bool:
        """Wait for the thread's end; whether it has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # -- the threads of requests -----------------------------------------------------------------

    def _ask(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - the loop raises it again
            self._mailbox.put(Crashed(error))

    def _work(self) -> None:
        while (order := self._requests.get()) is not None:
            sent_us, sent = time.time_ns() // 1000, time.clock_gettime(CLOCK)
            fact = self._client.execute(order)
            if isinstance(fact, facts.Synced):
                self._confirm(sent, 0)
            if isinstance(fact, facts.CoordinatorFound):
                self._heart.coordinator = self._client.coordinator
            self._mailbox.put(_Answered(order, fact, sent_us))

    def _beat(self) -> None:
        while (order := self._beats.get()) is not None:
            sent_us, sent = time.time_ns() // 1000, time.clock_gettime(CLOCK)
            fact = self._heart.execute(order)
            if not isinstance(fact, facts.HeartbeatAnswered):
                fact = facts.HeartbeatAnswered(order.token, UNREACHABLE)
            elif fact.code in _KNOWN:
                self._confirm(sent, fact.code)
            self._mailbox.put(_Answered(order, fact, sent_us))

    def _confirm(self, sent: float, code: int) -> None:
        """The coordinator counted this member in when the request of that time came to it.

        While it waits for members to join again (code 27), it does so for the rebalance timeout
        and then goes on without those that have not.
        """
        if code == 0:
            self._settled_at = max(self._settled_at, sent)
        until = sent + self.spec.session_timeout * 2 / 3
        self._gate.extend(min(until, self._settled_at + self.spec.rebalance_timeout))

    # -- the loop's thread ---------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._timers.every(_SAMPLE_INTERVAL, self._data.measure)
            self._timers.every(min(1.0, self.spec.rebalance_timeout / 5), self._watch_hands)
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

    def _crashed(self, error: BaseException) -> None:
        """A fault in this library, or of what watches its requests: leave the group."""
        wind_up(
            error,
            lambda _: self._gate.end(),
            lambda failure: self._commits.end(str(failure)),
            self._data.fail,
            self._end_futures,
            lambda _: self._end(),
        )

    def _end_futures(self, failure: ConnectorFailedError) -> None:
        for future in (self.started, self.closed):
            if not future.done():
                future.set_exception(failure)

    def _turn(self) -> None:
        fact = self._timers.wait(self._mailbox)
        if isinstance(fact, _GiveUp):
            self.closed.set_result(("the coordinator did not answer",))
        elif isinstance(fact, Crashed):
            raise fact.error
        elif isinstance(fact, _Answered):
            if fact.order.token == self._joining:
                self._joining = None
            answer = fact.fact
            self.last_fault = answer.detail if isinstance(answer, facts.RequestFailed) else ""
            if self._observer is not None:
                machine = self.machine
                self._observer.request(
                    fact.order, fact.fact, fact.sent_us, machine.generation, machine.rejoins
                )
            self._take(fact.fact)
        elif fact is not None:
            self._take(fact)

    def _auto_commit(self) -> None:
        self._take(common.CommitRequested(None, self._data.positions()))

    def _watch_hands(self) -> None:
        """Tell the machine when the application is too slow, and when it goes on.

        The former again and again until it is outside: it hears that only as a member.
        """
        now = time.monotonic()
        called = self._called
        longest = 0.0 if called is None else now - called
        for stream in self._streams:
            held = stream.in_hand
            before = self._hands.get(stream)
            if held is None:
                self._hands.pop(stream, None)
            elif before is None or before[0] is not held:
                self._hands[stream] = (held, now)
            else:
                longest = max(longest, now - before[1])
        slow = longest > self.spec.rebalance_timeout
        if slow and self.machine.state not in _AWAY:
            self._take(facts.PollExpired())
        elif self._slow and not slow:
            self._take(facts.PollResumed())
        self._slow = slow

    def _take(self, fact: MembershipFact) -> None:
        if isinstance(fact, facts.OffsetsCommitted):
            self.committed += sum(not code for code in fact.codes.values())
        observer, machine = self._observer, self.machine
        if observer is not None:
            observer.fact(fact, machine.generation, machine.rejoins)
        for order in machine.on(fact):
            if observer is not None:
                observer.order(order, machine.generation, machine.rejoins)
            self._carry_out(order)

    def _carry_out(self, order: MembershipOrder) -> None:
        match order:
            case orders.Heartbeat():
                self._beats.put(order)
            case common_orders.StopFetching(token, partitions):
                self._begin_rebalance()
                wait = self._data.stop(partitions)
                self._blocking(lambda: common.FetchingStopped(token, wait()))
            case common_orders.Drop(partitions):
                positions = self._data.drop(partitions)
                self._data.forget(partitions)
                self._mailbox.put(common.Dropped(positions))
            case orders.Forget(partitions):
                self._data.forget(partitions)
            case common_orders.StartFetching(token, starting):
                self._data.start(starting)
                self._end_rebalance()
                self._mailbox.put(common.FetchingStarted(token))
            case common_orders.NotifyReleasing(token, partitions):
                leaving = self.machine.closing
                self._tell(token, lambda calls: calls.revoked(partitions, leaving))
            case orders.NotifyLost(token, partitions):
                self._tell(token, lambda calls: calls.lost(partitions))
            case common_orders.NotifyStarting(token, assignment):
                self._tell(token, lambda calls: calls.assigned(assignment))
            case common_orders.SetBrokers(brokers):
                self._data.set_brokers(brokers)
            case common_orders.SetTimer(token, name, seconds):
                self._timers.after(seconds, lambda: self._take(common.TimerFired(token, name)))
            case common_orders.AnswerCommit(request, faults):
                self._commits.answer(request, faults)
            case common_orders.AnswerStart():
                self.started.set_result(order)
            case common_orders.Report(event, text):
                self.reports[event] += 1
                level = logging.WARNING if event in _WARNINGS else logging.INFO
                logger.log(level, "%s: %s", event, text)
            case orders.Fail(code, text):
                self._fail(code, text)
            case orders.Close(faults):
                self._end()
                self.closed.set_result(faults)
            case _:
                self._request(order)

    def _request(self, order: MembershipOrder) -> None:
        assert isinstance(order, _REQUESTS)
        if isinstance(order, orders.FindCoordinator | orders.LeaveGroup):
            self._client.interrupt()  # what is under way is of no use any more
            self._heart.interrupt()
        elif isinstance(order, orders.CommitOffsets) and self._joining is not None:
            self._client.interrupt()  # closing: who keeps partitions while it joins commits them
        if isinstance(order, orders.JoinGroup):
            self._joining = order.token
            self._begin_rebalance()
        self._requests.put(order)

    def _begin_rebalance(self) -> None:
        if self._begun is None:
            self._begun = time.monotonic()

    def _end_rebalance(self) -> None:
        if self._begun is not None:
            self.last_rebalance_seconds = time.monotonic() - self._begun
            self.rebalances += 1
            self.rebalance_seconds += self.last_rebalance_seconds
            self._begun = None

    def _fail(self, code: int, text: str) -> None:
        kind = UnsupportedBrokerError if code == _UNSUPPORTED else BrokerError
        error = kind(text)
        self._gate.end()
        logger.error("the member cannot go on: %s", text)
        for stream in self._streams:
            stream.fail(error)
        if not self.started.done():
            self.started.set_exception(error)

    def _end(self, *limit: float) -> None:
        """``limit``: seconds to wait for the fetchers' threads, if not as long as they say."""
        self._gate.end()
        self._data.close(*limit)
        self._client.close()
        self._heart.close()
        self._requests.put(None)
        self._beats.put(None)

    def _blocking(self, work: Callable[[], MembershipFact]) -> None:
        """Do ``work`` on a thread of its own and post the fact it returns."""
        run_blocking(self._mailbox, work, f"{self.spec.consumer_id}_blocking")

    def _tell(self, token: int, call: Callable[[Calls], None]) -> None:
        listener = self._listener()
        if listener is None:
            self._mailbox.put(common.ListenerDone(token))
            return
        calls = Calls(listener, self.spec.consumer_id)

        def work() -> MembershipFact:
            with self._listening:
                self._called = time.monotonic()
                error = call_listener(lambda: call(calls))
                self._called = None
            return common.ListenerDone(token, error)

        self._blocking(work)
