"""All groups of the logs, folded in this process: the same rows and findings as the pipeline's.

``input_of`` does what ``history.staging`` does in Spark: it gives the rows of each group to the
fold of ``history.batches``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zkaudit.group import ACTS, Coverage, Facts, Moment
from zkaudit.group.znodes import GROUP_PATH, OFFSET_PATH
from zkaudit.history.batches import EVENTS, INPUT, LATER, OUTPUT, SHOWN, fold_batches
from zkaudit.history.facts import read_facts
from zkaudit.limits import Limits
from zkaudit.local.history import GroupHistory
from zkaudit.schema import CREATES, DELETES, NODE_EXISTS, arrow_schema

_GROUP: Final = re.compile(GROUP_PATH)
_OFFSET: Final = re.compile(OFFSET_PATH)
_ROWS: Final = 20_000


def folded(
    history: GroupHistory, limits: Limits, only_findings: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield what the fold returns for all groups, as ``history.batches.OUTPUT``.
    ``only_findings``: without the rows of other tables."""
    rows = input_of(history).to_batches(_ROWS)
    coverage = Coverage(history.log_gaps, history.known)
    columns, facts = arrow_schema(OUTPUT), facts_of(history)
    yield from fold_batches(columns, coverage, rows, facts, limits, only_findings)


class _Paths:
    """What is known of the paths of a table, found once for each different path."""

    def __init__(self, column: pa.ChunkedArray, groups: dict[str, int]) -> None:
        encoded = column.combine_chunks().dictionary_encode()
        self._codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        self.names = [*encoded.dictionary.to_pylist(), ""]  # the last one is that of null
        places = [_GROUP.match(path) for path in self.names]
        self.keys = self._each(
            [-1 if m is None else groups.setdefault(m[1], len(groups)) for m in places], np.int64
        )
        self.is_offset = self._each([_OFFSET.search(path) is not None for path in self.names], bool)

    def _each(self, values: Sequence[Any], kind: Any) -> np.ndarray:
        """A value for each row, given those of the names."""
        return np.array(values, kind)[self._codes]

    def contain(self, text: str) -> np.ndarray:
        """Return which rows have a path that contains a text."""
        return self._each([text in path for path in self.names], bool)

    def end_with(self, text: str) -> np.ndarray:
        """Return which rows have a path that ends with a text."""
        return self._each([path.endswith(text) for path in self.names], bool)


