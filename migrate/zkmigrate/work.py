"""What is to be done with one group, either way: forward by a plan, back by a journal. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zkconsumer.core.common.types import TopicPartition
from zkmigrate import tombstone
from zkmigrate.errors import JournalError
from zkmigrate.model import Direction, GroupPlan, KafkaOffset, Store, covers
from zkmigrate.plan_file import PlanFile

Held = Mapping[TopicPartition, KafkaOffset | None]
"""What a store holds; leader epoch and metadata matter in Kafka only."""


@dataclass(frozen=True, slots=True)
class Work:
    """A change of one store, and what both stores hold before it.

    ``leaves`` is the store whose offsets do not count any more after the change: it must hold none
    that the plan does not know. ``skipped``: patterns of the offsets that the plan leaves
    as they are.
    ``versions``: those of the offset znodes, when they must be exactly as the plan saw them.
    ``before`` and ``after``: the tombstone's content; ``between``: what else it may be where an
    earlier run was cut off. ``topics``: when the topics were created (a
    zxid) whose logs must hold the offsets of ``to``; what is restored needs not fit.
    """

    group: str
    target: Store
    zk: Held
    kafka: Held
    to: Held
    versions: Mapping[TopicPartition, int | None] | None
    before: bytes | None
    after: bytes | None
    between: frozenset[bytes | None]
    topics: Mapping[str, int]
    leaves: Store
    skipped: frozenset[str]

    def knows(self, tp: TopicPartition) -> bool:
        """Whether the plan has decided about a partition, if only to leave it as it is."""
        return tp in self.zk or covers(self.skipped, tp)

    def leaves_out(self, tp: TopicPartition) -> bool:
        """Whether the plan leaves a partition as it is in both stores."""
        return self.knows(tp) and tp not in self.zk

    def expected(self, store: Store, tp: TopicPartition, resumed: bool) -> set[int | None]:
        """Return the offsets that a store may hold of a partition before the change."""
        held = self.zk if store is Store.ZOOKEEPER else self.kafka
        allowed = {number(held.get(tp))}
        if resumed and store is self.target and tp in self.to:
            allowed.add(number(self.to[tp]))
        return allowed


def number(stored: KafkaOffset | None) -> int | None:
    """Return the offset alone; negative ones mean that there is none."""
    return None if stored is None or stored.offset < 0 else stored.offset


def forward(plan: PlanFile, group: GroupPlan) -> Work:
    """Return the work of a planned group."""
    values = left_by(group, plan.direction)
    after = tombstone.encode(plan.direction.target, plan.made_ms, values)
    return Work(
        group.group,
        plan.direction.target,
        {entry.tp: _plain(entry.zk) for entry in group.entries},
        {entry.tp: entry.kafka for entry in group.entries},
        {entry.tp: _plain(entry.to) for entry in group.entries if entry.write},
        {entry.tp: entry.zk_version for entry in group.entries},
        group.tombstone,
        after,
        frozenset({after}),
        group.topics,
        plan.direction.source,
        group.skipped,
    )


def left_by(group: GroupPlan, direction: Direction) -> dict[TopicPartition, int]:
    """Return what the source store of a plan holds, which the migration marker records."""
    held = {
        entry.tp: entry.zk if direction is Direction.ZK_TO_KAFKA else number(entry.kafka)
        for entry in group.entries
    }
    return {tp: offset for tp, offset in held.items() if offset is not None}


def _plain(offset: int | None) -> KafkaOffset | None:
    return None if offset is None else KafkaOffset(offset)


def record_of(work: Work) -> list[list[Any]]:
    """Return, for the journal, what the target held of each partition that is to change."""
    held = work.zk if work.target is Store.ZOOKEEPER else work.kafka
    rows: list[list[Any]] = []
    for tp in sorted(work.to):
        old = held.get(tp)
        offset = None if old is None else old.offset
        if (
            old is None
            and work.target is Store.ZOOKEEPER
            and (work.versions or {}).get(tp) is not None
        ):
            offset = -1  # there is a znode that says so
        row: list[Any] = [*tp, offset]
        lost = work.kafka.get(tp) if work.target is Store.ZOOKEEPER else old
        if lost is not None and (lost.leader_epoch != -1 or lost.metadata):
            row += [lost.leader_epoch, lost.metadata]
        rows.append(row)
    return rows


def back(done: Work, rows: object) -> Work:
    """Return the work that undoes ``done``, to what the journal recorded of the target.

    Raises JournalError when journal and plan do not belong together.
    """
    restored: dict[TopicPartition, KafkaOffset | None] = {}
    try:
        for topic, partition, offset, *rich in rows:  # type: ignore[attr-defined]
            if offset is None:
                old = None
            elif done.target is Store.KAFKA and rich:
                old = KafkaOffset(offset, rich[0], rich[1])
            else:
                old = KafkaOffset(offset)
            restored[TopicPartition(topic, partition)] = old
    except (TypeError, ValueError, IndexError):
        restored = {}
    held = done.zk if done.target is Store.ZOOKEEPER else done.kafka
    if restored.keys() != done.to.keys() or any(
        number(held.get(tp)) != number(old) for tp, old in restored.items()
    ):
        raise JournalError(f"group {done.group}: the journal does not agree with the plan")
    after = {**held, **done.to}
    marker = tombstone.ROLLED_BACK if done.before is None else done.before
    zk, kafka = (after, done.kafka) if done.target is Store.ZOOKEEPER else (done.zk, after)
    return Work(
        done.group,
        done.target,
        zk,
        kafka,
        restored,
        None,
        done.after,
        marker,
        frozenset({marker, done.before}),
        {},
        done.target,
        done.skipped,
    )
