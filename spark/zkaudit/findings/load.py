"""The cost of rebalances: storms on the coordinator, and herds.

Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window, functions as F

from zkaudit.findings.base import GROUP, Tables, finding, row, text
from zkaudit.limits import Limits


def in_storms(timed: DataFrame, limits: Limits, order: str) -> DataFrame:
    """Return the rows that belong to a storm, with its number in the group (``storm``) and the
    number of rebalances in the window that ends with the row (``recent``).

    A row of ``timed`` stands for ``times`` rebalances at ``ms``; ``order``: where ``ms`` is equal.
    """
    span = int(limits.storm_seconds * 1000)
    near = Window.partitionBy(*GROUP).orderBy("ms")
    timed = timed.withColumn("recent", F.sum("times").over(near.rangeBetween(-span, 0)))
    timed = timed.withColumn("hot", F.when(F.col("recent") >= limits.storm_rebalances, F.col("ms")))
    rows = Window.partitionBy(*GROUP).orderBy("ms", order)
    before = rows.rowsBetween(Window.unboundedPreceding, -1)
    since = F.col("ms") - F.last("hot", ignorenulls=True).over(before)
    opens = F.col("hot").isNotNull() & F.coalesce(since > span, F.lit(True))
    timed = timed.withColumn("opens", opens.cast("int"))
    number = F.when(F.col("hot").isNotNull(), F.sum("opens").over(rows))
    timed = timed.withColumn("number", number)
    storm = F.first("number", ignorenulls=True).over(near.rangeBetween(0, span))
    return timed.withColumn("storm", storm).where("storm is not null")


def culprits(changes: DataFrame, storms_: DataFrame) -> DataFrame:
    """The source of more than half of a storm's ``changes``, as ``source``, and how many of them it
    caused, as ``by_source``. No row if there were at most two.

    Each change is ``at`` a place, and each of ``storms_`` is from ``begin`` to ``end``.
    """
    during = F.struct("storm", "end").alias("during")
    begins = storms_.select(*GROUP, F.col("begin").alias("at"), during)
    rows = changes.unionByName(begins, allowMissingColumns=True)
    # Storms of a group do not overlap. So a change can only belong to the last one before.
    order = Window.partitionBy(*GROUP).orderBy("at").rangeBetween(
        Window.unboundedPreceding, Window.currentRow
    )  # fmt: skip
    rows = rows.withColumn("during", F.last("during", ignorenulls=True).over(order))
    inside = rows.where("source is not null and at <= during.end").select(
        *GROUP, "source", "during.storm"
    )
    counted = inside.groupBy(*GROUP, "storm", "source").agg(F.count(F.lit(1)).alias("by_source"))
    most = counted.groupBy(*GROUP, "storm").agg(
        F.max_by(F.struct("source", "by_source"), F.struct("by_source", "source")).alias("most"),
        F.sum("by_source").alias("all"),
    )
    most = most.where(F.col("most.by_source") > F.col("all") / 2).where("all > 2")
    return most.select(*GROUP, "storm", "most.*")


def large_herds(tables: Tables, limits: Limits) -> DataFrame:
    """Changes that woke many members, measured from journals or else as an upper bound."""
    large = tables.herds.where(F.col("notified") >= limits.herd_members)
    large = large.withColumn("evidence", F.array(row("herds", "zxid", "idx", None, F.col("basis"))))
    modelled = F.col("basis") == "modelled"
    return finding(
        large,
        "low",
        "herd",
        F.when(modelled, "modelled").otherwise("measured"),
        "The ", F.col("change"), " of ", text("member"), " made ",
        F.when(modelled, "up to ").when(F.col("basis") == "measured", "")
        .otherwise("at least "),
        text("notified"), " members of group ", F.col("group"), " react, with ",
        text("rebalances"), " rebalances and ", text("reads"), " znode reads.",
    )  # fmt: skip
