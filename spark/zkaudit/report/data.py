"""Data for the report page, from an audit's tables. Its size does not grow with the history.

Time is divided into buckets, and the page draws cells, not intervals. Findings are shown exactly,
as are intervals if there are few. Reads the tables' Parquet files without Spark. Tables that grow
with the history are aggregated while they are read. Driver's thread.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero, dataset

from zkaudit.limits import SEVERITIES
from zkaudit.report.verdict import Count, verdict
from zkaudit.show import command
from zkaudit.sources.selection import BEFORE_START, milliseconds
from zkaudit.tables.catalog import GROUP, TABLES
from zkaudit.text import names_of, printable

BUCKETS: Final = 480
MAX_ROWS: Final = 500
"""Largest number of partitions in the timeline. Those with findings are first, then those of the
groups on the page."""
MAX_FINDINGS: Final = 2_000
MAX_EXACT: Final = 1_000_000
"""Largest number of intervals that the page has exactly, packed. With more, the timeline shows
only cells."""
MAX_GROUPS: Final = 200
"""Largest number of groups in the selector. Those with the worst findings are first."""
MAX_HERDS: Final = 10
"""Number of changes of membership that are shown for all groups together."""
MAX_HERDS_OF_GROUP: Final = 5
"""Smallest number of changes of membership that are shown for each group in the selector."""

KEY: Final = (*GROUP, "topic", "partition")
_RANKS: Final = pa.array(SEVERITIES)
_GroupKey = tuple[str, str]
_Partition = tuple[str, str, str, int]

LIMITS_OF_LOGS: Final = (
    "An owner znode is one path and ZooKeeper orders all writes to it, so the logs never show "
    "two owners at once, even if two members believe that they own the partition. Only a commit "
    "by a session that did not own the partition, or members' journals, show an overlap.",
    "Reads and watches are not logged. So the logs do not show when a member read the group, "
    "which view it had, and which messages it delivered, and they give only an upper bound for "
    "the size of a herd. Members' journals show all of this. JVM consumers keep none.",
    "Times are from the leader's clock. The order is that of the transactions. Lines of journals "
    "are ordered by the members' own clocks, which may differ by a second.",
    "An offset stored in Kafka has no session. So a lowered offset is visible, but not which "
    "client committed it. Compaction keeps only the last offsets.",
    "The log has the error of a refused write, but not its path. So refused creates of members' "
    "sessions are counted as refused claims.",
)


class Tables:
    """The tables of an audit.

    Args:
        every: the dataset of each table, by name.
        names: use only rows of the groups with these names, and findings without a group; ``None``:
            all rows.
    """

    def __init__(
        self, every: Mapping[str, dataset.Dataset], names: Sequence[str] | None = None
    ) -> None:
        self._every = every
        self._names = names

    @classmethod
    def at(cls, place: Path) -> Tables:
        """Open the tables of an audit in a directory. Raises OSError or ValueError if one is
        missing."""
        return cls({t.name: dataset.dataset(place / t.name, format="parquet") for t in TABLES})

    def of(self, names: Sequence[str]) -> Tables:
        """Return the same tables, limited to the groups with these names."""
        return Tables(self._every, names)

    def _where(self, name: str, where: pc.Expression | None) -> pc.Expression | None:
        if self._names is None:
            return where
        group = pc.field("group_id")
        mine = group.isin(self._names)
        if name == "findings":  # those about time that no log covers are of no group
            mine |= group.is_null()
        return mine if where is None else mine & where

    def rows(
        self, name: str, columns: Sequence[str], where: pc.Expression | None = None
    ) -> pa.Table:
        """Return the rows of a table that match ``where``, in memory. Only for few rows."""
        return self._every[name].to_table(list(columns), filter=self._where(name, where))

    def batches(
        self, name: str, columns: Sequence[str], where: pc.Expression | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a table that match ``where``."""
        found: Iterator[pa.RecordBatch] = self._every[name].to_batches(
            columns=list(columns), filter=self._where(name, where)
        )
        return found

    def count(self, name: str) -> int:
        """Return the number of rows of a table."""
        return int(self._every[name].count_rows(filter=self._where(name, None)))

    def grouped(
        self,
        name: str,
        keys: Sequence[str],
        values: Sequence[tuple[str, str, str]] = (),
        where: pc.Expression | None = None,
        **computed: pc.Expression,
    ) -> pa.Table:
        """Group the rows of a table. Return one row for each combination of ``keys``, with the
        number of rows as ``n``.

        Only the result is in memory. ``values``: name, column and aggregate function of further
        columns. ``computed``: further keys, computed from the column ``time``.
        """
        every, chosen = self._every[name], self._where(name, where)
        columns = dict.fromkeys([*keys, *(column for _, column, _ in values)])
        read = [*columns, *(["time"] if computed else [])]
        steps = [
            acero.Declaration("scan", acero.ScanNodeOptions(every, columns=read, filter=chosen))
        ]
        if chosen is not None:  # the scan only skips what the files' statistics exclude
            steps.append(acero.Declaration("filter", acero.FilterNodeOptions(chosen)))
        made = {column: pc.field(column) for column in columns} | computed
        steps.append(
            acero.Declaration("project", acero.ProjectNodeOptions([*made.values()], [*made]))
        )
        unknown = pc.CountOptions("only_null")
        aggregates: list[tuple[Any, str, Any, str]] = [
            (column, f"hash_{function}", unknown if function == "count" else None, as_name)
            for as_name, column, function in values
        ]
        aggregates.append(([], "hash_count_all", None, "n"))
        options = acero.AggregateNodeOptions(aggregates, keys=[*keys, *computed])
        steps.append(acero.Declaration("aggregate", options))
        names = [*keys, *computed, *(as_name for as_name, *_ in values), "n"]
        return acero.Declaration.from_sequence(steps).to_table().select(names)


