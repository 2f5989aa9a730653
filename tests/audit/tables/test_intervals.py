"""Spark computes the same intervals and commits as the fold ``zkaudit.group``, even from
incomplete logs."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructType
from zkaudit import group, schema
from zkaudit.group import (
    ACTS,
    UNKNOWN,
    Commit,
    Coverage,
    Ended,
    Event,
    Lifetime,
    Moment,
    Replay,
    Shown,
    Unknown,
    Write,
    member_of,
)
from zkaudit.history import lifetimes as intervals, staging
from zkaudit.history.staging import LogGap

from tests.audit.histories import frame_of, in_snapshots, keep, kept, logged

pytestmark = pytest.mark.timeout(600)  # Spark compiles long on a busy machine
SEED = int(os.environ.get("AUDIT_SEED", "20261121"))
PATHS = StructType().add("path", StringType())
EPOCH = datetime(2026, 11, 21, tzinfo=UTC)


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


def replay(
    rows: Iterable[Row], log_gaps: Sequence[LogGap], seen: Iterable[InSnapshot] = ()
) -> Replay:
    """The fold over rows of the transaction log."""
    events = [
        Event(row.zxid, row.idx, None, row.session, ACTS[row.type], row.path, row.data,
              row.ephemeral, row.cxid, row.deleted)
        for row in rows
        if row.type in ACTS
    ]  # fmt: skip
    shown = [
        Shown(s.zxid, s.path, s.data, s.czxid, None, s.mzxid or s.czxid, None, s.session)
        for s in seen
    ]
    return group.replay(events, Coverage(log_gaps), shown)


def offset_before(commit: Commit) -> int | None:
    """The offset before a commit, if it is known."""
    return commit.previous.offset if isinstance(commit.previous, Write) else None


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
    """The result of the fold, in the order of ``by_spark``."""
    lifetimes = [
        (v.znode.path, v.session, *moment(v.start), *moment(v.end), v.last_seen, v.ended.value,
         v.ended_by, *(member_of(v.data) if v.znode.tree == "owners" else (None, None)))
        for v in found.lifetimes
    ]  # fmt: skip
    commits = [
        (c.znode.path, c.zxid, c.idx, c.session, c.offset, offset_before(c), c.kind.value,
         *owner_of(c)[:1], c.created, *owner_of(c)[1:])
        for c in found.commits
    ]  # fmt: skip
    return sorted(lifetimes, key=repr), sorted(commits, key=repr)


def moment(at: Moment | Unknown | None) -> tuple[int | None, int | None]:
    """zxid and index of a moment."""
    return at[:2] if isinstance(at, Moment) else (None, None)


def owner_of(commit: Commit) -> tuple[Any, ...]:
    """State, session, start and member of the owner at a commit."""
    owner = commit.owner
    if isinstance(owner, Lifetime):
        return "owner", owner.session, owner.start_zxid, owner.member
    return "none" if owner is None else "unknown", None, None, None


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
    kinds = [[(offset_before(c), c.kind.value) for c in commits] for commits in (cut, whole)]
    assert kinds == [
        [(None, "commit"), (None, "commit"), (9, "same")],
        [(None, "commit"), (9, "same"), (9, "same")],
    ]


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
        keys = {(v.znode.path, v.start_zxid): v for v in whole.lifetimes}
        for lifetime in part.lifetimes:
            if lifetime.start is UNKNOWN:
                continue
            true = keys[(lifetime.znode.path, lifetime.start.zxid)]
            assert (lifetime.session, lifetime.data) == (true.session, true.data), (
                f"seed {SEED + number}"
            )
            if lifetime.ended is not Ended.UNKNOWN:
                assert (lifetime.end, lifetime.ended) == (true.end, true.ended), (
                    f"seed {SEED + number}"
                )
            elif true.end is not None and lifetime.last_seen is not None:
                assert lifetime.last_seen < true.end.zxid, f"seed {SEED + number}"
                assert lifetime.end is None or true.end.zxid <= lifetime.end.zxid, (
                    f"seed {SEED + number}"
                )
        commits = {(c.zxid, c.idx): c for c in whole.commits}
        alone = {(c.zxid, c.idx): c.previous for c in replay(rows, log_gaps).commits}
        for commit in part.commits:
            right = commits[commit.zxid, commit.idx]
            if isinstance(commit.previous, Write):
                assert offset_before(commit) == offset_before(right), f"seed {SEED + number}"
                shown += alone[commit.zxid, commit.idx] is UNKNOWN
            if commit.owner is UNKNOWN:
                continue
            assert owner_of(commit)[0] == owner_of(right)[0], f"seed {SEED + number}"
            if isinstance(commit.owner, Lifetime) and isinstance(right.owner, Lifetime):
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
    assert [lifetime.ended.value for lifetime in replay(history, []).lifetimes] == [ended]
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
    assert [owner_of(c)[:2] for c in replay(history, [(0, 10)]).commits] == expected
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
