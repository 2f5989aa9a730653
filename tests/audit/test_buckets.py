"""What a round of a stream has to audit, and which files it writes."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession, functions as F
from zkaudit import schema
from zkaudit.errors import AuditError
from zkaudit.history import committed
from zkaudit.history.staging import Stage
from zkaudit.job import buckets, retention, stream
from zkaudit.job.audit import Options, Snapshots
from zkaudit.job.coverage import Coverage, as_runs
from zkaudit.job.output import rows_of
from zkaudit.tables import catalog

from zkconsumer.runtime.undisturbed import Alarm

ROWS = pa.schema(
    [
        *(f.with_nullable(True) for f in schema.arrow_schema(schema.TXNLOG_GROUPS)),
        pa.field("key", pa.int64()),
        pa.field("listed", pa.list_(pa.int64())),
    ]
)
EPOCH = 1 << 32
COVERAGE = Coverage(None, None, {}, (), ())


def batch(folder: Path, number: int, rows: dict[int, list[dict[str, Any]]]) -> buckets.Batches:
    """Write the rows of groups with these keys, or of shared buckets, as a batch."""
    one = buckets.Batches(folder, number, number)
    place = one.place
    for key, found in rows.items():
        of_group = key < buckets.BUCKETS
        full = [dict.fromkeys(ROWS.names) | {"key": key if of_group else None} | r for r in found]
        (place / f"bucket={key}").mkdir(parents=True)
        table = pa.Table.from_pylist(full, schema=ROWS)
        pq.write_table(table, place / f"bucket={key}" / "part-0.parquet")
    return one


def finish(out: Path, number: int, name: str = "mine") -> None:
    """Write what Spark's checkpoint has after a batch."""
    checkpoint = out / "checkpoint"
    (checkpoint / "commits").mkdir(parents=True, exist_ok=True)
    (checkpoint / "commits" / str(number)).touch()
    (checkpoint / "commits" / f".{number}.crc").touch()
    (checkpoint / "metadata").write_text(json.dumps({"id": name}))


def run(server: str, first: int, last: int, second: int = 0) -> dict[str, Any]:
    """A run of zxids of epoch 1; the last one's time is so many seconds after 2026 began."""
    time = datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)
    zxids = {"first_zxid": EPOCH + first, "last_zxid": EPOCH + last}
    times = {"first_time": time, "last_time": time, "times": None}
    return {"server": server, "file": "log.1", "kind": schema.RUN} | times | zxids


def used(tables: Path, sessions: dict[int, list[int]]) -> None:
    """Write which sessions used the group with each key."""
    place = tables / "_groups"
    place.mkdir(parents=True)
    for key, numbers in sessions.items():
        table = pa.table({"key": [key] * len(numbers), "session": numbers})
        pq.write_table(table, place / f"part-{key}.parquet")


