"""Rows of each table of ``zookeeper_txnlog``, from pieces of logs, and the znodes in snapshots
that an audit needs.

Runs in the executors' Python workers and does not use Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zkaudit import schema
from zkaudit.decode.batches import LogReader, read_snapshot, read_snapshot_sessions
from zkaudit.decode.columns import Filters, Heads, timestamps
from zkaudit.decode.txnlog import Stop
from zkaudit.schema import CONFIG
from zkaudit.sources.files import Piece
from zkaudit.sources.options import Settings

_OF_GROUPS: Final = ("/consumers/", "/brokers/topics/")
_OTHERS: Final = (_OF_GROUPS[1], "/brokers/ids/", CONFIG)
"""Paths that are read for all groups, for the brokers' sessions and the voting servers."""
_UNREAD: Final = "/record/mirror"
"""Regex of a group's znode whose content is not read, because each version has all offsets."""
_ROWS: Final = 20_000
LONGEST: Final = 0xFFFFF + 1024
"""Size in bytes of a record that every server can read from its log, if ``jute.maxbuffer`` is not
set."""
_REPLACED: Final = "\ufffd"
"""Replacement for bytes of paths that are not UTF-8. Such bytes cannot be searched as text."""
_WITHOUT_PATH: Final = pa.array(["createSession", "closeSession", "error"])


