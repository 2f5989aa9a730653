"""Speed of reading transaction logs: our decoder beside ZooKeeper's own, and the Spark source.

One process: 1,000,000 transactions, 97 % setData as offset commits are, all columns, checksums on;
beside it ``TxnLogToolkit -d`` of ZooKeeper 3.8.4 on the first 1/20 of them, its start not counted.
``ratio`` is transactions a second, ours divided by 20 times the toolkit's. Spark ``local[2]``:
10,000,000 transactions in 80 files, all columns and the six that ownership needs; ``ratio`` is
against 1,000,000 transactions a second.
"""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession
from zkaudit.decode import LogReader
from zkaudit.sources import register

from zkconsumer.testing import fetch_jars, java

ONE = 1_000_000
SHARE = 20
FILES = 80
EACH = 125_000
COLUMNS = "zxid,idx,session,type,path,data"
ACL = struct.pack(">ii5si6s", 31, 5, b"world", 6, b"anyone")


def write_log(path: Path, first: int, count: int, seed: int) -> None:
    """Write ``count`` transactions as a server does; every kind that groups cause."""
    rng = random.Random(seed)
    parts = [struct.pack(">4siq", b"ZKLG", 2, 0)]
    for zxid in range(first, first + count):
        group, partition = rng.randrange(40), rng.randrange(200)
        session = 0x100000000000000 + group
        dice = rng.random()
        if dice < 0.97:
            kind = 5
            name = f"/consumers/group-{group}/offsets/topic/{partition}".encode()
            value = str(zxid).encode()
            body = struct.pack(
                f">i{len(name)}si{len(value)}si", len(name), name, len(value), value, 7
            )
        elif dice < 0.985:
            kind = 1
            name = f"/consumers/group-{group}/owners/topic/{partition}".encode()
            body = struct.pack(f">i{len(name)}si4si", len(name), name, 4, b"me-0", 1)
            body += ACL + struct.pack(">?i", True, 3)
        elif dice < 0.999:
            kind = 2
            name = f"/consumers/group-{group}/owners/topic/{partition}".encode()
            body = struct.pack(f">i{len(name)}s", len(name), name)
        else:
            kind, body = -1, struct.pack(">i", -110)
        payload = struct.pack(
            ">qiqqi", session, zxid & 0xFFFF, zxid, 1_700_000_000_000 + zxid, kind
        )
        payload += body
        if kind != -1:
            payload += struct.pack(">iq", 2, zxid * 7919)
        parts.append(struct.pack(">qi", zlib.adler32(payload), len(payload)) + payload + b"B")
    path.write_bytes(b"".join(parts) + bytes(1 << 16))


def ours(log: Path, count: int) -> float:
    """Transactions a second, in this process."""
    begin = time.perf_counter()
    rows = sum(batch.num_rows for batch in LogReader(log).batches())
    seconds = time.perf_counter() - begin
    assert rows == count
    return count / seconds


def toolkit(log: Path, count: int) -> float:
    """Transactions a second of ZooKeeper's own tool, its start (on an empty log) taken off."""
    empty = log.with_name("log.ffffffff")
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
    return count / (seconds[1] - seconds[0])


def in_spark(spark: SparkSession, logs: Path, columns: str | None) -> float:
    """Transactions a second through the data source, every value read by the JVM."""
    load = spark.read.format("zookeeper_txnlog")
    frame = (load.option("columns", columns) if columns else load).load(str(logs))
    begin = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return FILES * EACH / (time.perf_counter() - begin)


def run(rounds: int) -> Iterator[tuple[str, str, list[float]]]:
    """Yield case, figure and its value in each round."""
    with tempfile.TemporaryDirectory(prefix="bench-decode-") as folder:
        log, short = Path(folder) / "log.1", Path(folder) / "log.2"
        write_log(log, 1, ONE, 1)
        write_log(short, 1, ONE // SHARE, 1)
        fast = [ours(log, ONE) for _ in range(rounds)]
        slow = [toolkit(short, ONE // SHARE) for _ in range(rounds)]
        yield "decode, one process", "transactions/s", fast
        yield "TxnLogToolkit", "transactions/s", slow
        yield (
            "decode, 20 x the toolkit",
            "ratio",
            [a / b / 20 for a, b in zip(fast, slow, strict=True)],
        )
        logs = Path(folder) / "logs"
        logs.mkdir()
        for number in range(FILES):
            write_log(logs / f"log.{1 + number * EACH:x}", 1 + number * EACH, EACH, number)
        os.environ["PYSPARK_PYTHON"] = sys.executable
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.log.level", "ERROR")
            .getOrCreate()
        )
        try:
            register(spark)
            for name, columns in (("all columns", None), ("six columns", COLUMNS)):
                in_spark(spark, logs, columns)  # warms the JVM
                speeds = [in_spark(spark, logs, columns) for _ in range(rounds)]
                yield f"Spark local[2], {name}", "transactions/s", speeds
                if columns:
                    yield f"Spark local[2], {name}", "ratio", [speed / 1e6 for speed in speeds]
        finally:
            spark.stop()
