"""How long the group took to deliver every partition again after each fault. Pure.

From the moment a fault's cause was there to the end of the last **gap** of any partition: a time in
which a partition that is written all the time had no message handed out for ``GAP`` seconds. A
broker that is gone takes no messages either; so the producer's gaps are measured the same way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from tests.soak.history import History

GAP = 0.5
"""Seconds without a message that count as a gap. Each partition gets one every 32 ms by default."""


def last_gap(times: Sequence[float], began: float, ended: float) -> float:
    """Seconds after ``began`` at which the last gap until ``ended`` was over; 0: there was none.

    ``times`` are in order. A gap that has no end by ``ended`` lasts until the next time, or to the
    end. One that begins less than ``GAP`` before ``ended`` belongs to what happens then.
    """
    at = max(0, bisect_left(times, began) - 1)
    result = 0.0
    while at < len(times) and times[at] < ended - GAP:
        after = times[at + 1] if at + 1 < len(times) else ended
        if after - times[at] >= GAP and after > began:
            result = after - began
        at += 1
    return result


def percentile(values: Sequence[float], part: float) -> float:
    """The value below which ``part`` of the values lie; nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def counted(history: History) -> dict[str, dict[str, int]]:
    """Faults by kind and variant: planned, and delivered."""
    found: dict[str, dict[str, int]] = {}
    for fault in history.faults:
        one = found.setdefault(
            f"{fault.kind}: {fault.variant}" if fault.variant else fault.kind,
            {"planned": 0, "delivered": 0},
        )
        one["planned"] += 1
        one["delivered"] += fault.delivered
    return dict(sorted(found.items()))


def times_of(history: History) -> tuple[list[list[float]], list[list[float]]]:
    """When each partition's messages were handed out, and when they were acknowledged."""
    return (
        [[m.at for m in history.delivered.get(p, ())] for p in range(history.partitions)],
        [
            sorted(m.at for m in history.acked.get(p, {}).values())
            for p in range(history.partitions)
        ],
    )


def measured(history: History) -> list[dict[str, Any]]:
    """Each fault that was delivered alone: seconds until the last partition was delivered again,
    from when its cause was there to when it was gone (``taken over``) and from then on (``back``);
    and until the producer could write to all partitions."""
    delivered, acked = times_of(history)
    last = max((times[-1] for times in acked if times), default=0.0)
    found = []
    for fault in history.faults:
        if not (fault.alone and fault.delivered):
            continue
        until = min(next((e for b, e in history.quiet if b >= fault.ended - 0.5), last), last)
        found.append(
            {
                "fault": f"{fault.kind}: {fault.variant}" if fault.variant else fault.kind,
                "at": fault.began,
                "lasted": fault.ended - fault.began,
                "all": _last(delivered, fault.began, until),
                "taken over": _last(delivered, fault.began, fault.ended),
                "back": _last(delivered, fault.ended, until),
                "producer": _last(acked, fault.began, until),
            }
        )
    return found


def _last(times: Sequence[Sequence[float]], began: float, ended: float) -> float:
    return max((last_gap(each, began, ended) for each in times), default=0.0)


def table(history: History) -> dict[str, dict[str, Any]]:
    """By fault: how many were measured, and the seconds of each."""
    found: dict[str, dict[str, Any]] = {}
    for one in measured(history):
        row = found.setdefault(one["fault"], {"all": [], "back": [], "producer": []})
        for name in row:
            row[name].append(round(one[name], 2))
    return dict(sorted(found.items()))
