"""The audit as one Spark job: from log directories to Parquet tables and a summary.

The only module that makes a SparkSession or writes tables. Runs in the driver's thread; collects
nothing but the holes and counts. Layout of ``OUT``: ``tables/<name>`` (Parquet), ``summary.json``,
``report.html``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions as f

from zkaudit import (
    history,
    intervals,
    job_input,
    job_verify,
    journals,
    sources_offsets,
    tables,
    tables_build,
)
from zkaudit.errors import AuditError, InputMissingError, no_file
from zkaudit.findings import LASTING, SEVERITIES, Limits, Tables, findings
from zkaudit.schema import PATH, RUN
from zkaudit.sources_files import Piece
from zkaudit.staging import Hole, stage

Seen: TypeAlias = tuple[DataFrame | None, Sequence[Piece]]
"""The rows of ``job_input.snapshots``, and the files that were read for them just now."""
_SYSTEM: Final = re.compile(r"\w+Error: \[Errno ([0-9]+)\] ([^:]+)(?:: '(.*)')?")
"""How Python's last line of a traceback tells an ``OSError``."""
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
    journals: Sequence[str] = ()
    bootstrap: str | None = None
    verify: bool = False
    """Whether to compare the tree's digest after every transaction."""
    servers: int | None = None
    """How many servers vote; by default those whose logs are given."""
    growing: bool = False
    """Whether the logs may still grow: it is no error then that they have no such group yet."""


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
        builder = builder.config("spark.ui.enabled", "false")
        if "SPARK_CONF_DIR" not in os.environ:  # the user's own settings say what is logged
            quiet = Path(__file__).with_name("log4j2.properties").as_uri()
            builder = builder.config(
                "spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={quiet}"
            )
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.config("spark.sql.shuffle.partitions", str(8 * (os.cpu_count() or 2)))
    return builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()


def run(spark: SparkSession, options: Options) -> dict[str, Any]:
    """Audit; write all tables; return the summary, which is also in ``OUT/summary.json``.

    Raises InputMissingError for inputs that are not there, also for a ``group`` or a time that
    nothing in them matches; AuditError for damaged logs and for an ``OUT`` that holds something
    else.
    """
    out = prepare(options.out)
    logs, snapshots = job_input.find(options.logs)
    journals.check(options.journals)
    check_group(spark, options.group)
    with errors_named(), staged(out):
        rows = kept(out, "staging/rows", job_input.transactions(spark, options.logs, options.group))

        def seen(_: Sequence[Hole]) -> Seen:
            if not snapshots:
                return None, ()
            read = kept(out, "staging/snapshots", job_input.snapshots(spark, options.logs))
            return read, snapshots

        return audit(spark, options, rows, logs, snapshots, seen)


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


@contextmanager
def errors_named() -> Iterator[None]:
    """Raise AuditError for an error of ours, or a file's, that a worker of Spark raised."""
    try:
        yield
    except PySparkException as error:
        for line in str(error).splitlines():
            name, found, text = line.partition("zkaudit.errors.")
            if found and not name.strip():
                raise AuditError(text.partition(": ")[2]) from None
            if system := _SYSTEM.fullmatch(line):
                raise AuditError(no_file(int(system[1]), system[2], system[3])) from None
        raise


def check_group(spark: SparkSession, group: str | None) -> None:
    """Raise AuditError when Java does not take ``--group`` for a regex."""
    try:
        spark.sql("select '' rlike :group", {"group": group or ""}).collect()
    except PySparkException:
        raise AuditError(
            f"--group {group!r} is no regex of Java: see java.util.regex.Pattern"
        ) from None


def kept(out: Path, name: str, frame: DataFrame) -> DataFrame:
    """Write a frame below ``out`` and return what was written."""
    place = str(out / name)
    frame.write.mode("overwrite").parquet(place)
    return frame.sparkSession.read.schema(frame.schema).parquet(place)


