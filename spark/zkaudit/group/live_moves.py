"""The modes of a group in a live move between ZooKeeper and the coordinator.

``LiveMoves`` collects the rows of a group's fold about modes: writes of members and operators, and
registrations. At the end it turns them into a ``LiveMove``: intervals of modes with their
acknowledgements. A move is a few transactions for each member, so they are kept until then.
Formats: ``zkconsumer.core.migration.znodes``; record of a lock: ``zkmigrate.apply.guard``.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Final, NamedTuple

from zkaudit.group.coverage import UNKNOWN, Coverage
from zkaudit.group.events import FROM_SNAPSHOT, Act, Began, Change, Event, Lifetime, Moment, Row
from zkaudit.group.znodes import IDS, LOCK, MEMBERS, MIGRATION, MODE, Znode
from zkconsumer.core.migration.modes import RULES, Mode
from zkconsumer.core.migration.znodes import decode_member, decode_mode, member_id_of
from zkconsumer.errors import ZnodeFormatError

COORDINATIONS: Final[Mapping[Mode, str]] = {m: rule.follows.value for m, rule in RULES.items()}
"""The coordination whose assignment members follow in each mode: ``zookeeper`` or
``coordinator``."""


class Acknowledgement(NamedTuple):
    """A member's acknowledgement of a mode."""

    member: str
    session: int
    at: Moment


class Wait(NamedTuple):
    """A period during which a migratable member was registered but had not acknowledged the mode.

    ``end``: when it acknowledged or left, or the next mode was written; ``None``: none of these
    happened.
    """

    member: str
    session: int
    begin: Moment
    end: Moment | None
    acknowledged: bool


class Lock(NamedTuple):
    """A change of a group's lock: a write or deletion of the original access list, which the znode
    ``ids`` keeps while the group is locked."""

    at: Moment
    session: int
    locked: bool


@dataclass(frozen=True, slots=True)
class Span:
    """The time during which a group was in one mode, from the write of its mode znode to the next
    write.

    Args:
        mode: ``None``: the content is not a mode.
        version: version of the mode znode; ``None``: unknown.
        start: the operation that wrote it.
        session: the session that wrote it; 0: unknown.
        created: whether this write created the znode.
        end: the next write, or the znode's deletion.
        ended: how it ended: ``next mode``, ``deleted``, ``still`` (not ended) or ``unknown`` (modes
            may be missing).
        seen_zxid: zxid of the write, or of the last snapshot that shows the mode.
        members: number of migratable members that were registered at the write.
        acknowledged: acknowledgements in the order of their transactions.
        waits: one for each member that had not acknowledged yet.
        settled: the first transaction after which all registered members had acknowledged.
    """

    mode: Mode | None
    version: int | None
    start: Moment
    session: int
    created: bool
    end: Moment | None
    ended: str
    seen_zxid: int
    members: int = 0
    acknowledged: tuple[Acknowledgement, ...] = ()
    waits: tuple[Wait, ...] = ()
    settled: Moment | None = None

    @property
    def late(self) -> tuple[str, ...]:
        """The members that had not acknowledged the mode when it ended, or when the history
        ended."""
        end = self.end and self.end.zxid
        waiting = {w.member for w in self.waits if (w.end and w.end.zxid) == end}
        return tuple(sorted(waiting - {w.member for w in self.waits if w.acknowledged}))


class Phase(NamedTuple):
    """A period during which a member's session followed ZooKeeper or the coordinator. ``begin`` and
    ``end`` are ``None`` if there was no change before or after it."""

    session: int
    begin: Moment | None
    end: Moment | None
    coordination: str


