"""How long the group took to deliver every partition on time again after each fault. No IO.

A message is **late** if it is first delivered more than ``GAP`` seconds after its acknowledgement.
So time in which the producer cannot write does not count. The producer's own gaps are measured
separately, because a stopped broker accepts no messages.

The recovery begins with the fault's cause. It lasts as long as messages of any partition are late,
with pauses of ``STEADY`` seconds at most. Later delays of ``HICCUP`` seconds at most are counted
separately, because they also happen on a busy machine without a fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.soak.history import History, Message

GAP = 0.5
"""Seconds. By default each partition gets 31 messages per second."""
STEADY = 3.0
HICCUP = 1.0

Block = tuple[float, float]
"""Start and end of an interruption."""


def late(acked: Mapping[int, Message], delivered: Iterable[Message]) -> list[Block]:
    """When messages of one partition were late. There is no end for messages that were never
    delivered."""
    first: dict[int, float] = {}
    for message in delivered:
        first[message.offset] = min(message.at, first.get(message.offset, message.at))
    found = []
    for offset, message in acked.items():
        at = first.get(offset, float("inf"))
        if at - message.at > GAP:
            found.append((message.at + GAP, at))
    return found


def gaps(times: Sequence[float], ended: float) -> list[Block]:
    """Gaps of more than ``GAP`` seconds in the ordered ``times``, until ``ended``."""
    pairs = zip(times, [*times[1:], ended], strict=True)
    return [(one + GAP, after) for one, after in pairs if after - one > GAP]


def merged(blocks: Iterable[Block]) -> list[Block]:
    """The intervals in order. Overlapping ones are merged."""
    found: list[Block] = []
    for began, ended in sorted(blocks):
        if found and began <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], ended))
        else:
            found.append((began, ended))
    return found


def recovered(blocks: Sequence[Block], began: float, until: float) -> tuple[float, float]:
    """Seconds from ``began`` to the end of the recovery, or 0 if nothing was late. Also the longest
    later delay until ``until``, in seconds. ``blocks`` is merged."""
    over, hiccup = began, 0.0
    for first, last in blocks:
        if last <= began or first >= until:
            continue
        ended = min(last, until)
        if first - over > STEADY and last - first + GAP <= HICCUP:
            hiccup = max(hiccup, last - first + GAP)
        else:
            over = max(over, ended)
    return over - began, hiccup


def percentile(values: Sequence[float], part: float) -> float:
    """The value below which ``part`` of the values are (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def counted(history: History) -> dict[str, dict[str, int]]:
    """Planned and delivered faults, by kind and variant."""
    found: dict[str, dict[str, int]] = {}
    for fault in history.faults:
        one = found.setdefault(
            f"{fault.kind}: {fault.variant}" if fault.variant else fault.kind,
            {"planned": 0, "delivered": 0},
        )
        one["planned"] += 1
        one["delivered"] += fault.delivered
    return dict(sorted(found.items()))


def measured(history: History) -> list[dict[str, Any]]:
    """The measurements of each fault that was delivered alone.

    Seconds until every partition was delivered on time again count from the start of its cause
    (``all``) and from its end (``back``). The others are the seconds until the producer could write
    to all partitions, the longest later delay, and the number of member sessions that expired.
    """
    sends = [
        sorted(message.at for message in history.acked.get(p, {}).values())
        for p in range(history.partitions)
    ]
    last = max((times[-1] for times in sends if times), default=0.0)
    overdue = merged(
        block
        for p in range(history.partitions)
        for block in late(history.acked.get(p, {}), history.delivered.get(p, ()))
    )
    stuck = merged(block for times in sends for block in gaps(times, last))
    found = []
    for fault in history.faults:
        if not (fault.alone and fault.delivered):
            continue
        until = min(next((e for b, e in history.quiet if b >= fault.ended - 0.5), last), last)
        whole, hiccup = recovered(overdue, fault.began, until)
        found.append(
            {
                "fault": f"{fault.kind}: {fault.variant}" if fault.variant else fault.kind,
                "at": fault.began,
                "lasted": fault.ended - fault.began,
                "all": whole,
                "back": recovered(overdue, fault.ended, until)[0],
                "producer": recovered(stuck, fault.began, until)[0],
                "hiccup": hiccup,
                "sessions": sum(
                    one.ended is not None
                    and fault.began < one.ended <= until
                    and one.how not in ("released", "still held")
                    for one in history.registrations
                ),
            }
        )
    return found


def table(history: History) -> dict[str, dict[str, Any]]:
    """For each fault, the number of measurements and the seconds of each."""
    found: dict[str, dict[str, Any]] = {}
    for one in measured(history):
        row = found.setdefault(
            one["fault"], {"all": [], "back": [], "producer": [], "hiccup": [], "sessions": []}
        )
        for name in row:
            row[name].append(round(one[name], 2))
    return dict(sorted(found.items()))
