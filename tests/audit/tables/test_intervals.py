"""Spark computes the same intervals and commits as a sequential replay, even from incomplete logs.

``replay`` specifies both: one pass over a history in plain Python. Read it first.

A log gap ``(after, before)`` means that every transaction strictly between the two zxids is
missing. Gaps cut the history into segments, numbered from 0. What the log shows about a znode holds
within one segment. Beyond a log gap it is unknown, unless a snapshot shows the same znode (path and
czxid) there. An offset in a snapshot that was written before the snapshot's segment was there when
the segment began. A history that does not reach back to the first transaction begins with the log
gap (0, first zxid).
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructType
from zkaudit import schema
from zkaudit.history import lifetimes as intervals, staging
from zkaudit.history.staging import LogGap
from zkaudit.schema import CREATES, DELETES

from tests.audit.histories import frame_of, in_snapshots, keep, kept, logged

pytestmark = pytest.mark.timeout(600)  # Spark compiles long on a busy machine
SEED = int(os.environ.get("AUDIT_SEED", "20261121"))
PATHS = StructType().add("path", StringType())
EPOCH = datetime(2026, 11, 21, tzinfo=UTC)

_PATH = re.compile(r"(?s)(.*?)/consumers/([^/]+)/(ids|owners|offsets)/(.+)")
_PARTITION = re.compile(r"([^/]+)/(0|[1-9][0-9]{0,9})")
_THREAD = re.compile(rb"(?s)(.+)-([0-9]+)")
_OFFSET = re.compile(rb"[0-9]{1,19}")


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
    deleted: list[str] | None = None
    """The paths that a closeSession lists (ZooKeeper 3.6+)."""


class InSnapshot(NamedTuple):
    """One ephemeral or offset of a snapshot (``zkaudit.schema.SNAPSHOT``)."""

    zxid: int
    path: str
    czxid: int
    session: int
    data: bytes | None = None
    mzxid: int = 0
    """Only for offsets."""


@dataclass(slots=True)
class Lifetime:
    """One lifetime of a registration or owner znode. ``start`` is None if unknown."""

    path: str
    session: int | None
    data: bytes | None
    start: tuple[int, int] | None
    sure: int = 0
    """Number of the last segment in which the znode is known to have existed."""
    end: tuple[int, int] | None = None
    end_after: int | None = None
    ended: str = "still held"
    ended_by: int | None = None
    registered: set[str] | None = None
    """The registrations of its session, if only the end of the session shows the znode."""


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
    created: bool


@dataclass(slots=True)
class Replay:
    """The result of a replay."""

    lifetimes: list[Lifetime] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)


def member_of(text: bytes | None) -> tuple[str | None, str | None] | None:
    """Consumer id and stream in an owner znode. Some clients write no stream."""
    if not text:
        return None
    parts = _THREAD.fullmatch(text)
    if parts is None:
        return text.decode("utf-8", "replace"), None
    return parts[1].decode("utf-8", "replace"), parts[2].decode()


def offset_of(data: bytes | None) -> int | None:
    """The number in an offset znode, if it fits into 64 bits."""
    if data is None or _OFFSET.fullmatch(data) is None:
        return None
    offset = int(data)
    return offset if -(2**63) <= offset < 2**63 else None


def kind_of(path: str) -> str | None:
    """``ids``, ``owners`` or ``offsets`` for a group's znode that the replay reads."""
    parts = _PATH.fullmatch(path)
    if parts is None:
        return None
    wanted = r"[^/]+" if parts[3] == "ids" else _PARTITION
    return parts[3] if re.fullmatch(wanted, parts[4]) else None


def replay(
    rows: Iterable[Row], log_gaps: Sequence[LogGap], seen: Iterable[InSnapshot] = ()
) -> Replay:
    """Replay a history in the order of (zxid, idx). Each row is applied at most once."""
    return _Run(sorted(log_gaps), list(seen)).all(rows)


