"""A whole group under random faults, from one seed: its environment, the faults, and the verdict.

``run(seed)`` builds a group, injects faults, lets it come to rest and returns the violated
invariants. The result is a pure function of the seed. Single-threaded, in virtual time.
"""

from __future__ import annotations

import random
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial

from tests.sim.runs.at_rest import no_lost_trigger, no_member_without_share, no_orphan
from tests.sim.runs.cluster import SimCluster
from tests.sim.runs.offset_store import SimOffsets
from tests.sim.runs.result import EVENTS, Result
from tests.sim.runs.troubles import ZooKeeperTroubles
from tests.sim.runs.whole import deliver_all, hurry, uncommitted
from tests.sim.runs.zk_member import WholeMember, run_now
from zkconsumer.core.common.assign import RoundRobinHash
from zkconsumer.core.common.commands import AnswerStart, Outcome
from zkconsumer.core.common.types import Pattern, Subscription, TopicPartition
from zkconsumer.core.zookeeper import commands, events
from zkconsumer.core.zookeeper.ops import Create, Delete, SetData
from zkconsumer.core.zookeeper.scripts.common import ScriptContext
from zkconsumer.core.zookeeper.view import Assignor, GroupView, MemberSpec, decide
from zkconsumer.core.zookeeper.znodes import (
    BROKER_IDS,
    topic_path,
)
from zkconsumer.sim.judges.invariants import MemberAtRest, Observer, Violation
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.members.host import Habits
from zkconsumer.sim.members.process import ANSWER_S
from zkconsumer.sim.runs import world as sim_world
from zkconsumer.sim.runs.world import GROUP, NEVER
from zkconsumer.sim.servers.zk import FakeZk

#: What the owner of a settled group may need beyond the session timeout (seconds).
SETTLE = 5.0
#: How long a group is troubled at least (seconds).
TROUBLED = 25.0
#: Seconds for each trouble, where there are many.
INTERVAL = 0.3
#: Registrations that nobody should write: each is left out by all members alike, or harmless.
HOSTILE = (
    b"",
    b"\xff\xfe{}",
    b"[" * 100_000,
    b'{"version":1}',
    b'{"subscription":{"t0":999999999},"pattern":"static","version":1,"timestamp":"1"}',
    b'{"subscription":{"t0":-3},"pattern":"static","version":1,"timestamp":"1"}',
    b'{"subscription":{"(":1},"pattern":"white_list","version":1,"timestamp":"1"}',
    b'{"subscription":{"../../x":1},"pattern":"static","version":1,"timestamp":"1"}',
    b'{"subscription":{"t0":1e3},"pattern":"static","version":1,"timestamp":"1"}',
)

JVM_MEMBER = f"{GROUP}_jvm"
JVM_REGISTRATION = b'{"version":1,"subscription":{"t.*":1},"pattern":"white_list","timestamp":"1"}'


