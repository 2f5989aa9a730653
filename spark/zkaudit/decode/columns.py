"""Decodes many transactions at once: numpy locates the fields, Arrow gathers them.

Only records that fit a layout exactly are decoded here. All others go to
``txnlog.decode_payload``, which alone decides whether a record is valid. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zkaudit.decode.snapshot import STAT, Snapshot
from zkaudit.decode.txnlog import (
    CLOSE_SESSION,
    CREATE_SESSION,
    DIGEST_SIZE,
    ERROR,
    MULTI,
    RECORD_HEADER,
    TXN_HEADER,
    BodyError,
    Operation,
    close_session,
    decode_payload,
)
from zkaudit.schema import SNAPSHOT, TXNLOG, TYPES, arrow_schema
from zkaudit.storage import name_of

Numbers: TypeAlias = np.ndarray

_LATEST_MS: Final = 253_402_300_799_999
_EARLIEST_MS: Final = -62_135_596_800_000
_SCHEMA: Final = arrow_schema(TXNLOG)
_PLAIN: Final = {pa.int32(): "<i4", pa.int64(): "<i8", _SCHEMA.field("time").type: "<i8"}


def schema_of(columns: Iterable[str] | None) -> pa.Schema:
    """Return the schema of these columns of ``schema.TXNLOG``, in this order; ``None`` for all."""
    return _SCHEMA if columns is None else pa.schema([_SCHEMA.field(name) for name in columns])


@cache
def _no_rows(columns: tuple[str, ...] | None) -> pa.RecordBatch:
    """Return a batch without rows."""
    return pa.RecordBatch.from_pylist([], schema=schema_of(columns))


def numbers(values: Numbers, kind: pa.DataType, has: Numbers | None = None) -> pa.Array:
    """Return numbers or booleans as a column of ``kind``, null where ``has`` is false.

    It is built from buffers, because ``pa.array`` tries to import pandas at each call.
    """
    if kind == pa.bool_():
        content = np.packbits(values, bitorder="little")
    else:
        content = np.ascontiguousarray(values, _PLAIN[kind])
    valid = None
    if has is not None and not has.all():
        valid = pa.py_buffer(np.packbits(has, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(content)])


def gather(block: bytes, at: Numbers, size: Numbers) -> pa.Array:
    """Return a column of the bytes that begin at ``at`` and have these sizes. The positions must
    not decrease. A size of -1 gives null.

    Wanted and unwanted bytes alternate in one Arrow array over the block. Arrow then copies the
    wanted ones.
    """
    count = len(at)
    if not count:
        return pa.array([], pa.binary())
    null = size < 0
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = at
    offsets[1::2] = at + np.where(null, 0, size)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(block)]
    alternating = pa.BinaryArray.from_buffers(pa.binary(), 2 * count - 1, buffers)
    return alternating.take(numbers(np.arange(0, 2 * count, 2), pa.int64(), ~null))


def lists(which: Numbers, found: Sequence[Sequence[str] | None]) -> pa.Array:
    """Return a column of lists of strings: row i is ``found[which[i]]``, null where ``which`` is
    negative."""
    kind = _SCHEMA.field("deleted").type
    rows = np.flatnonzero(which >= 0).tolist()
    made = [found[number] for number in which[rows].tolist()]
    sizes = np.zeros(len(which) + 1, np.int32)
    has = np.zeros(len(which), bool)
    for row, strings in zip(rows, made, strict=True):
        if strings is not None:
            has[row], sizes[row + 1] = True, len(strings)
    values = pa.array([text for strings in made for text in strings or ()], pa.string())
    buffers = [
        pa.py_buffer(np.packbits(has, bitorder="little")),
        pa.py_buffer(np.cumsum(sizes, dtype=np.int32)),
    ]
    return pa.Array.from_buffers(kind, len(which), buffers, children=[values])


def texts(values: pa.Array) -> pa.Array:
    """Return bytes as strings. Invalid UTF-8 becomes the replacement character, as in Java."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        decoded = [v if v is None else v.decode("utf-8", "replace") for v in values.to_pylist()]
        return pa.array(decoded, pa.string())


