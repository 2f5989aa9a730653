"""What later transactions show about proposals that may never have been committed.

A proposal that is followed by one that only fits without it was never committed: a znode cannot be
created or deleted twice in a row, a closed session does not write, and each write of a znode raises
its version by one. Driver's thread; collects two numbers for each epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, Window, functions as F

from zkaudit.history.committed import MAX_TESTS, History, Range, apply, settled
from zkaudit.schema import CREATES, DELETES


def decided(rows: DataFrame, plan: History) -> History:
    """Return the plan without the doubt that later rows remove. ``rows``: ``schema.TXNLOG``."""
    if not plan.unconfirmed:
        return plan
    found = _of_znodes(rows, plan).unionByName(_of_sessions(rows, plan))
    limits = found.groupBy(F.shiftright("zxid", 32).alias("epoch")).agg(
        F.min(F.when(~F.col("right"), F.col("zxid"))).alias("refuted"),
        F.max(F.when(F.col("right"), F.col("zxid"))).alias("proven"),
    )
    every = limits.collect()
    return settled(
        plan,
        {row["epoch"]: row["refuted"] for row in every if row["refuted"] is not None},
        {row["epoch"]: row["proven"] for row in every if row["proven"] is not None},
    )


def _of_znodes(rows: DataFrame, plan: History) -> DataFrame:
    """Unconfirmed changes of znodes (zxid) that the next confirmed change of the znode proves
    (``right``) or refutes."""
    act = (
        F.when(F.col("type").isin(*CREATES), "create")
        .when(F.col("type").isin(*DELETES), "delete")
        .when(F.col("type") == "setData", "set")
    )
    changes = apply(rows, plan).withColumn("act", act).where("act is not null")
    doubted = changes.where("not confirmed").select("path").distinct()
    closed = rows.where("type = 'closeSession'").groupBy("session")
    closed = closed.agg(F.min("zxid").alias("closed_zxid"))
    changes = changes.join(doubted, "path", "left_semi").select(
        "path", "zxid", "idx", "session", "act", "version", "ephemeral", "confirmed"
    )
    later = Window.partitionBy("path").orderBy(F.col("zxid").desc(), F.col("idx").desc())
    this = F.struct("zxid", "act", "version")
    changes = changes.withColumns(
        {
            "then": F.last(F.when(F.col("confirmed"), this), ignorenulls=True).over(
                later.rowsBetween(Window.unboundedPreceding, -1)
            ),
            "last": F.lag("confirmed").over(later),
        }
    )
    changes = changes.where("not confirmed and then is not null")
    # A log gap may hide the next change of the znode.
    changes = changes.where(~_spans(plan.log_gaps)).join(closed, "session", "left")
    last = F.coalesce("last", F.lit(False))
    created, written = F.col("act") == "create", F.col("act") == "set"
    ended = F.col("ephemeral") & F.col("closed_zxid").between(F.col("zxid"), F.col("then.zxid"))
    ended = F.coalesce(ended, F.lit(False))
    version, then = F.col("then.version"), F.col("then.act")
    refuted = (
        (written & (then == "set") & (version <= F.col("version")))
        | (last & created & (then == "create") & ~ended)
        | (last & created & (then == "set") & (version != 1))
        | (last & (F.col("act") == "delete") & then.isin("delete", "set"))
    )
    proven = last & (
        (written & (then == "set") & (version == F.col("version") + 1))
        | (created & ((then == "delete") | (then == "set") & (version == 1)))
    )
    return _either(changes, proven, refuted)


def _spans(log_gaps: Sequence[Range]) -> Column:
    """Whether a log gap is between the change and the next confirmed one."""
    if len(log_gaps) > MAX_TESTS:  # too many to compare
        log_gaps = [(log_gaps[0][0], log_gaps[-1][1])]
    tests = [(F.col("zxid") < last) & (F.col("then.zxid") > first) for first, last in log_gaps]
    return reduce(or_, tests, F.lit(False))


def _of_sessions(rows: DataFrame, plan: History) -> DataFrame:
    """The same for the beginnings and ends of sessions."""
    every = apply(rows, plan).where("session != 0 and type != 'error'")
    used = every.where("confirmed").groupBy("session").agg(F.max("zxid").alias("used"))
    edges = every.where("not confirmed and type in ('createSession', 'closeSession')")
    edges = edges.join(used, "session").where("used > zxid")
    begun = F.col("type") == "createSession"
    return _either(edges, begun, ~begun)


def _either(changes: DataFrame, proven: Column, refuted: Column) -> DataFrame:
    right = F.when(proven, True).when(refuted, False)
    return changes.select("zxid", right.alias("right")).where("right is not null")