@dataclass(slots=True)
class World(sim_world.World):
    """ZooKeeper, brokers with topics and records, and the members of one group."""

    cluster: SimCluster = field(kw_only=True)
    members: list[WholeMember] = field(default_factory=list)
    offsets: SimOffsets | None = None
    """Where offsets are stored if not in ZooKeeper alone."""
    dual: bool = False

    @classmethod
    def make(
        cls,
        kernel: Kernel,
        *,
        followers: int = 0,
        max_lag: float = 0.0,
        rearm_watches: bool = True,
        cluster: SimCluster | None = None,
        storage: str = "zookeeper",
        record: bool = False,
    ) -> World:
        """An ensemble with brokers and no topics; two brokers if there is no ``cluster``."""
        zk = FakeZk(kernel, followers=followers, max_lag=max_lag, rearm_watches=rearm_watches)
        cluster = cluster or SimCluster(kernel, kernel.rng, 2, old=False)
        world = cls(kernel, zk, cluster, Observer(records=cluster.records), cluster=cluster)
        cluster.changed = world.set_broker
        world.dual = storage == "dual"
        if storage != "zookeeper":
            world.offsets = SimOffsets(kernel, world._stored, {})
        world.history = [] if record else None
        world.begin(range(len(cluster.brokers.endpoints)))
        return world

    def add_broker(self, broker: int) -> None:
        """A broker registers."""
        self.set_broker(broker, self.cluster.brokers.endpoints[broker])

    def register_brokers(self) -> None:
        """All brokers that run are registered."""
        for at in self.cluster.endpoints:
            self.set_broker(at.broker_id, at)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic's znode, as the controller does at the end of a deletion."""
        if self.data.delete_topic(topic):
            self.do(Delete(topic_path(topic)))

    def add_member(self, spec: MemberSpec, habits: Habits = Habits()) -> WholeMember:  # noqa: B008
        """Start one more member."""
        note = None if self.history is None else self.history.append
        member = WholeMember(self.zk, spec, self.data, self.observer, habits, note, self.offsets)
        self.members.append(member)
        if spec.bootstrap:
            member.loop.started.add_done_callback(partial(_end_if_refused, member))
        member.start()
        return member

    @property
    def live(self) -> list[WholeMember]:
        """Members that have neither left nor crashed."""
        return [member for member in self.members if member.alive]

    def _stored(
        self, tp: TopicPartition, before: int | None, after: int, by: int, sure: bool
    ) -> None:
        """An offset was stored in Kafka. See ``OnStored``."""
        if self.history is not None:
            self.history.append(f"{self.kernel.now_us} stored {tp} {before} {after} by {by}")
        observer = self.observer
        if not sure:
            text = f"{tp}: {before} -> {after} in Kafka by {by}, sent without a session"
            lowered = before is not None and after < before
            rule = "offsets_never_lowered" if lowered else "commits_in_session"
            observer.note(rule, self.kernel.now, by, text)
        if self.dual:  # ZooKeeper has the same, and refuses what must not be
            observer.in_kafka_too[tp] = after
        else:
            observer.offset_changed(self.kernel.now, tp, before, after, by, fenced=False)

    # -- at rest

    def truth(self, spec: MemberSpec, session: int) -> GroupView:
        """The view that a member with this spec would read now."""
        context = ScriptContext(spec, session, lambda: 0)
        epoch = 0
        for member in self.members:
            if member.spec.consumer_id == spec.consumer_id:
                epoch = member.machine.registered_epoch
        event = run_now(self.zk, commands.LoadView(0, epoch=epoch), context)
        assert isinstance(event, events.ViewLoaded), event
        return event.view

    def at_rest(self) -> list[Violation]:
        """Check owners and fetchers. Call it when all members have had time to settle."""
        now, live = self.kernel.now, self.live
        resting = [member.at_rest() for member in live]
        truth = {m.spec.consumer_id: self.truth(m.spec, m.session) for m in live}
        found = no_lost_trigger(now, truth, resting)
        for member in live:
            node = self.zk.get(self.paths.member(member.spec.consumer_id))
            if not member.spec.scala and (
                node is None or node.stat.ephemeral_owner != member.session
            ):
                text = f"{member.spec.consumer_id} has no registration"
                found.append(Violation("registered_at_rest", now, text))
        if not live or not self.zk.children(BROKER_IDS):
            return found
        owners = self.observer.owners
        should = {
            tp: thread
            for member in live
            for tp, thread in decide(
                truth[member.spec.consumer_id], member.spec.consumer_id, member.spec.assignor
            ).mine.items()
        }
        found += no_orphan(now, sorted(should), owners, resting)
        found += no_member_without_share(now, should, owners, resting)
        found += [
            Violation("commits_answered", now, f"{member.name}: {count} unanswered")
            for member in live
            if (count := member.unanswered(ANSWER_S))
        ]
        return found


