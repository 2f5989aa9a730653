"""What an audit reads: logs and snapshots of all servers, as rows, runs of zxids and log gaps.

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
from zkaudit.text import names_of

AFTER_END: Final = timedelta(hours=1)
"""What a wrong offset did shows later: so much is read behind the time of the last finding."""
MAX_RUNS: Final = 200_000
"""More runs of zxids than this are no history."""


def find(directories: Sequence[str | Path]) -> tuple[list[Piece], list[Piece]]:
    """Return the logs and the snapshots below the servers' data directories, in order of zxids.

    Each directory is one server: ``dataDir`` or ``dataLogDir``, or their ``version-2``. Raises
    InputMissingError when one does not exist or nothing is found.
    """
    servers = parse_servers("", _listed(directories))
    for place in (place for places in servers.values() for place in places):
        if place.is_file():
            raise InputMissingError(f"{place}: is a file: name the server's directory")
    logs, snapshots = (
        sorted(
            (piece for pieces in sources_files.find(servers, kind).values() for piece in pieces),
            key=lambda piece: piece.zxid,
        )
        for kind in (False, True)
    )
    if not logs:
        raise InputMissingError(
            f"{', '.join(map(str, directories))}: no file log.<zxid>: name the directory with the "
            "transaction logs, dataLogDir in zoo.cfg"
        )
    return logs, snapshots


def end_zxid(logs: Sequence[Piece], end: str | None) -> int | None:
    """Return the last zxid to read for findings before ``end`` (ISO, UTC), ``None``: all.

    That is where a log begins ``AFTER_END`` later, so whole logs are left out. Each server's logs
    are looked at up to the first such one. ``None`` also when all of them begin later.
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
    """Rows of ``schema.TXNLOG_GROUPS``, runs among them; duplicates are still in it.

    ``group``: a Java regex. Rows of other groups are left out where that is certain from how the
    regex begins; all rows of groups that match are there, and maybe some others. ``end``: the last
    zxid to read.
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
    """Return texts, one of which the path of every matching group has behind ``/consumers/``.

    A name that the regex spells out ends with ``/``. Empty when the regex is not so simple.
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
    """Return the snapshots to read: the first two zxids behind each log gap and the last one inside
    it, of every server.

    The logs show what happened after the first one; the second is for the case that the first is
    not whole. The one inside names members that were there before the logs continue.
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
    """Of the snapshots, as rows of ``schema.SNAPSHOT``: topics, migration markers, modes, all
    ephemerals of groups, and the root. ``files``: of these snapshots only.

    Of a file that is not whole there is no row: ZooKeeper does not use such a one either.
    """
    register(spark)
    source = spark.read.format("zookeeper_snapshot").option("corruption", "stop")
    if files:
        source = source.option("files", ",".join(sorted({Path(f.path).name for f in files})))
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
    """Return server, file and zxid of the snapshots that ``snapshots`` gave rows of."""
    roots = rows.where("path = '/'").select("server", "file", "zxid").distinct()
    return {(row[0], row[1]): int(row[2]) for row in roots.collect()}


def _listed(directories: Sequence[str | Path]) -> str:
    return json.dumps([str(directory) for directory in directories])


def log_gaps_of(history: History) -> list[tuple[int, int]]:
    """Return the log gaps as (last zxid before, first zxid behind), as ``staging`` wants them.

    A history that does not begin with the first transaction of an ensemble begins with a log gap.
    """
    begun = min((first for ranges in history.take.values() for first, _ in ranges), default=1)
    front = [] if begun in (1, (1 << 32) | 1) else [(0, begun)]
    return front + [(first - 1, last + 1) for first, last in history.log_gaps if first > begun]


def runs_of(rows: DataFrame) -> list[Run]:
    """Collect the runs; there are as many as files and log gaps. Raises AuditError for too many."""
    found = rows.where(f"type = '{RUN}'").select("server", "zxid", "last_zxid").take(MAX_RUNS + 1)
    if len(found) > MAX_RUNS:
        raise AuditError(
            f"the logs have more than {MAX_RUNS} log gaps: add the other servers' logs"
        )
    return [Run(row[0], int(row[1]), int(row[2])) for row in found]


def known(log_gaps: Sequence[tuple[int, int]], snapshots: Iterable[int]) -> tuple[int | None, ...]:
    """Return for each segment between log gaps the zxid from which on every ephemeral is known.

    That is its begin for the first segment, and the first snapshot taken in it for those behind a
    log gap; ``None``: nowhere in it. ``snapshots`` are the zxids in their names.
    """
    taken = sorted(snapshots)
    borders = [*sorted(log_gaps), (2**63 - 1, 2**63 - 1)]
    found: list[int | None] = [0]
    for (_, first), (last, _) in pairwise(borders):
        found.append(next((zxid for zxid in taken if first - 1 <= zxid <= last), None))
    return tuple(found)
