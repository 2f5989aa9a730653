"""The change of one group: forward by a plan, or back by a journal. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zkconsumer.core.common.types import TopicPartition
from zkmigrate.errors import JournalError
from zkmigrate.formats.plan_file import PlanFile
from zkmigrate.model import KafkaOffset, Store, number
from zkmigrate.plan.options import covers
from zkmigrate.plan.values import GroupPlan
from zkmigrate.stores import migration_marker

Held = Mapping[TopicPartition, KafkaOffset | None]
"""A stored offset. Leader epoch and metadata are used only in Kafka."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one store, and what both stores hold before it.

    ``source`` is the store whose offsets no longer count after the change: it must hold none that
    the plan does not know. ``skipped``: patterns of the offsets that the plan leaves as they are.
    ``versions``: those of the offset znodes, when they must be exactly as the plan read them.
    ``before`` and ``after``: the migration marker's content; ``between``: what else it may be where
    an earlier run was cut off. ``topics``: when the topics were created (a zxid) whose logs must
    hold the offsets of ``to``; restored offsets need not be in the log. ``kafka_group``: the
    group's name in Kafka.
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
    source: Store
    skipped: frozenset[str]
    kafka_group: str
    misplaced: Mapping[TopicPartition, int] | None = None
    """The offsets that must still be below ``offset``, on the way from ZooKeeper."""
    may_have_expired: bool = False
    """Whether Kafka may have deleted offsets before the change, because nothing consumed."""

    def knows(self, tp: TopicPartition) -> bool:
        """Whether the plan covers a partition, even if only to leave it unchanged."""
        return tp in self.zk or covers(self.skipped, tp)

    def leaves_out(self, tp: TopicPartition) -> bool:
        """Whether the plan leaves a partition as it is in both stores."""
        return self.knows(tp) and tp not in self.zk

    def expected(self, store: Store, tp: TopicPartition, resumed: bool) -> set[int | None]:
        """Return the offsets that a store may have for a partition before the change."""
        held = self.zk if store is Store.ZOOKEEPER else self.kafka
        allowed = {number(held.get(tp))}
        if resumed and store is self.target and tp in self.to:
            allowed.add(number(self.to[tp]))
        # Not an offset that only Kafka had: nothing restores it.
        safe = tp in self.to or number(self.zk.get(tp)) is not None
        if self.may_have_expired and store is Store.KAFKA and safe:
            allowed.add(None)
        return allowed


def forward(plan: PlanFile, group: GroupPlan) -> Change:
    """Return the change of a planned group."""
    values = group.source_offsets(plan.direction)
    made_ms = plan.made_ms if group.made_ms is None else group.made_ms
    left = {one.tp: one.offset for one in group.stays if one.offset is not None}
    misplaced = group.misplaced()
    after = migration_marker.encode(
        plan.direction.target,
        made_ms,
        values,
        group.kafka_group,
        left,
        misplaced,
        group.kept(plan.direction),
    )
    return Change(
        group.group,
        plan.direction.target,
        {entry.tp: _plain(entry.zk) for entry in group.entries},
        {entry.tp: entry.kafka for entry in group.entries},
        {entry.tp: _plain(entry.to) for entry in group.entries if entry.write},
        {entry.tp: entry.zk_version for entry in group.entries},
        group.marker,
        after,
        frozenset({after}),
        group.topics,
        plan.direction.source,
        group.skipped,
        group.in_kafka,
        misplaced if plan.direction.source is Store.ZOOKEEPER else None,
    )


def _plain(offset: int | None) -> KafkaOffset | None:
    return None if offset is None else KafkaOffset(offset)


def record_of(change: Change) -> list[list[Any]]:
    """Return, for the journal, the target's stored offset of each partition that will change."""
    held = change.zk if change.target is Store.ZOOKEEPER else change.kafka
    rows: list[list[Any]] = []
    for tp in sorted(change.to):
        old = held.get(tp)
        offset = None if old is None else old.offset
        if (
            old is None
            and change.target is Store.ZOOKEEPER
            and (change.versions or {}).get(tp) is not None
        ):
            offset = -1  # there is a znode that says so
        row: list[Any] = [*tp, offset]
        lost = change.kafka.get(tp) if change.target is Store.ZOOKEEPER else old
        if lost is not None and (lost.leader_epoch != -1 or lost.metadata):
            row += [lost.leader_epoch, lost.metadata]
        rows.append(row)
    return rows


def back(done: Change, rows: object) -> Change:
    """Return the change that restores the target's offsets from the journal.

    Raises JournalError when the journal belongs to another plan.
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
        raise JournalError(
            f"group {done.group}: the journal contradicts the plan: compare both stores with "
            "zkmigrate status, then make a new plan"
        )
    after = {**held, **done.to}
    marker = migration_marker.ROLLED_BACK if done.before is None else done.before
    zk, kafka = (after, done.kafka) if done.target is Store.ZOOKEEPER else (done.zk, after)
    return Change(
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
        done.kafka_group,
        may_have_expired=done.target is Store.KAFKA,
    )