class _Run:
    def __init__(self, log_gaps: list[LogGap], seen: list[InSnapshot]) -> None:
        self.log_gaps = log_gaps
        self.seen = seen
        self.done = Replay()
        self.live: dict[str, Lifetime] = {}
        self.ended: dict[str, int] = {}  # path -> segment of the last event that ended a lifetime
        self.offsets: dict[str, tuple[int, bytes | None]] = {}  # path -> segment, content
        self.at_begin: dict[tuple[str, int], bytes | None] = {
            (s.path, self.segment(s.zxid + 1)): s.data
            for s in seen
            if kind_of(s.path) == "offsets" and self.segment(s.mzxid) < self.segment(s.zxid + 1)
        }  # path, segment -> content
        self.closed: set[int] = set()
        self.created: set[tuple[str, int]] = set()  # path, session
        self.registered: set[tuple[str, int]] = set()  # path, session
        self.events: dict[str, int] = {}  # path -> segment of the last create or delete
        self.deleted: dict[str, tuple[int, Lifetime]] = {}  # path -> zxid of the last delete
        self.older: dict[tuple[str, int], Lifetime] = {}  # path, segment -> the first owner

    def segment(self, zxid: int) -> int:
        return sum(1 for _, before in self.log_gaps if before <= zxid)

    def last_seen(self, lifetime: Lifetime) -> int:
        assert lifetime.start is not None
        return max(self.log_gaps[lifetime.sure][0], lifetime.start[0])

    def all(self, rows: Iterable[Row]) -> Replay:
        history = sorted(rows, key=lambda row: (row.zxid, row.idx))
        logged = {(r.path, r.zxid) for r in history if r.type in CREATES}
        self.created = {(r.path, r.session) for r in history if r.type in CREATES and r.path}
        shown = {(s.path, s.czxid): s for s in self.seen if kind_of(s.path) in ("ids", "owners")}
        history += [
            Row(s.czxid, 2**31 - 1, s.session, "create", s.path, s.data, True)
            for key, s in shown.items()
            if key not in logged
        ]
        self.registered = {
            (path, r.session)
            for r in history
            for path in (r.path, *(r.deleted or ()))
            if path and kind_of(path) == "ids" and (r.type in CREATES or r.deleted)
        }
        sure: dict[tuple[str, int], int] = {}
        for s in self.seen:
            key = (s.path, s.czxid)
            sure[key] = max(sure.get(key, 0), self.segment(s.zxid + 1))
        for row in sorted(history, key=lambda row: (row.zxid, row.idx)):
            self.step(row, sure)
        for commit in self.done.commits:
            self.owned_before(commit)
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
                mine = [v for v in self.live.values() if v.session == row.session]
                for lifetime in mine:
                    self.end(lifetime, row, how)
                self.list({v.path for v in mine}, row, how)
            return
        if row.path is None or (kind := kind_of(row.path)) is None:
            return
        if kind == "offsets":
            self.offset(row)
            return
        if row.type in CREATES:
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
            self.deleted[row.path] = (row.zxid, before)
        if row.type in CREATES or row.type in DELETES:
            self.events[row.path] = self.segment(row.zxid)

    def list(self, known: set[str], row: Row, how: str) -> None:
        """Use what the end of a session lists: znodes whose create is not in the logs."""
        here = self.segment(row.zxid)
        for path in row.deleted or ():
            if not self.log_gaps or path in known or (path, row.session) in self.created:
                continue
            before = self.live.get(path)
            if before is not None:  # another session's, from before a log gap
                self.end(before, row, "foreign delete")
            else:
                lifetime = Lifetime(path, row.session, None, None, registered=set())
                ids = path.partition("/owners/")[0] + "/ids/"
                lifetime.registered = {
                    p for p, session in self.registered if session == row.session and ids in p
                }
                self.done.lifetimes.append(lifetime)
                self.end(lifetime, row, how)
                if self.events.get(path, -1) < here:
                    self.older[path, here] = lifetime
            self.events[path] = here

    def owned_before(self, commit: Commit) -> None:
        """Correct the owner of a commit if the end of a session shows it later."""
        here = self.segment(commit.at[0])
        lifetime = self.older.get((commit.path.replace("/offsets/", "/owners/"), here))
        if lifetime is not None and lifetime.end is not None and commit.at < lifetime.end:
            commit.owner_state, commit.owner = "owner", lifetime

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
            self.offsets[row.path] = (self.segment(row.zxid), None)
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
        zxid, gone = self.deleted.get(owner_path, (None, None))
        if lifetime is None and gone is not None and zxid == row.zxid:
            # A multi is atomic: the owner is still the session that deletes its own znode.
            if gone.start is None or gone.sure < here:
                state = "unknown"
            elif gone.session == row.session:
                lifetime, state = gone, "owner"
        since, before = self.offsets.get(row.path, (-1, None))
        if since != here:
            before = self.at_begin.get((row.path, here))
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
                row.type in CREATES,
            )
        )
        self.offsets[row.path] = (here, row.data)