def timestamps(milliseconds: Numbers) -> pa.Array:
    """Return milliseconds since 1970 as UTC times, null outside the years 1 to 9999."""
    outside = (milliseconds < _EARLIEST_MS) | (milliseconds > _LATEST_MS)
    values = np.where(outside, 0, milliseconds) if outside.any() else milliseconds
    return numbers(values * 1000, _SCHEMA.field("time").type, ~outside)


def operations_batch(
    ops: Sequence[Operation], server: str, file: str, columns: Iterable[str] | None = None
) -> pa.RecordBatch:
    """Return operations decoded by ``txnlog`` as a batch."""
    schema = schema_of(columns)
    made: list[Any] = []
    for field in schema:
        if field.name in ("server", "file"):
            value = server if field.name == "server" else file
            made.append(pa.array([value] * len(ops), field.type))
        elif field.name == "time":
            made.append(timestamps(np.array([op.time_ms for op in ops], np.int64)))
        else:
            made.append(pa.array([getattr(op, field.name) for op in ops], field.type))
    return pa.RecordBatch.from_arrays(made, schema=schema)


def splice(
    batch: pa.RecordBatch, record: Numbers, extra: pa.RecordBatch, extra_record: Numbers
) -> pa.RecordBatch:
    """Merge the rows of ``extra`` into the batch, in the order of their record numbers. Both are
    already in that order."""
    before = np.searchsorted(record, extra_record)
    begins = np.flatnonzero(np.diff(before, prepend=-1))
    ends = np.append(begins[1:], len(before))
    parts: list[pa.RecordBatch] = []
    at = 0
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        place = int(before[begin])
        parts += [batch.slice(at, place - at), extra.slice(begin, end - begin)]
        at = place
    return pa.concat_batches([*parts, batch.slice(at)])


_HEADER: Final = np.dtype(
    [("session", ">i8"), ("cxid", ">i4"), ("zxid", ">i8"), ("time", ">i8"), ("type", ">i4")]
)
_HEADER_BYTES: Final = np.dtype(f"V{_HEADER.itemsize}")
_LOWEST: Final = min(TYPES)
_PATH, _DATA, _ACL, _FLAG, _PARENT, _VERSION, _TTL = (1 << bit for bit in range(7))
_FIELDS: Final = {
    1: _PATH | _DATA | _ACL | _FLAG,
    15: _PATH | _DATA | _ACL | _FLAG,
    19: _PATH | _DATA | _ACL | _PARENT,
    21: _PATH | _DATA | _ACL | _PARENT | _TTL,
    2: _PATH,
    20: _PATH,
    5: _PATH | _DATA | _VERSION,
    16: _PATH | _DATA | _VERSION,
    7: _PATH | _ACL | _VERSION,
    13: _PATH | _VERSION,
    ERROR: 0,
    CREATE_SESSION: 0,
    CLOSE_SESSION: 0,
}
_WITHOUT_PATH: Final = (ERROR, CREATE_SESSION, CLOSE_SESSION)
_ERROR_BYTES: Final = ERROR.to_bytes(4, "big", signed=True)
_MOST_ACLS: Final = 32  # records with longer access lists, which are rare, are decoded slowly


def _table(values: dict[int, Any], missing: Any, dtype: Any) -> Numbers:
    made = np.full(max(TYPES) - _LOWEST + 2, missing, dtype)  # the last one: any other type
    for code, value in values.items():
        made[code - _LOWEST] = value
    return made


_FIELD_TABLE: Final = _table(_FIELDS, -1, np.int16)
_NAMES: Final = pa.array([TYPES.get(code) for code in range(_LOWEST, max(TYPES) + 1)], pa.string())


