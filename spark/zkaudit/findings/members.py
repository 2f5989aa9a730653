"""Members that harm their group: sessions that expire repeatedly, owners that stop committing.

Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window, functions as F

from zkaudit.findings.base import GROUP, Tables, clocks, finding, host_of, row, text, timed
from zkaudit.findings.limits import Limits
from zkaudit.history.quiet import REGULAR

_SLOTS = 50
"""Commits within the same fiftieth of that time count as one."""


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
        each, "medium", "flapping member", timed("zxid", "end_zxid"),
        "Sessions of member ", F.col("member"), " of group ", F.col("group"), " expired ",
        text("most"), f" times within {limits.flapping_seconds:g} s. Each expiry and each return "
        "rebalances the group.", clocks("zxid", "end_zxid"),
    )  # fmt: skip


def stalled(tables: Tables, limits: Limits) -> DataFrame:
    """Owners that stopped committing while other members of their group continued: one finding for
    each member, about its longest stall.

    Most groups commit too rarely for a stall. Only the commits of the others are sorted, first by
    group, then by member: after the shuffle of the first window, the second needs none.
    """
    wait = int(limits.stalled_seconds * 1000)
    commits = tables.commits.where(
        "store = 'zookeeper' and kind = 'commit' and owner_state = 'owner' and "
        "owner_session = session and owner_member is not null"
    ).select(
        *GROUP, F.col("owner_member").alias("member"), "session", "zxid", "idx", "time",
        F.unix_millis("time").alias("ms"),
    )  # fmt: skip
    pauses = _pauses(commits.join(_frequent(commits, wait), list(GROUP)), wait)
    now = tables.end.select(F.col("time").alias("last_time"))
    owned = tables.ownership.where("member is not null and start_zxid is not null")
    owned = owned.where("ended != 'unknown'").crossJoin(F.broadcast(now)).select(
        *GROUP, "member", "session", F.col("start_zxid").alias("from_zxid"),
        F.unix_millis(F.coalesce("end_time", "last_time")).alias("until_ms"),
    )  # fmt: skip
    # A partition that it owned at its last commit and for the whole time limit afterwards.
    kept = pauses.join(owned, [*GROUP, "member", "session"])
    kept = kept.where(F.col("from_zxid") <= F.col("zxid"))
    kept = kept.where(F.col("until_ms") - F.col("ms") >= wait)
    each = kept.groupBy(*GROUP, "member", "session", "zxid", "idx", "time", "ms", "next").agg(
        F.count(F.lit(1)).alias("own"),
        F.least(F.max("until_ms"), F.first("last_ms")).alias("until_ms"),
    )
    stall = F.struct(
        (F.col("until_ms") - F.col("ms")).alias("lasted"), "session", "zxid", "idx", "time",
        "until_ms", "own", "next",
    )  # fmt: skip
    silent = each.groupBy(*GROUP, "member").agg(
        F.max_by(stall, F.struct(F.col("until_ms") - F.col("ms"), "zxid")).alias("stall"),
        F.count(F.lit(1)).alias("times"),
    )
    silent = silent.select(*GROUP, "member", "times", "stall.*").withColumns(
        {
            "end_time": F.timestamp_millis("until_ms"),
            "end_zxid": F.when(F.col("next.ms") <= F.col("until_ms"), F.col("next.zxid")),
            "evidence": F.array_compact(
                F.array(
                    row("commits", "zxid", "idx", "session", "last commit"),
                    F.when(F.col("next").isNotNull(),
                           row("commits", "next.zxid", "next.idx", "next.session", "next commit")),
                )
            ),
        }
    )  # fmt: skip
    return finding(
        silent, "medium", "stalled owner", "inferred",
        "Member ", F.col("member"), " of group ", F.col("group"), " committed nothing for ",
        F.format_number(F.col("lasted") / 1000, 1), " s although it owned ", text("own"),
        " partitions and other members kept committing.",
        F.when(F.col("times") > 1, F.concat(F.lit(" It stalled "), text("times"),
               F.lit(" times; this was the longest time."))).otherwise(""),
    )  # fmt: skip


def _frequent(commits: DataFrame, wait: int) -> DataFrame:
    """The groups in which a stall is possible, with their newest commit: several members commit,
    and the average interval of one of them is at most ``wait`` milliseconds."""
    # Only numbers: an aggregate of text would sort all commits.
    each = commits.groupBy(*GROUP, "member").agg(
        F.count(F.lit(1)).alias("times"),
        (F.max("ms") - F.min("ms")).alias("lasted"),
        F.max("zxid").alias("zxid"),
        F.max_by("ms", "zxid").alias("ms"),
    )
    often = (F.col("times") > REGULAR) & (F.col("lasted") <= wait * (F.col("times") - 1))
    groups = each.groupBy(*GROUP).agg(
        F.max(often).alias("often"),
        F.count(F.lit(1)).alias("members"),
        F.max(F.struct("zxid", "member", "ms")).alias("newest"),
    )
    return groups.where("often and members > 1").select(*GROUP, "newest")


def _pauses(commits: DataFrame, wait: int) -> DataFrame:
    """Commits after which a member committed nothing for ``wait`` milliseconds although it had
    committed regularly before, while another member committed later than that. Not the pauses of a
    whole group.

    ``next``: its next commit, null if there is none. ``last_ms``: the end of the pause as far as it
    is known, which is the next commit or else the newest one in the group.
    """
    in_group = Window.partitionBy(*GROUP).orderBy("zxid", "idx")
    so_far = in_group.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    mine = Window.partitionBy(*GROUP, "member").orderBy("zxid", "idx")
    silent = F.col("ms") - F.lag("ms").over(in_group) >= wait
    rows = commits.withColumn("silent", silent)
    resumed = F.last(F.when(F.col("silent"), F.col("ms")), ignorenulls=True).over(so_far)
    rows = rows.withColumn("resumed", resumed)
    rows = rows.withColumn("before", F.lag(F.struct("member", "ms", "resumed")).over(in_group))
    # At a member's next commit: the latest commit of another member in between, if any, and when
    # the group's other members had resumed, if all had been silent.
    other = F.when(F.col("before.member") != F.col("member"), F.col("before.ms"))
    rows = rows.withColumns({"other": other, "others_resumed": F.col("before.resumed")})
    after = F.struct("zxid", "idx", "session", "ms", "other", "others_resumed")
    rows = rows.withColumn("next", F.lead(after).over(mine))
    # A member commits all its partitions together. That counts as one commit.
    slot = max(1, wait // _SLOTS)
    rows = rows.where(
        F.col("next").isNull() | (F.floor(F.col("next.ms") / slot) != F.floor(F.col("ms") / slot))
    )
    rows = rows.withColumn("since", F.lag("ms", REGULAR).over(mine))
    ended = F.col("next").isNotNull()
    newest = F.when(F.col("newest.member") != F.col("member"), F.col("newest.ms"))
    rows = rows.withColumns(
        {
            "last_ms": F.when(ended, F.col("next.ms")).otherwise(newest),
            "other": F.when(ended, F.col("next.other")).otherwise(newest),
        }
    )
    # After an outage all members resume at about the same time.
    outage = (F.col("next.others_resumed") > F.col("ms")) & (
        F.col("next.ms") - F.col("next.others_resumed") < wait // REGULAR
    )
    return rows.where(~F.coalesce(outage, F.lit(False))).where(
        (F.col("ms") - F.col("since") <= wait + slot)
        & (F.col("other") - F.col("ms") >= wait)
        & (F.col("last_ms") - F.col("ms") >= wait)
    )