def at(zxid: int) -> datetime:
    """The leader's clock: 10 ms for each transaction."""
    return EPOCH + timedelta(milliseconds=zxid * 10)


def frame(spark: SparkSession, rows: list[Row]) -> DataFrame:
    """The rows as the transaction log's data source gives them."""
    place: dict[str, Any] = {"server": "a", "file": "log.1", "size": 0}
    times = ({"time": at(row.zxid), "position": row.zxid} for row in rows)
    return logged(
        spark, [row._asdict() | place | time for row, time in zip(rows, times, strict=True)]
    )


def shown(spark: SparkSession, seen: list[InSnapshot]) -> DataFrame:
    """The rows as the snapshot data source gives them."""
    fixed: dict[str, Any] = {"server": "a", "file": "snapshot.1"}
    fixed |= dict.fromkeys(("version", "cversion", "aversion", "pzxid"), 0)
    return in_snapshots(
        spark,
        [
            fixed | {"zxid": row.zxid, "path": row.path, "data": row.data, "czxid": row.czxid,
                     "ephemeral_owner": row.session, "ctime": at(row.czxid),
                     "mzxid": row.mzxid or row.czxid}
            for row in seen
        ],
    )  # fmt: skip


class Ensemble:
    """A ZooKeeper that makes random changes to one group, and logs them."""

    def __init__(self, rng: random.Random, group: str, first: int) -> None:
        self.rng = rng
        self.root = f"/consumers/{group}"
        self.group = group
        self.zxid = first
        self.session = first * 100
        self.lists = rng.random() < 0.7  # ZooKeeper 3.6+
        self.nodes: dict[str, tuple[bytes, int, int, int]] = {}  # data, session, czxid, mzxid
        self.sessions: list[int] = []
        self.rows: list[Row] = []
        self.seen: list[InSnapshot] = []

    def log(
        self,
        *operations: tuple[Any, ...],
        cxid: int = 1,
        session: int = 0,
        deleted: list[str] | None = None,
    ) -> None:
        self.zxid += 1
        for idx, (kind, path, data, ephemeral) in enumerate(operations):
            self.rows.append(
                Row(self.zxid, idx, session, kind, path, data, ephemeral, cxid, deleted)
            )
            if path is None:
                continue
            if kind in schema.CREATES:
                self.nodes[path] = (data, session if ephemeral else 0, self.zxid, self.zxid)
            elif kind == "delete":
                self.nodes.pop(path)
            else:
                self.nodes[path] = (data, *self.nodes[path][1:3], self.zxid)

    def step(self) -> None:
        rng = self.rng
        if not self.sessions or rng.random() < 0.06:
            self.session += 1
            self.sessions.append(self.session)
            self.log(("createSession", None, None, None), session=self.session)
            return
        session = rng.choice(self.sessions)
        if rng.random() < 0.08:
            self.sessions.remove(session)
            cxid = rng.choice((0, 7))
            mine = [p for p, n in self.nodes.items() if n[1] == session] if self.lists else None
            self.log(("closeSession", None, None, None), session=session, cxid=cxid, deleted=mine)
            self.nodes = {p: n for p, n in self.nodes.items() if n[1] != session}
            return
        if rng.random() < 0.04:
            self.snapshot()
        if rng.random() < 0.2:
            path = f"{self.root}/ids/{self.group}_c{session % 4}"
            self.toggle(path, b'{"version":1,"subscription":{"t":1},"pattern":"static"}', session)
            return
        partition = rng.randrange(3)
        owner, offset = (f"{self.root}/{tree}/t-{partition}/0" for tree in ("owners", "offsets"))
        text = rng.choice((f"{self.group}_c{session % 4}-0".encode(), b"odd\xff"))
        if rng.random() < 0.1 and owner in self.nodes and offset in self.nodes:
            both = [("delete", owner, None, None), ("setData", offset, b"3", None)]
            self.log(*rng.sample(both, 2), session=self.nodes[owner][1] or session)
        elif rng.random() < 0.5:
            self.toggle(owner, text, session)
        elif rng.random() < 0.2 and owner not in self.nodes and offset in self.nodes:
            touch = ("setData", offset, self.nodes[offset][0], None)
            self.log(("create", owner, text, True), touch, session=session)
        elif offset not in self.nodes:
            self.log(("create", offset, b"1", False), session=session)
        elif rng.random() < 0.1:
            self.log(("delete", offset, None, None), session=session)
        else:
            value = str(rng.randrange(9)).encode() if rng.random() < 0.9 else b"9" * 19
            self.log(("setData", offset, value, None), session=session)

    def toggle(self, path: str, data: bytes, session: int) -> None:
        gone = ("delete", path, None, None)
        made = (self.rng.choice(("create", "create2")), path, data, self.rng.random() < 0.95)
        if path not in self.nodes:
            self.log(made, session=session)
        elif self.rng.random() < 0.2:
            self.log(gone, made, session=session)
        else:
            self.log(gone, session=session)

    def snapshot(self) -> None:
        for path, (data, session, czxid, mzxid) in self.nodes.items():
            if session or "/offsets/" in path:
                self.seen.append(InSnapshot(self.zxid, path, czxid, session, data, mzxid))