def test_each_batch_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After any batch, few directories have each batch once, and the last batch has its own. The
    rows of each were there when it was written. The first batch, which is long, is written once."""
    monkeypatch.setattr(Path, "is_dir", lambda _: True)
    there: set[tuple[int, int]] = set()
    for number in range(5000):
        found = [(one.first, one.last) for one in buckets.recorded(tmp_path, number)]
        for first, last in set(found) - there:
            parts = {(a, b) for a, b in there if first <= a and b <= last}
            assert first == last == number or sum(b - a + 1 for a, b in parts) == last - first + 1
            assert number == 0 or first > 0
        there = set(found)
        assert found[-1] == (number, number)
        assert [0, *(last + 1 for _, last in found)] == [*(a for a, _ in found), number + 1]
        assert len(found) <= 3 + 3 * (buckets.MERGED - 1)
    assert buckets.recorded(tmp_path, -1) == []


def test_deleted_directories_do_not_count(tmp_path: Path) -> None:
    """``--retention`` deleted some of the batches before the last one."""
    for number in (0, 17):
        batch(tmp_path, number, {7: [{}]})
    assert [(one.first, one.last) for one in buckets.recorded(tmp_path, 17)] == [(0, 0), (17, 17)]


def test_a_batch_is_recorded_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark repeats a batch after a crash, also one whose directory has the rows of others too. A
    killed process may have left a part of it. Runs that continue one another become one."""
    monkeypatch.setattr(buckets, "MERGED", 2)
    monkeypatch.setattr(buckets, "LONGEST", 2)
    columns = schema.arrow_schema(schema.TXNLOG_GROUPS)
    recorder = buckets.Recorder(tmp_path)
    full = dict.fromkeys(columns.names) | {"server": "a", "file": "log.1"}
    path = "/consumers/g/offsets/t/0"
    for number in range(5):
        rows: list[dict[str, Any]] = [
            {"zxid": EPOCH + number, "type": "setData", "path": path, "session": number},
            {"zxid": EPOCH + number, "type": "closeSession", "session": number},
            run("a", number, number, number),
            {"zxid": EPOCH + number, "type": "reconfig", "path": schema.CONFIG, "session": 1,
             "data": b"server.1=x\n" * number},
        ]  # fmt: skip
        frame = spark.createDataFrame(
            pa.Table.from_pylist([full | row for row in rows], schema=columns),
            schema.spark_type(schema.TXNLOG_GROUPS),
        )
        if number in (2, 4):  # merged with others, and the last one
            recorder.write(frame, number)
            for place in recorder.folder.glob(f"batches=*-{number}"):
                (place / "bucket=3").mkdir(exist_ok=True)
                (place / "bucket=3" / "part-killed.parquet").touch()
        recorder.write(frame, number)
        finish(tmp_path, number)
    assert [(one.first, one.last) for one in recorder.batches()] == [(0, 0), (1, 2), (3, 3), (4, 4)]
    found = buckets.read(spark, recorder.batches())
    sets = found.where("type = 'setData'").select("zxid", "key").collect()
    assert sorted(row["zxid"] - EPOCH for row in sets) == list(range(5))
    (key,) = {row["key"] for row in sets}
    assert found.where("type = 'closeSession'").count() == 5
    numbers = {key % buckets.BUCKETS, buckets.SHARED}
    assert buckets.read(spark, recorder.batches(), numbers).where("kind is null").count() == 15
    runs = buckets.runs_of(recorder.batches())
    assert sorted(row["last_zxid"] - EPOCH for row in runs) == [0, 2, 3, 4]
    # As in ``zkaudit run``, the newest configuration says how many servers vote.
    options = Options(["a", "b"], str(tmp_path))
    assert stream._voters(options, recorder.batches(), []) == 4
    assert stream._voters(options, recorder.batches()[:1], []) is None
    assert stream._voters(replace(options, servers=3), recorder.batches(), []) == 3


def test_what_a_server_has_logged_twice_counts_once(spark: SparkSession, tmp_path: Path) -> None:
    """As in ``zkaudit run``: a file may be sent again under another name, and be in a later batch.
    Another server's log of the same transaction is not a copy."""

    def of(zxid: int, server: str = "a") -> dict[str, Any]:
        written = {"type": "setData", "idx": 0, "session": 1}
        return written | {"server": server, "zxid": EPOCH + zxid}

    first = [of(1), of(2), of(2) | {"idx": 1}, of(2, "b"), of(3)]
    runs = [run("a", 1, 3), run("b", 2, 2)]
    batches = [
        batch(tmp_path, 0, {7: first, buckets.RUNS: runs}),
        batch(tmp_path, 1, {7: [of(3), of(4)], buckets.RUNS: [run("a", 3, 4)]}),
    ]
    for numbers in (None, (7,)):
        found = buckets.read(spark, batches, numbers).where(f"coalesce(kind, '') != '{schema.RUN}'")
        rows = [(row["server"], row["zxid"], row["idx"]) for row in found.collect()]
        expected = [(row["server"], row["zxid"], row["idx"]) for row in (*first, of(4))]
        assert sorted(rows) == sorted(expected)