@dataclass(frozen=True, slots=True)
class Filters:
    """Which operations to decode.

    ``path_prefix``: leave out operations on other paths. Operations without a path (sessions,
    errors) are kept, because the end of a session deletes ephemeral znodes. Zxids are inclusive.
    ``mentions``: leave out records that contain none of these byte strings, without decoding them.
    Operations without a path are kept, as are failed multis, whose paths are not logged.
    """

    path_prefix: str = ""
    start_zxid: int | None = None
    end_zxid: int | None = None
    mentions: tuple[bytes, ...] = ()

    def in_range(self, zxids: Numbers) -> Numbers:
        """Return for each zxid whether it is wanted."""
        wanted = np.ones(len(zxids), bool)
        if self.start_zxid is not None:
            wanted &= zxids >= self.start_zxid
        if self.end_zxid is not None:
            wanted &= zxids <= self.end_zxid
        return wanted


@dataclass(frozen=True, slots=True)
class Heads:
    """The zxids and times (milliseconds since 1970) of consecutive records."""

    zxids: Numbers
    times: Numbers


@dataclass(frozen=True, slots=True)
class Found(Heads):
    """The zxids and times of consecutive records, and a batch of the wanted operations among
    them."""

    batch: pa.RecordBatch


class _Block:
    """Reads numbers at any byte of a block. Positions outside the block read its edge; callers
    check them."""

    def __init__(self, block: bytes) -> None:
        self.block = block
        self.bytes = np.frombuffer(block, np.uint8)
        self.int32s = np.ndarray((len(block) - 3,), ">i4", block, strides=(1,))
        self.int64s = np.ndarray((len(block) - 7,), ">i8", block, strides=(1,))

    def int32(self, at: Numbers) -> Numbers:
        return self.int32s[np.minimum(at, len(self.int32s) - 1)].astype(np.int64)

    def int64(self, at: Numbers) -> Numbers:
        return self.int64s[np.minimum(at, len(self.int64s) - 1)].astype(np.int64)


@dataclass(slots=True)
class _Ops:
    """The operations, one entry each. ``at`` to ``end`` is the rest of the body."""

    record: Numbers
    idx: Numbers
    code: Numbers
    at: Numbers
    end: Numbers
    single: Numbers

    def keep(self, mask: Numbers) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name)[mask])


def _heads(block: bytes, starts: Numbers) -> Numbers:
    """Return the records' headers."""
    # As bytes first: selecting rows with many fields is eight times slower in numpy.
    places = len(block) - _HEADER.itemsize + 1
    return np.ndarray((places,), _HEADER_BYTES, block, strides=(1,))[starts].view(_HEADER)


def heads_of(block: bytes, starts: Numbers) -> Heads:
    """Decode only the headers of records whose payloads begin at ``starts``."""
    heads = _heads(block, starts)
    return Heads(heads["zxid"].astype(np.int64), heads["time"].astype(np.int64))


def _mentioned(block: bytes, starts: Numbers, texts: Iterable[bytes]) -> Numbers:
    """Mark the records that contain one of the texts."""
    places: list[int] = []
    for text in texts:
        at = block.find(text)
        while at >= 0:
            places.append(at)
            at = block.find(text, at + len(text))
    found = np.zeros(len(starts), bool)
    records = np.searchsorted(starts, np.array(places, np.int64), "right") - 1
    found[records[records >= 0]] = True
    return found


