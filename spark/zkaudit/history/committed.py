"""One history from the logs of many servers: committed, missing and unconfirmed transactions.

A server's log contains proposals. If a leader is killed after it alone has logged a proposal, the
proposal stays in its log although it was never committed. Decisions about proposals use only
zxids, never times. They are pure; ``apply`` passes them to Spark as a filter, without a shuffle.
Driver's thread.

A zxid is an epoch (upper 32 bits, one for each leader) and a counter from 1. A commit needs a
majority that logged it, and the commits of an epoch are a prefix of its proposals. So:

- A proposal that a majority logged was committed, and so were all earlier ones in its epoch.
- A leader has few open proposals at a time, so a proposal with many successors in its epoch was
  committed.
- A server that continues with counter 1 of a later epoch has logged nothing after its last zxid.
  If too few servers for a majority can have logged a proposal, it was never committed. Proposals
  that all such servers have were committed, because a leader makes its followers truncate
  proposals that it lacks.
- All others are kept and marked as unconfirmed, until later transactions decide about them
  (``history.doubt``). If none does, a proposal that such a server lacks is left out as well.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from zkaudit.schema import CONFIG

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

Range = tuple[int, int]
"""First and last zxid of a range within one epoch, both included."""

_COUNTER: Final = 0xFFFFFFFF
_PIECE: Final = 16
OPEN_PROPOSALS: Final = 2_000
"""Number of successors in its epoch with which a proposal was committed. A leader has as many open
proposals as ``globalOutstandingLimit`` allows, 1,000 by default, and one more for each connection.
"""
MAX_TESTS: Final = 100
"""Number of ranges above which rows are joined with the ranges instead of compared with each."""


@dataclass(frozen=True, slots=True)
class Run:
    """A range of consecutive zxids of one epoch in the logs of one server."""

    server: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class History:
    """The combined history of the servers' logs."""

    take: Mapping[str, tuple[Range, ...]]
    """The zxids to read from each server. Each zxid occurs exactly once; dropped ones are left
    out."""
    log_gaps: tuple[Range, ...]
    """Zxids that existed but are in no log. Zxids before the first log, after the last log, and
    after the last one of each epoch are unknown."""
    dropped: tuple[Range, ...]
    """Proposals that were never committed, because too many servers did not log them."""
    unconfirmed: tuple[Range, ...]
    """Proposals that may or may not have been committed."""
    contradicted: tuple[Range, ...] = ()
    """Ranges of ``unconfirmed`` that a server lacks although it continued with a later epoch."""


def epoch(zxid: int) -> int:
    """Return the leader's epoch in a zxid."""
    return zxid >> 32


def counter(zxid: int) -> int:
    """Return the number of a zxid within its epoch, from 1."""
    return zxid & _COUNTER


def plan(
    runs: Iterable[Run],
    ensemble: int | None = None,
    open_proposals: int | None = OPEN_PROPOSALS,
) -> History:
    """Combine the logs of all servers into one history.

    ``ensemble``: the number of voting servers. By default it is the number of logs. In that case, a
    proposal is not dropped if any server continued after it, because there may be more servers, and
    some of the logs may belong to observers, which do not vote. A single log with a leader's epochs
    is treated as the log of one of three servers. ``open_proposals``: see ``OPEN_PROPOSALS``;
    ``None``: no limit.
    """
    by_server: dict[str, list[Range]] = defaultdict(list)
    for run in runs:
        by_server[run.server].append((run.first, run.last))
    servers = {server: merged(ranges) for server, ranges in by_server.items()}
    voters = ensemble or len(servers)
    led = any(epoch(first) for ranges in servers.values() for first, _ in ranges)
    if ensemble is None and voters == 1 and led:
        voters = 3
    majority = voters // 2 + 1
    too_many = voters - majority + 1
    union = merged(r for ranges in servers.values() for r in ranges)
    by_epoch: dict[int, dict[str, list[Range]]] = defaultdict(lambda: defaultdict(list))
    for server, ranges in servers.items():
        for part in ranges:
            by_epoch[epoch(part[0])][server].append(part)
    changes = [_changes(ranges) for ranges in servers.values()]
    begins = [ranges[0][0] for ranges in servers.values()]
    # Before that epoch, a server may have continued without having what came before.
    purged = max((epoch(first) for first in begins if counter(first) == 1), default=0)
    doubts = _Doubts()
    for number, inside in sorted(by_epoch.items()):
        last = max(r[1] for ranges in inside.values() for r in ranges)
        sure = held_by(inside.values(), majority)
        if open_proposals is not None:
            sure = max(sure, last - open_proposals)
        passing = [change for pairs in changes for change in _passing(pairs, number)]
        doubts.add(number, last, sure, passing, too_many, number >= purged)
    logged = [
        tuple(part for r in ranges for part in _overlaps(r, _near(r, union)))
        for ranges in (doubts.dropped, doubts.unsure, doubts.contradicted)
    ]
    gaps = _log_gaps([r for part in union for r in _without(part, doubts.dropped)])
    return History(_cover(servers, doubts.dropped), tuple(gaps), *logged)


