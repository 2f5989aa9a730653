"""What a round of a stream has to audit, and which files it writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession, functions as F
from zkaudit import schema
from zkaudit.errors import AuditError
from zkaudit.history import committed
from zkaudit.job import buckets, retention, stream
from zkaudit.job.audit import Options, Snapshots
from zkaudit.job.coverage import Coverage
from zkaudit.tables import catalog

ROWS = pa.schema(
    [
        *(f.with_nullable(True) for f in schema.arrow_schema(schema.TXNLOG_GROUPS)),
        pa.field("key", pa.int64()),
    ]
)
EPOCH = 1 << 32
COVERAGE = Coverage(None, None, {}, (), ())


def batch(
    folder: Path, first: int, last: int, rows: dict[int, list[dict[str, Any]]]
) -> buckets.Batches:
    """Write the rows of groups with these keys, or of shared buckets, as batches."""
    place = folder / f"batches-{first:010}-{last:010}"
    place.mkdir(parents=True)
    for key, found in rows.items():
        of_group = key < buckets.BUCKETS
        full = [dict.fromkeys(ROWS.names) | {"key": key if of_group else None} | r for r in found]
        table = pa.Table.from_pylist(full, schema=ROWS)
        pq.write_table(table, place / f"bucket-{key}-0.parquet")
    (place / "_SUCCESS").touch()
    return buckets.Batches(first, last, place)


def run(server: str, first: int, last: int, second: int = 0) -> dict[str, Any]:
    """A run of zxids of epoch 1; the last one's time is so many seconds after 2026 began."""
    time = datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)
    zxids = {"first_zxid": EPOCH + first, "last_zxid": EPOCH + last}
    times = {"first_time": time, "last_time": time, "times": None}
    return {"server": server, "file": "log.1", "kind": schema.RUN} | times | zxids


def used(tables: Path, sessions: dict[int, list[int]]) -> None:
    """Write which sessions used the group with each key."""
    place = tables / ".state" / "used"
    place.mkdir(parents=True)
    for key, numbers in sessions.items():
        table = pa.table({"session": numbers, "key": [key] * len(numbers)})
        pq.write_table(table, place / f"bucket-{key % buckets.BUCKETS}-{key}.parquet")


def test_each_batch_counts_once(tmp_path: Path) -> None:
    """A directory that is not finished does not count, nor one whose batches a larger one has."""
    assert buckets.recorded(tmp_path / "nothing") == []
    one, merged, late = (batch(tmp_path, *n, {}) for n in ((15, 15), (0, 15), (16, 16)))
    (tmp_path / "batches-0000000017-0000000017").mkdir()
    (tmp_path / "snapshots").mkdir()
    assert buckets.recorded(tmp_path) == [merged, late]
    (merged.place / "_SUCCESS").unlink()
    assert buckets.recorded(tmp_path) == [one, late]


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
    """A session's end ends what it owned in any group, and its refused creates may be claims."""
    used(tmp_path, {3: [1, 2], 4: [2, 7], 260: [7], 5: [8], 6: [9]})
    closed = {"type": "closeSession", "session": 2}
    refused = {"type": "error", "session": 8, "path": "/consumers/g/owners/t/0"}
    new = batch(tmp_path, 1, 1, {200: [{"session": 1}], buckets.SHARED: [closed, refused]})
    found = buckets.touched_by([new], tmp_path)
    assert found is not None
    assert found.keys == {3, 4, 5, 200}
    assert sorted(found.sessions.to_pylist()) == [2, 8]
    topic = {"type": "setData", "session": 8, "path": "/brokers/topics/t"}
    other = batch(tmp_path, 2, 2, {buckets.SHARED: [topic]})
    assert buckets.touched_by([new, other], tmp_path) is None


