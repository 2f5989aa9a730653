"""ZooKeeper and brokers of a simulated group, its members, and their judge at rest."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from tests.sim.runs.at_rest import no_lost_trigger, no_member_without_share, no_orphan
from tests.sim.runs.cluster import SimCluster
from tests.sim.runs.offset_store import SimOffsets
from tests.sim.runs.zk_member import WholeMember, run_now
from zkconsumer.core.common.commands import AnswerStart, Outcome
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper import commands, events
from zkconsumer.core.zookeeper.ops import Delete
from zkconsumer.core.zookeeper.scripts.common import ScriptContext
from zkconsumer.core.zookeeper.view import GroupView, MemberSpec, decide
from zkconsumer.core.zookeeper.znodes import BROKER_IDS, BROKER_TOPICS, topic_path
from zkconsumer.sim.judges.invariants import Observer, Violation
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.members.host import Habits
from zkconsumer.sim.runs import world as sim_world
from zkconsumer.sim.servers.zk import Backup, FakeZk


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
        names_causes: bool = True,
        cluster: SimCluster | None = None,
        storage: str = "zookeeper",
        history: list[str] | None = None,
    ) -> World:
        """An ensemble with brokers and no topics; two brokers if there is no ``cluster``."""
        zk = FakeZk(
            kernel,
            followers=followers,
            max_lag=max_lag,
            rearm_watches=rearm_watches,
            names_causes=names_causes,
        )
        cluster = cluster or SimCluster(kernel, kernel.rng, 2, old=False)
        world = cls(kernel, zk, cluster, Observer(records=cluster.records), cluster=cluster)
        cluster.changed = world.set_broker
        world.dual = storage == "dual"
        if storage != "zookeeper":
            world.offsets = SimOffsets(kernel, world._stored, {})
        world.history = history
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

    def restore(self, backup: Backup, seconds: float, elected: bool) -> None:
        """ZooKeeper starts again with older data of the group. Brokers and topics are as before."""
        zk = self.zk
        zk.restore(backup, seconds, elected)
        for topic in zk.children(BROKER_TOPICS):
            if topic not in self.topics:
                self.do(Delete(topic_path(topic)))
        for topic, partitions in self.topics.items():
            self.set_topic(topic, partitions)
        self.register_brokers()
        owners, committed = {}, {}
        for path in zk.paths():
            parts = path.split("/")
            node = zk.get(path)
            if node is None or len(parts) != 6 or parts[3] not in ("owners", "offsets"):
                continue
            tp = TopicPartition(parts[4], int(parts[5]))
            if parts[3] == "owners":
                owners[tp] = node.stat.ephemeral_owner
            else:
                committed[tp] = int(node.data)
        in_zookeeper = self.offsets is None or self.dual
        self.observer.restored(backup.sessions, owners, committed if in_zookeeper else None)

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
        return found


def _end_if_refused(member: WholeMember, started: Future[AnswerStart]) -> None:
    """End the process of a member that may not join, as a connector does."""
    if started.exception() is None and started.result().outcome is Outcome.FOREIGN_MEMBER:
        member.host.post(member.close)


__all__ = ["World"]
