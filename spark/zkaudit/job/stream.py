"""A repeated audit: the logs are recorded as they grow, and the tables are made again.

``OUT/recorded`` holds what the audit needs of the logs, one directory for each batch of Spark's
stream, and of snapshots; ``OUT/checkpoint`` how far the logs were read; ``OUT/refreshed`` the last
batch that is in the tables. A batch that is repeated after a crash replaces itself, so each
transaction is recorded once, and what ZooKeeper purges later stays. Runs in the driver's thread;
Spark calls ``_Recorder`` on a thread of its own while the driver's thread waits.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from zkaudit import schema
from zkaudit.errors import AuditError
from zkaudit.history.staging import LogGap
from zkaudit.job import inputs
from zkaudit.job.audit import Options, Snapshots, audit
from zkaudit.job.output import staged
from zkaudit.job.place import prepare
from zkaudit.job.spark import PACKED, bytes_of, check_group, errors_named, planned_for
from zkaudit.sources import server_logs
from zkaudit.sources.files import Piece
from zkaudit.sources.zookeeper import register
from zkaudit.storage import place_of
from zkaudit.tables import journals

MAX_BATCHES: Final = 50
"""So many batches are put together into one directory."""
_PLACE: Final = re.compile(r"(batch|base)-([0-9]{10})")


def stream(
    spark: SparkSession,
    options: Options,
    every: float,
    stop: threading.Event,
    on_summary: Callable[[dict[str, Any]], object],
    once: bool = False,
) -> None:
    """Record and audit, every ``every`` seconds, until ``stop`` is set.

    ``on_summary`` gets the summary after each audit; there is none when nothing new was logged.
    Readers of ``OUT`` see the last finished round. Raises what ``audit.run`` does, and AuditError
    when ``OUT`` was made from directories that are not among these.
    """
    out = prepare(options.out)
    # What is recorded is by these names: another working directory must not make other servers.
    options = replace(options, logs=[str(place_of(log)) for log in options.logs])
    journals.check(options.journals)
    server_logs.check(options.server_logs)
    check_group(spark, options.group)
    _same_inputs(out, options)
    while True:
        record(spark, options)
        batches = recorded(out / "recorded")
        last = str(_number(batches[-1])) if batches else ""
        done = out / "refreshed"  # also by a process that was killed before it had audited
        if last != (done.read_text() if done.exists() else ""):
            on_summary(refresh(spark, options))
            done.write_text(last)
        if once or stop.wait(every):
            return


def _same_inputs(out: Path, options: Options) -> None:
    """Servers may be added: their logs are read from the begin. One that is left out would be a
    server whose logs ended."""
    place = out / "stream.json"
    if place.exists():
        left_out = set(json.loads(place.read_text())["logs"]) - set(options.logs)
        if left_out:
            raise AuditError(
                f"{place}: the stream also reads {', '.join(sorted(left_out))}: name these "
                "directories too, or choose another --out"
            )
    elif (out / "tables").exists():
        raise AuditError(f"{out}: contains an audit that is not a stream: choose another --out")
    part = place.with_name(".stream.json")
    part.write_text(json.dumps({"logs": list(options.logs)}))
    part.replace(place)


def record(spark: SparkSession, options: Options) -> bool:
    """Record what the logs have now; whether there was anything new."""
    inputs.find(options.logs)
    register(spark)
    out = Path(options.out)
    recorder = _Recorder(out / "recorded")
    source = spark.readStream.format("zookeeper_txnlog").option("table", "groups")
    rows = source.option("paths", json.dumps([str(log) for log in options.logs])).load()
    with errors_named():
        query = (
            rows.writeStream.foreachBatch(recorder.write)
            .option("checkpointLocation", str(out / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()
    return recorder.new


def refresh(spark: SparkSession, options: Options) -> dict[str, Any]:
    """Make all tables from what is recorded; return the summary."""
    options = replace(options, growing=True)
    out = Path(options.out)
    logs, snapshots = inputs.find(options.logs)
    batches = recorded(out / "recorded")
    size = PACKED * bytes_of(file for place in batches for file in place.glob("*.parquet"))
    with errors_named(), staged(out), planned_for(spark, size):
        places = [str(place) for place in batches]
        rows = spark.read.schema(schema.spark_type(schema.TXNLOG_GROUPS)).parquet(*places)
        return audit(
            spark,
            options,
            rows,
            logs,
            snapshots,
            lambda log_gaps: _snapshots(spark, options, snapshots, log_gaps),
        )


def _snapshots(
    spark: SparkSession, options: Options, found: Sequence[Piece], log_gaps: Sequence[LogGap]
) -> Snapshots:
    """Record what is needed of the snapshots that are there; return what was ever recorded.

    That is the first one behind each log gap: the logs show what happened later. Those that are
    read with it are kept too.
    """
    folder = Path(options.out) / "recorded" / "snapshots"
    wanted = schema.spark_type(schema.SNAPSHOT)

    def known() -> DataFrame | None:
        places = [str(place.parent) for place in sorted(folder.glob("*/_SUCCESS"))]
        return spark.read.schema(wanted).parquet(*places) if places else None

    def segment(zxid: int) -> int:
        return sum(before <= zxid + 1 for _, before in log_gaps)

    first: dict[int, int] = {}
    rows = known()
    before = {} if rows is None else inputs.whole(rows)
    for zxid in before.values():
        first[segment(zxid)] = min(zxid, first.get(segment(zxid), zxid))
    new = any(piece.zxid < first.get(segment(piece.zxid), piece.zxid + 1) for piece in found)
    if new:
        place = folder / f"{len(list(folder.glob('*'))):010}"
        inputs.snapshots(spark, options.logs).write.parquet(str(place))
        new_files = inputs.whole(spark.read.schema(wanted).parquet(str(place)))
        if new_files.keys() <= before.keys():
            shutil.rmtree(place)  # what it was for is not whole
    return known(), found if new else ()


def recorded(folder: Path) -> list[Path]:
    """The directories that hold each transaction once: the last base, and the batches behind it."""
    found = {}
    for place in folder.iterdir() if folder.is_dir() else ():
        name = _PLACE.fullmatch(place.name)
        if name and (place / "_SUCCESS").exists():
            found[name[1], int(name[2])] = place
    base = max((number for kind, number in found if kind == "base"), default=-1)
    chosen = [
        key for key in found if key == ("base", base) or (key[0] == "batch" and key[1] > base)
    ]
    return [found[key] for key in sorted(chosen)]


class _Recorder:
    """Writes each batch to a directory of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.new = False

    def write(self, rows: DataFrame, number: int) -> None:
        """Write one batch, whether or not it was written before."""
        before = recorded(self.folder)
        if before and before[0].name.startswith("base") and _number(before[0]) >= number:
            return  # it was put into the base just before a crash
        rows.write.mode("overwrite").parquet(str(self.folder / f"batch-{number:010}"))
        self.new = True
        before = recorded(self.folder)
        if len(before) > MAX_BATCHES:
            self.merge(rows.sparkSession, before, number)

    def merge(self, spark: SparkSession, before: list[Path], number: int) -> None:
        """Put all directories into one, then delete them."""
        every = spark.read.schema(schema.spark_type(schema.TXNLOG_GROUPS)).parquet(
            *[str(place) for place in before]
        )
        base = self.folder / f"base-{number:010}"
        every.coalesce(8).write.mode("overwrite").parquet(str(base))
        for place in list(self.folder.iterdir()):
            if place != base and _PLACE.fullmatch(place.name) and _number(place) <= number:
                shutil.rmtree(place)


def _number(place: Path) -> int:
    return int(place.name.partition("-")[2])
