"""The specification of the intervals: one pass over a history, in plain Python.

What ``zkaudit.intervals`` does with Spark must equal this on every history; it is also what a
reader should look at first. Keeps everything in memory: for tests and small histories.

Holes: ``(after, before)`` means that every transaction strictly between the two zxids is missing.
They cut the history into stretches, numbered from 0. What the log says of a znode holds within one
stretch; beyond a hole it is unknown, unless a snapshot shows the same znode (path and czxid) there.
A history that does not reach back to the first transaction begins with the hole (0, first zxid).
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


Hole = tuple[int, int]


@dataclass(slots=True)
class Life:
    """One life of a registration or owner znode. ``start`` is None where it is unknown."""

    path: str
    session: int | None
    data: bytes | None
    start: tuple[int, int] | None
    sure: int = 0
    """Number of the last stretch in which it is known to have lived."""
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
    owner: Life | None


@dataclass(slots=True)
class Replay:
    """What came out."""

    lives: list[Life] = field(default_factory=list)
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


def replay(rows: Iterable[Row], holes: Sequence[Hole], seen: Iterable[Seen] = ()) -> Replay:
    """Replay a history in the order of (zxid, idx), each at most once."""
    return _Run(sorted(holes), list(seen)).all(rows)


class _Run:
    def __init__(self, holes: list[Hole], seen: list[Seen]) -> None:
        self.holes = holes
        self.seen = seen
        self.done = Replay()
        self.live: dict[str, Life] = {}
        self.ended: dict[str, int] = {}  # path -> stretch of the last event that ended a life
        self.offsets: dict[str, tuple[int, bytes | None]] = {}  # path -> stretch, content
        self.closed: set[int] = set()

    def stretch(self, zxid: int) -> int:
        return sum(1 for _, before in self.holes if before <= zxid)

    def last_seen(self, life: Life) -> int:
        assert life.start is not None
        return max(self.holes[life.sure][0], life.start[0])

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
            sure[key] = max(sure.get(key, 0), self.stretch(s.zxid + 1))
        for row in sorted(history, key=lambda row: (row.zxid, row.idx)):
            self.step(row, sure)
        last = self.stretch(2**63)
        for life in self.live.values():
            if life.sure < last:
                life.ended = "unknown"
                life.end_after = self.last_seen(life)
        return self.done

    def step(self, row: Row, sure: dict[tuple[str, int], int]) -> None:
        if row.type == "closeSession":
            if row.session not in self.closed:
                self.closed.add(row.session)
                how = "closed" if row.cxid else "expired"
                for life in [v for v in self.live.values() if v.session == row.session]:
                    self.end(life, row, how)
            return
        if row.path is None or (kind := kind_of(row.path)) is None:
            return
        if kind == "offsets":
            self.offset(row)
        elif row.type in CREATES:
            if row.path in self.live:
                self.end(self.live[row.path], row, "unknown")
            life = Life(
                row.path,
                row.session if row.ephemeral else None,
                row.data,
                (row.zxid, row.idx),
                max(self.stretch(row.zxid), sure.get((row.path, row.zxid), 0)),
            )
            self.live[row.path] = life
            self.done.lives.append(life)
        elif row.type in DELETES:
            before = self.live.get(row.path)
            if before is None:
                before = Life(row.path, None, None, None)
                self.done.lives.append(before)
                self.end(before, row, "unknown")
            else:
                self.end(
                    before, row, "released" if before.session == row.session else "foreign delete"
                )

    def end(self, life: Life, row: Row, how: str) -> None:
        here = self.stretch(row.zxid)
        beyond = life.start is not None and life.sure < here
        if beyond:
            how = "unknown"
            life.end_after = self.last_seen(life)
        life.end = (row.zxid, row.idx)
        life.ended = how
        life.ended_by = row.session
        self.live.pop(life.path, None)
        if beyond and row.type == "closeSession":  # somebody else may have claimed in the hole
            self.ended[life.path] = -1
        else:
            self.ended[life.path] = here

    def offset(self, row: Row) -> None:
        assert row.path is not None
        if row.type in DELETES:
            self.offsets.pop(row.path, None)
            return
        if row.type not in CREATES and row.type != "setData":
            return
        head, _, tail = row.path.rpartition("/offsets/")
        owner_path = f"{head}/owners/{tail}"
        here = self.stretch(row.zxid)
        life = self.live.get(owner_path)
        if life is not None:
            state = "owner" if life.sure >= here else "unknown"
        elif owner_path in self.ended:
            state = "none" if self.ended[owner_path] == here else "unknown"
        else:
            state = "none" if here == 0 else "unknown"
        since, before = self.offsets.get(row.path, (here, None))
        if since != here:
            before = None
        same = before is not None and before == row.data
        claimed = life is not None and life.start is not None and life.start[0] == row.zxid
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
                life if state == "owner" else None,
            )
        )
        self.offsets[row.path] = (here, row.data)
