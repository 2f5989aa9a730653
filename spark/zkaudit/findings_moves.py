"""Offsets and moves: what was written to ZooKeeper after a group had been moved to Kafka.

Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window, functions as f

from zkaudit.findings_base import GROUP, PARTITION, Tables, made, row, session, text, tp, writers


def movers(tables: Tables) -> DataFrame:
    """Sessions that moved a group, as ``GROUP`` and ``session``: a migration registers with no
    topic at all, or writes the migration marker."""
    empty = tables.registrations.where("size(subscription) = 0").select(*GROUP, "session")
    every = empty.unionByName(tables.moves.select(*GROUP, "session"))
    return every.where("session is not null").distinct()


def late_writes(tables: Tables) -> DataFrame:
    """Rows of ``commits`` behind a move to Kafka that the migration did not write, and ``last``:
    the move before each."""
    moved = tables.moves.groupBy(*GROUP).agg(f.min("zxid").alias("first_zxid"))
    writes = tables.commits.where("store = 'zookeeper' and kind = 'commit'").join(
        f.broadcast(moved), list(GROUP)
    )
    writes = writes.where("zxid > first_zxid").join(
        movers(tables), [*GROUP, "session"], "left_anti"
    )
    order = Window.partitionBy(*GROUP).orderBy("zxid", "idx")
    stone = f.struct(f.col("zxid").alias("moved_zxid"), "moved_to").alias("stone")
    rows = writes.unionByName(
        tables.moves.select(*GROUP, "zxid", "idx", stone), allowMissingColumns=True
    )
    rows = rows.withColumn("last", f.last("stone", ignorenulls=True).over(order))
    return rows.where("kind is not null and last.moved_to = 'kafka'")


def commits_past_moves(tables: Tables) -> DataFrame:
    """Offsets written to ZooKeeper after the group was moved to Kafka, except by the migration."""
    late = late_writes(tables)
    late = late.groupBy(*PARTITION, "session", f.col("last.moved_zxid").alias("moved_zxid")).agg(
        f.min("zxid").alias("zxid"),
        f.min_by("idx", "zxid").alias("idx"),
        f.min("time").alias("time"),
        f.max("zxid").alias("last_zxid"),
        f.max("time").alias("end_time"),
        f.min_by("offset", "zxid").alias("first"),
        f.max_by("offset", "zxid").alias("newest"),
        f.count(f.lit(1)).alias("times"),
    )
    late = late.join(writers(tables), [*GROUP, "session"], "left").withColumns(
        {
            "end_zxid": f.when(f.col("times") > 1, f.col("last_zxid")),
            "end_time": f.when(f.col("times") > 1, f.col("end_time")),
            "evidence": f.array(
                row("moves", "moved_zxid", None, None, "moved to kafka"),
                row("commits", "zxid", "idx", "session", f.concat(f.lit("wrote "), text("first"))),
            ),
        }
    )
    return made(
        late, "critical", "commit past the end of a move", "proven",
        f.coalesce(f.col("member"), f.concat(f.lit("Session "), session("session"))),
        " wrote ", text("times"), " times to the offset of ", tp(), " of group ", f.col("group"),
        " in ZooKeeper, the last time ", text("newest"),
        ", after the group had been moved to Kafka: nobody will read it.",
    )  # fmt: skip
