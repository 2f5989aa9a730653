"""The Spark session that zkaudit starts when none is running."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_PRINTS = """
from zkaudit.job.spark import session
print(session("local[1]").conf.get("spark.sql.shuffle.partitions"))
"""


def test_a_local_session_keeps_the_users_number_of_shuffle_partitions(tmp_path: Path) -> None:
    """``spark-defaults.conf`` counts; zkaudit chooses a number only if the user has chosen none."""
    (tmp_path / "spark-defaults.conf").write_text("spark.sql.shuffle.partitions 3\n")
    ran = subprocess.run(
        [sys.executable, "-c", _PRINTS],
        env=os.environ | {"SPARK_CONF_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert ran.stdout.split() == ["3"], ran.stderr