@dataclass
class _Doubts:
    """Ranges as in ``History``, including zxids that no server logged."""

    dropped: list[Range] = field(default_factory=list)
    unsure: list[Range] = field(default_factory=list)
    contradicted: list[Range] = field(default_factory=list)

    def add(
        self, number: int, last: int, sure: int, passing: list[Range], too_many: int, known: bool
    ) -> None:
        """Classify the proposals of an epoch up to ``last``.

        ``sure``: those up to this one are committed. ``passing``: how servers continued with
        later epochs. ``too_many``: if this many servers lack a proposal, it was not committed.
        ``known``: every server that continued is known to have had all earlier proposals.
        """
        ends = sorted(max(end, number << 32) for end, _ in passing)
        if ends:
            if known:
                sure = max(sure, ends[0])
            # A leader makes its followers truncate proposals that it does not have. So it had
            # those that a server still has when it continues with a later epoch.
            kept = max((end for end, _ in passing if epoch(end) == number), default=-1)
            if len(ends) >= too_many:
                false_from = max(sure, ends[too_many - 1], kept) + 1
                if false_from <= last:
                    self.dropped.append((false_from, last))
                    last = false_from - 1
            if max(sure, kept) < last:
                self.contradicted.append((max(sure, kept) + 1, last))
        begin = max(sure + 1, number << 32 | 1)
        if begin <= last:
            self.unsure.append((begin, last))


def settled(
    history: History, refuted: Mapping[int, int] = {}, proven: Mapping[int, int] = {}
) -> History:
    """Decide which unconfirmed proposals were committed, from later transactions.

    ``refuted``: for each epoch, the first zxid that a later transaction contradicts. ``proven``:
    for each epoch, the last zxid that a later transaction proves. The committed proposals of an
    epoch are always the first ones. Contradicted proposals that neither mapping decides are
    dropped.
    """
    dropped: list[Range] = []
    unsure: list[Range] = []
    for whole in history.unconfirmed:
        of = epoch(whole[0])
        good, bad = proven.get(of, -1), refuted.get(of, 2**63 - 1)
        if good >= bad:  # the logs do not agree with one another
            good, bad = -1, 2**63 - 1
        first, last = max(whole[0], good + 1), whole[1]
        bad = min([bad, *(max(low, first) for low, _ in history.contradicted if epoch(low) == of)])
        if bad <= last:
            dropped.append((max(first, bad), last))
            last = max(first, bad) - 1
        if first <= last:
            unsure.append((first, last))
    take = {server: tuple(subtracted(ranges, dropped)) for server, ranges in history.take.items()}
    return History(
        {server: ranges for server, ranges in take.items() if ranges},
        history.log_gaps,
        tuple(sorted([*history.dropped, *dropped])),
        tuple(unsure),
    )


def is_open(history: History) -> bool:
    """Whether all transactions after the first unconfirmed one are unconfirmed, too. Then none of
    them can show whether the first one was committed."""
    first = min(history.unconfirmed, default=(2**63, 0))[0]
    confirmed = (subtracted(ranges, history.unconfirmed) for ranges in history.take.values())
    return all(last < first for ranges in confirmed for _, last in ranges)


