"""The change of one group: forward by a plan, or back by its record in ZooKeeper. Pure.

Only this module decides how ``undo`` takes a group back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from zkconsumer.core.common.types import TopicPartition
from zkmigrate.apply.outcome import Outcome, Result, by_table, ended_by
from zkmigrate.apply.records import Records, since_plan
from zkmigrate.errors import refused
from zkmigrate.formats.plan_file import PlanFile
from zkmigrate.model import Before, GroupState, KafkaOffset, Stage, Store, number
from zkmigrate.plan.options import covers
from zkmigrate.plan.table import Action, Answer, Do, Way, decide
from zkmigrate.plan.values import GroupPlan, ReadAs, Verdict
from zkmigrate.reasons import Reason
from zkmigrate.stores import migration_marker

Held = Mapping[TopicPartition, KafkaOffset | None]
"""A stored offset. Leader epoch and metadata are used only in Kafka."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a group's offsets in one store, and the state of both stores before it.

    ``target``: the store that is changed. ``to``: the new offsets. ``source``: the store that the
    group no longer uses after the change. It must not contain offsets that are missing from the
    plan. ``zk`` and ``kafka``: the offsets before the change. ``skipped``: patterns of the offsets
    that are not changed. ``versions``: the expected versions of the offset znodes; ``None``: any.
    ``before`` and ``after``: the migration marker's content before and after the change.
    ``between``: other content that the marker may have after an interrupted run. ``topics``: the
    zxid of the creation of each topic whose log must contain the offsets in ``to``; empty when
    offsets are restored. ``kafka_group``: the group's name in Kafka.
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
    """Offsets that must still be below ``offset`` when moving from ZooKeeper."""
    any_source: bool = False
    """Whether the source store may hold any offsets, because nothing was moved from it."""
    plan: str = ""
    """The digest of the plan."""
    znodes: frozenset[str] | None = None
    """Znodes of unknown kinds that the plan leaves as they are; ``None``: all."""
    layout: ReadAs | None = None
    """The numbers in another client's layout from which the offsets were computed."""
    may_have_expired: bool = False
    """Whether offsets in Kafka may have expired before the change, because nothing consumed."""
    check: Callable[[], object] = lambda: None
    """Checks what the plan has read elsewhere; may raise an error to refuse the change."""

    def knows(self, tp: TopicPartition) -> bool:
        """Whether the plan covers a partition, even if only to leave it unchanged."""
        return tp in self.zk or covers(self.skipped, tp)

    def leaves_out(self, tp: TopicPartition) -> bool:
        """Whether the plan leaves a partition's offsets unchanged in both stores."""
        return self.knows(tp) and tp not in self.zk

    @property
    def renamed(self) -> str:
        """The group's name in Kafka, if it differs from the name in ZooKeeper."""
        return self.kafka_group if self.kafka_group != self.group else ""

    @property
    def held(self) -> Held:
        """The target's offsets before the change."""
        return self.zk if self.target is Store.ZOOKEEPER else self.kafka

    def expected(self, store: Store, tp: TopicPartition, resumed: bool) -> set[int | None]:
        """Return the offsets that a partition may have in a store before the change.

        ``resumed``: an earlier run was interrupted, and may have changed some offsets.
        """
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
    """Return the change that carries out a group's plan."""
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
        group.other_client,
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
        plan=plan.digest,
        znodes=frozenset(group.znodes),
        layout=group.layout,
    )


def _plain(offset: int | None) -> KafkaOffset | None:
    return None if offset is None else KafkaOffset(offset)


def back(group: str, before: Before, marker: bytes | None, marked: bool) -> Change:
    """Return the change that restores the offsets from before the last change.

    ``before``: the state with these offsets, from the group's record. ``marker``: the current
    migration marker. ``marked``: whether the last change was finished, and wrote ``marker``.
    """
    held = before.zk if before.target is Store.ZOOKEEPER else before.kafka
    after = {**held, **before.to}
    first = migration_marker.ROLLED_BACK if before.marker is None else before.marker
    previous = first if marked else marker
    zk, kafka = (after, before.kafka) if before.target is Store.ZOOKEEPER else (before.zk, after)
    return Change(
        group,
        before.target,
        zk,
        kafka,
        {tp: held.get(tp) for tp in before.to},
        None,
        marker,
        previous,
        frozenset({previous, before.marker}),
        {},
        before.target,
        before.skipped,
        before.kafka_group or group,
        may_have_expired=before.target is Store.KAFKA,
        any_source=not marked,
    )


