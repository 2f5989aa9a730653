"""All findings, derived from the tables: each with a severity, evidence and a sentence.

A finding is proven by the logs or labelled ``inferred``. None depends on what happened in a log
gap. An owner znode is a single path and never has two owners, so overlaps need other evidence, such
as a commit. Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce

from pyspark.sql import DataFrame, functions as F

from zkaudit.findings.base import Tables
from zkaudit.findings.coordinator import coordinator
from zkaudit.findings.journals import (
    commits_past_delivery,
    delivery_gaps,
    double_deliveries,
    offset_resets,
    views_apart,
)
from zkaudit.findings.limits import Limits
from zkaudit.findings.load import contention, large_herds, storms
from zkaudit.findings.members import flapping, stalled
from zkaudit.findings.migrations import migrations
from zkaudit.findings.offsets import commits_past_moves, jumps, offsets, recreated
from zkaudit.findings.ownership import foreign_releases, shares, two_sessions, unclaimed, unowned
from zkaudit.tables.catalog import FINDINGS

LASTING = (
    "orphan partition",
    "member without its share",
    "one consumer id on two sessions",
    "legacy member in a locked group",
    "migration stands still",
)
"""Kinds of findings that have no end if they last to the end of the logs."""

PLACE = ("server", "file", "position", "address")
"""Columns that ``places`` fills in later."""


def findings(
    tables: Tables,
    limits: Limits,
    keep: Callable[[str, DataFrame], DataFrame] = lambda _, frame: frame,
) -> DataFrame:
    """Table ``findings``. ``keep`` stores a frame that is used several times under a name, and
    returns the stored frame."""
    parts = [
        *offsets(tables, keep),
        recreated(tables),
        jumps(tables, limits, keep),
        commits_past_moves(tables),
        foreign_releases(tables),
        two_sessions(tables),
        *unowned(tables, limits),
        unclaimed(tables, limits),
        *shares(tables, limits),
        storms(tables, limits),
        contention(tables, limits),
        flapping(tables, limits),
        stalled(tables, limits),
        large_herds(tables, limits),
        *double_deliveries(tables, limits),
        delivery_gaps(tables),
        offset_resets(tables),
        commits_past_delivery(tables),
        views_apart(tables, limits),
        *migrations(tables, limits),
        *coordinator(tables, limits, keep),
    ]
    return reduce(DataFrame.unionByName, map(_fit, parts))


def waiting(tables: Tables, limits: Limits, found: DataFrame) -> DataFrame:
    """Chroot and group of groups whose findings would change without any transaction in the group,
    because the logs continue elsewhere. ``found``: ``findings(tables, limits)``.

    A rule that looks at the time at which the history ends finds more, or longer times, the later
    that is. So these rules are asked about a time that never comes. A group without a mode for
    which that shows nothing new has the same findings whenever the history ends.
    """
    never = tables.end.withColumn("time", F.col("time") + F.expr("interval 1000 years"))
    later = replace(tables, end=never)
    parts = [
        *unowned(later, limits),
        unclaimed(later, limits),
        *shares(later, limits),
        stalled(later, limits),
    ]
    shown = F.xxhash64("chroot", "group", "kind", "zxid", "sentence").alias("shown")
    every = reduce(DataFrame.unionByName, map(_fit, parts)).select("chroot", "group", shown)
    return every.join(found.select(shown), "shown", "left_anti").select("chroot", "group")


def _fit(part: DataFrame) -> DataFrame:
    """Shape the rows as the table; columns that a finding does not have are null."""
    missing = {c.name for c in FINDINGS.columns} - set(part.columns)
    return FINDINGS.shape(part, missing.union(PLACE))
