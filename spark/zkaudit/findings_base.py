"""What all rules share: limits, the tables they look at, and how a finding is put together.

Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window, functions as f

from zkaudit.staging import Hole, known_at
from zkaudit.tables_build import steps

SEVERITIES = ("critical", "high", "medium", "low", "info")
GROUP = ("chroot", "group")
PARTITION = (*GROUP, "topic", "partition")


@dataclass(frozen=True, slots=True)
class Limits:
    """From when on something is a finding. Times by the leader's clock."""

    gap_seconds: float = 30.0
    """A partition without owner while members live."""
    storm_rebalances: int = 10
    """Rebalances of one group within ``storm_seconds``."""
    storm_seconds: float = 600.0
    contention: int = 20
    """Refused claims in one rebalance."""
    view_seconds: float = 30.0
    """Two members hold different views of the group."""
    skew_seconds: float = 1.0
    """Clocks of members' machines may differ by this much: a shorter overlap is none."""
    herd_members: int = 50
    """Members told of one change."""


@dataclass(frozen=True)
class Tables:
    """The tables that findings are made from, as ``zkaudit.tables`` describes them."""

    registrations: DataFrame
    ownership: DataFrame
    commits: DataFrame
    membership: DataFrame
    failed_claims: DataFrame
    rebalances: DataFrame
    moves: DataFrame
    partitions: DataFrame
    herds: DataFrame
    deliveries: DataFrame
    views: DataFrame
    sessions: DataFrame
    end: DataFrame
    """One row: zxid and time of the last transaction of the history."""
    known: tuple[int | None, ...] = (0,)
    """For each stretch between holes the zxid from which on every ephemeral is known, as
    ``job_input.known`` returns it."""
    holes: tuple[Hole, ...] = ()
    """Where transactions are missing, as ``Stage.holes``."""


def text(name: str | Column) -> Column:
    """A value as text for a sentence; ``?`` when there is none."""
    return f.coalesce((f.col(name) if isinstance(name, str) else name).cast("string"), f.lit("?"))


def session(name: str) -> Column:
    """A session as ZooKeeper prints it."""
    return f.concat(f.lit("0x"), f.lower(f.hex(f.col(name))))


def tp() -> Column:
    """``topic-partition``."""
    return f.concat(text("topic"), f.lit("-"), text("partition"))


def row(
    table: str, zxid: str | None, idx: str | None, session: str | None, what: Column | str
) -> Column:
    """One row of evidence, from the columns of these names; no name: null."""
    return f.struct(
        f.lit(table).alias("table"),
        (f.col(zxid) if zxid else f.lit(None)).cast("bigint").alias("zxid"),
        (f.col(idx) if idx else f.lit(None)).cast("int").alias("idx"),
        (f.col(session) if session else f.lit(None)).cast("bigint").alias("session"),
        (f.lit(what) if isinstance(what, str) else what).cast("string").alias("what"),
    )


def made(
    frame: DataFrame,
    severity: Column | str,
    kind: Column | str,
    basis: Column | str,
    *sentence: Column | str,
) -> DataFrame:
    """Add the columns that every finding has; ``evidence`` must be there."""
    words = [f.lit(part) if isinstance(part, str) else part for part in sentence]
    return frame.withColumns(
        {
            "severity": f.lit(severity) if isinstance(severity, str) else severity,
            "kind": f.lit(kind) if isinstance(kind, str) else kind,
            "basis": f.lit(basis) if isinstance(basis, str) else basis,
            "sentence": f.concat(*words),
        }
    )


def writers(tables: Tables) -> DataFrame:
    """Which member a session stood for in a group: from its registration, else from its claims."""
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
        .agg(f.min("member").alias("member"))
    )


def alive(tables: Tables, rows: DataFrame, zxid: str) -> DataFrame:
    """Add ``alive``: registrations of the group alive just before ``zxid`` of each row; null where
    the members are not known."""
    changes = steps(tables.registrations, tables.holes).select(
        *GROUP, f.col("zxid").alias("at"), "step"
    )
    points = rows.withColumn("at", f.col(zxid)).withColumn("point", f.lit(True))
    both = points.unionByName(changes, allowMissingColumns=True)
    order = (
        Window.partitionBy(*GROUP)
        .orderBy(f.col("at"), f.col("point").asc_nulls_last())
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    count = f.coalesce(f.sum("step").over(order), f.lit(0))
    known = known_at(f.col("at"), tables.holes, tables.known)
    both = both.withColumn("alive", f.when(known, count))
    return both.where("point").drop("at", "point", "step")


def who(session_name: str = "session", member_name: str = "member") -> Column:
    """``Member M (host H, session 0x1)``; null where there is no member.

    The host is that of a generated consumer id: ``group_host-milliseconds-8 digits``.
    """
    named = f.expr(
        f"regexp_extract(substring({member_name}, length(`group`) + 2), "
        r"r'(?s)\A(.+)-[0-9]{13}-[0-9a-f]{1,8}\z', 1)"
    )
    host = f.when(named != "", f.concat(f.lit("host "), named, f.lit(", "))).otherwise("")
    return f.concat(
        f.lit("Member "), f.col(member_name), f.lit(" ("), host, f.lit("session "),
        session(session_name), f.lit(")"),
    )  # fmt: skip