def cut(rng: random.Random, made: list[Ensemble]) -> tuple[list[Row], list[LogGap]]:
    """Drop the front, or parts of the middle, or nothing."""
    rows = [row for one in made for row in one.rows]
    first, last = rows[0].zxid, rows[-1].zxid
    log_gaps: list[LogGap] = []
    if rng.random() < 0.5:
        first += rng.randrange(1, 60)
        log_gaps.append((0, first))
    for one in made:
        if rng.random() < 0.6:
            begin = rng.randrange(one.rows[0].zxid, one.rows[-1].zxid)
            log_gaps.append((begin, min(begin + rng.randrange(2, 40), last)))
    log_gaps = [h for h in log_gaps if h[0] == 0 or h[0] >= first]
    kept = [r for r in rows if r.zxid >= first and not any(a < r.zxid < b for a, b in log_gaps)]
    return kept, log_gaps


def expected(found: Replay) -> tuple[list[Any], list[Any]]:
    """The result of the replay, in the order of ``by_spark``."""
    lifetimes = []
    for lifetime in found.lifetimes:
        start, end = lifetime.start or (None, None), lifetime.end or (None, None)
        who = member_of(lifetime.data) if "/owners/" in lifetime.path else None
        lifetimes.append(
            (
                lifetime.path,
                lifetime.session,
                *start,
                *end,
                lifetime.end_after,
                lifetime.ended,
                lifetime.ended_by,
            )
            + (who or (None, None))
        )
    commits = []
    for c in found.commits:
        owner: Lifetime | None = c.owner
        commits.append(
            (c.path, *c.at, c.session, c.offset, c.previous, c.kind, c.owner_state, c.created)
            + ((owner.session, owner.start and owner.start[0]) if owner else (None, None))
            + (name_of(owner),)
        )
    return sorted(lifetimes, key=repr), sorted(commits, key=repr)


def name_of(owner: Lifetime | None) -> str | None:
    """The member that owns a partition: from the znode, or else its session's only registration."""
    if owner is None:
        return None
    if owner.registered is None:
        return (member_of(owner.data) or (None,))[0]
    names = [path.rpartition("/ids/")[2] for path in owner.registered]
    return names[0] if len(names) == 1 else None


def by_spark(
    spark: SparkSession, rows: list[Row], log_gaps: list[LogGap], seen: list[InSnapshot]
) -> tuple[list[Any], list[Any]]:
    """The result of Spark: znode lifetimes, then commits, each sorted."""
    paths = {path for r in rows for path in (r.path, *(r.deleted or ())) if path}
    stage = staging.stage(
        frame(spark, rows),
        log_gaps,
        shown(spark, seen),
        paths=frame_of(spark, PATHS, [{"path": path} for path in sorted(paths)]),
        keep=keep,
    )
    owned = kept(intervals.owners(intervals.lifetimes(stage, "owners")))
    lifetime = ["path", "session", "start_zxid", "start_idx", "end_zxid", "end_idx",
            "end_after_zxid", "ended", "ended_by"]  # fmt: skip
    lifetimes = [
        (*r, None, None) for r in intervals.lifetimes(stage, "ids").select(lifetime).collect()
    ]
    lifetimes += [tuple(r) for r in owned.select(*lifetime, "member", "stream").collect()]
    commits = intervals.commits(stage, owned).selectExpr(
        "concat('/consumers/', group, '/offsets/', topic, '/', partition) as path",
        "zxid", "idx", "session", "offset", "previous", "kind", "owner_state", "created",
        "owner_session", "owner_start_zxid", "owner_member",
    )  # fmt: skip
    return sorted(lifetimes, key=repr), sorted(map(tuple, commits.collect()), key=repr)