def _rows_of(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    return zip(*[column.to_pylist() for column in table.columns], strict=True)


def _millis(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())


def _millis_of(name: str) -> pc.Expression:
    """Return a column from a file, in milliseconds since 1970."""
    return pc.divide(pc.field(name).cast(pa.timestamp("us", "UTC")).cast(pa.int64()), 1000)


def chosen(
    summary: dict[str, Any], tables: Tables, group: str, names: Sequence[str]
) -> tuple[dict[str, Any], Tables]:
    """Return the summary and the tables, limited to the groups with these names. ``group``: the
    regex that chose them."""
    tables = tables.of(names)
    counted = tables.grouped("findings", ("severity", "kind"))
    of_kind = {(severity, kind): n for severity, kind, n in _rows_of(counted)}
    moved = set(_rows_of(tables.rows("migrations", GROUP)))
    return summary | {
        "group": group,
        "intervals": tables.count("ownership"),
        "commits": tables.count("commits"),
        "migrations": [
            row
            for row in summary.get("migrations", ())
            if (row["chroot"], row["group_id"]) in moved
        ],
        "findings": [
            found | {"count": of_kind[found["severity"], found["kind"]]}
            for found in summary["findings"]
            if (found["severity"], found["kind"]) in of_kind
        ],
    }, tables


def data_of(summary: dict[str, Any], tables: Tables) -> dict[str, Any]:
    """Return the data for the report page. Its size does not grow with the length of the
    history."""
    counted = _counted(tables)
    listed = _listed(tables, summary)
    every = _all_groups(tables, counted)
    carried, others = every[:MAX_GROUPS], every[MAX_GROUPS:]
    spans = _Spans.of(summary)
    owned = _partitions(tables, None)
    seen = owned if spans.earliest is None else _partitions(tables, spans)
    begin, end = spans.limits(seen)
    width = max(1, -(-(end - begin + 1) // BUCKETS))
    groups = _groups(tables, owned, carried, _modes(summary))
    rows = _rows(tables, owned, groups, _worst_groups(listed, carried))
    members: dict[str, int] = {}
    intervals = _intervals(tables, rows, spans)
    is_exact = len(intervals.row) <= MAX_EXACT
    return {
        "summary": summary,
        "verdict": verdict(_counts(counted), summary),
        "only": _only(summary.get("group")),
        "limits": list(LIMITS_OF_LOGS),
        "findings": listed,
        "begin": begin,
        "end": end,
        "clamped": spans.earliest is not None,
        "width": width,
        "rows": [list(row) for row in rows],
        "partitions": len(seen),
        "cells": _cells(intervals, len(rows), members, begin, width),
        "exact": _packed(intervals, members, begin, end) if is_exact else None,
        "groups": _series(tables, groups, begin, width),
        "all_groups": len(every),
        "others": _others(others),
        "members": list(members),
        "herds": _herds(tables, groups),
        "changes": tables.count("herds"),
    }


_COUNTED: Final = ("severity", "kind", "effect", "basis", *GROUP)


def _counted(tables: Tables) -> list[dict[str, Any]]:
    """Return the findings, counted for each combination of ``_COUNTED``, with the sum
    of messages."""
    values = (("messages", "messages", "sum"), ("unknown", "messages", "count"))
    found: list[dict[str, Any]] = tables.grouped("findings", _COUNTED, values).to_pylist()
    return found


def _counts(counted: Iterable[dict[str, Any]]) -> list[Count]:
    """Sum the result of ``_counted`` without groups, which gives a few dozen rows."""
    parts: dict[tuple[int, str, str], list[dict[str, Any]]] = {}
    for row in counted:
        key = (SEVERITIES.index(row["severity"]), row["kind"], row["effect"] or "")
        parts.setdefault(key, []).append(row)
    return [
        Count(
            SEVERITIES[rank], kind, effect or None,
            findings=sum(row["n"] for row in rows),
            groups=len({(r["chroot"], r["group_id"]) for r in rows if r["group_id"] is not None}),
            messages=sum(row["messages"] or 0 for row in rows),
            unknown=sum(row["unknown"] for row in rows),
            proven=all(row["basis"] == "proven" for row in rows),
        )
        for (rank, kind, effect), rows in sorted(parts.items())
    ]  # fmt: skip


def _listed(tables: Tables, summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the worst findings."""
    ordered = _ranked(tables.rows("findings", ("id", "severity", "kind", "zxid")))
    worst = ordered["id"].slice(0, MAX_FINDINGS).combine_chunks()
    columns = (
        "id", "severity", "kind", *KEY, "zxid", "time", "end_time", "basis", "sentence", "member",
        "effect", "messages", "server", "file", "position", "evidence",
    )  # fmt: skip
    found = _ranked(tables.rows("findings", columns, pc.field("id").isin(worst)))
    for at, name in (("t", "time"), ("u", "end_time")):
        found = found.append_column(at, _millis(found[name]))
    kept = (
        "id", "severity", "kind", *KEY, "zxid", "t", "u", "basis", "sentence", "member", "effect",
        "messages",
    )  # fmt: skip
    return [
        {name: row[name] for name in kept}
        | {
            "place": row["file"] and f"{row['server']}: {row['file']}, byte {row['position']}",
            "command": command(row["zxid"], summary.get("directories", ())),
            "evidence": [[e["table"], e["zxid"], e["idx"], e["what"]] for e in row["evidence"]],
        }
        for row in found.drop_columns(["time", "end_time"]).to_pylist()
    ]


def _ranked(found: pa.Table) -> pa.Table:
    """Return findings in the order of the page, the worst first."""
    found = found.append_column("rank", pc.index_in(found["severity"], _RANKS))
    found = found.append_column("first", found["zxid"].fill_null(-1))
    return found.sort_by([(name, "ascending") for name in ("rank", "kind", "first", "id")])


def _modes(summary: dict[str, Any]) -> dict[_GroupKey, str]:
    """Return the mode of each group that still has one, by chroot and name."""
    return {
        (row["chroot"], row["group_id"]): row["mode"]
        for row in summary.get("migrations", ())
        if row["mode"] and row["ended"] == "still"
    }


def _only(group: str | None) -> str | None:
    """Return a phrase about the groups on the page; ``None`` for all groups."""
    names = None if group is None else names_of(group)
    if names is None:
        return None if group is None else f"groups whose name matches {group}"
    return f"group{'s' * (len(names) > 1)} {', '.join(names)}"


def groups_in(tables: Tables) -> set[_GroupKey]:
    """Return chroot and name of every group of the audit."""
    found: set[_GroupKey] = set()
    for name in ("findings", "registrations", "ownership", "commits"):
        for chroot, group, _ in _rows_of(tables.grouped(name, GROUP)):
            if group is not None:
                found.add((chroot, group))
    return found


@dataclass(frozen=True, slots=True)
class _Group:
    """A group, and its number of findings by severity (as a number) and kind, the worst first."""

    chroot: str
    name: str
    kinds: Sequence[tuple[int, str, int]] = ()

    @property
    def worst(self) -> str | None:
        """The severity of its worst finding."""
        return SEVERITIES[self.kinds[0][0]] if self.kinds else None

    @property
    def findings(self) -> int:
        """Number of its findings."""
        return sum(count for _, _, count in self.kinds)


def _all_groups(tables: Tables, counted: Iterable[dict[str, Any]]) -> list[_Group]:
    """Return all groups of the audit, those with the worst findings first, then those with the most
    findings."""
    kinds: dict[_GroupKey, Counter[tuple[int, str]]] = defaultdict(Counter)
    for row in counted:
        of_group = kinds[row["chroot"], row["group_id"]]
        of_group[SEVERITIES.index(row["severity"]), row["kind"]] += row["n"]
    every = [
        _Group(*key, sorted((*kind, n) for kind, n in kinds.get(key, {}).items()))
        for key in groups_in(tables)
    ]
    return sorted(
        every,
        key=lambda g: (
            g.kinds[0][0] if g.kinds else len(SEVERITIES), -g.findings, g.chroot, g.name,
        ),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Spans:
    """The part of the owners' intervals that the timeline shows, in milliseconds since 1970.

    Args:
        earliest: when the timeline begins; ``None``: with the first owner. For a time range this
            is where the audit begins to read the logs, because most owners began weeks earlier.
        last: the last transaction, which ends intervals without an end.
    """

    earliest: int | None
    last: int

    @classmethod
    def of(cls, summary: dict[str, Any]) -> _Spans:
        start, last = summary.get("from"), summary["last_time"]
        earliest = None if start is None else milliseconds(start, -BEFORE_START)
        return cls(earliest, 0 if last is None else milliseconds(last))

    def where(self) -> pc.Expression:
        """Return a condition for the intervals in the timeline."""
        begun = pc.field("start_time").is_valid()
        if self.earliest is None:
            return begun
        end = pc.coalesce(_millis_of("end_time"), pc.scalar(self.last))
        return begun & (end >= self.earliest)

    def times(self, start: pa.ChunkedArray, end: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
        """Return the start and end of intervals."""
        a, b = _millis(start).to_numpy(), _millis(end).fill_null(self.last).to_numpy()
        return (a if self.earliest is None else np.maximum(a, self.earliest)), b

    def limits(self, owned: pa.Table) -> tuple[int, int]:
        """Return the start and end of the timeline, from rows of ``_partitions``."""
        if not len(owned):
            return 0, 1
        a, b = self.times(owned["start"], owned["end"])
        if pc.any(pc.greater(owned["open"], 0)).as_py():
            b = np.append(b, self.last)
        return int(a.min()), int(b.max())


def _partitions(tables: Tables, spans: _Spans | None) -> pa.Table:
    """Return the partitions that had an owner, with the start of the first and the end of the last
    ended interval (``start``, ``end``), and the number of intervals that did not end (``open``)."""
    where = pc.field("start_time").is_valid() if spans is None else spans.where()
    values = (
        ("start", "start_time", "min"), ("end", "end_time", "max"), ("open", "end_time", "count"),
    )  # fmt: skip
    return tables.grouped("ownership", KEY, values, where)


def _groups(
    tables: Tables, owned: pa.Table, carried: Sequence[_Group], modes: Mapping[_GroupKey, str]
) -> list[dict[str, Any]]:
    """Return the page's groups, with the numbers of findings, partitions and changes of each."""
    among = pc.field("group_id").isin([group.name for group in carried])
    counted = owned.group_by(list(GROUP)).aggregate([([], "count_all")])
    counted = counted.select([*GROUP, "count_all"])
    partitions = {(chroot, name): n for chroot, name, n in _rows_of(counted)}
    changed = tables.grouped("herds", GROUP, (), among)
    changes = {(chroot, name): n for chroot, name, n in _rows_of(changed)}
    return [
        {
            "chroot": group.chroot, "group_id": group.name, "worst": group.worst,
            "findings": group.findings, "partitions": partitions.get((group.chroot, group.name), 0),
            "changes": changes.get((group.chroot, group.name), 0),
            "mode": modes.get((group.chroot, group.name)),
        }
        for group in carried
    ]  # fmt: skip


def _worst_groups(listed: Sequence[dict[str, Any]], carried: Sequence[_Group]) -> list[str]:
    """Names of the groups whose partitions may be in the timeline."""
    bad = [f["group_id"] for f in listed if f["partition"] is not None][:MAX_ROWS]
    return sorted({*bad, *(group.name for group in carried)})


def _others(groups: Sequence[_Group]) -> dict[str, Any] | None:
    """Return the groups that are not on the page, packed. The page unpacks them for a search.

    JSON, then zlib, then base64. ``group``: pairs of chroot and name. ``found``: for each group
    with findings, positions in ``kinds`` and numbers of findings.
    """
    if not groups:
        return None
    chroots: dict[str, int] = {}
    kinds: dict[tuple[str, str], int] = {}
    found = [
        [x for rank, kind, count in group.kinds
         for x in (kinds.setdefault((SEVERITIES[rank], kind), len(kinds)), count)]
        for group in groups
        if group.kinds
    ]  # fmt: skip
    content = {
        "names": [printable(group.name) for group in groups],
        "chroot": [chroots.setdefault(printable(group.chroot), len(chroots)) for group in groups],
        "chroots": list(chroots),
        "kinds": list(kinds),
        "found": found,
    }
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return {"count": len(groups), "packed": _base64(text.encode())}


def _base64(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content)).decode()


def _places(groups: Sequence[dict[str, Any]]) -> dict[_GroupKey, int]:
    """Return the number of each group on the page."""
    return {(group["chroot"], group["group_id"]): n for n, group in enumerate(groups)}


def _herds(tables: Tables, groups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the changes that woke the most members, of all groups and of each group on the
    page."""
    names = (*GROUP, "member", "change", "basis", "cause", "notified", "rebalances", "reads")
    worst: pa.Table | None = None
    columns = (*names, "time", "zxid", "idx")
    for batch in tables.batches("herds", columns, pc.field("notified") > 0):
        some = pa.Table.from_batches([batch])
        worst = _worst_herds(some if worst is None else pa.concat_tables([worst, some]), groups)
    if worst is None:
        return []
    worst = worst.append_column("t", _millis(worst["time"]))
    rows: list[dict[str, Any]] = worst.select([*names, "t"]).to_pylist()
    return rows


def _worst_herds(woke: pa.Table, groups: Sequence[dict[str, Any]]) -> pa.Table:
    """Return the changes that woke the most members."""
    order = [(name, "ascending") for name in (*GROUP, "zxid", "idx", "member")]
    woke = woke.sort_by([("notified", "descending"), *order])
    left = dict.fromkeys(_places(groups), MAX_HERDS_OF_GROUP)
    taken = set(range(min(MAX_HERDS, len(woke))))
    for at, key in enumerate(_rows_of(woke.select(GROUP))):
        if left.get(key, 0):
            left[key] -= 1
            taken.add(at)
    return woke.take(pa.array(sorted(taken), pa.int64()))


def _rows(
    tables: Tables, owned: pa.Table, groups: Sequence[dict[str, Any]], names: Sequence[str]
) -> list[_Partition]:
    """Return the partitions of the timeline, those of the worst groups first.

    If there are too many, those with findings take precedence, then those of the groups on the
    page. Only groups with these names are included.
    """
    among = pc.field("group_id").isin(names)
    found = tables.grouped("findings", KEY, (), among & pc.field("partition").is_valid())
    bad, places = {row[:4] for row in _rows_of(found)}, _places(groups)
    every: list[_Partition] = list(_rows_of(owned.filter(among).select(KEY)))
    last = len(places)
    every.sort(key=lambda row: (row not in bad, places.get(row[:2], last), row))
    return sorted(every[:MAX_ROWS], key=lambda row: (places.get(row[:2], last), row))


@dataclass(frozen=True, slots=True)
class _Intervals:
    """Intervals of the rows as columns, sorted by row and start."""

    row: np.ndarray
    a: np.ndarray
    b: np.ndarray
    member: np.ndarray
    """Positions in ``names``."""
    names: list[str]
    ended: np.ndarray
    """Positions in ``ends``."""
    ends: list[str]

    def numbers(self, members: dict[str, int]) -> np.ndarray:
        """Return the number of each of ``names`` on the page."""
        return np.array([members.setdefault(n or "?", len(members)) for n in self.names], "i8")


def _intervals(tables: Tables, rows: Sequence[_Partition], spans: _Spans) -> _Intervals:
    """Return all intervals of the rows."""
    values = zip(*rows, strict=True) if rows else [()] * len(KEY)
    kinds = (pa.string(), pa.string(), pa.string(), pa.int64())
    numbered = pa.table([*map(pa.array, values, kinds), pa.array(range(len(rows)), pa.int64())],
                        [*KEY, "row"])  # fmt: skip
    where = pc.field("group_id").isin(sorted({row[1] for row in rows})) & spans.where()
    parts: list[list[np.ndarray]] = [[np.zeros(0, "i8")] * 5]
    texts: tuple[dict[str, int], dict[str, int]] = ({}, {})
    columns = (*KEY, "member", "ended", "start_time", "end_time")
    for batch in tables.batches("ownership", columns, where):
        part = pa.Table.from_batches([batch]).join(numbered, list(KEY), join_type="inner")
        a, b = spans.times(part["start_time"], part["end_time"])
        codes = [_codes(part[name], known)
                 for name, known in zip(("member", "ended"), texts, strict=True)]  # fmt: skip
        chosen = b >= a
        parts.append([each[chosen] for each in (part["row"].to_numpy(), a, b, *codes)])
    row, a, b, member, ended = map(np.concatenate, zip(*parts, strict=True))
    order = np.lexsort((a, row))
    return _Intervals(
        row[order], a[order], b[order], member[order], [*texts[0]], ended[order], [*texts[1]]
    )


def _codes(column: pa.ChunkedArray, known: dict[str, int]) -> np.ndarray:
    """Return the number of each text in ``known``, to which new texts are added."""
    coded = column.combine_chunks().fill_null("?").dictionary_encode()
    numbers = [known.setdefault(text, len(known)) for text in coded.dictionary.to_pylist()]
    codes: np.ndarray = np.array(numbers, "i8")[coded.indices.to_numpy()]
    return codes


def _cells(
    spans: _Intervals, rows: int, members: dict[str, int], begin: int, width: int
) -> list[list[int]]:
    """Return for each row its runs of buckets with the same longest owner. A run is given as
    first bucket, last bucket and member."""
    cells: list[list[int]] = []
    numbers = spans.numbers(members)
    for low, high in pairwise(np.searchsorted(spans.row, np.arange(rows + 1)).tolist()):
        one = slice(low, high)
        a, b, member = spans.a[one], spans.b[one], spans.member[one]
        cells.append(_cells_of(a, b, member, len(numbers), begin, width))
        cells[-1][2::3] = numbers[cells[-1][2::3]].tolist() if cells[-1] else []
    return cells


def _cells_of(
    a: np.ndarray, b: np.ndarray, member: np.ndarray, members: int, begin: int, width: int
) -> list[int]:
    """Return the cells of one row from its intervals."""
    if not len(a):
        return []
    first, last = (a - begin) // width, (b - begin) // width
    many = last - first + 1
    of = np.repeat(np.arange(len(many)), many)
    bucket = np.arange(len(of)) - np.repeat(np.cumsum(many) - many, many) + first[of]
    low = bucket * width + begin
    owned_ms = np.minimum(b[of], low + width) - np.maximum(a[of], low)
    keys, number = np.unique(bucket * members + member[of], return_inverse=True)
    total = np.bincount(number, owned_ms)
    buckets = keys // members
    order = np.lexsort((total, buckets))  # the last of each bucket has the most
    best = order[np.append(buckets[1:] != buckets[:-1], True)]
    bucket, member = buckets[best], keys[best] % members
    same = (bucket[1:] == bucket[:-1] + 1) & (member[1:] == member[:-1])
    opens = np.flatnonzero(np.append(True, ~same))
    closes = np.append(opens[1:], len(bucket)) - 1
    runs = np.stack([bucket[opens], bucket[closes], member[opens]], axis=1)
    found: list[int] = runs.ravel().tolist()
    return found


def _packed(spans: _Intervals, members: dict[str, int], begin: int, end: int) -> dict[str, Any]:
    """Return intervals as packed columns, which the page unpacks when it zooms in.

    The columns are, in order of row and start: row, time since the end of the previous interval
        in the same row, length, member, how it ended. Times are in ``unit`` milliseconds; the
        first of a row is since ``begin``. A column has ``bytes`` bytes for each interval: first
        the lowest bytes of all intervals, then the next, which compresses best. Then zlib, then
        base64.
    """
    unit = (end - begin >> 32) + 1
    a, b = ((times - begin) // unit for times in (spans.a, spans.b))
    first = np.diff(spans.row, prepend=-1) != 0
    before = np.where(first, 0, np.append(0, b[:-1])[: len(b)])
    columns = (spans.row, a - before, b - a, spans.numbers(members)[spans.member], spans.ended)
    sizes, planes = [], []
    for column in columns:
        raw = column.astype("<u4").view("u1").reshape(-1, 4)
        size = next((n for n in (4, 3, 2) if raw[:, n - 1].any()), 1)
        sizes.append(size)
        planes += [raw[:, n].tobytes() for n in range(size)]
    return {
        "count": len(a), "unit": unit, "ends": spans.ends, "bytes": sizes,
        "packed": _base64(b"".join(planes)),
    }  # fmt: skip


def _series(
    tables: Tables, groups: list[dict[str, Any]], begin: int, width: int
) -> list[dict[str, Any]]:
    """Return for each group its members, commits and refused writes over the buckets."""
    places = _places(groups)
    made: list[dict[str, Any]] = [
        group | {"members": [], "commits": [], "refused": []} for group in groups
    ]
    at, until = _millis_of("time"), begin + (BUCKETS + 1) * width
    among = pc.field("group_id").isin([group["group_id"] for group in groups])
    among &= pc.field("time").is_valid() & (at < until)
    since = among & (at >= begin)
    bucket = pc.divide(pc.subtract(at, begin), width)
    counts = (
        ("commits", "commits", since & (pc.field("kind") == "commit")),
        ("failed_claims", "refused", since),
    )
    for name, kind, where in counts:
        found = tables.grouped(name, GROUP, (), where, bucket=bucket)
        for chroot, group, number, n in _rows_of(found.sort_by("bucket")):
            if (chroot, group) in places:
                made[places[chroot, group]][kind].append([number, n])
    last: dict[tuple[int, int], tuple[int, int, int | None]] = {}
    columns = (*GROUP, "time", "zxid", "idx", "members")
    for batch in tables.batches("membership", columns, among):
        steps = pa.Table.from_batches([batch])
        steps = steps.set_column(len(GROUP), "t", _millis(steps["time"]))
        for chroot, group, t, *step in _rows_of(steps):
            if (chroot, group) in places:  # members from before the first claim are there then
                key = places[chroot, group], max(0, (t - begin) // width)
                last[key] = max(last.get(key, (0, 0, None)), tuple(step), key=itemgetter(0, 1))
    for (place, number), (_, _, n) in sorted(last.items(), key=itemgetter(0)):
        made[place]["members"].append([number, n])
    return made
