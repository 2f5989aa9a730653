"""Measure how fast transaction logs are read: our decoder, ZooKeeper's own, and the Spark source.

One process: the decoder reads 1,000,000 transactions of a busy ensemble, with all columns and
checksums. ``TxnLogToolkit -d`` of ZooKeeper 3.9 reads the first eighth of them, without its
start-up time. ZooKeeper's own iterator reads them without printing, in a warm JVM.

Spark ``local[2]``: the source reads 10,000,000 transactions in 80 files. For comparison, a source
that yields one tuple at a time reads an eighth of them. It reads all columns, or six columns for
which it opens no multi.

Each ratio is divided by its target, so 1 or more means that the target is reached.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from zkaudit.decode.batches import LogReader
from zkaudit.schema import TXNLOG, spark_type
from zkaudit.sources.zookeeper import register

from zkconsumer.servers import fetch_jars, java

sys.path.insert(0, str(Path(__file__).parent))
from audit_logs import write_history

ONE = 1_000_000
TEN = 10_000_000
COLUMNS = "zxid,idx,session,type,path,data"


RECORD, HEADER = struct.Struct(">qi"), struct.Struct(">qiqqi")
INT, LONG, TAIL = struct.Struct(">i"), struct.Struct(">q"), struct.Struct(">?i")
RECORD_HEAD = struct.Struct(">ii")
NAMES = {1: "create", 2: "delete", 5: "setData", -1: "error", -10: "createSession"}
NAMES |= {-11: "closeSession", 14: "multi"}
BEGIN = datetime(1970, 1, 1, tzinfo=UTC)


class RowReader(DataSourceReader):
    """One file per task and one tuple per operation, decoded with ``struct``.

    With ``columns`` it returns six columns and opens no multi. Otherwise it returns all columns, as
    our source does.
    """

    def __init__(self, folder: str, six: bool) -> None:
        self.folder = folder
        self.six = six

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(str(path)) for path in sorted(Path(self.folder).glob("log.*"))]

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        block = Path(partition.value).read_bytes()
        at = 16
        while True:
            checksum, length = RECORD.unpack_from(block, at)
            if not length:
                return
            payload = block[at + 12 : at + 12 + length]
            if zlib.adler32(payload) != checksum:
                raise ValueError(f"{partition.value}: byte {at}: checksum")
            if self.six:
                yield self.some(payload)
            else:
                yield from self.all(partition.value, at, payload)
            at += 13 + length

    def some(self, payload: bytes) -> tuple[object, ...]:
        session, _, zxid, _, kind = HEADER.unpack_from(payload)
        path = data = None
        if kind in (1, 2, 5):
            (count,) = INT.unpack_from(payload, 32)
            path = payload[36 : 36 + count].decode()
            if kind != 2:
                (more,) = INT.unpack_from(payload, 36 + count)
                data = payload[40 + count : 40 + count + more]
        return zxid, 0, session, NAMES.get(kind, "other"), path, data

    def all(self, file: str, position: int, payload: bytes) -> Iterator[tuple[object, ...]]:
        session, cxid, zxid, time_ms, kind = HEADER.unpack_from(payload)
        size, at, bodies = 0, 32, [(kind, 32)]
        if kind == 14:
            (size,) = INT.unpack_from(payload, 32)
            at, bodies = 36, []
            for _ in range(size):
                sub, length = RECORD_HEAD.unpack_from(payload, at)
                bodies.append((sub, at + 8))
                at += 8 + length
        left = len(payload) - at
        when = BEGIN + timedelta(milliseconds=time_ms)
        for index, (code, begin) in enumerate(bodies):
            path = data = ephemeral = version = parent = error = timeout = deleted = None
            at = begin
            if code in (1, 2, 5):
                (count,) = INT.unpack_from(payload, at)
                path = payload[at + 4 : at + 4 + count].decode()
                at += 4 + count
                if code != 2:
                    (count,) = INT.unpack_from(payload, at)
                    data = payload[at + 4 : at + 4 + count]
                    at += 4 + count
                if code == 1:
                    at += 27  # the only access list here
                    ephemeral, parent = TAIL.unpack_from(payload, at)
                    at += 5
                elif code == 5:
                    (version,) = INT.unpack_from(payload, at)
                    at += 4
            elif code == -1:
                (error,) = INT.unpack_from(payload, at)
                at += 4
            elif code == -10:
                (timeout,) = INT.unpack_from(payload, at)
                at += 4
            elif code == -11:
                (many,) = INT.unpack_from(payload, at)
                at += 4
                deleted = []
                for _ in range(many):
                    (count,) = INT.unpack_from(payload, at)
                    deleted.append(payload[at + 4 : at + 4 + count].decode())
                    at += 4 + count
            if not size:
                left = len(payload) - at
            digest = LONG.unpack_from(payload, len(payload) - 8)[0] if left == 12 else None
            yield (
                "", file, position, zxid, index, size, when, session, cxid, NAMES[code], None, path,
                data, ephemeral, version, parent, error, timeout, None, deleted, digest,
            )  # fmt: skip


class RowSource(DataSource):
    """The source to compare with, written as usual: it does not work in columns."""

    @classmethod
    def name(cls) -> str:
        return "rows"

    def schema(self) -> StructType:
        six = COLUMNS.split(",") if "columns" in self.options else [c.name for c in TXNLOG]
        return spark_type(tuple(column for column in TXNLOG if column.name in six))

    def reader(self, schema: object) -> DataSourceReader:
        return RowReader(self.options["path"], "columns" in self.options)


def ours(logs: list[Path]) -> float:
    """Transactions per second in this process."""
    begin = time.perf_counter()
    count = 0
    for log in logs:
        reader = LogReader(log)
        for _ in reader.batches():
            pass
        count += reader.transactions
    return count / (time.perf_counter() - begin)


def toolkit(log: Path) -> float:
    """Transactions per second of ZooKeeper's own tool, without its start (on an empty log)."""
    reader = LogReader(log)
    for _ in reader.batches():
        pass
    empty = log.with_name("empty.ffffffff")
    empty.write_bytes(log.read_bytes()[:16] + bytes(64))
    seconds = []
    for path in (empty, log):
        main = "org.apache.zookeeper.server.persistence.TxnLogToolkit"
        begin = time.perf_counter()
        with tempfile.TemporaryFile() as out:
            argv = [java(), "-cp", f"{fetch_jars('3.9')}/*", main, "-d", str(path)]
            subprocess.run(argv, stdout=out, stderr=subprocess.DEVNULL, check=True)
        seconds.append(time.perf_counter() - begin)
    empty.unlink()
    return reader.transactions / (seconds[1] - seconds[0])