@dataclass(frozen=True, slots=True)
class LiveMove:
    """The live move of a group: its modes and its members.

    Args:
        znode: the mode's znode.
        spans: the modes in order; there is at least one.
        registrations: the registrations of all members since the first mode, including legacy
            members.
        migratable: member and session of each migratable member.
        member_ids: the ids of migratable members at the coordinator.
        locks: changes of the group's lock, in order.
        closed: the zxids at which sessions ended.
        coverage: the segments of the history.
    """

    znode: Znode
    spans: tuple[Span, ...]
    registrations: tuple[Lifetime, ...]
    migratable: frozenset[tuple[str, int | None]]
    member_ids: frozenset[str]
    locks: tuple[Lock, ...]
    closed: Mapping[int, int] = field(default_factory=dict)
    coverage: Coverage = field(default_factory=Coverage)

    def span_at(self, zxid: int) -> Span | None:
        """Return the mode in which the group was just before a transaction."""
        for span in reversed(self.spans):
            if span.start.zxid < zxid:
                return span if span.end is None or span.end.zxid >= zxid else None
        return None

    def of_members(self, migratable: bool) -> Iterator[Lifetime]:
        """Yield the registrations of migratable members, or of all others."""
        for one in self.registrations:
            if ((one.znode.name, one.session) in self.migratable) is migratable:
                yield one

    def phases(self) -> Iterator[Phase]:
        """Yield, for the session of each migratable member, the periods during which it followed
        ZooKeeper or the coordinator.

        A new registration begins with the current mode. Later modes apply from the transaction with
        which the member acknowledged them.
        """
        changes: defaultdict[int, list[tuple[Moment, str]]] = defaultdict(list)
        for one in self.of_members(migratable=True):
            if one.session is not None and one.start is not UNKNOWN:
                span = self.span_at(one.start.zxid)
                if span is not None and span.mode is not None:
                    changes[one.session].append((one.start, COORDINATIONS[span.mode]))
        for span in self.spans:
            if span.mode is not None:
                for ack in span.acknowledged:
                    changes[ack.session].append((ack.at, COORDINATIONS[span.mode]))
        for session, followed in sorted(changes.items()):
            followed.sort(key=lambda change: change[0].zxid)
            kept = [c for n, c in enumerate(followed) if n == 0 or c[1] != followed[n - 1][1]]
            for number, (at, coordination) in enumerate(kept):
                end = kept[number + 1][0] if number + 1 < len(kept) else None
                yield Phase(session, at if number else None, end, coordination)


class LiveMoves:
    """Collects the rows from ``Fold`` that concern a group's modes.

    Args:
        coverage: the segments of the history.
    """

    def __init__(self, coverage: Coverage) -> None:
        self._coverage = coverage
        self._changes: dict[str, list[Change]] = {MODE: [], MEMBERS: [], LOCK: [], MIGRATION: []}
        self._registrations: dict[Lifetime, None] = {}
        """Registrations in the order in which they began, without those that ended before the
        first mode."""

    def read(self, row: Row) -> None:
        """Read the next row."""
        if isinstance(row, Change):
            if row.znode.tree != MIGRATION:
                self._changes[row.znode.tree].append(row)
        elif isinstance(row, Began):
            if row.lifetime.znode.tree == IDS:
                self._registrations[row.lifetime] = None
        elif isinstance(row, Lifetime) and not self._changes[MODE]:
            self._registrations.pop(row, None)

    def finish(self, closed: Mapping[int, int], shown: Mapping[int, int]) -> LiveMove | None:
        """Return the group's live move; ``None`` if it had no mode. Call it at the end of the
        history.

        Args:
            closed: the zxids at which sessions ended.
            shown: the last snapshot that shows a mode, by the zxid that wrote the mode.
        """
        modes = [change.event for change in self._changes[MODE]]
        spans = list(_spans(modes, shown, self._coverage))
        if not spans:
            return None
        writes = [row for row in self._changes[MEMBERS] if row.event.act is not Act.DELETE]
        migratable = frozenset((row.znode.name, row.event.session) for row in writes)
        ours = [one for one in self._registrations
                if (one.znode.name, one.session) in migratable]  # fmt: skip
        acknowledged = _acknowledgements(spans, writes)
        return LiveMove(
            self._changes[MODE][0].znode,
            tuple(_with_members(*each, ours) for each in zip(spans, acknowledged, strict=True)),
            tuple(self._registrations),
            migratable,
            frozenset(_unicode(member_id_of(row.event.data or b"")) for row in writes) - {""},
            tuple(_locks(row.event for row in self._changes[LOCK])),
            closed,
            self._coverage,
        )


