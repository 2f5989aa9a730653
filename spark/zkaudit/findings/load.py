"""The cost of rebalances: storms, contention, herds.

Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window, functions as F

from zkaudit.findings.base import GROUP, Tables, finding, row, text
from zkaudit.findings.limits import Limits
from zkaudit.findings.members import source_of


def storms(tables: Tables, limits: Limits) -> DataFrame:
    """Many rebalances in a short time: one finding for each storm.

    The tenth rebalance (if ten is the limit) makes it a storm, to which the nine before it belong.
    If members join and leave without a pause, one burst holds many rebalances: as many as members
    joined or left, if partitions were claimed again as often. Of a burst longer than
    ``storm_seconds``, only the share within that time counts.
    """
    span = int(limits.storm_seconds * 1000)
    timed = tables.rebalances.withColumn("ms", F.unix_millis("start_time"))
    near = Window.partitionBy(*GROUP).orderBy("ms")
    lasted = F.greatest(F.unix_millis("end_time") - F.col("ms"), F.lit(1))
    times = F.least("rounds", F.col("joins") + F.col("leaves")) * F.least(F.lit(1), span / lasted)
    timed = timed.withColumn("times", F.greatest(F.floor(times), F.lit(1)))
    timed = timed.withColumn("recent", F.sum("times").over(near.rangeBetween(-span, 0)))
    timed = timed.withColumn("hot", F.when(F.col("recent") >= limits.storm_rebalances, F.col("ms")))
    order = Window.partitionBy(*GROUP).orderBy("ms", "first_zxid")
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    since = F.col("ms") - F.last("hot", ignorenulls=True).over(before)
    opens = F.col("hot").isNotNull() & F.coalesce(since > span, F.lit(True))
    timed = timed.withColumn("opens", opens.cast("int"))
    number = F.when(F.col("hot").isNotNull(), F.sum("opens").over(order))
    timed = timed.withColumn("number", number)
    storm = F.first("number", ignorenulls=True).over(near.rangeBetween(0, span))
    each = (
        timed.withColumn("storm", storm)
        .where("storm is not null")
        .groupBy(*GROUP, "storm")
        .agg(
            F.min("first_zxid").alias("zxid"),
            F.max("last_zxid").alias("end_zxid"),
            F.min("start_time").alias("time"),
            F.max("end_time").alias("end_time"),
            F.max("recent").alias("most"),
            F.sum(F.col("joins") + F.col("leaves")).alias("changes"),
            F.sum("claims").alias("claims"),
            F.sum("ends").alias("ends"),
            F.sum("times").alias("times"),
            F.sum(F.unix_millis("end_time") - F.col("ms")).alias("busy"),
            (F.max(F.unix_millis("end_time")) - F.min("ms")).alias("lasted"),
        )
    )
    minutes = F.greatest(F.col("lasted") / 60_000, F.lit(1.0))
    each = each.withColumns(
        {
            "rate": F.col("times") / minutes,
            "share": F.least(F.lit(1.0), F.col("busy") / F.greatest("lasted", F.lit(1))) * 100,
            **{f"{name}_a_minute": F.format_number(F.col(name) / minutes, 1)
               for name in ("claims", "ends", "changes")},
        }
    )  # fmt: skip
    each = each.join(_culprits(tables, each), [*GROUP, "storm"], "left")
    each = each.withColumn(
        "evidence",
        F.array(
            row("rebalances", "zxid", None, None, "first"),
            row("rebalances", "end_zxid", None, None, "last"),
        ),
    )
    return finding(
        each.drop("member"),
        F.when(F.col("rate") >= limits.storm_per_minute, "high").otherwise("medium"),
        "rebalance storm", "inferred",
        "Group ", F.col("group"), " rebalanced ", text("most"),
        f" times within {limits.storm_seconds:g} s; there were ", text("changes"),
        " joins and leaves. The averages per minute were ", F.col("claims_a_minute"), " claims, ",
        F.col("ends_a_minute"), " ends of ownership, and ", F.col("changes_a_minute"),
        " joins and leaves. Rebalances took ", F.format_number("share", 0), " % of the time.",
        F.coalesce(F.concat(F.lit(" "), text("by_source"), F.lit(" of the joins and leaves came "
                   "from "), F.col("source"), F.lit(".")), F.lit("")),
    )  # fmt: skip


def _culprits(tables: Tables, each: DataFrame) -> DataFrame:
    """The host or member with more than half of a storm's joins and leaves, as ``source``, and how
    many it had, as ``by_source``. No row if there were at most two joins and leaves."""
    changes = tables.membership.select(
        *GROUP, F.col("zxid").alias("at"), source_of().alias("source")
    )
    during = F.col("at").between(F.col("zxid"), F.col("end_zxid"))
    inside = (
        each.select(*GROUP, "storm", "zxid", "end_zxid").join(changes, list(GROUP)).where(during)
    )
    counted = inside.groupBy(*GROUP, "storm", "source").agg(F.count(F.lit(1)).alias("by_source"))
    most = counted.groupBy(*GROUP, "storm").agg(
        F.max_by(F.struct("source", "by_source"), F.struct("by_source", "source")).alias("most"),
        F.sum("by_source").alias("all"),
    )
    most = most.where(F.col("most.by_source") > F.col("all") / 2).where("all > 2")
    return most.select(*GROUP, "storm", "most.*")


def contention(tables: Tables, limits: Limits) -> DataFrame:
    """Rebalances in which ZooKeeper refused many claims."""
    hot = tables.rebalances.where(F.col("refused") >= limits.contention).withColumns(
        {
            "zxid": F.col("first_zxid"),
            "end_zxid": F.col("last_zxid"),
            "time": F.col("start_time"),
            "evidence": F.array(
                row("rebalances", "first_zxid", None, None,
                     F.concat(text("refused"), F.lit(" refused"))),
            ),
        }
    )  # fmt: skip
    return finding(
        hot.drop("members"), "medium", "claim contention", "inferred",
        "In one rebalance of group ", F.col("group"), " ZooKeeper refused ", text("refused"),
        " writes by members because the znode already existed; ", text("claims"),
        " claims succeeded.",
    )  # fmt: skip


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