def batch_of(
    block: bytes,
    starts: Numbers,
    lengths: Numbers,
    offset: int,
    server: str,
    file: str,
    filters: Filters,
    columns: Sequence[str] | None = None,
) -> Found:
    """Decode records whose checksums were verified. ``starts``: where their payloads begin.

    ``columns``: the wanted columns of ``schema.TXNLOG``, by default all.

    ``offset`` is the block's position in the file. Decoding stops before the first wanted record
    whose body is not a transaction, so the result may have fewer records than ``starts``, or none.
    """
    data = _Block(block)
    ends = starts + lengths
    heads = _heads(block, starts)
    codes = heads["type"].astype(np.int64)
    zxids, times = heads["zxid"].astype(np.int64), heads["time"].astype(np.int64)
    wanted = _wanted(block, starts, codes, zxids, filters)
    if not wanted.any():
        return Found(zxids, times, _no_rows(None if columns is None else tuple(columns)))
    bad = np.zeros(len(starts), bool)
    sizes = np.zeros(len(starts), np.int64)
    has_digest = np.zeros(len(starts), bool)

    ops = _operations(data, starts, ends, codes, wanted, bad, sizes, has_digest)
    closes: list[tuple[str, ...] | None] = []
    fields = _fields(data, ops, bad, has_digest, closes)
    slow, slow_record, records = _decoded(block, starts, ends, offset, bad & wanted, filters)

    good = ~bad[ops.record] & (ops.record < records)
    if not good.all():
        _keep(ops, fields, good)
    schema = schema_of(columns)
    paths: Any = None
    if "path" in schema.names or filters.path_prefix:
        paths = _paths(block, ops, fields, filters.path_prefix)
    in_records = {
        "position": starts + (offset - RECORD_HEADER),
        "zxid": zxids,
        "size": sizes,
        "session": heads["session"],
        "cxid": heads["cxid"],
        "time": times,
        "end": ends,
        "has_digest": has_digest,
    }
    is_each = len(ops.record) == len(starts) and not (codes == MULTI).any()
    rows = _Rows(data, ops, fields, closes, paths, in_records, is_each)
    arrays = [rows.column(field, server, file) for field in schema]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    if slow:
        extra = operations_batch(slow, server, file, columns)
        batch = splice(batch, ops.record, extra, np.array(slow_record, np.int64))
    return Found(zxids[:records], times[:records], batch)


def _keep(ops: _Ops, fields: dict[str, Numbers], mask: Numbers) -> None:
    """Leave out operations and their fields."""
    ops.keep(mask)
    fields.update({name: value[mask] for name, value in fields.items()})


def _paths(block: bytes, ops: _Ops, fields: dict[str, Numbers], prefix: str) -> pa.Array:
    """Return the operations' paths. Operations whose path does not begin with ``prefix`` are left
    out, also from ``ops`` and ``fields``."""
    paths = gather(block, fields["path_at"], fields["path_size"])
    if not prefix:
        return paths
    chosen = pc.fill_null(pc.starts_with(paths, prefix.encode()), True)
    _keep(ops, fields, chosen.to_numpy(zero_copy_only=False))
    return paths.filter(chosen)


def _wanted(
    block: bytes, starts: Numbers, codes: Numbers, zxids: Numbers, filters: Filters
) -> Numbers:
    """Mark the records that may have wanted operations."""
    wanted = filters.in_range(zxids)
    if filters.mentions:
        chosen = _mentioned(block, starts, filters.mentions)
        for code in _WITHOUT_PATH:
            chosen |= codes == code
        multi = codes == MULTI
        if multi.any():
            chosen |= multi & _mentioned(block, starts, (_ERROR_BYTES,))
        wanted &= chosen
    return wanted