def _spans(events: Sequence[Event], shown: Mapping[int, int], coverage: Coverage) -> Iterator[Span]:
    for event, later in zip_longest(events, events[1:]):
        if event.act is Act.DELETE:
            continue
        version = 0 if event.act is Act.CREATE else event.version
        seen = max(event.zxid, shown.get(event.zxid, 0))
        gap = coverage.is_missing(seen, None if later is None else later.zxid)
        if later is None:
            ended = "unknown" if gap else "still"
        elif later.act is Act.DELETE:
            ended = "unknown" if gap else "deleted"
        elif later.act is Act.SET and version is not None and later.version == version + 1:
            ended = "next mode"  # the versions show that no mode is missing in between
        else:
            ended = "unknown"
        end = None if later is None else Moment(*later[:3])
        created = event.act is Act.CREATE
        start = Moment(*event[:3])
        yield Span(_mode(event), version, start, event.session, created, end, ended, seen)


def _mode(event: Event) -> Mode | None:
    try:
        return decode_mode("", event.data or b"")
    except ZnodeFormatError:
        return None


def _acknowledgements(
    spans: Sequence[Span], writes: Iterable[Change]
) -> Iterable[list[Acknowledgement]]:
    """Return the acknowledgements of each mode, assigned to the last mode with its number."""
    acknowledged: list[list[Acknowledgement]] = [[] for _ in spans]
    for znode, event in writes:
        try:
            number = decode_member("", event.data or b"")
        except ZnodeFormatError:
            continue
        shown = event.idx == FROM_SNAPSHOT  # its content may be newer than its creation
        places = [
            place
            for place, span in enumerate(spans)
            if span.version == number and (span.start.zxid < event.zxid or shown)
        ]
        if number is not None and places:
            at = Moment(*event[:3])
            if shown:
                at = Moment(max(event.zxid, spans[places[-1]].start.zxid), 0)
            acknowledged[places[-1]].append(Acknowledgement(znode.name, event.session, at))
    return acknowledged


def _with_members(
    span: Span, acknowledged: Sequence[Acknowledgement], ours: Sequence[Lifetime]
) -> Span:
    """Add the members that acknowledged a mode, and how long the others had not."""
    times: defaultdict[tuple[str, int | None], list[Acknowledgement]] = defaultdict(list)
    for one in acknowledged:
        times[one.member, one.session].append(one)
    waits = [
        wait
        for one in ours
        if (wait := _wait(span, one, times.get((one.znode.name, one.session), ()))) is not None
    ]
    return replace(
        span,
        members=sum(one.existed_before(span.start.zxid) for one in ours),
        acknowledged=tuple(mine[0] for mine in times.values()),
        waits=tuple(waits),
        settled=_settled(span, waits),
    )


def _wait(span: Span, one: Lifetime, acknowledged: Iterable[Acknowledgement]) -> Wait | None:
    if one.start is UNKNOWN or one.session is None:
        return None  # it is unknown whether it was registered
    begin = one.start if one.start.zxid > span.start.zxid else span.start
    gone = one.end if one.last_seen is None else Moment(one.last_seen, 0)
    ends = [(end, False) for end in (gone, span.end) if end is not None]
    if any(end.zxid <= begin.zxid for end, _ in ends):
        return None
    ends += [(mine.at, True) for mine in acknowledged if mine.at.zxid >= begin.zxid]
    end, is_acknowledged = min(ends, key=lambda at: at[0].zxid, default=(None, False))
    return Wait(one.znode.name, one.session, begin, end, is_acknowledged)


def _settled(span: Span, waits: Sequence[Wait]) -> Moment | None:
    at = span.start
    while span.end is None or at.zxid < span.end.zxid:
        ends = [
            wait.end
            for wait in waits
            if wait.begin.zxid <= at.zxid and (wait.end is None or wait.end.zxid > at.zxid)
        ]
        if not ends:
            return at
        known = [end for end in ends if end is not None]
        if len(known) < len(ends):
            return None
        at = max(known, key=lambda end: end.zxid)
    return None


def _locks(events: Iterable[Event]) -> Iterator[Lock]:
    """Return operations that add or remove the lock's record. Rewriting the record changes
    nothing."""
    before = False
    for event in events:
        locked = event.act is not Act.DELETE and is_lock_record(event.data)
        if locked != before:
            yield Lock(Moment(*event[:3]), event.session, locked)
        before = locked


def _unicode(text: str) -> str:
    """Return text from JSON, which may have half a surrogate pair that no table can store."""
    return text.encode("utf-8", "replace").decode()


def is_lock_record(data: bytes | None) -> bool:
    """Return whether a group's ``ids`` znode contains the record of ``zkmigrate``'s lock."""
    try:
        record = json.loads((data or b"").decode())
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and "zkmigrate" in record and "acl" in record
