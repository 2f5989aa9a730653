"""The history of one group, as a fold over its events. Plain Python, without Spark and IO.

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

``audit_group`` does the same for one group, and also returns what its rules find
(``zkaudit.group.rules``).

For lifetimes, commits and changes, ``events`` may also have events of other groups. Live moves and
rules need those of one group, and the closes of all sessions may be among them. ``ACTS`` has the
act of each type of transaction; other types are not read. Writes and deletes of a migration's
znodes are returned unchanged (``Change``).

With log gaps, pass ``Coverage([(after, before), ...])``. A history that does not begin with the
first transaction of an ensemble has the log gap (0, its first zxid). Znodes in snapshots are
passed as ``Shown``. From the ``known`` zxids (``Coverage``) on, a missing owner znode proves that
there was no owner.

A history that is too large for the memory is read twice as a stream: all events but writes of
offsets by ``LaterEvents.read`` (without log gaps, registrations and migration markers are enough),
then all events by ``Fold.apply``, whose rows are complete when it returns them. ``Fold.finish``
returns the rest.

A value that a log gap hides is ``UNKNOWN``. ``None`` means that there is none: no owner, no
earlier offset, no end yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from zkaudit.group.coverage import UNKNOWN, Coverage, LogGap, Unknown
from zkaudit.group.events import (
    ACTS,
    Act,
    Began,
    Burst,
    Change,
    Commit,
    Deleted,
    Ended,
    Event,
    Kind,
    Lifetime,
    Membership,
    Moment,
    Refused,
    Row,
    Shown,
    Write,
    member_of,
)
from zkaudit.group.facts import Facts, FactsReader, Opened, Partition, TopicEvent, Topics, topics_of
from zkaudit.group.fold import Fold
from zkaudit.group.later import LaterEvents
from zkaudit.group.live_moves import LiveMove
from zkaudit.group.rules import Evidence, Finding, Rules
from zkaudit.group.znodes import Znode, znode_of
from zkaudit.limits import Limits

__all__ = [
    "ACTS",
    "UNKNOWN",
    "Act",
    "Began",
    "Burst",
    "Change",
    "Commit",
    "Coverage",
    "Deleted",
    "Ended",
    "Event",
    "Evidence",
    "Facts",
    "FactsReader",
    "Finding",
    "Fold",
    "Kind",
    "LaterEvents",
    "Lifetime",
    "LiveMove",
    "LogGap",
    "Membership",
    "Moment",
    "Opened",
    "Partition",
    "Refused",
    "Replay",
    "Row",
    "Rules",
    "Shown",
    "TopicEvent",
    "Topics",
    "Unknown",
    "Write",
    "Znode",
    "audit_group",
    "member_of",
    "replay",
    "topics_of",
    "znode_of",
]


class Replay(NamedTuple):
    """The rows that ``Fold`` returned for the events of one group."""

    lifetimes: list[Lifetime]
    """Lifetimes in the order in which they ended, followed by those that did not end."""
    commits: list[Commit]
    changes: list[Change]
    """Changes of znodes of migrations."""
    live_moves: list[LiveMove]
    """The live move, if the group has a mode."""

    def add(self, row: Row | LiveMove) -> None:
        """Add a row that ``Fold`` returned."""
        if isinstance(row, Lifetime):
            self.lifetimes.append(row)
        elif isinstance(row, Commit):
            self.commits.append(row)
        elif isinstance(row, Change):
            self.changes.append(row)
        elif isinstance(row, LiveMove):
            self.live_moves.append(row)


def replay(
    events: Iterable[Event], coverage: Coverage | None = None, shown: Sequence[Shown] = ()
) -> Replay:
    """Run the events of one group, which may be in any order, through ``Fold``. Return the rows."""
    done = Replay([], [], [], [])
    coverage, history = coverage or Coverage(), list(events)
    for row in _rows(history, coverage, shown, _later(history, coverage, shown)):
        done.add(row)
    return done


def audit_group(
    events: Iterable[Event],
    facts: Facts | None = None,
    limits: Limits | None = None,
    coverage: Coverage | None = None,
    shown: Sequence[Shown] = (),
) -> tuple[Replay, list[Finding]]:
    """Run the events of one group through ``Fold``, and apply the rules to the rows. Return the
    rows and the findings.

    The history ends with ``facts.end``, or with the last event if that is later.
    """
    coverage, facts, history = coverage or Coverage(), facts or Facts(), list(events)
    done, findings = Replay([], [], [], []), list[Finding]()
    rules = Rules(coverage, facts, limits or Limits())
    rules.later = later = _later(history, coverage, shown)
    for row in _rows(history, coverage, shown, later):
        done.add(row)
        findings += rules.read(row)
    ends = [facts.end, *(Moment(*event[:3]) for event in history)]
    findings += rules.finish(max(ends, key=_place))
    return done, findings


def _later(events: Sequence[Event], coverage: Coverage, shown: Sequence[Shown]) -> LaterEvents:
    later = LaterEvents(coverage, shown)
    for event in sorted(events, key=_place):
        later.read(event)
    return later


def _rows(
    events: Sequence[Event], coverage: Coverage, shown: Sequence[Shown], later: LaterEvents
) -> Iterator[Row | LiveMove]:
    fold = Fold(coverage, shown, later)
    for event in sorted(events, key=_place):
        yield from fold.apply(event)
    yield from fold.finish()


def _place(event: Event | Moment) -> tuple[int, int]:
    return event.zxid, event.idx
