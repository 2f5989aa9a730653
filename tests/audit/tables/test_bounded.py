"""Fast scans and joins give the same answers as the plain rules that take quadratic time."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from typing import Any

import pytest
from pyspark.sql import SparkSession, functions as F
from zkaudit import schema
from zkaudit.findings import load, ownership
from zkaudit.findings.base import Tables
from zkaudit.findings.limits import Limits
from zkaudit.group import znode_of
from zkaudit.group.znodes import WITH_CHANGES
from zkaudit.history.staging import (
    first_of,
    known_at,
    log_gap_between,
    segment_of,
    stage,
)
from zkaudit.tables import catalog

from tests.audit.histories import END, frame_of

pytestmark = pytest.mark.timeout(600)  # Spark compiles long on a busy machine


@pytest.mark.parametrize("count", [1, 2, 17, 10_000])
def test_the_place_of_a_zxid_among_log_gaps(spark: SparkSession, count: int) -> None:
    """The history has as many log gaps as it may have. Segments, their borders and everything
    between two zxids equal the result of a search in the list."""
    chance = random.Random(count)
    edges = sorted(chance.sample(range(1, 60 * count), 2 * count))
    gaps = list(zip(edges[::2], [b + 1 for b in edges[1::2]], strict=True))
    ends, begins = [a for a, _ in gaps], [b for _, b in gaps]
    known = [0, *[chance.choice([None, b]) for b in begins]]
    near = [number + step for number in chance.sample(edges, min(60, len(edges)))
            for step in (-1, 0, 1, 2)]  # fmt: skip
    rows = [(a, chance.choice(near)) for a in [*near, 0, 2**62]]
    given = spark.createDataFrame([*rows, (None, None)], "a long, b long")
    a, b = F.col("a"), F.col("b")
    segment = segment_of(a, gaps)
    found = given.select(
        "a", "b", segment.alias("segment"), first_of(segment, gaps).alias("first"),
        log_gap_between(a, b, gaps).alias("between"),
        known_at(a, gaps, known).alias("known"),
    ).collect()  # fmt: skip
    assert len(found) == len(rows) + 1
    for row in found:
        number = 0 if row.a is None else bisect_right(begins, row.a)
        assert row.segment == number
        assert row.first == [0, *begins][number]
        if row.a is None:
            continue
        assert row.between == (
            row.a < row.b and bisect_left(ends, row.b) > bisect_left(ends, row.a)
        )
        since = known[number]
        assert row.known == (since is not None and row.a >= since)


@pytest.mark.parametrize("group", [None, "g|offsets"])
def test_spark_and_the_fold_read_paths_alike(spark: SparkSession, group: str | None) -> None:
    """Spark sends each row to its group by the path, and the fold reads the same path. Both give
    the same groups and trees, for any name of group, topic and chroot."""
    places = ["", "/kafka", "/consumers/x", "/a/offsets/b"]
    names = ["g", "offsets", "owners", "consumers", "a b", "\u00e4"]
    tails = ["0", "7", "12", "x", "07", "-1", "1-2"]
    paths = [f"{c}/consumers/{g}/{tree}/{t}/{tail}" for c in places for g in names for t in names
             for tree in ("offsets", "owners") for tail in tails]  # fmt: skip
    paths += ["/consumers/g/offsets/t/1/2"]
    alone = ("ids/5", "ids/m", "ids/m/n", "ids", "migration", "live/mode", "live/members/m", "live")
    paths += [f"{c}/consumers/{g}/{znode}" for c in places for g in names for znode in alone]
    columns = [column.name for column in schema.TXNLOG]
    fixed = {"server": "s", "file": "f", "position": 0, "idx": 0, "size": 0, "session": 1,
             "cxid": 1, "type": "setData"}  # fmt: skip
    rows = [fixed | {"zxid": zxid, "path": path} for zxid, path in enumerate(paths, 1)]
    values = [tuple(row.get(name) for name in columns) for row in rows]
    staged = stage(spark.createDataFrame(values, schema.spark_type(schema.TXNLOG)), group=group)
    znodes = [znode for path in paths if (znode := znode_of(path))]
    chosen = [z for z in znodes if group is None or z.group in group.split("|")]
    assert {tuple(row) for row in staged.names.collect()} == {
        (z.chroot, z.group, z.tree) for z in chosen
    }
    commits = staged.commits.select("chroot", "group", "topic", "partition").collect()
    assert sorted(map(tuple, commits)) == sorted(
        (z.chroot, z.group, z.topic, z.partition) for z in chosen if z.tree == "offsets"
    )
    changes = staged.changes.select("path").collect()
    assert sorted(row["path"] for row in changes) == sorted(
        z.path for z in chosen if z.tree in WITH_CHANGES
    )


def of(spark: SparkSession, **rows: list[dict[str, Any]]) -> Tables:
    """Tables of an audit that contain only these rows."""
    made = {t.name: frame_of(spark, t.spark_type(), rows.get(t.name, [])) for t in catalog.TABLES}
    end = frame_of(spark, END, [{"zxid": 10_000}])
    names = Tables.__dataclass_fields__.keys() & made.keys()
    return Tables(**{name: made[name] for name in names}, end=end)


def test_two_sessions_of_one_member_are_found_as_by_comparing_all(spark: SparkSession) -> None:
    """Members join and leave at random, some before or after the logs. The audit finds each overlap
    of an ownership with a registration from another session."""
    chance = random.Random(4)
    group = {"chroot": "", "group": "g"}
    registrations, owned = [], []
    for member in ("m1", "m2"):
        at = 1
        for number in range(40):
            end = at + chance.randrange(1, 30)
            unknown = number == 0
            lasting = number == 39
            registrations.append(
                group | {"member": member, "session": chance.randrange(1, 4),
                         "start_zxid": None if unknown else at,
                         "end_zxid": None if lasting else end,
                         "ended": "still held" if lasting else "expired"}
            )  # fmt: skip
            at = end + chance.choice([0, 0, 5])
        for number in range(40):
            begin = chance.randrange(1, at)
            owned.append(
                group | {"member": member, "session": chance.randrange(1, 4), "topic": "t",
                         "partition": number, "start_zxid": chance.choice([begin, begin, None]),
                         "end_zxid": chance.choice([begin + chance.randrange(1, 60), None]),
                         "ended": "released"}
            )  # fmt: skip
    last = 2**63 - 1
    expected = sorted(
        (o["member"], o["partition"], max(o["start_zxid"] or 0, r["start_zxid"] or 0))
        for o in owned
        for r in registrations
        if o["member"] == r["member"] and o["session"] != r["session"]
        and (o["start_zxid"] is not None or r["start_zxid"] is not None)
        and max(o["start_zxid"] or 0, r["start_zxid"] or 0)
        < min(o["end_zxid"] or last, r["end_zxid"] or last)
    )  # fmt: skip
    rows = ownership.two_sessions(of(spark, ownership=owned, registrations=registrations))
    found = sorted((row.member, row.partition, row.zxid) for row in rows.collect())
    assert len(expected) > 100
    assert found == expected


def test_filters_mean_the_topics_that_a_member_sees(spark: SparkSession) -> None:
    """The audit has white lists and black lists of two ensembles in many partitions. Each filter
    matches topics of its own chroot only. Broken filters and internal topics match nothing."""
    topics = [(c, f"{k}{n}") for c in ("", "/b") for k in ("x", "y") for n in range(5)]
    topics += [("", "__consumer_offsets"), ("", "x0")]
    filters = [("", "white_list", f"x[0-{n}]") for n in range(5)] + [
        ("/b", "black_list", "x.*"), ("", "white_list", "["), ("/none", "white_list", ".*"),
        ("", "white_list", ".*"),
    ]  # fmt: skip
    found = ownership._matched(
        spark.createDataFrame(filters, "chroot string, pattern string, name string"),
        spark.createDataFrame(topics, "chroot string, topic string"),
    )
    rows = found.collect()
    named: dict[tuple[str, str], set[str]] = {(r.chroot, r.name): set() for r in rows}
    for row in rows:
        named[row.chroot, row.name].add(row.topic)
    assert len(rows) == sum(map(len, named.values()))
    every = {f"{k}{n}" for k in "xy" for n in range(5)}
    assert named == {
        **{("", f"x[0-{n}]"): {f"x{m}" for m in range(n + 1)} for n in range(5)},
        ("/b", "x.*"): {f"y{n}" for n in range(5)},
        ("", ".*"): every,
    }


def test_the_longest_registration_is_found_as_by_comparing_all(spark: SparkSession) -> None:
    """Members join and leave at random while partitions have no owner. Each unowned interval gets
    the registration that began first, of those that lasted to its end."""
    chance = random.Random(5)
    group = {"chroot": "", "group": "g"}
    free, wants = [], []
    for number in range(200):
        topic = chance.choice("tu")
        free.append(group | {"topic": topic, "partition": number, "until": chance.randrange(400)})
    for _ in range(60):
        begin = chance.randrange(400)
        end = chance.choice([begin + chance.randrange(1, 60), None])
        if end is None and chance.random() < 0.8:
            end = begin + 1
        wants.append(group | {"topic": chance.choice("tu"), "from_zxid": begin, "to_zxid": end})
    last = 2**63 - 1
    expected = {
        f["partition"]: min(starts)
        for f in free
        if (starts := [w["from_zxid"] for w in wants
                       if w["topic"] == f["topic"] and w["from_zxid"] < f["until"]
                       and (w["to_zxid"] or last) >= f["until"]])
    }  # fmt: skip
    key = "chroot string, group string, topic string"
    rows = ownership._witnessed(
        spark.createDataFrame(free, f"{key}, partition int, until long"),
        spark.createDataFrame(
            [w | {"from_time": None} for w in wants],
            f"{key}, from_zxid long, to_zxid long, from_time timestamp",
        ),
    )
    plan = rows._jdf.queryExecution().toString()
    assert "Join" not in plan
    assert {row.partition: row.from_zxid for row in rows.collect()} == expected
    assert 100 < len(expected) < 200


def test_the_cause_of_a_storm_is_found_as_by_comparing_all(spark: SparkSession) -> None:
    """A group has many storms, and joins and leaves inside and outside of them. Each storm gets the
    member with more than half of its joins and leaves."""
    chance = random.Random(6)
    group = {"chroot": "", "group": "g"}
    storms, changes, at = [], [], 0
    for number in range(30):
        begin = at + chance.randrange(1, 20)
        at = begin + chance.randrange(0, 30)
        storms.append(group | {"storm": number, "begin": begin, "end": at})
    for zxid in range(at + 20):
        member = chance.choice(["a", "a", "a", "b"])
        changes.append(group | {"at": zxid, "source": member})
    expected = {}
    for storm in storms:
        inside = [c["source"] for c in changes if storm["begin"] <= c["at"] <= storm["end"]]
        for member in "ab":
            if 2 < len(inside) < 2 * inside.count(member):
                expected[storm["storm"]] = (member, inside.count(member))
    names = "chroot string, group string"
    rows = load.culprits(
        spark.createDataFrame(changes, f"{names}, at long, source string"),
        spark.createDataFrame(storms, f"{names}, storm long, begin long, end long"),
    )
    assert "Join" not in rows._jdf.queryExecution().toString()
    found = {row.storm: (row.source, row.by_source) for row in rows.collect()}
    assert len(expected) > 10
    assert found == expected


def test_partitions_that_no_member_ever_owned(spark: SparkSession) -> None:
    """A member joined and left often, and never claimed some partitions: the audit reports one
    finding for each, except for one that is newer than the member."""
    from datetime import UTC, datetime

    def at(second: int) -> datetime:
        return datetime.fromtimestamp(1_700_000_000 + second, UTC)

    group = {"chroot": "", "group": "g"}
    registrations = [
        group | {"member": "m", "session": n, "pattern": "static", "subscription": {"t": 1},
                 "start_zxid": 10 + n, "start_time": at(100 * n), "end_zxid": 11 + n,
                 "end_time": at(100 * n + 60), "ended": "expired"}
        for n in range(50)
    ]  # fmt: skip
    partitions = [
        {"chroot": "", "topic": "t", "partition": n, "zxid": zxid, "time": at(time),
         "created": True}
        for n, zxid, time in ((0, 1, 0), (1, 1, 0), (2, 1, 0), (3, 50, 4_001), (4, 99, 5_000))
    ]  # fmt: skip
    owned = [
        group | {"topic": "t", "partition": 0, "member": "m", "session": 1, "start_zxid": 12,
                 "start_time": at(1), "end_zxid": 13, "end_time": at(2), "ended": "released"}
    ]  # fmt: skip
    tables = of(spark, registrations=registrations, partitions=partitions, ownership=owned)
    end = frame_of(spark, END, [{"zxid": 10_000, "time": at(9_000)}])
    rows = ownership.unclaimed(
        Tables(**{**{n: getattr(tables, n) for n in Tables.__dataclass_fields__}, "end": end}),
        Limits(),
    ).collect()
    assert sorted((row.partition, row.zxid) for row in rows) == [(1, 10), (2, 10), (3, 50)]
    assert {(row.kind, row.severity) for row in rows} == {("unowned interval", "medium")}