def within(zxid: int, ranges: Iterable[Range]) -> bool:
    """Whether a range contains the zxid."""
    return any(first <= zxid <= last for first, last in ranges)


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Return ranges in order. Ranges of one epoch that touch or overlap are merged."""
    ranges_: list[Range] = []
    for first, last in sorted(ranges):
        if ranges_ and first <= ranges_[-1][1] + 1 and epoch(first) == epoch(ranges_[-1][1]):
            ranges_[-1] = (ranges_[-1][0], max(ranges_[-1][1], last))
        else:
            ranges_.append((first, last))
    return ranges_


def held_by(servers: Iterable[list[Range]], majority: int) -> int:
    """Return the largest zxid that at least ``majority`` servers have logged; -1 if there is
    none."""
    edges = sorted(
        edge
        for ranges in servers
        for first, last in ranges
        for edge in ((first, 1), (last + 1, -1))
    )
    depth, best = 0, -1
    for at, step in sorted(edges, key=lambda edge: (edge[0], edge[1])):
        if step < 0 and depth >= majority:
            best = max(best, at - 1)
        depth += step
    return best


def _changes(ranges: list[Range]) -> list[Range]:
    """Return the last zxid before and the first zxid after each change to an epoch's first
    transaction."""
    return [
        (last, first)
        for (_, last), (first, _) in pairwise(ranges)
        if epoch(last) < epoch(first) and counter(first) == 1
    ]


def _passing(changes: list[Range], number: int) -> list[Range]:
    """Return the change of one server from this epoch or an earlier one to a later one, if any.

    ``changes`` are in order and do not overlap.
    """
    place = bisect_right(changes, number, key=lambda change: epoch(change[0]))
    found = changes[max(0, place - 1) : place]
    return [change for change in found if number < epoch(change[1])]


def _cover(
    servers: Mapping[str, list[Range]], dropped: list[Range]
) -> dict[str, tuple[Range, ...]]:
    """Assign each zxid to the first server, by name, that logged it.

    So a growing log does not change the servers of earlier zxids.
    """
    take: dict[str, tuple[Range, ...]] = {}
    taken: list[Range] = []
    for server, ranges in sorted(servers.items()):
        real = [part for whole in ranges for part in _without(whole, dropped)]
        if mine := subtracted(real, taken):
            take[server] = tuple(mine)
        taken = merged([*taken, *real])
    return take


def subtracted(ranges: Iterable[Range], others: Sequence[Range]) -> list[Range]:
    """Return ranges without the zxids in ``others``. ``others`` must be disjoint and in order."""
    left: list[Range] = []
    for first, last in ranges:
        for begin, end in _near((first, last), others):
            if first < begin:
                left.append((first, begin - 1))
            first = end + 1
        if first <= last:
            left.append((first, last))
    return left


def _without(whole: Range, dropped: list[Range]) -> list[Range]:
    """Return a range without the dropped range of its epoch, which extends to the end of the
    epoch.

    ``dropped`` has at most one range for each epoch, in order.
    """
    first, last = whole
    place = bisect_left(dropped, epoch(first), key=lambda r: epoch(r[0]))
    for begin, end in dropped[place : place + 1]:
        if epoch(begin) == epoch(first) and begin <= last <= end:
            last = begin - 1
    return [(first, last)] if first <= last else []


def _near(whole: Range, ranges: Sequence[Range]) -> Sequence[Range]:
    """Return those of disjoint, ordered ranges that overlap ``whole``."""
    begin = bisect_left(ranges, whole[0], key=lambda r: r[1])
    return ranges[begin : bisect_right(ranges, whole[1], key=lambda r: r[0])]


def _overlaps(whole: Range, ranges: Iterable[Range]) -> Iterable[Range]:
    for first, last in ranges:
        if first <= whole[1] and whole[0] <= last:
            yield max(first, whole[0]), min(last, whole[1])


def _log_gaps(union: list[Range]) -> Iterable[Range]:
    """Return the gaps between ranges: within an epoch, and before an epoch's first range."""
    for (_, last), (first, _) in pairwise(union):
        begin = last + 1 if epoch(last) == epoch(first) else first & ~_COUNTER | 1
        if begin < first:
            yield begin, first - 1


def takes(history: History, server: str, first: int, last: int) -> bool:
    """Whether transactions of a run are read from this server, or would be if no proposals were
    dropped. Rows that are read later may show that dropped proposals were committed."""
    mine = history.take.get(server, ())
    return bool(_near((first, last), mine) or _near((first, last), history.dropped))


