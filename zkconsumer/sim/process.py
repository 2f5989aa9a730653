"""What every simulated member is, whoever decides about its partitions: a process on virtual time.

Owns the mailbox, timers, delivery to an application, automatic commits, and the faults of a process
(pause, crash). Everything runs inside kernel events, in the thread that runs the kernel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from zkconsumer.core import facts, orders
from zkconsumer.core.invariants import Observer
from zkconsumer.core.types import BrokerEndpoint, TopicPartition
from zkconsumer.sim.kernel import Handle, Kernel

#: Part of the session timeout after which silence of the servers stops delivery.
LEASE: Final = 2 / 3


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
    probability ``listener_error``. ``listener_commits``: it commits what is about to be released,
    and waits for the answer; only of members on the coordinator.
    """

    poll: tuple[float, float] = (0.3, 0.7)
    burst: int = 8
    stop: tuple[float, float] = (0.0, 0.1)
    listener: tuple[float, float] = (0.0, 0.05)
    listener_error: float = 0.0
    listener_commits: bool = False
    commit_interval: float = 2.0


@dataclass(slots=True)
class Reading:
    """A partition being delivered: ``position`` is consumed up to; one message may be in hand.

    ``stopping`` is the token of the ``StopFetching`` that ended delivery.
    """

    session: int
    position: int
    in_hand: bool = False
    stopping: int | None = None


