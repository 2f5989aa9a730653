"""The modes of groups that migrate between ZooKeeper and the coordinator while they run.

``group_of`` turns the writes of members and operators into intervals of modes with their
acknowledgements. Plain Python: a migration is a few transactions for each member, so those of all
groups fit into the driver's memory. Formats: ``zkconsumer.core.migration.znodes``; record of a
lock: ``zkmigrate.apply.guard``. No Spark; any thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias

from zkconsumer.core.migration.modes import RULES, Mode
from zkconsumer.core.migration.znodes import decode_member, decode_mode, member_id_of
from zkconsumer.errors import ZnodeFormatError

LogGaps: TypeAlias = Sequence[tuple[int, int]]
"""Where transactions are missing, as in ``Stage.log_gaps``."""
FROM_SNAPSHOT: Final = 2**31 - 1
"""``idx`` of a znode known only from a snapshot: its content may be newer than its creation."""
COORDINATIONS: Final[Mapping[Mode, str]] = {m: rule.follows.value for m, rule in RULES.items()}
"""The coordination whose assignment members follow in each mode: ``zookeeper`` or
``coordinator``."""


class Moment(NamedTuple):
    """A transaction. ``us``: microseconds since 1970 by the leader's clock; ``None`` if unknown."""

    zxid: int
    us: int | None = None


class Act(NamedTuple):
    """One operation: a row of ``Stage.changes`` of the trees ``mode``, ``members`` and ``lock``."""

    tree: str
    name: str
    act: str
    zxid: int
    idx: int
    us: int | None
    session: int
    data: bytes | None
    version: int | None


class Registration(NamedTuple):
    """A lifetime of a registration: a row of table ``registrations``.

    ``logged``: whether its start is in the logs. ``sure``: if ``ended`` is unknown, the last
    transaction at which it is known to have existed. ``wants``: whether it subscribes to topics or
    has a filter; a tool that keeps others out does neither.
    """

    member: str
    session: int | None
    start: Moment | None
    logged: bool
    end: Moment | None
    sure: int | None
    ended: str
    wants: bool

    def there(self, zxid: int) -> bool:
        """Whether the registration is known to have existed just before a transaction."""
        if self.start is None or self.start.zxid >= zxid:
            return False
        if self.ended == "unknown":
            return self.sure is not None and self.sure >= zxid
        return self.end is None or self.end.zxid >= zxid


class Acknowledgement(NamedTuple):
    """A member recorded that it acts on a mode."""

    member: str
    session: int
    at: Moment


class Wait(NamedTuple):
    """A migratable member was registered and had not acknowledged the mode.

    ``end``: it acknowledged, left, or the next mode was written; ``None``: none of these.
    """

    member: str
    session: int
    begin: Moment
    end: Moment | None
    acknowledged: bool


class Lock(NamedTuple):
    """The record of the original access list of ``ids`` was written or deleted."""

    at: Moment
    session: int
    locked: bool


@dataclass(frozen=True, slots=True)
class Span:
    """One write of the mode znode, and the events until the next write.

    Args:
        mode: ``None``: the content is not a mode.
        version: number of the mode; ``None``: unknown.
        start: the transaction that wrote it.
        idx: index of the write in its multi.
        session: the session that wrote it; 0: unknown.
        created: whether this write created the znode.
        end: the next write, or the znode's deletion.
        ended: ``next mode``, ``deleted``, ``still`` or ``unknown`` (modes may be missing).
        members: number of migratable members that were registered when it was written.
        acknowledged: acknowledgements in the order of their transactions.
        waits: one for each member that had not acknowledged yet.
        settled: first transaction at which all registered members had acknowledged.
    """

    mode: Mode | None
    version: int | None
    start: Moment
    idx: int
    session: int
    created: bool
    end: Moment | None
    ended: str
    members: int = 0
    acknowledged: tuple[Acknowledgement, ...] = ()
    waits: tuple[Wait, ...] = ()
    settled: Moment | None = None

    @property
    def late(self) -> tuple[str, ...]:
        """Members that had not acknowledged when the mode or the history ended."""
        end = self.end and self.end.zxid
        found = {w.member for w in self.waits if (w.end and w.end.zxid) == end}
        return tuple(sorted(found - {w.member for w in self.waits if w.acknowledged}))


