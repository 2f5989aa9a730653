"""What happened in one group: a fold over its events. Plain Python, without Spark and without IO.

The zxid orders everything and groups are independent. So one pass over the events of a group, in
the order of (zxid, idx), gives the lifetimes of its registrations and owner znodes and its commits,
each commit with the owner at that transaction and the offset before it.

``replay`` does all of it for a history in memory::

    events = [
        Event(1, 0, None, 5, Act.CREATE, "/consumers/g/owners/t/0", b"g_c-0", True),
        Event(2, 0, None, 5, Act.SET, "/consumers/g/offsets/t/0", b"9"),
        Event(3, 0, None, 5, Act.CLOSE),
    ]
    history = replay(events)
    history.commits[0].owner  # the lifetime of the owner znode
    history.lifetimes[0].ended  # Ended.CLOSED

``events`` may also have events of other groups. ``ACTS`` has the act of each type of transaction;
types that it lacks are not read. Closes of all sessions may be among the events.
Writes and deletes of the znodes of a migration are returned as they are (``Change``).

With log gaps, pass ``Coverage([(after, before), ...])``. A history that does not begin with the
first transaction of an ensemble has the log gap (0, its first zxid). What snapshots show is passed
as ``Shown``. Their ``known`` zxids (``Coverage``) are those from which on a missing owner znode
proves that there was no owner.

A history that is too large for the memory is read twice as a stream: all events but writes of
offsets by ``LaterEvents.read`` (only if there are log gaps), then all events by ``Fold.apply``,
whose rows are complete when it returns them. ``Fold.finish`` returns the rest.

What a log gap hides is ``UNKNOWN``; ``None`` means that there is nothing: no owner, no offset
before, no end yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from zkaudit.group.coverage import UNKNOWN, Coverage, LogGap, Unknown
from zkaudit.group.events import (
    ACTS,
    Act,
    Change,
    Commit,
    Ended,
    Event,
    Kind,
    Lifetime,
    Moment,
    Shown,
    Write,
    member_of,
)
from zkaudit.group.fold import Fold, Row
from zkaudit.group.later import LaterEvents
from zkaudit.group.znodes import Znode, znode_of

__all__ = [
    "ACTS",
    "UNKNOWN",
    "Act",
    "Change",
    "Commit",
    "Coverage",
    "Ended",
    "Event",
    "Fold",
    "Kind",
    "LaterEvents",
    "Lifetime",
    "LogGap",
    "Moment",
    "Replay",
    "Row",
    "Shown",
    "Unknown",
    "Write",
    "Znode",
    "member_of",
    "replay",
    "znode_of",
]


class Replay(NamedTuple):
    """The rows of a fold."""

    lifetimes: list[Lifetime]
    """In the order in which they ended; then those that did not."""
    commits: list[Commit]
    changes: list[Change]
    """Of znodes of migrations."""


def replay(
    events: Iterable[Event], coverage: Coverage | None = None, shown: Sequence[Shown] = ()
) -> Replay:
    """Fold events that are in memory, in any order."""
    coverage = coverage or Coverage()
    history = sorted(events, key=lambda event: (event.zxid, event.idx))
    later = LaterEvents(coverage, shown)
    if coverage.log_gaps:
        for event in history:
            later.read(event)
    fold = Fold(coverage, shown, later)
    done = Replay([], [], [])
    for row in (*(row for event in history for row in fold.apply(event)), *fold.finish()):
        if isinstance(row, Lifetime):
            done.lifetimes.append(row)
        elif isinstance(row, Commit):
            done.commits.append(row)
        else:
            done.changes.append(row)
    return done
