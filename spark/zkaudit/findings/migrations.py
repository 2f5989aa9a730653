"""Findings about the modes of groups that migrated while they ran.

The modes are checked in plain Python (``findings.modes``). A history without modes adds nothing to
the plan. Owners under both coordinations: ``findings.coordinator``. Runs in the driver's thread and
only builds DataFrames.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from zkaudit.findings.base import Tables
from zkaudit.findings.modes import judge
from zkaudit.limits import Limits
from zkaudit.tables.catalog import FINDINGS
from zkaudit.tables.migrations import Moving, as_frame, time_of


def migrations(tables: Tables, limits: Limits) -> list[DataFrame]:
    """All findings about modes. If no group has a mode there are none, at no cost."""
    found = list(_judged(tables.moving, limits, tables))
    spark = tables.end.sparkSession
    return [as_frame(spark, FINDINGS.spark_type(), found)] if found else []


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
