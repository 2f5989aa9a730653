"""Copies the tables of a finished audit to a data lake or a catalog. Driver's thread.

Every row gets ``run_id`` and ``run_time``, so that one table has the rows of many audits. The
table ``runs`` has one row for each export. It is written last, so it does not contain failed
exports.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Final, Literal, TypeAlias

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions as F

from zkaudit.errors import AuditError, SchemaMismatchError
from zkaudit.job.output import load, rows_in
from zkaudit.job.place import finished
from zkaudit.job.spark import reason_of, spark_errors

Mode: TypeAlias = Literal["create", "append", "overwrite"]
FORMATS: Final = ("parquet", "delta", "iceberg")
RUNS: Final = "runs"
JARS: Final = {
    "delta": "io.delta:delta-spark_{}_2.13",
    "iceberg": "org.apache.iceberg:iceberg-spark-runtime-{}_2.13",
}
"""Maven coordinates of the formats that Spark lacks, for a minor release of Spark, as ``4.2``."""
_MISFITS: Final = ("NoSuchMethodError", "NoClassDefFoundError", "AbstractMethodError",
                   "NoSuchFieldError", "IncompatibleClassChangeError")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Target:
    """Where tables are written: to directories below ``place`` (a path or a Hadoop URL), or to the
    database ``catalog`` (``DATABASE`` or ``CATALOG.DATABASE``). The other is ``None``."""

    place: str | None
    catalog: str | None
    format: str = "parquet"

    def name(self, table: str) -> str:
        """Return the name of a table, for messages and for Spark."""
        return f"{self.catalog}.{table}" if self.place is None else f"{self.place}/{table}"

    def exists(self, spark: SparkSession, table: str) -> bool:
        """Whether a table of this name exists."""
        if self.place is None:
            return bool(spark.catalog.tableExists(self.name(table)))
        # A format that looks at no content. If there were one path, Spark would look for a stream's
        # metadata there, and log that there are none.
        try:
            _columns(spark.read.format("binaryFile").load([self.name(table)] * 2))
        except PySparkException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
            return False
        return True

    def read(self, spark: SparkSession, table: str) -> DataFrame:
        """Read the existing rows of a table."""
        if self.place is None:
            return spark.table(self.name(table))
        return spark.read.format(self.format).load(self.name(table))

    def write(self, frame: DataFrame, table: str, mode: str) -> None:
        """Write a table with one of Spark's save modes."""
        writer = frame.write.format(self.format).mode(mode)
        if mode == "overwrite":
            writer = writer.option("overwriteSchema", "true")  # Delta
        if self.place is None:
            writer.saveAsTable(self.name(table))
        else:
            writer.save(self.name(table))


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export, with the number of rows in each table except ``runs``."""

    run_id: str
    run_time: datetime
    rows: Mapping[str, int]


def export(
    spark: SparkSession,
    out: str | Path,
    target: Target,
    mode: Mode = "create",
    run_id: str | None = None,
) -> Exported:
    """Write all tables of the newest finished audit in ``out``, and a row of the table ``runs``.

    ``create`` refuses tables that exist. ``append`` adds to them. It refuses a ``run_id`` that one
    of them already has, before anything is written. ``overwrite`` replaces them. The default
    ``run_id`` is the time and a random number.

    Raises InputMissingError if there is no audit, AuditError for refused tables, for a format that
    the session lacks and for a place that cannot be written, and SchemaMismatchError for a table
    with different columns.
    """
    now = datetime.now(UTC)
    run_id = run_id or f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    summary, tables = load(spark, out)
    place = finished(out)[1]
    frames = {name: _of_run(frame, run_id, now) for name, frame in tables.items()}
    text = json.dumps(summary)
    frames[RUNS] = _of_run(spark.range(1).select(F.lit(text).alias("summary")), run_id, now)
    with _named(spark, target):
        there = _there(spark, target, frames)
    if there and mode == "create":
        raise AuditError(
            f"{target.name(there[0])} already exists: add rows with --append, or replace it with "
            "--overwrite"
        )
    if mode == "append":
        _check(spark, target, {name: frames[name] for name in there}, run_id)
    done = ""
    for name, frame in frames.items():
        with _named(spark, target, name, done):
            save = "error" if name not in there else mode
            target.write(frame, name, save)
        done = f" (run {run_id} is incomplete)"
    rows = {name: rows_in(place / name) for name in tables}
    return Exported(run_id, now, rows)


def _of_run(frame: DataFrame, run_id: str, time: datetime) -> DataFrame:
    micros = int(time.timestamp() * 1_000_000)
    return frame.select(
        "*", F.lit(run_id).alias("run_id"), F.timestamp_micros(F.lit(micros)).alias("run_time")
    )


def _there(spark: SparkSession, target: Target, names: Mapping[str, DataFrame]) -> list[str]:
    if target.place is None and not spark.catalog.databaseExists(str(target.catalog)):
        raise AuditError(
            f"{target.catalog}: no such database in the session's catalog: create it with CREATE "
            f"DATABASE {target.catalog}"
        )
    return [name for name in names if target.exists(spark, name)]


def _check(
    spark: SparkSession, target: Target, frames: Mapping[str, DataFrame], run_id: str
) -> None:
    """Raise AuditError if rows cannot be added to the existing tables."""
    found = []
    for name, frame in frames.items():
        with _named(spark, target, name):
            rows = _read(spark, target, name)
            if rows is None:
                continue
            if sorted(_columns(rows)) != sorted(_columns(frame)):
                changed = {*_columns(rows)} ^ {*_columns(frame)}
                columns = ", ".join(sorted({column for column, _ in changed}))
                raise SchemaMismatchError(
                    f"{target.name(name)} has different columns from this export ({columns}): "
                    "choose another place, or replace it with --overwrite"
                )
            found.append(rows.where(F.col("run_id") == run_id).select(F.lit(name).alias("name")))
    if not found:
        return
    with _named(spark, target):
        known = reduce(DataFrame.unionAll, found).first()
    if known is not None:
        raise AuditError(
            f"{target.name(known['name'])} already has rows of run {run_id}, so nothing was "
            "written: choose another --run-id"
        )


def _read(spark: SparkSession, target: Target, name: str) -> DataFrame | None:
    """Return the rows of a table; ``None`` for a directory that a failed export left without
    files."""
    try:
        return target.read(spark, name)
    except PySparkException as error:
        if "UNABLE_TO_INFER_SCHEMA" in str(error):
            return None
        raise


def _columns(frame: DataFrame) -> list[tuple[str, str]]:
    return [(column.name, column.dataType.simpleString()) for column in frame.schema]


@contextmanager
def _named(
    spark: SparkSession, target: Target, table: str | None = None, done: str = ""
) -> Iterator[None]:
    """Convert Spark's errors to one line that names the table and the fix."""
    try:
        yield
    except spark_errors() as error:
        place = target.catalog or target.place if table is None else target.name(table)
        raise AuditError(f"{place}: {_reason(spark, target, error)}{done}") from None