class Trouble(ZooKeeperTroubles[WholeMember]):
    """The random troubles of one run."""

    def __init__(
        self, world: World, rng: random.Random, legacy: bool, bootstrap: bool = False
    ) -> None:
        super().__init__(world.kernel, rng)
        self.world = world
        self.zk = world.zk
        self.history = world.history
        self.session = rng.choice([2.0, 4.0, 6.0])
        self.reread = rng.choice([4.0, 8.0, NEVER])
        assignor = rng.choice(["range", "roundrobin"])
        forms = (RoundRobinHash.DASH, RoundRobinHash.BRACKETS)
        self.assignor = Assignor(assignor, rng.choice(forms))
        self.legacy = legacy
        self.bootstrap = bootstrap
        self.habits = Habits(
            burst=40,
            stop=(0.0, rng.choice([0.01, 0.1])),
            release_wait=rng.choice([0.5, 2.0]),
            listener=(0.0, rng.choice([0.01, 0.3])),
            listener_error=rng.choice([0.0, 0.0, 0.1]),
            listener_commits=rng.random() < 0.3,
            commits=rng.choice([0.0, 0.1]),
        )
        self.joined = 0
        self.dropping = False
        self.hostile = 0
        self.followed: set[WholeMember] = set()
        self.kinds = [
            (5, "join", self.join),
            (3, "leave", self.leave),
            (3, "crash", self.crash),
            (3, "restart", self.restart),
            (4, "expire", self.expire),
            (6, "disconnect", self.disconnect),
            (4, "pause", self.pause),
            (4, "drop watch", self.drop_watch),
            (3, "add partitions", self.add_partitions),
            (2, "create topic", self.create_topic),
            (2, "delete topic", self.delete_topic),
            (3, "hostile registration", self.hostile_registration),
            (3 * bootstrap, "jvm registration", self.jvm_registration),
            (2, "registration deleted", self.delete_registration),
            (2, "registration touched", self.touch_registration),
            (2, "owner deleted", self.delete_owner),
            (2, "brokers gone", self.brokers_gone),
            (4, "commit asked for", self.commit),
            (4, "slow application", self.stall),
            (2, "fault inside", self.fault),
            (3 * (world.offsets is not None), "slow offsets", self.slow_offsets),
        ]
        self.kinds += world.cluster.troubles()
        if self.reread == NEVER:
            # Then watches alone must do, and nothing may happen that no watch tells.
            silent = ("drop watch", "registration touched", "owner deleted")
            self.kinds = [kind for kind in self.kinds if kind[1] not in silent]

    @property
    def live(self) -> list[WholeMember]:
        """See ``Troubles``."""
        return self.world.live

    def lasts(self, seconds: float) -> None:
        """The current fault ends after ``seconds``; a watch that it fires may be lost."""
        if self.dropping:
            seconds += self.session + self.reread * 1.1
        super().lasts(seconds)

    def subscription(self) -> Subscription:
        """Static or a filter, on some of the topics."""
        streams = self.rng.choice([1, 1, 2, 3])
        kind = self.rng.random()
        if kind < 0.5:
            names = self.rng.sample(["t0", "t1", "t2"], self.rng.choice([1, 2, 2]))
            return Subscription(Pattern.STATIC, dict.fromkeys(names, streams))
        if kind < 0.8:
            return Subscription(Pattern.WHITE_LIST, {self.rng.choice(["t.*", "t[01]"]): streams})
        return Subscription(Pattern.BLACK_LIST, {self.rng.choice(["t1", "u.*"]): streams})

    def join(self) -> None:
        """A member starts."""
        if len(self.world.live) >= 5:
            return
        self.joined += 1
        scala = self.legacy and self.joined == 2
        spec = MemberSpec(
            paths=self.world.paths,
            consumer_id=f"{GROUP}_m{self.joined}",
            subscription=self.subscription(),
            assignor=self.assignor,
            scala=scala,
            auto_commit=self.rng.random() < 0.85,
            backoff=self.rng.choice([0.5, 2.0]),
            reread=self.reread,
            session_timeout=self.session,
            kafka_storage=self.world.offsets is not None,
            dual_commit=self.world.dual,
            bootstrap=self.bootstrap,
        )
        self.world.add_member(spec, self.habits).slow_pings(0.05)
        self.lasts(1)

    def restart(self) -> None:
        """A member leaves, and another immediately takes its id, with its own subscription."""
        member = self._any()
        if member is not None and member not in self.followed:
            self.followed.add(member)
            spec = replace(member.spec, subscription=self.subscription())
            member.close()
            self.lasts(5)
            self._follow(member, spec)

    def _follow(self, member: WholeMember, spec: MemberSpec) -> None:
        if member.alive:
            self.world.kernel.schedule(0.01, partial(self._follow, member, spec))
        else:
            self.world.add_member(spec, self.habits)

    def drop_watch(self) -> None:
        """A watch event is lost; the next periodic read compensates for it."""
        members = [member for member in self.world.live if not member.spec.scala]
        if members:
            self.rng.choice(members).client.drop_watch()
            self.dropping = True
            self.lasts(0)

    def add_partitions(self) -> None:
        """A topic gets more partitions."""
        if self.world.topics:
            topic = self.rng.choice(sorted(self.world.topics))
            self.world.set_topic(topic, min(8, self.world.topics[topic] + self.rng.randint(1, 2)))

    def create_topic(self) -> None:
        """A topic appears."""
        topic = self.rng.choice(["t0", "t1", "t2", "u0"])
        if topic not in self.world.topics:
            self.world.set_topic(topic, self.rng.randint(1, 5))

    def delete_topic(self) -> None:
        """A topic disappears."""
        self.world.delete_topic(self.rng.choice(["t0", "t1", "t2", "u0"]))

    def hostile_registration(self) -> None:
        """A registration that cannot be used appears or disappears."""
        self.hostile += 1
        path = f"{self.world.paths.ids}/{self.rng.choice(['a', 'g_m1x', 'zz'])}"
        if not self.world.do(Delete(path)) and not self.legacy:
            self.world.do(Create(path, self.rng.choice(HOSTILE)))

    def jvm_registration(self) -> None:
        """A member of the JVM's consumer registers, and leaves after a while."""
        path = self.world.paths.member(JVM_MEMBER)
        if self.world.do(Create(path, JVM_REGISTRATION)):
            seconds = 4 * self.rng.random()
            self.world.kernel.schedule(seconds, partial(self.world.do, Delete(path)))
            self.lasts(seconds)

    def delete_registration(self) -> None:
        """An administrator deletes a member's registration."""
        member = self._any()
        if member is not None and not member.spec.scala:
            self.world.do(Delete(self.world.paths.member(member.spec.consumer_id)))

    def touch_registration(self) -> None:
        """An administrator rewrites a member's registration, which moves its version."""
        member = self._any()
        if member is not None:
            path = self.world.paths.member(member.spec.consumer_id)
            found = self.world.zk.get(path)
            if found is not None:
                self.world.do(SetData(path, found.data))
                self.lasts(self.reread * 1.1)

    def delete_owner(self) -> None:
        """An administrator deletes an owner znode; its owner learns it only when it reads again."""
        owners = self.world.observer.owners
        if owners:
            tp = self.rng.choice(sorted(owners))
            self.world.do(Delete(self.world.paths.owner(tp)))
            self.lasts(self.reread * 1.1)

    def brokers_gone(self) -> None:
        """The registrations of all brokers are missing for a while."""
        for number in self.world.cluster.brokers.endpoints:
            self.world.set_broker(number, None)
        seconds = self.rng.choice([0.05, 3.0])
        self.world.kernel.schedule(seconds, self.world.register_brokers)
        self.lasts(seconds)

    def stall(self) -> None:
        """An application works on one message for a long time."""
        member = self._any()
        if member is not None:
            seconds = self.rng.choice([0.5, 3.0])
            member.plane.stall(seconds)
            self.lasts(seconds)

    def slow_offsets(self) -> None:
        """The offset store is slow, refuses, or does not answer."""
        offsets = self.world.offsets
        assert offsets is not None
        offsets.troubled = True
        seconds = 3 * self.rng.random()
        self.world.kernel.schedule(seconds, partial(setattr, offsets, "troubled", False))
        self.lasts(seconds + 4.0)


