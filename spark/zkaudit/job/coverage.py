"""Which part of the history the logs cover, on which servers, and where they contradict each
other.

Pure, from the runs in each log. Driver's thread.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from itertools import pairwise
from typing import Any, Final

import numpy as np

from zkaudit.errors import AuditError, InputMissingError
from zkaudit.history import committed
from zkaudit.history.committed import History, Range, Run, merged, subtracted
from zkaudit.sources.files import log_zxid
from zkaudit.sources.rows import sample_of
from zkaudit.sources.selection import milliseconds
from zkaudit.text import in_zone

_EPOCH: Final = 32
_OPTIONS: Final = ("--from", "--to")


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """A run of consecutive zxids in one log: a row of ``schema.TXNLOG_RUNS``. Times are
    milliseconds since 1970; ``None`` if unknown."""

    server: str
    file: str
    first: int | None
    last: int | None
    first_ms: int | None = None
    last_ms: int | None = None
    times: Sequence[int] = ()
    damage: str | None = None
    cut: str | None = None
    large: str | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> LoggedRun:
        """Return the run in a row. Columns after ``times`` may be missing."""
        clocks = (row["first_time"], row["last_time"])
        first, last = (None if time is None else round(time.timestamp() * 1000) for time in clocks)
        return cls(
            row["server"], row["file"], row["first_zxid"], row["last_zxid"], first, last,
            row["times"] or (), row.get("damage"), row.get("cut"), row.get("large"),
        )  # fmt: skip


def decided(
    logged: Sequence[LoggedRun],
    voters: int | None,
    begin: int | None,
    allow_damage: bool,
) -> tuple[History, list[Damage]]:
    """Decide which transactions were committed, and which logs are damaged.

    Args:
        logged: the runs of all logs.
        voters: number of voting servers; ``None``: unknown.
        begin: the first zxid to read.
        allow_damage: whether to continue if no server has the transactions after the damage.

    Raises AuditError if logs contradict each other, or for damage.
    """
    check_agreement(logged)
    damaged = damages(logged, begin)
    if not allow_damage:
        check_damage(damaged)
    return with_gaps(committed.plan(as_runs(logged), voters), damaged), damaged


def as_runs(logged: Iterable[LoggedRun]) -> list[Run]:
    """Return the runs in the form that ``committed.plan`` needs."""
    return [Run(run.server, first, last) for run, first, last in _ends(logged)]


def takes(logged: Sequence[LoggedRun], voters: int | None) -> set[tuple[str, str]]:
    """Return the server and the name of each log from which transactions must be read."""
    plan = committed.plan(as_runs(logged), voters)
    return {
        (run.server, run.file)
        for run, first, last in _ends(logged)
        if committed.takes(plan, run.server, first, last)
    }


def _ends(logged: Iterable[LoggedRun]) -> Iterator[tuple[LoggedRun, int, int]]:
    for run in logged:
        if run.first is not None and run.last is not None:
            yield run, run.first, run.last


def check_agreement(logged: Iterable[LoggedRun]) -> None:
    """Raise AuditError if two logs have different transactions with the same zxid.

    A leader gives each zxid to one transaction, and all servers log the same time for it. The times
    of a sample are compared.
    """
    runs = [run for run in _ends(logged) if len(run[0].times)]
    zxids, times, numbers = [], [], []
    for number, (run, first, last) in enumerate(runs):
        sampled = sample_of(first, last)
        if len(sampled) == len(run.times):  # otherwise a zxid was logged twice
            zxids.append(sampled)
            times.append(np.asarray(run.times, np.int64))
            numbers.append(np.full(len(sampled), number))
    if not zxids:
        return
    zxid, time, number = map(np.concatenate, (zxids, times, numbers))
    order = np.lexsort((number, zxid))
    zxid, time, number = zxid[order], time[order], number[order]
    differ = np.flatnonzero((zxid[1:] == zxid[:-1]) & (time[1:] != time[:-1]))
    if not len(differ):
        return
    one, other = (runs[int(number[differ[0] + step])][0] for step in (0, 1))
    raise AuditError(
        f"{one.server}: {one.file} and {other.server}: {other.file} have different transactions "
        f"with zxid {int(zxid[differ[0]]):#x}: they are from two ensembles, or from before and "
        "after a backup was restored: audit them separately"
    )


def logged_twice(logged: Iterable[LoggedRun]) -> bool:
    """Whether a server has logged a zxid twice, so that its rows are duplicated."""
    of: dict[str, list[Range]] = defaultdict(list)
    for run, first, last in _ends(logged):
        of[run.server].append((first, last))
    pairs = (pair for ranges in of.values() for pair in pairwise(sorted(ranges)))
    return any(later[0] <= earlier[1] for earlier, later in pairs)


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged log.

    Args:
        after: the last transaction of the server before the damage; 0 if there is none.
        until: the first transaction of the server's next log; ``None``: there is no later log.
        lost: the zxids that may be in no server's log; ``None``: other servers have them.
    """

    server: str
    file: str
    reason: str
    after: int
    until: int | None
    lost: Range | None

    def __str__(self) -> str:
        return f"{self.server}: {self.file}: {self.reason}"


