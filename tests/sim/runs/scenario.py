"""One run of a simulated group: its servers, its members, its faults, and how it is judged.

A kind of group is a subclass of ``Scenario``; ``tests.sim.runs.run`` plays each in the same way.
Everything runs inside kernel events.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final, Generic, TypeVar

from tests.sim.runs.cluster import SimCluster
from tests.sim.runs.judged import ANSWER_S, Judged, JudgedInZooKeeper
from tests.sim.runs.whole import deliver_all, hurry, uncommitted
from tests.sim.runs.world import World
from zkconsumer.core.common.types import Subscription
from zkconsumer.core.groups.assignors.strategies import Strategy
from zkconsumer.core.groups.spec import ClassicSpec
from zkconsumer.sim.judges.invariants import Observer, Violation
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.members.group_member import Brokers
from zkconsumer.sim.members.host import Habits
from zkconsumer.sim.runs.world import GROUP
from zkconsumer.sim.servers.zk import Backup, FakeZk, SessionState

MemberT = TypeVar("MemberT", bound=Judged[Any])
ZkMemberT = TypeVar("ZkMemberT", bound=JudgedInZooKeeper[Any])

_BACKUPS: Final = 300
"""How many transactions the servers may lose."""

Faults = Sequence[tuple[int, str, Callable[[], object]]]
"""The table of faults of a kind of group: weight, name and action of each."""


class Scenario(Generic[MemberT]):
    """A group, and all that is drawn for it from ``seed``.

    A kind of group sets ``faults``, ``session`` (the timeout of members, seconds), ``patience`` and
    ``stalls``.
    """

    troubled: ClassVar[float]
    """For how long faults are injected at least (seconds)."""
    interval: ClassVar[float]
    """Seconds for each fault, where there are many."""
    peace: ClassVar[float] = 0.0
    """Seconds before the first fault."""
    faults: Faults
    session: float
    patience: float
    """Seconds without faults until the group must be at rest."""
    stalls: Sequence[float]
    """How long an application may work on one message."""
    cluster: SimCluster
    observer: Observer
    members: list[MemberT]

    def __init__(self, seed: int, record: bool) -> None:
        self.kernel = Kernel(seed)
        self.rng = random.Random(seed)
        self.history: list[str] | None = [] if record else None
        self.counts: dict[str, int] = {}
        """How often each fault has happened."""
        self.quiet_from = 0.0
        """When the last fault is over."""

    # -- a run

    def play(self, events: int) -> list[Violation]:
        """Inject ``events`` faults, end all faults, and judge the group when it is at rest."""
        kernel, begin = self.kernel, self.peace
        self.begin()
        troubled = max(self.troubled, events * self.interval)
        for _ in range(events):
            kernel.schedule(begin + (troubled - begin) * self.rng.random(), self.strike)
        kernel.run(until=troubled)
        rest = max(troubled, self.quiet_from, self.calm_down())
        kernel.run(until=rest + self.patience)
        violations = self.at_rest()
        violations += deliver_all(kernel, lambda: self.judged)
        violations += uncommitted(kernel, lambda: self.judged)
        seen = [violation for each in self.observers for violation in each.violations]
        return seen + violations

    def begin(self) -> None:
        """Create topics, and schedule the start of the first members."""
        raise NotImplementedError

    def calm_down(self) -> float:
        """End all faults; return when the last application has finished its message."""
        self.cluster.calm_down()
        return hurry(self.members)

    def at_rest(self) -> list[Violation]:
        """Judge the group. All members have had time to settle."""
        raise NotImplementedError

    @property
    def deliveries(self) -> int:
        """How many records applications were given."""
        return sum(each.deliveries for each in self.observers)

    @property
    def live(self) -> list[MemberT]:
        """Members that run, and that faults happen to."""
        return [member for member in self.members if member.alive]

    @property
    def everyone(self) -> list[Any]:
        """All running members, whatever their kind."""
        return self.live

    @property
    def judged(self) -> list[Any]:
        """Running members that must be in order when the group is at rest."""
        return self.everyone

    @property
    def observers(self) -> tuple[Observer, ...]:
        """Those that saw what was delivered and committed."""
        return (self.observer,)

    def unanswered(self) -> list[Violation]:
        """Commits that were not answered in time."""
        return [
            Violation("commits_answered", self.kernel.now, f"{member.name}: {count} unanswered")
            for member in self.judged
            if (count := member.unanswered(ANSWER_S))
        ]

    def say(self, text: str) -> None:
        """Note a line for the history."""
        if self.history is not None:
            self.history.append(f"{self.kernel.now_us} {text}")

    @property
    def note(self) -> Callable[[str], object] | None:
        """Takes the lines of members for the history."""
        return None if self.history is None else self.history.append

    # -- what is drawn

    def habits(self, listener: Sequence[float], listener_commits: bool = True) -> Habits:
        """How members and their applications behave. ``listener``: how long it works at most."""
        rng = self.rng
        return Habits(
            burst=40,
            stop=(0.0, rng.choice([0.01, 0.1])),
            release_wait=rng.choice([0.5, 2.0]),
            listener=(0.0, rng.choice(listener)),
            listener_error=rng.choice([0.0, 0.0, 0.1]),
            listener_commits=listener_commits and rng.random() < 0.3,
            commits=rng.choice([0.0, 0.1]),
        )

    def _any(self) -> MemberT | None:
        live = self.live
        return self.rng.choice(live) if live else None

    def _anyone(self) -> Judged[Any] | None:
        everyone = self.everyone
        return self.rng.choice(everyone) if everyone else None

    # -- faults

    def strike(self) -> None:
        """One fault, drawn at random."""
        weights = [weight for weight, _, _ in self.faults]
        _, name, action = self.rng.choices(self.faults, weights)[0]
        self.counts[name] = self.counts.get(name, 0) + 1
        self.lasts(0)
        self.say(f"trouble: {name}")
        action()

    def lasts(self, seconds: float) -> None:
        """The current fault ends after ``seconds``."""
        self.quiet_from = max(self.quiet_from, self.kernel.now + seconds)

    def _end_one(self, how: Callable[[MemberT], object]) -> None:
        member = self._any()
        if member is not None and len(self.live) > 1:
            how(member)

    def leave(self) -> None:
        """A member leaves in order."""
        self._end_one(lambda member: member.close())

    def crash(self) -> None:
        """A member's process dies."""
        self._end_one(lambda member: member.crash())

    def fault(self) -> None:
        """A fault in a member's own code: it leaves, and its program ends."""
        self._end_one(lambda member: member.fail())

    def pause(self) -> None:
        """A process is suspended for a while."""
        member = self._anyone()
        if member is not None:
            seconds = self.session * self.rng.choice([0.2, 0.9, 1.5, 2.5])
            member.pause(seconds)
            self.lasts(seconds)

    def stall(self) -> None:
        """An application works on one message for a long time."""
        member = self._anyone()
        if member is not None:
            seconds = self.rng.choice(self.stalls)
            member.stall(seconds)
            self.lasts(seconds)

    def commit(self) -> None:
        """An application commits its consumed messages."""
        member = self._anyone()
        if member is not None and not member.paused:
            member.commit()

    @property
    def topics(self) -> Mapping[str, int]:
        """Number of partitions of each topic that exists."""
        return self.cluster.topics

    def set_topic(self, topic: str, partitions: int) -> None:
        """Create a topic, or give it more partitions."""
        raise NotImplementedError

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


