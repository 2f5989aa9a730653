"""The committed transactions of one group, in order, read from the servers' logs in this process.

The Spark pipeline's functions choose the files, and determine committed and doubtful transactions,
log gaps and coverage. Only the operations of one group are decoded.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zkaudit.decode.batches import read_snapshot
from zkaudit.errors import InputMissingError, LogFormatError
from zkaudit.history import committed, doubt
from zkaudit.history.committed import History, Range
from zkaudit.job.coverage import (
    Coverage,
    Damage,
    LoggedRun,
    check_any,
    check_times,
    coverage_of,
    decided,
    logged_twice,
    takes,
)
from zkaudit.schema import RUN, SNAPSHOT, TXNLOG, TXNLOG_GROUPS, arrow_schema
from zkaudit.sources import selection
from zkaudit.sources.files import Piece
from zkaudit.sources.options import Settings, parse_options
from zkaudit.sources.rows import rows_of, snapshot_rows
from zkaudit.text import printable, regex_of
from zkconsumer.core.common.types import Pattern
from zkconsumer.core.zookeeper.znodes import decode_registration, other_regexes
from zkconsumer.errors import ZnodeFormatError

_LOGGED: Final = {column.name for column in TXNLOG}
_OPERATION: Final = [column.name for column in TXNLOG_GROUPS if column.name in _LOGGED]
_GROUP: Final = re.compile(r"(?s).*?/consumers/([^/]+)/")
_WITH_TOPIC: Final = 5
"""Number of parts of a path from which on it has a topic:
/consumers/GROUP/owners/TOPIC/PARTITION."""
_MOST_NAMES: Final = 5
MOST_BYTES: Final = 256 << 20
"""Largest size in bytes of one server's logs from which the findings of all groups are read. More
would need gigabytes of memory."""


@dataclass(frozen=True, slots=True)
class Question:
    """The logs, the group and the time range to read.

    Args:
        directories: the servers' directories, as for ``zkaudit run``.
        group: name of the group; ``None``: all groups.
        start: ISO time, UTC; the logs are read from a snapshot an hour earlier, if there is one.
        end: ISO time, UTC.
        servers: number of voting servers; ``None``: as many as there are directories.
        allow_damage: whether to continue if a log is damaged and no other server has the rest of
            it.
        to_end: whether to read logs that begin an hour or more after ``end``. The effect of a wrong
            offset may show only there.
        options: the names of ``start`` and ``end`` on the command line.
    """

    directories: Sequence[str]
    group: str | None
    start: str | None = None
    end: str | None = None
    servers: int | None = None
    allow_damage: bool = False
    to_end: bool = False
    options: tuple[str, str] = ("--from", "--to")


@dataclass(frozen=True, slots=True)
class GroupHistory:
    """The history of one group in the logs.

    Args:
        rows: operations on the group's znodes, sessions, topics and brokers (``schema.TXNLOG``),
            each once, in the order of (zxid, idx). ``confirmed`` is false if an operation may never
            have been committed.
        nodes: the group's znodes in the snapshots that were needed (``schema.SNAPSHOT``).
        plan: which transactions were committed, are in doubt, or were dropped.
        log_gaps: the result of ``committed.log_gaps_of``.
        known: the result of ``selection.known``.
        coverage: the time that the logs cover.
        left_out: files that were not read, with the reason.
        begin: the first zxid that was read, if earlier logs were left out on purpose.
        stopped_early: whether later logs were left out on purpose.
        chroots: the paths before ``/consumers`` below which there is a group of this name.
        logged: the ranges of consecutive zxids in each log, with times.
    """

    rows: pa.Table
    nodes: pa.Table
    plan: History
    log_gaps: Sequence[tuple[int, int]]
    known: tuple[int | None, ...]
    coverage: Coverage
    left_out: Sequence[str]
    begin: int | None
    stopped_early: bool
    chroots: tuple[str, ...]
    logged: Sequence[LoggedRun]


def read(question: Question) -> GroupHistory:
    """Read the history of a group.

    Raises InputMissingError if a directory has no logs, or if the logs do not contain the group or
    the time; AuditError if logs contradict each other; LogFormatError if a log is damaged.
    """
    logs, snapshots = selection.find(question.directories)
    before = selection.begin_snapshot(logs, snapshots, question.start)
    begin = None if before is None else before.zxid + 1
    end = None if question.to_end else selection.end_zxid(logs, question.end)
    wanted = selection.within(logs, begin, end)

    def settings(source: str, table: str, begins: Sequence[str] = ()) -> Settings:
        options = {"table": table, "corruption": "stop", "groupBegins": ",".join(begins)}
        options["paths"] = selection.listed(question.directories)
        parsed = parse_options(source, options)
        filters = replace(parsed.filters, start_zxid=begin, end_zxid=end)
        is_log = source == "zookeeper_txnlog"
        return replace(parsed, filters=filters) if is_log else parsed

    group = question.group
    begins = () if group is None else selection.group_begins(regex_of([group]))
    of_group = settings("zookeeper_txnlog", "groups", begins)
    first, last = (begin or 1) - 1, 2**63 - 1 if end is None else end
    usable = [piece for piece in snapshots if first <= piece.zxid <= last]
    shown = None if question.servers else selection.config_in(usable)
    voters = question.servers or committed.participants(shown)
    table, logged = _once(wanted, of_group, settings("zookeeper_txnlog", "runs"), voters)
    table, plan, damaged = _committed(table, logged, question, begin, shown)
    log_gaps = committed.log_gaps_of(plan)
    asked = (question.start, question.end)
    coverage = coverage_of(logged, {log.server for log in logs}, plan, *asked, damaged)
    check_times(coverage, *asked, question.options)
    usable = [piece for piece in usable if not committed.within(piece.zxid, plan.dropped)]
    nodes, whole = _snapshots(
        usable, log_gaps, settings("zookeeper_snapshot", "group_nodes", begins)
    )
    rows = _taken(table, plan)
    mine = (rows, nodes, ()) if group is None else _of_group(rows, nodes, group)
    if mine is None:
        every = settings("zookeeper_txnlog", "groups")
        raise InputMissingError(_no_such(group or "", _names(wanted, every, usable)))
    return GroupHistory(
        mine[0],
        mine[1],
        plan,
        log_gaps,
        selection.known(log_gaps, whole),
        coverage,
        selection.left_out(question.directories),
        begin,
        end is not None,
        mine[2],
        logged,
    )


def _committed(
    table: pa.Table,
    logged: Sequence[LoggedRun],
    question: Question,
    begin: int | None,
    shown: tuple[int, bytes] | None,
) -> tuple[pa.Table, History, list[Damage]]:
    """Decide which transactions exist. Return the rows without duplicates."""
    if logged_twice(logged):
        table = _once_each(table)
    voters = question.servers or committed.participants(committed.config_of(table), shown)
    plan, damaged = decided(logged, voters, begin, question.allow_damage)
    if plan.unconfirmed:
        rows = _taken(table, plan).select(doubt.NEEDED)
        later = rows.filter(pc.greater_equal(rows["zxid"], plan.unconfirmed[0][0]))
        plan = doubt.decided_rows(later.to_pylist(), plan)
    check_any(plan, question.directories)
    return table, plan, damaged


def _once(
    logs: Sequence[Piece], of_group: Settings, runs: Settings, voters: int | None
) -> tuple[pa.Table, list[LoggedRun]]:
    """Return the group's rows with few duplicates, and the runs of all logs.

    All servers of an ensemble log the same transactions. So one server's logs are decoded, and
    from the others first only zxids, and then those logs that have more transactions.
    """
    name = min(log.server for log in logs)
    first = [log for log in logs if log.server == name]
    others = [log for log in logs if log.server != name]
    table, logged = _decoded(first, of_group)
    logged += (run for batch in rows_of(runs, others) for run in _runs(batch))
    more = takes(logged, voters)
    chosen = [log for log in others if (log.server, log.name) in more]
    return pa.concat_tables([table, _decoded(chosen, of_group)[0]]), logged


def _decoded(logs: Iterable[Piece], settings: Settings) -> tuple[pa.Table, list[LoggedRun]]:
    batches, logged = [], list[LoggedRun]()
    for batch in rows_of(settings, logs):
        kinds = batch["kind"]
        if kinds.null_count < len(kinds):  # the last batches of a log
            logged += _runs(batch.filter(pc.equal(kinds, RUN)))
            batch = batch.filter(pc.is_null(kinds))
        batches.append(batch.select(_OPERATION))
    schema_ = pa.schema([arrow_schema(TXNLOG_GROUPS).field(name) for name in _OPERATION])
    return pa.Table.from_batches(batches, schema_), logged


def _runs(batch: pa.RecordBatch) -> Iterator[LoggedRun]:
    return map(LoggedRun.of, batch.to_pylist())


def _once_each(table: pa.Table) -> pa.Table:
    """Leave out operations that one server has logged twice."""
    servers = table["server"].combine_chunks().dictionary_encode().indices.to_numpy()
    keys = (servers, table["zxid"].to_numpy(), table["idx"].to_numpy())
    _, places = np.unique(
        np.stack([key.astype(np.int64) for key in keys]), axis=1, return_index=True
    )
    return table.take(pa.array(np.sort(places)))


def _taken(table: pa.Table, plan: History) -> pa.Table:
    """Return each operation once, without those never committed, in order, with ``confirmed``."""
    zxids = table["zxid"].to_numpy()
    mask = np.zeros(len(table), bool)
    for server, ranges in plan.take.items():
        here = pc.equal(table["server"], server).to_numpy(zero_copy_only=False)
        mask |= here & inside(zxids, ranges)
    table = table.filter(pa.array(mask))
    zxids, idx = table["zxid"].to_numpy(), table["idx"].to_numpy()
    if (np.diff(zxids) < 0).any():
        order = np.lexsort((idx, zxids))
        table, zxids = table.take(pa.array(order)), zxids[order]
    return table.append_column("confirmed", pa.array(~inside(zxids, plan.unconfirmed)))


def inside(zxids: np.ndarray, ranges: Sequence[Range]) -> np.ndarray:
    """Return for each zxid whether it is in one of the ranges, which must be disjoint."""
    if not ranges:
        return np.zeros(len(zxids), bool)
    bounds = np.array(sorted(ranges), np.int64)
    at = np.searchsorted(bounds[:, 0], zxids, "right") - 1
    inside: np.ndarray = (at >= 0) & (zxids <= bounds[at, 1])
    return inside


def _snapshots(
    usable: Sequence[Piece], log_gaps: Sequence[tuple[int, int]], settings: Settings
) -> tuple[pa.Table, list[int]]:
    """Return the znodes in the snapshots behind log gaps, and the zxids of complete snapshots."""
    batches: list[pa.RecordBatch] = []
    whole: list[int] = []

    def read(chosen: Sequence[Piece]) -> Iterable[int]:
        good = []
        for piece in chosen:
            try:
                batches.extend(snapshot_rows(settings, piece))
            except (LogFormatError, FileNotFoundError):  # ZooKeeper does not use it either
                continue
            good.append(piece.zxid)
        whole.extend(good)
        return good

    if log_gaps:
        selection.read_behind(usable, log_gaps, read)
    return pa.Table.from_batches(batches, arrow_schema(SNAPSHOT)), whole


def _of_group(
    table: pa.Table, nodes: pa.Table, group: str
) -> tuple[pa.Table, pa.Table, tuple[str, ...]] | None:
    """Leave out other groups, their sessions and topics. Return ``None`` if there is no such
    group."""
    paths = table["path"].combine_chunks()
    logged = pc.unique(paths).to_pylist()
    in_nodes = nodes["path"].to_pylist()
    listed = _listed(table)
    mine = {path for path in (*logged, *in_nodes, *listed) if path and _group_of(path) == group}
    if not mine:
        return None
    chroots = tuple(sorted({path.partition("/consumers/")[0] for path in mine}))
    rows = table.filter(_among(paths, mine))
    owned = nodes.filter(_among(nodes["path"], mine))
    sessions = {*rows["session"].to_pylist(), *owned["ephemeral_owner"].to_pylist()}
    sessions.update(session for path in mine & listed.keys() for session in listed[path])
    topics = {parts[-2] for path in mine if len(parts := path.split("/")) > _WITH_TOPIC}
    for part in (rows, owned):
        registered = part.filter(pc.match_substring(part["path"], "/ids/"))
        for row in registered.select(["path", "data"]).to_pylist():
            topics.update(subscription_of(row["path"], row["data"])[1])
    mine.update(path for path in (*logged, *in_nodes) if path and _is_shared(path, topics))
    alone = pc.and_(pc.is_null(paths), _among(table["session"], sessions - {0}))
    return (
        table.filter(pc.or_(_among(paths, mine), alone)),
        nodes.filter(_among(nodes["path"], mine)),
        chroots,
    )


def _among(column: pa.ChunkedArray, values: Iterable[Any]) -> pa.ChunkedArray:
    return pc.is_in(column, pa.array(list(values), column.type))


def _listed(table: pa.Table) -> dict[str, set[int]]:
    """Return the paths that the ends of sessions list, with the sessions."""
    closes = table.filter(pc.is_valid(table["deleted"])).select(["session", "deleted"])
    listed: dict[str, set[int]] = {}
    for row in closes.to_pylist():
        for path in row["deleted"]:
            listed.setdefault(path, set()).add(row["session"])
    return listed


def _group_of(path: str) -> str | None:
    """Return the group of a znode below ``/consumers/GROUP``."""
    parts = _GROUP.match(path)
    return parts[1] if parts else None


def _is_shared(path: str, topics: set[str]) -> bool:
    """Whether a path belongs to a broker, or to one of these topics."""
    parts = path.rsplit("/", 3)
    if parts[1:2] != ["brokers"]:
        return False
    return parts[2] == "ids" or (parts[2] == "topics" and parts[3] in topics)


def subscription_of(path: str, data: bytes | None) -> tuple[Pattern | None, list[str]]:
    """Return the pattern in a registration's data, and the topics or regexes. Returns ``None`` and
    an empty list if the format is unknown."""
    try:
        subscription = decode_registration(path, data or b"")
    except ZnodeFormatError:
        return None, []
    return subscription.pattern, [*sorted(subscription.topics), *other_regexes(path, data or b"")]


def _names(logs: Iterable[Piece], settings: Settings, snapshots: Sequence[Piece]) -> set[str]:
    """Return the names of all groups in the logs and in the first snapshot."""
    paths: set[str | None] = set()
    for batch in rows_of(settings, logs):
        paths.update(pc.unique(batch["path"]).to_pylist())
    for piece in snapshots[:1]:
        with suppress(LogFormatError, FileNotFoundError):
            for batch in read_snapshot(piece.path, columns=["path"]):
                paths.update(batch["path"].to_pylist())
    return {group for path in paths if path and (group := _group_of(path)) is not None}


def check_group(history: GroupHistory, group: str) -> None:
    """Raise InputMissingError if the history has no group of this name."""
    paths = [*pc.unique(history.rows["path"]).to_pylist(), *history.nodes["path"].to_pylist()]
    names = {name for path in paths if path and (name := _group_of(path)) is not None}
    if group not in names:
        raise InputMissingError(_no_such(group, names))


def check_size(directories: Sequence[str]) -> None:
    """Raise InputMissingError if a server has more logs than one process should read."""
    size: dict[str, int] = {}
    for log in selection.find(directories)[0]:
        size[log.server] = size.get(log.server, 0) + log.size
    if (most := max(size.values())) > MOST_BYTES:
        raise InputMissingError(
            f"the logs of one server total {most >> 20:,} MiB, but this command reads at most "
            f"{MOST_BYTES >> 20} MiB: use zkaudit run"
        )


def _no_such(group: str, names: set[str]) -> str:
    text = f"{group}: the logs have no group of this name"
    if near := difflib.get_close_matches(group, names, n=3):
        return f"{text}: did you mean {' or '.join(map(printable, near))}?"
    shown = ", ".join(map(printable, sorted(names)[:_MOST_NAMES]))
    more = ", ..." if len(names) > _MOST_NAMES else ""
    return f"{text}: they have {shown}{more}" if names else f"{text}, and no other group"
