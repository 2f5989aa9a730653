"""All findings, derived from the tables: each with a severity, evidence and a sentence.

A finding is proven by the logs or labelled ``inferred``. No finding depends on events in a log
gap. An owner znode is a single path and never has two owners, so overlaps need other evidence,
such as a commit. Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame

from zkaudit.tables.catalog import FINDINGS

PLACE = ("id", "server", "file", "position", "address")
"""Columns that ``places`` fills in later."""


def findings(of_groups: DataFrame, records: Sequence[DataFrame], has_journals: bool) -> DataFrame:
    """Return table ``findings``.

    Args:
        of_groups: the findings of the rules in ``zkaudit.group.rules``, which use ZooKeeper's logs.
        records: the findings of ``outside.from_records``.
        has_journals: whether there are members' journals.
    """
    if has_journals:  # they show more of herds than the fold's rule knows
        of_groups = of_groups.where("kind != 'herd'")
    return reduce(DataFrame.unionByName, map(_fit, [of_groups, *records]))


def _fit(part: DataFrame) -> DataFrame:
    """Shape the rows as the table. Missing columns are null."""
    missing = {c.name for c in FINDINGS.columns} - set(part.columns)
    return FINDINGS.shape(part, missing.union(PLACE))
