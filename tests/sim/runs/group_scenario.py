"""A whole group on a simulated coordinator under random faults, from one seed, and the verdict.

``run(seed)`` builds a group, injects faults, lets it come to rest and returns the violated
invariants. The result is a pure function of the seed. Single-threaded, in virtual time.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from tests.sim.runs.at_rest import no_orphan
from tests.sim.runs.cluster import SimCluster
from tests.sim.runs.either_group import EitherGroup
from tests.sim.runs.result import EVENTS, Result
from tests.sim.runs.troubles import CoordinatorTroubles
from tests.sim.runs.whole import deliver_all, hurry, uncommitted
from zkconsumer.core.common.topic_filter import expand
from zkconsumer.core.common.types import Pattern, Subscription, TopicPartition
from zkconsumer.core.groups.spec import ClassicSpec, GroupSpec, Kip848Spec
from zkconsumer.core.groups.states import State
from zkconsumer.core.groups.sticky import StickyStrategy
from zkconsumer.core.groups.strategies import (
    LegacyStrategy,
    RangeStrategy,
    RoundRobinStrategy,
    Strategy,
)
from zkconsumer.sim.judges.group_judge import GroupJudge
from zkconsumer.sim.judges.invariants import Observer, Violation
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.members.group_member import Brokers, SimGroupMember
from zkconsumer.sim.members.host import Habits
from zkconsumer.sim.members.process import ANSWER_S
from zkconsumer.sim.servers.classic import GroupCoordinator
from zkconsumer.sim.servers.kip848 import ConsumerGroupCoordinator

#: How long a group is troubled at least (seconds).
TROUBLED = 40.0
#: Seconds for each trouble, where there are many.
INTERVAL = 0.5
#: What members may need in peace, besides their timeouts, until each has its share (seconds).
SETTLE = 10.0
#: Longer than any run (seconds).
NEVER = 1e6
STRATEGIES: tuple[Strategy, ...] = (
    RangeStrategy(),
    RoundRobinStrategy(),
    LegacyStrategy("legacy-range"),
    LegacyStrategy("legacy-roundrobin"),
    StickyStrategy(False),
    StickyStrategy(True),
    StickyStrategy(True),
)


class World(CoordinatorTroubles[SimGroupMember]):
    """The brokers with their topics, the messages, the members of one group, and its troubles."""

    def __init__(
        self, seed: int, strategies: Sequence[Strategy], record: bool, consumer: bool = False
    ) -> None:
        super().__init__(Kernel(seed), rng := random.Random(seed))
        self.cluster = SimCluster(self.kernel, rng, 2, old=False)
        self.observer = Observer(records=self.cluster.records)
        self.judge = GroupJudge(self.kernel, self.observer)
        self.topics = self.cluster.topics
        self.consumer = consumer
        self.group: GroupCoordinator | ConsumerGroupCoordinator | EitherGroup
        if consumer:
            self.group = ConsumerGroupCoordinator(
                self.kernel,
                lambda: self.topics,
                rng.choice([0.0, 1.0]),
                watch=self.judge,
                brokers=lambda: self.cluster.endpoints,
            )
        else:
            self.group = GroupCoordinator(
                self.kernel,
                lambda: self.topics,
                1.0,
                self.judge,
                lenient=True,
                brokers=lambda: self.cluster.endpoints,
            )
        self.brokers = Brokers(self.kernel, self.group, 0.0005)
        self.brokers.loss = rng.choice([0.0, 0.02, 0.05])
        self.brokers.delay = rng.choice([0.0, 0.02, 0.05])
        self.members: list[SimGroupMember] = []
        self.states: set[State] = set()
        self.history = [] if record else None
        self.session = rng.choice([6.0, 10.0])
        self.rebalance = rng.choice([8.0, 20.0])
        self.reread = rng.choice([3.0, 8.0])
        own = rng.choice(strategies)
        others = [one for one in strategies if one.cooperative == own.cooperative and one != own]
        self.offered = (own, *rng.sample(others, min(len(others), rng.choice([0, 0, 1]))))
        self.habits = Habits(
            burst=40,
            stop=(0.0, rng.choice([0.01, 0.1])),
            release_wait=rng.choice([0.5, 2.0]),
            listener=(0.0, rng.choice([0.01, 0.3, 3.0])),
            listener_error=rng.choice([0.0, 0.0, 0.1]),
            listener_commits=rng.random() < 0.3,
            commits=rng.choice([0.0, 0.1]),
        )
        self.statics = 0
        self.changed_at = self.static_until = -NEVER
        moves = rng.random() < 0.5  # a coordinator that dies forgets who took over an instance id
        self.kinds = [
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

    @property
    def live(self) -> list[SimGroupMember]:
        """Members that have neither left nor crashed."""
        return [member for member in self.members if member.alive]

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
        spec: GroupSpec
        if self.consumer:
            spec = Kip848Spec(
                group="g",
                member_id=f"id-{name}",
                consumer_id=name,
                instance_id=instance,
                subscription=subscription,
                exclude_internal=True,
                assignor=None,
                rack=None,
                auto_commit=auto_commit,
                session_timeout=self.session,
                rebalance_timeout=self.rebalance,
                heartbeat_interval=min(3.0, self.session / 3),
                backoff=backoff,
                reread=self.reread,
                commit_attempts=rng.choice([3, 9]),
            )
        else:
            spec = ClassicSpec(
                group="g",
                consumer_id=name,
                instance_id=instance,
                subscription=subscription,
                exclude_internal=True,
                strategies=offered,
                auto_commit=auto_commit,
                session_timeout=self.session,
                rebalance_timeout=self.rebalance,
                heartbeat_interval=min(3.0, self.session / 3),
                backoff=backoff,
                reread=self.reread,
                commit_attempts=rng.choice([3, 9]),
            )
        note = None if self.history is None else self.history.append
        member = SimGroupMember(
            self.brokers, spec, self.cluster, self.observer, self.habits, note, (_Seen(self),)
        )
        member.identify = self.judge.session
        member.home = rng.choice([0, 1])
        self.members.append(member)
        member.start()

    def cut(self) -> None:
        """Connections break, with requests and answers in flight."""
        member = self._any()
        if member is not None:
            seconds = self.rng.choice([0.01, 0.3, self.session * 0.8, self.session * 1.5])
            member.cut(seconds)
            self.lasts(seconds)

    def stall(self) -> None:
        """An application works on one message for a long time."""
        member = self._any()
        if member is not None:
            seconds = self.rebalance * self.rng.choice([0.5, 1.2, 2.0])
            member.stall(seconds)
            self.lasts(seconds)

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

    def add_partitions(self) -> None:
        """A topic gets more partitions."""
        if self.topics:
            topic = self.rng.choice(sorted(self.topics))
            self.set_topic(topic, min(8, self.topics[topic] + self.rng.randint(1, 2)))

    def create_topic(self) -> None:
        """A topic appears."""
        topic = self.rng.choice(["t0", "t1", "t2", "u0"])
        if topic not in self.topics:
            self.set_topic(topic, self.rng.randint(1, 5))

    def delete_topic(self) -> None:
        """A topic disappears."""
        topic = self.rng.choice(["t1", "t2", "u0"])
        if self.kernel.now >= self.static_until:
            self.changed_at = self.kernel.now
            self.cluster.delete_topic(topic)

    # -- at rest

    @property
    def judged(self) -> list[SimGroupMember]:
        """Live members, but for those that a coordinator took for their own predecessors."""
        return [member for member in self.live if not self._misfenced(member)]

    def at_rest(self) -> list[Violation]:
        """Check owners and fetchers. Call it when all members have had time to settle."""
        now = self.kernel.now
        live = self.judged
        found = [
            Violation("stable_at_rest", now, f"{m.name}: {m.machine.state.name} {m.failed}")
            for m in live
            if m.machine.state is not State.STABLE
            or m.machine.generation != self._generation_of(m)
            or not m.cluster.group.seats.get(m.machine.member_id)
        ]
        found += [
            Violation("commits_answered", now, f"{member.name}: {count} unanswered")
            for member in live
            if (count := member.unanswered(ANSWER_S))
        ]
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

    def _wanted(self, member: SimGroupMember) -> dict[str, int]:
        """Topic to number of streams."""
        return expand("", member.spec.subscription, tuple(self.topics), True)

    def _generation_of(self, member: SimGroupMember) -> int:
        """The one that the member is in, as the coordinator knows it."""
        if isinstance(self.group, EitherGroup):
            return self.group.generation_of(member.machine.member_id)
        if isinstance(self.group, GroupCoordinator):
            return self.group.generation
        seat = self.group.seats.get(member.machine.member_id)
        return -1 if seat is None else seat.epoch

    def _misfenced(self, member: SimGroupMember) -> bool:
        """Whether it ended because a coordinator took it for its own predecessor."""
        failed = member.machine.state is State.FAILED
        return failed and member.spec.instance_id in self.group.misfenced


WorldT = TypeVar("WorldT", bound=World)


class _Seen:
    """Records the states of the members."""

    def __init__(self, world: World) -> None:
        self._world = world

    def event(self, *_: object) -> None:
        """Look."""
        self._world.states.update(member.machine.state for member in self._world.members)

    def command(self, *_: object) -> None:
        """Does nothing."""

    def request(self, *_: object) -> None:
        """Does nothing."""


def run(
    seed: int,
    *,
    strategies: Sequence[Strategy] = STRATEGIES,
    record: bool = False,
    events: int = EVENTS,
    consumer: bool = False,
) -> Result[World]:
    """One group with ``events`` faults and lost and late answers, then rest.

    A pure function of its arguments. One of ``strategies`` is drawn. ``consumer``: by KIP-848.
    """
    world = World(seed, strategies, record, consumer)
    return play(world, "consumer" if consumer else "coordinator", seed, events)


def play(world: WorldT, name: str, seed: int, events: int) -> Result[WorldT]:
    """Trouble the group of ``world``, let it rest, and judge it."""
    kernel, rng = world.kernel, world.rng
    for topic in rng.sample(["t0", "t1", "t2", "u0"], rng.choice([2, 3, 4])):
        world.set_topic(topic, rng.randint(1, 5))
    for _ in range(rng.randint(2, 3)):
        kernel.schedule(3 * rng.random(), world.join)
    troubled = max(TROUBLED, events * INTERVAL)
    for _ in range(events):
        kernel.schedule(troubled * rng.random(), world.strike)
    kernel.run(until=troubled)
    world.brokers.loss = world.brokers.delay = 0.0
    world.cluster.calm_down()
    patience = 5.0 + world.session + world.rebalance + world.reread + SETTLE
    kernel.run(until=max(troubled, world.quiet_from, hurry(world.members)) + patience)
    violations = world.at_rest()
    violations += deliver_all(kernel, lambda: world.judged)
    violations += uncommitted(kernel, lambda: world.judged)
    return Result(
        name,
        seed,
        events,
        False,
        world.observer.violations + violations,
        world.counts,
        world.observer.deliveries,
        world.history,
        world,
    )


__all__ = ["STRATEGIES", "World", "play", "run"]
