"""A member's process on virtual time: the real loop, and what it runs on in a simulation.

Owns the mailbox, the simulated application and the faults of a process (pause, crash). Everything
runs inside kernel events, in the thread that runs the kernel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic

from zkconsumer.core.common import events
from zkconsumer.core.common.invariants import Observer
from zkconsumer.core.common.types import BrokerEndpoint, ConsumerThreadId, TopicPartition
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.loop import Coordination, Done, MachineT, MemberLoop
from zkconsumer.runtime.metrics import RebalanceCounts
from zkconsumer.sim.kernel import Kernel

#: When simulations begin, in milliseconds since 1970: timestamps are as long as real ones.
EPOCH_MS: Final = 1_500_000_000_000


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


class SimHost:
    """A process on virtual time: the ``Host`` of ``zkconsumer.runtime.loop``.

    Actions are run one after the other, never within one another. ``alive``: neither crashed nor
    left. ``paused``: it stands still, and so do its actions; its timers run out meanwhile.
    """

    def __init__(self, kernel: Kernel, name: str, note: Callable[[str], object] | None) -> None:
        self.kernel = kernel
        self.random = kernel.rng
        self.name = name
        self.alive = True
        self.paused = False
        self._note = note
        self._inbox: deque[Callable[[], object]] = deque()
        self._busy = False

    @property
    def recorded(self) -> bool:
        """Whether ``say`` goes anywhere."""
        return self._note is not None

    def say(self, text: str) -> None:
        """Note what happens, for the history of the run."""
        if self._note is not None:
            self._note(f"{self.kernel.now_us} {self.name} {text}")

    def post(self, action: Callable[[], object]) -> None:
        """See ``Host``."""
        self._inbox.append(action)
        if not self._busy:
            self.work()

    def work(self) -> None:
        """Run what was posted, unless the process stands still."""
        self._busy = True
        while self._inbox and self.alive and not self.paused:
            self._inbox.popleft()()
        self._busy = False

    def after(self, seconds: float, action: Callable[[], object]) -> Callable[[], object]:
        """See ``Host``."""
        handle = self.kernel.schedule(seconds, partial(self.post, action))
        return partial(self.kernel.cancel, handle)

    def within(self, bounds: tuple[float, float], action: Callable[[], object]) -> None:
        """Post ``action`` after a random time between ``bounds``, in seconds."""
        low, high = bounds
        self.after(low + (high - low) * self.random.random(), action)

    def now(self) -> float:
        """See ``Host``."""
        return self.kernel.now

    def lease_now(self) -> float:
        """See ``Host``."""
        return self.kernel.now

    def log(self, level: int, text: str, error: BaseException | None = None) -> None:
        """See ``Host``: part of the run's history."""
        self.say(text)
        if error is not None:
            raise error

    def wall_us(self) -> int:
        """See ``Host``."""
        return self.kernel.now_us

    def wall_ms(self) -> int:
        """See ``Host``."""
        return EPOCH_MS + self.kernel.now_us // 1000


