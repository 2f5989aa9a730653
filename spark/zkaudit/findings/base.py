"""Code that all rules share: the tables they read, and functions that build a finding.

Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from pyspark.sql import Column, DataFrame, Window, functions as F

from zkaudit.group import LogGap
from zkaudit.history.staging import known_at
from zkaudit.tables.build import steps
from zkaudit.tables.migrations import Moving

Keep: TypeAlias = Callable[[str, DataFrame], DataFrame]
"""Stores a frame under a name and returns the stored frame. If few partitions are chosen, Spark
then knows that, and does not sort all commits to look for theirs."""
GROUP = ("chroot", "group")
PARTITION = (*GROUP, "topic", "partition")


@dataclass(frozen=True)
class Tables:
    """The tables from which findings are derived, described in ``zkaudit.tables.catalog``."""

    registrations: DataFrame
    ownership: DataFrame
    commits: DataFrame
    moves: DataFrame
    partitions: DataFrame
    herds: DataFrame
    deliveries: DataFrame
    views: DataFrame
    sessions: DataFrame
    end: DataFrame
    """One row: zxid and time of the last transaction of the history."""
    known: tuple[int | None, ...] = (0,)
    """For each segment between log gaps, the zxid from which all ephemeral znodes are known, as
    ``selection.known`` returns it."""
    log_gaps: tuple[LogGap, ...] = ()
    """Where transactions are missing, as in ``Stage.log_gaps``."""
    moving: Moving = field(default_factory=Moving)
    """The groups that have a migration mode."""
    group_ownership: DataFrame | None = None
    """Table ``group_ownership``; ``None`` if no group has a mode, and nothing was read about groups
    on the coordinator."""
    generations: DataFrame | None = None
    """Table ``generations`` with the chroot of each group, empty where it is unknown; ``None`` if
    no records of a coordinator were read."""
    of_groups: DataFrame | None = None
    """Findings of the rules that run with the fold (``zkaudit.group.rules``)."""


def text(name: str | Column) -> Column:
    """A value as text for a sentence; ``?`` if it is null."""
    return F.coalesce((F.col(name) if isinstance(name, str) else name).cast("string"), F.lit("?"))


def session(name: str) -> Column:
    """A session as ZooKeeper prints it."""
    return F.concat(F.lit("0x"), F.lower(F.hex(F.col(name))))


def tp() -> Column:
    """``topic-partition``."""
    return F.concat(text("topic"), F.lit("-"), text("partition"))


def span(low: Column, high: Column) -> Column:
    """``N offsets (LOW to HIGH - 1)``. The log may have fewer messages: compaction removes some,
    and transactions write markers."""
    count = high - low
    return F.concat(
        text(count), F.when(count == 1, " offset (").otherwise(" offsets ("), text(low),
        F.when(count > 1, F.concat(F.lit(" to "), text(high - 1))).otherwise(""), F.lit(")"),
    )  # fmt: skip


def row(
    table: str, zxid: str | None, idx: str | None, session: str | None, what: Column | str
) -> Column:
    """One row of evidence, from the columns with these names; null where no name is given."""
    return F.struct(
        F.lit(table).alias("table"),
        (F.col(zxid) if zxid else F.lit(None)).cast("bigint").alias("zxid"),
        (F.col(idx) if idx else F.lit(None)).cast("int").alias("idx"),
        (F.col(session) if session else F.lit(None)).cast("bigint").alias("session"),
        (F.lit(what) if isinstance(what, str) else what).cast("string").alias("what"),
        F.lit(None).cast("string").alias("server"),
        F.lit(None).cast("string").alias("file"),
        F.lit(None).cast("bigint").alias("position"),
    )


def finding(
    frame: DataFrame,
    severity: Column | str,
    kind: Column | str,
    basis: Column | str,
    *sentence: Column | str,
) -> DataFrame:
    """Add the columns that every finding has. ``frame`` must have a column ``evidence``."""
    words = [F.lit(part) if isinstance(part, str) else part for part in sentence]
    return frame.withColumns(
        {
            "severity": F.lit(severity) if isinstance(severity, str) else severity,
            "kind": F.lit(kind) if isinstance(kind, str) else kind,
            "basis": F.lit(basis) if isinstance(basis, str) else basis,
            "sentence": F.concat(*words),
        }
    )


def writers(tables: Tables) -> DataFrame:
    """The member behind each session of a group, from its registration or else from its claims."""
    known = [
        frame.where("session is not null and member is not null").select(
            *GROUP, "session", "member"
        )
        for frame in (tables.registrations, tables.ownership)
    ]
    return (
        known[0]
        .unionByName(known[1])
        .groupBy(*GROUP, "session")
        .agg(F.min("member").alias("member"))
    )


def alive(tables: Tables, rows: DataFrame, zxid: str) -> DataFrame:
    """Add ``alive``: how many members of the group were registered just before ``zxid`` of each
    row; null where the members are not known."""
    changes = steps(tables.registrations, tables.log_gaps, tables.known).select(
        *GROUP, F.col("zxid").alias("at"), "step"
    )
    points = rows.withColumn("at", F.col(zxid)).withColumn("point", F.lit(True))
    both = points.unionByName(changes, allowMissingColumns=True)
    order = (
        Window.partitionBy(*GROUP)
        .orderBy(F.col("at"), F.col("point").asc_nulls_last())
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    count = F.coalesce(F.sum("step").over(order), F.lit(0))
    known = known_at(F.col("at"), tables.log_gaps, tables.known)
    both = both.withColumn("alive", F.when(known, count))
    return both.where("point").drop("at", "point", "step")


def host_of(member_name: str = "member") -> Column:
    """The host in a generated consumer id (``group_host-milliseconds-8 digits``); empty for other
    ids."""
    return F.expr(
        f"regexp_extract(substring({member_name}, length(`group`) + 2), "
        r"r'(?s)\A(.+)-[0-9]{13}-[0-9a-f]{1,8}\z', 1)"
    )


def who(session_name: str = "session", member_name: str = "member") -> Column:
    """``Member M (host H, session 0x1)``; null if the member is unknown.

    The host is taken from a generated consumer id: ``group_host-milliseconds-8 digits``.
    """
    named = host_of(member_name)
    host = F.when(named != "", F.concat(F.lit("host "), named, F.lit(", "))).otherwise("")
    return F.concat(
        F.lit("Member "), F.col(member_name), F.lit(" ("), host, F.lit("session "),
        session(session_name), F.lit(")"),
    )  # fmt: skip