@pytest.mark.parametrize(("version", "committed_"), [(5, True), (4, False), (None, False)])
def test_later_rows_show_what_was_committed(
    spark: SparkSession, tmp_path: Path, version: int | None, committed_: bool
) -> None:
    """As in ``zkaudit run``: a proposal that one server logged, and without which another one
    continued, was committed if a later write of its znode follows it. If nothing follows, it is
    left out."""

    def wrote(zxid: int, version: int, server: str) -> dict[str, Any]:
        written = {"type": "setData", "path": "/consumers/g/offsets/t/0", "idx": 0, "session": 1}
        return written | {"server": server, "zxid": zxid, "version": version}

    early = [run("a", 1, 5), run("b", 1, 4)]
    first = batch(tmp_path, 0, {7: [wrote(EPOCH + 5, 4, "a")], buckets.RUNS: early})
    late = [run("b", 1, 3), run("c", 1, 3)]
    zxids = {"first_zxid": 2 * EPOCH + 1, "last_zxid": 2 * EPOCH + 3}
    rows = [] if version is None else [wrote(2 * EPOCH + 1, version, name) for name in "bc"]
    second = batch(tmp_path, 1, {7: rows, buckets.RUNS: [one | zxids for one in late]})
    batches = [first, second]
    plan = stream._plan(spark, batches, buckets.logged_runs(buckets.runs_of(batches)), 3)
    assert plan.unconfirmed == ()
    assert plan.dropped == (() if committed_ else ((EPOCH + 5, EPOCH + 5),))