def _decoded(
    block: bytes, starts: Numbers, ends: Numbers, offset: int, odd: Numbers, filters: Filters
) -> tuple[list[Operation], list[int], int]:
    """Decode the records marked as ``odd`` one by one. Return their operations, the record of
    each, and the number of records before the first one whose body is not a transaction."""
    slow: list[Operation] = []
    records: list[int] = []
    for record in np.flatnonzero(odd).tolist():
        begin, end = int(starts[record]), int(ends[record])
        try:
            found = decode_payload(block[begin:end], offset + begin - RECORD_HEADER)
        except BodyError:
            return slow, records, record
        prefix = filters.path_prefix
        found = [op for op in found if op.path is None or op.path.startswith(prefix)]
        slow += found
        records += [record] * len(found)
    return slow, records, len(starts)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The data from which the columns of a batch are made.

    Args:
        data: the block.
        ops: the operations, one for each row.
        fields: the result of ``_fields`` for these operations.
        closes: the paths that were deleted when sessions ended.
        paths: the operations' paths, if needed.
        in_records: values of the records.
        is_each: whether each record is one row.
    """

    data: _Block
    ops: _Ops
    fields: Mapping[str, Numbers]
    closes: Sequence[Sequence[str] | None]
    paths: Any
    in_records: Mapping[str, Numbers]
    is_each: bool

    def _of(self, name: str) -> Numbers:
        """Return a field's value for each row."""
        values = self.in_records[name]
        return values if self.is_each else values[self.ops.record]

    def column(self, field: pa.Field, server: str, file: str) -> pa.Array:
        """Return a column."""
        name, fields = field.name, self.fields
        count = len(self.ops.record)
        if name in ("server", "file"):
            return pa.repeat(pa.scalar(server if name == "server" else file, field.type), count)
        if name == "time":
            return timestamps(self._of("time"))
        if name == "type":
            return _NAMES.take(numbers(self.ops.code - _LOWEST, pa.int64()))
        if name == "path":
            return texts(self.paths)
        if name == "data":
            return gather(self.data.block, fields["data_at"], fields["data_size"])
        if name == "digest":
            has = self._of("has_digest")
            return numbers(np.where(has, self.data.int64(self._of("end") - 8), 0), field.type, has)
        if name == "deleted":
            return lists(fields["close"], self.closes)
        if name == "idx":
            return numbers(self.ops.idx, field.type)
        if name in self.in_records:
            return numbers(self._of(name), field.type)
        if name in fields:
            return numbers(fields[name], field.type, fields[f"has_{name}"])
        return pa.nulls(count, field.type)


def _operations(
    data: _Block,
    starts: Numbers,
    ends: Numbers,
    codes: Numbers,
    wanted: Numbers,
    bad: Numbers,
    sizes: Numbers,
    has_digest: Numbers,
) -> _Ops:
    """Expand the multis. Those that do not match the layout are marked in ``bad``."""
    single = np.flatnonzero(wanted & (codes != MULTI))
    multi = np.flatnonzero(wanted & (codes == MULTI))
    body = starts + TXN_HEADER.size
    zeros = np.zeros(len(single), np.int64)
    parts = [_Ops(single, zeros, codes[single], body[single], ends[single], zeros == 0)]
    record, at = multi, body[multi] + 4
    count = data.int32(body[multi])
    sizes[multi] = count
    bad[multi] = (count < 1) | (ends[multi] < at)
    step = 0
    while len(record):
        live = (step < count) & ~bad[record]
        over = ~live & ~bad[record]
        left = ends[record[over]] - at[over]
        bad[record[over]] = (left != 0) & (left != DIGEST_SIZE)
        has_digest[record[over]] = left == DIGEST_SIZE
        record, at, count = record[live], at[live], count[live]
        code, size = data.int32(at), data.int32(at + 4)
        end = at + 8 + size
        fits = (size >= 0) & (end <= ends[record])
        bad[record[~fits]] = True
        # Errors too: the other operations were rolled back, which the slow decoder handles.
        odd = (code == MULTI) | (code == CLOSE_SESSION) | (code == CREATE_SESSION) | (code == ERROR)
        bad[record[odd]] = True
        steps = np.full(len(record), step, np.int64)
        parts.append(_Ops(record, steps, code, at + 8, end, np.zeros(len(record), bool)))
        at = np.where(fits, end, at)
        step += 1
    if len(parts) == 1:
        return parts[0]
    names = _Ops.__slots__
    ops = _Ops(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))
    ops.keep(~bad[ops.record])
    order = np.lexsort((ops.idx, ops.record))
    ops.keep(order)
    return ops


