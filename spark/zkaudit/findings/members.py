"""Members that harm their group: sessions that expire repeatedly, owners that stop committing.

Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window, functions as F

from zkaudit.findings.base import GROUP, Tables, finding, host_of, row, text
from zkaudit.findings.limits import Limits

_REGULAR = 5
"""An owner commits regularly if it committed at least this many times, at intervals this many times
shorter than the time after which it counts as stalled."""


def source_of() -> Column:
    """What identifies a member across restarts: its host if its consumer id was generated, else
    its name."""
    host = host_of("member")
    return F.when(host != "", F.concat(F.lit("host "), host)).otherwise(
        F.concat(F.lit("member "), F.col("member"))
    )


def flapping(tables: Tables, limits: Limits) -> DataFrame:
    """Members whose sessions expired repeatedly: one finding for each."""
    span = int(limits.flapping_seconds * 1000)
    ended = tables.membership.where("change = 'leave' and cause = 'expired'")
    ended = ended.withColumn("ms", F.unix_millis("time"))
    near = Window.partitionBy(*GROUP, "member").orderBy("ms").rangeBetween(-span, 0)
    each = (
        ended.withColumn("recent", F.count(F.lit(1)).over(near))
        .groupBy(*GROUP, "member")
        .agg(
            F.max("recent").alias("most"),
            F.min("zxid").alias("zxid"),
            F.max("zxid").alias("end_zxid"),
            F.min_by("time", "zxid").alias("time"),
            F.max_by("time", "zxid").alias("end_time"),
            F.min_by("session", "zxid").alias("session"),
            F.max_by("session", "zxid").alias("last_session"),
        )
        .where(F.col("most") >= limits.flapping_expiries)
    )
    each = each.withColumn(
        "evidence",
        F.array(
            row("membership", "zxid", None, "session", "first expiry"),
            row("membership", "end_zxid", None, "last_session", "last expiry"),
        ),
    )
    return finding(
        each, "medium", "flapping member", "proven",
        "Sessions of member ", F.col("member"), " of group ", F.col("group"), " expired ",
        text("most"), f" times within {limits.flapping_seconds:g} s. Each expiry and each return "
        "rebalances the group.",
    )  # fmt: skip


def stalled(tables: Tables, limits: Limits) -> DataFrame:
    """Owners that stopped committing while other members of their group continued."""
    wait = int(limits.stalled_seconds * 1000)
    now = tables.end.select(F.col("time").alias("last_time"))
    commits = tables.commits.where(
        "store = 'zookeeper' and kind = 'commit' and owner_state = 'owner' and "
        "owner_session = session and owner_member is not null"
    )
    each = commits.groupBy(*GROUP, F.col("owner_member").alias("member")).agg(
        F.count(F.lit(1)).alias("times"),
        F.min(F.unix_millis("time")).alias("first_ms"),
        F.max(F.unix_millis("time")).alias("ms"),
        F.max("zxid").alias("zxid"),
        F.max_by("time", "zxid").alias("time"),
        F.max_by("session", "zxid").alias("session"),
    )
    order = Window.partitionBy(*GROUP).orderBy(F.col("ms").desc(), "member")
    others = F.when(F.row_number().over(order) == 1, F.lead("ms").over(order)).otherwise(
        F.first("ms").over(order)
    )
    each = each.withColumn("others_ms", others)
    each = each.where(F.col("others_ms") - F.col("ms") >= wait).where(
        (F.col("times") > _REGULAR)
        & ((F.col("ms") - F.col("first_ms")) / (F.col("times") - 1) <= wait / _REGULAR)
    )
    owned = tables.ownership.where("member is not null and start_zxid is not null")
    owned = owned.where("ended != 'unknown'").crossJoin(F.broadcast(now)).select(
        *GROUP, "member", F.col("start_zxid").alias("from_zxid"),
        F.unix_millis(F.coalesce("end_time", "last_time")).alias("until_ms"),
    )  # fmt: skip
    # A partition that it owned at its last commit and for the whole time limit afterwards.
    kept = each.join(owned, [*GROUP, "member"]).where(F.col("from_zxid") <= F.col("zxid"))
    kept = kept.where(F.col("until_ms") - F.col("ms") >= wait)
    silent = kept.groupBy(*GROUP, "member", "zxid", "time", "session", "ms", "others_ms").agg(
        F.count(F.lit(1)).alias("own"), F.max("until_ms").alias("until_ms")
    )
    silent = silent.withColumns(
        {
            "seconds": (F.least("until_ms", "others_ms") - F.col("ms")) / 1000,
            "end_time": F.timestamp_millis(F.least("until_ms", "others_ms")),
            "evidence": F.array(row("commits", "zxid", None, "session", "last commit")),
        }
    )
    return finding(
        silent, "medium", "stalled owner", "inferred",
        "Member ", F.col("member"), " of group ", F.col("group"), " committed nothing for ",
        F.format_number("seconds", 1), " s although it owned ", text("own"),
        " partitions and other members kept committing.",
    )  # fmt: skip