def before(change: Change, locked: bool) -> Before:
    """Return the state before a change, to be stored in the group's record."""
    zk, versions = dict(change.zk), change.versions or {}
    for tp, version in versions.items():
        if zk.get(tp) is None and version is not None:
            zk[tp] = KafkaOffset(-1)  # there is a znode that says so
    return Before(
        change.target, change.renamed, change.before, locked, change.skipped, zk, change.kafka,
        change.to,
    )  # fmt: skip


TAKEN_BACK: Final = (
    "its last change was already undone; undo --again undoes the change before it, or the copy"
)


@dataclass(frozen=True, slots=True)
class Asked:
    """The requested undo.

    ``digest``: undo only if the plan with this digest made the last change; empty: undo any change.
    ``again``: also undo a change that was itself an undo. ``force``: also roll back groups with
    offsets that were committed after the move.
    """

    digest: str = ""
    force: bool = False
    again: bool = False


def way_back(state: GroupState, asked: Asked, planned: GroupPlan, records: Records) -> Way | Result:
    """Return how ``undo`` moves a group back or, if it does not, the outcome.

    ``state``: if it was read from ZooKeeper alone, it does not show whether new consumers have
    committed, so the result may be ``ROLL_BACK`` instead of ``COPY_BACK``. ``planned``: the group,
    with the plan's marker and verdict. ``records``: the group's steps in the plan's journal.
    """
    group, found = state.group, state.record
    other = bool(asked.digest) and asked.digest not in (found.of_plan, found.undoes)
    refusal = by_table(state, Action.UNDO, asked.force)
    if refusal is not None and not (other and refusal.outcome is Outcome.WAS_DONE):
        return refusal
    if asked.digest not in ("", found.of_plan):
        return _without_change(state, asked, planned, records)
    way = decide(state, Action.UNDO).way or Way.ROLL_BACK
    if way is Way.UNLOCK and asked.again and state.copied_back:
        way = Way.ROLL_BACK  # it was moved live, which has left it a mode
    if way not in (Way.ROLL_BACK, Way.COPY_BACK):
        return way
    in_kafka = state.moved_to is Store.KAFKA
    if found.taken_back and not asked.again:
        if in_kafka and not asked.digest:
            return Result(group, Outcome.REFUSED, 0, TAKEN_BACK, (Reason.MOVED,))
        if not asked.digest or state.copied_back or found.stage is Stage.UNDONE:
            why = "" if asked.digest or found.stage is Stage.UNDONE else TAKEN_BACK
            return Result(group, Outcome.WAS_DONE, 0, why)
    if found.stage not in (Stage.NONE, Stage.UNDONE):
        return Way.ROLL_BACK if asked.force else way
    if in_kafka and not (asked.digest and found.plan and found.stage is Stage.UNDONE):
        return Way.COPY_BACK  # what was before the move is not known
    if found.stage is Stage.NONE:
        return _without_change(state, asked, planned, records)
    return Result(group, Outcome.WAS_DONE, 0)


def _without_change(
    state: GroupState, asked: Asked, planned: GroupPlan, records: Records
) -> Result:
    """Return the outcome of a group whose last change was not requested to be undone."""
    group, found = state.group, state.record
    if found.mirror:
        why = Answer(Do.REFUSE, Reason.MIRRORED).why
        return Result(group, Outcome.REFUSED, 0, why, (Reason.MIRRORED,))
    last = records[-1]["step"] if records else ""
    finished = found.stage in (Stage.DONE, Stage.UNDONE)
    undone = last in ("undo-mark", "undo-done") and finished
    if undone or (asked.digest and found.taken_back and asked.digest == found.undoes):
        return Result(group, Outcome.WAS_DONE, 0)
    marker = None if state.marker is None else state.marker.data
    since = found.interrupted or (found.stage is Stage.DONE and marker != planned.marker)
    stands = since and planned.verdict is Verdict.READY
    # ``write`` is in the journal before the group's record says that it begins.
    if stands or (since_plan(records) and last not in ("claim", "write")):
        whose = f"the plan with the SHA-256 {found.of_plan}" if found.of_plan else "no plan"
        text = f"its last change was made by {found.by} with {whose}"
        return ended_by(group, refused(group, Reason.MOVED_SINCE, text))
    return Result(group, Outcome.NOTHING, 0, "was not begun", (Reason.NOT_MOVED,))