class SimPlane:
    """Fetchers, streams and the application of one member: the ``DataPort`` of its loop.

    Without ``log`` nothing is delivered. ``session``: what the observer knows the member by.
    """

    def __init__(
        self,
        host: SimHost,
        gate: DeliveryGate,
        log: SimLog | None,
        observer: Observer | None,
        habits: Habits,
        session: Callable[[], int],
    ) -> None:
        self.brokers: tuple[BrokerEndpoint, ...] = ()
        self.failed = ""
        """Why the streams have failed."""
        self._host = host
        self._gate = gate
        self._log = log
        self._observer = observer
        self._habits = habits
        self._session = session
        self._reading: dict[TopicPartition, Reading] = {}
        self._stopped: dict[TopicPartition, int] = {}
        self._stops = 0
        self._stalled_until = -1.0

    def begin(self) -> None:
        """The application looks for messages from now on."""
        if self._log is not None:
            self._poll_later()

    # -- DataPort

    def set_brokers(self, brokers: tuple[BrokerEndpoint, ...]) -> None:
        """See ``DataPort``."""
        self.brokers = brokers

    def start(
        self, partitions: Mapping[TopicPartition, tuple[ConsumerThreadId, int | None]]
    ) -> None:
        """See ``DataPort``."""
        session = self._session()
        for tp, (_, start) in partitions.items():
            self._stopped.pop(tp, None)
            self._reading[tp] = Reading(session, start or 0)
            if self._observer is not None:
                self._observer.started(self._host.now(), tp, session, start or 0)

    def stop(
        self,
        partitions: Iterable[TopicPartition],
        done: Callable[[dict[TopicPartition, int]], object],
    ) -> None:
        """See ``DataPort``."""
        self._stops += 1
        for tp in self._reading.keys() & set(partitions):
            self._reading[tp].stopping = self._stops
        self._host.within(self._habits.stop, partial(self._halt, self._stops, done))

    def drop(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """See ``DataPort``."""
        dropped = frozenset(partitions)
        positions = {tp: reading.position for tp, reading in self._take(dropped).items()}
        self.forget(dropped)
        return positions

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """See ``DataPort``."""
        for tp in partitions:
            self._stopped.pop(tp, None)

    def positions(self) -> dict[TopicPartition, int]:
        """See ``DataPort``."""
        held = {tp: reading.position for tp, reading in self._reading.items()}
        return held | self._stopped

    def fail(self, error: Exception) -> None:
        """See ``DataPort``."""
        self.failed = str(error)

    def close(self, timeout: float = 0.0) -> None:
        """See ``DataPort``; also what the end of the process does."""
        self._take(self._reading)

    # -- the application

    @property
    def fetching(self) -> frozenset[TopicPartition]:
        """Partitions that are being delivered and not about to be released."""
        return frozenset(tp for tp, r in self._reading.items() if r.stopping is None)

    @property
    def in_hand(self) -> object | None:
        """The record that the application has worked on for suspiciously long (``Progress``)."""
        return self if self._host.now() < self._stalled_until else None

    @property
    def may_deliver(self) -> bool:
        """Whether the application would get a message now."""
        return self._log is not None and self._gate.is_open and self.in_hand is None

    def stall(self, seconds: float) -> None:
        """The application works on one message for so long."""
        self._stalled_until = max(self._stalled_until, self._host.now() + seconds)

    def deliver_late(self) -> None:
        """The application passed the lease's check before the process stood still."""
        for tp, reading in list(self._reading.items())[:1]:
            if reading.stopping is None:
                self._deliver(tp, reading, 1)

    def _take(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Reading]:
        """End the reading of these; returns where it stood."""
        taken = {tp: self._reading.pop(tp) for tp in sorted(partitions) if tp in self._reading}
        if self._observer is not None:
            for tp, reading in taken.items():
                self._observer.stopped(tp, reading.session)
        return taken

    def _halt(self, number: int, done: Callable[[dict[TopicPartition, int]], object]) -> None:
        """The fetchers have stopped; a message in hand was finished meanwhile, or was not."""
        stopped = [tp for tp, r in self._reading.items() if r.stopping == number]
        positions: dict[TopicPartition, int] = {}
        for tp, reading in self._take(stopped).items():
            finished = reading.in_hand and self._host.random.random() < 0.8
            positions[tp] = reading.position + finished
        self._stopped |= positions
        done(positions)

    def _poll_later(self) -> None:
        low, high = self._habits.poll
        delay = low + (high - low) * self._host.random.random()
        self._host.kernel.schedule(delay, self._poll)

    def _poll(self) -> None:
        if not self._host.alive:
            return
        if not self._host.paused and self.may_deliver:
            for tp, reading in self._reading.items():
                if reading.stopping is None:
                    self._deliver(tp, reading, self._habits.burst)
        self._poll_later()

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
        if self._host.recorded:
            self._host.say(f"delivers {tp} {first}..{reading.position} in {reading.session}")
        if self._observer is not None:
            now = self._host.now()
            self._observer.delivered(now, tp, reading.session, first, reading.position)


class SimListener:
    """The user's listener: the ``ListenerPort`` of a simulated member."""

    def __init__(self, host: SimHost, habits: Habits, plane: SimPlane) -> None:
        self.since: float | None = None
        self.commit: Callable[[Mapping[TopicPartition, int]], Future[tuple[str, ...]]]
        """Asks the member for a commit; set before it begins."""
        self._host = host
        self._habits = habits
        self._plane = plane

    def releasing(self, partitions: frozenset[TopicPartition], leaving: bool, done: Done) -> None:
        """See ``ListenerPort``."""
        if self._habits.listener_commits:
            self._call(partial(self._commit, partitions, done))
        else:
            self._call(partial(self._return, done))

    def lost(self, partitions: frozenset[TopicPartition], done: Done) -> None:
        """See ``ListenerPort``."""
        self._call(partial(self._return, done))

    def starting(self, assignment: Mapping[TopicPartition, ConsumerThreadId], done: Done) -> None:
        """See ``ListenerPort``."""
        self._call(partial(self._return, done))

    def _call(self, action: Callable[[], object]) -> None:
        self.since = self._host.now()
        self._host.within(self._habits.listener, action)

    def _return(self, done: Done) -> None:
        raised = self._host.random.random() < self._habits.listener_error
        self._end(done, "the rebalance listener raised" if raised else None)

    def _commit(self, partitions: frozenset[TopicPartition], done: Done) -> None:
        """Commit what is about to be released, and return when that is answered."""
        positions = {tp: n for tp, n in self._plane.positions().items() if tp in partitions}
        self.commit(positions).add_done_callback(lambda _: self._end(done, None))

    def _end(self, done: Done, error: str | None) -> None:
        self.since = None
        done(error)


class SimProcess(Generic[MachineT]):
    """One member's process; ``observer`` and ``log`` switch delivery on.

    ``loop`` is the real one; so is what carries out its commands.
    """

    loop: MemberLoop[MachineT]

    def __init__(
        self,
        kernel: Kernel,
        name: str,
        log: SimLog | None,
        observer: Observer | None,
        habits: Habits,
        note: Callable[[str], object] | None,
        *,
        always_open: bool = False,
    ) -> None:
        self.name = name
        self.active_us = 0
        """When the machine took in its last event."""
        self.host = SimHost(kernel, name, note)
        self.gate = DeliveryGate(always_open=always_open, now=self.host.lease_now)
        self.plane = SimPlane(self.host, self.gate, log, observer, habits, lambda: self.session)
        self.listener = SimListener(self.host, habits, self.plane)
        self._kernel = kernel
        self._delivers = log is not None
        self._habits = habits
        self._asked: list[Future[tuple[str, ...]]] = []

    @property
    def session(self) -> int:
        """What the observer knows the member by; 0: it is no member."""
        raise NotImplementedError

    @property
    def machine(self) -> MachineT:
        """The member's machine."""
        return self.loop.machine

    @property
    def alive(self) -> bool:
        """Whether the process has neither crashed nor left."""
        return self.host.alive

    @property
    def paused(self) -> bool:
        """Whether the process stands still."""
        return self.host.paused

    @property
    def fetching(self) -> frozenset[TopicPartition]:
        """Partitions that are being delivered and not about to be released."""
        return self.plane.fetching

    def _make_loop(
        self,
        machine: MachineT,
        coordination: Coordination[MachineT],
        auto_commit: bool,
        watchers: Sequence[Any],
    ) -> None:
        self.watchers: Any = _Watchers(self, watchers)
        """Told of everything that the member does."""
        self.loop = MemberLoop(
            self.name,
            machine,
            coordination,
            self.plane,
            self.gate,
            self.host,
            self.listener,
            auto_commit_interval=(
                self._habits.commit_interval if auto_commit and self._delivers else None
            ),
            rebalances=RebalanceCounts((), (), (), self.host.now),
            observer=self.watchers,
        )
        self.listener.commit = partial(self.loop.commit, strict=True)
        self.loop.closed.add_done_callback(self._closed)

    # -- what a user or a fault does

    def post(self, event: Any) -> None:
        """Hand the machine an event."""
        self.loop.post(event)

    def commit(self, positions: Mapping[TopicPartition, int] | None = None) -> None:
        """Ask for a commit of ``positions``, or of all consumed ones."""
        strict = positions is not None
        wanted = self.plane.positions() if positions is None else positions
        self._asked.append(self.loop.commit(wanted, strict))

    @property
    def unanswered(self) -> int:
        """Commit requests without an answer."""
        return sum(not future.done() for future in self._asked)

    def close(self) -> None:
        """Leave the group in order."""
        self.loop.post(events.CloseRequested())

    def crash(self) -> None:
        """The process dies; the servers find out by their timeouts."""
        if self.alive:
            self.host.say("crash")
            self.host.alive = False
            self.plane.close()

    def pause(self, seconds: float) -> None:
        """The process stands still (SIGSTOP)."""
        if not self.alive or self.paused:
            return
        self.host.say(f"pause {seconds:.3f}")
        self.host.paused = True
        # The application may have passed the lease's check before, and deliver one message after.
        late = self.plane.may_deliver and self._kernel.rng.random() < 0.5
        self._kernel.schedule(seconds, partial(self._resume, late))

    def _resume(self, late: bool) -> None:
        if not self.alive:
            return
        self.host.paused = False
        self.host.say("resume")
        if late:
            self.plane.deliver_late()
        self.host.work()

    def _closed(self, closed: Future[tuple[str, ...]]) -> None:
        """The machine has left the group: the process ends."""
        self.host.say(f"closed {closed.result()}")
        self.host.alive = False


class _Watchers:
    """The observer of a simulated member's loop: passes everything on, notes the history."""

    def __init__(self, member: SimProcess[Any], watchers: Sequence[Any]) -> None:
        self._member = member
        self._watchers = watchers

    def event(self, event: Any, epoch: int, attempt: int) -> None:
        """See ``Observer``."""
        host = self._member.host
        if host.recorded:
            host.say(f"{event}")
        self._member.active_us = host.kernel.now_us
        for watcher in self._watchers:
            watcher.event(event, epoch, attempt)

    def command(self, command: Any, epoch: int, attempt: int) -> None:
        """See ``Observer``."""
        for watcher in self._watchers:
            watcher.command(command, epoch, attempt)

    def op(self, *operation: Any) -> None:
        """See ``MemberObserver``."""
        for watcher in self._watchers:
            watcher.op(*operation)

    def reads(self, *reads: Any) -> None:
        """See ``MemberObserver``."""
        for watcher in self._watchers:
            watcher.reads(*reads)

    def shut(self, since_us: int) -> None:
        """See ``MemberObserver``."""
        for watcher in self._watchers:
            watcher.shut(since_us)

    def request(self, *request: Any) -> None:
        """See ``GroupObserver``."""
        for watcher in self._watchers:
            watcher.request(*request)
