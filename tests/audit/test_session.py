"""The Spark session that zkaudit starts when none is running."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.audit.corpus.judge import directories

_PROGRAM = """
import sys
from zkaudit.cli import run
from zkaudit.job.spark import session
spark = session("local[1]", small=True)
print(spark.conf.get("spark.sql.shuffle.partitions"))
java = spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
print(*(option for option in java if option in ("-Dmine=1", "-XX:TieredStopAtLevel=1")))
print(run(["run", "--master", "local[1]", "--zookeeper-logs", sys.argv[1], "--out", "out"]))
"""


def test_settings_of_the_user(tmp_path: Path) -> None:
    """``spark-defaults.conf`` counts, and zkaudit adds its Java options to the user's. Spark plans
    the audit on the driver with the executors' Python. If it cannot run there, the error names
    it."""
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.sql.shuffle.partitions 3\nspark.driver.extraJavaOptions -Dmine=1\n"
    )
    settings = {
        "SPARK_CONF_DIR": str(tmp_path),
        "PYSPARK_SUBMIT_ARGS": "pyspark-shell",
        "PYSPARK_PYTHON": "./environment/bin/python",
    }
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(directories(tmp_path)["whole"])],
        cwd=tmp_path,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert ran.stdout.split() == ["3", "-XX:TieredStopAtLevel=1", "-Dmine=1", "1"], ran.stderr
    assert "error: PYSPARK_PYTHON=./environment/bin/python: Spark cannot run it" in ran.stderr
