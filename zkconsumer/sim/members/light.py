"""Delivery without fetching, for simulations of thousands of members. Messages are offsets.

Instead of fetchers, queues and streams, a partition has a position, which grows. Ownership and
permission to deliver work as in a member that fetches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from zkconsumer.core.common.types import BrokerEndpoint, ConsumerThreadId, TopicPartition
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.membership.classic import Progress
from zkconsumer.sim.judges.invariants import Observer
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.members.host import Habits, SimHost
from zkconsumer.sim.members.plane import Plane, PlaneOwner


class SimLog:
    """The messages of all partitions. Each partition grows by ``rate`` messages per second until
    ``stop``.

    A message has no content, only an offset. A partition keeps its messages when its topic is
    deleted.
    """

    def __init__(self, kernel: Kernel, rate: float) -> None:
        self._kernel = kernel
        self._rate = rate
        self.topics: dict[str, int] = {}
        self._created: dict[TopicPartition, float] = {}
        self._stopped: float | None = None

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Add empty partitions, and leave existing ones unchanged."""
        for tp in partitions:
            self._created.setdefault(tp, self._kernel.now)

    def add_partitions(self, topic: str, count: int) -> None:
        """Create a topic, or give it more partitions."""
        self.topics[topic] = count
        self.add(TopicPartition(topic, number) for number in range(count))

    def delete_topic(self, topic: str) -> bool:
        """Delete a topic; return false if it does not exist."""
        return self.topics.pop(topic, None) is not None

    def stop(self) -> None:
        """Stop writing messages."""
        self._stopped = self._kernel.now

    def plane(self, member: PlaneOwner) -> SimPlane:
        """Return the data plane of a member."""
        return SimPlane(
            member.host,
            member.gate,
            self,
            member.observer,
            member.habits,
            lambda: member.session,
        )

    def end(self, tp: TopicPartition) -> int:
        """Return the log end offset."""
        now = self._kernel.now if self._stopped is None else self._stopped
        return int(max(0.0, now - self._created[tp]) * self._rate)


@dataclass(slots=True)
class Reading:
    """A partition that is being delivered. ``position``: the next offset to consume. At most one
    message is unacknowledged.

    ``stopping`` is set once delivery has been stopped.
    """

    session: int
    position: int
    in_hand: bool = False
    stopping: int | None = None


class SimPlane(Plane):
    """Fetchers, streams and the application of one member: the ``DataPort`` of its loop.

    Without ``log`` nothing is delivered. ``session``: the observer's number for the member.
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
        """Let the application request messages from now on."""
        if self._log is not None:
            self._poll_later()

    # -- DataPort

    def set_brokers(self, brokers: tuple[BrokerEndpoint, ...]) -> None:
        """Implement ``DataPort.set_brokers``."""
        self.brokers = brokers

    def start(
        self, partitions: Mapping[TopicPartition, tuple[ConsumerThreadId, int | None]]
    ) -> None:
        """Implement ``DataPort.start``."""
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
        """Implement ``DataPort.stop``."""
        self._stops += 1
        for tp in self._reading.keys() & set(partitions):
            self._reading[tp].stopping = self._stops
        self._host.within(self._habits.stop, partial(self._halt, self._stops, done))

    def drop(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Implement ``DataPort.drop``."""
        dropped = frozenset(partitions)
        positions = {tp: reading.position for tp, reading in self._take(dropped).items()}
        self.forget(dropped)
        return positions

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Implement ``DataPort.forget``."""
        for tp in partitions:
            self._stopped.pop(tp, None)

    def positions(self) -> dict[TopicPartition, int]:
        """Implement ``DataPort.positions``."""
        held = {tp: reading.position for tp, reading in self._reading.items()}
        return held | self._stopped

    def fail(self, error: Exception) -> None:
        """Implement ``DataPort.fail``."""
        self.failed = str(error)

    def close(self, timeout: float = 0.0) -> None:
        """Implement ``DataPort.close``. Ending the process has the same effect."""
        self._take(self._reading)

    # -- the application

    @property
    def progress(self) -> tuple[Progress, ...]:
        """Return the objects that show the application's progress."""
        return () if self._log is None else (self,)

    @property
    def fetching(self) -> frozenset[TopicPartition]:
        """The partitions that are delivered and not about to be released."""
        return frozenset(tp for tp, r in self._reading.items() if r.stopping is None)

    @property
    def in_hand(self) -> object | None:
        """Implement ``Progress.in_hand``: an object while the application is stalled, otherwise
        ``None``."""
        return self if self._host.now() < self._stalled_until else None

    @property
    def may_deliver(self) -> bool:
        """Whether the application would receive a message now."""
        return self._log is not None and self._gate.is_open and self.in_hand is None

    def stall(self, seconds: float) -> None:
        """Make the application process one message for this long."""
        self._stalled_until = max(self._stalled_until, self._host.now() + seconds)

    def deliver_late(self) -> None:
        """Deliver a message whose lease was checked before the process was suspended."""
        for tp, reading in list(self._reading.items())[:1]:
            if reading.stopping is None:
                self._deliver(tp, reading, 1)

    def _take(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Reading]:
        """Stop reading these partitions. Return the positions."""
        taken = {tp: self._reading.pop(tp) for tp in sorted(partitions) if tp in self._reading}
        if self._observer is not None:
            for tp, reading in taken.items():
                self._observer.stopped(tp, reading.session)
        return taken

    def _halt(self, number: int, done: Callable[[dict[TopicPartition, int]], object]) -> None:
        """Handle that the fetchers have stopped. An unacknowledged message may have been finished
        in the meantime."""
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
        """Request messages. The request for the next message acknowledges the last one."""
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