def rows_of(settings: Settings, pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
    """Read pieces of logs. Yield the rows of the requested table, with the requested columns."""
    make = {"files": _file, "runs": _runs, "groups": _groups}.get(settings.table, _transactions)
    for piece in pieces:
        yield from make(settings, piece)


def _reader(settings: Settings, piece: Piece, columns: Iterable[str]) -> LogReader:
    return LogReader(
        piece.path,
        piece.server,
        piece.start,
        settings.filters,
        tolerant=settings.tolerant,
        stop_at=piece.stop,
        columns=tuple(columns),
    )


def _transactions(settings: Settings, piece: Piece) -> Iterator[pa.RecordBatch]:
    yield from _reader(settings, piece, settings.names).batches()


def _file(settings: Settings, piece: Piece) -> Iterator[pa.RecordBatch]:
    reader = _reader(settings, piece, ("zxid",))
    reader.tolerant, reader.filters = True, Filters()
    for _ in reader.blocks():
        pass
    assert reader.end is not None
    yield _batch(
        settings,
        [
            {
                "server": piece.server,
                "file": piece.name,
                "transactions": reader.transactions,
                "first_zxid": reader.first_zxid,
                "last_zxid": reader.last_zxid,
                "end_position": reader.end.position,
                "stop": reader.end.stop.value,
                "reason": reader.end.reason,
            }
        ],
    )


def _runs(settings: Settings, piece: Piece) -> Iterator[pa.RecordBatch]:
    runs = Runs(settings.filters)
    reader = _reader(settings, piece, ())
    for heads in reader.heads():
        runs.add(heads)
    place = {"server": piece.server, "file": piece.name}
    yield _batch(settings, [place | run for run in runs.rows(reader)])


def _groups(settings: Settings, piece: Piece) -> Iterator[pa.RecordBatch]:
    runs = Runs(settings.filters)
    logged = {column.name for column in schema.TXNLOG}
    names = [column.name for column in schema.TXNLOG_GROUPS if column.name in logged]
    wanted = schema.arrow_schema(settings.columns)
    parts = [_OF_GROUPS[0] + begin for begin in settings.group_begins or ("",)]
    reader = _reader(settings, piece, names)
    if settings.group_begins and not any(_REPLACED in part for part in parts):
        texts = tuple(part.encode() for part in (*parts, *_OTHERS))
        reader.filters = replace(settings.filters, mentions=texts)
    for found in reader.blocks():
        runs.add(found)
        batch = found.batch
        if not batch.num_rows:
            continue
        paths = batch["path"]
        chosen = pc.is_in(batch["type"], value_set=_WITHOUT_PATH)
        for part in (*parts, *_OTHERS):
            chosen = pc.or_kleene(chosen, pc.match_substring(paths, part))
        batch = _without_unread(batch.filter(chosen))
        yield _padded(batch, wanted)
    place = {"server": piece.server, "file": piece.name}
    rows = [place | run | {"kind": schema.RUN} for run in runs.rows(reader)]
    for begin in range(0, len(rows), _ROWS):
        yield _batch(settings, rows[begin : begin + _ROWS])


def _without_unread(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows of a batch, without content that no audit reads."""
    unread = pc.fill_null(pc.ends_with(batch["path"], _UNREAD), False)
    if not pc.any(unread).as_py():
        return batch
    data = pc.if_else(unread, pa.scalar(None, pa.binary()), batch["data"])
    return batch.set_column(batch.schema.names.index("data"), batch.schema.field("data"), data)


def snapshot_rows(settings: Settings, piece: Piece) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the requested table for one snapshot. Raises ``LogFormatError`` if it is
    damaged, and ``OSError``."""
    if settings.table == "sessions":
        batches = read_snapshot_sessions(piece.path, piece.server)
    else:
        names = settings.names if settings.table == "nodes" else None
        batches = read_snapshot(piece.path, piece.server, settings.filters, names)
    for batch in batches:
        if settings.table == "group_nodes":
            batch = nodes_of_groups(batch, settings.group_begins)
        yield batch.select(settings.names)


def nodes_of_groups(batch: pa.RecordBatch, begins: Sequence[str]) -> pa.RecordBatch:
    """Return the znodes of a batch that an audit needs: the root, topics, brokers, and groups'
    ephemeral znodes, offsets, migration markers and modes. ``begins``: the prefixes of the groups'
    names."""
    paths = batch["path"]
    needed = pc.not_equal(batch["ephemeral_owner"], 0)
    for end in ("/migration", "/live/mode"):
        needed = pc.or_(needed, pc.ends_with(paths, end))
    needed = pc.or_(needed, pc.match_substring(paths, "/offsets/"))
    of_group = pc.match_substring(paths, _OF_GROUPS[0])
    if begins:
        found = [pc.match_substring(paths, _OF_GROUPS[0] + begin) for begin in begins]
        of_group = reduce(pc.or_, found)
    other = pc.equal(paths, "/")
    for part in _OTHERS:
        other = pc.or_(other, pc.match_substring(paths, part))
    return batch.filter(pc.or_(other, pc.and_(of_group, needed)))


def _padded(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """Return the rows of a batch with these columns, null where the batch has none."""
    there = set(batch.schema.names)
    columns = [
        batch[f.name] if f.name in there else pa.nulls(batch.num_rows, f.type) for f in wanted
    ]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _batch(settings: Settings, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=schema.arrow_schema(settings.columns))


def in_sample(zxids: np.ndarray) -> np.ndarray:
    """Return for each transaction whether its time is stored with its run."""
    early = (zxids & 0xFFFFFFFF < schema.BEGIN) & (zxids % schema.SAMPLE_AT_BEGIN == 0)
    found: np.ndarray = early | (zxids % schema.SAMPLE == 0)
    return found


def sample_of(first: int, last: int) -> np.ndarray:
    """Return, in order, the zxids of a run whose times are stored with it."""
    early = min(last, first >> 32 << 32 | schema.BEGIN - 1)
    ranges = ((schema.SAMPLE_AT_BEGIN, early), (schema.SAMPLE, last))
    parts = [np.arange(-(-first // step) * step, end + 1, step) for step, end in ranges]
    return np.unique(np.concatenate(parts).astype(np.int64))


class Runs:
    """Collects the runs of consecutive zxids in one log. Only zxids in the range of ``filters``
    count."""

    def __init__(self, filters: Filters) -> None:
        self._filters = filters
        self._found: list[tuple[int, int, int, int, list[int]]] = []
        """First zxid, last zxid, their times, and the sample's times, in milliseconds."""

    def add(self, heads: Heads) -> None:
        """Add the next records of the log."""
        wanted = self._filters.in_range(heads.zxids)
        zxids, times = heads.zxids[wanted], heads.times[wanted]
        if not len(zxids):
            return
        steps = np.diff(zxids)
        breaks = ((steps != 0) & (steps != 1)) | (np.diff(zxids >> 32) != 0)
        begins = [0, *(np.flatnonzero(breaks) + 1).tolist()]
        for begin, end in zip(begins, [*begins[1:], len(zxids)], strict=True):
            first, last = int(zxids[begin]), int(zxids[end - 1])
            began = int(times[begin])
            sample = times[begin:end][in_sample(zxids[begin:end])].tolist()
            if self._found:
                before = self._found[-1]
                if first - before[1] in (0, 1) and first >> 32 == before[1] >> 32:
                    first, _, began, _, earlier = before
                    sample = earlier + sample
                    self._found.pop()
            self._found.append((first, last, began, int(times[end - 1]), sample))

    def rows(self, reader: LogReader | None = None) -> list[dict[str, Any]]:
        """Return the runs as rows with the columns of ``schema.TXNLOG_RUNS``, except server and
        file. ``reader``: the reader that has read the log."""
        end = None if reader is None else reader.end
        clocks = np.array([run[2:4] for run in self._found], np.int64).ravel()
        times = timestamps(clocks).to_pylist()
        rows: list[dict[str, Any]] = [
            {"first_zxid": first, "last_zxid": last, "first_time": times[2 * number],
             "last_time": times[2 * number + 1], "times": sample}
            for number, (first, last, *_, sample) in enumerate(self._found)
        ]  # fmt: skip
        reason = {Stop.CORRUPT: "damage", Stop.TORN: "cut"}.get(end.stop) if end else None
        if end is not None and reason is not None:
            if not rows:
                rows.append({"first_zxid": None, "last_zxid": None})
            rows[-1][reason] = f"byte {end.position}: {end.reason}"
        if reader is not None and reader.longest[0] > LONGEST and rows:
            rows[-1]["large"] = f"byte {reader.longest[1]}: a record of {reader.longest[0]:,} bytes"
        return rows