def damages(logged: Iterable[LoggedRun], begin: int | None = None) -> list[Damage]:
    """Return the damaged logs. The transactions between the damage and the server's next log are
    missing.

    ``begin``: the first zxid to read.
    """
    runs = list(logged)
    ends = list(_ends(runs))
    found = []
    for run in runs:
        if run.damage is None:
            continue
        named = log_zxid(run.file) or 0
        mine = [part for part in ends if part[0].server == run.server]
        after = max((last for part, _, last in mine if part.file == run.file), default=named - 1)
        after = max(after, (begin or 0) - 1)
        until = min((first for part, first, _ in mine if first > after), default=None)
        lost = _lost(after, until, run.server, ends)
        found.append(Damage(run.server, run.file, run.damage, max(after, 0), until, lost))
    return found


def _lost(
    after: int,
    until: int | None,
    server: str,
    ends: Sequence[tuple[LoggedRun, int, int]],
) -> Range | None:
    """Return the zxids after ``after`` and before ``until`` that may be in no server's log;
    ``None`` if other servers' logs continue."""
    beyond = [last for run, _, last in ends if run.server != server and last > after]
    epoch = after >> _EPOCH
    if until is None:
        return None if beyond else (after + 1, after + 1)
    if until >> _EPOCH != epoch and not any(last >> _EPOCH == epoch for last in beyond):
        return after + 1, until - 1
    if until >> _EPOCH != epoch:
        return None
    everywhere = merged((first, last) for _, first, last in ends)
    left = subtracted([(after + 1, until - 1)] if after + 1 < until else [], everywhere)
    return (left[0][0], left[-1][1]) if left else None


def cut_off(logged: Iterable[LoggedRun]) -> list[str]:
    """Return the logs whose last record is incomplete. Logs whose record is complete in the
    server's next log are left out: the server stopped while it wrote the record."""
    runs = list(logged)
    begins = {(run.server, first) for run, first, _ in _ends(runs)}
    return [
        f"{run.server}: {run.file}: {run.cut}"
        for run in runs
        if run.cut is not None and (run.server, (run.last or 0) + 1) not in begins
    ]


def check_damage(found: Iterable[Damage]) -> None:
    """Raise AuditError for the first damage after which the transactions may be missing on all
    servers."""
    for damage in found:
        if damage.lost is not None:
            raise AuditError(
                f"{damage}: no server has the transactions that follow: copy the log again, add "
                "the other servers' logs, or accept a log gap with --allow-damage"
            )


