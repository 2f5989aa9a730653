"""The inputs of an audit: logs and snapshots of all servers, as rows, runs of zxids and log gaps.

Only builds DataFrames on ``sources.zookeeper``; ``runs_of`` collects. Driver's thread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from zkaudit.decode.txnlog import read_transactions
from zkaudit.errors import AuditError, InputMissingError
from zkaudit.history.committed import History, Run
from zkaudit.schema import RUN
from zkaudit.sources import files as sources_files
from zkaudit.sources.files import Piece, parse_servers
from zkaudit.sources.zookeeper import register
from zkaudit.storage import shown
from zkaudit.text import names_of

AFTER_END: Final = timedelta(hours=1)
"""How much of the logs is read after the end of the time range: the effect of a wrong offset shows
only later."""
MAX_RUNS: Final = 200_000
"""With more runs of zxids than this, logs are missing."""


def find(directories: Sequence[str | Path]) -> tuple[list[Piece], list[Piece]]:
    """Return the logs and the snapshots below the servers' data directories, in order of zxids.

    Each directory belongs to one server: ``dataDir`` or ``dataLogDir``, or their ``version-2``. It
    is a path or a URL.
    Raises InputMissingError if one does not exist or no file is found.
    """
    servers = parse_servers("", _listed(directories))
    for place in (place for places in servers.values() for place in places):
        if place.is_file():
            raise InputMissingError(f"{shown(str(place))}: is a file: name the server's directory")
    logs, snapshots = (
        sorted(
            (piece for pieces in sources_files.find(servers, kind).values() for piece in pieces),
            key=lambda piece: piece.zxid,
        )
        for kind in (False, True)
    )
    if not logs:
        raise InputMissingError(
            f"{', '.join(map(shown, directories))}: no file log.<zxid>: name the directory with "
            "the transaction logs, dataLogDir in zoo.cfg"
        )
    return logs, snapshots


def end_zxid(logs: Sequence[Piece], end: str | None) -> int | None:
    """Return the last zxid to read for findings before ``end`` (ISO, UTC); ``None``: read all.

    It is the start of a log that begins at least ``AFTER_END`` later, so only whole logs are left
    out. Each server's logs are checked up to the first such log. ``None`` also if all begin later.
    """
    if end is None:
        return None
    moment = datetime.fromisoformat(end)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    last_ms = (moment + AFTER_END).timestamp() * 1000
    first = min(log.zxid for log in logs)
    for log in sorted(logs, key=lambda log: log.zxid):
        operation = next(read_transactions(log.path), None)
        if operation is not None and operation.time_ms > last_ms and log.zxid > first:
            return operation.zxid - 1
    return None


def transactions(
    spark: SparkSession,
    directories: Sequence[str | Path],
    group: str | None = None,
    end: int | None = None,
) -> DataFrame:
    """Rows of ``schema.TXNLOG_GROUPS``, including runs and duplicates.

    ``group``: a Java regex. Rows of other groups are left out if the start of the regex rules them
    out. So all rows of matching groups are returned, and maybe others. ``end``: the last zxid to
    read.
    """
    register(spark)
    load = spark.read.format("zookeeper_txnlog").option("table", "groups")
    begins = group_begins(group) if group is not None else ()
    if begins:
        load = load.option("groupBegins", ",".join(begins))
    if end is not None:
        load = load.option("endZxid", str(end))
    return load.option("paths", _listed(directories)).load()


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
    """Return the snapshots to read, of every server: the first two after each log gap and the last
    one inside it.

    The logs show all changes after the first one; the second is read in case the first is
    incomplete. The one inside the gap has members that were registered before the logs continue.
    """
    borders = [*sorted(log_gaps), (2**63 - 1, 2**63 - 1)]
    chosen: set[int] = set()
    for (_, first), (last, _) in pairwise(borders):
        later = sorted({piece.zxid for piece in found if first - 1 <= piece.zxid <= last})
        chosen.update(later[:2])
    for after, first in log_gaps:
        chosen.update(sorted(p.zxid for p in found if after <= p.zxid < first - 1)[-1:])
    return [piece for piece in found if piece.zxid in chosen]


def snapshots(
    spark: SparkSession, directories: Sequence[str | Path], files: Sequence[Piece] = ()
) -> DataFrame:
    """Rows of the snapshots, as in ``schema.SNAPSHOT``: topics, migration markers, modes, all
    ephemeral znodes of groups, and the root. ``files``: read only these snapshots.

    An incomplete file gives no rows: ZooKeeper does not use such a file either.
    """
    register(spark)
    source = spark.read.format("zookeeper_snapshot").option("corruption", "stop")
    if files:
        source = source.option("files", ",".join(sorted({file.name for file in files})))
    return (
        source.option("paths", _listed(directories))
        .load()
        .where(
            "path = '/' or contains(path, '/brokers/topics/') or contains(path, '/consumers/')"
            " and (ephemeral_owner != 0 or endswith(path, '/migration')"
            " or endswith(path, '/live/mode'))"
        )
    )


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


def runs_of(rows: DataFrame) -> list[Run]:
    """Collect the runs, about as many as files and log gaps. Raises AuditError for too many."""
    found = rows.where(f"type = '{RUN}'").select("server", "zxid", "last_zxid").take(MAX_RUNS + 1)
    if len(found) > MAX_RUNS:
        raise AuditError(
            f"the logs have more than {MAX_RUNS} log gaps: add the other servers' logs"
        )
    return [Run(row[0], int(row[1]), int(row[2])) for row in found]


def known(log_gaps: Sequence[tuple[int, int]], snapshots: Iterable[int]) -> tuple[int | None, ...]:
    """Return the zxid from which all ephemeral znodes are known, for each segment between log gaps.

    That is the start of the first segment. In a segment after a log gap it is the zxid of the first
    snapshot taken in it; ``None``: there is none. ``snapshots`` are the zxids in their names.
    """
    taken = sorted(snapshots)
    borders = [*sorted(log_gaps), (2**63 - 1, 2**63 - 1)]
    found: list[int | None] = [0]
    for (_, first), (last, _) in pairwise(borders):
        found.append(next((zxid for zxid in taken if first - 1 <= zxid <= last), None))
    return tuple(found)
