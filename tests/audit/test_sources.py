"""The Spark sources on real logs give the same rows as the decoder, in batch and streaming."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zkaudit
from pyspark.sql import DataFrame, SparkSession
from zkaudit.decode.batches import cuts, end_of_log, read_log, read_snapshot
from zkaudit.decode.columns import Filters
from zkaudit.errors import InputMissingError
from zkaudit.schema import RUN, SNAPSHOT, TXNLOG, spark_type
from zkaudit.sources.files import Piece, find as find_logs, pack, within
from zkaudit.sources.zookeeper import StreamLogReader, ZookeeperTxnlog, parse_options

from zkconsumer.errors import ConfigError


def plain(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Rows in a fixed order, comparable with Spark's."""
    made = [
        tuple(
            bytes(v) if isinstance(v, bytearray) else v.replace(tzinfo=None) if k == "time" else v
            for k, v in row.items()
        )
        for row in rows
    ]
    return sorted(made, key=repr)


def of_spark(frame: DataFrame) -> list[tuple[Any, ...]]:
    """All rows of a frame."""
    return plain([row.asDict() for row in frame.collect()])


def of_files(recording: Any, server: str) -> list[dict[str, Any]]:
    """All rows of a recording's logs, from the decoder alone."""
    return [r for log in recording.logs for b in read_log(log, server) for r in b.to_pylist()]


@pytest.fixture
def newest(recordings: Any) -> Any:
    """The recording of the newest version."""
    return recordings("3.9.3")


@pytest.fixture
def directory(newest: Any) -> Path:
    """The log directory of the newest recording."""
    return Path(newest.logs[0]).parent


def test_the_source_gives_every_row_of_every_server(
    spark: SparkSession, recordings: Any, newest: Any, directory: Path
) -> None:
    """Two servers have all columns and types as declared. The result is the same if one task reads
    all files, if each file has a task, or if long files are split."""
    older = recordings("3.4.14")
    path = f"new={directory.parent},old={older.logs[0].parent}"
    expected = plain(of_files(newest, "new") + of_files(older, "old"))
    files = [*newest.logs, *older.logs]
    longest = max(log.stat().st_blocks * 512 for log in files)
    for size, tasks in ((3000, range(20, 200)), (longest, range(2, len(files) + 1)), (10**8, [1])):
        frame = spark.read.format("zookeeper_txnlog").option("bytesPerTask", size).load(path)
        assert frame.schema == spark_type(TXNLOG)
        assert frame.rdd.getNumPartitions() in tasks
        assert of_spark(frame) == expected


def test_a_log_is_cut_only_where_records_begin(recording: Any) -> None:
    """The split works for any size. Data of a znode that looks like records is not split."""
    for log in recording.logs:
        begins = sorted({row["position"] for b in read_log(log) for row in b.to_pylist()})
        assert cuts(log, 1) == begins
        for every in (50, 3000):
            found = cuts(log, every)
            assert set(found) <= set(begins)
            assert all(b - a >= every for a, b in itertools.pairwise([0, *found]))
        assert cuts(log, 1 << 30) == []