class SimProcess(ABC):
    """One member's process; ``observer`` and ``log`` switch delivery on.

    Readable: ``alive`` (neither crashed nor left), ``paused``, ``brokers``, ``outcome`` (of the
    first rebalance), ``reports`` (count by event), ``answers`` (faults by commit request),
    ``close_faults``, ``active_us`` (its last fact), ``session`` (what the observer knows it by; 0:
    it is no member).
    """

    def __init__(
        self,
        kernel: Kernel,
        name: str,
        auto_commit: bool,
        log: SimLog | None,
        observer: Observer | None,
        habits: Habits,
        note: Callable[[str], object] | None,
    ) -> None:
        self.name = name
        self.session = 0
        self.alive = True
        self.paused = False
        self.outcome: orders.Outcome | None = None
        self.reports: dict[str, int] = {}
        self.brokers: tuple[BrokerEndpoint, ...] = ()
        self.answers: dict[int, tuple[str, ...]] = {}
        self.close_faults: tuple[str, ...] | None = None
        self.active_us = 0
        self._kernel = kernel
        self._auto_commits = auto_commit
        self._log = log
        self._observer = observer
        self._habits = habits
        self._record = note
        self._inbox: deque[Callable[[], object]] = deque()
        self._busy = False
        self._timers: dict[str, Handle] = {}
        self._reading: dict[TopicPartition, Reading] = {}
        self._requests = 0

    @abstractmethod
    def _take(self, fact: Any) -> None:
        """Tell the machine, carry out its orders."""

    @abstractmethod
    def _may_deliver(self) -> bool:
        """Whether the servers confirmed not too long ago that this is a member."""

    def _begin_delivery(self) -> None:
        """The process has started: look for messages, and commit, from now on."""
        if self._log is not None:
            self._after(self._habits.poll, self._poll)
            if self._auto_commits:
                interval = self._habits.commit_interval
                self._after((0.0, interval), self._auto_commit)

    # -- what a user or a fault does

    def commit(self, positions: Mapping[TopicPartition, int] | None = None) -> int:
        """Ask for a commit of ``positions``, or of all consumed ones; returns the request."""
        self._requests += 1
        strict = positions is not None
        wanted = self.positions() if positions is None else positions
        self.post(facts.CommitRequested(self._requests, wanted, strict))
        return self._requests

    @property
    def unanswered(self) -> int:
        """Commit requests without an answer."""
        return self._requests - len(self.answers)

    def positions(self) -> dict[TopicPartition, int]:
        """The consumed offset of each partition being delivered."""
        return {tp: reading.position for tp, reading in self._reading.items()}

    @property
    def fetching(self) -> frozenset[TopicPartition]:
        """Partitions that are being delivered and not about to be released."""
        return frozenset(tp for tp, r in self._reading.items() if r.stopping is None)

    def close(self) -> None:
        """Leave the group in order."""
        self.post(facts.CloseRequested())

    def crash(self) -> None:
        """The process dies; the servers find out by their timeouts."""
        if self.alive:
            self._say("crash")
            self.alive = False
            self._take_reading(self._reading)

    def pause(self, seconds: float) -> None:
        """The process stands still (SIGSTOP)."""
        if not self.alive or self.paused:
            return
        self._say(f"pause {seconds:.3f}")
        self.paused = True
        # The application may have passed the lease's check before, and deliver one message after.
        late = self._log is not None and self._may_deliver() and self._kernel.rng.random() < 0.5
        self._kernel.schedule(seconds, partial(self._resume, late))

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

    # -- mailbox

    def _say(self, text: str) -> None:
        if self._record is not None:
            self._record(f"{self._kernel.now_us} {self.name} {text}")

    def post(self, fact: Any) -> None:
        """Put a fact into the mailbox."""
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

    def _after(self, bounds: tuple[float, float], action: Callable[[], object]) -> None:
        low, high = bounds
        delay = low + (high - low) * self._kernel.rng.random()
        self._kernel.schedule(delay, action)

    # -- orders that both kinds of machine give

    def _carry_out_common(self, order: Any) -> bool:
        """Carry out an order about streams, timers, listeners, users; False: it is none."""
        match order:
            case orders.SetTimer():
                self._set_timer(order)
            case orders.StopFetching():
                for tp in order.partitions & self._reading.keys():
                    self._reading[tp].stopping = order.token
                self._after(self._habits.stop, partial(self._enqueue, partial(self._halt, order)))
            case orders.StartFetching():
                self._start_reading(order)
                self.post(facts.FetchingStarted(order.token))
            case orders.Drop():
                taken = self._take_reading(order.partitions)
                self.post(facts.Dropped({tp: r.position for tp, r in taken.items()}))
            case orders.NotifyReleasing() | orders.NotifyStarting():
                self._notify(order.token)
            case orders.AnswerCommit():
                self.answers[order.request] = order.faults
            case orders.AnswerStart():
                self.outcome = order.outcome
            case orders.Report():
                self.reports[order.event] = self.reports.get(order.event, 0) + 1
            case orders.SetBrokers():
                self.brokers = order.brokers
            case _:
                return False
        return True

    def _notify(self, token: int) -> None:
        raised = self._kernel.rng.random() < self._habits.listener_error
        answer = facts.ListenerDone(token, "listener raised" if raised else None)
        self._after(self._habits.listener, partial(self.post, answer))

    def _closed(self, faults: tuple[str, ...]) -> None:
        """The machine has left the group: the process ends."""
        self._say(f"closed {faults}")
        self.close_faults = faults
        self._take_reading(self._reading)
        self.alive = False

    def _set_timer(self, order: orders.SetTimer) -> None:
        earlier = self._timers.get(order.name)
        if earlier is not None:
            self._kernel.cancel(earlier)
        delay = order.seconds + order.jitter * self._kernel.rng.random()
        fact = facts.TimerFired(order.token, order.name)
        self._timers[order.name] = self._kernel.schedule(delay, partial(self.post, fact))

    # -- delivery

    def _start_reading(self, order: orders.StartFetching) -> None:
        for tp, (_, start) in order.partitions.items():
            self._reading[tp] = Reading(self.session, start or 0)
            if self._observer is not None:
                self._observer.started(self._kernel.now, tp, self.session, start or 0)

    def _take_reading(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Reading]:
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

    def _poll(self) -> None:
        if not self.alive:
            return
        if not self.paused and self._may_deliver():
            for tp, reading in self._reading.items():
                if reading.stopping is None:
                    self._deliver(tp, reading, self._habits.burst)
        self._after(self._habits.poll, self._poll)

    def _deliver(self, tp: TopicPartition, reading: Reading, most: int) -> None:
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
            self.post(facts.CommitRequested(None, self.positions()))
        self._kernel.schedule(self._habits.commit_interval, self._auto_commit)
