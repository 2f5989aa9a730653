"""Groups in ZooKeeper, and what can happen to them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tests.sim.runs.cluster import SimCluster
from tests.sim.runs.scenario import ZooKeeperScenario
from tests.sim.runs.world import World
from tests.sim.runs.zk_member import WholeMember
from zkconsumer.core.common.assign import RoundRobinHash
from zkconsumer.core.common.types import Pattern, Subscription
from zkconsumer.core.zookeeper.ops import Create, Delete, SetData
from zkconsumer.core.zookeeper.view import Assignor, MemberSpec
from zkconsumer.sim.judges.invariants import Violation
from zkconsumer.sim.runs.world import GROUP, NEVER

#: What the owner of a settled group may need beyond the session timeout (seconds).
SETTLE = 5.0
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


class ZooKeeperGroup(ZooKeeperScenario[WholeMember]):
    """Members whose group is in ZooKeeper.

    Args:
        legacy: whether the second member to join has exact legacy behaviour; drawn where ``None``.
        bootstrap: members learn the cluster from its brokers; then none has legacy behaviour.
        restores: at times the servers lose their last transactions, or start with a backup.
    """

    troubled = 25.0
    interval = 0.3
    stalls = (0.5, 3.0)

    def __init__(
        self,
        seed: int,
        record: bool,
        legacy: bool | None = None,
        bootstrap: bool = False,
        restores: bool = False,
    ) -> None:
        super().__init__(seed, record)
        rng = self.rng
        followers = rng.choice([0, 0, 2])
        self.cluster = SimCluster(self.kernel, rng, rng.choice([2, 3]), old=True)
        self.world = World.make(
            self.kernel,
            followers=followers,
            max_lag=rng.choice([0.05, 0.5]) if followers else 0.0,
            rearm_watches=rng.random() < 0.5,
            cluster=self.cluster,
            storage=rng.choice(["zookeeper", "zookeeper", "kafka", "dual"]),
            history=self.history,
        )
        self.zk = self.world.zk
        self.observer = self.world.observer
        self.members = self.world.members
        drawn = rng.random() < 0.2 if legacy is None else legacy
        self.legacy = drawn and not bootstrap
        self.bootstrap = bootstrap
        self.session = rng.choice([2.0, 4.0, 6.0])
        self.patience = self.session + SETTLE
        self.reread = rng.choice([4.0, 8.0, NEVER])
        assignor = rng.choice(["range", "roundrobin"])
        forms = (RoundRobinHash.DASH, RoundRobinHash.BRACKETS)
        self.assignor = Assignor(assignor, rng.choice(forms))
        self.usual = self.habits(listener=(0.01, 0.3))
        self.joined = 0
        self.dropping = False
        self.followed: set[WholeMember] = set()
        self.faults = [
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
            (3 * (self.world.offsets is not None), "slow offsets", self.slow_offsets),
            *self.restores(3 * restores),
            *self.cluster.troubles(),
        ]
        if self.reread == NEVER:
            # Then watches alone must do, and nothing may happen that no watch tells.
            silent = ("drop watch", "registration touched", "owner deleted")
            self.faults = [fault for fault in self.faults if fault[1] not in silent]

    def begin(self) -> None:
        """See ``Scenario``."""
        rng = self.rng
        for topic in rng.sample(["t0", "t1", "t2", "u0"], rng.choice([1, 2, 3])):
            self.set_topic(topic, rng.randint(1, 5))
        for _ in range(rng.randint(1, 3)):
            self.kernel.schedule(rng.random(), self.join)

    def calm_down(self) -> float:
        """See ``Scenario``."""
        if self.world.offsets is not None:
            self.world.offsets.troubled = False
        return super().calm_down()

    def at_rest(self) -> list[Violation]:
        """See ``Scenario``."""
        return [*self.world.at_rest(), *self.unanswered()]

    def set_topic(self, topic: str, partitions: int) -> None:
        """See ``Scenario``."""
        self.world.set_topic(topic, partitions)

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
        if len(self.live) >= 5:
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
        self.world.add_member(spec, self.usual).slow_pings(0.05)
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
            self.kernel.schedule(0.01, partial(self._follow, member, spec))
        else:
            self.world.add_member(spec, self.usual)

    def drop_watch(self) -> None:
        """A watch event is lost; the next periodic read compensates for it."""
        members = [member for member in self.live if not member.spec.scala]
        if members:
            self.rng.choice(members).client.drop_watch()
            self.dropping = True
            self.lasts(0)

    def delete_topic(self) -> None:
        """A topic disappears."""
        self.world.delete_topic(self.rng.choice(["t0", "t1", "t2", "u0"]))

    def hostile_registration(self) -> None:
        """A registration that cannot be used appears or disappears."""
        path = f"{self.world.paths.ids}/{self.rng.choice(['a', 'g_m1x', 'zz'])}"
        if not self.world.do(Delete(path)) and not self.legacy:
            self.world.do(Create(path, self.rng.choice(HOSTILE)))

    def jvm_registration(self) -> None:
        """A member of the JVM's consumer registers, and leaves after a while."""
        path = self.world.paths.member(JVM_MEMBER)
        if self.world.do(Create(path, JVM_REGISTRATION)):
            seconds = 4 * self.rng.random()
            self.kernel.schedule(seconds, partial(self.world.do, Delete(path)))
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
            found = self.zk.get(path)
            if found is not None:
                self.world.do(SetData(path, found.data))
                self.lasts(self.reread * 1.1)

    def delete_owner(self) -> None:
        """An administrator deletes an owner znode; its owner learns it only when it reads again."""
        owners = self.observer.owners
        if owners:
            tp = self.rng.choice(sorted(owners))
            self.world.do(Delete(self.world.paths.owner(tp)))
            self.lasts(self.reread * 1.1)

    def brokers_gone(self) -> None:
        """The registrations of all brokers are missing for a while."""
        for number in self.cluster.brokers.endpoints:
            self.world.set_broker(number, None)
        seconds = self.rng.choice([0.05, 3.0])
        self.kernel.schedule(seconds, self.world.register_brokers)
        self.lasts(seconds)

    def slow_offsets(self) -> None:
        """The offset store is slow, refuses, or does not answer."""
        offsets = self.world.offsets
        assert offsets is not None
        offsets.troubled = True
        seconds = 3 * self.rng.random()
        self.kernel.schedule(seconds, partial(setattr, offsets, "troubled", False))
        self.lasts(seconds + 4.0)


__all__ = ["JVM_REGISTRATION", "ZooKeeperGroup"]
