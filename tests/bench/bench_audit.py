"""Measure the audit at scale: 10,000,000 transactions in 2 GiB, 5,000,000 intervals, the page.

Spark runs as ``local[2]``. Each ratio is a target divided by the measured time, so 1 or more means
that the target is reached. These are the targets:

- The whole audit with its report takes 120 s.
- Four times the transactions take at most five times as long. With ``BENCH_LARGE=1`` that
  compares 40,000,000 with 10,000,000, otherwise 10,000,000 with 2,500,000.
- Overlaps take 15 s, and the longest task of their last stage at most three times as long as the
  median task.
- Chromium draws a report of 1,000,000 intervals in 3 s, including its own start.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession, functions as F
from zkaudit.findings.journals import overlaps
from zkaudit.job import audit as job, spark as job_spark
from zkaudit.job.output import load
from zkaudit.report import page as report

sys.path.insert(0, str(Path(__file__).parent))
from audit_logs import write_history
from browser import opened

TEN = 10_000_000
INTERVALS = 5_000_000
KEYS = 20_000


def session(events: Path) -> SparkSession:
    """Spark on two cores, driver and executor in one JVM of 2 GiB."""
    events.mkdir()
    settings = {
        "spark.driver.memory": "2g",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
        "spark.ui.showConsoleProgress": "false",
    }
    words = [f"--conf {name}={value}" for name, value in settings.items()]
    os.environ["PYSPARK_SUBMIT_ARGS"] = " ".join([*words, "pyspark-shell"])
    return job_spark.session("local[2]")


def audit(spark: SparkSession, logs: Path, out: Path) -> float:
    """Seconds of a whole audit and its report."""
    begin = time.perf_counter()
    job.run(spark, job.Options([str(logs)], str(out)))
    report.write(spark, out)
    return time.perf_counter() - begin


def intervals(spark: SparkSession, place: str) -> None:
    """Write intervals of 20,000 keys. One key has a fifth of them, and a few intervals overlap."""
    number = F.col("id")
    hot = F.pmod(F.xxhash64(number), F.lit(5)) == 0
    key = F.when(hot, F.lit(0)).otherwise(F.pmod(F.xxhash64(number, F.lit(1)), F.lit(KEYS - 1)) + 1)
    begin = number * 1000
    spark.range(INTERVALS).select(
        key.alias("key"),
        F.concat(F.lit("member-"), F.pmod(F.xxhash64(number, F.lit(2)), F.lit(50))).alias("owner"),
        begin.alias("a"),
        (begin + F.pmod(F.xxhash64(number, F.lit(3)), F.when(hot, 1010).otherwise(200_000))).alias(
            "b"
        ),
        number.alias("zxid"),
    ).write.parquet(place)


def tasks(events: Path, since: float) -> list[float]:
    """Seconds of each task in the longest stage that began after ``since``."""
    stages: dict[int, list[float]] = {}
    for place in events.rglob("*"):
        # The last line may be incomplete.
        for line in place.read_text().split("\n")[:-1] if place.is_file() else ():
            event = json.loads(line)
            if event["Event"] == "SparkListenerTaskEnd":
                info = event["Task Info"]
                if info["Launch Time"] >= since * 1000:
                    seconds = (info["Finish Time"] - info["Launch Time"]) / 1000
                    stages.setdefault(event["Stage ID"], []).append(seconds)
    return max(stages.values(), key=max)


def run(rounds: int) -> Iterator[tuple[str, str, list[float]]]:
    """Yield case, figure and the value of each round."""
    with tempfile.TemporaryDirectory(prefix="bench-audit-") as name:
        folder = Path(name)
        small, large = (TEN, 4 * TEN) if os.environ.get("BENCH_LARGE") else (TEN // 4, TEN)
        write_history(folder / "small", small)
        write_history(folder / "large", large)
        write_history(folder / "many", 3_400_000, churn=1 / 150)
        spark = session(folder / "events")
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

            place = str(folder / "intervals")
            intervals(spark, place)
            seconds, shares = [], []
            for _ in range(rounds):
                since, begin = time.time(), time.perf_counter()
                count = overlaps(spark.read.parquet(place), ("key",), "owner", ("zxid",)).count()
                seconds.append(time.perf_counter() - begin)
                took = tasks(folder / "events", since)
                shares.append(max(took) / statistics.median(took))
                assert count > 1000
            yield "overlaps of 5,000,000", "seconds", seconds
            yield "overlaps, 15 s", "ratio", [15 / value for value in seconds]
            yield "overlaps, longest task/median", "times", shares
            yield "overlaps, 3 x the median", "ratio", [3 / value for value in shares]

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
