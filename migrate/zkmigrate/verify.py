"""Compares what a plan's target holds with what the plan says. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from zkconsumer.core.types import TopicPartition
from zkmigrate.model import GroupPlan
from zkmigrate.plan import show


class Difference(NamedTuple):
    """One partition whose offset is not what was planned; ``None``: no offset."""

    group: str
    topic: str
    partition: int
    planned: int | None
    found: int | None
    what: str


def compare(plan: GroupPlan, held: Mapping[TopicPartition, int | None]) -> Iterator[Difference]:
    """Yield every partition that the target does not hold as planned.

    Partitions that the plan does not name are differences too: somebody else stored them.
    """
    planned = {entry.tp: entry.to for entry in plan.entries}
    for tp in sorted({*planned, *held}):
        to, found = planned.get(tp), held.get(tp)
        if to == found:
            continue
        if tp not in planned:
            what = "not in the plan"
        elif to is None or found is None:
            what = "missing" if found is None else "was to have no offset"
        else:
            what = f"{found - to} further" if found > to else f"{to - found} behind"
        yield Difference(plan.group, *tp, to, found, what)


def text(difference: Difference) -> str:
    """Return a difference for people."""
    return (
        f"{difference.topic}-{difference.partition}: planned {show(difference.planned)}, "
        f"found {show(difference.found)} ({difference.what})"
    )
