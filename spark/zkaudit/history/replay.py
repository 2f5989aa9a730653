"""The specification of the intervals: one pass over a history, in plain Python.

What ``history.lifetimes`` does with Spark must equal this on every history; it is also what a
reader should look at first. Keeps everything in memory: for tests and small histories. No Spark.

A log gap ``(after, before)``: every transaction strictly between the two zxids is missing. Gaps cut
the history into segments, numbered from 0. What the log says of a znode holds within one segment;
beyond a log gap it is unknown, unless a snapshot shows the same znode (path and czxid) there. A
history that does not reach back to the first transaction begins with the log gap (0, first zxid).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from zkaudit.schema import CREATES, DELETES

_PATH = re.compile(r"(?s)(.*?)/consumers/([^/]+)/(ids|owners|offsets)/(.+)")
_PARTITION = re.compile(r"([^/]+)/(0|[1-9][0-9]{0,9})")
_THREAD = re.compile(rb"(?s)(.+)-([0-9]+)")
_OFFSET = re.compile(rb"-?[0-9]{1,19}")


class Row(NamedTuple):
    """One operation of the history (``zkaudit.schema.TXNLOG``)."""

    zxid: int
    idx: int
    session: int
    type: str
    path: str | None = None
    data: bytes | None = None
    ephemeral: bool | None = None
    cxid: int = 1


class Seen(NamedTuple):
    """One ephemeral of a snapshot (``zkaudit.schema.SNAPSHOT``)."""

    zxid: int
    path: str
    czxid: int
    session: int
    data: bytes | None = None


LogGap = tuple[int, int]


@dataclass(slots=True)
class Lifetime:
    """One lifetime of a registration or owner znode. ``start`` is None where it is unknown."""

    path: str
    session: int | None
    data: bytes | None
    start: tuple[int, int] | None
    sure: int = 0
    """Number of the last segment in which it is known to have lived."""
    end: tuple[int, int] | None = None
    end_after: int | None = None
    ended: str = "still held"
    ended_by: int | None = None


@dataclass(slots=True)
class Commit:
    """One write of an offset znode, with the owner at that transaction."""

    path: str
    at: tuple[int, int]
    session: int
    offset: int | None
    previous: int | None
    kind: str
    owner_state: str
    owner: Lifetime | None


@dataclass(slots=True)
class Replay:
    """What came out."""

    lifetimes: list[Lifetime] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)


def member_of(text: bytes | None) -> tuple[str, str] | None:
    """Consumer id and stream in an owner znode's text."""
    parts = _THREAD.fullmatch(text or b"")
    return None if parts is None else (parts[1].decode(errors="replace"), parts[2].decode())


def offset_of(data: bytes | None) -> int | None:
    """The number in an offset znode, if it is one of 64 bits."""
    if data is None or _OFFSET.fullmatch(data) is None:
        return None
    offset = int(data)
    return offset if -(2**63) <= offset < 2**63 else None


def kind_of(path: str) -> str | None:
    """``ids``, ``owners`` or ``offsets`` for a znode of a group that counts."""
    parts = _PATH.fullmatch(path)
    if parts is None:
        return None
    wanted = r"[^/]+" if parts[3] == "ids" else _PARTITION
    return parts[3] if re.fullmatch(wanted, parts[4]) else None


def replay(rows: Iterable[Row], log_gaps: Sequence[LogGap], seen: Iterable[Seen] = ()) -> Replay:
    """Replay a history in the order of (zxid, idx), each at most once."""
    return _Run(sorted(log_gaps), list(seen)).all(rows)


