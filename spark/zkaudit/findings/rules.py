"""All findings, derived from the tables: each with a severity, evidence and a sentence.

A finding is proven by the logs or labelled ``inferred``. None depends on what happened in a log
gap. An owner znode is a single path and never has two owners, so overlaps need other evidence, such
as a commit. Runs in the driver, in the threads of ``job.spark.at_once``. Only builds DataFrames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import reduce

from pyspark.sql import Column, DataFrame, functions as F

from zkaudit.findings.base import Tables
from zkaudit.findings.coordinator import coordinator
from zkaudit.findings.journals import (
    commits_past_delivery,
    delivery_gaps,
    double_deliveries,
    offset_resets,
    views_apart,
)
from zkaudit.findings.layouts import foreign_owners
from zkaudit.findings.limits import Limits
from zkaudit.findings.load import contention, large_herds, storms
from zkaudit.findings.members import flapping, stalled
from zkaudit.findings.migrations import migrations
from zkaudit.findings.moves import commits_past_moves
from zkaudit.findings.offsets import offsets
from zkaudit.findings.ownership import foreign_releases, shares, two_sessions, unclaimed, unowned
from zkaudit.findings.resets import jumps, recreated
from zkaudit.tables.catalog import FINDINGS

PLACE = ("id", "server", "file", "position", "address")
"""Columns that ``places`` fills in later."""


def findings(
    tables: Tables,
    limits: Limits,
    keep: Callable[[str, DataFrame], DataFrame] = lambda _, frame: frame,
) -> DataFrame:
    """Table ``findings``. ``keep`` stores a frame that is used several times under a name, and
    returns the stored frame."""
    return union(part() for part in parts(tables, limits, keep).values())


def parts(
    tables: Tables, limits: Limits, keep: Callable[[str, DataFrame], DataFrame]
) -> dict[str, Callable[[], DataFrame]]:
    """Functions that return the parts of ``findings``, each with a name. They take about as long as
    one another, and do not depend on one another."""
    return {
        "offsets": lambda: _fitted(
            *offsets(tables, keep),
            recreated(tables),
            jumps(tables, limits, keep),
            commits_past_moves(tables),
        ),
        "owners": lambda: _fitted(
            *_until_the_end(tables, limits),
            foreign_releases(tables),
            *foreign_owners(tables),
            two_sessions(tables),
        ),
        "members": lambda: _fitted(
            storms(tables, limits),
            contention(tables, limits),
            flapping(tables, limits),
            large_herds(tables, limits),
            *double_deliveries(tables, limits),
            delivery_gaps(tables),
            offset_resets(tables),
            commits_past_delivery(tables),
            views_apart(tables, limits),
            *migrations(tables, limits),
            *coordinator(tables, limits, keep),
        ),
    }


def union(frames: Iterable[DataFrame]) -> DataFrame:
    """The rows of all frames, which have the same columns."""
    return reduce(DataFrame.unionByName, frames)


def _until_the_end(tables: Tables, limits: Limits) -> Sequence[DataFrame]:
    """Findings that depend on the time at which the history ends."""
    return (
        *unowned(tables, limits),
        unclaimed(tables, limits),
        *shares(tables, limits),
        stalled(tables, limits),
    )


def later(tables: Tables, limits: Limits) -> DataFrame:
    """What would be found at a time that never comes: chroot, group, and a hash of the finding.

    A rule that looks at the time at which the history ends finds more, or longer times, the later
    that is. Only such rules are asked.
    """
    never = tables.end.withColumn("time", F.col("time") + F.expr("interval 1000 years"))
    found = _fitted(*_until_the_end(replace(tables, end=never), limits))
    return found.select("chroot", "group", _shown())


def waiting(found: DataFrame, later: DataFrame) -> DataFrame:
    """Chroot and group of groups whose findings would change without any transaction in the group,
    because the logs continue elsewhere. ``found``: all findings. ``later``: rows of ``later()``.

    A group without a mode for which the later time shows nothing new has the same findings whenever
    the history ends.
    """
    return later.join(found.select(_shown()), "shown", "left_anti").select("chroot", "group")


def _shown() -> Column:
    return F.xxhash64("chroot", "group", "kind", "zxid", "sentence").alias("shown")


def _fitted(*found: DataFrame) -> DataFrame:
    return union(map(_fit, found))


def _fit(part: DataFrame) -> DataFrame:
    """Shape the rows as the table; columns that a finding does not have are null."""
    missing = {c.name for c in FINDINGS.columns} - set(part.columns)
    return FINDINGS.shape(part, missing.union(PLACE))
