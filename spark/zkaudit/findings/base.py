"""Code that all rules share: the tables they read, and functions that build a finding.

Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, functions as F

from zkaudit.group import LogGap

GROUP = ("chroot", "group")


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
    has_journals: bool = False
    """Members' journals were given."""
    log_gaps: tuple[LogGap, ...] = ()
    """Where transactions are missing, as in ``Stage.log_gaps``."""
    moving: DataFrame | None = None
    """The groups that have a mode, with ``moves`` true (``timeline.with_mode``)."""
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