@pytest.mark.parametrize("batch", range(4))
def test_spark_equals_the_replay_on_random_histories(spark: SparkSession, batch: int) -> None:
    """30 random groups in one history, each batch cut at the front or in the middle, give the same
    rows."""
    rng = random.Random(SEED + batch)
    made = []
    zxid = 0
    for number in range(30):
        one = Ensemble(rng, f"g{number}", zxid)
        for _ in range(rng.randrange(30, 100)):
            one.step()
        zxid = one.zxid
        made.append(one)
    rows, log_gaps = cut(rng, made)
    seen = [s for one in made for s in one.seen if rng.random() < 0.8]
    lifetimes, commits = expected(replay(rows, log_gaps, seen))
    assert lifetimes, f"AUDIT_SEED={SEED}"
    assert commits, f"AUDIT_SEED={SEED}"
    rng.shuffle(rows)
    found_lifetimes, found_commits = by_spark(spark, rows, log_gaps, seen)
    assert found_lifetimes == lifetimes, f"AUDIT_SEED={SEED}"
    assert found_commits == commits, f"AUDIT_SEED={SEED}"


def test_what_an_offset_was_before_a_log_gap_is_not_what_it_was_just_before_a_write() -> None:
    """After a log gap the previous offset is unknown. So no offset has gone back, and a write of
    the same number counts as a commit."""
    path = "/consumers/g/offsets/t/0"
    history = [Row(z, 0, 1, "setData", path, b"%d" % n) for z, n in ((1, 9), (14, 9), (15, 9))]
    cut, whole = (replay(history, log_gaps).commits for log_gaps in ([(3, 14)], []))
    assert [(c.previous, c.kind) for c in cut] == [(None, "commit"), (None, "commit"), (9, "same")]
    assert [(c.previous, c.kind) for c in whole] == [(None, "commit"), (9, "same"), (9, "same")]


def test_what_is_said_of_a_cut_history_is_true_in_the_whole_one() -> None:
    """From a cut history, lifetimes with a known beginning and end, and owners and previous offsets
    of commits, are still right. Snapshots show some previous offsets."""
    shown = 0
    for number in range(300):
        rng = random.Random(SEED + number)
        one = Ensemble(rng, "g", 0)
        for _ in range(150):
            one.step()
        whole = replay(one.rows, [])
        rows, log_gaps = cut(rng, [one])
        part = replay(rows, log_gaps, one.seen)
        keys = {(v.path, v.start and v.start[0]): v for v in whole.lifetimes}
        for lifetime in part.lifetimes:
            if lifetime.start is None:
                continue
            true = keys[(lifetime.path, lifetime.start[0])]
            assert (lifetime.session, lifetime.data) == (true.session, true.data), (
                f"seed {SEED + number}"
            )
            if lifetime.ended != "unknown":
                assert (lifetime.end, lifetime.ended) == (true.end, true.ended), (
                    f"seed {SEED + number}"
                )
            elif true.end is not None and lifetime.end_after is not None:
                assert lifetime.end_after < true.end[0], f"seed {SEED + number}"
                assert lifetime.end is None or true.end[0] <= lifetime.end[0], (
                    f"seed {SEED + number}"
                )
        commits = {c.at: c for c in whole.commits}
        alone = {c.at: c.previous for c in replay(rows, log_gaps).commits}
        for commit in part.commits:
            right = commits[commit.at]
            if commit.previous is not None:
                assert commit.previous == right.previous, f"seed {SEED + number}"
                shown += alone[commit.at] is None
            if commit.owner_state == "unknown":
                continue
            assert commit.owner_state == right.owner_state, f"seed {SEED + number}"
            if commit.owner is not None and right.owner is not None:
                assert commit.owner.session == right.owner.session, f"seed {SEED + number}"
    assert shown > 20


@pytest.mark.parametrize(
    ("rows", "ended"),
    [
        ([("delete", 1, 1)], "released"),
        ([("delete", 2, 1)], "foreign delete"),
        ([("closeSession", 1, 0)], "expired"),
        ([("closeSession", 1, 5)], "closed"),
        ([("closeSession", 2, 0)], "still held"),
        ([], "still held"),
    ],
)
def test_how_an_owner_ended(
    spark: SparkSession, rows: list[tuple[str, int, int]], ended: str
) -> None:
    """Each way in which an ownership interval can end has its own name."""
    path = "/consumers/g/owners/t/0"
    history = [Row(1, 0, 1, "create", path, b"g_c-0", True)]
    for number, (kind, session, cxid) in enumerate(rows):
        znode = path if kind == "delete" else None
        history.append(Row(2 + number, 0, session, kind, znode, None, None, cxid))
    assert [lifetime.ended for lifetime in replay(history, []).lifetimes] == [ended]
    stage = staging.stage(frame(spark, history), keep=keep)
    assert [r.ended for r in intervals.lifetimes(stage, "owners").collect()] == [ended]