def test_options_filter_and_project(spark: SparkSession, newest: Any, directory: Path) -> None:
    """Options need no Spark setting, and pushed filters give the same rows as Spark's own
    filter."""
    rows = of_files(newest, str(directory))
    low, high = rows[50]["zxid"], rows[300]["zxid"]
    load = spark.read.format("zookeeper_txnlog").option("columns", "zxid,idx,path")
    got = load.options(pathPrefix="/a/", startZxid=hex(low), endZxid=high).load(str(directory))
    expected = [
        {name: row[name] for name in ("zxid", "idx", "path")}
        for row in rows
        if low <= row["zxid"] <= high and (row["path"] or "/a/").startswith("/a/")
    ]
    assert got.columns == ["zxid", "idx", "path"]
    assert of_spark(got) == plain(expected)
    query = f"zxid > {low} and zxid <= {high} and path like '/a/%'"
    by_spark = of_spark(load.load(str(directory)).where(query))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushed = load.option("pushFilters", "true").load(str(directory)).where(query)
        assert of_spark(pushed) == by_spark
        assert len(by_spark) > 50
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_what_an_audit_reads(spark: SparkSession, recordings: Any, tmp_path: Path) -> None:
    """The table ``groups`` has the znodes of groups and topics, sessions and errors. It also has
    every run of zxids with the time of the last one. Names of directories may contain commas."""
    home = tmp_path / "a=1,b"
    shutil.copytree(Path(recordings("3.6.4").logs[0]).parent, home)
    found = find_logs({"s": [home]})["s"]
    Path(found[1].path).unlink()  # a log gap
    load = spark.read.format("zookeeper_txnlog").option("table", "groups")
    rows = load.option("paths", json.dumps([str(home)])).load().collect()
    told = [r for p in (found[0], *found[2:]) for b in read_log(p.path) for r in b.to_pylist()]
    kept = [
        r for r in told if r["type"] == "error" or "/consumers/" in (r["path"] or "/consumers/")
    ]
    assert 0 < len(kept) < len(told)
    assert sorted((r.zxid, r.idx, r.type) for r in rows if r.kind is None) == sorted(
        (r["zxid"], r["idx"], r["type"]) for r in kept
    )
    ends = {r["zxid"]: r["time"].replace(tzinfo=None) for r in told}
    runs = [(r.first_zxid, r.last_zxid, r.last_time) for r in rows if r.kind == RUN]
    assert [z for first, last, _ in sorted(runs) for z in range(first, last + 1)] == sorted(ends)
    assert all(time == ends[last] for _, last, time in runs)


def test_files_and_snapshots(spark: SparkSession, newest: Any, directory: Path) -> None:
    """The table of files shows where each file ends. Snapshots give every znode and session."""
    files = spark.read.format("zookeeper_txnlog").option("table", "files").load(str(directory))
    told = {row.file: (row.first_zxid, row.stop, row.end_position) for row in files.collect()}
    assert told == {
        log.name: (int(log.name[4:], 16), "padding", end_of_log(log, 0).position)
        for log in newest.logs
    }
    nodes = spark.read.format("zookeeper_snapshot").load(str(directory))
    assert nodes.schema == spark_type(SNAPSHOT)
    expected = [
        r["path"] for s in newest.snapshots for b in read_snapshot(s) for r in b.to_pylist()
    ]
    assert sorted(row.path for row in nodes.select("path").collect()) == sorted(expected)
    sessions = spark.read.format("zookeeper_snapshot").option("table", "sessions")
    assert sessions.load(str(directory)).count() > 0


def test_corruption_fails_the_job_or_ends_the_file(
    spark: SparkSession, newest: Any, directory: Path, tmp_path: Path
) -> None:
    """The error names file and byte. With ``corruption=stop`` the rows before the damage remain."""
    shutil.copy(newest.logs[0], tmp_path)
    log = tmp_path / newest.logs[0].name
    rows = [row for batch in read_log(log) for row in batch.to_pylist()]
    position = rows[60]["position"]
    content = bytearray(log.read_bytes())
    content[position + 30] ^= 1
    log.write_bytes(content)
    load = spark.read.format("zookeeper_txnlog").option("columns", "zxid")
    with pytest.raises(Exception, match=rf"{log.name}: byte {position}: checksum"):
        load.load(str(tmp_path)).collect()
    assert load.option("corruption", "stop").load(str(tmp_path)).count() == 60


