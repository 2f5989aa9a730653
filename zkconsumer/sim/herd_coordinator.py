"""The events of ``zkconsumer.sim.herd`` in a group that a broker coordinates, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from zkconsumer.core.types import TopicPartition
from zkconsumer.journal.measures import Measures, measure
from zkconsumer.journal.recorder import Sink, event_entry
from zkconsumer.journal.tally import Tally
from zkconsumer.sim.coordinator import Broker, CoordinatorMember, GroupCoordinator, GroupState
from zkconsumer.sim.herd import BOUNCE_SECONDS, RESTART_SECONDS, Herd, member_name, simulate
from zkconsumer.sim.kernel import Kernel

#: ``metadata.max.age.ms`` of Kafka's consumer: how long a new topic may go unnoticed (seconds).
METADATA_AGE = 300.0
#: ``max.poll.interval.ms``: how long a rebalance waits for members (seconds).
REBALANCE_TIMEOUT = 300.0
_STEP = 0.05
_QUIET_STEPS = 4
_LONGEST = 3600.0


class CoordinatorRun:
    """One run."""

    def __init__(self, herd: Herd, sink: Sink | None = None) -> None:
        herd.check()
        self.herd = herd
        self.kernel = Kernel(herd.seed)
        self.tally = Tally()
        self.members: dict[int, CoordinatorMember] = {}
        self.group = GroupCoordinator(self.kernel, herd.session_timeout, REBALANCE_TIMEOUT)
        self.broker = Broker(self.kernel, self.tally, self.group, 0.0)
        self._topics = dict.fromkeys(herd.topic_names(), herd.partitions)
        self._sink = sink
        self._restarts: dict[int, int] = {}
        self._busy_until = 0.0

    def perform(self, progress: Callable[[str], object] = lambda text: None) -> Measures:
        """Settle, trigger the event, wait for rest, measure."""
        herd, kernel = self.herd, self.kernel
        progress("settling")
        for number in range(herd.members):
            self._start(number)
        self._rest()
        for member in self.members.values():
            member.trip_us = self._trip()
            member.spread()
        self.broker.service = herd.service[0]
        kernel.run(until=kernel.now + 1.0)
        self.tally.reset(kernel.now_us)
        progress(herd.event)
        self._event()
        self._rest()
        partitions = [
            TopicPartition(t, n) for t, count in self._topics.items() for n in range(count)
        ]
        return measure(
            self.tally,
            partitions,
            kernel.now_us,
            mode="simulated",
            profile="coordinator",
            event=herd.event,
            members=herd.members,
            topics=herd.topics,
            seed=herd.seed,
            notes=[f"generation {self.group.generation}"],
        )

    def _trip(self) -> int:
        low, high = self.herd.latency
        return round((low + (high - low) * self.kernel.rng.random()) * 1e6)

    def _start(self, number: int) -> None:
        name = member_name(number, self._restarts.get(number, 0))
        trip = self._trip() if self.broker.service else 1000
        member = CoordinatorMember(self.broker, name, lambda: self._topics, trip)
        self.members[number] = member
        member.start()

    def _rest(self) -> None:
        """Run until all members have had what they should own for some time."""
        quiet, end = 0, self.kernel.now + _LONGEST
        while quiet < _QUIET_STEPS and self.kernel.now < end:
            self.kernel.run(until=self.kernel.now + _STEP)
            live = [member for member in self.members.values() if member.alive]
            settled = (
                self.group.state is GroupState.STABLE
                and self.group.up
                and len(self.group.seats) == len(live)
                and self.kernel.now > self._busy_until
                and all(member.stable for member in live)
            )
            quiet = quiet + 1 if settled else 0

    def _note(self, name: str, member: str = "") -> None:
        if self._sink is not None:
            self._sink.write(event_entry(self.kernel.now_us, name, member))

    def _event(self) -> None:
        number = self.herd.members // 2
        self._note(self.herd.event)
        match self.herd.event:
            case "join":
                self._start(self.herd.members)
            case "leave":
                self.members[number].close()
            case "crash":
                self.members[number].crash()
            case "rolling-restart":
                self._busy_until = self.kernel.now + 2 * RESTART_SECONDS * self.herd.members
                self._restart(0)
            case "broker-bounce":
                self.group.up = False
                self._busy_until = self.kernel.now + BOUNCE_SECONDS + 4.0
                self.kernel.schedule(BOUNCE_SECONDS, partial(setattr, self.group, "up", True))
            case "topic-create":
                wait = METADATA_AGE * self.kernel.rng.random()
                self._busy_until = self.kernel.now + wait
                self.kernel.schedule(wait, self._new_topic)
                self.tally.ownership.changed_at = self.kernel.now_us

    def _new_topic(self) -> None:
        """The leader's metadata show the new topic."""
        self._topics["t-new"] = self.herd.partitions
        self.members[0].rejoin()

    def _restart(self, number: int) -> None:
        if number >= self.herd.members:
            return
        self.members[number].close()

        def again() -> None:
            self._restarts[number] = self._restarts.get(number, 0) + 1
            self._start(number)
            self.kernel.schedule(RESTART_SECONDS, partial(self._restart, number + 1))

        self.kernel.schedule(RESTART_SECONDS, again)


def simulate_any(
    herd: Herd, sink: Sink | None = None, progress: Callable[[str], object] = lambda text: None
) -> Measures:
    """Simulate one change in whichever style of coordination ``herd`` names. Raises ConfigError."""
    if herd.profile == "coordinator":
        return CoordinatorRun(herd, sink).perform(progress)
    return simulate(herd, sink, progress)
