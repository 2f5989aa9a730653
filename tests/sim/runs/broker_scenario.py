"""Groups on a broker's coordinator, of either protocol or both, and what can happen to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, ClassVar

from tests.sim.runs.at_rest import no_orphan
from tests.sim.runs.cluster import SimCluster
from tests.sim.runs.either_group import EitherGroup
from tests.sim.runs.group_judge import GroupJudge
from tests.sim.runs.judged import WholeGroupMember
from tests.sim.runs.scenario import CoordinatorScenario
from zkconsumer.core.common.expansion import expand
from zkconsumer.core.common.types import Pattern, Subscription, TopicPartition
from zkconsumer.core.groups.assignors.sticky import StickyStrategy
from zkconsumer.core.groups.assignors.strategies import (
    LegacyStrategy,
    RangeStrategy,
    RoundRobinStrategy,
    Strategy,
)
from zkconsumer.core.groups.spec import GroupSpec, Kip848Spec
from zkconsumer.core.groups.states import State
from zkconsumer.sim.judges.invariants import Observer, Violation
from zkconsumer.sim.members.group_member import Brokers
from zkconsumer.sim.servers.classic import GroupCoordinator
from zkconsumer.sim.servers.kip848 import ConsumerGroupCoordinator

#: What members may need in peace, besides their timeouts, until each has its share (seconds).
SETTLE = 10.0
#: Longer than any run (seconds).
NEVER = 1e6


class BrokerGroup(CoordinatorScenario[WholeGroupMember]):
    """Members of a group on a coordinator.

    One of ``strategies`` is drawn. ``consumer``: the members' protocol is KIP-848.
    """

    troubled = 40.0
    interval = 0.5
    strategies: ClassVar[Sequence[Strategy]] = (
        RangeStrategy(),
        RoundRobinStrategy(),
        LegacyStrategy("legacy-range"),
        LegacyStrategy("legacy-roundrobin"),
        StickyStrategy(False),
        StickyStrategy(True),
        StickyStrategy(True),
    )

    def __init__(
        self,
        seed: int,
        record: bool,
        strategies: Sequence[Strategy] = (),
        consumer: bool = False,
    ) -> None:
        super().__init__(seed, record)
        rng, strategies = self.rng, strategies or self.strategies
        self.cluster = SimCluster(self.kernel, rng, 2, old=False)
        self.observer = Observer(records=self.cluster.records)
        self.judge = GroupJudge(self.kernel, self.observer)
        self.consumer = consumer
        self.group: GroupCoordinator | ConsumerGroupCoordinator | EitherGroup
        common: dict[str, Any] = {
            "kernel": self.kernel,
            "topics": lambda: self.topics,
            "watch": self.judge,
            "brokers": lambda: self.cluster.endpoints,
        }
        if consumer:
            self.group = ConsumerGroupCoordinator(interval=rng.choice([0.0, 1.0]), **common)
        else:
            self.group = GroupCoordinator(initial_delay=1.0, lenient=True, **common)
        self.brokers = self.connect(self.group)
        self.members = []
        self.states: set[State] = set()
        self.session = self.group_session = rng.choice([6.0, 10.0])
        self.rebalance = rng.choice([8.0, 20.0])
        self.reread = rng.choice([3.0, 8.0])
        self.patience = 5.0 + self.session + self.rebalance + self.reread + SETTLE
        self.stalls = [self.rebalance * part for part in (0.5, 1.2, 2.0)]
        own = rng.choice(strategies)
        others = [
            each for each in strategies if each.cooperative == own.cooperative and each != own
        ]
        self.offered = (own, *rng.sample(others, min(len(others), rng.choice([0, 0, 1]))))
        self.usual = self.habits(listener=(0.01, 0.3, 3.0))
        self.statics = 0
        self.changed_at = self.static_until = -NEVER
        moves = rng.random() < 0.5  # a coordinator that dies forgets who took over an instance id
        self.faults = [
            (5, "join", self.join),
            (3, "leave", self.leave),
            (3, "crash", self.crash),
            (5, "pause", self.pause),
            (5, "cut", self.cut),
            (4, "slow application", self.stall),
            (2 * moves, "coordinator dies", self.kill_coordinator),
            (2 * moves, "coordinator moves", self.move_coordinator),
            (3 * (not moves), "static restart", self.restart_static),
            (3, "add partitions", self.add_partitions),
            (2, "create topic", self.create_topic),
            (2, "delete topic", self.delete_topic),
            (4, "commit asked for", self.commit),
            (2, "fault inside", self.fault),
            *self.cluster.troubles(),
        ]

    def begin(self) -> None:
        """See ``Scenario``."""
        rng = self.rng
        for topic in rng.sample(["t0", "t1", "t2", "u0"], rng.choice([2, 3, 4])):
            self.set_topic(topic, rng.randint(1, 5))
        for _ in range(rng.randint(2, 3)):
            self.kernel.schedule(3 * rng.random(), self.join)

    def set_topic(self, topic: str, partitions: int) -> None:
        """Create a topic, or give it more partitions.

        Not while a static member is away. If it is the leader, the group learns of the topic only
        at its next rebalance (as with Java's consumer), because a restarted leader is not told.
        """
        if self.kernel.now < self.static_until:
            return
        self.changed_at = self.kernel.now
        self.cluster.add_partitions(topic, partitions)

    # -- troubles

    def join(self) -> None:
        """A member starts."""
        if len(self.live) < 5:
            number = len(self.members)
            instance = f"i{number}" if self.rng.random() < 0.25 else None
            names = self.rng.sample(["t0", "t1"], self.rng.choice([1, 2, 2]))
            streams = self.rng.choice([1, 1, 2])
            subscription = Subscription(Pattern.STATIC, dict.fromkeys(names, streams))
            if self.rng.random() < 0.4:
                subscription = Subscription(Pattern.WHITE_LIST, {"t.*": streams})
            self._start(f"m{number}", instance, subscription)

    def _start(self, name: str, instance: str | None, subscription: Subscription) -> None:
        rng = self.rng
        offered = self.offered if rng.random() < 0.7 else self.offered[:1]
        auto_commit, backoff = rng.random() < 0.85, rng.choice([0.1, 0.5])
        attempts = rng.choice([3, 9])
        spec: GroupSpec = self.classic_spec(
            name,
            subscription,
            offered,
            auto_commit,
            instance,
            backoff=backoff,
            commit_attempts=attempts,
        )
        if self.consumer:
            common = {each.name: getattr(spec, each.name) for each in fields(GroupSpec)}
            spec = Kip848Spec(member_id=f"id-{name}", assignor=None, rack=None, **common)
        member = WholeGroupMember(
            self.brokers, spec, self.cluster, self.observer, self.usual, self.note, (_Seen(self),)
        )
        member.identify = self.judge.session
        member.home = rng.choice([0, 1])
        self.members.append(member)
        member.start()

    def restart_static(self) -> None:
        """A static member's process dies and is back within its session timeout."""
        members = [member for member in self.live if member.spec.instance_id is not None]
        known = self.kernel.now > self.changed_at + self.reread + 3.0
        if members and known:
            member = self.rng.choice(members)
            member.crash()
            self.statics += 1
            name = f"{member.spec.instance_id}r{self.statics}"
            subscription, instance = member.spec.subscription, member.spec.instance_id
            seconds = self.session * self.rng.choice([0.1, 0.5])
            self.static_until = self.kernel.now + seconds + 1.0
            self.kernel.schedule(seconds, lambda: self._start(name, instance, subscription))
            self.lasts(seconds)

    def delete_topic(self) -> None:
        """A topic disappears."""
        topic = self.rng.choice(["t1", "t2", "u0"])
        if self.kernel.now >= self.static_until:
            self.changed_at = self.kernel.now
            self.cluster.delete_topic(topic)

    # -- at rest

    @property
    def judged(self) -> list[WholeGroupMember]:
        """See ``Scenario``; without members that a coordinator mistook for their predecessors."""
        return [member for member in self.live if not self._misfenced(member)]

    def at_rest(self) -> list[Violation]:
        """See ``Scenario``."""
        now = self.kernel.now
        live = self.judged
        found = [
            Violation("stable_at_rest", now, f"{m.name}: {m.machine.state.name} {m.failed}")
            for m in live
            if m.machine.state is not State.STABLE
            or m.machine.generation != self._generation_of(m)
            or not m.cluster.group.seats.get(m.machine.member_id)
        ]
        found += self.unanswered()
        if len(self.group.seats) != len(live):
            found.append(Violation("no_ghosts_at_rest", now, f"{list(self.group.seats)}"))
        wanted = {topic for member in live for topic in self._wanted(member)}
        wanted &= self.topics.keys()
        every = [TopicPartition(t, n) for t in sorted(wanted) for n in range(self.topics[t])]
        owners = {tp: who for tp, who in self.observer.owners.items() if tp.topic in wanted}
        found += no_orphan(now, every, owners, [member.at_rest() for member in live])
        known = set(every)
        for member in live:
            topics = self._wanted(member)
            streams = member.machine.held
            wrong = [
                tp for tp, of in streams.items() if tp in known and of.stream >= topics[tp.topic]
            ]
            if wrong or set(streams) - known:
                text = f"{member.name}: holds {sorted(set(streams) - known) + wrong}"
                found.append(Violation("holds_what_is_there", now, text))
        return found

    def _wanted(self, member: WholeGroupMember) -> dict[str, int]:
        """Topic to number of streams."""
        return expand("", member.spec.subscription, tuple(self.topics), True)

    def _generation_of(self, member: WholeGroupMember) -> int:
        """The one that the member is in, as the coordinator knows it."""
        if isinstance(self.group, EitherGroup):
            return self.group.generation_of(member.machine.member_id)
        if isinstance(self.group, GroupCoordinator):
            return self.group.generation
        seat = self.group.seats.get(member.machine.member_id)
        return -1 if seat is None else seat.epoch

    def _misfenced(self, member: WholeGroupMember) -> bool:
        """Whether it ended because a coordinator took it for its own predecessor."""
        failed = member.machine.state is State.FAILED
        return failed and member.spec.instance_id in self.group.misfenced


class MixedGroup(BrokerGroup):
    """Members are restarted one at a time, from classic to KIP-848 and back again when all are
    done. The broker converts the group.

    ``aim`` is the protocol that members are rolled to: KIP-848 or not.
    """

    group: EitherGroup
    strategies = (  # Kafka's own: a broker does not convert a group that uses another
        RangeStrategy(),
        RoundRobinStrategy(),
        StickyStrategy(False),
        StickyStrategy(True),
        StickyStrategy(True),
    )

    def __init__(self, seed: int, record: bool) -> None:
        super().__init__(seed, record)
        self.group = EitherGroup(
            self.kernel,
            lambda: self.topics,
            self.rng.choice([0.0, 1.0]),
            self.judge,
            brokers=lambda: self.cluster.endpoints,
        )
        before = self.brokers
        self.brokers = Brokers(self.kernel, self.group, before.service)
        self.brokers.loss, self.brokers.delay = before.loss, before.delay
        self.aim = False
        self.rolled = 0
        self.faults = [*self.faults, (20, "roll", self.roll)]

    def roll(self) -> None:
        """The next member of the other protocol is restarted, in order or not."""
        others = [member for member in self.live if self._modern(member) is not self.aim]
        others = [member for member in others if not member.closing]
        if not others:
            self.aim = not self.aim
            self.rolled += 1
            return
        member = self.rng.choice(others)
        if self.rng.random() < 0.8:
            member.close()
        else:
            member.crash()
        name, seconds = f"m{len(self.members)}", self.rng.choice([0.01, 0.5])
        subscription = member.spec.subscription
        self.kernel.schedule(seconds, lambda: self._start(name, None, subscription))
        self.lasts(seconds)

    def _start(self, name: str, instance: str | None, subscription: Subscription) -> None:
        """A new member; no static ones. Mostly of the protocol that the group is rolled to."""
        self.consumer = self.aim if self.rng.random() < 0.9 else not self.aim
        super()._start(f"{name}-{len(self.members)}", None, subscription)

    @staticmethod
    def _modern(member: WholeGroupMember) -> bool:
        return isinstance(member.spec, Kip848Spec)


class _Seen:
    """Records the states of the members."""

    def __init__(self, scenario: BrokerGroup) -> None:
        self._scenario = scenario

    def event(self, *_: object) -> None:
        """Look."""
        self._scenario.states.update(member.machine.state for member in self._scenario.members)

    def command(self, *_: object) -> None:
        """Does nothing."""

    def request(self, *_: object) -> None:
        """Does nothing."""


__all__ = ["BrokerGroup", "MixedGroup"]