class Phase(NamedTuple):
    """A time in which a member's session followed one coordination. ``None`` as ``begin`` or
    ``end``: unlimited."""

    session: int
    begin: Moment | None
    end: Moment | None
    coordination: str


@dataclass(frozen=True, slots=True)
class Group:
    """A group that has, or had, a mode.

    Args:
        chroot: path before ``/consumers``.
        name: the group's id.
        spans: its modes in order.
        registrations: registrations of all its members, including legacy members.
        migratable: member and session of each migratable member.
        member_ids: their ids on the coordinator.
        locks: changes of the lock's record, in order.
    """

    chroot: str
    name: str
    spans: tuple[Span, ...]
    registrations: tuple[Registration, ...] = ()
    migratable: frozenset[tuple[str, int]] = frozenset()
    member_ids: frozenset[str] = frozenset()
    locks: tuple[Lock, ...] = ()

    def span_at(self, zxid: int) -> Span | None:
        """The mode just before a transaction."""
        for span in reversed(self.spans):
            if span.start.zxid < zxid:
                return span if span.end is None or span.end.zxid >= zxid else None
        return None

    def phases(self) -> list[Phase]:
        """The coordination that each migratable session followed over time.

        A new registration begins with the current mode. Later modes count from the transaction at
        which the member acknowledged them.
        """
        changes: dict[int, list[tuple[Moment, str]]] = {}
        for one in self.registrations:
            if one.session is None or one.start is None:
                continue
            span = self.span_at(one.start.zxid)
            if (one.member, one.session) in self.migratable and span and span.mode:
                found = changes.setdefault(one.session, [])
                found.append((one.start, COORDINATIONS[span.mode]))
        for span in self.spans:
            for ack in span.acknowledged:
                if span.mode is not None:
                    found = changes.setdefault(ack.session, [])
                    found.append((ack.at, COORDINATIONS[span.mode]))
        phases: list[Phase] = []
        for session, found in sorted(changes.items()):
            found.sort(key=lambda change: change[0].zxid)
            kept = [c for n, c in enumerate(found) if n == 0 or c[1] != found[n - 1][1]]
            for number, (at, coordination) in enumerate(kept):
                end = kept[number + 1][0] if number + 1 < len(kept) else None
                phases.append(Phase(session, at if number else None, end, coordination))
        return phases


def missing_between(first: int, last: int, log_gaps: LogGaps) -> bool:
    """Whether transactions between two zxids are missing."""
    return any(min(last, before) - max(first, after) >= 2 for after, before in log_gaps)


def group_of(
    chroot: str,
    name: str,
    acts: Iterable[Act],
    registrations: Iterable[Registration],
    last: int,
    log_gaps: LogGaps = (),
) -> Group:
    """Build a group's history. ``last``: zxid of the history's last transaction."""
    ordered = sorted(acts, key=lambda act: (act.zxid, act.idx))
    of_members = [a for a in ordered if a.tree == "members" and a.act in ("create", "set")]
    members = tuple(registrations)
    migratable = frozenset((act.name, act.session) for act in of_members)
    ours = [one for one in members if (one.member, one.session) in migratable]
    spans = _spans([act for act in ordered if act.tree == "mode"], last, log_gaps)
    stored: list[list[Acknowledgement]] = [[] for _ in spans]
    ids = set()
    for act in of_members:
        ids.add(member_id_of(act.data or b""))
        number = _acknowledged(act)
        shown = act.idx == FROM_SNAPSHOT
        places = [
            place
            for place, span in enumerate(spans)
            if span.version == number and (span.start.zxid < act.zxid or shown)
        ]
        if number is not None and places:
            since = spans[places[-1]].start
            at = Moment(max(act.zxid, since.zxid), None if shown else act.us)
            stored[places[-1]].append(Acknowledgement(act.name, act.session, at))
    whole = [_with_members(span, ours, found) for span, found in zip(spans, stored, strict=True)]
    ids.discard("")
    locks = _locks([act for act in ordered if act.tree == "lock"])
    return Group(chroot, name, tuple(whole), members, migratable, frozenset(ids), locks)


