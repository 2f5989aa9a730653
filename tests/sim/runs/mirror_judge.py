"""Judges every change of a mirrored group's offsets, as it happens.

It knows which change was one of ``zkmigrate``, by its session or connection. It sees only what the
servers have. Everything runs inside kernel events.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from zkmigrate.apply.permission import MIRROR_PERMITTED_S
from zkmigrate.model import KafkaOffset, Mirror, Store
from zkmigrate.plan.mirror import is_marked
from zkmigrate.stores import migration_marker, mirror_state, record

from tests.sim.runs.mirror_servers import Coordinator
from tests.sim.runs.sim_thread import SimThread
from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Node
from zkconsumer.core.zookeeper.znodes import GroupPaths, topic_path
from zkconsumer.sim.judges.invariants import Violation
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.runs.world import GROUP
from zkconsumer.sim.servers.zk import FakeZk, Txn

_FLIGHT_S: Final = 0.02
"""How long a permission may be old when a commit arrives: the answer and the commit travel."""
_MOMENT_S: Final = 1.5
"""For how long a late commit may be seen: the next pass puts it right."""


class MirrorJudge:
    """``processes``: those of ``zkmigrate``, by session. ``mirrors``: those that need the lease.

    ``truth``: the last offset that a program has committed. ``causes``: why the mirror may stop.
    """

    def __init__(self, kernel: Kernel, zk: FakeZk, coordinator: Coordinator) -> None:
        self.violations: list[Violation] = []
        self.processes: dict[int, SimThread] = {}
        self.mirrors: set[SimThread] = set()
        self.truth: dict[TopicPartition, int] = {}
        self.causes: list[str] = []
        self.commits = self.copies = self.late = 0
        self.late_at = self.recreated_at = -_MOMENT_S
        self.expired: set[TopicPartition] = set()
        """Offsets that have expired in Kafka, and that no mirror has restored."""
        self.mirror: Mirror | None = None
        """What is agreed on now."""
        self.lost: set[TopicPartition] = set()
        """Partitions whose offset in ZooKeeper was another one than in Kafka after a restore."""
        self.changes = 0
        """How often a mirror began or ended, or another store began to lead."""
        self.is_choosing = False
        """An operator has begun to choose a store, whose offsets replace those of the other one."""
        self.say: Callable[[str], object] = lambda text: None
        self._kernel, self._zk, self._coordinator = kernel, zk, coordinator
        self._committed_by_programs: defaultdict[TopicPartition, list[int]] = defaultdict(list)
        self._had: dict[TopicPartition, set[int]] = {}
        """The offsets that ZooKeeper has had since the topic was created."""
        self._changed_at = 0.0
        """When a permission that was given before has ended."""
        self._paths = GroupPaths(GROUP)
        zk.on_commit(self._committed)
        coordinator.on_change = self._changed

    def broken(self, rule: str, text: str) -> None:
        """Report that ``rule`` is broken."""
        self.say(f"{rule} is broken: {text}")
        self.violations.append(Violation(rule, self._kernel.now, text))

    @property
    def leader(self) -> Store:
        """The store whose commits count now; ZooKeeper if the group is not mirrored or moved."""
        if self._zk.get(migration_marker.path(GROUP)) is not None:
            return Store.KAFKA
        return Store.ZOOKEEPER if self.mirror is None else self.mirror.leader

    @property
    def lease(self) -> int:
        """The session that has the lease; 0 for none."""
        node = self._zk.get(mirror_state.lease_path(GROUP))
        return 0 if node is None else node.stat.ephemeral_owner

    def old_members(self) -> tuple[str, ...]:
        """The members that are registered in ZooKeeper."""
        return self._zk.children(self._paths.ids)

    def in_zookeeper(self) -> dict[TopicPartition, int]:
        """The offsets in ZooKeeper, but for those of an older topic."""
        return {
            TopicPartition(topic, int(number)): int(node.data)
            for topic in self._zk.children(self._paths.offsets)
            for number in self._zk.children(self._paths.offsets_topic(topic))
            if (node := self._zk.get(self._paths.offset(TopicPartition(topic, int(number)))))
            and not self._is_stale(topic, node)
        }

    def in_kafka(self) -> dict[TopicPartition, int]:
        """The offsets in Kafka."""
        return {tp: one.offset for tp, one in self._coordinator.offsets.items()}

    def topic_recreated(self) -> None:
        """The topic was deleted and created again: it has no offsets."""
        self.truth.clear()
        self._had.clear()
        self._committed_by_programs.clear()
        self.recreated_at = self._changed_at = self._kernel.now

    def restored(self, same: bool) -> None:
        """ZooKeeper has older data. ``same``: since then the same store has led."""
        where = mirror_state.path(GROUP)
        node = self._zk.get(where)
        self.mirror = None if node is None else mirror_state.decode(where, node)
        self._changed_at = self._kernel.now
        if not same:
            self.changes += 1
            self.causes.append("ZooKeeper was restored to a time when another store led")
        zk = self.in_zookeeper()
        self.lost |= {tp for tp, one in self.in_kafka().items() if zk.get(tp) != one}
        if not same or self.leader is Store.ZOOKEEPER:
            one = zk
            if self.leader is Store.KAFKA:  # what a mirror has committed may be put right
                kept = self._coordinator.offsets.items()
                one = {tp: each.offset for tp, each in kept if not is_marked(_known(each))}
            self.chosen(one)

    def _is_stale(self, topic: str, node: Node) -> bool:
        there = self._zk.get(topic_path(topic))
        return there is None or node.stat.mzxid < there.stat.czxid

    @property
    def was_late(self) -> bool:
        """Whether a late commit may not have been put right yet."""
        return self._soon_after(self.late_at)

    def _soon_after(self, moment: float) -> bool:
        return self._kernel.now < moment + _MOMENT_S

    # -- ZooKeeper -----------------------------------------------------------------------------

    def _committed(self, _zxid: int, txn: Txn) -> None:
        who = self.processes.get(txn.session_id)
        before = self.mirror
        changed = {change.path: change for change in txn.changes}
        if changed.keys() & {record.path(GROUP), mirror_state.lease_path(GROUP)}:
            self._changed_at = self._kernel.now
        agreed = changed.get(mirror_state.path(GROUP))
        if agreed is not None:
            self._changed_at = self._kernel.now
            after = agreed.after
            self.mirror = None if after is None else mirror_state.decode(agreed.path, after)
            self.changes += (before and before.leader) is not (self.mirror and self.mirror.leader)
        for path, change in changed.items():
            parts = path.split("/")
            if len(parts) != 6 or parts[3] != "offsets" or change.after is None:
                continue
            tp, one = TopicPartition(parts[4], int(parts[5])), int(change.after.data)
            if who is None:
                self._client_commits(tp, one, Store.ZOOKEEPER)
            else:
                self.copies += 1
                self._zookeeper_written(tp, change.before, one, before, together=agreed is not None)
            self._had.setdefault(tp, set()).add(one)
            self.lost.discard(tp)
        if self.mirror is not None and before is not None and agreed is not None:
            self._agreed(before, self.mirror)

    def _zookeeper_written(
        self,
        tp: TopicPartition,
        node: Node | None,
        one: int,
        mirror: Mirror | None,
        *,
        together: bool,
    ) -> None:
        there = None if node is None or self._is_stale(tp.topic, node) else int(node.data)
        text = f"{tp} in ZooKeeper: {there} becomes {one}"
        self.say(f"copied: {text}")
        if mirror is None:
            self.broken("ended_is_over", text)
            return
        if not together:
            self.broken("agreed_with_copies", text)
        lowered = there is not None and self._last(tp, one) <= self._last(tp, there) and one < there
        if lowered and not self.is_choosing:
            self.broken("mirror_lowers_nothing", text)
        if there is not None and there != one and there != mirror.values.get(tp):
            self.broken("copied_before_replaced", text)
        if mirror.leader is Store.ZOOKEEPER and not self._new_members():
            self.broken("copied_one_way", text)

    def _new_members(self, lately_s: float = 0.2) -> bool:
        recently = self._kernel.now - self._coordinator.had_members_at < lately_s
        return bool(self._coordinator.joined) or recently

    def _agreed(self, before: Mirror, after: Mirror) -> None:
        """What is agreed on was written."""
        if after.stopped is not None and before.stopped is None:
            self.say(f"stopped: {after.stopped}")
            # What was read before the topic was deleted may be written to ZooKeeper after that.
            if not self.causes and self._kernel.now - self.recreated_at > 5.0:
                self.broken("stops_with_cause", after.stopped[1])
        if before.leader is after.leader or before.stopped is not None:
            return
        self.say(f"{after.leader.value} leads")
        if after.leader is Store.KAFKA and self.old_members() and not self._new_members():
            self.broken("leads_alone", f"{self.old_members()} are registered")
        zk, kafka = self.in_zookeeper(), self.in_kafka()
        left = zk if after.leader is Store.KAFKA else kafka
        ahead = {tp: one for tp, one in left.items() if after.values.get(tp) != one}
        marked = (tp for tp, one in self._coordinator.offsets.items() if is_marked(_known(one)))
        if after.leader is Store.KAFKA:
            ahead |= {tp: kafka[tp] for tp in marked if kafka[tp] != after.values.get(tp)}
        ahead = {tp: one for tp, one in ahead.items() if tp not in self.lost}
        exempt = self.was_late
        # Of two operators with opposite aims, one has let the new program start. Its commits are
        # found by the next pass.
        exempt |= after.leader is Store.ZOOKEEPER and self._new_members()
        if ahead and not exempt:
            self.broken("leads_with_everything", f"{ahead} of {after.values}")

    # -- Kafka ---------------------------------------------------------------------------------

    def _changed(
        self,
        who: SimThread | None,
        tp: TopicPartition,
        there: StoredOffset | None,
        one: StoredOffset | None,
    ) -> None:
        if one is not None:
            self.expired.discard(tp)
        if who is None:
            if one is not None:
                self._client_commits(tp, one.offset, Store.KAFKA)
            return
        self.copies += 1
        text = f"{tp} in Kafka: {there and there.offset} becomes {one and one.offset}"
        self.say(f"copied: {text}")
        rules = list(self._broken_by(who, tp, there, one))
        flight = _FLIGHT_S + MIRROR_PERMITTED_S * who.slept
        if self._kernel.now - self._changed_at >= flight:
            for rule in rules:
                self.broken(rule, text)
            return
        self.late += 1  # it was permitted before; if it is wrong, the next pass puts it right
        if rules or (one is not None and one.offset != self.in_zookeeper().get(tp)):
            self.late_at = self._kernel.now

    def _broken_by(
        self,
        who: SimThread,
        tp: TopicPartition,
        there: StoredOffset | None,
        one: StoredOffset | None,
    ) -> Iterator[str]:
        """The rules that a commit of a mirror or command breaks."""
        if one is None:
            if there is not None and not is_marked(_known(there)):
                yield "copied_before_replaced"
            return
        mirror = self.mirror
        if mirror is None:
            yield "ended_is_over"
            return
        if who in self.mirrors and self.processes.get(self.lease) is not who:
            yield "one_mirror"
        agreed = mirror.values.get(tp)
        known = (one.offset, agreed, self.in_zookeeper().get(tp))
        if there is not None and not is_marked(_known(there)) and there.offset not in known:
            yield "copied_before_replaced"
        if there is not None and there.offset == one.offset:
            return  # so that it does not expire, or without the mark
        if mirror.leader is Store.ZOOKEEPER or self.old_members():
            if one.offset not in self._had.get(tp, ()):
                yield "copied_one_way"
        elif one.offset != agreed:
            yield "copied_one_way"

    def _last(self, tp: TopicPartition, offset: int) -> int:
        """How many commits of programs there were when one has committed this offset last."""
        every = self._committed_by_programs[tp]
        return max((number for number, one in enumerate(every, 1) if one == offset), default=0)

    def chosen(self, offsets: Mapping[TopicPartition, int]) -> None:
        """An operator has chosen a store: its offsets count as if they were committed now."""
        self.truth = dict(offsets)
        for tp, offset in offsets.items():
            self._committed_by_programs[tp].append(offset)

    def _client_commits(self, tp: TopicPartition, offset: int, store: Store) -> None:
        self.commits += 1
        self.truth[tp] = offset
        self._committed_by_programs[tp].append(offset)
        if self.mirror is not None and store is not self.mirror.leader:
            self.causes.append(f"{store.value} follows, and got {offset} for {tp}")


def _known(one: StoredOffset) -> KafkaOffset:
    return KafkaOffset(*one)


__all__ = ["MirrorJudge"]