class ZooKeeperScenario(Scenario[ZkMemberT]):
    """Members with a session in ``zk``, and the faults of sessions."""

    world: World
    zk: FakeZk

    def restores(self, weight: int) -> Faults:
        """The servers lose their last transactions, or start with a backup. From now on, what they
        have after each of the last transactions is kept."""
        backups: deque[Backup] = deque(maxlen=_BACKUPS)
        if weight:
            self.zk.on_commit(lambda *_: backups.append(self.zk.backup()))
        return [
            (weight, "tail lost", partial(self.restore, backups, 5)),
            (weight, "backup restored", partial(self.restore, backups, _BACKUPS)),
        ]

    def restore(self, backups: Sequence[Backup], last: int) -> None:
        """All servers stop, and start again as they were after one of the ``last`` transactions.

        They are down for longer than the leases of members last.
        """
        seconds = self.session * self.rng.choice([0.75, 1.5])
        backup = self.rng.choice(list(backups)[-last:])
        self.world.restore(backup, seconds, elected=self.rng.random() < 0.5)
        self.lasts(seconds + 4 * self.session)

    def expire(self) -> None:
        """A session ends at the server, which cuts the connection.

        Never of a member that is cut off already: the server does that only after the timeout,
        and the lease relies on it.
        """
        member = self._any()
        if member is not None and member.client.state is SessionState.CONNECTED:
            member.client.expire()

    def disconnect(self) -> None:
        """A connection to ZooKeeper breaks, with requests and answers in flight.

        Not while a client has not learnt yet that its session was ended early (``expire``).
        """
        member = self._any()
        if member is not None and self.zk.session_alive(member.client.session_id):
            seconds = self.rng.choice([0.01, 0.3, self.session * 0.8, self.session * 1.5])
            member.client.disconnect(seconds)
            self.lasts(seconds)


