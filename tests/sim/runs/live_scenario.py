"""Groups that move between ZooKeeper and a coordinator, and what can happen to them.

Operators move the group of migratable members there and back. Then a last operator finishes the
move, and the group is judged at rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from zkmigrate.stores import migration_marker

from tests.sim.runs.cluster import SimCluster
from tests.sim.runs.judged import Judged, WholeGroupMember
from tests.sim.runs.live_judge import PLAIN, LiveJudge
from tests.sim.runs.live_member import SimLiveMember
from tests.sim.runs.live_operator import COMMANDS, SimOperator
from tests.sim.runs.scenario import CoordinatorScenario, ZooKeeperScenario
from tests.sim.runs.whole import hurry
from tests.sim.runs.world import World
from tests.sim.runs.zk_member import WholeMember
from zkconsumer.admin.ids_lock import CREATE, LIVE
from zkconsumer.core.common.types import Pattern, Subscription, TopicPartition
from zkconsumer.core.groups.assignors.sticky import StickyStrategy
from zkconsumer.core.groups.assignors.strategies import RangeStrategy, RoundRobinStrategy, Strategy
from zkconsumer.core.groups.spec import ClassicSpec
from zkconsumer.core.migration.modes import Mode
from zkconsumer.core.migration.strategy import OwnStrategy
from zkconsumer.core.migration.znodes import LivePaths, decode_member, decode_mode
from zkconsumer.core.zookeeper.ops import Create, Delete
from zkconsumer.core.zookeeper.view import Assignor, MemberSpec
from zkconsumer.core.zookeeper.znodes import encode_offset
from zkconsumer.sim.judges.invariants import Observer, Violation
from zkconsumer.sim.runs.world import GROUP
from zkconsumer.sim.servers.classic import GroupCoordinator

#: What members may need in peace, besides their timeouts, until each has its share (seconds).
SETTLE: Final = 10.0
#: For how long operators try to finish the move in peace (seconds).
FINISH: Final = 120.0
_FORTH: Final = ("lock", "to-kafka", "finalize")
_WAYS: Final[dict[Mode, tuple[str, ...]]] = {
    Mode.ZOOKEEPER: ("to-zookeeper", "unlock"),
    Mode.LOCKED: ("to-zookeeper", "lock"),
    Mode.KAFKA: ("to-zookeeper", *_FORTH[:2]),
    Mode.OPEN: _FORTH,
}
"""The commands that take a prepared group from any mode to this one."""
_OFFERS: Final[tuple[tuple[Strategy, ...], ...]] = (
    (RangeStrategy(),),
    (RoundRobinStrategy(),),
    (StickyStrategy(True),),
    (StickyStrategy(True),),
    (StickyStrategy(False), RangeStrategy()),
)


@dataclass(slots=True)
class _Members(Observer):
    """The observer of members whose lock is the owner znode, or the coordinator's assignment."""

    look: Callable[[TopicPartition], object] = lambda tp: None
    """Called after each record that an application was given."""

    def delivered(self, at: float, tp: TopicPartition, session: int, first: int, last: int) -> None:
        """See ``Observer``."""
        Observer.delivered(self, at, tp, session, first, last)
        self.look(tp)


