"""The Spark session that zkaudit starts when none is running."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.audit.corpus.judge import directories

_PRINTS = """
from zkaudit.job.spark import session
spark = session("local[1]", small=True)
print(spark.conf.get("spark.sql.shuffle.partitions"))
java = spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
print(*(option for option in java if option in ("-Dmine=1", "-XX:TieredStopAtLevel=1")))
"""


def test_a_local_session_keeps_the_users_settings(tmp_path: Path) -> None:
    """``spark-defaults.conf`` counts, and zkaudit adds its Java options to the user's."""
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.sql.shuffle.partitions 3\nspark.driver.extraJavaOptions -Dmine=1\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", _PRINTS],
        env=os.environ | {"SPARK_CONF_DIR": str(tmp_path), "PYSPARK_SUBMIT_ARGS": "pyspark-shell"},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert ran.stdout.split() == ["3", "-XX:TieredStopAtLevel=1", "-Dmine=1"], ran.stderr


def test_a_python_that_the_driver_cannot_run_is_named(tmp_path: Path) -> None:
    """Spark plans the audit on the driver with the executors' Python. The error names it."""
    argv = [sys.executable, "-m", "zkaudit", "run", "--master", "local[1]"]
    ran = subprocess.run(
        [*argv, "--zookeeper-logs", str(directories(tmp_path)["whole"]), "--out", "out"],
        cwd=tmp_path,
        env=os.environ | {"PYSPARK_PYTHON": "./environment/bin/python"},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert ran.returncode == 1, ran.stderr
    assert "error: PYSPARK_PYTHON=./environment/bin/python: Spark cannot run it" in ran.stderr
