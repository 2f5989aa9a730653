"""zkaudit: shows from ZooKeeper's own logs who owned what when, with Spark."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["audit", "export", "register"]


def register(spark: SparkSession) -> None:
    """Register the formats ``zookeeper_txnlog``, ``zookeeper_snapshot``, ``zkaudit_journal`` and
    ``zkaudit_offsets`` in a Spark session.

    The executors need the same version of zkaudit.
    """
    # Importing the package alone does not load Spark.
    from zkaudit.sources import journal, offsets, zookeeper

    zookeeper.register(spark)
    journal.register(spark)
    offsets.register(spark)


def audit(
    spark: SparkSession,
    zookeeper_logs: str | Path | Sequence[str | Path],
    out: str | Path | None = None,
    *,
    group: str | None = None,
    start: datetime | str | None = None,
    end: datetime | str | None = None,
    allow_damage: bool = False,
    journals: Sequence[str | Path] = (),
    bootstrap: str | None = None,
    command_config: str | None = None,
    server_logs: Sequence[str | Path] = (),
    servers: int | None = None,
    **limits: float,
) -> dict[str, DataFrame]:
    """Audit the logs of an ensemble. Return the tables by name, including ``findings``.

    Like ``zkaudit run``, but in your Spark session. ``zookeeper_logs`` names one directory for each
    server. The tables are stored as Parquet in ``out``. The default is a new temporary directory,
    which you must delete. ``start`` and ``end`` select findings by time; ISO text and ``datetime``
    without a zone are UTC. A damaged log is an error if no other server has the rest, unless
    ``allow_damage`` is true. ``limits`` are thresholds of the rules, named like the options of
    ``zkaudit run``, such as ``unowned_seconds=60``.

    Raises InputMissingError if inputs do not exist or nothing in them matches the group or time;
    AuditError if logs are damaged or another process writes to ``out``; TypeError for an unknown
    limit.
    """
    from zkaudit.job.audit import Options, run
    from zkaudit.job.output import load
    from zkaudit.job.place import locked
    from zkaudit.limits import Limits

    given = [zookeeper_logs] if isinstance(zookeeper_logs, str | Path) else zookeeper_logs
    chosen: dict[str, Any] = limits
    place = str(out) if out is not None else tempfile.mkdtemp(prefix="zkaudit-")
    options = Options(
        logs=[str(directory) for directory in given],
        out=place,
        group=group,
        start=_utc(start),
        end=_utc(end),
        allow_damage=allow_damage,
        limits=Limits(**chosen),
        journals=[str(journal) for journal in journals],
        bootstrap=bootstrap,
        command_config=command_config,
        server_logs=[str(log) for log in server_logs],
        servers=servers,
    )
    with locked(place):
        run(spark, options)
        return load(spark, place)[1]


def export(
    spark: SparkSession,
    out: str | Path,
    to: str | Path | None = None,
    *,
    catalog: str | None = None,
    format: str = "parquet",
    append: bool = False,
    overwrite: bool = False,
    run_id: str | None = None,
) -> str:
    """Write the tables of the audit in ``out`` to a data lake or a catalog. Return the run id.

    Like ``zkaudit export``, but in your Spark session. ``to`` is a path or a URL below which the
    tables are written; ``catalog`` is used instead of ``to``, and is a database (``DATABASE`` or
    ``CATALOG.DATABASE``). ``format`` is ``parquet``, ``delta`` or ``iceberg``. Without ``append``
    or ``overwrite``, an existing table is an error.

    Raises InputMissingError if there is no audit; SchemaMismatchError if a table has different
    columns; AuditError if tables exist, already have rows of ``run_id``, or cannot be written;
    ValueError for arguments that exclude each other.
    """
    from zkaudit.job.export import FORMATS, Mode, Target, export

    if (to is None) == (catalog is None):
        raise ValueError("pass exactly one of to= and catalog=")
    if append and overwrite:
        raise ValueError("append=True and overwrite=True cannot be used together")
    if format not in FORMATS:
        raise ValueError(f"format: {format!r} is not one of {', '.join(FORMATS)}")
    target = Target(None if to is None else str(to).rstrip("/"), catalog, format)
    mode: Mode = "append" if append else "overwrite" if overwrite else "create"
    return export(spark, out, target, mode, run_id).run_id


def _utc(time: datetime | str | None) -> str | None:
    if time is None:
        return None
    moment = datetime.fromisoformat(time) if isinstance(time, str) else time
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat(" ")