class LiveGroup(ZooKeeperScenario[SimLiveMember], CoordinatorScenario[SimLiveMember]):
    """Migratable members, and operators that move their group. Meanwhile members of the older
    protocol and plain Kafka consumers join and leave. ``restores``: at times ZooKeeper loses its
    last transactions, or starts with a backup."""

    troubled = 25.0
    interval = 0.5
    peace = 4.0

    def __init__(self, seed: int, record: bool, restores: bool = False) -> None:
        super().__init__(seed, record)
        rng = self.rng
        self.cluster = SimCluster(self.kernel, rng, 2, old=False)
        followers = rng.choice([0, 0, 2])
        self.world = World.make(
            self.kernel,
            followers=followers,
            max_lag=rng.choice([0.05, 0.5]) if followers else 0.0,
            rearm_watches=rng.random() < 0.5,
            cluster=self.cluster,
            history=self.history,
        )
        self.zk = self.world.zk
        records = self.cluster.records
        self.observer = _Members(records=records, look=self._look)
        """Of the owner znodes, and of offsets in ZooKeeper."""
        self.world.observer = self.observer
        self.group_observer = _Members(records=records, look=self._look)
        """Of the coordinator's assignment, and of offsets in Kafka."""
        self.judge = LiveJudge(self.kernel, self.group_observer, self.began_lower, self.say)
        self.group = GroupCoordinator(
            self.kernel,
            lambda: self.topics,
            1.0,
            self.judge,
            lenient=True,
            brokers=lambda: self.cluster.endpoints,
        )
        self.brokers = self.connect(self.group)
        self.paths = LivePaths.of(GROUP)
        self.members = []
        self.plain: list[WholeGroupMember] = []
        self.operators: list[SimOperator] = []
        self.modes: set[tuple[Mode | None, bool]] = set()
        """Modes in which a record was delivered; whether members acted on several at that time."""
        self._late: set[tuple[TopicPartition, int]] = set()
        self.session = rng.choice([4.0, 6.0])
        self.group_session = rng.choice([6.0, 10.0])
        self.rebalance = rng.choice([8.0, 20.0])
        self.reread = rng.choice([4.0, 8.0])
        self.assignor = Assignor(rng.choice(["range", "roundrobin"]))
        self.offered = rng.choice(_OFFERS)
        self.auto_commit = rng.random() < 0.85
        self.usual = self.habits((0.01, 0.3), listener_commits=False)
        self.patience = self.session
        self.stalls = (0.5, 3.0, self.rebalance * 1.2)
        self.joined = 0
        self.others = rng.random() < 0.7
        """Whether members that are not migratable join and leave."""
        self.faults = [
            (5, "join", self.join),
            (3, "leave", self.leave),
            (3, "crash", self.crash),
            (4, "expire", self.expire),
            (5, "disconnect", self.disconnect),
            (4, "pause", self.pause),
            (5, "cut", self.cut),
            (3, "slow application", self.stall),
            (3, "commit asked for", self.commit),
            (1, "fault inside", self.fault),
            (14, "operator", self.operate),
            (4, "operator killed", self.kill_operator),
            (4, "operator stalls", self.stall_operator),
            (3, "operator cut", self.cut_operator),
            (4 * self.others, "legacy joins", self.join_legacy),
            (6 * self.others, "legacy leaves", self.leave_legacy),
            (8 * self.others, "plain joins", self.join_plain),
            (6 * self.others, "plain leaves", self.leave_plain),
            (1, "coordinator dies", self.kill_coordinator),
            (1, "coordinator moves", self.move_coordinator),
            (2, "add partitions", self.add_partitions),
            *self.restores(5 * restores),
            # Positions that are reset have scenarios of their own: no log is cut here.
            *(
                fault
                for fault in self.cluster.troubles()
                if fault[1] not in ("unclean election", "retention")
            ),
        ]

    # -- a run

    def begin(self) -> None:
        """See ``Scenario``."""
        rng = self.rng
        for topic in ("t0", "t1"):
            self.set_topic(topic, rng.randint(1, 4))
        for _ in range(rng.randint(2, 3)):
            self.kernel.schedule(2 * rng.random(), self.join)
        if self.others and rng.random() < 0.5:
            self.kernel.schedule(rng.random(), self.join_legacy)

    def calm_down(self) -> float:
        """See ``Scenario``."""
        super().calm_down()
        return hurry(self.everyone)

    @property
    def cuts(self) -> Sequence[float]:
        """See ``CoordinatorScenario``."""
        return [self.group_session * part for part in (0.001, 0.05, 0.8, 1.5)]

    @property
    def observers(self) -> tuple[Observer, ...]:
        """See ``Scenario``."""
        return self.observer, self.group_observer

    # -- who is there

    @property
    def legacy(self) -> list[WholeMember]:
        """Members in ZooKeeper alone that run."""
        return self.world.live

    @property
    def everyone(self) -> list[Judged[Any]]:
        """All members that run."""
        begun = [one for one in self.plain if one.alive and one in self.brokers.members]
        return [*self.live, *self.legacy, *begun]

    @property
    def mode(self) -> Mode:
        """The group's mode, as committed."""
        node = self.zk.get(self.paths.mode)
        return Mode.ZOOKEEPER if node is None else decode_mode(self.paths.mode, node.data)

    @property
    def completed(self) -> bool:
        """Whether the move is recorded as finished, as committed."""
        return self.zk.get(migration_marker.path(GROUP)) is not None

    @property
    def locked(self) -> bool:
        """Whether legacy consumers are kept from registering, as committed."""
        acl = self.zk.acl(self.paths.group.ids)
        return acl is not None and not any(
            entry.perms & CREATE and entry != LIVE for entry in acl.entries
        )

    # -- judging

    def broken(self, rule: str, text: str) -> None:
        """Report that ``rule`` is broken. ``text`` describes how."""
        self.observer.violations.append(Violation(rule, self.kernel.now, text))

    def delivering(self, tp: TopicPartition) -> list[Judged[Any]]:
        """Members whose application would get the next record of a partition now."""
        return [
            member
            for member in self.everyone
            if not member.paused and tp in member.fetching and member.gate.is_open
        ]

    def _look(self, tp: TopicPartition) -> None:
        """A record of ``tp`` was delivered."""
        self._check_lock()
        found = self.delivering(tp)
        if len(found) > 1 and not self._is_late(tp, found):
            names = ", ".join(f"{one.name} in {self._in(one)}" for one in found)
            self.broken("single_delivery", f"{tp}: {names}; the mode is {self.mode.value}")
        several = len({member.mode for member in self.live}) > 1
        for member in found:
            if isinstance(member, SimLiveMember):
                self.modes.add((member.mode, several))
                self._check_locks(member, tp)

    def _check_lock(self) -> None:
        if not self.locked and (self.completed or self.mode in (Mode.KAFKA, Mode.OPEN)):
            self.broken("legacy_kept_out", f"the ids are not locked in mode {self.mode.value}")
        acl = self.zk.acl(self.paths.group.ids)
        if self.completed and (acl is None or LIVE in acl.entries):
            self.broken("legacy_kept_out", "migratable members may register after a finished move")

    def _is_late(self, tp: TopicPartition, found: list[Judged[Any]]) -> bool:
        """Whether one of two members has just lost its session and does not know it yet.

        It may deliver the one record that is under way, for each partition once.
        """
        gone = {
            (tp, one.session)
            for one in found
            if isinstance(one, WholeMember | SimLiveMember)
            and not self.zk.session_alive(one.session)
        }
        late = len(found) - len(gone) <= 1 and not gone & self._late
        self._late |= gone
        return late

    def _in(self, member: Judged[Any]) -> str:
        if isinstance(member, SimLiveMember):
            return member.mode.value if member.mode else "no mode"
        return "ZooKeeper" if isinstance(member, WholeMember) else "Kafka"

    def _check_locks(self, member: SimLiveMember, tp: TopicPartition) -> None:
        mode, group = member.mode, member.machine.group
        if mode is None:
            self.broken("both_locks", f"{tp}: {member.name} knows no mode")
        if mode in (None, Mode.ZOOKEEPER):
            return
        away = self.brokers.down or self.group.loading
        if group.generation < 0 or not (away or group.member_id in self.group.seats):
            self.broken("both_locks", f"{tp}: {member.name} is no member on the coordinator")
        elif mode is not Mode.LOCKED and tp not in member.given | member.machine.live.giving_up:
            text = f"{tp}: {member.name} in {self._in(member)} was assigned {sorted(member.given)}"
            self.broken("both_locks", text)

    def began_lower(self, tp: TopicPartition, name: str) -> bool:
        """Whether a member claimed a partition while it acted on mode ``zookeeper``, in which an
        offset in Kafka does not count."""
        return any(name.startswith(f"{one.name}-") and tp in one.lower for one in self.members)

    # -- troubles

    def subscription(self) -> Subscription:
        """All topics, with one or two streams each."""
        streams = self.rng.choice([1, 1, 2])
        if self.rng.random() < 0.3:
            return Subscription(Pattern.WHITE_LIST, {"t.*": streams})
        return Subscription(Pattern.STATIC, dict.fromkeys(("t0", "t1"), streams))

    def _spec(self, name: str) -> MemberSpec:
        return MemberSpec(
            paths=self.paths.group,
            consumer_id=name,
            subscription=self.subscription(),
            assignor=self.assignor,
            auto_commit=self.auto_commit,
            backoff=self.rng.choice([0.5, 2.0]),
            reread=self.reread,
            session_timeout=self.session,
        )

    def _classic(
        self, name: str, subscription: Subscription, strategies: tuple[Strategy, ...]
    ) -> ClassicSpec:
        backoff = self.rng.choice([0.1, 0.5])
        return self.classic_spec(name, subscription, strategies, self.auto_commit, backoff=backoff)

    def join(self) -> None:
        """A migratable member starts."""
        if len(self.live) >= 4 or self.completed:
            return
        self.joined += 1
        spec = self._spec(f"{GROUP}_m{self.joined}")
        own = OwnStrategy(self.assignor.name, self.assignor.hash_form)
        member = SimLiveMember(
            self.zk,
            self.brokers,
            spec,
            self._classic(spec.consumer_id, spec.subscription, (own,)),
            self.offered,
            self.cluster,
            self.observer,
            self.usual,
            self.note,
        )
        member.in_kafka = self.group.offsets.get
        self.members.append(member)
        member.start()

    def join_legacy(self) -> None:
        """A member starts that does not support modes."""
        if len(self.legacy) < 2:
            self.joined += 1
            self.world.add_member(self._spec(f"{GROUP}_old{self.joined}"), self.usual)

    def leave_legacy(self) -> None:
        """One of these stops."""
        if self.legacy:
            self.rng.choice(self.legacy).close()

    def join_plain(self) -> None:
        """An operator starts a plain Kafka consumer, as is allowed in mode ``open``. It may join
        much later: migratable members keep it out then, if there are any."""
        plain = [one for one in self.plain if one.alive]
        if len(plain) > 1 or not (self.mode is Mode.OPEN or self.completed):
            return
        self.joined += 1
        name, subscription = f"{PLAIN}{self.joined}", self.subscription()
        spec = self._classic(name, subscription, self.offered)
        member = WholeGroupMember(
            self.brokers, spec, self.cluster, self.group_observer, self.usual, self.note
        )
        member.identify = self.judge.session
        member.home = self.rng.choice([0, 1])
        self.plain.append(member)
        self.kernel.schedule(
            self.rng.choice([0.0, 3.0]) * self.rng.random(), lambda: self._begin(member)
        )

    def leave_plain(self) -> None:
        """One of these stops."""
        plain = [one for one in self.plain if one.alive]
        if plain:
            self._stop(self.rng.choice(plain))

    def _stop(self, plain: WholeGroupMember) -> None:
        """Stop a plain consumer; one that has not begun yet does not begin."""
        if plain in self.brokers.members:
            plain.close()
        else:
            plain.host.alive = False

    def _begin(self, plain: WholeGroupMember) -> None:
        if plain.alive and (self.mode is Mode.OPEN or self.completed or self.group.seats):
            plain.start()
        else:
            plain.host.alive = False

    def operate(self) -> None:
        """An operator runs commands, perhaps at the same time as another one."""
        if len([one for one in self.operators if one.alive]) < 2:
            some = [(name,) for name in COMMANDS]
            last = 3 * [("complete",)] * (self.mode is Mode.OPEN)
            commands = self.rng.choice([*some, *last, *8 * tuple(_WAYS.values())])
            self.operator(commands, self.rng.choice([2.0, 10.0, 30.0]))

    def operator(self, commands: Sequence[str], wait: float) -> SimOperator:
        """Start commands, which may die before any of their requests. The operator stops the
        members that they do not allow, and starts a plain one in mode ``open``, but not at once."""
        dies = self.rng.randrange(200) if self.rng.random() < 0.2 else None
        number = len(self.operators)
        self.say(f"operator {number}: {' '.join(commands)}")
        onward = {*commands} & {*_FORTH, "complete"}
        stops: list[Callable[[], object]] = []
        if onward:
            stops += [legacy.close for legacy in self.legacy]
        if not onward & {"finalize", "complete"}:
            stops += [partial(self._stop, plain) for plain in self.plain]
        if "complete" in commands and self.mode is Mode.OPEN:
            stops += [member.close for member in self.live]
        for stop in stops:
            self.kernel.schedule(3 * self.rng.random(), stop)
        if "finalize" in commands and self.others:
            self.kernel.schedule(1.0 + 4.0 * self.rng.random(), self.join_plain)
        say = partial(self._operator_says, number)
        operator = SimOperator(self.zk, self.brokers, commands, wait, say, dies)
        self.operators.append(operator)
        return operator

    def _operator_says(self, number: int, text: str) -> None:
        self.say(f"operator {number}: {text}")

    def _operator(self) -> SimOperator | None:
        running = [one for one in self.operators if one.alive]
        return self.rng.choice(running) if running else None

    def kill_operator(self) -> None:
        """The tool dies."""
        operator = self._operator()
        if operator is not None:
            operator.crash()

    def stall_operator(self) -> None:
        """The tool is suspended for a while."""
        operator = self._operator()
        if operator is not None:
            operator.stall(self.rng.choice([0.3, 3.0, 9.0]))

    def cut_operator(self) -> None:
        """The tool's connection breaks."""
        operator = self._operator()
        if operator is not None:
            operator.cut(self.rng.choice([0.01, 1.0]))

    def add_partitions(self) -> None:
        """A topic gets more partitions."""
        topic = self.rng.choice(["t0", "t1"])
        self.set_topic(topic, min(6, self.topics[topic] + 1))

    def set_topic(self, topic: str, partitions: int) -> None:
        """See ``Scenario``."""
        self.world.set_topic(topic, partitions)

    # -- the end

    def finish(self) -> Mode:
        """Have operators take the group to one mode, in peace; return which. Or have them complete
        the move, after which the mode is ``zookeeper`` again."""
        goals = [Mode.ZOOKEEPER, Mode.OPEN, Mode.OPEN, Mode.LOCKED, Mode.KAFKA, None]
        goal = self.rng.choice(goals)
        for operator in self.operators:
            if operator.alive:
                operator.crash()
        if self.observer.restores and self.mode is Mode.ZOOKEEPER and not self.completed:
            self._reset()
        if not self.live:
            self.join()  # without members nobody carries offsets over
        if not self.completed:
            self._go(_WAYS[goal or Mode.OPEN])
            if goal is not None:
                return goal
            self.join_plain()
            self._go(("complete",))
        for name in self.rng.sample(sorted(COMMANDS), 3):  # of operators that do not know yet
            self.operator((name,), 2.0)
            self.kernel.run(until=self.kernel.now + 2.0)
        for member in self.everyone:
            if member not in self.plain:
                member.close()  # it can no longer register
        for plain in self.plain:
            if plain.failed:  # it came before the members let it in
                self._stop(plain)
        self.join_plain()
        return Mode.ZOOKEEPER

    def _reset(self) -> None:
        """Set offsets that are higher in Kafka than in ZooKeeper, which has lost transactions, in
        both stores, as ``ahead_in_kafka`` says."""
        paths, kafka, zk = self.paths.group, self.group.offsets, self.observer.committed
        if all(offset <= zk.get(tp, -1) for tp, offset in kafka.items()):
            return
        for member in self.everyone:
            member.close()
        self.kernel.run(until=self.kernel.now + self.session + self.group_session + self.rebalance)
        for tp, offset in sorted(kafka.items()):
            before = zk.get(tp)
            if offset > (-1 if before is None else before):
                for path in (paths.offsets, paths.offsets_topic(tp.topic)):
                    self.world.do(Create(path))
                self.world.do(Delete(paths.offset(tp)))
                self.world.do(Create(paths.offset(tp), encode_offset(offset)))
                self.observer.offset_changed(self.kernel.now, tp, before, offset, 0)

    def _go(self, commands: Sequence[str]) -> None:
        """Have operators run commands until all of them succeed."""
        if self.zk.get(self.paths.mode) is None:
            commands = ("prepare", *commands)
        until = self.kernel.now + FINISH
        last = self.operator(commands, 30.0)
        while not last.reached and self.kernel.now < until:
            if not last.alive:
                if "plain members" in last.why:
                    for plain in self.plain:
                        self._stop(plain)
                last = self.operator(commands, 30.0)
            for member in self.live:
                if not self.auto_commit:  # else an offset in one store alone stays there
                    member.commit()
            self.kernel.run(until=self.kernel.now + 1.0)
        if not last.reached:
            why = [one.why for one in self.operators if one.why][-1:]
            self.broken("move_resumes", f"from {self.mode.value}, {' '.join(commands)}: {why}")

    def at_rest(self) -> list[Violation]:
        """See ``Scenario``. A last operator finishes the move before."""
        goal = self.finish()
        patience = 5.0 + self.session + self.group_session + self.reread + self.rebalance + SETTLE
        self.kernel.run(until=self.kernel.now + patience)
        self._check_lock()
        now, found = self.kernel.now, list[Violation]()
        mode = self.zk.get(self.paths.mode)
        if self.mode is not goal:
            found.append(Violation("move_resumes", now, f"the mode is {self.mode.value}"))
        for member in self.live:
            path = self.paths.member(member.name)
            node = self.zk.get(path)
            if node is None or node.stat.ephemeral_owner != member.session:
                found.append(Violation("registered_at_rest", now, f"{member.name}"))
            elif mode is not None and decode_member(path, node.data) != mode.stat.version:
                text = (
                    f"{member.name} acts on {self._in(member)}, has not acknowledged {goal.value}"
                )
                found.append(Violation("move_resumes", now, text))
        if self.everyone:
            for tp in sorted(self.cluster.partitions):
                names = [one.name for one in self.delivering(tp)]
                if len(names) != 1:
                    text = f"{tp}: delivered by {names}, owner {self.observer.owners.get(tp)}"
                    found.append(Violation("no_orphan_at_rest", now, text))
        return [*found, *self.unanswered()]


__all__ = ["LiveGroup"]
