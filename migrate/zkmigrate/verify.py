"""Compares the current offsets in both stores with a plan and with the migration marker. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from zkconsumer.core.common.types import TopicPartition
from zkmigrate.exits import exit_status
from zkmigrate.model import Direction, GroupState, Store, exists
from zkmigrate.plan.options import covers
from zkmigrate.plan.values import GroupPlan

BEHIND = "behind"
"""The target has a lower offset than was moved, or none."""
AHEAD = "ahead"
"""The target is ahead of the plan, because consumers have used it since the move."""
SOURCE = "source-moved-on"
"""The source store has changed since the move: an old consumer is or was running."""
NOT_MOVED = "not-moved"
"""The group is not moved, or was moved back."""
UNREADABLE = "unreadable"
"""The group's data in the store is unreadable, so nothing is known."""
STAYS = "stays-behind"
"""The plan leaves the offset out, and only the source store has it."""

IGNORED = "ignored"
"""An operator decided to leave the group as it is."""

ORDER: Final = (UNREADABLE, NOT_MOVED, SOURCE, BEHIND, AHEAD, STAYS, IGNORED)
"""The kinds, the worst first."""
NEED_ATTENTION: Final = frozenset({NOT_MOVED, SOURCE, BEHIND})


class Difference(NamedTuple):
    """A partition whose offset is not as planned, or has changed in the source store since the
    move. ``kind``: one of the constants above. See the schema ``difference`` in ``rows``."""

    group: str
    topic: str | None
    partition: int | None
    planned: int | None
    found: int | None
    kind: str
    what: str
    kafka_group: str = ""


def compare(plan: GroupPlan, direction: Direction, state: GroupState) -> Iterator[Difference]:
    """Yield every partition whose offset in a store has changed since the move ended.

    The source store is compared with the marker, or with the plan if the marker has no offsets. An
    offset that was deleted from the source store is not a difference, because nothing is left
    behind, nor is one that was deleted with its topic. The target is compared only if the marker
    shows a move to it; otherwise the group counts as not moved. Moves to Kafka also compare the
    offsets in ``/consumers/GROUP/offset``.
    """
    marker = state.marker
    planned = {entry.tp: entry.to for entry in plan.entries}
    before = plan.source_offsets(direction)
    once = plan.misplaced()
    since = "the plan was made"
    moved = marker is not None and marker.moved_to is direction.target
    if marker is not None and moved:
        since = "the move"
        if marker.in_target or marker.misplaced:
            before, once = dict(marker.values), dict(marker.misplaced)
    else:
        yield about_group(plan, NOT_MOVED, "apply the plan, or make a new one")
    for tp, offset in sorted(state.misplaced.items()):
        late = direction.source is Store.ZOOKEEPER and offset != once.get(tp)
        if late and not covers(plan.skipped, tp):
            what = f"zookeeper has changed below offset since {since}: stop the old consumers"
            yield Difference(plan.group, *tp, once.get(tp), offset, SOURCE, what)
    source, target = state.offsets(direction.source), state.offsets(direction.target)
    for tp in sorted({*planned, *target, *source}):
        if covers(plan.skipped, tp):
            continue
        was, now = before.get(tp), source.get(tp)
        if now not in (None, was):
            what = f"{direction.source.value} has changed since {since}: stop the old consumers"
            if tp not in planned:
                what = f"in {direction.source.value}, not in the plan"
            yield Difference(plan.group, *tp, was, now, SOURCE, what)
        to, stored = planned.get(tp), target.get(tp)
        if to == stored or not moved:
            continue
        kind = BEHIND
        if stored is None:
            if not exists(state.topics, tp):
                continue
            what = "missing"
        elif to is None:
            kind, what = AHEAD, "planned without an offset" if tp in planned else "not in the plan"
        elif stored > to:
            kind, what = AHEAD, f"{stored - to} further"
        else:
            what = f"{to - stored} behind"
        yield Difference(plan.group, *tp, to, stored, kind, what)


def doubtful(
    plan: GroupPlan, direction: Direction, state: GroupState, late: Iterable[TopicPartition]
) -> Iterator[Difference]:
    """Yield each partition in ``late`` whose offset is still the planned one. ``late``: the
    partitions where the move may have overwritten a newer offset."""
    target = state.offsets(direction.target)
    planned = {entry.tp: entry.to for entry in plan.entries}
    for tp in late:
        if target.get(tp) == planned.get(tp):
            what = "may have overwritten a newer offset: compare it with its consumer"
            yield Difference(plan.group, *tp, planned.get(tp), target.get(tp), BEHIND, what)


def stays_behind(plan: GroupPlan, direction: Direction, state: GroupState) -> Iterator[Difference]:
    """Yield every offset that the plan leaves out and that is now in the source store only,
    including unreadable ones."""
    source: dict[TopicPartition, int | None] = {**state.offsets(direction.source)}
    if direction.source is Store.ZOOKEEPER:
        source |= {tp: None for tp, node in state.zk.items() if node.offset is None}
    target = state.offsets(direction.target)
    for tp, offset in sorted(source.items()):
        if (offset is None or offset != target.get(tp)) and covers(plan.skipped, tp):
            what = f"stays behind in {direction.source.value}: skipped"
            what += ", cannot be read" if offset is None else ""
            yield Difference(plan.group, *tp, None, offset, STAYS, what)


def about_group(plan: GroupPlan, kind: str, what: str) -> Difference:
    """Return a difference that concerns a whole group, not one partition."""
    return Difference(plan.group, None, None, None, None, kind, what, plan.kafka_group)


def status(found: Iterable[Difference], strict: bool = False) -> int:
    """Return the exit status. ``strict``: an offset that new consumers have moved forward is a
    problem."""
    kinds = {one.kind for one in found}
    attention = kinds & (NEED_ATTENTION | ({AHEAD} if strict else set()))
    return exit_status(failed=UNREADABLE in kinds, attention=bool(attention))