class _Walk:
    """Reads the fields of all operations in parallel. Operations that do not match a layout are
    ``wrong``."""

    def __init__(self, data: _Block, ops: _Ops) -> None:
        known = (ops.code >= _LOWEST) & (ops.code <= max(TYPES))
        wants = _FIELD_TABLE[np.where(known, ops.code - _LOWEST, len(_FIELD_TABLE) - 1)]
        self.wrong = wants < 0
        self.wants = np.where(self.wrong, 0, wants)
        self.found: dict[str, Numbers] = {}
        self._data, self._at, self._end, self._single = data, ops.at.copy(), ops.end, ops.single

    @property
    def left(self) -> Numbers:
        """Number of unread bytes of each operation."""
        return self._end - self._at

    def number(self, name: str, mask: Numbers, width: int = 4) -> None:
        """Read a number in the rows of ``mask``."""
        data, at, found, count = self._data, self._at, self.found, len(self._at)
        many = np.count_nonzero(mask)
        if not many:
            return
        if 2 * many > count and width == 4 and name not in found:  # quicker than choosing rows
            found[name], found[f"has_{name}"] = data.int32(at), mask
            np.add(at, width, out=at, where=mask)
            return
        rows = np.flatnonzero(mask)
        values = found.setdefault(name, np.zeros(count, np.int64))
        has = found.setdefault(f"has_{name}", np.zeros(count, bool))
        values[rows] = data.int32(at[rows]) if width == 4 else data.int64(at[rows])
        has[rows] = True
        at[rows] += width

    def sized(self, name: str, mask: Numbers, least: int) -> None:
        """Read a length and its bytes in the rows of ``mask``. A value that does not fit is
        wrong and stays empty. All positions stay in order and within the block."""
        at, end = self._at, self._end
        size = self._data.int32(at)
        fits = mask & (size >= least) & (size <= end - at - 4)
        np.logical_or(self.wrong, mask ^ fits, out=self.wrong)
        self.found[f"{name}_at"] = np.minimum(at + 4, end)
        self.found[f"{name}_size"] = size = np.where(fits, size, -1)
        np.add(at, np.maximum(size, 0) + 4, out=at, where=mask)

    def access_lists(self) -> None:
        """Skip the access lists."""
        rows = np.flatnonzero(self.wants & _ACL)
        if not len(rows):
            return
        at, end = self._at, self._end
        entries = self._data.int32(at[rows])
        at[rows] += 4
        self.wrong[rows] |= (entries > _MOST_ACLS) | (entries < -1)
        for step in range(int(np.minimum(entries, _MOST_ACLS).max())):
            live = rows[(entries > step) & ~self.wrong[rows]]
            at[live] += 4
            for _ in ("scheme", "id"):
                size = self._data.int32(at[live])
                fits = (size >= -1) & (size <= end[live] - at[live] - 4)
                self.wrong[live] |= ~fits
                at[live] += 4 + np.where(fits, np.maximum(size, 0), 0)

    def flags(self) -> None:
        """Skip the fields of creates after the access list."""
        found, at, count = self.found, self._at, len(self._at)
        flagged, kept = self.wants & _FLAG != 0, self.wants & _PARENT != 0
        if flagged.any():
            rows = np.flatnonzero(flagged)
            found["ephemeral"], found["has_ephemeral"] = np.zeros((2, count), bool)
            last = len(self._data.bytes) - 1
            found["ephemeral"][rows] = self._data.bytes[np.minimum(at[rows], last)] != 0
            found["has_ephemeral"][rows] = True
            at[rows] += 1
            more = (self.left == 4) | (self._single & (self.left == 16))
            self.number("parent_cversion", flagged & more)
        if kept.any():
            found.setdefault("ephemeral", np.zeros(count, bool))
            found.setdefault("has_ephemeral", np.zeros(count, bool))[kept] = True
            self.number("parent_cversion", kept)
            self.number("ttl", self.wants & _TTL != 0, 8)


