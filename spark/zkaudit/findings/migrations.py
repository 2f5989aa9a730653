"""Findings about groups that migrated while they ran.

The modes are checked in plain Python (``findings.modes``). Partitions with two owners at once, one
in ZooKeeper and one on the coordinator, are found in table ``live_ownership``. Only journals prove
that both delivered (``findings.journals``). A history without modes adds nothing to the plan.
Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import Column, DataFrame, functions as F

from zkaudit.findings.base import PARTITION, Tables, finding, row, tp
from zkaudit.findings.journals import overlaps
from zkaudit.findings.limits import Limits
from zkaudit.findings.modes import judge
from zkaudit.tables.catalog import FINDINGS
from zkaudit.tables.migrations import Moving, as_frame, time_of


def migrations(
    tables: Tables, limits: Limits, keep: Callable[[str, DataFrame], DataFrame]
) -> list[DataFrame]:
    """All findings about live migrations. If no group has a mode there are none, at no cost.
    ``keep``: see ``rules.findings``."""
    if not tables.moving:
        return []
    found = list(_judged(tables.moving, limits, tables))
    spark = tables.end.sparkSession
    parts = [as_frame(spark, FINDINGS.spark_type(), found)] if found else []
    if tables.live_ownership is not None:
        # Planned alone: it rarely has rows, and without rows it adds nothing to the findings' plan.
        both = keep("two_owners", two_owners(tables, tables.live_ownership, limits))
        parts.append(both)
    return parts


def _judged(moving: Moving, limits: Limits, tables: Tables) -> Iterator[dict[str, Any]]:
    names = ("table", "zxid", "idx", "session", "what")
    for group in moving.groups:
        for one in judge(
            group, moving.last, limits.standstill_seconds, moving.closed, tables.log_gaps
        ):
            yield {
                "severity": one.severity,
                "kind": one.kind,
                "basis": one.basis,
                "chroot": group.chroot,
                "group": group.name,
                "member": one.member,
                "session": one.session,
                "zxid": one.begin.zxid,
                "end_zxid": one.end and one.end.zxid,
                "time": time_of(one.begin),
                "end_time": time_of(one.end),
                "sentence": one.sentence,
                "evidence": [dict(zip(names, part, strict=True)) for part in one.evidence],
            }


def two_owners(tables: Tables, owned: DataFrame, limits: Limits) -> DataFrame:
    """Partitions that the coordinator had assigned to a plain consumer while a member still had
    the owner znode.

    The two times are from different clocks. It does not prove that both delivered: a member that
    the coordinator expels stops by itself, and a member whose session expired had stopped before.
    """
    now = tables.end.select(F.unix_micros("time").alias("now"))
    times = (
        owned.where("source in ('owner znode', 'generation') and member is not null")
        .where("ended != 'expired' and ended != 'unknown'")
        .crossJoin(F.broadcast(now))
        .withColumns(
            {
                "a": F.unix_micros("start_time"),
                "b": F.coalesce(F.unix_micros("end_time"), "now"),
            }
        )
        .where("a is not null and b is not null")
    )
    keep = ("source", "session", "start_zxid")
    both = overlaps(times, PARTITION, "member", keep).where(
        (F.col("source") != F.col("other.source"))
        & (F.col("high") - F.col("low") >= int(limits.skew_seconds * 1e6))
    )
    here = F.col("source") == "owner znode"

    def pick(name: str, znode: bool) -> Column:
        mine, theirs = F.col(name), F.col(f"other.{name}")
        return F.when(here, mine if znode else theirs).otherwise(theirs if znode else mine)

    both = both.select(
        *PARTITION,
        F.timestamp_micros("low").alias("time"),
        F.timestamp_micros("high").alias("end_time"),
        F.format_number((F.col("high") - F.col("low")) / 1e6, 1).alias("seconds"),
        pick("member", True).alias("member"),
        pick("session", True).alias("session"),
        pick("start_zxid", True).alias("zxid"),
        pick("member", False).alias("plain"),
    )
    both = both.withColumn(
        "evidence",
        F.array(
            row("live_ownership", "zxid", None, "session", "owner znode"),
            row("broker_ownership", None, None, None, F.col("plain")),
        ),
    )
    return finding(
        both, "medium", "two owners during a move", "inferred",
        tp(), " of group ", F.col("group"), " was assigned to ", F.col("plain"),
        " by the coordinator while member ", F.col("member"), " had its owner znode, for ",
        F.col("seconds"), " s (measured with two clocks). Both may have delivered, unless the "
        "member had stopped. Journals would show which.",
    )  # fmt: skip