def test_what_all_groups_depend_on_touches_all(tmp_path: Path) -> None:
    """A round audits everything after a change that is not of single groups."""
    tables = tmp_path / "tables"
    used(tables, {3: [1]})
    rows = [run("a", 1, 9, 1), run("b", 1, 9, 1), run("c", 1, 5)]
    batch(tmp_path / "recorded", 0, 0, {buckets.RUNS: rows})
    options = Options(["a", "b", "c"], str(tmp_path))

    def touched(options: Options = options, **change: Any) -> frozenset[int] | None:
        batches = buckets.recorded(tmp_path / "recorded")
        runs = buckets.runs_of(batches)
        plan = committed.plan(buckets.as_runs(runs))
        history = stream._History(batches, runs, plan, COVERAGE, Snapshots(), ([], []))
        now = replace(stream._state(options, history), always=(7,), **change)
        if not (tables / ".state" / "state.json").exists():
            now.write(tables)
        found = stream._touched(options, history, tables, now)
        return None if found is None else found.keys

    assert touched() == {7}
    new = run("a", 10, 12, 2), run("b", 10, 11, 2)
    batch(tmp_path / "recorded", 1, 1, {buckets.RUNS: list(new), 200: [{"session": 1}]})
    assert touched() == {7, 200}
    assert touched(replace(options, start="2026-01-01")) is None
    assert touched(replace(options, journals=["journal"])) is None
    assert touched(end_us=1) is None
    assert touched(end_us=None) is None
    # The third server continues behind a log gap. That proves the other servers' last transaction,
    # which no new row is about.
    later = run("c", 12, 13, 3)
    batch(tmp_path / "recorded", 2, 2, {buckets.RUNS: [later]})
    state = buckets.State.of(tables)
    assert state is not None
    replace(state, last=1, unconfirmed=[[EPOCH + 10, EPOCH + 11]]).write(tables)
    assert touched() is None
    (tables / ".state" / "state.json").unlink()
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


def test_small_directories_are_put_together(tmp_path: Path, monkeypatch: Any) -> None:
    """Sixteen of one size are, however large those before are; a large one waits for others."""
    sizes = dict.fromkeys(range(23), 1000)
    monkeypatch.setattr(buckets.Batches, "bytes", lambda one: sizes[one.first])
    found = [buckets.Batches(n, n, tmp_path) for n in range(23)]
    assert buckets.together(found[:15]) == ()
    assert buckets.together(found) == found
    sizes[0] = 1 << 30
    assert buckets.together(found[:16]) == ()
    assert buckets.together(found[:17]) == found[1:17]
    sizes[5] = 1 << 24
    assert buckets.together(found[:21]) == ()
    assert buckets.together(found[:22]) == found[6:22]
    sizes |= dict.fromkeys(range(1, 17), 1 << 24)
    assert buckets.together(found[:20]) == found[1:20]


def test_directories_are_deleted_whole_and_rarely(tmp_path: Path) -> None:
    """The first ones that are old enough, if that is an eighth of what is kept; never the last."""
    folder = tmp_path / "recorded"
    for number in range(4):
        rows = [run("a", 10 * number + 1, 10 * number + 10, 10 * number + 10)]
        batch(folder, number, number, {buckets.RUNS: rows})
    late = run("b", 1, 12, 12)
    batch(folder, 4, 4, {buckets.RUNS: [late]})
    found = buckets.recorded(folder)
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
    retention.clean(folder)
    assert [one.first for one in buckets.recorded(folder)] == [2, 3, 4]
    retention.clean(folder)
    assert [one.first for one in buckets.recorded(folder)] == [2, 3, 4]