def _fields(
    data: _Block,
    ops: _Ops,
    bad: Numbers,
    has_digest: Numbers,
    closes: list[tuple[str, ...] | None],
) -> dict[str, Numbers]:
    """Find the fields of every operation. Records that do not match a layout exactly become
    ``bad``.

    A ``..._size`` of -1 is null. ``closes`` has the paths deleted by closeSession operations;
    ``close`` is the index in it, and -1 for all other operations.
    """
    walk = _Walk(data, ops)
    wants, found = walk.wants, walk.found
    walk.sized("path", wants & _PATH != 0, 0)
    walk.sized("data", wants & _DATA != 0, -1)
    walk.access_lists()
    walk.flags()
    walk.number("version", wants & _VERSION != 0)
    walk.number("error", ops.code == ERROR)
    walk.number("timeout", ops.code == CREATE_SESSION)
    left = walk.left
    found["close"] = np.full(len(left), -1, np.int64)
    for row in np.flatnonzero(ops.code == CLOSE_SESSION).tolist():
        body = data.block[ops.at[row] : ops.end[row]]
        deleted, left[row] = close_session(body)
        found["close"][row] = len(closes)
        closes.append(deleted)
    digest = ops.single & (left == DIGEST_SIZE)
    walk.wrong |= (left != 0) & ~digest
    has_digest[ops.record[digest]] = True
    bad[ops.record[walk.wrong]] = True
    return found


_STAT_FIELDS: Final = np.dtype(
    [("czxid", ">i8"), ("mzxid", ">i8"), ("ctime", ">i8"), ("mtime", ">i8"), ("version", ">i4"),
     ("cversion", ">i4"), ("aversion", ">i4"), ("ephemeral_owner", ">i8"), ("pzxid", ">i8")]
)  # fmt: skip
_STAT_BYTES: Final = np.dtype(f"V{STAT.size}")


def nodes_batch(
    snapshot: Snapshot,
    begin: int,
    end: int,
    server: str,
    filters: Filters,
    columns: Iterable[str] | None = None,
) -> pa.RecordBatch:
    """Decode the znodes of a snapshot from number ``begin`` to number ``end``.

    ``columns``: the wanted columns of ``schema.SNAPSHOT``, by default all. Of ``filters``, only the
    path prefix is used.
    """
    schema = arrow_schema(SNAPSHOT)
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])
    starts = np.frombuffer(snapshot.starts, np.int64)
    first = int(starts[begin])
    last = int(starts[end]) if end < len(starts) else len(snapshot.content)
    block = snapshot.content[first:last]
    at = starts[begin:end] - first
    data = _Block(block)
    path_size = data.int32(at)
    data_at = at + 4 + path_size
    data_size = data.int32(data_at)
    stat_at = data_at + 12 + np.maximum(data_size, 0)
    paths = texts(gather(block, at + 4, path_size))
    paths = pc.if_else(pc.equal(paths, ""), "/", paths)
    if filters.path_prefix:
        chosen = pc.starts_with(paths, filters.path_prefix)
        rows = np.flatnonzero(chosen.to_numpy(zero_copy_only=False))
        paths = paths.filter(chosen)
        data_at, data_size, stat_at = data_at[rows], data_size[rows], stat_at[rows]
    places = len(block) - STAT.size + 1
    stats = np.ndarray((places,), _STAT_BYTES, block, strides=(1,))[stat_at].view(_STAT_FIELDS)
    same: dict[str, object] = {
        "server": server,
        "file": name_of(snapshot.file),
        "zxid": snapshot.zxid,
        "complete_zxid": snapshot.complete_zxid,
    }

    def column(field: pa.Field) -> pa.Array:
        name = field.name
        if name in same:
            return pa.repeat(pa.scalar(same[name], field.type), len(paths))
        if name == "path":
            return paths
        if name == "data":
            return gather(block, data_at + 4, data_size)
        if name in ("ctime", "mtime"):
            return timestamps(stats[name].astype(np.int64))
        return numbers(stats[name], field.type)

    return pa.RecordBatch.from_arrays([column(field) for field in schema], schema=schema)
