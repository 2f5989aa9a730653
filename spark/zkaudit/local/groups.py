"""All groups of the logs, folded in this process, with the same rows and findings as the Spark
pipeline's.

``input_of`` does the same as ``history.staging`` in Spark: it passes the rows of each group
(``history.fold_input``) to the fold of ``history.batches``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zkaudit.group import Coverage, Facts, Moment
from zkaudit.group.znodes import GROUP_PATH, OFFSET_PATH
from zkaudit.history.batches import OUTPUT, fold_batches
from zkaudit.history.facts import read_facts
from zkaudit.history.fold_input import EVENTS, INPUT, LATER, RENAMED, SHOWN, selected
from zkaudit.limits import Limits
from zkaudit.local.history import GroupHistory
from zkaudit.schema import arrow_schema

_GROUP: Final = re.compile(GROUP_PATH)
_OFFSET: Final = re.compile(OFFSET_PATH)
_ROWS: Final = 20_000


def folded(
    history: GroupHistory, limits: Limits, only_findings: bool = False
) -> Iterator[pa.RecordBatch]:
    """Run the history of all groups through ``Fold``. Yield rows of ``history.batches.OUTPUT``.
    ``only_findings``: leave out the rows of other tables."""
    rows = input_of(history).to_batches(_ROWS)
    coverage = Coverage(history.log_gaps, history.known)
    columns, facts = arrow_schema(OUTPUT), facts_of(history)
    yield from fold_batches(columns, coverage, rows, facts, limits, only_findings)


class _Operations:
    """``fold_input.Operations`` in memory. ``keys``: the number of each row's group, -1 for rows
    of no group. Data about a path is computed once for each distinct path.

    Args:
        rows: rows of operations or of snapshots.
        groups: the number of each group's path; groups that are not in it are added.
    """

    def __init__(self, rows: pa.Table, groups: dict[str, int]) -> None:
        self._rows = rows
        encoded = rows["path"].combine_chunks().dictionary_encode()
        self._codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        self._names = [*encoded.dictionary.to_pylist(), ""]  # the last one is that of null
        places = [_GROUP.match(path) for path in self._names]
        keys = [-1 if m is None else groups.setdefault(m[1], len(groups)) for m in places]
        self.keys = np.array(keys, np.int64)[self._codes]

    def type_in(self, types: Iterable[str]) -> np.ndarray:
        return _flags(pc.is_in(self._rows["type"], pa.array(list(types))))

    def path_has(self, text: str) -> np.ndarray:
        return self._each(text in path for path in self._names)

    def path_ends(self, text: str) -> np.ndarray:
        return self._each(path.endswith(text) for path in self._names)

    def is_offset(self) -> np.ndarray:
        return self._each(_OFFSET.search(path) is not None for path in self._names)

    def is_ephemeral(self) -> np.ndarray:
        return _flags(self._rows["ephemeral"])

    def failed_with(self, error: int) -> np.ndarray:
        return _flags(pc.equal(self._rows["error"], error))

    def _each(self, values: Iterable[bool]) -> np.ndarray:
        """Return a value for each row from the values of the names."""
        return np.fromiter(values, bool)[self._codes]


def _flags(column: pa.ChunkedArray) -> np.ndarray:
    found: np.ndarray = column.fill_null(False).to_numpy()
    return found


def input_of(history: GroupHistory) -> pa.Table:
    """Return the rows of all groups that ``Fold`` needs, in the order in which it needs them."""
    rows, nodes = history.rows, history.nodes.rename_columns(RENAMED)
    groups: dict[str, int] = {}
    operations, shown = _Operations(rows, groups), _Operations(nodes, groups)
    keys, gaps = operations.keys, bool(history.log_gaps)
    chosen = selected(operations, gaps)
    used = _Used(rows)
    used.add(keys, rows["session"], chosen.held)
    used.add(shown.keys, nodes["session"], np.ones(len(nodes), bool))
    closes = np.flatnonzero(chosen.closes)
    listed = used.listed(closes, groups) if gaps else {}
    of_closes, of_refused = used.joined(closes), used.joined(np.flatnonzero(chosen.refused))
    mine = [listed.get(pair) for pair in zip(*(part.tolist() for part in of_closes), strict=True)]
    mine = pa.array(mine, pa.list_(pa.string()))
    acts = chosen.acts & (keys >= 0)
    events, later = np.flatnonzero(acts), np.flatnonzero(acts & chosen.later)
    in_snapshots = np.flatnonzero(shown.keys >= 0)
    parts = [
        _as_input(rows, EVENTS, events, keys[events]),
        _as_input(rows, EVENTS, *of_closes, mine),
        _as_input(rows, EVENTS, *of_refused),
        _as_input(rows, LATER, later, keys[later]),
        _as_input(nodes, SHOWN, in_snapshots, shown.keys[in_snapshots]),
    ]
    if gaps:
        parts.append(_as_input(rows, LATER, *of_closes, mine))
    table = pa.concat_tables(parts)
    order = [table[name].fill_null(-1).to_numpy() for name in ("idx", "zxid", "part", "key")]
    return table.take(pa.array(np.lexsort(order)))


class _Used:
    """The groups that each session uses.

    Args:
        rows: all operations.
    """

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        self._sessions = rows["session"].to_numpy()
        self._groups: dict[int, set[int]] = {}

    def add(self, keys: np.ndarray, sessions: pa.ChunkedArray, chosen: np.ndarray) -> None:
        """Read rows that show which group a session uses."""
        chosen = chosen & (keys >= 0)
        pairs = zip(keys[chosen].tolist(), sessions.to_numpy()[chosen].tolist(), strict=True)
        for key, session in pairs:
            self._groups.setdefault(session, set()).add(key)

    def listed(
        self, closes: np.ndarray, groups: dict[str, int]
    ) -> dict[tuple[int, int], list[str]]:
        """Read the znodes that the ends of sessions list. Return them by row and group."""
        found: dict[tuple[int, int], list[str]] = {}
        ends = self._rows.take(closes).select(["session", "deleted"]).to_pylist()
        for number, row in zip(closes.tolist(), ends, strict=True):
            for path in row["deleted"] or ():
                if place := _GROUP.match(path):
                    key = groups.setdefault(place[1], len(groups))
                    self._groups.setdefault(row["session"], set()).add(key)
                    found.setdefault((number, key), []).append(path)
        return found

    def joined(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return rows without a path, once for each group that their session uses."""
        of_rows = zip(places.tolist(), self._sessions[places].tolist(), strict=True)
        pairs = [(at, key) for at, session in of_rows if session
                 for key in self._groups.get(session, ())]  # fmt: skip
        found = np.array(pairs, np.int64).reshape(-1, 2)
        return found[:, 0], found[:, 1]


