"""All findings, derived from the tables: each with a severity, evidence and a sentence.

A finding is proven by the logs or labelled ``inferred``. None depends on what happened in a log
gap. An owner znode is a single path and never has two owners, so overlaps need other evidence, such
as a commit. Runs in the driver, in the threads of ``job.spark.at_once``. Only builds DataFrames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce

from pyspark.sql import DataFrame

from zkaudit.findings.base import Tables
from zkaudit.findings.load import large_herds
from zkaudit.findings.outside import from_records
from zkaudit.limits import Limits
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
        "owners": lambda: _fitted(
            *([] if tables.of_groups is None else [tables.of_groups]),
        ),
        "members": lambda: _fitted(
            large_herds(tables, limits),
            *(keep("of_records", part) for part in from_records(tables, limits)),
        ),
    }


def union(frames: Iterable[DataFrame]) -> DataFrame:
    """The rows of all frames, which have the same columns."""
    return reduce(DataFrame.unionByName, frames)


def _fitted(*found: DataFrame) -> DataFrame:
    return union(map(_fit, found))


def _fit(part: DataFrame) -> DataFrame:
    """Shape the rows as the table; columns that a finding does not have are null."""
    missing = {c.name for c in FINDINGS.columns} - set(part.columns)
    return FINDINGS.shape(part, missing.union(PLACE))
