"""Speed of reading transaction logs: our decoder beside ZooKeeper's own, and the Spark source.

One process: 1,000,000 transactions of a busy ensemble, all columns, checksums on; beside it
``TxnLogToolkit -d`` of ZooKeeper 3.9 on the first eighth of them, its start not counted, and
ZooKeeper's own iterator without printing, in a JVM that is warm. Spark ``local[2]``: 10,000,000
transactions in 80 files; beside it a source that yields one tuple after the other, on an eighth.
Each ratio is divided by its target, so 1 or more is reached.
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
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from zkaudit.decode import LogReader
from zkaudit.sources import register

from zkconsumer.testing import fetch_jars, java

sys.path.insert(0, str(Path(__file__).parent))
from audit_logs import write_history

ONE = 1_000_000
TEN = 10_000_000
COLUMNS = "zxid,idx,session,type,path,data"


class RowReader(DataSourceReader):
    """One file a task, one tuple a transaction, taken apart with ``struct``."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(str(path)) for path in sorted(Path(self.folder).glob("log.*"))]

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        record, header, size = struct.Struct(">qi"), struct.Struct(">qiqqi"), struct.Struct(">i")
        names = {1: "create", 2: "delete", 5: "setData"}
        block = Path(partition.value).read_bytes()
        at = 16
        while True:
            checksum, length = record.unpack_from(block, at)
            if not length:
                return
            payload = block[at + 12 : at + 12 + length]
            if zlib.adler32(payload) != checksum:
                raise ValueError(f"{partition.value}: byte {at}: checksum")
            at += 13 + length
            session, _, zxid, _, kind = header.unpack_from(payload)
            path = data = None
            if kind in names:
                (count,) = size.unpack_from(payload, 32)
                path = payload[36 : 36 + count].decode()
                if kind != 2:
                    (more,) = size.unpack_from(payload, 36 + count)
                    data = payload[40 + count : 40 + count + more]
            yield zxid, 0, session, names.get(kind, "other"), path, data


class RowSource(DataSource):
    """The peer: how a data source is written when nobody thinks of columns."""

    @classmethod
    def name(cls) -> str:
        return "rows"

    def schema(self) -> str:
        return "zxid long, idx int, session long, type string, path string, data binary"

    def reader(self, schema: object) -> DataSourceReader:
        return RowReader(self.options["path"])


def ours(logs: list[Path]) -> float:
    """Transactions a second, in this process."""
    begin = time.perf_counter()
    count = 0
    for log in logs:
        reader = LogReader(log)
        for _ in reader.batches():
            pass
        count += reader.transactions
    return count / (time.perf_counter() - begin)


def toolkit(log: Path) -> float:
    """Transactions a second of ZooKeeper's own tool, its start (on an empty log) taken off."""
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
    """Transactions a second of ZooKeeper's own iterator, at best; needs a JDK."""
    source = Path(__file__).with_name("IterateLog.java")
    argv = [java(), "-cp", f"{fetch_jars('3.9')}/*", str(source), str(folder), "4"]
    said = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return max(float(line.split()[1]) for line in said.stdout.splitlines())


def in_spark(spark: SparkSession, source: str, logs: Path, count: int, columns: str) -> float:
    """Transactions a second through a data source, every value read by the JVM."""
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
    """Yield case, figure and its value in each round."""
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
                in_spark(spark, "zookeeper_txnlog", part, count, columns)  # warms the JVM
                fast = [
                    in_spark(spark, "zookeeper_txnlog", folder / "ten", TEN, columns)
                    for _ in range(rounds)
                ]
                yield f"Spark local[2], {case}", "transactions/s", fast
                yield f"Spark local[2], {case}, 1 M/s", "ratio", [speed / 1e6 for speed in fast]
            in_spark(spark, "rows", part, count, "")
            slow = [in_spark(spark, "rows", part, count, "") for _ in range(rounds)]
            yield "row at a time, six columns", "transactions/s", slow
            yield "Spark, 5 x row at a time", "ratio", _ratio(fast, slow, 5)
        finally:
            spark.stop()


def _ratio(fast: list[float], slow: list[float], target: float) -> list[float]:
    return [a / b / target for a, b in zip(fast, slow, strict=True)]


def _count(log: Path) -> int:
    reader = LogReader(log, columns=("zxid",))
    for _ in reader.batches():
        pass
    return reader.transactions
