"""The events of ``zkconsumer.sim.runs.herd`` in a group that a broker coordinates, in virtual time.

The members are the real machines: of ``zkconsumer.core.groups.classic`` for the profile
``coordinator`` (the classic protocol), of ``zkconsumer.core.groups.kip848`` for ``consumer``
(KIP-848).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.groups.assignors.strategies import RangeStrategy, Strategy
from zkconsumer.core.groups.spec import ClassicSpec, GroupSpec, Kip848Spec
from zkconsumer.core.groups.states import State
from zkconsumer.herd.measures import Measures
from zkconsumer.herd.parameters import BOUNCE_SECONDS, GROUP, RESTART_SECONDS
from zkconsumer.herd.recorders import GroupCounter, SizedGroupRecorder
from zkconsumer.journal.group import GroupObserver
from zkconsumer.journal.recorder import Sink
from zkconsumer.sim.members.group_member import Brokers, SimGroupMember
from zkconsumer.sim.runs.herd import Herd, HerdRun, simulate
from zkconsumer.sim.servers.classic import GroupCoordinator, GroupState
from zkconsumer.sim.servers.kip848 import ConsumerGroupCoordinator, SeatState

#: Defaults of the connector's configuration, in seconds.
HEARTBEAT = 3.0
MEMBER_HEARTBEAT = 5.0
"""The broker's default for members of KIP-848."""
REREAD = 30.0
REBALANCE_TIMEOUT = 300.0
BACKOFF = 0.1
STRATEGY: Strategy = RangeStrategy()
#: How long a new coordinator reads the group (seconds).
LOADING_SECONDS = 0.1
_STEP = 0.05
_QUIET_STEPS = 4
_LONGEST = 3600.0


class CoordinatorRun(HerdRun[SimGroupMember]):
    """A run of a group on the coordinator."""

    def __init__(self, herd: Herd, sink: Sink | None = None) -> None:
        super().__init__(herd, sink)
        self.topics = dict.fromkeys(herd.topic_names(), herd.partitions)
        self._consumer = herd.profile == "consumer"
        slowest = MEMBER_HEARTBEAT if self._consumer else HEARTBEAT
        self._heartbeat = min(slowest, herd.session_timeout / 3)
        self.group: GroupCoordinator | ConsumerGroupCoordinator
        if self._consumer:
            self.group = ConsumerGroupCoordinator(
                self.kernel,
                lambda: self.topics,
                heartbeat=self._heartbeat,
                assignor="uniform",
            )
        else:
            self.group = GroupCoordinator(self.kernel, lambda: self.topics)
        self.brokers = Brokers(self.kernel, self.group)
        self._busy_until = 0.0

    def perform(self) -> Measures:
        """Implement ``HerdRun.perform``."""
        herd, kernel = self.herd, self.kernel
        for number in range(herd.members):
            # Not all at once: each looks at the topics again at a moment of its own.
            kernel.schedule(REREAD * kernel.rng.random(), partial(self._start, number))
        kernel.run(until=REREAD)
        self._rest()
        for member in self.members.values():
            member.trip_us = self._trip()
            member.pause(HEARTBEAT * kernel.rng.random())  # and beats at one
        self.brokers.service = herd.service[0]
        kernel.run(until=kernel.now + HEARTBEAT + 1.0)
        self._rest()
        self.tally.reset(kernel.now_us)
        self._event()
        self._rest()
        strategy = "uniform" if self._consumer else STRATEGY.name
        note = f"generation {self.group.generation}, {strategy}"
        return self._measured(self._partitions(), kernel.now_us, note)

    def _trip(self) -> int:
        low, high = self.herd.latency
        return round((low + (high - low) * self.kernel.rng.random()) * 1e6)

    def _partitions(self) -> list[TopicPartition]:
        return [TopicPartition(t, n) for t, count in self.topics.items() for n in range(count)]

    def _start(self, number: int) -> None:
        name, now_us = self._name(number), lambda: self.kernel.now_us
        spec = self._spec(name)
        watchers: list[GroupObserver] = [GroupCounter(self.tally, name, now_us, GROUP)]
        if self._sink is not None:
            watchers.append(SizedGroupRecorder(self._sink, name, now_us, GROUP))
        member = SimGroupMember(self.brokers, spec, habits=self._habits, watchers=watchers)
        if self.brokers.service:
            member.trip_us = self._trip()
        self.members[number] = member
        member.start()

    def _spec(self, name: str) -> GroupSpec:
        shared: dict[str, Any] = {
            "group": GROUP,
            "consumer_id": name,
            "instance_id": None,
            "subscription": self.herd.subscription(),
            "exclude_internal": True,
            "auto_commit": True,
            "session_timeout": self.herd.session_timeout,
            "rebalance_timeout": REBALANCE_TIMEOUT,
            "heartbeat_interval": self._heartbeat,
            "backoff": BACKOFF,
            "reread": REREAD,
        }
        if self._consumer:
            return Kip848Spec(**shared, member_id=name, assignor=None, rack=None)
        return ClassicSpec(**shared, strategies=(STRATEGY,))

    def _rest(self) -> None:
        """Run until all members have had their partitions for some time."""
        quiet, end = 0, self.kernel.now + _LONGEST
        while quiet < _QUIET_STEPS and self.kernel.now < end:
            self.kernel.run(until=self.kernel.now + _STEP)
            quiet = quiet + 1 if self._settled() else 0

    def _settled(self) -> bool:
        group = self.group
        live = [member for member in self.members.values() if member.alive]
        if self.kernel.now < self._busy_until or len(group.seats) != len(live):
            return False
        if isinstance(group, ConsumerGroupCoordinator):
            seats = group.seats.values()
            if any(
                (seat.state, seat.epoch) != (SeatState.STABLE, group.generation) for seat in seats
            ):
                return False
        elif group.state is not GroupState.STABLE:
            return False
        return all(
            member.machine.state is State.STABLE and member.machine.generation == group.generation
            for member in live
        )

    # -- what happens

    def _event(self) -> None:
        if self.herd.event == "rolling-restart":
            self._busy_until = self.kernel.now + 2 * RESTART_SECONDS * self.herd.members
        super()._event()

    def _bounce(self) -> None:
        self._busy_until = self.kernel.now + BOUNCE_SECONDS + 4.0
        self.brokers.fail_over(BOUNCE_SECONDS, LOADING_SECONDS)

    def _create_topic(self) -> None:
        self.topics["t-new"] = self.herd.partitions
        self.tally.ownership.changed_at = self.kernel.now_us
        self._busy_until = self.kernel.now + REREAD + self._heartbeat


def simulate_any(herd: Herd, sink: Sink | None = None) -> Measures:
    """Simulate one change, in ZooKeeper or on a coordinator, as ``herd.profile`` requires. Raises
    ConfigError."""
    if herd.profile in ("coordinator", "consumer"):
        return CoordinatorRun(herd, sink).perform()
    return simulate(herd, sink)
