"""The audit as one Spark job: from log directories to Parquet tables and a summary.

The only module that makes a SparkSession or writes tables. Runs in the driver's thread; collects
nothing but the holes and counts. Layout of ``OUT``: ``tables/<name>`` (Parquet), ``summary.json``,
``report.html``.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from zkaudit import history, intervals, job_input, tables, tables_build
from zkaudit.errors import AuditError, InputMissingError
from zkaudit.findings import SEVERITIES, Limits, Tables, findings
from zkaudit.schema import RUN
from zkaudit.sources_files import Piece
from zkaudit.staging import stage

QUIET_MS = 5_000
"""A rebalance ends when nothing happened in the group for so long."""


@dataclass(frozen=True)
class Options:
    """What to audit. ``start`` and ``end`` (ISO times, UTC) choose findings by the leader's clock;
    the whole history is read all the same, since it says who owned what."""

    logs: Sequence[str]
    out: str
    group: str | None = None
    start: str | None = None
    end: str | None = None
    limits: Limits = field(default_factory=Limits)


def session(master: str | None = None) -> SparkSession:
    """Return the running Spark session (``spark-submit``), or start one on ``master``."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("zkaudit")
    if master is not None:
        builder = builder.master(master)
    if master is not None and master.startswith("local"):
        builder = builder.config("spark.driver.host", "127.0.0.1").config(
            "spark.driver.bindAddress", "127.0.0.1"
        )
        builder = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
        builder = builder.config("spark.sql.shuffle.partitions", str(2 * (os.cpu_count() or 2)))
    return builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()


def run(spark: SparkSession, options: Options) -> dict[str, Any]:
    """Audit; write all tables; return the summary, which is also in ``OUT/summary.json``.

    Raises InputMissingError for inputs that are not there, AuditError for damaged logs and for an
    ``OUT`` that holds something else.
    """
    out = Path(options.out)
    if out.exists() and any(out.iterdir()) and not (out / "summary.json").is_file():
        raise AuditError(f"{out}: is not empty and holds no audit: choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    (out / "summary.json").write_text("{}")
    logs, snapshots = job_input.find(options.logs)
    try:
        return _run(spark, options, out, logs, snapshots)
    except PySparkException as error:
        for line in str(error).splitlines():
            name, found, text = line.partition("zkaudit.errors.")
            if found and not name.strip():
                raise AuditError(text.partition(": ")[2]) from None
        raise
    finally:
        shutil.rmtree(out / "staging", ignore_errors=True)


def _run(
    spark: SparkSession,
    options: Options,
    out: Path,
    logs: list[Piece],
    snapshots: list[Piece],
) -> dict[str, Any]:
    def kept(name: str, frame: DataFrame) -> DataFrame:
        place = str(out / name)
        frame.write.mode("overwrite").parquet(place)
        return spark.read.schema(frame.schema).parquet(place)

    def table(spec: tables.Table, frame: DataFrame) -> DataFrame:
        return kept(f"tables/{spec.name}", spec.shape(frame))

    rows = kept("staging/rows", job_input.transactions(spark, options.logs))
    plan = history.plan(job_input.runs_of(rows))
    holes = job_input.holes_of(plan)
    last = rows.where(f"type = '{RUN}'").agg(
        f.max("last_zxid").alias("zxid"), f.max_by("time", "last_zxid").alias("time")
    )
    told = history.apply(rows.where(f"type != '{RUN}'"), plan)
    seen = job_input.snapshots(spark, options.logs) if snapshots and holes else None
    found = stage(told, holes, seen, options.group)
    found = type(found)(
        kept("staging/events", found.events), found.sessions, found.refused, found.holes
    )

    owned = kept("staging/owned", intervals.owners(intervals.lives(found, "owners")))
    members = intervals.registrations(intervals.lives(found, "ids"))
    table(tables.SESSIONS, tables_build.sessions(found))
    ownership = table(tables.OWNERSHIP, owned)
    registered = table(tables.REGISTRATIONS, members)
    written = table(tables.COMMITS, intervals.commits(found, owned))
    changes = table(tables.MEMBERSHIP, tables_build.membership(registered))
    refused = table(tables.FAILED_CLAIMS, tables_build.failed_claims(found, registered))
    bursts = table(
        tables.REBALANCES, tables_build.rebalances(ownership, changes, refused, QUIET_MS)
    )
    made = Tables(registered, ownership, written, changes, refused, bursts, last)
    wrong = findings(made, options.limits)
    if options.start is not None:
        wrong = wrong.where(
            f.coalesce("end_time", "time") >= f.lit(options.start).cast("timestamp")
        )
    if options.end is not None:
        wrong = wrong.where(f.col("time") < f.lit(options.end).cast("timestamp"))
    wrong = table(tables.FINDINGS, wrong)
    return _summary(options, out, made, wrong, plan, logs, snapshots)


def _summary(
    options: Options,
    out: Path,
    made: Tables,
    wrong: DataFrame,
    plan: history.History,
    logs: list[Piece],
    snapshots: list[Piece],
) -> dict[str, Any]:
    counts = {
        (row["severity"], row["kind"]): row["count"]
        for row in wrong.groupBy("severity", "kind").count().collect()  # a dozen kinds
    }
    last = made.end.first()
    assert last is not None
    summary = {
        "logs": len(logs),
        "snapshots": len(snapshots),
        "servers": len({log.server for log in logs}),
        "group": options.group,
        "from": options.start,
        "to": options.end,
        "limits": asdict(options.limits),
        "last_zxid": last["zxid"],
        "last_time": last["time"].isoformat() if last["time"] else None,
        "holes": job_input.holes_of(plan),
        "dropped": plan.dropped,
        "unconfirmed": plan.unconfirmed,
        "intervals": made.ownership.count(),
        "commits": made.commits.count(),
        "findings": [
            {"severity": severity, "kind": kind, "count": count}
            for (severity, kind), count in sorted(
                counts.items(), key=lambda item: (SEVERITIES.index(item[0][0]), item[0][1])
            )
        ],
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    return summary


def load(spark: SparkSession, out: str | Path) -> tuple[dict[str, Any], dict[str, DataFrame]]:
    """Return the summary and the tables of an audit. Raises InputMissingError."""
    place = Path(out)
    try:
        summary: dict[str, Any] = json.loads((place / "summary.json").read_text())
    except (OSError, ValueError) as error:
        raise InputMissingError(f"{out}: holds no audit: {error}") from None
    if "findings" not in summary:
        raise InputMissingError(f"{out}: the audit did not finish: run it again")
    frames = {
        t.name: spark.read.schema(t.spark_type()).parquet(str(place / "tables" / t.name))
        for t in tables.TABLES
    }
    return summary, frames
