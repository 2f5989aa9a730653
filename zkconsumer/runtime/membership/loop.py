"""MemberLoop: carries out the commands of a member's machine, in ZooKeeper and in Kafka.

Owns the machine, its timers and the commit requests in flight. A ``Host`` runs its actions one at
a time, on one thread in production and on virtual time in the simulator. It starts no thread,
reads no clock and never waits. Data plane and listener may wait for the application, and answer by
a callback. A ``Coordination``, for ZooKeeper or for the group coordinator, carries out the
servers' part.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from random import Random
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from zkconsumer.core.common import commands, events
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.faults import Fault, Trouble
from zkconsumer.core.common.types import BrokerEndpoint, ConsumerThreadId, TopicPartition
from zkconsumer.core.zookeeper.commands import Release
from zkconsumer.errors import (
    AuthenticationError,
    BrokerError,
    ConnectorClosedError,
    ConnectorFailedError,
    UnsupportedBrokerError,
)
from zkconsumer.runtime.counters import RebalanceCounts
from zkconsumer.runtime.gate import DeliveryGate

if TYPE_CHECKING:
    from zkconsumer.journal.recorder import Observer

#: Reports of something that went wrong; the others are logged as information.
WARNINGS = frozenset(
    {
        "broken-offset",
        "commit-failed",
        "doubtful",
        "duplicate-id",
        "fenced",
        "foreign-commit",
        "listener-error",
        "lost",
        "lost-owner",
        "misread",
        "outdated-offset",
        "poll-expired",
        "quarantined",
        "rebalance-failed",
        "refused",
        "registration-gone",
        "unassignable",
        "went-back",
    }
)

CommitFuture = Future[tuple[str, ...]]
"""The result of a commit: its errors, or nothing if all offsets are stored."""

SHUT_DOWN = "the connector is shut down"
"""Why a commit is refused after a normal shutdown."""

_logger = logging.getLogger("zkconsumer.member")

_SHOWN = 5
"""Number of partitions that a log line names."""
_END_SECONDS = 5.0
"""Seconds that threads and connections may take to end."""

MachineT = TypeVar("MachineT", bound="Machine")
MachineT_co = TypeVar("MachineT_co", bound="Machine", covariant=True)
MachineT_contra = TypeVar("MachineT_contra", bound="Machine", contravariant=True)
Action = Callable[[], object]
Done = Callable[[str | None], object]


class Machine(Protocol):
    """The methods of a member's state machine that the loop needs."""

    @property
    def state(self) -> Any:
        """The member's state."""

    @property
    def closing(self) -> bool:
        """Whether the member is leaving its group."""

    def on(self, event: Any) -> list[Any]:
        """Handle one event. Return the resulting commands."""


class Host(Protocol):
    """The environment of a member: its mailbox, timers and clocks."""

    random: Random

    def post(self, action: Action) -> None:
        """Run ``action`` on the loop's thread, after all actions posted before. Any thread."""

    def after(self, seconds: float, action: Action) -> Action:
        """Run ``action`` on the loop's thread ``seconds`` from now. Calling the result cancels it.

        The loop's thread only.
        """

    def now(self) -> float:
        """Return seconds on a monotonic clock."""

    def lease_now(self) -> float:
        """Return seconds on the clock of the ``DeliveryGate``, which also counts suspension."""

    def log(self, level: int, text: str, error: BaseException | None = None) -> None:
        """Log a line about the member."""

    def wall_us(self) -> int:
        """Return microseconds since 1970 (in a simulation, since its beginning), for journals."""

    def wall_ms(self) -> int:
        """Return milliseconds since 1970, for znodes."""


