"""Writes an audit's tables and reads them back with Spark. Driver's thread; executors write.

Spark gets every local path with its scheme, because a path without one belongs to the session's
default file system, which on a cluster is rarely the local one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession, functions as F
from pyspark.sql.types import StructType

from zkaudit.errors import AuditError, InputMissingError
from zkaudit.history.staging import Stage
from zkaudit.job.place import finished, new_tables
from zkaudit.schema import arrow_of
from zkaudit.storage import local_url
from zkaudit.tables import catalog


@contextmanager
def staged(out: Path) -> Iterator[None]:
    """Delete the temporary files in ``out`` at the end, even after an error."""
    try:
        yield
    finally:
        shutil.rmtree(out / "staging", ignore_errors=True)


def kept(out: Path, name: str, frame: DataFrame, by: str | None = None) -> DataFrame:
    """Write a frame to a directory in ``out``, and return a frame that reads it.

    ``by``: see ``save``. If no row was written, the result is a frame that Spark knows to be empty,
    so Spark plans no work for it. Raises AuditError if the driver does not see all rows that were
    written.
    """
    place = out / name
    rows = save(frame, place, by)
    spark = frame.sparkSession
    return stored(spark, frame.schema, [place]) if rows else empty(spark, frame.schema)


def save(frame: DataFrame, place: Path, by: str | None = None) -> int:
    """Let Spark write a frame to a directory, replacing its files. Return the number of rows.

    ``by``: partition the directory by this column. Raises AuditError if the driver does not see
    all rows, which happens on a cluster if the directory is not on a shared file system.
    """
    counted = Observation()
    frame = frame.observe(counted, F.count(F.lit(1)).alias("rows"))
    writer = frame.write.mode("overwrite").option("partitionOverwriteMode", "static")
    (writer if by is None else writer.partitionBy(by)).parquet(local_url(place))
    expected = int(counted.get["rows"])
    found = rows_in(place)
    if found != expected:
        raise AuditError(
            f"{place}: Spark wrote {expected:,} rows, but this machine sees {found:,} of them: put "
            "--out on a file system that the driver and all executors share"
        )
    return expected


def put(rows: pa.Table, place: Path) -> None:
    """Write a table in memory to a new directory."""
    place.mkdir(parents=True)
    pq.write_table(rows, place / "part-0.parquet")


def rows_in(place: Path) -> int:
    """Return the number of rows in the Parquet files of a directory."""
    return sum(pq.read_metadata(part).num_rows for part in place.rglob("*.parquet"))


def stored(
    spark: SparkSession, columns: StructType, places: Iterable[Path], base: Path | None = None
) -> DataFrame:
    """Return a frame that reads local Parquet directories, without the partitioning columns.

    ``base``: the directory of the whole table, if ``places`` are some of its partitions.
    """
    reader = spark.read.schema(columns)
    if base is not None:
        reader = reader.option("basePath", local_url(base))
    return reader.parquet(*map(local_url, places)).select(*columns.names)


def rows_of(spark: SparkSession, columns: StructType, rows: list[dict[str, Any]]) -> DataFrame:
    """Return rows in memory as a frame."""
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema=arrow_of(columns)), columns)


def empty(spark: SparkSession, columns: StructType) -> DataFrame:
    """Return an empty frame that Spark's optimizer knows to be empty."""
    return spark.createDataFrame(arrow_of(columns).empty_table(), columns)


class Store:
    """Writes the tables of an audit of all groups. ``place``: the directory of the tables."""

    def __init__(self, spark: SparkSession, out: Path) -> None:
        self.spark = spark
        self.place = new_tables(out)

    def table(self, spec: catalog.Table, frame: DataFrame | None) -> None:
        """Write a table with rows of groups. ``frame``: ``None`` if the audited groups have no
        rows."""
        self.shared(spec, frame)

    def shared(self, spec: catalog.Table, frame: DataFrame | None) -> None:
        """Write a table whose rows do not belong to groups."""
        if frame is None:
            self.rows(spec, [])
        else:
            save(spec.shape(frame), self.place / spec.name)

    def frame(self, spec: catalog.Table) -> DataFrame:
        """Return the rows of audited groups in a written table."""
        columns = spec.spark_type()
        if not self.count(spec):
            return empty(self.spark, columns)
        return stored(self.spark, columns, [self.place / spec.name])

    def rows(self, spec: catalog.Table, values: list[dict[str, Any]]) -> None:
        """Write rows in memory as a table whose rows do not belong to groups."""
        rows = pa.Table.from_pylist(values, schema=spec.arrow_schema())
        put(rows, self.place / spec.name)

    def read(self, spec: catalog.Table, *columns: str) -> pa.Table:
        """Return some columns, by default all, of a small written table."""
        return pq.read_table(self.place / spec.name, columns=list(columns) or None)

    def of_audited(self, rows: DataFrame) -> DataFrame:
        """Return the rows of audited groups. ``rows``: a table of a ``Stage``."""
        return rows

    def count(self, spec: catalog.Table) -> int:
        """Return the number of rows in a written table."""
        return rows_in(self.place / spec.name)

    def of_groups(self, snapshots: DataFrame) -> DataFrame:
        """Return the rows of snapshots that the audited groups need."""
        return snapshots

    def sessions(self, audited: pa.Table) -> None:
        """Write the table ``sessions``."""
        put(audited, self.place / catalog.SESSIONS.name)

    def used(self, stage: Stage) -> pa.Array:
        """Return the sessions that used an audited group."""
        return stage.read("used", "session")["session"].combine_chunks()

    def known_us(self, rows: DataFrame, known: int | None) -> int | None:
        """Return the time of the first transaction at or after zxid ``known``, for
        ``Facts.known_us``; ``None`` if there is none. ``rows``: all rows of
        ``inputs.transactions``."""
        if not known:
            return None
        later = rows.where(F.col("kind").isNull() & (F.col("zxid") >= known))
        found = later.agg(F.unix_micros(F.min_by("time", "zxid"))).first()
        return None if found is None else found[0]

    def groups(self, stage: Stage) -> int:
        """Return the number of groups."""
        names = stage.read("names", "chroot", "group_id", "tree")
        names = names.filter(pc.not_equal(names["tree"], "lock"))
        return int(names.group_by(["chroot", "group_id"]).aggregate([]).num_rows)

    def waiting(self, groups: DataFrame) -> None:
        """Note the groups in which the rules may find more when the history continues."""

    def close(self) -> None:
        """Store the data that the next round needs. Called before the summary is written."""


def load(spark: SparkSession, out: str | Path) -> tuple[dict[str, Any], dict[str, DataFrame]]:
    """Return the summary and the tables of the newest finished audit in ``out``.

    Raises InputMissingError if there is none.
    """
    summary, place = finished(out)
    try:
        frames = {t.name: stored(spark, t.spark_type(), [place / t.name]) for t in catalog.TABLES}
    except PySparkException as error:
        reason = str(error).partition("\n")[0]
        raise InputMissingError(
            f"{out}: the audit in this directory is incomplete: run it again: {reason}"
        ) from None
    return summary, frames