def test_retention_may_leave_only_the_last_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next batches then find it, also where it becomes a directory of earlier batches alone."""
    frame: Any = SimpleNamespace(sparkSession=None)
    merged: list[buckets.Batches] = []
    monkeypatch.setattr(buckets.Recorder, "_save", lambda _, rows, one: one.place.mkdir())
    monkeypatch.setattr(buckets, "_merged", lambda _, found: merged.extend(found))
    recorder = buckets.Recorder(tmp_path)
    for number in range(2 * buckets.MERGED**2):
        recorder.write(frame, number)
        finish(tmp_path, number)
        found = recorder.batches()
        assert [one.last for one in found] == [*([number - 1] if number else []), number]
        for one in found[:-1]:  # as retention does
            one.place.rmdir()
    assert [one.last for one in merged] == list(
        range(buckets.MERGED, 2 * buckets.MERGED**2 - 1, buckets.MERGED)
    )


def test_runs_that_continue_one_another_are_one() -> None:
    """Many rounds leave few runs. Log gaps, servers and epochs stay apart."""
    rows = [run("a", 4, 6, 2), run("a", 1, 3, 1), run("a", 9, 9, 3), run("b", 1, 3, 4)]
    other = run("a", 0, 0) | {"first_zxid": 2 * EPOCH, "last_zxid": 2 * EPOCH + 5}
    found = buckets.folded([*rows, other])
    begun = rows[1]["first_time"]
    assert found == [
        run("a", 1, 6, 2) | {"first_time": begun}, run("a", 9, 9, 3), other, run("b", 1, 3, 4)
    ]  # fmt: skip
    assert buckets.covered(found) == [
        (EPOCH + 1, EPOCH + 6), (EPOCH + 9, EPOCH + 9), (2 * EPOCH, 2 * EPOCH + 5)
    ]  # fmt: skip


def test_a_row_touches_its_group_and_the_groups_that_its_session_used(tmp_path: Path) -> None:
    """A session's end ends what it owned in any group, and its refused creates may be claims. The
    end also lists znodes that were created in a log gap, of groups that it is not known to use."""
    used(tmp_path, {3: [1, 2], 4: [2, 7], 260: [7], 5: [8], 6: [9]})
    closed = {"type": "closeSession", "session": 2, "listed": [3, None, 11]}
    refused = {"type": "error", "session": 8, "path": "/consumers/g/owners/t/0"}
    new = batch(tmp_path, 1, {200: [{"session": 1}], buckets.SHARED: [closed, refused]})
    found = buckets.touched_by([new], tmp_path)
    assert found is not None
    assert found.keys == {3, 4, 5, 11, 200}
    assert sorted(found.sessions.to_pylist()) == [2, 8]
    topic = {"type": "setData", "session": 8, "path": "/brokers/topics/t"}
    other = batch(tmp_path, 2, {buckets.SHARED: [topic]})
    assert buckets.touched_by([new, other], tmp_path) is None


def test_what_all_groups_depend_on_touches_all(tmp_path: Path) -> None:
    """A round audits everything after a change that is not of single groups."""
    tables = tmp_path / "tables"
    used(tables, {3: [1]})
    rows = [run("a", 1, 9, 1), run("b", 1, 9, 1), run("c", 1, 5)]
    batch(tmp_path / "recorded", 0, {buckets.RUNS: rows})
    finish(tmp_path, 0)
    options = Options(["a", "b", "c"], str(tmp_path))

    def touched(options: Options = options, **change: Any) -> frozenset[int] | None:
        batches = buckets.Recorder(tmp_path).batches()
        runs = buckets.runs_of(batches)
        plan = committed.plan(as_runs(buckets.logged_runs(runs)))
        history = stream._History(batches, runs, plan, COVERAGE, Snapshots(), ([], []))
        now = replace(stream._state(options, history), always=(7,), **change)
        if not (tables / "_round.json").exists():
            now.write(tables)
        found = stream._touched(options, history, tables, now)
        return None if found is None else found.keys

    assert touched() == {7}
    new = run("a", 10, 12, 2), run("b", 10, 11, 2)
    finish(tmp_path, 1)
    batch(tmp_path / "recorded", 1, {buckets.RUNS: list(new), 200: [{"session": 1}]})
    assert touched() == {7, 200}
    assert touched(replace(options, start="2026-01-01")) is None
    assert touched(replace(options, journals=["journal"])) is None
    assert touched(last=0) is not None
    assert touched(last=-1) is None  # the batches of these tables are gone
    assert touched(end_us=1) is None
    assert touched(end_us=None) is None
    # The third server continues behind a log gap. That proves the other servers' last transaction,
    # which no new row is about.
    later = run("c", 12, 13, 3)
    finish(tmp_path, 2)
    batch(tmp_path / "recorded", 2, {buckets.RUNS: [later]})
    state = buckets.State.of(tables)
    assert state is not None
    replace(state, last=1, unconfirmed=[[EPOCH + 10, EPOCH + 11]]).write(tables)
    assert touched() is None
    (tables / "_round.json").unlink()
    nothing = stream._History([], [], committed.plan([]), COVERAGE, Snapshots(), ([], []))
    assert stream._touched(options, nothing, tables, state) is None


@pytest.mark.parametrize("audited", [None, (3, 4)])
def test_a_state_is_read_as_it_was_written(tmp_path: Path, audited: tuple[int, ...]) -> None:
    """It is stored as JSON, which has no tuples."""
    state = buckets.State(7, {"log_gaps": [[1, 3]]}, [[1, 2]], 5, (3,), audited)
    state.write(tmp_path)
    found = buckets.State.of(tmp_path)
    assert found is not None
    assert replace(found, audited=audited) == state
    assert found.audited is None if audited is None else list(found.audited or ()) == [3, 4]


def test_directories_are_deleted_whole_and_rarely(tmp_path: Path) -> None:
    """The first ones that are old enough, if that is an eighth of what is kept; never the last."""
    folder = tmp_path / "recorded"
    for number in range(4):
        rows = [run("a", 10 * number + 1, 10 * number + 10, 10 * number + 10)]
        batch(folder, number, {buckets.RUNS: rows})
    late = run("b", 1, 12, 12)
    batch(folder, 4, {buckets.RUNS: [late]})
    finish(tmp_path, 4)
    recorder = buckets.Recorder(tmp_path)
    found = recorder.batches()
    end = stream._end_us(buckets.runs_of(found))
    assert end is not None
    old = retention.Begin(EPOCH + 20, end - 20_000_000)
    nothing = retention.Begin()
    assert retention.too_old(found, nothing, end, 20) == old
    assert retention.too_old(found, nothing, end, 19.9) == old
    assert retention.too_old(found, nothing, end, 20.1) == replace(
        old, zxid=EPOCH + 10, time_us=end - 30_000_000
    )
    assert retention.too_old(found, nothing, end, 31) is None
    assert retention.too_old(found, nothing, None, 1) is None
    just = retention.Begin(EPOCH + 10, end - 30_000_000)
    assert retention.too_old(found, just, end, 20) == old
    assert retention.too_old(found, old, end, 20) is None
    before = retention.Begin(EPOCH + 15, end - 22_000_000)
    assert retention.too_old(found, before, end, 20) is None
    clipped = retention.after([run("a", 1, 10), run("a", 11, 20), late], EPOCH + 10)
    begun = {"first_zxid": EPOCH + 11, "first_time": None}  # the time of a later one is not known
    assert clipped == [run("a", 11, 20), late | begun]
    (folder / "begin.json").write_text(f'{{"zxid": {EPOCH + 20}, "time_us": 1}}')
    retention.clean(tmp_path)
    assert [one.first for one in recorder.batches()] == [2, 3, 4]
    retention.clean(tmp_path)
    assert [one.first for one in recorder.batches()] == [2, 3, 4]


def test_the_state_is_a_snapshot_changed_by_later_operations(spark: SparkSession) -> None:
    """Znodes of ended sessions are gone, and so are those that were created later. Operations that
    the snapshot already has do not count twice."""
    owner, offset, mine = (
        f"/consumers/g/{tail}" for tail in ("owners/t/0", "offsets/t/0", "ids/a")
    )

    def logged(zxid: int, kind: str, path: str | None, session: int, data: bytes) -> dict[str, Any]:
        row = {"server": "a", "zxid": zxid, "idx": 0, "type": kind, "path": path, "data": data}
        is_ephemeral = path in (owner, mine)
        return row | {"session": session, "ephemeral": is_ephemeral, "version": 7}

    operations = [
        logged(3, "create", owner, 1, b"x"),  # before the snapshot, which does not have it
        logged(12, "create", mine, 2, b"b"),
        logged(13, "setData", offset, 2, b"13"),
        logged(14, "delete", "/brokers/topics/old", 2, b""),
        logged(15, "closeSession", None, 3, b""),
        logged(16, "create", "/elsewhere", 2, b""),
        logged(17, "setData", offset, 2, b"17"),
    ]
    columns = schema.spark_type(schema.TXNLOG_GROUPS)
    full = dict.fromkeys(columns.names) | {"file": "log.1", "position": 0}
    rows = rows_of(spark, columns, [full | row for row in operations])

    def node(path: str, czxid: int, mzxid: int, session: int = 0) -> dict[str, Any]:
        zxids = {"zxid": 10, "complete_zxid": 11, "czxid": czxid, "mzxid": mzxid}
        return {"path": path, "ephemeral_owner": session, "server": "a", "file": "s"} | zxids

    nodes = [
        node("/", 0, 0), node("/brokers/topics/old", 2, 2), node("/brokers/topics/t", 2, 4),
        node(offset, 5, 6), node("/consumers/g/ids/c", 7, 7, 3), node(mine, 12, 12, 2),
        node("/consumers/g/ids/late", 18, 18, 4),
    ]  # fmt: skip
    shown = schema.spark_type(schema.SNAPSHOT)
    every = [dict.fromkeys(shown.names, 0) | {"data": None, "ctime": None, "mtime": None} | row
             for row in nodes]  # fmt: skip
    plan = committed.History({"a": ((9, 20),)}, (), (), ())
    assert committed.log_gaps_of(plan) == [(0, 9)]
    found = retention.state_at(rows, plan, 16, rows_of(spark, shown, every))
    names = ("path", "czxid", "mzxid", "ephemeral_owner", "data", "version")
    assert sorted(map(tuple, found.select(*names).collect())) == [
        ("/", 0, 0, 0, None, 0),
        ("/brokers/topics/t", 2, 4, 0, None, 0),
        (mine, 12, 12, 2, b"b", 0),
        (offset, 5, 13, 0, b"13", 7),
    ]


@pytest.mark.parametrize("links", [True, False])
def test_only_audited_groups_are_written(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """Rows of other groups stay, also of those in the same bucket. Rows of an audited group that
    are gone do not stay, nor those of no group. In the long table, the files of other buckets are
    links to those of the round before, or copies where the file system has no links."""
    named = spark.range(600).selectExpr("'' as chroot", "concat('g', id) as group_id")
    number = buckets.bucket(buckets.group_key())
    found = named.groupBy(number.alias("bucket")).agg(F.sort_array(F.collect_list("group_id")))
    (first_of, *same), *others = [row[1] for row in found.orderBy("bucket").collect() if row[1]]
    groups = [first_of, *same[:2], *(names[0] for names in others[:2])]
    assert len(same) > 1

    def frame(spec: catalog.Table, rows: dict[str | None, int]) -> DataFrame:
        columns = spec.spark_type()
        found = [{"chroot": "", "group_id": g, "zxid": zxid} for g, zxid in rows.items()]
        return rows_of(spark, columns, [dict.fromkeys(columns.names) | row for row in found])

    def names(*groups: str) -> Stage:
        rows = [("names", "", name, tree, None) for name in groups for tree in ("ids", "lock")]
        rows += [("used", "", name, None, 7) for name in groups]
        columns = "table string, chroot string, group_id string, tree string, session long"
        return Stage(spark.createDataFrame(rows, columns))

    every_name = dict.fromkeys([*groups, "new"], 0)
    keys_of = frame(catalog.MOVES, {**every_name}).select("group_id", buckets.group_key())
    key = dict(map(tuple, keys_of.collect()))
    state = buckets.State(0, {}, [], 1)
    before = buckets.BucketStore(spark, tmp_path, None, None, None, state)
    assert before.groups(names(*groups)) == 5
    before.table(catalog.MOVES, frame(catalog.MOVES, dict.fromkeys([*groups, None], 1)))
    before.table(catalog.COMMITS, frame(catalog.COMMITS, {**dict.fromkeys(groups, 1)}))
    before.close()
    if not links:
        monkeypatch.setattr("os.link", lambda *_: (_ for _ in ()).throw(OSError(95, "no links")))
    keys = frozenset([key[groups[0]], key[groups[1]], key["new"]])
    after = buckets.BucketStore(spark, tmp_path, keys, None, before.place, state)
    assert after.groups(names(groups[0], groups[1], "new")) == 6
    expected: dict[str | None, int] = {groups[0]: 2, "new": 3}
    for spec in (catalog.COMMITS, catalog.MOVES):
        if spec is catalog.MOVES:
            expected[None] = 4
        after.table(spec, frame(spec, expected))
        assert sorted(map(str, after.frame(spec).select("group_id", "zxid").collect())) == sorted(
            map(str, frame(spec, expected).select("group_id", "zxid").collect())
        )
        every = [tuple(row.values()) for row in after.read(spec, "group_id", "zxid").to_pylist()]
        assert len(every) == after.count(spec) == len(dict(every))
        assert dict(every) == expected | dict.fromkeys(groups[2:], 1)
    place = before.place / "commits" / f"bucket={key[groups[3]] % buckets.BUCKETS}"
    (old,) = place.glob("*.parquet")
    assert old.stat().st_nlink == 1 + links


def test_a_round_reads_what_its_groups_and_sessions_need(
    spark: SparkSession, tmp_path: Path
) -> None:
    """All rows of the groups, of the sessions that ever used them and of those with new rows, and
    all rows of topics and runs. Not: other groups' rows, although they are in the same files."""
    near = 7 + buckets.BUCKETS
    tables = tmp_path / "tables"
    used(tables, {7: [1, 2], near: [3], 8: [4]})

    def of(session: int, kind: str = "createSession") -> dict[str, Any]:
        return {"type": kind, "session": session}

    topic = {"type": "setData", "session": 9, "path": "/brokers/topics/t"}
    refused = of(2, "error") | {"path": "/consumers/g/owners/t/0"}
    shared = [*map(of, (1, 3, 4, 5, 6)), refused, of(3, "closeSession"), topic]
    keyed = [of(1, "setData") | {"key": 7}, of(3, "setData") | {"key": near}]
    early = {
        7: keyed,
        8: [of(4, "setData")],
        buckets.SHARED: shared,
        buckets.RUNS: [run("a", 1, 9)],
    }
    late = {7: [of(5, "setData")], buckets.SHARED: [of(6, "closeSession")]}
    batches = [batch(tmp_path, 0, early), batch(tmp_path, 1, late)]
    found = buckets.touched_by(batches[1:], tables)
    assert found is not None

    def taken(touched: buckets.Touched) -> tuple[list[Any], list[int]]:
        rows, sessions = buckets.take(spark, batches, touched, tables)
        assert rows.columns == schema.spark_type(schema.TXNLOG_GROUPS).names
        return rows.collect(), sorted(sessions.to_pylist())

    rows, sessions = taken(found)
    assert sessions == [1, 2, 5, 6]
    told = [(r["type"] or r["kind"], r["session"] or 0, r["path"] or "") for r in rows]
    assert sorted(told) == sorted(
        [
            ("setData", 1, ""), ("setData", 5, ""), ("createSession", 1, ""),
            ("createSession", 5, ""), ("createSession", 6, ""), ("closeSession", 6, ""),
            ("error", 2, refused["path"]), ("setData", 9, topic["path"]), (schema.RUN, 0, ""),
        ]
    )  # fmt: skip
    nothing = buckets.Touched(frozenset([9]), found.sessions.slice(0, 0))
    rows, sessions = taken(nothing)
    assert not sessions
    assert {r["type"] or r["kind"] for r in rows} == {"setData", schema.RUN}


