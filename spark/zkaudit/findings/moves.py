"""Sessions that move groups between ZooKeeper and Kafka, and offsets written after a move.

Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window, functions as F

from zkaudit.findings.base import GROUP, PARTITION, Tables, finding, row, session, text, tp, writers


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


def commits_past_moves(tables: Tables) -> DataFrame:
    """Offsets written to ZooKeeper after the group was moved to Kafka, except by the migration."""
    late = late_writes(tables)
    late = late.groupBy(*PARTITION, "session", F.col("last.moved_zxid").alias("moved_zxid")).agg(
        F.min("zxid").alias("zxid"),
        F.min_by("idx", "zxid").alias("idx"),
        F.min("time").alias("time"),
        F.max("zxid").alias("last_zxid"),
        F.max("time").alias("end_time"),
        F.min_by("offset", "zxid").alias("first"),
        F.max_by("offset", "zxid").alias("newest"),
        F.count(F.lit(1)).alias("times"),
    )
    late = late.join(writers(tables), [*GROUP, "session"], "left").withColumns(
        {
            "end_zxid": F.when(F.col("times") > 1, F.col("last_zxid")),
            "end_time": F.when(F.col("times") > 1, F.col("end_time")),
            "evidence": F.array(
                row("moves", "moved_zxid", None, None, "moved to kafka"),
                row("commits", "zxid", "idx", "session", F.concat(F.lit("wrote "), text("first"))),
            ),
        }
    )
    return finding(
        late, "critical", "commit past the end of a move", "proven",
        F.coalesce(F.col("member"), F.concat(F.lit("Session "), session("session"))),
        " wrote ", text("times"), " times to the offset of ", tp(), " of group ", F.col("group"),
        " in ZooKeeper, the last time ", text("newest"),
        ", after the group had been moved to Kafka. No member will read it.",
    )  # fmt: skip
