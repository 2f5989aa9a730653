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
    One burst may hold many rebalances. In each of them, a partition is claimed once, or once for
    each attempt. So there were at least as many as members joined or left, if a partition was
    claimed as often, and at least as many as a partition was claimed, less the refused claims: an
    attempt fails only if a claim is refused. Of a burst longer than ``storm_seconds``, only the
    share within that time counts.
    """
    span = int(limits.storm_seconds * 1000)
    timed = tables.rebalances.withColumn("ms", F.unix_millis("start_time"))
    lasted = F.greatest(F.unix_millis("end_time") - F.col("ms"), F.lit(1))
    rebalances = F.greatest(
        F.least("rounds", F.col("joins") + F.col("leaves")), F.col("rounds") - F.col("refused")
    )
    times = rebalances * F.least(F.lit(1), span / lasted)
    timed = timed.withColumn("times", F.greatest(F.floor(times), F.lit(1)))
    each = (
        in_storms(timed, limits, "first_zxid")
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
    changes = tables.membership.select(
        *GROUP, F.col("zxid").alias("at"), source_of().alias("source")
    )
    begins = each.select(
        *GROUP, "storm", F.col("zxid").alias("begin"), F.col("end_zxid").alias("end")
    )
    each = each.join(culprits(changes, begins), [*GROUP, "storm"], "left")
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