def test_a_checkpoint_of_another_stream_is_refused(tmp_path: Path) -> None:
    """Somebody deleted it, or restored an older one. Its batches would replace those that are
    recorded, and what they had would be lost."""
    recorder = buckets.Recorder(tmp_path)
    recorder.check()
    following(tmp_path, 4)
    recorder.check()
    batch(tmp_path / "recorded", 5, {7: [{}]})  # and was killed before Spark had finished it
    recorder.check()
    refused = pytest.raises(
        AuditError, match=f"{tmp_path}/checkpoint is missing, or does not belong"
    )
    (tmp_path / "tables").mkdir()
    buckets.State(5, {}, [], 1).write(tmp_path / "tables")
    with refused:  # what was audited was finished
        recorder.check()
    finish(tmp_path, 5)
    recorder.check()
    finish(tmp_path, 5, "another")
    with refused:
        recorder.check()
    finish(tmp_path, 5)
    batch(tmp_path / "recorded", 7, {7: [{}]})
    with refused:
        recorder.check()
    shutil.rmtree(tmp_path / "checkpoint")
    with refused:
        recorder.check()


def following(out: Path, last: int) -> buckets.Recorder:
    """A stream that has recorded these batches."""
    finish(out, last)
    for number in range(last + 1):
        batch(out / "recorded", number, {7: [{}]})
    (out / "recorded" / "checkpoint-id").write_text("mine")
    return buckets.Recorder(out)