def audit(
    spark: SparkSession,
    options: Options,
    rows: DataFrame,
    logs: Sequence[Piece],
    snapshots: Sequence[Piece],
    seen_by: Callable[[Sequence[Hole]], Seen],
) -> dict[str, Any]:
    """Make all tables from the rows of ``job_input.transactions``; return the summary.

    ``seen_by`` is asked for snapshots if there are holes. What an earlier audit left in ``OUT`` is
    not touched before it is known that there is something to audit.
    """
    out = Path(options.out)

    def table(spec: tables.Table, frame: DataFrame) -> DataFrame:
        return kept(out, f"tables/{spec.name}", spec.shape(frame))

    _check_times(rows, options)
    plan = history.plan(job_input.runs_of(rows), options.servers)
    holes = job_input.holes_of(plan)
    verified = job_verify.verify(spark, logs, snapshots, plan.dropped) if options.verify else None
    last = rows.where(f"type = '{RUN}'").agg(
        f.max("last_zxid").alias("zxid"), f.max_by("time", "last_zxid").alias("time")
    )
    told = history.apply(rows.where(~f.col("type").isin(RUN, PATH)), plan)
    seen, looked_at = seen_by(holes) if holes else (None, ())
    whole = job_input.whole(seen) if seen is not None else {}
    known = job_input.known(holes, whole.values())
    found = stage(
        told,
        holes,
        seen,
        options.group,
        rows.where(f.col("type") == PATH),
        lambda name, made: kept(out, f"staging/{name}", made),
    )

    members = intervals.registrations(intervals.lives(found, "ids"))
    stored = sources_offsets.read(spark, options.bootstrap, options.group)
    groups = found.names.select("chroot", "group").distinct().count()
    if options.group is not None and not options.growing and not groups:
        said = journals.lines(journals.read(spark, options.journals), members, options.group)
        if stored.isEmpty() and said.isEmpty():
            raise InputMissingError(
                f"--group {options.group!r}: the logs have no group with such a name: a pattern "
                "must match the whole name, as 'orders.*' does"
            )
    (out / "summary.json").write_text("{}")  # until all tables are of one audit
    owned = kept(out, "staging/owned", intervals.owners(intervals.lives(found, "owners")))
    sessions = table(tables.SESSIONS, tables_build.sessions(found))
    ownership = table(tables.OWNERSHIP, owned)
    registered = table(tables.REGISTRATIONS, members)
    written = table(
        tables.COMMITS,
        intervals.commits(found, owned).unionByName(
            sources_offsets.commits(stored), allowMissingColumns=True
        ),
    )
    changes = table(tables.MEMBERSHIP, tables_build.membership(registered, holes, known))
    refused = table(tables.FAILED_CLAIMS, tables_build.failed_claims(found, registered))
    bursts = table(
        tables.REBALANCES, tables_build.rebalances(ownership, changes, refused, QUIET_MS)
    )
    read = kept(out, "staging/journals", journals.read(spark, options.journals))
    journals.refuse_virtual(read)
    lines = journals.lines(read, registered, options.group)
    unreadable = table(tables.UNREADABLE, journals.unreadable(read))
    made = Tables(
        registrations=registered,
        ownership=ownership,
        commits=written,
        membership=changes,
        failed_claims=refused,
        rebalances=bursts,
        moves=table(tables.MOVES, tables_build.moves(found)),
        partitions=table(tables.PARTITIONS, tables_build.partitions(found)),
        herds=table(tables.HERDS, journals.herds(changes, lines)),
        deliveries=table(tables.DELIVERIES, journals.deliveries(lines)),
        views=table(tables.VIEWS, journals.views(lines)),
        end=last,
        sessions=sessions,
        known=known,
        holes=tuple(holes),
    )
    wrong = findings(made, options.limits, lambda name, frame: kept(out, f"staging/{name}", frame))
    wrong = table(tables.FINDINGS, within(wrong, last, options.start, options.end))
    names = [(piece.server, Path(piece.path).name) for piece in looked_at]
    more = {
        "groups": groups,
        "torn_snapshots": ["/".join(name) for name in names if name not in whole],
        "digests": None if verified is None else asdict(verified),
        "journals": read.select("file").distinct().count(),
        "journal_lines": read.count(),
        "unreadable": unreadable.count(),
    }
    return _summary(options, out, made, wrong, plan, logs, snapshots, more)


def _check_times(rows: DataFrame, options: Options) -> None:
    """Raise InputMissingError when the whole history lies outside of ``start`` and ``end``."""
    if options.start is None and options.end is None:
        return
    found = rows.agg(
        *[f.date_format(of("time"), "yyyy-MM-dd HH:mm:ss").alias(name)
          for name, of in (("first", f.min), ("last", f.max))],
        (f.max("time") < f.lit(options.start).cast("timestamp")).alias("late"),
        (f.min("time") >= f.lit(options.end).cast("timestamp")).alias("early"),
    ).first()  # fmt: skip
    assert found is not None
    for wrong, option, value, way in (
        (found["late"], "--from", options.start, f"end before that, at {found['last']}"),
        (found["early"], "--to", options.end, f"begin after that, at {found['first']}"),
    ):
        if wrong:
            raise InputMissingError(f"{option} {value}: the logs {way} (UTC): choose another time")


def within(wrong: DataFrame, last: DataFrame, start: str | None, end: str | None) -> DataFrame:
    """Findings of a time; what has not ended lasts to the end of the logs (``last``: one row)."""
    if start is not None:
        now = last.select(f.col("time").alias("now"))
        until = f.coalesce("end_time", f.when(f.col("kind").isin(*LASTING), f.col("now")), "time")
        since = f.lit(start).cast("timestamp")
        wrong = wrong.crossJoin(f.broadcast(now)).where(until >= since).drop("now")
    if end is not None:
        wrong = wrong.where(f.col("time") < f.lit(end).cast("timestamp"))
    return wrong


def _summary(
    options: Options,
    out: Path,
    made: Tables,
    wrong: DataFrame,
    plan: history.History,
    logs: Sequence[Piece],
    snapshots: Sequence[Piece],
    more: dict[str, Any],
) -> dict[str, Any]:
    counts = {
        (row["severity"], row["kind"]): row["count"]
        for row in wrong.groupBy("severity", "kind").count().collect()  # a dozen kinds
    }
    last = made.end.select("zxid", f.unix_millis("time").alias("ms")).first()
    assert last is not None
    # A time that Spark hands over would be one of this machine's zone.
    last_time = None if last["ms"] is None else datetime.fromtimestamp(last["ms"] / 1000, UTC)
    summary = {
        "logs": len(logs),
        "snapshots": len(snapshots),
        "servers": len({log.server for log in logs}),
        "group": options.group,
        "from": options.start,
        "to": options.end,
        "limits": asdict(options.limits),
        "last_zxid": last["zxid"],
        "last_time": last_time and last_time.isoformat(),
        "holes": job_input.holes_of(plan),
        "dropped": plan.dropped,
        "unconfirmed": plan.unconfirmed,
        "intervals": made.ownership.count(),
        "commits": made.commits.count(),
        **more,
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
    try:
        frames = {
            t.name: spark.read.schema(t.spark_type()).parquet(str(place / "tables" / t.name))
            for t in tables.TABLES
        }
    except PySparkException as error:
        reason = str(error).partition("\n")[0]
        raise InputMissingError(f"{out}: holds no whole audit: run it again: {reason}") from None
    return summary, frames
