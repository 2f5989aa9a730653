"""Spark gives the same lifetimes and commits as the fold ``zkaudit.group`` in memory."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, functions as F
from zkaudit.group import (
    UNKNOWN,
    Act,
    Commit,
    Coverage,
    Event,
    Lifetime,
    LogGap,
    Moment,
    Replay,
    Shown,
    Unknown,
    Write,
    member_of,
    replay,
)
from zkaudit.history import staging

from tests.audit.group_histories import RandomGroup, cut
from tests.audit.histories import in_snapshots, keep, logged

pytestmark = pytest.mark.timeout(600)  # Spark compiles long on a busy machine
SEED = int(os.environ.get("AUDIT_SEED", "20261121"))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TYPES = {
    Act.CREATE: "create2",
    Act.DELETE: "delete",
    Act.SET: "setData",
    Act.CLOSE: "closeSession",
}


def at(time: int | None) -> datetime | None:
    """A number of microseconds as a time."""
    return None if time is None else EPOCH + timedelta(microseconds=time)


def frame(spark: SparkSession, events: Iterable[Event]) -> DataFrame:
    """The events as rows of the transaction log."""
    place: dict[str, Any] = {"server": "a", "file": "log.1", "size": 0}
    return logged(
        spark,
        [
            place | event._asdict() | {"type": TYPES[event.act], "position": event.zxid,
                                       "time": at(event.time)}
            for event in events
        ],
    )  # fmt: skip


def in_frame(spark: SparkSession, shown: Iterable[Shown]) -> DataFrame:
    """The rows as the snapshot data source gives them."""
    fixed: dict[str, Any] = {"server": "a", "file": "snapshot.1"}
    fixed |= dict.fromkeys(("version", "cversion", "aversion", "pzxid"), 0)
    return in_snapshots(
        spark,
        [
            fixed | {"zxid": row.zxid, "path": row.path, "data": row.data, "czxid": row.czxid,
                     "ephemeral_owner": row.session, "ctime": at(row.ctime),
                     "mzxid": row.mzxid, "mtime": at(row.mtime)}
            for row in shown
        ],
    )  # fmt: skip


def in_memory(history: Replay) -> tuple[list[Any], list[Any]]:
    """Lifetimes and commits of a fold, each sorted, in the order of ``by_spark``."""
    lifetimes = [
        (v.znode.path, v.session, *moment(v.start), *moment(v.end), v.last_seen, v.ended.value,
         v.ended_by, *(member_of(v.data) if v.znode.tree == "owners" else (None, None)))
        for v in history.lifetimes
    ]  # fmt: skip
    commits = [
        (c.znode.path, c.zxid, c.idx, c.time, c.session, c.offset, *before(c.previous),
         c.kind.value, c.created, *owner_of(c), c.free_since)
        for c in history.commits
    ]  # fmt: skip
    return sorted(lifetimes, key=repr), sorted(commits, key=repr)


def moment(value: Moment | Unknown | None) -> tuple[int | None, int | None, int | None]:
    """zxid, index and time of a moment."""
    return (*value,) if isinstance(value, Moment) else (None, None, None)


def before(write: Write | Unknown | None) -> tuple[int | None, int | None, int | None]:
    """Offset, zxid and time of a write."""
    return write[1:] if isinstance(write, Write) else (None, None, None)


def owner_of(commit: Commit) -> tuple[Any, ...]:
    """State, session, start and member of the owner at a commit."""
    owner = commit.owner
    if isinstance(owner, Lifetime):
        return "owner", owner.session, owner.start_zxid, owner.member
    return "unknown" if owner is UNKNOWN else "none", None, None, None


def by_spark(
    spark: SparkSession,
    events: Sequence[Event],
    log_gaps: Sequence[LogGap],
    shown: Sequence[Shown],
    known: Sequence[int | None],
) -> tuple[list[Any], list[Any]]:
    """The rows of Spark: lifetimes, then commits, each sorted."""
    snapshots = in_frame(spark, shown) if shown else None
    stage = staging.stage(frame(spark, events), log_gaps, snapshots, keep=keep, known=known)
    lifetimes = stage.folded.where("ended is not null").select(
        "path", "session", "start_zxid", "start_idx", F.unix_micros("start_time"), "end_zxid",
        "end_idx", F.unix_micros("end_time"), "end_after_zxid", "ended", "ended_by", "member",
        "stream",
    )  # fmt: skip
    commits = stage.commits.select(
        F.concat(F.lit("/consumers/"), "group_id", F.lit("/offsets/"), "topic", F.lit("/"),
                 "partition"),
        "zxid", "idx", F.unix_micros("time"), "session", "committed_offset", "previous",
        "previous_zxid", F.unix_micros("previous_time"), "kind", "created", "owner_state",
        "owner_session", "owner_start_zxid", "owner_member", "free_since_zxid",
    )  # fmt: skip
    return (
        sorted(map(tuple, lifetimes.collect()), key=repr),
        sorted(map(tuple, commits.collect()), key=repr),
    )


@pytest.mark.parametrize("batch", range(3))
def test_spark_equals_the_fold_in_memory_on_random_histories(
    spark: SparkSession, batch: int
) -> None:
    """Random groups in one history, whole or cut at the front or in the middle, with what snapshots
    show. All rows of a group are folded in order, whatever the order in which Spark reads them."""
    rng = random.Random(SEED + batch)
    groups: list[RandomGroup] = []
    for number in range(40):
        first = groups[-1].zxid if groups else 0
        groups.append(RandomGroup(rng, f"g{number}", first, rng.randrange(30, 100)))
    events, log_gaps = cut(rng, groups) if batch else ([e for g in groups for e in g.events], [])
    shown = [row for group in groups for row in group.shown if rng.random() < 0.8]
    known = [0, *(rng.choice((None, first)) for _, first in sorted(log_gaps))]
    lifetimes, commits = in_memory(replay(events, Coverage(log_gaps, known), shown))
    assert lifetimes, f"AUDIT_SEED={SEED}"
    assert commits, f"AUDIT_SEED={SEED}"
    rng.shuffle(events)
    rng.shuffle(shown)
    spark_lifetimes, spark_commits = by_spark(spark, events, log_gaps, shown, known)
    assert spark_lifetimes == lifetimes, f"AUDIT_SEED={SEED}"
    assert spark_commits == commits, f"AUDIT_SEED={SEED}"


def test_the_events_of_two_groups_whose_names_are_alike(spark: SparkSession) -> None:
    """Groups of the same name in two chroots, and a group whose name is that of a folder. Each
    close reaches the groups in which its session has a znode."""
    roots = ["/consumers/g", "/a/consumers/g", "/consumers/consumers", "/consumers/offsets"]
    events = []
    for number, root in enumerate(roots):
        zxid = 10 * number
        events += [
            Event(zxid + 1, 0, 0, 5, Act.CREATE, f"{root}/owners/t/0", b"m-0", True),
            Event(zxid + 2, 0, 0, 5, Act.SET, f"{root}/offsets/t/0", b"%d" % number),
        ]
    events.append(Event(100, 0, 0, 5, Act.CLOSE, cxid=0))
    stage = staging.stage(frame(spark, events), keep=keep)
    commits = stage.commits.select(
        "chroot", "group_id", "committed_offset", "owner_session"
    ).collect()
    names = [("", "g"), ("/a", "g"), ("", "consumers"), ("", "offsets")]
    assert {tuple(row) for row in commits} == {
        (*name, number, 5) for number, name in enumerate(names)
    }
    owned = stage.rows("owners").select("chroot", "group_id", "ended", "end_zxid").collect()
    assert {tuple(row) for row in owned} == {(*name, "expired", 100) for name in names}
    used = stage.rows("used").select("chroot", "group_id", "session").collect()
    assert {tuple(row) for row in used} == {(*name, 5) for name in names}
