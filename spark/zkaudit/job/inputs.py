"""The inputs of an audit: logs and snapshots of all servers, as rows, runs of zxids and log gaps.

Builds DataFrames on ``sources.zookeeper``; ``heads`` and ``whole`` collect rows.
Driver's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from zkaudit.errors import AuditError
from zkaudit.history import committed
from zkaudit.job.coverage import LoggedRun, takes
from zkaudit.schema import CONFIG, RUN
from zkaudit.sources import direct, selection
from zkaudit.sources.files import BYTES_PER_TASK, Piece
from zkaudit.sources.options import Settings, parse_options
from zkaudit.sources.zookeeper import BatchLogReader, SnapshotReader

_FAST_TASK: Final = 4 * BYTES_PER_TASK
"""Number of bytes that a task reads if only few of them must be decoded."""
MAX_RUNS: Final = 200_000
"""Largest plausible number of runs of zxids. With more, logs are missing."""


def transactions(
    spark: SparkSession,
    directories: Sequence[str | Path],
    group: str | None = None,
    begin: int | None = None,
    files: Sequence[Piece] = (),
) -> DataFrame:
    """Read the logs of all servers. Return rows of ``schema.TXNLOG_GROUPS``, including runs and
    duplicates.

    ``group``: a Java regex. A group's rows are left out if the beginning of its name rules out a
    match, so rows of groups that do not match may be returned, too. ``begin``: the first zxid to
    read. ``files``: read only these logs. A damaged log is read up to the damage. Its last run has
    the reason.
    """
    options = {"table": "groups", "corruption": "stop", **_of_group(group), **_from(begin)}
    return _logs(spark, directories, options, files)


def once(
    spark: SparkSession,
    directories: Sequence[str | Path],
    logs: Sequence[Piece],
    keep: Callable[[str, DataFrame], DataFrame],
    group: str | None = None,
    begin: int | None = None,
    voters: int | None = None,
) -> tuple[DataFrame, Heads]:
    """Return the rows of ``transactions`` for ``logs`` with few duplicates, and the result of
    ``heads`` for them.

    All servers of an ensemble log the same transactions, and ``committed.plan`` takes each from the
    first server that has it. So the first server's logs are read completely, but at first only the
    zxids of the others. Then the other logs that have more transactions are read. ``keep`` stores a
    frame under a name and returns the stored frame. ``voters``: number of voting servers.
    """
    name = min(log.server for log in logs)
    first = [log for log in logs if log.server == name]
    others = [log for log in logs if log.server != name]
    rows = transactions(spark, directories, group, begin, first)
    if others:
        found = runs(spark, directories, begin, others).withColumn("kind", F.lit(RUN))
        rows = rows.unionByName(found, allowMissingColumns=True)
    rows = keep("rows", rows)
    read = heads(rows)
    wanted = takes(read.runs, voters)
    more = [log for log in others if (log.server, log.name) in wanted]
    if not more:
        return rows, read
    part = keep("more", transactions(spark, directories, group, begin, more).where(~is_run()))
    configs = (read.config, heads(part).config)
    newest = max(filter(None, configs), default=None)
    return rows.unionByName(part), read._replace(config=newest)


def of_group(rows: DataFrame, snapshots: DataFrame | None, group: str) -> DataFrame:
    """Return rows without sessions and refused writes that have nothing to do with ``group``.

    These are rows of sessions that used no group whose rows ``transactions`` returns. ``rows`` and
    ``snapshots`` must have been read for ``group``.
    """
    begins = selection.group_begins(group)
    if not begins:
        return rows

    def mentioned(path: Column) -> Column:
        return reduce(or_, (path.contains(f"/consumers/{begin}") for begin in begins))

    alone = F.col("type").isin("createSession", "closeSession", "error") & F.col("path").isNull()
    alone = F.coalesce(alone, F.lit(False))  # other rows have no type
    listed = F.exists(F.coalesce("deleted", F.array()), mentioned)
    used = rows.where(F.col("path").isNotNull() | listed).select("session")
    if snapshots is not None:
        owners = snapshots.where(mentioned(F.col("path")))
        used = used.unionByName(owners.select(F.col("ephemeral_owner").alias("session")))
    kept = rows.where(alone).join(F.broadcast(used.distinct()), "session", "left_semi")
    return rows.where(~alone).unionByName(kept)


def runs(
    spark: SparkSession,
    directories: Sequence[str | Path],
    begin: int | None = None,
    files: Sequence[Piece] = (),
) -> DataFrame:
    """Return the runs of consecutive zxids in the logs (``schema.TXNLOG_RUNS``). For the arguments,
    see ``transactions``."""
    options = {"table": "runs", "corruption": "stop", "bytesPerTask": str(_FAST_TASK)}
    options |= _from(begin)
    return _logs(spark, directories, options, files)


def _logs(
    spark: SparkSession,
    directories: Sequence[str | Path],
    options: dict[str, str],
    files: Sequence[Piece],
) -> DataFrame:
    settings = _settings("zookeeper_txnlog", directories, options, files)
    return direct.rows(spark, BatchLogReader(settings), settings.columns)


def _settings(
    source: str, directories: Sequence[str | Path], options: dict[str, str], files: Sequence[Piece]
) -> Settings:
    """Return options for a source that reads only ``files``, or all files if it is empty."""
    settings = parse_options(source, options | {"paths": selection.listed(directories)})
    return replace(settings, files=frozenset(file.path for file in files))


def _of_group(group: str | None) -> dict[str, str]:
    begins = selection.group_begins(group) if group is not None else ()
    if not begins:
        return {}
    return {"groupBegins": ",".join(begins), "bytesPerTask": str(_FAST_TASK)}


def _from(begin: int | None) -> dict[str, str]:
    return {} if begin is None else {"startZxid": str(begin)}


def snapshots(
    spark: SparkSession,
    directories: Sequence[str | Path],
    files: Sequence[Piece] = (),
    group: str | None = None,
) -> DataFrame:
    """Return the znodes in snapshots that an audit needs, as rows of ``schema.SNAPSHOT``.

    These are the root, topics, and groups' migration markers, modes, ephemeral znodes and offsets.
    ``files``: only these snapshots. ``group``: see ``transactions``. An incomplete snapshot has no
    rows, because ZooKeeper does not use it either.
    """
    options = {"table": "group_nodes", "corruption": "stop", **_of_group(group)}
    settings = _settings("zookeeper_snapshot", directories, options, files)
    return direct.rows(spark, SnapshotReader(settings), settings.columns)


def whole(rows: DataFrame) -> dict[tuple[str, str], int]:
    """Return the zxid of each complete snapshot, by server and file. ``rows``: the result of
    ``snapshots``."""
    roots = rows.where("path = '/'").select("server", "file", "zxid").distinct()
    return {(row[0], row[1]): int(row[2]) for row in roots.collect()}


def is_run() -> Column:
    """Return the condition that a row of ``schema.TXNLOG_GROUPS`` is about a run of zxids."""
    return F.col("kind").eqNullSafe(RUN)


class Heads(NamedTuple):
    """The data that the driver collects from the logs before it audits the groups."""

    runs: list[LoggedRun]
    """The runs of all logs, about as many as files and log gaps."""
    config: tuple[int, bytes] | None
    """Zxid and content of the newest configuration of the ensemble in the logs (``reconfig``,
    ZooKeeper 3.5+)."""


def heads(rows: DataFrame) -> Heads:
    """Collect the data in ``Heads`` from rows of ``schema.TXNLOG_GROUPS``. Raises AuditError if
    there are too many runs."""
    clocks = [F.unix_millis(name).alias(name) for name in ("first_time", "last_time")]
    named = ("server", "file", "first_zxid", "last_zxid")
    columns = (*named, *clocks, "times", "damage", "cut", "large", "zxid", "path", "data")
    wanted = rows.where(is_run() | F.col("path").eqNullSafe(CONFIG))
    found = wanted.select(is_run().alias("is_run"), *columns).toArrow()
    runs = found.filter(found["is_run"]).drop_columns(["is_run", "zxid", "path", "data"])
    if len(runs) > MAX_RUNS:
        raise AuditError(f"there are more than {MAX_RUNS} log gaps: add the other servers' logs")
    values = (column.to_pylist() for column in runs.columns)
    return Heads([LoggedRun(*run) for run in zip(*values, strict=True)], committed.config_of(found))


def once_each(rows: DataFrame) -> DataFrame:
    """Leave out operations that one server has logged twice."""
    operations = rows.where("kind is null").dropDuplicates(["server", "zxid", "idx"])
    return rows.where("kind is not null").unionByName(operations)