class CoordinatorScenario(Scenario[MemberT]):
    """A group whose coordinator is one of ``brokers``, and the faults of coordinators."""

    brokers: Brokers
    group_session: float
    """The timeout of members at the coordinator (seconds)."""
    rebalance: float
    reread: float

    def connect(self, group: Any) -> Brokers:
        """Return the connections of members to the brokers; some answers are lost or late."""
        brokers = Brokers(self.kernel, group, 0.0005)
        brokers.loss = self.rng.choice([0.0, 0.02, 0.05])
        brokers.delay = self.rng.choice([0.0, 0.02, 0.05])
        return brokers

    def classic_spec(
        self,
        name: str,
        subscription: Subscription,
        strategies: tuple[Strategy, ...],
        auto_commit: bool,
        instance: str | None = None,
        **changes: Any,
    ) -> ClassicSpec:
        """The configuration of a member of the classic protocol."""
        return ClassicSpec(
            group=GROUP,
            consumer_id=name,
            instance_id=instance,
            subscription=subscription,
            exclude_internal=True,
            strategies=strategies,
            auto_commit=auto_commit,
            session_timeout=self.group_session,
            rebalance_timeout=self.rebalance,
            heartbeat_interval=min(3.0, self.group_session / 3),
            reread=self.reread,
            **changes,
        )

    def calm_down(self) -> float:
        """See ``Scenario``."""
        self.brokers.loss = self.brokers.delay = 0.0
        return super().calm_down()

    def kill_coordinator(self) -> None:
        """The coordinator's broker dies; the other one takes over."""
        seconds = self.rng.choice([0.5, 4.0])
        self.cluster.stop_broker(self.brokers.home, seconds)
        self.brokers.fail_over(seconds, self.rng.choice([0.05, 2.0]))
        self.lasts(seconds + 2.0)

    def move_coordinator(self) -> None:
        """Another broker becomes coordinator; the previous one keeps running."""
        self.brokers.fail_over(0.1, self.rng.choice([0.05, 2.0]), dies=False)
        self.lasts(2.1)

    def cut(self) -> None:
        """Connections to brokers break, with requests and answers in flight."""
        member: Any = self._any()
        if member is not None:
            seconds = self.rng.choice(self.cuts)
            member.cut(seconds)
            self.lasts(seconds)

    @property
    def cuts(self) -> Sequence[float]:
        """How long connections to brokers may be broken (seconds)."""
        return [0.01, 0.3, self.group_session * 0.8, self.group_session * 1.5]


__all__ = ["CoordinatorScenario", "Faults", "Scenario", "ZooKeeperScenario"]