class _Run:
    def __init__(self, log_gaps: list[LogGap], seen: list[Seen]) -> None:
        self.log_gaps = log_gaps
        self.seen = seen
        self.done = Replay()
        self.live: dict[str, Lifetime] = {}
        self.ended: dict[str, int] = {}  # path -> segment of the last event that ended a lifetime
        self.offsets: dict[str, tuple[int, bytes | None]] = {}  # path -> segment, content
        self.closed: set[int] = set()

    def segment(self, zxid: int) -> int:
        return sum(1 for _, before in self.log_gaps if before <= zxid)

    def last_seen(self, lifetime: Lifetime) -> int:
        assert lifetime.start is not None
        return max(self.log_gaps[lifetime.sure][0], lifetime.start[0])

    def all(self, rows: Iterable[Row]) -> Replay:
        history = sorted(rows, key=lambda row: (row.zxid, row.idx))
        logged = {(r.path, r.zxid) for r in history if r.type in CREATES}
        shown = {(s.path, s.czxid): s for s in self.seen if kind_of(s.path) in ("ids", "owners")}
        history += [
            Row(s.czxid, 2**31 - 1, s.session, "create", s.path, s.data, True)
            for key, s in shown.items()
            if key not in logged
        ]
        sure: dict[tuple[str, int], int] = {}
        for s in self.seen:
            key = (s.path, s.czxid)
            sure[key] = max(sure.get(key, 0), self.segment(s.zxid + 1))
        for row in sorted(history, key=lambda row: (row.zxid, row.idx)):
            self.step(row, sure)
        last = self.segment(2**63)
        for lifetime in self.live.values():
            if lifetime.sure < last:
                lifetime.ended = "unknown"
                lifetime.end_after = self.last_seen(lifetime)
        return self.done

    def step(self, row: Row, sure: dict[tuple[str, int], int]) -> None:
        if row.type == "closeSession":
            if row.session not in self.closed:
                self.closed.add(row.session)
                how = "closed" if row.cxid else "expired"
                for lifetime in [v for v in self.live.values() if v.session == row.session]:
                    self.end(lifetime, row, how)
            return
        if row.path is None or (kind := kind_of(row.path)) is None:
            return
        if kind == "offsets":
            self.offset(row)
        elif row.type in CREATES:
            if row.path in self.live:
                self.end(self.live[row.path], row, "unknown")
            lifetime = Lifetime(
                row.path,
                row.session if row.ephemeral else None,
                row.data,
                (row.zxid, row.idx),
                max(self.segment(row.zxid), sure.get((row.path, row.zxid), 0)),
            )
            self.live[row.path] = lifetime
            self.done.lifetimes.append(lifetime)
        elif row.type in DELETES:
            before = self.live.get(row.path)
            if before is None:
                before = Lifetime(row.path, None, None, None)
                self.done.lifetimes.append(before)
                self.end(before, row, "unknown")
            else:
                self.end(
                    before, row, "released" if before.session == row.session else "foreign delete"
                )

    def end(self, lifetime: Lifetime, row: Row, how: str) -> None:
        here = self.segment(row.zxid)
        beyond = lifetime.start is not None and lifetime.sure < here
        if beyond:
            how = "unknown"
            lifetime.end_after = self.last_seen(lifetime)
        lifetime.end = (row.zxid, row.idx)
        lifetime.ended = how
        lifetime.ended_by = row.session
        self.live.pop(lifetime.path, None)
        if beyond and row.type == "closeSession":  # another member may have claimed in the log gap
            self.ended[lifetime.path] = -1
        else:
            self.ended[lifetime.path] = here

    def offset(self, row: Row) -> None:
        assert row.path is not None
        if row.type in DELETES:
            self.offsets.pop(row.path, None)
            return
        if row.type not in CREATES and row.type != "setData":
            return
        head, _, tail = row.path.rpartition("/offsets/")
        owner_path = f"{head}/owners/{tail}"
        here = self.segment(row.zxid)
        lifetime = self.live.get(owner_path)
        if lifetime is not None:
            state = "owner" if lifetime.sure >= here else "unknown"
        elif owner_path in self.ended:
            state = "none" if self.ended[owner_path] == here else "unknown"
        else:
            state = "none" if here == 0 else "unknown"
        since, before = self.offsets.get(row.path, (here, None))
        if since != here:
            before = None
        same = before is not None and before == row.data
        claimed = (
            lifetime is not None and lifetime.start is not None and lifetime.start[0] == row.zxid
        )
        if claimed and (same or before is None) and row.type == "setData":
            kind = "claim"
        else:
            kind = "same" if same else "commit"
        self.done.commits.append(
            Commit(
                row.path,
                (row.zxid, row.idx),
                row.session,
                offset_of(row.data),
                offset_of(before),
                kind,
                state,
                lifetime if state == "owner" else None,
            )
        )
        self.offsets[row.path] = (here, row.data)
