"""Measure the audit at scale: 10,000,000 transactions in 2 GiB, and the page.

Spark runs as ``local[2]``. Each ratio is a target divided by the measured time, so 1 or more means
that the target is reached. These are the targets:

- The whole audit with its report takes 120 s.
- Four times the transactions take at most five times as long. With ``BENCH_LARGE=1`` that
  compares 40,000,000 with 10,000,000, otherwise 10,000,000 with 2,500,000.
- Chromium draws a report of 1,000,000 intervals in 3 s, including its own start.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession
from zkaudit.job import audit as job, spark as job_spark
from zkaudit.job.output import load
from zkaudit.report import page as report

sys.path.insert(0, str(Path(__file__).parent))
from audit_logs import write_history
from browser import opened

TEN = 10_000_000


def session() -> SparkSession:
    """Spark on two cores, driver and executor in one JVM of 2 GiB."""
    settings = "--conf spark.driver.memory=2g --conf spark.ui.showConsoleProgress=false"
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{settings} pyspark-shell"
    return job_spark.session("local[2]")


def audit(spark: SparkSession, logs: Path, out: Path) -> float:
    """Seconds of a whole audit and its report."""
    begin = time.perf_counter()
    job.run(spark, job.Options([str(logs)], str(out)))
    report.write(out)
    return time.perf_counter() - begin


def run(rounds: int) -> Iterator[tuple[str, str, list[float]]]:
    """Yield case, figure and the value of each round."""
    with tempfile.TemporaryDirectory(prefix="bench-audit-") as name:
        folder = Path(name)
        small, large = (TEN, 4 * TEN) if os.environ.get("BENCH_LARGE") else (TEN // 4, TEN)
        write_history(folder / "small", small)
        write_history(folder / "large", large)
        write_history(folder / "many", 3_400_000, churn=1 / 150)
        spark = session()
        try:
            audit(spark, folder / "small", folder / "out")  # warms up the JVM
            low = [audit(spark, folder / "small", folder / "out") for _ in range(rounds)]
            high = [audit(spark, folder / "large", folder / "out") for _ in range(rounds)]
            yield f"audit of {small:,}", "seconds", low
            yield f"audit of {large:,}", "seconds", high
            target = 120 * large / TEN
            yield f"audit, {target:.0f} s", "ratio", [target / seconds for seconds in high]
            steps = [5 * a / b for a, b in zip(low, high, strict=True)]
            yield "audit, 4 x in 5 x the time", "ratio", steps
            shutil.rmtree(folder / "large")

            audit(spark, folder / "many", folder / "out")
            summary, _ = load(spark, folder / "out")
            yield "intervals in the report", "intervals", [summary["intervals"]]
            page = folder / "out" / "report.html"
            yield "report", "bytes", [page.stat().st_size]
            opened(page, folder)  # Chromium creates its profile
            times = [opened(page, folder) for _ in range(rounds)]
            yield "report in Chromium", "seconds", times
            yield "report, 3 s", "ratio", [3 / value for value in times]
        finally:
            spark.stop()
