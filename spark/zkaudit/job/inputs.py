"""The inputs of an audit: logs and snapshots of all servers, as rows, runs of zxids and log gaps.

Only builds DataFrames on ``sources.zookeeper``; ``logged_runs`` collects. Driver's thread.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from itertools import pairwise
from operator import or_
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, Row, SparkSession, functions as F

from zkaudit.decode.columns import Filters
from zkaudit.decode.snapshot import is_whole
from zkaudit.decode.txnlog import Operation, read_transactions
from zkaudit.errors import AuditError, InputMissingError, LogFormatError
from zkaudit.history import committed
from zkaudit.history.committed import History, Run
from zkaudit.history.quiet import TimeRange
from zkaudit.history.staging import group_key, group_key_of
from zkaudit.job.active import ActiveReader
from zkaudit.job.coverage import LoggedRun, as_runs
from zkaudit.schema import CONFIG, RUN, SNAPSHOT_OR_QUIET
from zkaudit.sources import direct, files as sources_files
from zkaudit.sources.files import BYTES_PER_TASK, Piece, parse_servers
from zkaudit.sources.options import Settings, parse_options
from zkaudit.sources.zookeeper import BatchLogReader, SnapshotReader
from zkaudit.storage import Place, shown
from zkaudit.text import names_of

BEFORE_START: Final = timedelta(hours=1)
"""How much of the logs is read before the start of the time range."""
AFTER_END: Final = timedelta(hours=1)
"""How much of the logs is read after the end of the time range: the effect of a wrong offset shows
only later."""
_FAST_TASK: Final = 4 * BYTES_PER_TASK
"""How many bytes a task reads if few of them have to be decoded."""
_MOST_NAMES: Final = 3
"""Files that an error names."""
MAX_RUNS: Final = 200_000
"""With more runs of zxids than this, logs are missing."""


def find(directories: Sequence[str | Path]) -> tuple[list[Piece], list[Piece]]:
    """Return the logs and the snapshots below the servers' data directories, in order of zxids.

    Each directory belongs to one server: ``dataDir`` or ``dataLogDir``, or their ``version-2``. It
    is a path or a URL. ``NAME=DIR`` names the server, which may have several directories. Of
    several copies of a log, only the longest is returned.

    Raises InputMissingError if a directory does not exist, or a server has no log; AuditError if a
    server has two different logs of one name.
    """
    return _found(directories)[:2]


def left_out(directories: Sequence[str | Path]) -> list[str]:
    """Return the files below the directories that are not read, each with the reason."""
    copies = [f"{shown(piece.path)} (a copy)" for piece in _found(directories)[2]]
    return sorted([*copies, *sources_files.unread(_servers(directories))])


def _servers(directories: Sequence[str | Path]) -> dict[str, list[Place]]:
    servers = parse_servers("", _listed(directories))
    for place in (place for places in servers.values() for place in places):
        if place.is_file():
            raise InputMissingError(f"{shown(str(place))}: is a file: name the server's directory")
    return servers


def _found(directories: Sequence[str | Path]) -> tuple[list[Piece], list[Piece], list[Piece]]:
    """Logs, snapshots, and the copies of logs that are left out."""
    servers = _servers(directories)
    logs, snapshots = (
        sorted(
            (piece for pieces in sources_files.find(servers, kind).values() for piece in pieces),
            key=lambda piece: piece.zxid,
        )
        for kind in (False, True)
    )
    for server, places in servers.items():
        if not any(log.server == server for log in logs):
            fix = "name the directory with the transaction logs, dataLogDir in zoo.cfg"
            if any(snapshot.server == server for snapshot in snapshots):
                fix = "it has snapshots: name both directories, SERVER=DATALOGDIR SERVER=DATADIR"
            if unread := sources_files.unread({server: places}):
                fix = f"there are files with other names: {', '.join(unread[:_MOST_NAMES])}"
            where = ", ".join(shown(str(place)) for place in places)
            raise InputMissingError(f"{where}: no file log.<zxid>: {fix}")
    logs, copies = sources_files.distinct(logs)
    return logs, snapshots, copies


def end_zxid(logs: Sequence[Piece], end: str | None) -> int | None:
    """Return the last zxid to read for findings before ``end`` (ISO, UTC); ``None``: read all.

    It is the start of a log that begins at least ``AFTER_END`` later, so only whole logs are left
    out. Each server's logs are checked up to the first such log. ``None`` also if all begin later.
    """
    if end is None:
        return None
    last_ms = milliseconds(end, AFTER_END)
    first = min(log.zxid for log in logs)
    for log in sorted(logs, key=lambda log: log.zxid):
        operation = _first_in(log)
        if operation is not None and operation.time_ms > last_ms and log.zxid > first:
            return operation.zxid - 1
    return None


def _first_in(log: Piece) -> Operation | None:
    """The first operation of a log; ``None`` if there is none, or it is damaged."""
    with suppress(LogFormatError):
        return next(read_transactions(log.path), None)
    return None


def begin_snapshot(
    logs: Sequence[Piece], found: Sequence[Piece], start: str | None
) -> Piece | None:
    """Return the snapshot after which to read the logs for findings from ``start`` (ISO, UTC);
    ``None``: read all.

    It is a whole snapshot that was begun at least ``BEFORE_START`` earlier, and has the members,
    owners and offsets of that time. ``found``: the snapshots.
    """
    if start is None:
        return None
    least = min(log.zxid for log in logs)
    first_ms = milliseconds(start, -BEFORE_START)
    for log in sorted(logs, key=lambda log: -log.zxid):
        operation = _first_in(log)
        if operation is not None and operation.time_ms <= first_ms:
            earlier = (piece for piece in found if least < piece.zxid + 1 <= operation.zxid)
            for piece in sorted(earlier, key=lambda piece: -piece.zxid):
                with suppress(LogFormatError, FileNotFoundError):
                    if is_whole(piece.path):
                        return piece
            return None
    return None


def milliseconds(time: str, later: timedelta = timedelta()) -> int:
    """Return an ISO time (UTC by default), moved by ``later``, in milliseconds since 1970."""
    moment = datetime.fromisoformat(time)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int((moment + later).timestamp() * 1000)


def within(logs: Sequence[Piece], begin: int | None, end: int | None) -> list[Piece]:
    """Leave out the logs that have no zxid from ``begin`` to ``end``."""
    wanted = Filters(start_zxid=begin, end_zxid=end)
    servers: dict[str, list[Piece]] = {}
    for log in logs:
        servers.setdefault(log.server, []).append(log)
    return [log for found in servers.values() for log in sources_files.within(found, wanted)]


def transactions(
    spark: SparkSession,
    directories: Sequence[str | Path],
    group: str | None = None,
    begin: int | None = None,
    end: int | None = None,
    files: Sequence[Piece] = (),
) -> DataFrame:
    """Rows of ``schema.TXNLOG_GROUPS``, including runs and duplicates.

    ``group``: a Java regex. Rows of other groups are left out if the start of the regex rules them
    out. So all rows of matching groups are returned, and maybe others. ``begin`` and ``end``: the
    first and the last zxid to read. ``files``: read only these logs. A damaged log is read up to
    the damage, which its last run names.
    """
    options = {"table": "groups", "corruption": "stop", **_of_group(group), **_between(begin, end)}
    return _logs(spark, directories, options, files)


def once(
    spark: SparkSession,
    directories: Sequence[str | Path],
    logs: Sequence[Piece],
    keep: Callable[[str, DataFrame], DataFrame],
    group: str | None = None,
    begin: int | None = None,
    end: int | None = None,
    voters: int | None = None,
) -> DataFrame:
    """The rows of ``transactions`` for ``logs``, with few duplicates.

    All servers of an ensemble log the same transactions, and ``committed.plan`` takes each from the
    first server that has it. So the first server's logs are read, and only the zxids of the others.
    Then those of the other logs are read that have more. ``keep`` stores a frame under a name and
    returns the stored frame. ``voters``: how many servers vote.
    """
    name = min(log.server for log in logs)
    first = [log for log in logs if log.server == name]
    others = [log for log in logs if log.server != name]
    rows = keep("rows", transactions(spark, directories, group, begin, end, first))
    if not others:
        return rows
    found = keep("runs", runs(spark, directories, begin, end, others))
    known = found.where("first_zxid is not null")
    listed = _limited(known.select("server", "first_zxid", "last_zxid", "file"))
    here = as_runs(logged_runs(rows))
    plan = committed.plan([*here, *(Run(*row[:3]) for row in listed)], voters)
    names = set()
    for server, low, high, file in listed:
        taken = plan.take.get(server, ())
        place = bisect_left(taken, low, key=lambda part: part[1])
        if place < len(taken) and taken[place][0] <= high:
            names.add((server, file))
    more = [log for log in others if (log.server, log.name) in names]
    if more:
        part = transactions(spark, directories, group, begin, end, more)
        rows = rows.unionByName(keep("more", part.where(~is_run())))
    of_runs = found.withColumn("kind", F.lit(RUN))
    return rows.unionByName(of_runs, allowMissingColumns=True)


def of_group(rows: DataFrame, snapshots: DataFrame | None, group: str) -> DataFrame:
    """Leave out the sessions that used no group whose name begins like those of ``group``, and
    their refused writes. ``rows`` and ``snapshots`` were read for this group."""
    begins = group_begins(group)
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
    end: int | None = None,
    files: Sequence[Piece] = (),
) -> DataFrame:
    """Rows of ``schema.TXNLOG_RUNS``. The other arguments are as in ``transactions``."""
    options = {"table": "runs", "corruption": "stop", "bytesPerTask": str(_FAST_TASK)}
    options |= _between(begin, end)
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
    """Options of a source that reads only ``files``, or all if there are none."""
    settings = parse_options(source, options | {"paths": _listed(directories)})
    return replace(settings, files=frozenset(file.path for file in files))


def _of_group(group: str | None) -> dict[str, str]:
    begins = group_begins(group) if group is not None else ()
    if not begins:
        return {}
    return {"groupBegins": ",".join(begins), "bytesPerTask": str(_FAST_TASK)}


def _between(begin: int | None, end: int | None) -> dict[str, str]:
    between = (("startZxid", begin), ("endZxid", end))
    return {name: str(zxid) for name, zxid in between if zxid is not None}


def group_begins(regex: str) -> tuple[str, ...]:
    """Return prefixes: the path of every matching group has one of them after ``/consumers/``.

    A complete group name ends with ``/``. Empty if the regex is too complex.
    """
    names = names_of(regex)
    if names is not None:  # a comma separates the texts of the source's option
        begins = [name.partition(",")[0] + "/" * ("," not in name) for name in names]
        return tuple(begins) if all(text.strip("/") for text in begins) else ()
    simple = not set(regex) & set("()[]\\")
    if "|" in regex and not simple:
        return ()
    begins = []
    for part in regex.split("|"):
        plain = re.match("[A-Za-z0-9_-]*", part)
        assert plain is not None
        text, rest = plain[0], part[plain.end() :]
        if not rest:
            text += "/"
        elif rest[0] in "?*+{":  # the last character may be missing
            text = text[:-1]
        begins.append(text)
    return tuple(begins) if all(text.strip("/") for text in begins) else ()


def behind(found: Sequence[Piece], log_gaps: Sequence[tuple[int, int]]) -> list[Piece]:
    """Return the snapshots to read: the first one after each log gap and the last one inside it.

    The logs show all changes after the first one. The one inside the gap has members that were
    registered before the logs continue. Of snapshots with the same zxid one server's is enough.
    """
    one = {piece.zxid: piece for piece in reversed(found)}
    taken = sorted(one)
    chosen = {zxid for zxid in _first_behind(log_gaps, taken) if zxid is not None}
    for after, first in log_gaps:
        place = bisect_left(taken, first - 1)
        chosen.update(zxid for zxid in taken[max(0, place - 1) : place] if after <= zxid)
    return [one[zxid] for zxid in sorted(chosen)]


def read_behind(
    found: Sequence[Piece],
    log_gaps: Sequence[tuple[int, int]],
    read: Callable[[Sequence[Piece]], Iterable[int]],
    known: Iterable[int] = (),
) -> list[Piece]:
    """Read the snapshots that ``behind`` names, and the next one instead of one that is not whole.
    Return all that were read.

    ``read`` returns the zxids of those that are whole. ``known``: zxids of whole snapshots that
    were read before, also of files that are gone.
    """
    left, tried, there = list(found), list[Piece](), set(known)
    while True:
        before = [Piece("", "", zxid, 0) for zxid in there]
        chosen = [p for p in behind([*before, *left], log_gaps) if p.zxid not in there]
        if not chosen:
            return tried
        tried += chosen
        there.update(read(chosen))
        torn = {piece.zxid for piece in chosen} - there
        left = [piece for piece in left if piece.zxid not in torn]


def snapshots(
    spark: SparkSession,
    directories: Sequence[str | Path],
    files: Sequence[Piece] = (),
    group: str | None = None,
) -> DataFrame:
    """Rows of the snapshots, as in ``schema.SNAPSHOT``: topics, migration markers, modes, all
    ephemeral znodes and offsets of groups, and the root. ``files``: read only these snapshots.
    ``group``: as in ``transactions``.

    An incomplete file gives no rows: ZooKeeper does not use such a file either.
    """
    options = {"table": "group_nodes", "corruption": "stop", **_of_group(group)}
    settings = _settings("zookeeper_snapshot", directories, options, files)
    return direct.rows(spark, SnapshotReader(settings), settings.columns)


def active(
    spark: SparkSession,
    directories: Sequence[str | Path],
    file: Piece,
    rows: Sequence[str],
    time_range: TimeRange,
) -> DataFrame:
    """Rows of ``snapshots`` for one snapshot without its quiet groups, and one row for each of
    these: ``schema.SNAPSHOT_OR_QUIET``. ``rows``: the files of ``transactions`` that follow it."""
    options = {"table": "group_nodes", "corruption": "stop"}
    settings = _settings("zookeeper_snapshot", directories, options, [file])
    return direct.rows(spark, ActiveReader(settings, rows, time_range), SNAPSHOT_OR_QUIET)


def without(rows: DataFrame, quiet: DataFrame) -> DataFrame:
    """Leave out what ``rows`` have of quiet groups: their commits."""
    keys = quiet.select(group_key().alias("quiet"))
    return rows.join(F.broadcast(keys), group_key_of(F.col("path")) == F.col("quiet"), "left_anti")


def whole(rows: DataFrame) -> dict[tuple[str, str], int]:
    """Return server, file and zxid of the snapshots that have rows in ``snapshots``."""
    roots = rows.where("path = '/'").select("server", "file", "zxid").distinct()
    return {(row[0], row[1]): int(row[2]) for row in roots.collect()}


def _listed(directories: Sequence[str | Path]) -> str:
    return json.dumps([str(directory) for directory in directories])


def log_gaps_of(history: History) -> list[tuple[int, int]]:
    """Return the log gaps as (last zxid before, first zxid after), the form ``staging`` takes.

    A history that does not begin with the first transaction of an ensemble begins with a log gap.
    """
    begun = min((first for ranges in history.take.values() for first, _ in ranges), default=1)
    front = [] if begun in (1, (1 << 32) | 1) else [(0, begun)]
    return front + [(first - 1, last + 1) for first, last in history.log_gaps if first > begun]


def is_run() -> Column:
    """Whether a row of ``schema.TXNLOG_GROUPS`` is a run of zxids."""
    return F.col("kind").eqNullSafe(RUN)


def logged_runs(rows: DataFrame) -> list[LoggedRun]:
    """Collect the runs, about as many as files and log gaps. Raises AuditError for too many."""
    clocks = [F.unix_millis(name) for name in ("first_time", "last_time")]
    found = rows.where(is_run())
    found = found.select(
        "server", "file", "first_zxid", "last_zxid", *clocks, "times", "damage", "cut"
    )
    return [LoggedRun(*row) for row in _limited(found)]


def once_each(rows: DataFrame) -> DataFrame:
    """Leave out operations that one server has logged twice."""
    operations = rows.where("kind is null").dropDuplicates(["server", "zxid", "idx"])
    return rows.where("kind is not null").unionByName(operations)


def voters(rows: DataFrame) -> int | None:
    """Return the number of voting servers in the newest configuration of the ensemble that the logs
    have (``reconfig``, ZooKeeper 3.5+); ``None`` if they have none."""
    configs = rows.where((F.col("path") == CONFIG) & F.col("data").isNotNull())
    newest = configs.agg(F.max_by("data", "zxid")).first()
    return None if newest is None or newest[0] is None else participants(bytes(newest[0]))


def participants(config: bytes) -> int | None:
    """Return the number of servers in the content of ``/zookeeper/config`` that vote."""
    lines = config.decode(errors="replace").splitlines()
    servers = [line.partition(";")[0] for line in lines if line.startswith("server.")]
    return sum(not server.endswith(":observer") for server in servers) or None


def _limited(found: DataFrame) -> list[Row]:
    rows: list[Row] = found.take(MAX_RUNS + 1)
    if len(rows) > MAX_RUNS:
        raise AuditError(
            f"the logs have more than {MAX_RUNS} log gaps: add the other servers' logs"
        )
    return rows


def known(log_gaps: Sequence[tuple[int, int]], snapshots: Iterable[int]) -> tuple[int | None, ...]:
    """Return the zxid from which all ephemeral znodes are known, for each segment between log gaps.

    That is the start of the first segment. In a segment after a log gap it is the zxid of the first
    snapshot taken in it; ``None``: there is none. ``snapshots`` are the zxids in their names.
    """
    return (0, *_first_behind(log_gaps, sorted(snapshots)))


def _first_behind(log_gaps: Iterable[tuple[int, int]], taken: Sequence[int]) -> list[int | None]:
    """The first of ``taken``, which are in order, after each log gap and before the next one."""
    borders = [*sorted(log_gaps), (2**63 - 1, 2**63 - 1)]
    found: list[int | None] = []
    for (_, first), (last, _) in pairwise(borders):
        place = bisect_left(taken, first - 1)
        there = place < len(taken) and taken[place] <= last
        found.append(taken[place] if there else None)
    return found