def _as_input(
    rows: pa.Table, part: int, places: np.ndarray, keys: np.ndarray, deleted: pa.Array | None = None
) -> pa.Table:
    """Return some rows with the columns of ``fold_input.INPUT``."""
    schema = arrow_schema(INPUT)
    names = [name for name in schema.names if name in rows.column_names]
    taken = rows.select(names).take(pa.array(places, pa.int64()))
    columns: dict[str, Any] = dict(zip(names, taken.columns, strict=True))
    columns |= {"key": pa.array(keys), "part": pa.array(np.full(len(places), part))}
    if deleted is not None:
        columns["deleted"] = deleted
    return pa.table(
        [columns[f.name].cast(f.type) if f.name in columns else pa.nulls(len(places), f.type)
         for f in schema], schema=schema,
    )  # fmt: skip


def facts_of(history: GroupHistory) -> Facts:
    """Return the data of a history that concern all groups, which the rules need."""
    reader = read_facts(history.rows, history.nodes, history.log_gaps)
    ends = [(run.last, run.last_ms) for run in history.logged if run.last is not None]
    zxid, time = max(ends, default=(0, None), key=lambda end: end[0] or 0)
    end = Moment(zxid or 0, 0, None if time is None else time * 1000)
    return reader.facts(end, _known_us(history))


def _known_us(history: GroupHistory) -> int | None:
    """Return ``known_us`` as in ``Facts``."""
    known = history.known[-1]
    if not known:
        return None
    later = history.rows.filter(pc.greater_equal(history.rows["zxid"], known))
    times = later["time"].cast(pa.int64()).slice(0, 1).to_pylist()
    return times[0] if times else None
