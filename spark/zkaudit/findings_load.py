"""What rebalances cost: storms, contention, herds.

Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window, functions as f

from zkaudit.findings_base import GROUP, Limits, Tables, made, row, text


def storms(tables: Tables, limits: Limits) -> DataFrame:
    """Many rebalances in a short time: one finding for each storm.

    A storm is known by its tenth rebalance (that is the limit); those before belong to it. Members
    that come and go without a pause rebalance the group many times in one burst: as many times as
    members came or went and a partition was claimed again. Of a burst longer than ``storm_seconds``
    only that share counts.
    """
    span = int(limits.storm_seconds * 1000)
    timed = tables.rebalances.withColumn("ms", f.unix_millis("start_time"))
    near = Window.partitionBy(*GROUP).orderBy("ms")
    lasted = f.greatest(f.unix_millis("end_time") - f.col("ms"), f.lit(1))
    times = f.least("rounds", f.col("joins") + f.col("leaves")) * f.least(f.lit(1), span / lasted)
    timed = timed.withColumn("times", f.greatest(f.floor(times), f.lit(1)))
    timed = timed.withColumn("recent", f.sum("times").over(near.rangeBetween(-span, 0)))
    timed = timed.withColumn("hot", f.when(f.col("recent") >= limits.storm_rebalances, f.col("ms")))
    order = Window.partitionBy(*GROUP).orderBy("ms", "first_zxid")
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    since = f.col("ms") - f.last("hot", ignorenulls=True).over(before)
    opens = f.col("hot").isNotNull() & f.coalesce(since > span, f.lit(True))
    timed = timed.withColumn("opens", opens.cast("int"))
    number = f.when(f.col("hot").isNotNull(), f.sum("opens").over(order))
    timed = timed.withColumn("number", number)
    storm = f.first("number", ignorenulls=True).over(near.rangeBetween(0, span))
    each = (
        timed.withColumn("storm", storm)
        .where("storm is not null")
        .groupBy(*GROUP, "storm")
        .agg(
            f.min("first_zxid").alias("zxid"),
            f.max("last_zxid").alias("end_zxid"),
            f.min("start_time").alias("time"),
            f.max("end_time").alias("end_time"),
            f.max("recent").alias("most"),
            f.sum(f.col("joins") + f.col("leaves")).alias("changes"),
        )
    )
    each = each.withColumn(
        "evidence",
        f.array(
            row("rebalances", "zxid", None, None, "first"),
            row("rebalances", "end_zxid", None, None, "last"),
        ),
    )
    return made(
        each, "medium", "rebalance storm", "inferred",
        "Group ", f.col("group"), " rebalanced ", text("most"),
        f" times within {limits.storm_seconds:g} s; ", text("changes"),
        " members came or went meanwhile.",
    )  # fmt: skip


def contention(tables: Tables, limits: Limits) -> DataFrame:
    """Rebalances in which members were refused many claims."""
    hot = tables.rebalances.where(f.col("refused") >= limits.contention).withColumns(
        {
            "zxid": f.col("first_zxid"),
            "end_zxid": f.col("last_zxid"),
            "time": f.col("start_time"),
            "evidence": f.array(
                row("rebalances", "first_zxid", None, None,
                     f.concat(text("refused"), f.lit(" refused"))),
            ),
        }
    )  # fmt: skip
    return made(
        hot.drop("members"), "medium", "claim contention", "inferred",
        "In one rebalance of group ", f.col("group"), " ZooKeeper refused ", text("refused"),
        " writes of members because the znode existed, against ", text("claims"), " claims.",
    )  # fmt: skip


def large_herds(tables: Tables, limits: Limits) -> DataFrame:
    """Changes that woke many members: measured from journals, else an upper bound."""
    large = tables.herds.where(f.col("notified") >= limits.herd_members)
    large = large.withColumn("evidence", f.array(row("herds", "zxid", "idx", None, f.col("basis"))))
    modelled = f.col("basis") == "modelled"
    return made(
        large,
        "low",
        "herd",
        f.when(modelled, "modelled").otherwise("measured"),
        "The ", f.col("change"), " of ", text("member"), " made ",
        f.when(modelled, "up to ").when(f.col("basis") == "measured", "")
        .otherwise("at least "),
        text("notified"), " members of group ", f.col("group"), " look at it: ",
        text("rebalances"), " rebalances, ", text("reads"), " reads of znodes.",
    )  # fmt: skip
