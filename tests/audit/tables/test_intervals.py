"""Intervals and commits made by Spark equal the sequential replay, whatever the logs lack."""

from __future__ import annotations

import os
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from zkaudit import schema
from zkaudit.history import lifetimes as intervals, staging
from zkaudit.history.replay import Lifetime, LogGap, Replay, Row, Seen, member_of, replay

pytestmark = pytest.mark.timeout(600)  # Spark compiles long on a busy machine
SEED = int(os.environ.get("AUDIT_SEED", "20261121"))
EPOCH = datetime(2026, 11, 21, tzinfo=UTC)


def at(zxid: int) -> datetime:
    """The leader's clock: 10 ms for each transaction."""
    return EPOCH + timedelta(milliseconds=zxid * 10)


def frame(spark: SparkSession, rows: list[Row]) -> DataFrame:
    """The rows as the transaction log's data source gives them."""
    columns = [c.name for c in schema.TXNLOG]
    values = []
    for row in rows:
        known: dict[str, Any] = {
            **row._asdict(), "time": at(row.zxid), "server": "a", "file": "log.1",
            "position": row.zxid, "size": 0,
        }  # fmt: skip
        values.append(tuple(known.get(name) for name in columns))
    return spark.createDataFrame(values, schema.spark_type(schema.TXNLOG))


def shown(spark: SparkSession, seen: list[Seen]) -> DataFrame:
    """The rows as the snapshot data source gives them."""
    columns = [c.name for c in schema.SNAPSHOT]
    values = []
    for row in seen:
        known: dict[str, Any] = {
            "server": "a", "file": "snapshot.1", "zxid": row.zxid, "path": row.path,
            "data": row.data, "czxid": row.czxid, "ephemeral_owner": row.session,
            "ctime": at(row.czxid), "mzxid": row.czxid, "version": 0, "cversion": 0,
            "aversion": 0, "pzxid": 0,
        }  # fmt: skip
        values.append(tuple(known.get(name) for name in columns))
    return spark.createDataFrame(values, schema.spark_type(schema.SNAPSHOT))


class Ensemble:
    """A ZooKeeper that does random things to one group, and logs them."""

    def __init__(self, rng: random.Random, group: str, first: int) -> None:
        self.rng = rng
        self.root = f"/consumers/{group}"
        self.group = group
        self.zxid = first
        self.session = first * 100
        self.nodes: dict[str, tuple[bytes, int, int]] = {}  # data, session, czxid
        self.sessions: list[int] = []
        self.rows: list[Row] = []
        self.seen: list[Seen] = []

    def log(self, *operations: tuple[Any, ...], cxid: int = 1, session: int = 0) -> None:
        self.zxid += 1
        for idx, (kind, path, data, ephemeral) in enumerate(operations):
            self.rows.append(Row(self.zxid, idx, session, kind, path, data, ephemeral, cxid))
            if path is None:
                continue
            if kind in schema.CREATES:
                self.nodes[path] = (data, session if ephemeral else 0, self.zxid)
            elif kind == "delete":
                self.nodes.pop(path)
            else:
                self.nodes[path] = (data, *self.nodes[path][1:])

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
            self.log(("closeSession", None, None, None), session=session, cxid=cxid)
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
        if rng.random() < 0.5:
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
        for path, (data, session, czxid) in self.nodes.items():
            if session:
                self.seen.append(Seen(self.zxid, path, czxid, session, data))


def cut(rng: random.Random, made: list[Ensemble]) -> tuple[list[Row], list[LogGap]]:
    """Drop the front, or pieces in the middle, or nothing."""
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
    """What the replay found, in the order of ``by_spark``."""
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
            (c.path, *c.at, c.session, c.offset, c.previous, c.kind, c.owner_state)
            + ((owner.session, owner.start and owner.start[0]) if owner else (None, None))
        )
    return sorted(lifetimes, key=repr), sorted(commits, key=repr)


def by_spark(
    spark: SparkSession, rows: list[Row], log_gaps: list[LogGap], seen: list[Seen]
) -> tuple[list[Any], list[Any]]:
    """What Spark finds: lives, then commits, each sorted."""
    stage = staging.stage(
        frame(spark, rows), log_gaps, shown(spark, seen), keep=lambda _, made: made.persist()
    )
    owned = intervals.owners(intervals.lifetimes(stage, "owners"))
    lifetime = ["path", "session", "start_zxid", "start_idx", "end_zxid", "end_idx",
            "end_after_zxid", "ended", "ended_by"]  # fmt: skip
    lifetimes = [
        (*r, None, None) for r in intervals.lifetimes(stage, "ids").select(lifetime).collect()
    ]
    lifetimes += [tuple(r) for r in owned.select(*lifetime, "member", "stream").collect()]
    commits = intervals.commits(stage, owned).selectExpr(
        "concat('/consumers/', group, '/offsets/', topic, '/', partition) as path",
        "zxid", "idx", "session", "offset", "previous", "kind", "owner_state", "owner_session",
        "owner_start_zxid",
    )  # fmt: skip
    return sorted(lifetimes, key=repr), sorted(map(tuple, commits.collect()), key=repr)


@pytest.mark.parametrize("batch", range(4))
def test_spark_equals_the_replay_on_random_histories(spark: SparkSession, batch: int) -> None:
    """30 random groups in one history, each batch cut at the front or in the middle: same rows."""
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
    """So nothing is known to have gone back, and the same number again is a commit."""
    path = "/consumers/g/offsets/t/0"
    history = [Row(z, 0, 1, "setData", path, b"%d" % n) for z, n in ((1, 9), (14, 9), (15, 9))]
    cut, whole = (replay(history, log_gaps).commits for log_gaps in ([(3, 14)], []))
    assert [(c.previous, c.kind) for c in cut] == [(None, "commit"), (None, "commit"), (9, "same")]
    assert [(c.previous, c.kind) for c in whole] == [(None, "commit"), (9, "same"), (9, "same")]


def test_what_is_said_of_a_cut_history_is_true_in_the_whole_one() -> None:
    """Whatever is missing: lives with a known begin and end, and owners of commits, are right."""
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
        for commit in part.commits:
            if commit.owner_state == "unknown":
                continue
            right = commits[commit.at]
            assert commit.owner_state == right.owner_state, f"seed {SEED + number}"
            if commit.owner is not None and right.owner is not None:
                assert commit.owner.session == right.owner.session, f"seed {SEED + number}"


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
    """Each way an ownership interval can end has its own name."""
    path = "/consumers/g/owners/t/0"
    history = [Row(1, 0, 1, "create", path, b"g_c-0", True)]
    for number, (kind, session, cxid) in enumerate(rows):
        znode = path if kind == "delete" else None
        history.append(Row(2 + number, 0, session, kind, znode, None, None, cxid))
    assert [lifetime.ended for lifetime in replay(history, []).lifetimes] == [ended]
    stage = staging.stage(frame(spark, history))
    assert [r.ended for r in intervals.lifetimes(stage, "owners").collect()] == [ended]
