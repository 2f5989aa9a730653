"""The directory ``OUT`` of an audit. Driver's thread; executors write the tables.

``tables/<name>`` (Parquet), ``summary.json``, ``report.html``, and ``staging`` while it runs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from zkaudit.errors import AuditError, InputMissingError
from zkaudit.tables import catalog


def prepare(place: str) -> Path:
    """Make the directory of an audit. Raises AuditError when something else is in it."""
    out = Path(place)
    if out.exists() and not out.is_dir():
        raise AuditError(f"{out}: is no directory: choose another --out")
    if out.exists() and any(out.iterdir()) and not (out / "summary.json").is_file():
        raise AuditError(f"{out}: is not empty and holds no audit: choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    if not (out / "summary.json").exists():
        (out / "summary.json").write_text("{}")
    return out


@contextmanager
def staged(out: Path) -> Iterator[None]:
    """Remove what is written on the way, however it ends."""
    try:
        yield
    finally:
        shutil.rmtree(out / "staging", ignore_errors=True)


def kept(out: Path, name: str, frame: DataFrame) -> DataFrame:
    """Write a frame below ``out`` and return what was written."""
    place = str(out / name)
    frame.write.mode("overwrite").parquet(place)
    return frame.sparkSession.read.schema(frame.schema).parquet(place)


def load(spark: SparkSession, out: str | Path) -> tuple[dict[str, Any], dict[str, DataFrame]]:
    """Return the summary and the tables of an audit. Raises InputMissingError."""
    place = Path(out)
    try:
        summary: dict[str, Any] = json.loads((place / "summary.json").read_text())
    except (OSError, ValueError) as error:
        raise InputMissingError(f"{out}: holds no audit: {error}") from None
    if "findings" not in summary:
        raise InputMissingError(f"{out}: the audit did not finish: run it again")
    try:
        frames = {
            t.name: spark.read.schema(t.spark_type()).parquet(str(place / "tables" / t.name))
            for t in catalog.TABLES
        }
    except PySparkException as error:
        reason = str(error).partition("\n")[0]
        raise InputMissingError(f"{out}: holds no whole audit: run it again: {reason}") from None
    return summary, frames