def log_gaps_of(history: History) -> list[tuple[int, int]]:
    """Return each log gap as a pair: the last zxid before it and the first zxid after it.

    A history that does not begin with an ensemble's first transaction begins with a log gap.
    """
    begun = min((first for ranges in history.take.values() for first, _ in ranges), default=1)
    front = [] if begun in (1, (1 << 32) | 1) else [(0, begun)]
    return front + [(first - 1, last + 1) for first, last in history.log_gaps if first > begun]


def participants(*configs: tuple[int, bytes] | None) -> int | None:
    """Return the number of voting servers in the newest of some versions of ``/zookeeper/config``;
    ``None`` if unknown. ``configs``: zxid and content of each version."""
    newest = max(filter(None, configs), default=None)
    lines = (b"" if newest is None else newest[1]).decode(errors="replace").splitlines()
    servers = [line.partition(";")[0] for line in lines if line.startswith("server.")]
    return sum(not server.endswith(":observer") for server in servers) or None


def config_of(rows: pa.Table) -> tuple[int, bytes] | None:
    """Return the zxid and content of the newest ensemble configuration among ``rows``, which have
    the columns zxid, path and data; ``None`` if there is none. ZooKeeper 3.5 and later writes it
    (``reconfig``)."""
    import pyarrow.compute as pc

    configs = rows.filter(pc.and_(pc.equal(rows["path"], CONFIG), pc.is_valid(rows["data"])))
    each = configs.select(["zxid", "data"]).to_pylist()
    return max(((row["zxid"], row["data"]) for row in each), default=None)


def apply(frame: DataFrame, history: History) -> DataFrame:
    """Keep each operation once, leave out operations that were never committed, and add the column
    ``confirmed``.

    ``frame`` has the columns of ``schema.TXNLOG``. Needs no shuffle, because each zxid is read from
    one server only. If the order matters, sort the result by zxid and idx, not by time.
    """
    from functools import reduce
    from operator import or_

    from pyspark.sql import functions as F

    if sum(map(len, history.take.values())) + len(history.unconfirmed) > MAX_TESTS:
        return _joined(frame, history)

    def any_of(ranges: Iterable[Range]) -> Column:
        tests = [F.col("zxid").between(first, last) for first, last in ranges]
        return reduce(or_, tests, F.lit(False))

    wanted = [
        (F.col("server") == server) & any_of(ranges) for server, ranges in history.take.items()
    ]
    kept = frame.where(reduce(or_, wanted, F.lit(False)))
    return kept.withColumn("confirmed", ~any_of(history.unconfirmed))


def _joined(frame: DataFrame, history: History) -> DataFrame:
    """Do the same as ``apply`` if there are too many ranges for one expression, with a broadcast
    join.

    Ranges are split where a zxid's upper bits change, so that few are compared with each row.
    """
    from pyspark.sql import functions as F

    pieces = [
        (server, part >> _PIECE, *inside, sure)
        for server, ranges in history.take.items()
        for whole in ranges
        for first, last, sure in _split(whole, history.unconfirmed)
        for part in range(first >> _PIECE << _PIECE, last + 1, 1 << _PIECE)
        for inside in _overlaps((first, last), [(part, part + (1 << _PIECE) - 1)])
    ]
    ddl = "server_ string, part_ long, first_ long, last_ long, confirmed boolean"
    ranges = F.broadcast(frame.sparkSession.createDataFrame(pieces, ddl))
    fits = (
        (F.col("server") == F.col("server_"))
        & (F.shiftright("zxid", _PIECE) == F.col("part_"))
        & F.col("zxid").between(F.col("first_"), F.col("last_"))
    )
    return frame.join(ranges, fits).select(*frame.columns, "confirmed")


def _split(whole: Range, unsure: tuple[Range, ...]) -> Iterable[tuple[int, int, bool]]:
    """Split a range into confirmed and unconfirmed parts. ``unsure`` is ordered."""
    at, end = whole
    for first, last in _overlaps(whole, _near(whole, unsure)):
        if at < first:
            yield at, first - 1, True
        yield first, last, False
        at = last + 1
    if at <= end:
        yield at, end, True
