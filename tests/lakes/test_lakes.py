"""Tables of a real audit in Delta and Iceberg, on the oldest Spark that zkaudit supports.

``make test-spark`` runs this. There are jars of both formats for that Spark.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zkaudit
from pyspark.sql import SparkSession
from zkaudit.errors import AuditError
from zkaudit.job import audit as job
from zkaudit.job.export import RUNS, Target, export
from zkaudit.job.output import load

from tests.maven import fetched
from tests.support.small_spark import DRIVER

GENERATOR = Path(__file__).parents[1] / "bench" / "audit_logs.py"
JARS = Path(__file__).with_name("jars.xml")
pytestmark = pytest.mark.timeout(900)  # Maven may fetch the jars, and Spark compiles long


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with both formats. ``lake`` is a catalog of Iceberg, the default one of Delta."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    folder = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.jars": ",".join(map(str, fetched(JARS, "lakes").glob("*.jar"))),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(folder / "lake"),
        "spark.databricks.delta.snapshotPartitions": "1",  # each write would begin 50 tasks
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
    }
    builder = SparkSession.builder.master("local[2]").config(map=DRIVER | settings)
    session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="module")
def audit(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An audit of generated logs."""
    folder = tmp_path_factory.mktemp("audit")
    logs, out = folder / "logs", folder / "out"
    subprocess.run([sys.executable, GENERATOR, logs, "5000", "1000"], check=True)
    job.run(spark, job.Options([str(logs)], str(out)))
    return out


def rows(frame: Any) -> list[str]:
    """All rows of a frame in some order, as text."""
    return sorted(repr(row) for row in frame.collect())


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_all_tables(spark: SparkSession, audit: Path, form: str, tmp_path: Path) -> None:
    """What was exported is what the audit has. Rows of a second run are added, those of a run that
    is there are refused, and a table can be replaced."""
    if form == "delta":
        target = Target(str(tmp_path / "lake"), None, "delta")
        given: dict[str, Any] = {"to": tmp_path / "lake"}
    else:
        spark.sql("create namespace lake.audits")
        target = Target(None, "lake.audits", "iceberg")
        given = {"catalog": "lake.audits"}
    done = export(spark, audit, target, run_id="one")
    _, tables = load(spark, audit)
    assert done.rows["commits"] > 1_000
    for name, table in tables.items():
        exported = target.read(spark, name).drop("run_id", "run_time")
        assert rows(exported) == rows(table), name

    with pytest.raises(AuditError, match="already exists: add rows with --append"):
        export(spark, audit, target)
    assert zkaudit.export(spark, audit, format=form, append=True, run_id="two", **given) == "two"
    with pytest.raises(AuditError, match="already has rows of run one, so nothing was written"):
        export(spark, audit, target, "append", "one")
    found = target.read(spark, "commits").groupBy("run_id").count().collect()
    assert dict(map(tuple, found)) == dict.fromkeys(("one", "two"), done.rows["commits"])
    export(spark, audit, target, "overwrite", "three")
    assert [row["run_id"] for row in target.read(spark, RUNS).collect()] == ["three"]
    assert rows(target.read(spark, "sessions").drop("run_id", "run_time")) == rows(
        tables["sessions"]
    )