def _spans(acts: Sequence[Act], last: int, log_gaps: LogGaps) -> list[Span]:
    spans = []
    for number, act in enumerate(acts):
        if act.act not in ("create", "set"):
            continue
        version = 0 if act.act == "create" else act.version
        later = next(iter(acts[number + 1 :]), None)
        gap = missing_between(act.zxid, later.zxid if later else last + 1, log_gaps)
        if later is None:
            ended = "unknown" if gap else "still"
        elif later.act == "delete":
            ended = "unknown" if gap else "deleted"
        elif later.act == "set" and version is not None and later.version == version + 1:
            ended = "next mode"  # the versions show that no mode is missing in between
        else:
            ended = "unknown"
        end = Moment(later.zxid, later.us) if later else None
        start = Moment(act.zxid, act.us)
        created = act.act == "create"
        spans.append(Span(_mode(act), version, start, act.idx, act.session, created, end, ended))
    return spans


def _mode(act: Act) -> Mode | None:
    try:
        return decode_mode("", act.data or b"")
    except ZnodeFormatError:
        return None


def _acknowledged(act: Act) -> int | None:
    try:
        return decode_member("", act.data or b"")
    except ZnodeFormatError:
        return None


def _with_members(
    span: Span, ours: Sequence[Registration], stored: Sequence[Acknowledgement]
) -> Span:
    """Add the members that acknowledged a mode, and how long the others had not."""
    first: dict[tuple[str, int], Acknowledgement] = {}
    for ack in stored:
        first.setdefault((ack.member, ack.session), ack)
    waits = [wait for one in ours if (wait := _wait(span, one, stored)) is not None]
    return replace(
        span,
        members=sum(one.there(span.start.zxid) for one in ours),
        acknowledged=tuple(first.values()),
        waits=tuple(waits),
        settled=_settled(span, waits),
    )


def _wait(span: Span, one: Registration, stored: Sequence[Acknowledgement]) -> Wait | None:
    if one.start is None or one.session is None:
        return None  # it is unknown whether it was registered
    begin = one.start if one.start.zxid > span.start.zxid else span.start
    gone = one.end
    if one.ended == "unknown" and one.sure is not None:
        gone = Moment(one.sure)
    ends = [(end, False) for end in (gone, span.end) if end is not None]
    if any(end.zxid <= begin.zxid for end, _ in ends):
        return None
    mine = [a.at for a in stored if (a.member, a.session) == (one.member, one.session)]
    ends += [(at, True) for at in mine if at.zxid >= begin.zxid]
    if not ends:
        return Wait(one.member, one.session, begin, None, False)
    end, acknowledged = min(ends, key=lambda found: found[0].zxid)
    return Wait(one.member, one.session, begin, end, acknowledged)


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


def _locks(acts: Iterable[Act]) -> tuple[Lock, ...]:
    """Transactions that add or remove the lock's record. Writing it again changes nothing."""
    locks: list[Lock] = []
    for act in acts:
        if act.act in ("create", "set", "delete"):
            locked = act.act != "delete" and is_lock_record(act.data)
            if locked != (bool(locks) and locks[-1].locked):
                locks.append(Lock(Moment(act.zxid, act.us), act.session, locked))
    return tuple(locks)


def is_lock_record(data: bytes | None) -> bool:
    """Return whether a group's ``ids`` znode contains the record of ``zkmigrate``'s lock."""
    try:
        found = json.loads((data or b"").decode())
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and "zkmigrate" in found and "acl" in found