def input_of(history: GroupHistory) -> pa.Table:
    """Return the rows of all groups for the fold, in its order."""
    rows, nodes = history.rows, history.nodes
    groups: dict[str, int] = {}
    paths, shown = _Paths(rows["path"], groups), _Paths(nodes["path"], groups)
    created, deleted = (_are(rows["type"], kinds) for kinds in (CREATES, DELETES))
    ephemeral = rows["ephemeral"].fill_null(False).to_numpy()
    sessions = rows["session"].to_numpy()
    owners = nodes["ephemeral_owner"].to_numpy()
    gaps = bool(history.log_gaps)

    used: dict[int, set[int]] = {}
    acts = (paths.keys >= 0) & _are(rows["type"], tuple(ACTS))
    held = acts & (created & ephemeral & ~paths.is_offset | paths.end_with("/live/mode"))
    for keys, whose in ((paths.keys[held], sessions[held]), (shown.keys, owners)):
        for key, session in zip(keys.tolist(), whose.tolist(), strict=True):
            if key >= 0:
                used.setdefault(session, set()).add(key)
    closes = np.flatnonzero(_are(rows["type"], ("closeSession",)))
    listed: dict[tuple[int, int], list[str]] = {}  # by the row of a close, and group
    if gaps:
        ends = rows.take(closes).select(["session", "deleted"]).to_pylist()
        for number, row in zip(closes.tolist(), ends, strict=True):
            for path in row["deleted"] or ():
                if place := _GROUP.match(path):
                    key = groups.setdefault(place[1], len(groups))
                    used.setdefault(row["session"], set()).add(key)
                    listed.setdefault((number, key), []).append(path)
    used.pop(0, None)

    def joined(places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows without a path, once for each group that their session used."""
        pairs = [(place, key) for place in places.tolist()
                 for key in used.get(int(sessions[place]), ())]  # fmt: skip
        found = np.array(pairs, np.int64).reshape(-1, 2)
        return found[:, 0], found[:, 1]

    refused = _are(rows["type"], ("error",))
    refused &= pc.equal(rows["error"], NODE_EXISTS).fill_null(False).to_numpy()
    others = created & paths.contain("/ids/")
    if gaps:
        others = (created | deleted) & ~paths.is_offset
    others |= paths.end_with("/migration")
    later = np.flatnonzero(acts & others)
    events = np.flatnonzero(acts)
    of_closes, of_refused = joined(closes), joined(np.flatnonzero(refused))
    mine = [listed.get(pair) for pair in zip(*(part.tolist() for part in of_closes), strict=True)]
    parts = [
        _input(rows, EVENTS, events, paths.keys[events]),
        _input(rows, EVENTS, *of_closes, mine),
        _input(rows, EVENTS, *of_refused),
        _input(rows, LATER, later, paths.keys[later]),
        _shown(nodes, shown.keys),
    ]
    if gaps:
        parts.append(_input(rows, LATER, *of_closes, mine))
    table = pa.concat_tables(parts)
    order = [table[name].fill_null(-1).to_numpy() for name in ("idx", "zxid", "part", "key")]
    return table.take(pa.array(np.lexsort(order)))


def _are(types: pa.ChunkedArray, kinds: Sequence[str]) -> np.ndarray:
    found: np.ndarray = pc.is_in(types, pa.array(kinds)).to_numpy()
    return found


def _input(
    rows: pa.Table,
    part: int,
    places: np.ndarray,
    keys: np.ndarray,
    deleted: Sequence[list[str] | None] | None = None,
) -> pa.Table:
    taken = rows.take(pa.array(places, pa.int64()))
    columns: dict[str, Any] = {
        "key": pa.array(keys, pa.int64()),
        "part": pa.array(np.full(len(places), part), pa.int32()),
        "time": taken["time"].cast(pa.int64()),
    }
    if deleted is not None:
        columns["deleted"] = pa.array(deleted, pa.list_(pa.string()))
    return _as_input(taken, columns, {"stat"})


def _shown(nodes: pa.Table, keys: np.ndarray) -> pa.Table:
    places = np.flatnonzero(keys >= 0)
    taken = nodes.take(pa.array(places))
    stat = [taken["czxid"], taken["ctime"].cast(pa.int64()),
            taken["mzxid"], taken["mtime"].cast(pa.int64())]  # fmt: skip
    each = zip(*(column.to_pylist() for column in stat), strict=True)
    columns: dict[str, Any] = {
        "key": pa.array(keys[places], pa.int64()),
        "part": pa.array(np.full(len(places), SHOWN), pa.int32()),
        "session": taken["ephemeral_owner"],
        "stat": pa.array([list(values) for values in each], pa.list_(pa.int64())),
    }
    absent = {"idx", "time", "type", "ephemeral", "cxid", "deleted"}
    return _as_input(taken, columns, absent)


def _as_input(taken: pa.Table, columns: dict[str, Any], absent: set[str]) -> pa.Table:
    schema = arrow_schema(INPUT)
    arrays = []
    for field in schema:
        if field.name in absent:
            arrays.append(pa.nulls(len(taken), field.type))
            continue
        column = columns[field.name] if field.name in columns else taken[field.name]
        arrays.append(column.cast(field.type))
    return pa.table(arrays, schema=schema)


def facts_of(history: GroupHistory) -> Facts:
    """Return the data that rules need from outside the groups."""
    reader = read_facts(history.rows, history.nodes, history.log_gaps)
    ends = [(run.last, run.last_ms) for run in history.logged if run.last is not None]
    zxid, time = max(ends, default=(0, None), key=lambda end: end[0] or 0)
    end = Moment(zxid or 0, 0, None if time is None else time * 1000)
    return reader.facts(end, _known_us(history))


def _known_us(history: GroupHistory) -> int | None:
    """As in ``Facts``."""
    known = history.known[-1]
    if not known:
        return None
    later = history.rows.filter(pc.greater_equal(history.rows["zxid"], known))
    times = later["time"].cast(pa.int64()).slice(0, 1).to_pylist()
    return times[0] if times else None