def test_a_stream_follows_a_growing_log(spark: SparkSession, newest: Any, tmp_path: Path) -> None:
    """Logs grow byte by byte and roll, and the stream restarts. Each row appears once, and only
    when it is whole.

    The first file grows in pieces that end inside records, over reserved zeros as a server writes
    them.
    """
    grown, rolled = newest.logs[:2]
    content = grown.read_bytes()
    rows = [row for batch in read_log(grown) for row in batch.to_pylist()]
    starts = sorted({row["position"] for row in rows})
    middle = len(starts) // 2
    cuts = [starts[middle] + 7, starts[middle + 1] + 20, starts[-2] - 1]
    logs, checkpoint, out = tmp_path / "logs", tmp_path / "checkpoint", tmp_path / "out"
    logs.mkdir()
    next_start = dict(itertools.pairwise(starts))
    expected = [
        sum(next_start.get(row["position"], len(content)) <= cut for row in rows) for cut in cuts
    ]
    assert 0 < expected[0] < expected[1] < expected[2] < len(rows)
    expected.append(len(rows))
    for cut, whole in zip([*cuts, len(content)], expected, strict=True):
        (logs / grown.name).write_bytes(content[:cut].ljust(len(content), b"\0"))
        run(spark, logs, checkpoint, out)
        assert spark.read.parquet(str(out)).count() == whole
    shutil.copy(rolled, logs)
    run(spark, logs, checkpoint, out)
    run(spark, logs, checkpoint, out)  # nothing new
    expected_rows = rows + [row for batch in read_log(rolled) for row in batch.to_pylist()]
    found = spark.read.parquet(str(out)).select("position", "zxid", "idx").collect()
    assert sorted(map(tuple, found)) == sorted(
        (row["position"], row["zxid"], row["idx"]) for row in expected_rows
    )


def run(spark: SparkSession, logs: Path, checkpoint: Path, out: Path) -> None:
    """Start the stream once, from its checkpoint to the present end of the logs."""
    query = (
        spark.readStream.format("zookeeper_txnlog")
        .load(f"server={logs}")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(str(out))
    )
    assert query.awaitTermination(60)


def stream_steps(logs: Path) -> Iterator[list[tuple[int, int]]]:
    """The stream's reader without Spark: the new rows after each step of the caller."""
    reader = StreamLogReader(parse_options("zookeeper_txnlog", {"path": str(logs)}))
    at = reader.initialOffset()
    while True:
        latest = reader.latestOffset(at, None)
        found = []
        for task in reader.partitions(at, latest):
            for batch in reader.read(task):
                found += [(row["zxid"], row["idx"]) for row in batch.to_pylist()]
        at = latest
        yield found


def test_a_stream_cut_at_every_byte(newest: Any, tmp_path: Path) -> None:
    """If a file grows one byte at a time, each row appears when its last byte is written."""
    content = newest.logs[0].read_bytes()
    rows = [row for batch in read_log(newest.logs[0]) for row in batch.to_pylist()]
    log = tmp_path / newest.logs[0].name
    log.write_bytes(bytes(len(content)))
    ends = {row["position"]: (row["zxid"], row["idx"]) for row in rows[1:13]}
    steps = stream_steps(tmp_path)
    with log.open("r+b") as file:
        for at in range(rows[12]["position"]):
            file.seek(at)
            file.write(content[at : at + 1])
            file.flush()
            found = next(steps)
            if at + 1 in ends:
                assert found == [(rows[list(ends).index(at + 1)]["zxid"], 0)]
            else:
                assert found == []


def test_small_files_share_tasks() -> None:
    """Files are packed in order up to the size of a task. A larger file has its own task."""
    pieces = [Piece("s", str(n), n, size) for n, size in enumerate([5, 5, 5, 40, 1, 1])]
    assert [[p.size for p in task] for task in pack(pieces, 10)] == [[5, 5], [5], [40], [1, 1]]
    assert pack([], 10) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "path: name the servers' directories"),
        ({"path": "/tmp", "pathprefx": "/"}, "pathprefx: no such option"),
        ({"path": "/tmp", "startZxid": "x"}, "startZxid: 'x' is not a zxid"),
        ({"path": "/tmp", "columns": "zxid,zxd"}, "columns: 'zxd' is not one of"),
        ({"path": "/tmp", "corruption": "skip"}, "corruption: 'skip'"),
        ({"path": "a=/tmp,a=/tmp"}, "a is named twice"),
        ({"path": "/tmp", "table": "nodes"}, "table: 'nodes' is not one of transactions, files"),
        ({"path": "/tmp", "bytesPerTask": "0"}, "bytesPerTask: '0'"),
        ({"paths": "/tmp"}, "paths: '/tmp' is not a JSON list"),
        ({"path": "dbfs:/logs"}, "dbfs:/logs: cannot read dbfs: mount it"),
        ({"path": "file://tmp"}, "file://tmp: write file:///DIR, with three slashes"),
        ({"path": __file__}, "test_sources.py: zookeeper_txnlog reads files named log.<zxid>"),
    ],
)
def test_faulty_options_are_named(options: dict[str, str], said: str) -> None:
    """Every error is one line with the option and the values that it accepts."""
    with pytest.raises(ConfigError, match=said):
        parse_options("zookeeper_txnlog", options)