def run(
    seed: int,
    *,
    legacy: bool | None = None,
    bootstrap: bool = False,
    record: bool = False,
    events: int = EVENTS,
) -> Result[World]:
    """One group, ``events`` troubles, then rest. A pure function of its arguments.

    ``legacy``: whether the second member to join has exact legacy behaviour; drawn where ``None``.
    ``bootstrap``: members learn the cluster from its brokers; then none has legacy behaviour.
    """
    kernel = Kernel(seed)
    rng = random.Random(seed)
    followers = rng.choice([0, 0, 2])
    cluster = SimCluster(kernel, rng, rng.choice([2, 3]), old=True)
    world = World.make(
        kernel,
        followers=followers,
        max_lag=rng.choice([0.05, 0.5]) if followers else 0.0,
        rearm_watches=rng.random() < 0.5,
        cluster=cluster,
        storage=rng.choice(["zookeeper", "zookeeper", "kafka", "dual"]),
        record=record,
    )
    drawn = rng.random() < 0.2 if legacy is None else legacy
    trouble = Trouble(world, rng, drawn and not bootstrap, bootstrap)
    for topic in rng.sample(["t0", "t1", "t2", "u0"], rng.choice([1, 2, 3])):
        world.set_topic(topic, rng.randint(1, 5))
    for _ in range(rng.randint(1, 3)):
        kernel.schedule(rng.random(), trouble.join)
    troubled = max(TROUBLED, events * INTERVAL)
    for _ in range(events):
        kernel.schedule(troubled * rng.random(), trouble.strike)
    kernel.run(until=troubled)
    cluster.calm_down()
    if world.offsets is not None:
        world.offsets.troubled = False
    kernel.run(
        until=max(troubled, trouble.quiet_from, hurry(world.members)) + trouble.session + SETTLE
    )
    violations = world.at_rest()
    violations += deliver_all(kernel, lambda: world.live)
    violations += uncommitted(kernel, lambda: world.live)
    return Result(
        "bootstrap" if bootstrap else "zookeeper",
        seed,
        events,
        legacy is True,
        world.observer.violations + violations,
        trouble.counts,
        world.observer.deliveries,
        world.history,
        world,
    )


def _end_if_refused(member: WholeMember, started: Future[AnswerStart]) -> None:
    """End the process of a member that may not join, as a connector does."""
    if started.exception() is None and started.result().outcome is Outcome.FOREIGN_MEMBER:
        member.host.post(member.close)


__all__ = ["GROUP", "MemberAtRest", "Trouble", "World", "run"]
