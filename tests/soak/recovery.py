"""How long the group took to deliver every partition on time again after each fault. Pure.

A message is **late** when it is first handed out more than ``GAP`` seconds after its
acknowledgement. (So time in which the producer cannot write does not count. The producer's own
gaps are measured beside it: a broker that is gone takes no messages.) The recovery begins with the
fault's cause and lasts as long as messages of any partition are late, with pauses of ``STEADY``
seconds at most. What is late after such a pause, for ``HICCUP`` seconds at most, is counted apart:
a busy machine does that without a fault too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.soak.history import History, Message

GAP = 0.5
"""Seconds. Each partition gets 31 messages a second by default."""
STEADY = 3.0
HICCUP = 1.0

Block = tuple[float, float]
"""From when to when something did not continue."""


def late(acked: Mapping[int, Message], delivered: Iterable[Message]) -> list[Block]:
    """When messages of one partition were overdue; without an end for those never handed out."""
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
    """When there was nothing for more than ``GAP``, of ``times`` in order, until ``ended``."""
    pairs = zip(times, [*times[1:], ended], strict=True)
    return [(one + GAP, after) for one, after in pairs if after - one > GAP]


def merged(blocks: Iterable[Block]) -> list[Block]:
    """In order, and those that overlap as one."""
    found: list[Block] = []
    for began, ended in sorted(blocks):
        if found and began <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], ended))
        else:
            found.append((began, ended))
    return found


def recovered(blocks: Sequence[Block], began: float, until: float) -> tuple[float, float]:
    """Seconds from ``began`` to the end of the recovery (0: nothing was late); and the longest
    hiccup from then to ``until``, as seconds that something was late by. ``blocks`` is merged."""
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


def measured(history: History) -> list[dict[str, Any]]:
    """Each fault that was delivered alone: seconds until every partition was delivered on time
    again, from when its cause was there (``all``) and from when it was gone (``back``); until the
    producer could write to all partitions; the longest hiccup; and how many sessions of members
    ended that nobody closed."""
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
    """By fault: how many were measured, and the seconds of each."""
    found: dict[str, dict[str, Any]] = {}
    for one in measured(history):
        row = found.setdefault(
            one["fault"], {"all": [], "back": [], "producer": [], "hiccup": [], "sessions": []}
        )
        for name in row:
            row[name].append(round(one[name], 2))
    return dict(sorted(found.items()))
