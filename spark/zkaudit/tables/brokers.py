"""Consumer groups on the brokers: their generations and assignments. Driver's thread.

Only builds DataFrames on the rows of ``sources.offsets``. All records of a group are in one
partition of ``__consumer_offsets``, so their offsets order them.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window, functions as F

from zkaudit.sources.offsets import LAST_MS

_PLACE = r"(?s)\A(.+)-([0-9]+)\z"


def generations(stored: DataFrame) -> DataFrame:
    """Table ``generations``."""
    changed = F.when(F.col("commit_ms").between(0, LAST_MS), F.timestamp_millis("commit_ms"))
    return stored.where("kind = 'group'").withColumn("time", F.coalesce("time", changed))


def ownership(generations_: DataFrame) -> DataFrame:
    """Table ``broker_ownership``: consecutive equal assignments of a partition are one row.

    So is a generation that is recorded twice, because its leader stored the assignment later.
    """
    every = generations_.withColumn(
        "next_time",
        F.lead("time").over(Window.partitionBy("log_partition", "group").orderBy("log_offset")),
    ).withColumn(
        "number",
        F.row_number().over(Window.partitionBy("log_partition", "group").orderBy("log_offset")),
    )
    rows = every.select(
        "group", "log_partition", "number", "generation", "time", "next_time", "hosts",
        F.explode("assignment").alias("place", "member"),
    )  # fmt: skip
    order = Window.partitionBy("group", "log_partition", "place").orderBy("number")
    same = (F.lag("member").over(order) == F.col("member")) & (
        F.lag("number").over(order) == F.col("number") - 1
    )
    rows = rows.withColumn("opens", F.when(F.coalesce(same, F.lit(False)), 0).otherwise(1))
    rows = rows.withColumn("interval", F.sum("opens").over(order))
    return rows.groupBy("group", "log_partition", "place", "interval", "member").agg(
        F.regexp_extract("place", _PLACE, 1).alias("topic"),
        F.regexp_extract("place", _PLACE, 2).alias("partition"),
        F.max_by(F.col("hosts")[F.col("member")], "number").alias("host"),
        F.min_by("generation", "number").alias("first_generation"),
        F.max_by("generation", "number").alias("last_generation"),
        F.min_by("time", "number").alias("start_time"),
        F.max_by("next_time", "number").alias("end_time"),
    )
