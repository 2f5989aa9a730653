"""The tables ``attempts`` and ``herds``: what made members rebalance, from their journals.

A member records the transaction of each watch event, and with a rebalance the one that triggered
it, if ZooKeeper (3.9 and later) sent it. Otherwise the trigger is inferred: the last change of
membership before it. Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window, functions as F

from zkaudit.tables.catalog import GROUP

CAUSED_US: Final = 30_000_000
"""Microseconds after a change, or after the start of a rebalance, in which a member's action
counts as caused by it."""
_SECOND_READING: Final = "members and topics"
"""Scope of a ``LoadView`` that does not begin an attempt."""


def _begins() -> Column:
    """Whether a line begins an attempt."""
    return (F.col("name") == "LoadView") & (F.col("detail") != _SECOND_READING)


def _attempt() -> Column:
    """Return the number of the attempt of such a line. A member that registers reads the group
    for its first attempt before that attempt begins."""
    early = F.coalesce(F.col("state") == "REGISTERING", F.lit(False))
    return F.col("attempt") + F.when(early, 1).otherwise(0)


def _caused(steps: DataFrame, lines: DataFrame) -> DataFrame:
    """Return lines with the transaction ``cause`` (null if unknown), and whether it is ``proven``.

    A member that records transactions records them for all its rebalances. So a rebalance without
    a transaction was not triggered by a watch.
    """
    of_member = Window.partitionBy("file", "member")
    began = F.when(F.col("name") == "LoadView", F.struct("zxid", "at"))
    events = lines.where("kind = 'op' or name = 'Changed' or name = 'LoadView'").withColumns(
        {
            "proven": F.max(F.col("zxid").isNotNull()).over(of_member),
            "began": F.last(began, ignorenulls=True).over(of_member.orderBy("line")),
        }
    )
    in_time = F.col("at") - F.col("began.at") <= CAUSED_US
    named = F.when(F.col("kind") == "event", F.col("zxid")).otherwise(
        F.when(in_time, F.col("began.zxid"))
    )
    points = steps.where("change is not null").select(
        *GROUP, F.unix_micros("time").alias("at"), F.struct("zxid", "idx").alias("point")
    )
    both = events.unionByName(points, allowMissingColumns=True)
    so_far = Window.partitionBy(*GROUP).orderBy("at", F.col("point").asc_nulls_last())
    before = F.last(F.when(F.col("point").isNotNull(), F.struct("at", "point")), ignorenulls=True)
    both = both.withColumn("before", before.over(so_far)).where("point is null")
    last = F.when(F.col("at") - F.col("before.at") <= CAUSED_US, F.col("before.point.zxid"))
    return both.withColumn("cause", F.when(F.col("proven"), named).otherwise(last))


def attempts(steps: DataFrame, lines: DataFrame) -> DataFrame:
    """Return the table ``attempts``. ``steps``: the rows ``membership`` of a ``Stage``. ``lines``:
    the lines of journals."""
    number = Window.partitionBy("file", "member", "attempt").orderBy("line")
    begun = (
        _caused(steps, lines)
        .where(_begins())
        .withColumn("attempt", _attempt())
        .withColumn("nth", F.row_number().over(number))
        .where("nth = 1")  # later readings are of a group that changed meanwhile
    )
    fired = (
        lines.where("name = 'Changed' and zxid is not null")
        .groupBy("file", "member", F.col("zxid").alias("cause"))
        .agg(F.min_by("path", "line").alias("trigger_path"))
    )
    path = F.when(F.col("proven"), F.col("trigger_path"))
    return begun.drop("path").join(fired, ["file", "member", "cause"], "left").select(
        *GROUP, "member", "attempt", F.timestamp_micros("at").alias("time"),
        F.col("cause").alias("trigger_zxid"), path.alias("trigger_path"),
        F.when(F.col("cause").isNotNull(), _basis()).alias("basis"), "file", "line",
    )  # fmt: skip


def _basis() -> Column:
    return F.when(F.col("proven"), "proven").otherwise("inferred")


def herds(steps: DataFrame, lines: DataFrame | None) -> DataFrame:
    """Return the table ``herds``. ``steps``: the rows ``membership`` of a ``Stage``. ``lines``: the
    lines of journals, which alone show the members' operations; ``None`` without journals."""
    members = F.col("members")
    others = members - F.when(F.col("change") == "join", 1).otherwise(0)
    model = {"notified": others, "rebalances": members, "reads": members * members}
    columns = (*GROUP, "zxid", "idx", "time", "member", "change", "members")
    if lines is None:
        figures = [column.alias(name) for name, column in model.items()]
        unknown = [F.lit(None).alias(name) for name in ("cause", "writes")]
        changes = steps.where("change is not null")
        return changes.select(*columns, F.lit("modelled").alias("basis"), *figures, *unknown)
    kept = lines.select(*GROUP, "member").distinct().withColumn("kept", F.lit(1))
    order = Window.partitionBy(*GROUP).orderBy("zxid", "idx", "member")
    changes = (
        steps.join(kept, [*GROUP, "member"], "left")
        .withColumn("own", F.coalesce("kept", F.lit(0)))
        .withColumn("kept", F.sum(F.col("step") * F.col("own")).over(order))
        .where("change is not null")
    )
    # A session that ends may end several registrations: its effects count to the last one.
    last = F.struct("idx", "member")
    causes = changes.groupBy(*GROUP, F.col("zxid").alias("cause")).agg(F.max(last).alias("last"))
    commit = (F.col("kind") == "op") & F.coalesce(F.col("path").contains("/offsets/"), F.lit(False))
    other = (F.col("name") == "Changed") & F.col("path").endswith("/ids") & (
        F.col("member") != F.col("last.member")
    )  # fmt: skip
    did = F.col("kind") == "op"
    caused = (
        _caused(steps, lines)
        .join(causes, [*GROUP, "cause"])
        .groupBy(*GROUP, F.col("cause").alias("zxid"), "last.idx", "last.member")
        .agg(
            F.count_distinct(F.when(other, F.col("member"))).alias("notified"),
            F.count_distinct(F.when(_begins(), F.struct(F.col("member"), _attempt()))).alias(
                "attempts"
            ),
            F.coalesce(F.try_sum(F.when(did, F.col("reads"))), F.lit(0)).alias("read"),
            F.coalesce(F.try_sum(F.when(did & ~commit, F.col("writes"))), F.lit(0)).alias("wrote"),
            F.min("proven").alias("proven"),
        )
    )
    joined = changes.join(caused, [*GROUP, "zxid", "idx", "member"], "left")
    some = (F.col("kept") > 0) | ((F.col("members") == 0) & (F.col("own") > 0))
    measured = zip(model.items(), ("notified", "attempts", "read"), strict=True)
    return joined.select(
        *columns,
        F.when(some & (F.col("kept") >= members), "measured")
        .when(some, "measured in part").otherwise("modelled").alias("basis"),
        F.when(some, _basis()).alias("cause"),
        *(F.when(some, F.coalesce(figure, F.lit(0))).otherwise(column).alias(name)
          for (name, column), figure in measured),
        F.when(some, F.coalesce("wrote", F.lit(0))).alias("writes"),
    )  # fmt: skip