@pytest.mark.parametrize("links", [True, False])
def test_only_audited_groups_are_written(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """Rows of other groups stay, also of those in the same bucket. Files of other buckets are links
    to those of the round before, or copies where the file system has no links. Rows of an audited
    group that are gone do not stay."""
    spec = catalog.MOVES
    columns = spec.spark_type()
    named = spark.range(600).selectExpr("'' as chroot", "concat('g', id) as group")
    number = buckets.bucket(buckets.group_key())
    found = named.groupBy(number.alias("bucket")).agg(F.sort_array(F.collect_list("group")))
    (first_of, *same), *others = [row[1] for row in found.orderBy("bucket").collect() if row[1]]
    groups = [first_of, *same[:2], *(names[0] for names in others[:2])]
    assert len(same) > 1

    def frame(rows: dict[str, int]) -> Any:
        found = [{"chroot": "", "group": g, "zxid": zxid} for g, zxid in rows.items()]
        return spark.createDataFrame([dict.fromkeys(columns.names) | row for row in found], columns)

    def names(*groups: str) -> Any:
        rows = [("", group, tree) for group in groups for tree in ("ids", "lock")]
        return SimpleNamespace(
            names=spark.createDataFrame(rows, "chroot string, group string, tree string")
        )

    key = dict(
        frame(dict.fromkeys([*groups, "new"], 0)).select("group", buckets.group_key()).collect()
    )
    state = buckets.State(0, {}, [], 1)
    first = buckets.BucketStore(spark, tmp_path, None, None, state)
    assert first.groups(names(*groups)) == 5
    first.table(spec, frame(dict.fromkeys(groups, 1)))
    first.close()
    if not links:
        monkeypatch.setattr("os.link", lambda *_: (_ for _ in ()).throw(OSError(95, "no links")))
    keys = frozenset([key[groups[0]], key[groups[1]], key["new"]])
    touched = buckets.Touched(keys, pa.array([], pa.int64()))
    second = buckets.BucketStore(spark, tmp_path, touched, first.place, state)
    assert second.groups(names(groups[0], groups[1], "new")) == 6
    audited = second.table(spec, frame({groups[0]: 2, "new": 3}))
    expected = {groups[0]: 2, "new": 3}
    assert dict(audited.select("group", "zxid").collect()) == expected
    every = dict(second.every(spec, audited).select("group", "zxid").collect())
    assert every == expected | dict.fromkeys(groups[2:], 1)
    assert second.count(spec) == len(every)
    (old,) = (first.place / spec.name).glob(f"bucket-{key[groups[3]] % buckets.BUCKETS}-*")
    assert old.stat().st_nlink == 1 + links


def test_a_round_reads_what_its_groups_and_sessions_need(tmp_path: Path) -> None:
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
    batches = [batch(tmp_path, 0, 0, early), batch(tmp_path, 1, 1, late)]
    found = buckets.touched_by(batches[1:], tables)
    assert found is not None
    for _ in range(2):  # also over what a killed process left
        files, touched = buckets.take(batches, found, tables, tmp_path / "rows")
        rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert touched.keys == found.keys
    assert sorted(touched.sessions.to_pylist()) == [1, 2, 5, 6]
    assert sorted(
        (r["type"] or r["kind"], r["session"] or 0, r["key"] or 0) for r in rows
    ) == sorted(
        [
            ("setData", 1, 7), ("setData", 5, 7), ("createSession", 1, 0),
            ("createSession", 5, 0), ("createSession", 6, 0), ("closeSession", 6, 0),
            ("error", 2, 0), ("setData", 9, 0), (schema.RUN, 0, 0),
        ]
    )  # fmt: skip
    nothing = buckets.Touched(frozenset([9]), touched.sessions.slice(0, 0))
    files, touched = buckets.take(batches, nothing, tables, tmp_path / "rows")
    assert not len(touched.sessions)
    assert {r["type"] or r["kind"] for f in files for r in pq.read_table(f).to_pylist()} == {
        "setData",
        schema.RUN,
    }


def test_long_files_of_other_groups_are_taken_whole(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round rewrites the files that have rows of its groups, and puts short ones together. A long
    file of the same bucket is a hard link, and no file of an earlier round is overwritten."""
    monkeypatch.setattr(buckets, "FILE_ROWS", 3)
    before = buckets.BucketStore(spark, tmp_path, None, None, buckets.State(4, {}, [], 1))
    key = pa.array([7, 7 + buckets.BUCKETS, 7 + 2 * buckets.BUCKETS])
    names = pa.table({"chroot": [""] * 3, "group": ["mine", "long", "short"], "key": key})
    (before.place / ".state" / "groups").mkdir(parents=True)
    pq.write_table(names, before.place / ".state" / "groups" / "bucket-7-4-0-0.parquet")
    spec = catalog.MOVES
    columns = spec.spark_type()

    def rows(**groups: int) -> list[dict[str, Any]]:
        empty = dict.fromkeys(columns.names)
        return [
            empty | {"chroot": "", "group": group, "zxid": zxid}
            for group, count in groups.items()
            for zxid in range(count)
        ]

    place = before.place / spec.name
    place.mkdir()
    for number, found in enumerate((rows(mine=2, long=2), rows(long=3), rows(short=1))):
        table = pa.Table.from_pylist(found, schema=buckets.schema.arrow_of(columns))
        pq.write_table(table, place / f"bucket-7-4-0-{number}.parquet")
    touched = buckets.Touched(frozenset([7]), pa.array([], pa.int64()))
    state = buckets.State(5, {}, [], 1)
    after = buckets.BucketStore(spark, tmp_path, touched, before.place, state)
    after.table(spec, spark.createDataFrame(rows(mine=5), columns))
    files = {file.name: file for file in (after.place / spec.name).glob("bucket-*")}
    counts = {
        name: sorted(pq.read_table(file)["group"].to_pylist()) for name, file in files.items()
    }
    assert counts.pop("bucket-7-4-0-1.parquet") == ["long"] * 3
    assert files["bucket-7-4-0-1.parquet"].stat().st_nlink == 2
    assert counts.pop("bucket-7-5-rest.parquet") == ["long", "long", "short"]
    ((name, new),) = counts.items()
    assert name.endswith("-5-0-0.parquet")
    assert new == ["mine"] * 5


class Attempts:
    """A frame of which Spark runs a task twice, and takes the result of the second attempt. The
    first one is slower, and has rows of one key in another order."""

    def mapInArrow(self, save: Any, _: str) -> Attempts:
        rows = [{"bucket": 7, "key": 1, "zxid": zxid} for zxid in range(3)]

        def batches(rows: list[dict[str, int]]) -> Iterator[pa.RecordBatch]:
            return (pa.RecordBatch.from_pylist([row]) for row in rows)

        def slowly() -> Iterator[pa.RecordBatch]:
            yield from batches(rows[:0:-1])
            self.result = [row for batch in save(batches(rows)) for row in batch.to_pylist()]
            yield from batches(rows[:1])

        assert len(list(save(slowly()))) == 1
        return self

    def collect(self) -> list[dict[str, str]]:
        return self.result


def test_of_two_attempts_at_a_task_one_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both write at the same time (``spark.speculation``, or an executor that was lost and is
    alive). The files are those of the attempt that Spark reports."""
    monkeypatch.setattr(buckets, "FILE_ROWS", 1)
    monkeypatch.setattr(buckets, "for_arrow", lambda frame: frame)
    files = buckets.save(Attempts(), tmp_path)  # type: ignore[arg-type]
    assert sorted(tmp_path.iterdir()) == files
    assert [row["zxid"] for file in files for row in pq.read_table(file).to_pylist()] == [0, 1, 2]


def test_a_checkpoint_of_another_stream_is_refused(tmp_path: Path) -> None:
    """Somebody deleted it, or restored an older one. The batches would be taken for those that are
    recorded, and nothing new would be."""
    recorder = buckets.Recorder(tmp_path / "recorded", tmp_path / "checkpoint")
    recorder.check()
    last = batch(tmp_path / "recorded", 0, 4, {})
    with pytest.raises(AuditError, match=f"{tmp_path}/checkpoint: is missing, or not the one"):
        recorder.check()
    for number in (1, 9):
        with pytest.raises(
            AuditError, match=f"is at batch {number}, and .* has recorded 5 batches"
        ):
            recorder.write(None, number)  # type: ignore[arg-type]
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    offsets = tmp_path / "checkpoint" / "offsets" / "4"
    offsets.write_text('v1\n{}\n{"zk1": 5}')
    recorder.check()
    recorder.write(None, 4)  # type: ignore[arg-type]  # again, as after a crash
    (last.place / "_END").write_text('{"zk1": 6}')
    with pytest.raises(AuditError, match="is missing, or not the one"):
        recorder.check()
    with pytest.raises(AuditError, match="is at batch 4"):
        recorder.write(None, 4)  # type: ignore[arg-type]


def test_a_long_bucket_has_several_files(spark: SparkSession, tmp_path: Path) -> None:
    """Their names have the round's number, so that they differ from those of other rounds."""
    count = 2 * buckets.FILE_ROWS + 1
    frame = spark.range(count + 1).selectExpr("id", f"if(id < {count}, 3, 9) as bucket")
    frame = frame.repartition(1, "bucket").sortWithinPartitions("bucket", "id")
    files = buckets.save(frame, tmp_path, 6)
    assert [file.name for file in files] == [
        *(f"bucket-3-6-0-{piece}.parquet" for piece in range(3)), "bucket-9-6-0-3.parquet",
    ]  # fmt: skip
    rows = [pq.read_table(file)["id"].to_pylist() for file in files]
    assert [row for found in rows for row in found] == list(range(count + 1))
    assert max(map(len, rows)) < buckets.FILE_ROWS + 20_000