def with_gaps(plan: History, found: Iterable[Damage]) -> History:
    """Add the transactions that were lost by damage to the log gaps.

    Otherwise a loss at the end of an epoch would not be noticed. A server that lacks transactions
    because its log is damaged does not contradict the other servers.
    """
    gaps = [*plan.log_gaps]
    contradicted = plan.contradicted
    for damage in found:
        contradicted = tuple(
            (first, last)
            for first, last in contradicted
            if last <= damage.after or (damage.until is not None and first >= damage.until)
        )
        if damage.lost is not None and damage.until is not None:
            first, last = damage.lost
            if not any(begin <= first and last <= end for begin, end in gaps):
                gaps.append((first, last))
    return replace(plan, log_gaps=tuple(sorted(gaps)), contradicted=contradicted)


@dataclass(frozen=True, slots=True)
class Coverage:
    """The time that the logs cover, in milliseconds since 1970.

    Args:
        first_ms: time of the first transaction.
        last_ms: time of the last one.
        servers: the first and last time of each server with transactions.
        empty: servers without a transaction.
        damaged: the damaged logs.
        cut: the result of ``cut_off``.
        large: logs with a record that is longer than servers read by default.
        missing: begin, end and reason of each requested period that no log covers; ``None``:
        unknown.
        last_zxid: the last transaction.
    """

    first_ms: int | None
    last_ms: int | None
    servers: dict[str, tuple[int | None, int | None]]
    empty: tuple[str, ...]
    missing: tuple[tuple[int | None, int | None, str], ...]
    damaged: tuple[Damage, ...] = ()
    cut: tuple[str, ...] = ()
    large: tuple[str, ...] = ()
    last_zxid: int | None = None

    @property
    def last_us(self) -> int | None:
        """Time of the last transaction in microseconds since 1970."""
        return None if self.last_ms is None else self.last_ms * 1000

    def sentences(
        self, zone: tzinfo | None = UTC, name: str = "UTC"
    ) -> Iterator[tuple[datetime | None, datetime | None, str]]:
        """Yield begin, end, and a sentence for each period that no log covers. Times are shown in
        ``zone`` (``None``: the zone of this machine)."""
        for begin, end, reason in self.missing:
            moments = moment_of(begin), moment_of(end)
            since, until = (
                f"{in_zone(moment, zone):%Y-%m-%d %H:%M:%S}" if moment else "?"
                for moment in moments
            )
            text = f"What happened from {since} to {until} ({name}) is unknown: {reason}."
            yield *moments, text

    def summary(self) -> dict[str, Any]:
        """Return the coverage for ``summary.json``, with ISO times."""
        servers = {**self.servers, **dict.fromkeys(self.empty, (None, None))}
        return {
            "first_time": _iso(self.first_ms),
            "damaged": [str(damage) for damage in self.damaged],
            "cut": list(self.cut),
            "large": list(self.large),
            "coverage": [
                {"server": server, "first_time": _iso(first), "last_time": _iso(last)}
                for server, (first, last) in servers.items()
            ],
            "not_covered": [
                {"from": _iso(begin), "to": _iso(end), "reason": reason}
                for begin, end, reason in self.missing
            ],
        }


