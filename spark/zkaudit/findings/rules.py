"""All findings, derived from the tables: each with a severity, evidence and a sentence.

A finding is proven by the logs or labelled ``inferred``. None depends on what happened in a log
gap. An owner znode is a single path and never has two owners, so overlaps need other evidence, such
as a commit. Driver's thread. Only builds DataFrames.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import DataFrame

from zkaudit.findings.base import Tables
from zkaudit.findings.outside import from_records
from zkaudit.limits import Limits
from zkaudit.tables.catalog import FINDINGS

PLACE = ("id", "server", "file", "position", "address")
"""Columns that ``places`` fills in later."""


def findings(tables: Tables, limits: Limits) -> DataFrame:
    """Return table ``findings``."""
    parts = [] if tables.of_groups is None else [tables.of_groups]
    if tables.has_journals:  # they show more of herds than the fold's rule knows
        parts = [part.where("kind != 'herd'") for part in parts]
    return reduce(DataFrame.unionByName, map(_fit, [*parts, *from_records(tables, limits)]))


def _fit(part: DataFrame) -> DataFrame:
    """Shape the rows as the table; columns that a finding does not have are null."""
    missing = {c.name for c in FINDINGS.columns} - set(part.columns)
    return FINDINGS.shape(part, missing.union(PLACE))