class DataPort(Protocol):
    """The methods of fetchers and streams that the loop needs: see ``DataPlane``."""

    def set_brokers(self, brokers: tuple[BrokerEndpoint, ...]) -> None:
        """Set the registered brokers."""

    def start(
        self, partitions: Mapping[TopicPartition, tuple[ConsumerThreadId, int | None]]
    ) -> None:
        """Fetch and deliver partitions. Must not block."""

    def stop(
        self, partitions: Iterable[TopicPartition], done: Callable[[dict[TopicPartition, int]], Any]
    ) -> None:
        """Stop delivering these partitions. Must not block.

        ``done`` is called once, on any thread, with their final positions, when the application has
        acknowledged their last records or ``zkconsumer.release.wait.ms`` has passed.
        """

    def drop(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Stop delivering these partitions at once, forget them, and return their positions."""

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget the positions of stopped partitions that were released."""

    def positions(self) -> dict[TopicPartition, int]:
        """Return the consumed offsets of all held partitions."""

    def fail(self, error: Exception) -> None:
        """Raise ``error`` in all streams when the application requests the next message."""

    def close(self, timeout: float) -> None:
        """End all streams and fetchers. Wait at most ``timeout`` seconds for their threads."""


class ListenerPort(Protocol):
    """Calls the user's rebalance listener: see ``ListenerCalls``. Must not block.

    ``done`` is called once, on any thread, with the listener's exception as text, or ``None``.
    """

    def releasing(self, partitions: frozenset[TopicPartition], leaving: bool, done: Done) -> None:
        """Call the listener before partitions are released. ``leaving``: the member leaves the
        group."""

    def lost(self, partitions: frozenset[TopicPartition], done: Done) -> None:
        """Call the listener with the lost partitions."""

    def starting(self, assignment: Mapping[TopicPartition, ConsumerThreadId], done: Done) -> None:
        """Call the listener before fetching begins."""


class MemberPort(Protocol[MachineT_co]):
    """The interface of a member to a ``Coordination``: see ``MemberLoop``."""

    @property
    def machine(self) -> MachineT_co:
        """The member's state machine. The ``Coordination`` carries out its commands."""

    @property
    def data(self) -> DataPort:
        """Fetchers and streams."""

    @property
    def observer(self) -> Observer | None:
        """Called with every event and command."""

    def take(self, event: Any) -> None:
        """Pass an event to the machine, and carry out its commands."""

    def post(self, event: Any) -> None:
        """Pass an event to the machine. Any thread."""

    def every(self, seconds: float, action: Action) -> None:
        """Run ``action`` regularly."""

    def commit_consumed(self) -> None:
        """Commit automatically, in addition to the regular interval."""


class Coordination(Protocol[MachineT_contra]):
    """Carries out a member's commands on the servers that decide who owns a partition."""

    def begin(self, member: MemberPort[MachineT_contra]) -> None:
        """Start to work for ``member``. From now on, answers and timers are actions of the host."""

    def carry_out(self, command: Any) -> None:
        """Carry out a command that is specific to this coordination. Must not block."""

    def stamp(self) -> tuple[int, int]:
        """Return the fields that the journal adds to entries: session or generation, attempt."""

    def close(self, timeout: float) -> None:
        """End sessions and connections within ``timeout`` seconds. Abandon requests in flight."""


class CommitRequests:
    """Commit requests that are not answered yet.

    Each is answered once, even if the member fails. Any thread may use it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, CommitFuture] = {}
        self._ended: str | None = None

    def ask(self) -> tuple[int, CommitFuture]:
        """Return the number and the future of a new request. After ``end`` it is answered
        immediately."""
        future: CommitFuture = Future()
        with self._lock:
            number = next(self._numbers)
            if self._ended is None:
                self._waiting[number] = future
            else:
                future.set_result((self._ended,))
        return number, future

    def answer(self, number: int, faults: tuple[str, ...]) -> None:
        """Answer a request, unless it is already answered."""
        with self._lock:
            future = self._waiting.pop(number, None)
        if future is not None:
            _resolve(future, faults)

    def waits(self, number: int) -> bool:
        """Whether a request has no answer yet."""
        return number in self._waiting

    def end(self, reason: str) -> None:
        """Answer all requests, and all later ones, with ``reason``. Only the first
        reason is used."""
        with self._lock:
            if self._ended is None:
                self._ended = reason
            waiting, self._waiting = self._waiting, {}
            reason = self._ended
        for future in waiting.values():
            _resolve(future, (reason,))


def _resolve(future: CommitFuture, faults: tuple[str, ...]) -> None:
    """Set the result. A user's callback that raises ``SystemExit`` ends nothing else."""
    try:
        future.set_result(faults)
    except BaseException:
        _logger.warning("the callback of a commit raised", exc_info=True)


class MemberLoop(Generic[MachineT]):
    """Runs one member. Only ``post`` and ``commit`` may be called outside the host's thread."""

    def __init__(
        self,
        name: str,
        machine: MachineT,
        coordination: Coordination[MachineT],
        data: DataPort,
        gate: DeliveryGate,
        host: Host,
        listener: ListenerPort | None,
        *,
        auto_commit_interval: float | None,
        rebalances: RebalanceCounts,
        observer: Observer | None = None,
    ) -> None:
        self.name = name
        self.machine = machine
        self.host = host
        self.data = data
        self.gate = gate
        self.started: Future[commands.AnswerStart] = Future()
        """The result of the first rebalance."""
        self.closed: Future[tuple[str, ...]] = Future()
        """The errors when the member ended. An exception is a bug in this library."""
        self.reports: Counter[str] = Counter()
        """How often each event was reported; written by the loop's thread."""
        self.rebalances = rebalances
        self.coordination = coordination
        self._listener = listener
        self._auto_commit_interval = auto_commit_interval
        self.observer = observer
        self._commits = CommitRequests()
        self._limits: dict[int, tuple[float, str]] = {}
        """Deadline of each commit in flight, and its answer then; the oldest first."""
        self._timers: dict[str, Action] = {}
        """Functions that cancel the last timer of each name."""
        self._ending = threading.RLock()
        """Held by the thread that ends the member without using the machine."""
        self.ended = False
        """Whether commands are no longer carried out."""
        self.failure: Exception | None = None
        """Why the member failed. Its streams raise this error."""
        self.left = False
        """Whether everything has ended: streams, threads, connections."""

    # -- any thread ----------------------------------------------------------------------------

    def post(self, event: Any) -> None:
        """Pass an event to the machine."""
        self.host.post(lambda: self.take(event))

    def commit(
        self,
        positions: Mapping[TopicPartition, int],
        strict: bool,
        limit: tuple[float, str] | None = None,
    ) -> CommitFuture:
        """Request a commit. The result lists the failures; it is empty if everything is stored.

        Args:
            positions: the offset to store for each partition.
            strict: treat partitions that are not held as an error.
            limit: seconds to wait, and the failure to return if there is no result by then.
        """
        number, future = self._commits.ask()
        self.post(events.CommitRequested(number, positions, strict))
        if limit is not None:
            seconds, text = limit
            self.host.post(lambda: self._limit(number, seconds, text))
        return future

    def give_up(self, reason: str, timeout: float) -> None:
        """End within ``timeout`` seconds without leaving the group, because no server answers."""
        if not self._ending.acquire(timeout=max(0.0, timeout)):
            return  # another thread ends the member
        try:
            if not self.left:
                self.ended = True
                self._end(timeout)
                self._close((reason,))
        finally:
            self._ending.release()

    # -- the loop's thread ---------------------------------------------------------------------

    def begin(self) -> None:
        """Start this member."""
        if self._auto_commit_interval is not None:
            self.every(self._auto_commit_interval, self._auto_commit)
        self.coordination.begin(self)

    def every(self, seconds: float, action: Action) -> None:
        """Run ``action`` regularly; the first time is ``seconds`` from now."""

        def again() -> None:
            if not self.ended:
                self.host.after(seconds, again)
                action()

        self.host.after(seconds, again)

    def take(self, event: Any) -> None:
        """Pass an event to the machine, and carry out its commands."""
        if self.ended:
            return
        observer = self.observer
        if observer is not None:
            observer.event(event, *self.coordination.stamp())
        following = self.machine.on(event)
        self.rebalances.stepped(self.machine.state, following)
        for command in following:
            if self.ended and not isinstance(command, commands.AnswerCommit):
                return  # another thread has ended this member, or this one has closed it
            if observer is not None:
                observer.command(command, *self.coordination.stamp())
            if line := ownership_line(command, self.machine.closing):
                self.host.log(logging.INFO, line)
            self._carry_out(command)

    def faults(self) -> Iterator[Fault]:
        """Return the fault that ended the member, if any. Any thread."""
        if (error := self.failure) is not None:
            yield Fault(Trouble.FAILED, str(error), error=error)

    def crashed(self, error: BaseException) -> None:
        """Leave the group after a fault in this library, so that no idle member remains.

        Any thread. Each step is taken even if an earlier step fails. Only the first fault is kept,
        because later errors result from it.
        """
        with self._ending:
            if self.left:
                self.host.log(logging.DEBUG, "after the end of the member", error)
            else:
                self._crash(error)

    def _crash(self, error: BaseException) -> None:
        self.ended = True
        if isinstance(error, AuthenticationError):  # of the servers' making, and the text says all
            text = f"{error}; the connector leaves its group"
            self.host.log(logging.CRITICAL, text)
        else:
            text = (
                f"the connector has failed and leaves its group: {error!r}; the log of "
                "zkconsumer.member has the traceback; shut this connector down and create a new one"
            )
            self.host.log(logging.CRITICAL, "the member has failed and leaves its group", error)
        failure = ConnectorFailedError(text)
        failure.__cause__ = error
        self.failure = self.failure or failure
        steps: tuple[Action, ...] = (
            self.gate.end,
            lambda: self._commits.end(str(failure)),
            lambda: self.data.fail(failure),
            lambda: self._fail_futures(failure),
            lambda: self.data.close(_END_SECONDS / 2),
            lambda: self.coordination.close(_END_SECONDS / 2),
        )
        for step in steps:
            try:
                step()
            except BaseException as another:  # noqa: BLE001 - the steps that follow matter more
                self.host.log(logging.CRITICAL, "while leaving the group", another)
        self.left = True

    def _fail_futures(self, failure: ConnectorFailedError) -> None:
        for future in (self.started, self.closed):
            if not future.done():
                future.set_exception(failure)

    def _limit(self, number: int, seconds: float, text: str) -> None:
        """Answer a commit with ``text`` after these seconds. The time is the same for all commits,
        so one timer is enough."""
        if self._commits.waits(number):
            self._limits[number] = self.host.now() + seconds, text
            if len(self._limits) == 1:
                self.host.after(seconds, self._over)

    def _over(self) -> None:
        """Answer the oldest commits, whose time limit has passed."""
        now = self.host.now()
        while self._limits:
            number, (until, text) = next(iter(self._limits.items()))
            if until > now:
                self.host.after(until - now, self._over)
                return
            del self._limits[number]
            self._commits.answer(number, (text,))
            self.take(events.CommitAbandoned(number))

    def commit_consumed(self) -> None:
        """Commit automatically, in addition to the regular interval. Does nothing without
        automatic commits."""
        if self._auto_commit_interval is not None:
            self._auto_commit()

    def _auto_commit(self) -> None:
        self.take(events.CommitRequested(None, self.data.positions()))

    def _carry_out(self, command: Any) -> None:
        match command:
            case commands.StopFetching(token, partitions):
                self.data.stop(partitions, lambda at: self.post(events.FetchingStopped(token, at)))
            case commands.Drop(partitions):
                self.post(events.Dropped(self.data.drop(partitions)))
            case commands.Forget(partitions):
                self.data.forget(partitions)
            case commands.StartFetching(token, starting):
                self.data.start(starting)
                self.post(events.FetchingStarted(token))
            case commands.NotifyReleasing() | commands.NotifyLost() | commands.NotifyStarting():
                self._notify(command)
            case commands.SetBrokers(brokers):
                self.data.set_brokers(brokers)
            case commands.SetTimer(token, name, seconds, jitter):
                if name in self._timers:
                    self._timers.pop(name)()
                wait = seconds + self.host.random.uniform(0, jitter)
                fired = events.TimerFired(token, name)
                self._timers[name] = self.host.after(wait, lambda: self.take(fired))
            case commands.AnswerCommit(request, faults):
                if len(self._limits) > 1:  # the timer needs the last one
                    self._limits.pop(request, None)
                self._commits.answer(request, faults)
            case commands.AnswerStart():
                if not self.started.done():
                    self.started.set_result(command)
            case commands.Report(event, text):
                self.reports[event] += 1
                level = logging.WARNING if event in WARNINGS else logging.INFO
                self.host.log(level, f"{event}: {text}")
            case commands.Fail(code, text):
                self._fail(code, text)
            case commands.Close(faults):
                self._end()
                self._close(faults)
            case _:
                self.coordination.carry_out(command)

    def _notify(
        self, command: commands.NotifyReleasing | commands.NotifyLost | commands.NotifyStarting
    ) -> None:
        def done(error: str | None) -> None:
            self.post(events.ListenerDone(command.token, error))

        match self._listener, command:
            case None, _:
                done(None)
            case listener, commands.NotifyReleasing(_, partitions, leaving):
                listener.releasing(partitions, leaving, done)
            case listener, commands.NotifyLost(_, partitions):
                listener.lost(partitions, done)
            case listener, commands.NotifyStarting(_, assignment):
                listener.starting(assignment, done)

    def _fail(self, code: int, text: str) -> None:
        """Make the streams raise after a permanent refusal. The connector must be shut down."""
        unsupported = code == ErrorCode.UNSUPPORTED_VERSION
        error = UnsupportedBrokerError(text) if unsupported else BrokerError(text)
        self.failure = error
        self.host.log(logging.ERROR, f"the member cannot continue: {text}")
        self.gate.end()
        self.data.fail(error)
        if not self.started.done():
            self.started.set_exception(error)

    def _end(self, timeout: float = _END_SECONDS) -> None:
        """Stop delivery and disconnect. Called by the loop's thread, or to abandon the member."""
        self.gate.end()
        self.data.close(timeout / 2)
        self.coordination.close(timeout / 2)

    def _close(self, faults: tuple[str, ...]) -> None:
        self.ended = True
        self._commits.end(SHUT_DOWN)
        if not self.started.done():
            self.started.set_exception(ConnectorClosedError("the connector was shut down"))
        if not self.closed.done():
            self.closed.set_result(faults)
        self.left = True


def partitions_text(partitions: Iterable[TopicPartition]) -> str:
    """Return the number of partitions, and the names of the first ones."""
    names = [str(tp) for tp in sorted(partitions)]
    more = ", ..." if len(names) > _SHOWN else ""
    noun = "partition" if len(names) == 1 else "partitions"
    return f"{len(names)} {noun} ({', '.join(names[:_SHOWN])}{more})"


def ownership_line(command: Any, leaving: bool) -> str:
    """Return the log line for a command of a state machine; empty if it does not concern ownership.
    ``leaving``: the member leaves its group."""
    why = "this member leaves the group" if leaving else "assigned to other members"
    match command:
        case commands.StartFetching(_, partitions) if partitions:
            return f"claimed {partitions_text(partitions)}: assigned to this member"
        case Release(_, _, partitions) | commands.Forget(partitions) if partitions:
            return f"released {partitions_text(partitions)}: {why}"
        case commands.Drop(partitions) if partitions:
            return f"lost {partitions_text(partitions)}: no longer owned, dropped without a commit"
    return ""
