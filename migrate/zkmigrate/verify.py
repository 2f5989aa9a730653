"""Compares what both stores hold now with a plan and with the migration marker. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from zkconsumer.core.common.types import TopicPartition
from zkmigrate.model import Direction, HeldNow, MigrationMarker
from zkmigrate.plan.options import covers
from zkmigrate.plan.values import GroupPlan

DIFFERENCE = "difference"
"""Something is wrong: the target lacks an offset or is behind, or the source store was used."""
PROGRESS = "progress"
"""The target is further than the plan says, as consumers leave it that use it since the move."""
STAYS = "stays-behind"
"""The plan leaves the offset out, and only the source store holds it."""


class Difference(NamedTuple):
    """One partition whose offset is not what was planned, or was in the source store.

    ``planned``: what the store was to hold; ``None``: no offset. ``kind``: ``DIFFERENCE``,
    ``PROGRESS`` or ``STAYS``.
    """

    group: str
    topic: str | None
    partition: int | None
    planned: int | None
    found: int | None
    kind: str
    what: str


def compare(
    plan: GroupPlan, direction: Direction, held: HeldNow, marker: MigrationMarker | None = None
) -> Iterator[Difference]:
    """Yield every partition where a store does not hold what it held right after the move.

    The source store is compared with the ``marker``; where there is none of a move to the target,
    or it has no offsets, with the plan. An offset that is gone from the source store is not
    a difference: nothing stays behind.
    """
    planned = {entry.tp: entry.to for entry in plan.entries}
    before = plan.source_offsets(direction)
    if marker is not None and marker.moved_to is direction.target and marker.values:
        before = dict(marker.values)
    source, target = _offsets(held[direction.source]), _offsets(held[direction.target])
    for tp in sorted({*planned, *target, *source}):
        if covers(plan.skipped, tp):
            continue
        was, now = before.get(tp), source.get(tp)
        if now not in (None, was):
            what = f"{direction.source.value} has changed since the move: stop the old consumers"
            if tp not in planned:
                what = f"in {direction.source.value}, not in the plan"
            yield Difference(plan.group, *tp, was, now, DIFFERENCE, what)
        to, found = planned.get(tp), target.get(tp)
        if to == found:
            continue
        kind = DIFFERENCE
        if found is None:
            what = "missing"
        elif to is None:
            kind, what = PROGRESS, "was to have no offset" if tp in planned else "not in the plan"
        elif found > to:
            kind, what = PROGRESS, f"{found - to} further"
        else:
            what = f"{to - found} behind"
        yield Difference(plan.group, *tp, to, found, kind, what)


def stays_behind(plan: GroupPlan, direction: Direction, held: HeldNow) -> Iterator[Difference]:
    """Yield every offset that the plan leaves out and that is now in the source store only."""
    source, target = held[direction.source], held[direction.target]
    for tp, offset in sorted(source.items()):
        if offset is not None and offset != target.get(tp) and covers(plan.skipped, tp):
            what = f"stays behind in {direction.source.value}: skipped"
            yield Difference(plan.group, *tp, None, offset, STAYS, what)


def unreadable(plan: GroupPlan, fault: str) -> Difference:
    """Return the difference that stands for what cannot be read of a group."""
    return Difference(plan.group, None, None, None, None, DIFFERENCE, fault)


def _offsets(held: Mapping[TopicPartition, int | None]) -> dict[TopicPartition, int]:
    """Return what a store holds, without the numbers that mean no offset."""
    return {tp: offset for tp, offset in held.items() if offset is not None and offset >= 0}