def test_the_first_end_of_a_session_counts(spark: SparkSession) -> None:
    """A second closeSession of the same session ends nothing."""
    path = "/consumers/g/owners/t/0"
    history = [Row(1, 0, 1, "create", path, b"g_c-0", True)]
    history += [Row(zxid, 0, 1, "closeSession", None) for zxid in (2, 3)]
    stage = staging.stage(frame(spark, history), keep=keep)
    assert [row.end_zxid for row in intervals.lifetimes(stage, "owners").collect()] == [2]


def test_a_member_that_deletes_its_owner_znode_and_commits_in_one_multi(
    spark: SparkSession,
) -> None:
    """A multi is atomic, so the member still owns the partition. Another session that deletes the
    znode does not own it. If the logs do not show whose znode it was, the owner is unknown."""
    root = "/consumers/g/{}/t/{}"
    history = []
    for partition in (0, 1):
        owner = root.format("owners", partition)
        history.append(Row(10 + partition, 0, 1, "create", owner, b"g_c-0", True))
    for partition, session in enumerate((1, 2, 1)):
        owner, offset = (root.format(tree, partition) for tree in ("owners", "offsets"))
        history.append(Row(20 + partition, 0, session, "delete", owner))
        history.append(Row(20 + partition, 1, session, "setData", offset, b"9"))
    expected = [("owner", 1), ("none", None), ("unknown", None)]
    assert [(c.owner_state, c.owner and c.owner.session)
            for c in replay(history, [(0, 10)]).commits] == expected  # fmt: skip
    stage = staging.stage(frame(spark, history), [(0, 10)], keep=keep)
    owned = kept(intervals.owners(intervals.lifetimes(stage, "owners")))
    found = intervals.commits(stage, owned).orderBy("zxid")
    assert [tuple(r) for r in found.select("owner_state", "owner_session").collect()] == expected


def test_the_end_of_a_session_shows_who_owned_before(spark: SparkSession) -> None:
    """The end of a session lists an owner znode that is older than the logs. So its member was the
    owner until then, unless the logs show an earlier change. Afterwards there was no owner."""
    owner, offset = "/consumers/g/owners/t/0", "/consumers/g/offsets/t/0"
    listed = [owner, "/consumers/g/ids/g_c"]
    history = [
        Row(10, 0, 2, "setData", offset, b"5"),
        Row(11, 0, 1, "closeSession", deleted=listed),
        Row(12, 0, 2, "setData", offset, b"6"),
        Row(13, 0, 2, "create", owner, b"g_d-0", True),
        Row(14, 0, 2, "setData", offset, b"7"),
    ]
    _, expected_commits = expected(replay(history, [(0, 10)]))
    assert [(row[7], row[9], row[11]) for row in expected_commits] == [
        ("owner", 1, "g_c"), ("none", None, None), ("owner", 2, "g_d"),
    ]  # fmt: skip
    assert by_spark(spark, history, [(0, 10)], [])[1] == expected_commits


def test_a_group_named_offsets_that_only_a_snapshot_shows(spark: SparkSession) -> None:
    """Its znodes have ``/offsets/`` in their paths, as offsets do, and are members and owners."""
    history = [Row(10, 0, 9, "create", "/consumers/offsets/offsets/t/0", b"7", False)]
    seen = [
        InSnapshot(9, "/consumers/offsets/ids/offsets_c", 1, 5, b"{}"),
        InSnapshot(9, "/consumers/offsets/owners/t/0", 2, 5, b"offsets_c-0"),
    ]
    stage = staging.stage(frame(spark, history), [(0, 10)], shown(spark, seen), keep=keep)
    names = stage.names.select("path", "tree").collect()
    assert sorted(map(tuple, names)) == [
        ("/consumers/offsets/ids/offsets_c", "ids"),
        ("/consumers/offsets/offsets/t/0", "offsets"),
        ("/consumers/offsets/owners/t/0", "owners"),
    ]
    owned = kept(intervals.owners(intervals.lifetimes(stage, "owners")))
    assert [(r.start_zxid, r.member) for r in owned.collect()] == [(2, "offsets_c")]
    commits = intervals.commits(stage, owned).select("offset", "owner_session").collect()
    assert list(map(tuple, commits)) == [(7, 5)]