def _reason(spark: SparkSession, target: Target, error: Exception) -> str:
    reason = reason_of(error)
    if "No FileSystem for scheme" in reason or "S3AFileSystem not found" in reason:
        name = "'org.apache.hadoop.util.VersionInfo', 'getVersion'"
        ((version,),) = spark.sql(f"select java_method({name})").collect()
        return (
            f"this session cannot write there: add the jar of the file system, for s3a --conf "
            f"spark.jars.packages=org.apache.hadoop:hadoop-aws:{version}"
        )
    if target.format in JARS:
        jar = jar_of(target.format, spark.version)
        if any(misfit in reason for misfit in _MISFITS):
            return (
                f"the session's jar of {target.format} is not for Spark {spark.version}: use "
                f"{jar}, if it exists: {reason}"
            )
        if "DATA_SOURCE_NOT_FOUND" in reason or "ClassNotFoundException" in reason:
            return (
                f"this session lacks the format {target.format}: add its jar for Spark "
                f"{spark.version}, --conf spark.jars.packages={jar}:VERSION"
            )
    return f"Spark failed: fix the cause, then run again: {reason}"


def jar_of(form: str, version: str) -> str:
    """Return the Maven coordinates of a format's jar for a release of Spark."""
    line = ".".join(version.split(".")[:2])
    # Delta has had a jar for each line only since Spark 4.1.
    return (
        JARS[form].replace("_{}", "")
        if (form, line) == ("delta", "4.0")
        else JARS[form].format(line)
    )
