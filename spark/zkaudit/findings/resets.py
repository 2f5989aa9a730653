"""Findings about owners that continued at an offset other than the one they had reached.

No session wrote that offset for them: ``auto.offset.reset``, a seek or a recreated topic chose it.
Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window, functions as F

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
from zkaudit.findings.limits import Limits
from zkaudit.findings.moves import movers


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
    """Owners whose committed offset rose faster than a consumer can read."""
    steps = tables.commits.where("store = 'zookeeper' and kind = 'commit'")
    steps = steps.where((F.col("offset") - F.col("previous")) >= limits.jump_rate)
    steps = steps.where("owner_state = 'unknown' or owner_session = session")
    # A migration owns the partitions while it writes the offsets of the other store.
    steps = keep("jumps", steps.join(movers(tables), [*GROUP, "session"], "left_anti"))
    chosen = steps.select(*PARTITION).distinct()
    order = Window.partitionBy(*PARTITION).orderBy("zxid", "idx")
    writes = tables.commits.where("store = 'zookeeper'").join(chosen, list(PARTITION), "left_semi")
    writes = writes.withColumns(
        {"before": F.lag("time").over(order), "writer_before": F.lag("session").over(order)}
    )
    began = tables.ownership.select(
        *PARTITION, F.col("start_zxid").alias("owner_start_zxid"), "start_time"
    )
    fast = writes.join(steps.select(*PARTITION, "zxid", "idx"), [*PARTITION, "zxid", "idx"])
    fast = fast.join(began, [*PARTITION, "owner_start_zxid"], "left")
    # If the owner is unknown, a session that wrote twice in a row is treated as the owner.
    fast = fast.where("owner_state = 'owner' or writer_before = session")
    since = F.greatest("before", "start_time")
    fast = fast.withColumn(
        "seconds", F.greatest((F.unix_millis("time") - F.unix_millis(since)) / 1000, F.lit(1.0))
    ).withColumns(
        {
            "member": F.col("owner_member"),
            "messages": F.col("offset") - F.col("previous"),
            "effect": F.lit("unknown"),
            "evidence": F.array(
                row("commits", "zxid", "idx", "session",
                    F.concat(text("previous"), F.lit(" -> "), text("offset")))
            ),
        }
    )  # fmt: skip
    fast = fast.where(F.col("messages") / F.col("seconds") >= limits.jump_rate)
    return finding(
        fast, "medium", "offset jump", "inferred",
        "The committed offset of ", tp(), " of group ", F.col("group"), " rose by ",
        text("messages"), " within ", F.format_number("seconds", 1), " s, written by its owner, ",
        F.coalesce(who(), F.concat(F.lit("session "), session("session"))),
        ". No consumer reads so fast, so a reset may have skipped these messages.",
    )  # fmt: skip
