"""Compares what a plan's target holds with what the plan says. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from zkmigrate.model import Direction, GroupPlan, HeldNow, covers
from zkmigrate.plan import show


class Difference(NamedTuple):
    """One partition whose offset is not what was planned; ``None``: no offset."""

    group: str
    topic: str
    partition: int
    planned: int | None
    found: int | None
    what: str


def compare(plan: GroupPlan, direction: Direction, held: HeldNow) -> Iterator[Difference]:
    """Yield every partition that the target does not hold as planned.

    Offsets that the plan does not know are differences too, in either store: they came later, and
    those in the store that was left did not move.
    """
    planned = {entry.tp: entry.to for entry in plan.entries}
    target, left = held[direction.target], held[direction.source]
    for tp in sorted({*planned, *target, *left}):
        to, found = planned.get(tp), target.get(tp)
        if tp not in planned:
            what = "not in the plan"
            if found is None:
                found, what = left.get(tp), f"only in {direction.source.value}, {what}"
        elif to is None or found is None:
            what = "missing" if found is None else "was to have no offset"
        else:
            what = f"{found - to} further" if found > to else f"{to - found} behind"
        if to != found and not covers(plan.skipped, tp):
            yield Difference(plan.group, *tp, to, found, what)


def stays_behind(plan: GroupPlan, direction: Direction, held: HeldNow) -> Iterator[Difference]:
    """Yield every offset that the plan leaves out and that is now in the source store only."""
    source, target = held[direction.source], held[direction.target]
    for tp, offset in sorted(source.items()):
        if offset is not None and offset != target.get(tp) and covers(plan.skipped, tp):
            what = f"stays behind in {direction.source.value}: skipped"
            yield Difference(plan.group, *tp, None, offset, what)


def text(difference: Difference) -> str:
    """Return a difference for people."""
    return (
        f"{difference.topic}-{difference.partition}: planned {show(difference.planned)}, "
        f"found {show(difference.found)} ({difference.what})"
    )
