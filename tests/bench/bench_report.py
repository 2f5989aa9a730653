"""Measure the report: how long it takes to write, and how long Chromium takes to draw it.

The tables are generated as Parquet, so no audit runs. There are two of them:

- 1,000,000 intervals of 500 partitions, all of which the page contains.
- 100,000 groups with 2,000,000 intervals and 10,000,000 commits. A tenth of the groups has
  findings.

Chromium's time includes its own start. It ends when the page is drawn, at the second animation
frame after the page's script. It does not include the exit of Chromium, for which no reader waits.
The time of a zoom ends when the exact intervals are drawn. Each ratio is a target divided by the
measured time, so 1 or more means that the target is reached. The target for a drawn page is 3 s.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, functions as F
from zkaudit.job import spark as job_spark
from zkaudit.report import page as report
from zkaudit.tables import catalog

sys.path.insert(0, str(Path(__file__).parent))
from browser import opened, reported

TARGET: Final = 3.0
BEGIN: Final = 1_700_000_000
DAYS: Final = 30
SECONDS: Final = DAYS * 86_400
_KINDS: Final = (
    ("critical", "zombie commit"), ("high", "orphan partition"), ("medium", "unowned interval"),
    ("low", "flapping member"),
)  # fmt: skip
_ZOOM: Final = """
const begin = performance.now();
for (let i = 0; i < 6; i++) zoom(0.5);
const wait = () => {
  if (!exact) return setTimeout(wait, 1);
  const drawn = performance.now();
  drawTimeline();
  const again = performance.now();
  report([drawn - begin, again - drawn]);
};
wait();
"""


def _hash(column: Column, seed: int, most: int) -> Column:
    return F.pmod(F.xxhash64(column, F.lit(seed)), F.lit(most))


def _group(number: Column) -> dict[str, Column]:
    """Chroot and name of a group. Names are long and differ, as those of real groups do."""
    name = F.concat(
        F.lit("team-"), _hash(number, 1, 400), F.lit(".reader-"), F.hex(number), F.lit("-"),
        F.substring(F.hex(F.xxhash64(number)), 1, 6),
    )  # fmt: skip
    return {"chroot": F.lit(""), "group_id": name}


def write_tables(
    spark: SparkSession,
    out: Path,
    groups: int,
    partitions: int,
    lives: int,
    commits: int,
    buckets: int | None = None,
) -> None:
    """Write a finished audit. Each partition has had ``lives`` owners, one after another.

    ``buckets``: lay the tables out as a stream does.
    """
    place = out / "tables"

    def save(table: catalog.Table, frame: DataFrame) -> None:
        rest = [column.name for column in table.columns if column.name not in frame.columns]
        frame = table.shape(frame, rest)
        folder = place / table.name
        if buckets is None or "group_id" not in frame.columns:
            frame.write.parquet(str(folder))
            return
        number = F.pmod(F.xxhash64("chroot", "group_id"), F.lit(buckets)).cast("int")
        frame.withColumn("bucket", number).repartition("bucket").write.partitionBy(
            "bucket"
        ).parquet(str(out / "scratch"))
        folder.mkdir(parents=True)
        for part in (out / "scratch").glob("bucket=*/*.parquet"):
            part.rename(folder / f"bucket-{part.parent.name[7:]}-0.parquet")
        shutil.rmtree(out / "scratch")

    def at(second: Column) -> Column:
        return F.timestamp_seconds(second + BEGIN)

    of = F.col("id")
    count = groups * partitions * lives
    number = of % (groups * partitions)
    life = F.floor(of / (groups * partitions))
    length = SECONDS / lives
    member = F.concat(F.lit("host-"), _hash(of, 2, 8), F.lit("-"), number % groups)
    owned = spark.range(0, count, 1, 16).select(
        F.struct(*[value.alias(name) for name, value in _group(number % groups).items()]).alias(
            "g"
        ),
        F.lit("events").alias("topic"),
        F.floor(number / groups).alias("partition"),
        member.alias("member"),
        (of + 1).alias("start_zxid"),
        at((life + _hash(of, 8, 1000) / 10_000) * length).alias("start_time"),
        at((life + 1 - _hash(of, 9, 1000) / 10_000) * length).alias("end_time"),
        F.when(of % 7 == 0, "expired").otherwise("released").alias("ended"),
    )
    save(catalog.OWNERSHIP, owned.select("g.*", "*").repartition(16, "group_id", "partition"))
    group, offset = of % groups, F.floor(of / groups)
    writes = spark.range(0, commits, 1, 16).select(
        *[value.alias(name) for name, value in _group(group).items()],
        F.lit("events").alias("topic"),
        (offset % partitions).alias("partition"),
        F.lit("zookeeper").alias("store"),
        (of + 1).alias("zxid"),
        F.lit(0).alias("idx"),
        at(of * (SECONDS / max(1, commits))).alias("time"),
        of.alias("session"),
        offset.alias("committed_offset"),
        F.lit("commit").alias("kind"),
        F.lit("owner").alias("owner_state"),
    )
    save(catalog.COMMITS, writes.repartition(16, "group_id", "partition"))
    changes = spark.range(0, groups * 4, 1, 4).select(
        *[value.alias(name) for name, value in _group(group).items()],
        (of + 1).alias("zxid"),
        F.lit(0).alias("idx"),
        at(of * (SECONDS / (groups * 4))).alias("time"),
        F.concat(F.lit("host-"), offset, F.lit("-"), group).alias("member"),
        F.lit("join").alias("change"),
        (offset + 1).alias("members"),
        F.lit("modelled").alias("basis"),
        offset.alias("notified"),
        (offset + 1).alias("rebalances"),
        (offset * offset).alias("reads"),
    )
    for table in (catalog.REGISTRATIONS, catalog.MEMBERSHIP, catalog.HERDS):
        save(table, changes)
    bad = _hash(of, 3, groups)
    sort = F.least(F.floor(F.log2(1 + _hash(of, 4, 1000)) / 2.6), F.lit(3)).cast("int")
    kinds, severities = (F.array(*[F.lit(k[i]) for k in _KINDS[::-1]]) for i in (1, 0))
    wrong = spark.range(0, max(2_000, groups // 5), 1, 4).select(
        *[value.alias(name) for name, value in _group(bad % max(1, groups // 10)).items()],
        F.format_string("%010x", of).alias("id"),
        F.get(severities, 3 - sort).alias("severity"),
        F.get(kinds, 3 - sort).alias("kind"),
        F.lit("events").alias("topic"),
        _hash(of, 5, partitions).alias("partition"),
        F.concat(F.lit("host-"), _hash(of, 6, 4)).alias("member"),
        (of + 1).alias("zxid"),
        at(_hash(of, 7, SECONDS)).alias("time"),
        F.lit("proven").alias("basis"),
        F.concat(F.lit("Partition events-0 had no owner for "), of, F.lit(" s.")).alias("sentence"),
        F.array().cast(catalog.FINDINGS.spark_type()["evidence"].dataType).alias("evidence"),
    )
    save(catalog.FINDINGS, wrong)
    for table in catalog.TABLES:
        if not (place / table.name).exists():
            spark.createDataFrame([], table.spark_type()).write.parquet(str(place / table.name))
    kinds_found = spark.read.parquet(str(place / "findings")).groupBy("severity", "kind").count()
    found = [row.asDict() for row in kinds_found.collect()]
    summary = {
        "schema_version": catalog.SCHEMA_VERSION,
        "logs": 400, "snapshots": 6, "servers": 3, "groups": groups, "group": None, "from": None,
        "to": None, "last_time": "2023-12-14T22:13:20+00:00", "log_gaps": [], "dropped": [],
        "unconfirmed": [], "intervals": count, "commits": commits, "migrations": [],
        "directories": ["zk1", "zk2", "zk3"], "journals": 0, "journal_lines": 0, "unreadable": 0,
        "limits": {}, "findings": found,
    }  # fmt: skip
    (place / "summary.json").write_text(json.dumps(summary))


def zoomed(page: Path, folder: Path) -> list[float]:
    """Seconds from the first zoom until exact intervals are drawn, and of drawing them."""
    _, times = reported(page, folder, _ZOOM)
    return [value / 1000 for value in times]


def run(rounds: int) -> Iterator[tuple[str, str, list[float]]]:
    """Yield case, figure and the value of each round."""
    with tempfile.TemporaryDirectory(prefix="bench-report-") as name:
        folder = Path(name)
        spark = job_spark.session("local[2]", {"spark.ui.showConsoleProgress": "false"})
        try:
            write_tables(spark, folder / "intervals", 25, 20, 2_000, 100_000)
            write_tables(spark, folder / "groups", 100_000, 20, 1, 10_000_000)
            for case in ("intervals", "groups"):
                seconds = []
                for _ in range(1 + rounds):
                    begin = time.perf_counter()
                    page = report.write(folder / case)
                    seconds.append(time.perf_counter() - begin)
                what = "1,000,000 intervals" if case == "intervals" else "100,000 groups"
                yield f"{what}, report written", "seconds", seconds[1:]
                yield f"{what}, report", "bytes", [page.stat().st_size]
                opened(page, folder)  # Chromium creates its profile
                times = [opened(page, folder) for _ in range(rounds)]
                yield f"{what} in Chromium", "seconds", times
                yield f"{what}, 3 s", "ratio", [TARGET / value for value in times]
                zooms = [zoomed(page, folder) for _ in range(rounds)]
                yield f"{what}, first zoom", "seconds", [first for first, _ in zooms]
                yield f"{what}, next zoom", "seconds", [again for _, again in zooms]
        finally:
            spark.stop()