def iterator(folder: Path) -> float:
    """The highest rate of ZooKeeper's own iterator, in transactions per second. Needs a JDK."""
    source = Path(__file__).with_name("IterateLog.java")
    argv = [java(), "-cp", f"{fetch_jars('3.9')}/*", str(source), str(folder), "4"]
    said = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return max(float(line.split()[1]) for line in said.stdout.splitlines())


def in_spark(spark: SparkSession, source: str, logs: Path, count: int, columns: str) -> float:
    """Transactions per second through a data source, if the JVM reads every value."""
    load = spark.read.format(source)
    frame = (load.option("columns", columns) if columns else load).load(str(logs))
    begin = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return count / (time.perf_counter() - begin)


def session() -> SparkSession:
    """Spark on two threads of this machine."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # the workers read RowSource
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def run(rounds: int) -> Iterator[tuple[str, str, list[float]]]:
    """Yield case, figure and the value of each round."""
    with tempfile.TemporaryDirectory(prefix="bench-decode-") as name:
        folder = Path(name)
        logs = write_history(folder / "one", ONE)
        fast = [ours(logs) for _ in range(rounds)]
        slow = [toolkit(logs[0]) for _ in range(rounds)]
        java_rounds = [iterator(folder / "one") for _ in range(rounds)]
        yield "decode, one process", "transactions/s", fast
        yield "TxnLogToolkit", "transactions/s", slow
        yield "decode, 20 x the toolkit", "ratio", _ratio(fast, slow, 20)
        yield "ZooKeeper's iterator in Java", "transactions/s", java_rounds
        yield "decode, 1 x the iterator", "ratio", _ratio(fast, java_rounds, 1)
        shutil.rmtree(folder / "one")
        logs = write_history(folder / "ten", TEN)
        part = folder / "part"
        part.mkdir()
        for log in logs[:10]:
            os.link(log, part / log.name)
        count = sum(_count(log) for log in logs[:10])
        spark = session()
        try:
            register(spark)
            spark.dataSource.register(RowSource)
            for case, columns in (("all columns", ""), ("six columns", COLUMNS)):
                in_spark(spark, "zookeeper_txnlog", part, count, columns)  # warms up the JVM
                in_spark(spark, "rows", part, count, columns)
                fast, slow = [], []
                for _ in range(rounds):
                    fast.append(in_spark(spark, "zookeeper_txnlog", folder / "ten", TEN, columns))
                    slow.append(in_spark(spark, "rows", part, count, columns))
                yield f"Spark local[2], {case}", "transactions/s", fast
                yield f"Spark local[2], {case}, 1 M/s", "ratio", [speed / 1e6 for speed in fast]
                yield f"row at a time, {case}", "transactions/s", slow
                yield f"5 x row at a time, {case}", "ratio", _ratio(fast, slow, 5)
        finally:
            spark.stop()


def _ratio(fast: list[float], slow: list[float], target: float) -> list[float]:
    return [a / b / target for a, b in zip(fast, slow, strict=True)]


def _count(log: Path) -> int:
    reader = LogReader(log, columns=("zxid",))
    for _ in reader.batches():
        pass
    return reader.transactions