def covered(
    logged: Iterable[LoggedRun],
    servers: Iterable[str],
    log_gaps: Sequence[Range],
    start_ms: int | None,
    end_ms: int | None,
    damaged: Sequence[Damage] = (),
) -> Coverage:
    """Return which part of the time from ``start_ms`` to ``end_ms`` the logs of ``servers`` cover.

    ``log_gaps``: the result of ``committed.log_gaps_of``. Before the first log, only the time
    after ``start_ms`` counts as missing.
    """
    logged = list(logged)
    ends = list(_ends(logged))
    begins = sorted(ends, key=lambda part: part[1])
    finishes = sorted(ends, key=lambda part: part[2])
    first_ms = begins[0][0].first_ms if ends else None
    last_ms = finishes[-1][0].last_ms if ends else None
    of: dict[str, tuple[int | None, int | None]] = {}
    for server in sorted({run.server for run, _, _ in ends}):
        mine = [part for part in ends if part[0].server == server]
        of[server] = (min(mine, key=lambda part: part[1])[0].first_ms,
                      max(mine, key=lambda part: part[2])[0].last_ms)  # fmt: skip
    missing: list[tuple[int | None, int | None, str]] = []
    for after, until in log_gaps:
        at = bisect_right(finishes, after, key=lambda part: part[2])
        begin = finishes[at - 1][0].last_ms if at else None
        at = bisect_left(begins, until, key=lambda part: part[1])
        end = begins[at][0].first_ms if at < len(begins) else None
        if after == 0:
            if start_ms is not None and (end is None or start_ms < end):
                missing.append((start_ms, end, "the logs begin later"))
        elif _meets(begin, end, start_ms, end_ms):
            missing.append((begin, end, f"no log has zxids {after + 1:#x} to {until - 1:#x}"))
    for damage in damaged:
        lost = damage.lost and damage.lost[0]
        if lost is None or any(after and after < lost <= until for after, until in log_gaps):
            continue  # nothing is missing, or a log gap shows it
        time = (last_ms, None) if damage.until is None else (None, first_ms)
        missing.append((*time, f"{damage} and no server has what follows"))
    if end_ms is not None and (last_ms is None or last_ms < end_ms):
        missing.append((last_ms, end_ms, "the logs end earlier"))
    empty = tuple(sorted(set(servers) - of.keys()))
    large = tuple(f"{run.server}: {run.file}: {run.large}" for run in logged if run.large)
    last_zxid = finishes[-1][2] if ends else None
    return Coverage(
        first_ms, last_ms, of, empty, tuple(missing), tuple(damaged), tuple(cut_off(logged)), large,
        last_zxid,
    )  # fmt: skip


def coverage_of(
    logged: Iterable[LoggedRun],
    servers: Iterable[str],
    plan: History,
    start: str | None,
    end: str | None,
    damaged: Sequence[Damage] = (),
) -> Coverage:
    """Return which part of the time from ``start`` to ``end`` the logs cover. The times are ISO;
    ``None``: no limit."""
    start_ms, end_ms = (None if time is None else milliseconds(time) for time in (start, end))
    return covered(logged, servers, committed.log_gaps_of(plan), start_ms, end_ms, damaged)


def check_any(plan: History, directories: Iterable[str]) -> None:
    """Raise InputMissingError if the logs have no transactions."""
    if not plan.take and not plan.dropped:
        raise InputMissingError(
            f"{', '.join(directories)}: the logs have no transactions: copy them again, or name "
            "other directories"
        )


def check_times(
    coverage: Coverage, start: str | None, end: str | None, options: Sequence[str] = _OPTIONS
) -> None:
    """Raise InputMissingError if the whole history is before ``start`` or after ``end`` (ISO).
    ``options``: the options that give these times."""
    first, last = coverage.first_ms, coverage.last_ms
    if first is None or last is None:
        return
    for outside, option, value, way, time in (
        (start and last < milliseconds(start), options[0], start, "end before that", last),
        (end and first >= milliseconds(end), options[1], end, "begin after that", first),
    ):
        if outside:
            at = f"{moment_of(time):%Y-%m-%d %H:%M:%S}"
            raise InputMissingError(
                f"{option} {value}: the logs {way}, at {at} (UTC): choose another time"
            )


def _meets(begin: int | None, end: int | None, start: int | None, stop: int | None) -> bool:
    """Whether times overlap a range. Unknown times may."""
    late = start is not None and end is not None and end < start
    early = stop is not None and begin is not None and begin >= stop
    return not late and not early


def moment_of(ms: int | None) -> datetime | None:
    """Return milliseconds since 1970 as a time in UTC."""
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


def _iso(ms: int | None) -> str | None:
    moment = moment_of(ms)
    return None if moment is None else moment.isoformat()