@pytest.mark.parametrize("path", ["/nowhere/zk", "/nowhere/zk*", "file:///nowhere"])
def test_a_place_that_is_not_there_is_named(path: str) -> None:
    """The error is one line: the given path, and what to give instead."""
    with pytest.raises(InputMissingError, match=rf"^{re.escape(path)}: no such directory"):
        parse_options("zookeeper_txnlog", {"path": path})


def test_a_file_a_glob_and_a_uri_are_places(
    spark: SparkSession, newest: Any, directory: Path, tmp_path: Path
) -> None:
    """One log, a glob of logs, a glob of directories, and URIs each give the rows of those files,
    under the server's name."""
    load = spark.read.format("zookeeper_txnlog").option("columns", "server,file")

    def read(path: str) -> dict[tuple[str, str], int]:
        counts = load.load(path).groupBy("server", "file").count().collect()
        return {(row["server"], row["file"]): row["count"] for row in counts}

    rows = of_files(newest, "")
    own = str(directory)
    every = {(own, log.name): sum(row["file"] == log.name for row in rows) for log in newest.logs}
    first = newest.logs[0]
    assert len(every) > 1
    assert read(str(first)) == read(first.as_uri()) == {(own, first.name): every[own, first.name]}
    assert read(f"{own}/log.*") == read(f"{own[:-1]}[{own[-1]}]") == read(f"{own[:-1]}?") == every
    assert read(f"a={own}/log.*") == {("a", name): count for (_, name), count in every.items()}
    assert {name for name, _ in read(directory.as_uri())} == {directory.as_uri()}
    snapshots = spark.read.format("zookeeper_snapshot").option("columns", "file")
    assert snapshots.load(str(newest.snapshots[0])).distinct().count() == 1


def test_a_stream_of_a_file_is_refused(newest: Any) -> None:
    """A file does not continue in the next file, so a stream needs the directory."""
    source = ZookeeperTxnlog({"path": str(newest.logs[0])})
    with pytest.raises(ConfigError, match="is a file: give a stream a directory"):
        source.streamReader(source.schema())


def test_the_formats_are_registered_by_the_package() -> None:
    """A program only needs ``zkaudit.register(spark)``. ``import zkaudit`` does not load Spark."""
    program = """
import sys
import zkaudit
assert "pyspark" not in sys.modules

class Registry:
    dataSource = property(lambda self: self)
    names = []
    def register(self, source):
        self.names.append(source.name())

zkaudit.register(Registry())
print(*Registry.names)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.split() == [
        "zookeeper_txnlog",
        "zookeeper_snapshot",
        "zkaudit_journal",
        "zkaudit_offsets",
    ]


@pytest.mark.parametrize(
    ("start", "end", "kept"),
    [(5, None, [1, 10, 20]), (10, None, [10, 20]), (12, None, [10, 20]), (None, 10, [1, 10])],
)
def test_logs_that_may_hold_a_wanted_transaction(
    start: int | None, end: int | None, kept: list[int]
) -> None:
    """A log is named after its first zxid, so the log before it may have the previous
    transaction."""
    pieces = [Piece("s", f"log.{zxid:x}", zxid, 1) for zxid in (1, 10, 20)]
    found = within(pieces, Filters(start_zxid=start, end_zxid=end))
    assert [piece.zxid for piece in found] == kept


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("zookeeper_txnlog", {"endZxid": "0"}),
        ("zookeeper_snapshot", {"files": "snapshot.none"}),
        ("zkaudit_journal", {}),
    ],
)
def test_a_source_with_nothing_to_read_has_no_rows(
    spark: SparkSession, directory: Path, tmp_path: Path, source: str, options: dict[str, str]
) -> None:
    """A range before the first log, no snapshot of that name, and a directory without journals."""
    zkaudit.register(spark)
    place = tmp_path if source == "zkaudit_journal" else directory
    assert spark.read.format(source).options(**options).load(str(place)).collect() == []
