"""Consumer groups in Kafka: their generations and assignments. Driver's thread.

Only builds DataFrames on the rows of ``sources.offsets``. All records of a group are in one
partition of ``__consumer_offsets``, so their offsets order them. ``history.generations`` combines
them in Spark's Python workers, with the records of one group in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame, Window, functions as F

from zkaudit.decode.offsets_topic import KINDS
from zkaudit.history.generations import states
from zkaudit.sources.offsets import LAST_MS
from zkaudit.tables.catalog import GENERATIONS

if TYPE_CHECKING:
    import pyarrow as pa

_PLACE: Final = r"(?s)\A(.+)-([0-9]+)\z"
_ROWS: Final = 1000
"""Number of rows in one Arrow batch."""


def generations(stored: DataFrame) -> DataFrame:
    """Return the table ``generations``, for classic groups, KIP-848 groups, and groups that change
    between the two protocols."""
    changed = F.when(F.col("commit_ms").between(0, LAST_MS), F.timestamp_millis("commit_ms"))
    group = ("log_partition", "group_id")
    rows = stored.where(F.col("kind").isin("group", *KINDS.values())).select(
        *group, "log_offset", F.coalesce("time", changed).alias("time"), "kind", "deleted",
        "member", "generation", "protocol", "leader", "members", "hosts", "clients", "assignment",
    )  # fmt: skip
    columns = GENERATIONS.spark_type()
    return (
        rows.repartition(*group)
        .sortWithinPartitions(*group, "log_offset")
        .mapInArrow(partial(_states, GENERATIONS.arrow_schema()), columns)
    )


def _states(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the states of groups. Runs in Spark's Python workers. All records of a group are in
    one task, in order."""
    import pyarrow as pa

    rows = (row for batch in batches for row in batch.to_pylist())
    found = (
        state
        for _, group in groupby(rows, itemgetter("log_partition", "group_id"))
        for state in states(_of_maps(row) for row in group)
    )
    while some := list(islice(found, _ROWS)):
        yield pa.RecordBatch.from_pylist(some, schema=schema)


def _of_maps(row: dict[str, Any]) -> dict[str, Any]:
    """Convert Arrow's lists of pairs to dicts."""
    maps = {name: dict(row[name] or ()) for name in ("hosts", "clients", "assignment")}
    return row | maps


def ownership(generations_: DataFrame) -> DataFrame:
    """Return the table ``broker_ownership``. Consecutive generations that assign a partition to the
    same member are one row. A generation may be recorded twice, because its leader stores the
    assignment later."""
    every = generations_.withColumn(
        "next_time",
        F.lead("time").over(Window.partitionBy("log_partition", "group_id").orderBy("log_offset")),
    ).withColumn(
        "number",
        F.row_number().over(Window.partitionBy("log_partition", "group_id").orderBy("log_offset")),
    )
    rows = every.select(
        "group_id", "log_partition", "number", "generation", "time", "next_time", "hosts",
        F.explode("assignment").alias("place", "member"),
    )  # fmt: skip
    order = Window.partitionBy("group_id", "log_partition", "place").orderBy("number")
    same = (F.lag("member").over(order) == F.col("member")) & (
        F.lag("number").over(order) == F.col("number") - 1
    )
    rows = rows.withColumn("opens", F.when(F.coalesce(same, F.lit(False)), 0).otherwise(1))
    rows = rows.withColumn("interval", F.sum("opens").over(order))
    return rows.groupBy("group_id", "log_partition", "place", "interval", "member").agg(
        F.regexp_extract("place", _PLACE, 1).alias("topic"),
        F.regexp_extract("place", _PLACE, 2).alias("partition"),
        F.max_by(F.col("hosts")[F.col("member")], "number").alias("host"),
        F.min_by("generation", "number").alias("first_generation"),
        F.max_by("generation", "number").alias("last_generation"),
        F.min_by("time", "number").alias("start_time"),
        F.max_by("next_time", "number").alias("end_time"),
    )
