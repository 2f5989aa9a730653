"""Sessions that move groups between ZooKeeper and Kafka, and offsets written after a move.

Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window, functions as F

from zkaudit.findings.base import GROUP, Tables


def movers(tables: Tables) -> DataFrame:
    """Sessions of migrations, as ``GROUP`` and ``session``: a migration registers without any topic
    or writes the migration marker."""
    empty = tables.registrations.where("size(subscription) = 0").select(*GROUP, "session")
    every = empty.unionByName(tables.moves.select(*GROUP, "session"))
    return every.where("session is not null").distinct()


def late_writes(tables: Tables) -> DataFrame:
    """Rows of ``commits`` after a move to Kafka that the migration did not write. ``last`` is the
    latest move before each."""
    moved = tables.moves.groupBy(*GROUP).agg(F.min("zxid").alias("first_zxid"))
    writes = tables.commits.where("store = 'zookeeper' and kind = 'commit'").join(
        F.broadcast(moved), list(GROUP)
    )
    writes = writes.where("zxid > first_zxid").join(
        movers(tables), [*GROUP, "session"], "left_anti"
    )
    order = Window.partitionBy(*GROUP).orderBy("zxid", "idx")
    marker = F.struct(F.col("zxid").alias("moved_zxid"), "moved_to").alias("marker")
    rows = writes.unionByName(
        tables.moves.select(*GROUP, "zxid", "idx", marker), allowMissingColumns=True
    )
    rows = rows.withColumn("last", F.last("marker", ignorenulls=True).over(order))
    return rows.where("kind is not null and last.moved_to = 'kafka'")
