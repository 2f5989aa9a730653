"""An audit in a session of Spark Connect, whose client has no JVM."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from zkaudit.job.output import load

from tests.audit.answers import same
from tests.audit.conftest import Judged
from tests.audit.corpus.incidents import LIMITS
from tests.support.small_spark import DRIVER, PLANS

pytestmark = pytest.mark.timeout(600)
_SCRIPT = f"""
import shutil
import sys
from pathlib import Path

import zkaudit
from pyspark.sql import SparkSession
from zkaudit.errors import AuditError, InputMissingError
from zkaudit.tables import catalog

builder = SparkSession.builder.remote("local[2]")
builder = builder.config("spark.connect.grpc.binding.address", "127.0.0.1")
spark = builder.config(map={DRIVER | PLANS!r}).getOrCreate()
assert type(spark).__module__.startswith("pyspark.sql.connect")
logs, out, lake, damaged = sys.argv[1:]
tables = zkaudit.audit(spark, logs, out, **{LIMITS!r})
assert tables["findings"].count() > 20
every = catalog.TABLES
catalog.TABLES = (catalog.SESSIONS, catalog.FINDINGS)  # each takes seconds
print(zkaudit.export(spark, out, lake, run_id="monday"))
for again in (lambda: zkaudit.export(spark, out, lake),
              lambda: zkaudit.audit(spark, logs, out, group="nosuch"),
              lambda: zkaudit.audit(spark, logs, out, group="("),
              lambda: zkaudit.export(spark, out, "nosuch://x/y")):
    try:
        again()
    except (AuditError, InputMissingError) as error:
        print(error)
catalog.TABLES = every
(log,) = Path(shutil.copytree(logs, damaged)).glob("log.*")
content = bytearray(log.read_bytes())
content[len(content) // 2] ^= 1
log.write_bytes(content)
try:
    zkaudit.audit(spark, damaged, out)
except AuditError as error:
    print(error)
spark.stop()
"""


def test_an_audit_in_a_session_of_spark_connect(
    spark: SparkSession, judged: Judged, tmp_path: Path
) -> None:
    """It has the tables that a classic session writes, and its exports and errors."""
    places = [str(tmp_path / name) for name in ("out", "lake", "damaged")]
    ran = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(judged.logs), *places],
        # Servers of tests have free ports.
        env=os.environ | {"SPARK_TESTING": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    same(judged.place / "whole", tmp_path / "out")
    done, *errors = ran.stdout.splitlines()
    assert done == "monday"
    for error, words in zip(
        errors,
        (
            "already exists: add rows with --append",
            "'nosuch'",
            "'(': not a valid Java regex",
            "this session cannot write there: add the jar of the file system",
            "checksum",
        ),
        strict=True,
    ):
        assert words in error
    exported = spark.read.parquet(str(tmp_path / "lake" / "findings"))
    assert exported.count() == load(spark, tmp_path / "out")[1]["findings"].count() > 20
