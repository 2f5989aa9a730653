"""Selects the logs and snapshots that an audit reads, below the servers' directories. Pure.

Runs in the driver, or in the only process of an audit without Spark.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Final

from zkaudit.decode.columns import Filters
from zkaudit.decode.snapshot import data_in, is_whole
from zkaudit.decode.txnlog import Operation, read_transactions
from zkaudit.errors import InputMissingError, LogFormatError, NoLogsError
from zkaudit.schema import CONFIG
from zkaudit.sources import files as sources_files
from zkaudit.sources.files import Piece, parse_servers
from zkaudit.storage import Place, shown
from zkaudit.text import names_of

BEFORE_START: Final = timedelta(hours=1)
"""Time before the start of the time range from which on logs are read."""
AFTER_END: Final = timedelta(hours=1)
"""Time after a requested time until which logs are read, because a session may register later."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_MOST_NAMES: Final = 3
"""Largest number of files that an error names."""


def find(directories: Sequence[str | Path]) -> tuple[list[Piece], list[Piece]]:
    """Return the logs and the snapshots in the servers' data directories, in the order of zxids.

    Each directory belongs to one server: ``dataDir`` or ``dataLogDir``, or their ``version-2``. It
    is a path or a URL. ``NAME=DIR`` names the server, which may have several directories. Of
    several copies of a log, only the longest is returned.

    Raises InputMissingError if a directory does not exist, or a server has no log, and AuditError
    if a server has two different logs with the same name.
    """
    return _found(directories)[:2]


def left_out(directories: Sequence[str | Path]) -> list[str]:
    """Return the files in the directories that are not read, each with the reason."""
    copies = [f"{shown(piece.path)} (a copy)" for piece in _found(directories)[2]]
    return sorted([*copies, *sources_files.unread(_servers(directories))])


def _servers(directories: Sequence[str | Path]) -> dict[str, list[Place]]:
    servers = parse_servers("", listed(directories))
    for place in (place for places in servers.values() for place in places):
        if place.is_file():
            raise InputMissingError(f"{shown(str(place))} is a file: name the server's directory")
    return servers


def _found(directories: Sequence[str | Path]) -> tuple[list[Piece], list[Piece], list[Piece]]:
    """Return logs, snapshots, and the copies of logs that are left out."""
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
            raise NoLogsError(f"{where}: no file log.<zxid>: {fix}")
    logs, copies = sources_files.distinct(logs)
    return logs, snapshots, copies


def end_zxid(logs: Sequence[Piece], end: str | None) -> int | None:
    """Return the last zxid that must be read for changes before ``end`` (ISO, UTC); ``None``: read
    all.

    Only whole logs are left out: those that begin more than ``AFTER_END`` after ``end``. The logs
    with the lowest zxid are always read.
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
    """Return the first operation in a log; ``None`` if there is none, or it is damaged."""
    with suppress(LogFormatError):
        return next(read_transactions(log.path), None)
    return None


def begin_snapshot(
    logs: Sequence[Piece], found: Sequence[Piece], start: str | None
) -> Piece | None:
    """Return the snapshot from which to read the logs for findings after ``start`` (ISO, UTC);
    ``None``: read all.

    It shows the members, owners and offsets at its time. It is complete, and was begun at least
    ``BEFORE_START`` before ``start``. ``found``: the snapshots.
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


def config_in(snapshots: Sequence[Piece]) -> tuple[int, bytes] | None:
    """Return zxid and content of the ensemble's configuration in the newest snapshot; ``None`` if
    there is none. Since 3.5, ZooKeeper stores it in every snapshot."""
    for piece in sorted(snapshots, key=lambda piece: -piece.zxid):
        with suppress(LogFormatError, FileNotFoundError):
            data = data_in(piece.path, CONFIG)
            return None if data is None else (piece.zxid, data)
    return None


def milliseconds(time: str, later: timedelta = timedelta()) -> int:
    """Return an ISO time (UTC by default) plus ``later``, in milliseconds since 1970."""
    moment = datetime.fromisoformat(time)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // _MS + later // _MS


def within(logs: Sequence[Piece], begin: int | None, end: int | None) -> list[Piece]:
    """Return the logs that may have zxids from ``begin`` to ``end``."""
    wanted = Filters(start_zxid=begin, end_zxid=end)
    servers: dict[str, list[Piece]] = {}
    for log in logs:
        servers.setdefault(log.server, []).append(log)
    return [log for found in servers.values() for log in sources_files.within(found, wanted)]


def group_begins(regex: str) -> tuple[str, ...]:
    """Return prefixes of the names of groups that a regex can match; empty if it is too complex.

    Every matching group's name begins with one of them. A prefix that ends with ``/`` is a complete
    name.
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
    """Return the snapshots to read because of log gaps.

    These are the first snapshot after each gap, because the logs show all changes after it, and the
    last one inside the gap, because it shows members that registered before the logs continue. Of
    snapshots with the same zxid, only one is returned.
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
    """Read the snapshots that ``behind`` returns. If one is incomplete, read the next one. Return
    all that were read.

    ``read``: reads snapshots, and returns the zxids of the complete ones. ``known``: zxids of
    complete snapshots that were read before, including deleted files.
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


def known(log_gaps: Sequence[tuple[int, int]], snapshots: Iterable[int]) -> tuple[int | None, ...]:
    """Return, for each segment between log gaps, the zxid from which on all ephemeral znodes are
    known.

    For the first segment this is its start. For a segment after a log gap it is the zxid of the
    first snapshot that was taken in it; ``None`` if there is none. ``snapshots``: the zxids in the
    names of snapshots.
    """
    return (0, *_first_behind(log_gaps, sorted(snapshots)))


def _first_behind(log_gaps: Iterable[tuple[int, int]], taken: Sequence[int]) -> list[int | None]:
    """Return the first of ``taken``, which are in order, after each log gap and before the next
    one."""
    borders = [*sorted(log_gaps), (2**63 - 1, 2**63 - 1)]
    found: list[int | None] = []
    for (_, first), (last, _) in pairwise(borders):
        place = bisect_left(taken, first - 1)
        there = place < len(taken) and taken[place] <= last
        found.append(taken[place] if there else None)
    return found


def listed(directories: Sequence[str | Path]) -> str:
    """Return the value of the data sources' option ``paths`` for these directories."""
    return json.dumps([str(directory) for directory in directories])
