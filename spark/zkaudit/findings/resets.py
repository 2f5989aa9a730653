"""Findings about owners that continued at an offset other than the one they had reached.

No session wrote that offset for them: ``auto.offset.reset``, a seek or a recreated topic chose it.
Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window, functions as F

from zkaudit.findings.base import (
    GROUP,
    PARTITION,
    Keep,
    Tables,
    finding,
    row,
    session,
    span,
    text,
    tp,
    who,
)
from zkaudit.findings.moves import movers
from zkaudit.history.quiet import JUMP_LEAST, JUMP_STEPS, JUMP_TIMES
from zkaudit.limits import Limits


def recreated(tables: Tables) -> DataFrame:
    """Offsets of a deleted topic from which a member started to read the recreated topic."""
    again = tables.partitions.where("deleted_zxid is not null and gone_zxid is null").select(
        "chroot", "topic", "partition", "deleted_zxid", F.col("zxid").alias("created_zxid")
    )
    at = F.struct("zxid", "idx")
    stored = tables.commits.where("store = 'zookeeper' and kind = 'commit'").join(
        F.broadcast(again), ["chroot", "topic", "partition"]
    )
    before, after = F.col("zxid") < F.col("deleted_zxid"), F.col("zxid") > F.col("created_zxid")
    owner = (F.col("owner_state") == "unknown") | (F.col("owner_session") == F.col("session"))
    own = after & F.coalesce(owner, F.lit(False))
    this = F.struct("zxid", "idx", "time", "session", F.col("owner_member").alias("member"),
                    "offset", "previous")  # fmt: skip
    both = stored.groupBy(*PARTITION, "deleted_zxid", "created_zxid").agg(
        F.max_by("offset", F.when(before, at)).alias("stale"),
        F.min_by(this, F.when(own, at)).alias("first"),
    )
    both = both.where("first.previous = stale").select(
        *PARTITION, "deleted_zxid", "created_zxid", "stale", "first.*"
    )
    past = F.col("offset") >= F.col("stale")
    both = both.withColumns(
        {
            "effect": F.when(past, "lost").otherwise("unknown"),
            "messages": F.when(past, F.col("stale")),
            "evidence": F.array(
                row("partitions", "deleted_zxid", None, None, "topic deleted"),
                row("partitions", "created_zxid", None, None, "topic created again"),
                row("commits", "zxid", "idx", "session",
                    F.concat(text("stale"), F.lit(" -> "), text("offset"))),
            ),
        }
    )  # fmt: skip
    return finding(
        both, F.when(past, "high").otherwise("medium"), "offset of a deleted topic", "inferred",
        F.coalesce(who(), F.concat(F.lit("Session "), session("session"))), " started ", tp(),
        " of group ", F.col("group"), " from ", text("stale"),
        ", the offset of a topic of the same name that had been deleted; its first commit is ",
        text("offset"),
        F.when(past, F.concat(F.lit(": "), span(F.lit(0), F.col("stale")),
                              F.lit(" of the new topic were not delivered.")))
        .otherwise(": it was out of range, so `auto.offset.reset` chose where to begin."),
    )  # fmt: skip


def jumps(tables: Tables, limits: Limits, keep: Keep) -> DataFrame:
    """Owners whose committed offset rose faster than a consumer can read (``medium``), or much
    faster than the offsets of its topic do in this group (``low``).

    A partition that was created within the logs began at 0. For the first commit after a claim, the
    time begins at the claim.
    """
    made = tables.partitions.where("created").select(
        "chroot", "topic", "partition", F.lit(0).cast("bigint").alias("begin"),
        F.col("time").alias("made_time"),
    )  # fmt: skip
    stored = tables.commits.where("store = 'zookeeper' and kind = 'commit' and offset is not null")
    stored = stored.where("owner_state = 'unknown' or owner_session = session")
    new = stored.where("created").join(F.broadcast(made), ["chroot", "topic", "partition"])
    new = new.withColumns({"previous": F.col("begin"), "previous_time": F.col("made_time")})
    steps = stored.unionByName(new.drop("begin", "made_time"))
    steps = steps.withColumn("step", F.col("offset") - F.col("previous")).where("step > 0")
    steps = steps.withColumn("rate", F.col("step") / _seconds(F.col("previous_time")))
    usual = steps.groupBy(*GROUP, "topic").agg(
        F.percentile_approx("rate", 0.99, 1_000).alias("high"),
        F.count(F.lit(1)).alias("count"),
        F.max("step").alias("most"),
    )
    usual = usual.where((F.col("count") >= JUMP_STEPS) & (F.col("most") >= JUMP_LEAST))
    least = min(limits.jump_rate, JUMP_LEAST)
    # A migration owns the partitions while it writes the offsets of the other store.
    large = steps.where(F.col("step") >= least).join(
        movers(tables), [*GROUP, "session"], "left_anti"
    )
    large = keep("jumps", large.join(usual, [*GROUP, "topic"], "left"))
    chosen = large.where("owner_state = 'unknown'").select(*PARTITION).distinct()
    order = Window.partitionBy(*PARTITION).orderBy("zxid", "idx")
    writes = tables.commits.where("store = 'zookeeper'").join(chosen, list(PARTITION), "left_semi")
    writes = writes.select(
        *PARTITION, "zxid", "idx", F.lag("session").over(order).alias("writer_before")
    )
    began = tables.ownership.select(
        *PARTITION, F.col("start_zxid").alias("owner_start_zxid"), "start_time"
    )
    fast = large.join(writes, [*PARTITION, "zxid", "idx"], "left")
    fast = fast.join(began, [*PARTITION, "owner_start_zxid"], "left")
    # If the owner is unknown, a session that wrote twice in a row is treated as the owner.
    fast = fast.where("owner_state = 'owner' or writer_before = session")
    fast = fast.withColumn("seconds", _seconds(F.greatest("previous_time", "start_time")))
    rate = F.col("step") / F.col("seconds")
    first = F.coalesce(F.col("start_time") >= F.col("previous_time"), F.lit(False))
    fast = fast.withColumns(
        {
            "member": F.col("owner_member"),
            "messages": F.col("step"),
            "effect": F.lit("unknown"),
            "absolute": rate >= limits.jump_rate,
            "relative": (F.col("step") >= JUMP_LEAST) & (rate >= JUMP_TIMES * F.col("high")),
            "evidence": F.array(
                row("commits", "previous_zxid", None, None,
                    F.concat(F.lit("wrote "), text("previous"))),
                row("commits", "zxid", "idx", "session",
                    F.concat(text("previous"), F.lit(" -> "), text("offset"))),
            ),
        }
    )  # fmt: skip
    fast = fast.where("absolute or coalesce(relative, false)")
    return finding(
        fast, F.when(F.col("absolute"), "medium").otherwise("low"), "offset jump", "inferred",
        "The committed offset of ", tp(), " of group ", F.col("group"), " rose by ",
        text("messages"), " within ", F.format_number("seconds", 1), " s, written by its owner, ",
        F.coalesce(who(), F.concat(F.lit("session "), session("session"))),
        F.when(first, ", as its first commit after the claim").otherwise(""),
        F.when(F.col("absolute"), ". No consumer reads so fast, so a reset may have skipped these "
               "messages.")
        .otherwise(F.concat(
            F.lit(". 99 % of the commits of this topic rise by less than "),
            F.format_number(F.greatest("high", F.lit(1.0)), 0), F.lit(" a second. Either the owner "
            "read a backlog, or `auto.offset.reset` skipped these messages."),
        )),
    )  # fmt: skip


def _seconds(since: Column) -> Column:
    """The time from ``since`` to the write, at least a second."""
    passed = (F.unix_millis("time") - F.unix_millis(since)) / 1000
    return F.greatest(F.coalesce(passed, F.lit(1.0)), F.lit(1.0))