def test_recorded_batches_that_are_missing_are_refused(tmp_path: Path) -> None:
    """Spark would not read their transactions again. If history was deleted by ``--retention``,
    only the last directory must be there."""
    recorder = following(tmp_path, 4)
    first, second, *_, last = recorder.batches()
    shutil.rmtree(second.place)
    with pytest.raises(AuditError, match=f"{second.place} is missing, and ZooKeeper may have"):
        recorder.check()
    (tmp_path / "recorded" / "begin.json").write_text(f'{{"zxid": {EPOCH}, "time_us": 1}}')
    recorder.check()
    shutil.rmtree(first.place)
    recorder.check()
    shutil.rmtree(last.place)
    with pytest.raises(AuditError, match=f"{last.place} is missing, and ZooKeeper may have"):
        recorder.check()


@pytest.mark.parametrize(
    "gone", [["recorded"], ["recorded", "checkpoint"], ["recorded", "tables"]], ids=" ".join
)
def test_a_stream_whose_batches_were_deleted_is_refused(tmp_path: Path, gone: list[str]) -> None:
    """With its checkpoint, it would go on without their transactions. With its tables, a round
    would keep the rows of groups that it does not audit."""
    recorder = following(tmp_path, 4)
    (tmp_path / "tables").mkdir()
    buckets.State(4, {}, [], 1).write(tmp_path / "tables")
    recorder.check()
    for name in gone:
        shutil.rmtree(tmp_path / name)
    with pytest.raises(AuditError, match=f"{tmp_path}/recorded/checkpoint-id is missing: restore"):
        recorder.check()
    for place in tmp_path.iterdir():
        shutil.rmtree(place)
    recorder.check()


def test_the_name_of_the_checkpoint_is_written_once_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed, or a full disk, leaves a stream that can be continued."""
    frame: Any = SimpleNamespace(sparkSession=None)
    monkeypatch.setattr(buckets.Recorder, "_save", lambda _, rows, one: one.place.mkdir())
    write = Path.write_text

    def full(file: Path, text: str, *_: Any, **__: Any) -> int:
        write(file, "")
        raise OSError(28, "No space left on device")

    recorder = buckets.Recorder(tmp_path)
    finish(tmp_path, 0)
    (tmp_path / "checkpoint" / "commits" / "0").unlink()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space left"):
            recorder.write(frame, 0)
    recorder.check()
    recorder.write(frame, 0)
    finish(tmp_path, 0)
    recorder.check()
    monkeypatch.setattr(Path, "write_text", full)
    recorder.write(frame, 1)
    recorder.check()


def test_a_query_is_tried_again_until_the_stream_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If its Python process does not start in time. Any other error ends it."""
    monkeypatch.setattr(stream, "register", lambda _: None)
    monkeypatch.setattr(stream.selection, "find", lambda _: None)
    monkeypatch.setattr(stream, "_WAITS", (0, 0))
    failures: list[str] = []
    tries: list[int] = []

    def read(*_: object) -> None:
        tries.append(len(failures))
        if failures:
            raise StreamingQueryException(failures.pop())

    monkeypatch.setattr(stream, "_record", read)
    options, none, late = Options([], str(tmp_path)), Any, "Python worker failed to connect back."

    def tried(*errors: str, stop: Alarm | None = None) -> int:
        failures[:], tries[:] = errors, []
        stream.record(none, options, stop)
        return len(tries)

    assert [tried(), tried(late), tried(late, late)] == [1, 2, 3]
    for errors in (("another",), (late,) * 3):
        with pytest.raises(StreamingQueryException, match=errors[0]):
            tried(*errors)
    stop = Alarm()
    stop.set()
    assert tried(late, stop=stop) == 1
    assert stop.wait(0), "the caller ends, too"
