"""Bodies of many transactions at once: numpy finds where each field lies, Arrow gathers them.

Only layouts that fit exactly are taken; any other record goes to ``txnlog.decode_payload``, which
alone decides whether it is right. Pure; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zkaudit.schema import TXNLOG, TYPES, arrow_schema
from zkaudit.txnlog import (
    CLOSE_SESSION,
    CREATE_SESSION,
    DIGEST_SIZE,
    ERROR,
    MULTI,
    RECORD_HEADER,
    TXN_HEADER,
    BodyError,
    Operation,
    decode_payload,
)

Numbers: TypeAlias = np.ndarray

_HEADER: Final = np.dtype(
    [("session", ">i8"), ("cxid", ">i4"), ("zxid", ">i8"), ("time", ">i8"), ("type", ">i4")]
)
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
_MOST_ACLS: Final = 32  # longer access lists, which nobody has, go the slow way
_LATEST_MS: Final = 253_402_300_799_999
_EARLIEST_MS: Final = -62_135_596_800_000
_SCHEMA: Final = arrow_schema(TXNLOG)


def _table(values: dict[int, Any], missing: Any, dtype: Any) -> Numbers:
    made = np.full(max(TYPES) - _LOWEST + 2, missing, dtype)  # the last one: any other type
    for code, value in values.items():
        made[code - _LOWEST] = value
    return made


_FIELD_TABLE: Final = _table(_FIELDS, -1, np.int16)
_NAMES: Final = pa.array([TYPES.get(code) for code in range(_LOWEST, max(TYPES) + 1)], pa.string())


@dataclass(frozen=True, slots=True)
class Filters:
    """Which operations are wanted.

    ``path_prefix`` leaves out operations on other paths; those without a path (sessions, errors)
    stay, since ephemerals cannot be told without them. Zxids are inclusive.
    """

    path_prefix: str = ""
    start_zxid: int | None = None
    end_zxid: int | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """A batch of the wanted operations out of the first ``records`` records."""

    batch: pa.RecordBatch
    records: int
    first_zxid: int
    last_zxid: int


class _Block:
    """Numbers at any byte of a block; places outside of it read as its edge, checked elsewhere."""

    def __init__(self, block: bytes) -> None:
        self.bytes = np.frombuffer(block, np.uint8)
        self.int32s = np.ndarray((len(block) - 3,), ">i4", block, strides=(1,))
        self.int64s = np.ndarray((len(block) - 7,), ">i8", block, strides=(1,))

    def int32(self, at: Numbers) -> Numbers:
        return self.int32s[np.minimum(at, len(self.int32s) - 1)].astype(np.int64)

    def int64(self, at: Numbers) -> Numbers:
        return self.int64s[np.minimum(at, len(self.int64s) - 1)].astype(np.int64)


@dataclass(slots=True)
class _Ops:
    """One entry for each operation; ``at`` to ``end`` is what is left of its body."""

    record: Numbers
    idx: Numbers
    code: Numbers
    at: Numbers
    end: Numbers
    single: Numbers

    def keep(self, mask: Numbers) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name)[mask])


def batch_of(
    block: bytes,
    starts: Numbers,
    lengths: Numbers,
    offset: int,
    server: str,
    file: str,
    filters: Filters,
) -> Found:
    """Decode the records whose payloads begin at ``starts`` (checksums are right already).

    ``offset`` is the block's place in the file. Reading stops before the first record whose body
    is no transaction: ``Found.records`` may be less than were given, down to 0.
    """
    data = _Block(block)
    ends = starts + lengths
    heads = data.bytes[starts[:, None] + np.arange(TXN_HEADER.size)].view(_HEADER).ravel()
    codes = heads["type"].astype(np.int64)
    zxids = heads["zxid"].astype(np.int64)
    wanted = np.ones(len(starts), bool)
    if filters.start_zxid is not None:
        wanted &= zxids >= filters.start_zxid
    if filters.end_zxid is not None:
        wanted &= zxids <= filters.end_zxid
    bad = np.zeros(len(starts), bool)
    sizes = np.zeros(len(starts), np.int64)
    digests = np.zeros(len(starts), np.int64)
    has_digest = np.zeros(len(starts), bool)

    ops = _operations(data, starts, ends, codes, wanted, bad, sizes, has_digest)
    fields = _fields(data, ops, bad, has_digest)
    digests[has_digest] = data.int64(ends[has_digest] - 8)

    records = len(starts)
    slow: list[Operation] = []
    slow_record: list[int] = []
    for record in np.flatnonzero(bad & wanted):
        begin, end = int(starts[record]), int(ends[record])
        try:
            found = decode_payload(block[begin:end], offset + begin - RECORD_HEADER)
        except BodyError:
            records = int(record)
            break
        slow += found
        slow_record += [int(record)] * len(found)

    keep = ~bad[ops.record] & (ops.record < records)
    if not keep.all():
        ops.keep(keep)
        fields = {name: value[keep] for name, value in fields.items()}
    paths = _gather(block, fields["path_at"], fields["path_size"]).cast(pa.binary())
    if filters.path_prefix:
        prefix = filters.path_prefix.encode()
        chosen = pc.fill_null(pc.starts_with(paths, prefix), True)
        mask = chosen.to_numpy(zero_copy_only=False)
        ops.keep(mask)
        fields = {name: value[mask] for name, value in fields.items()}
        paths = paths.filter(chosen)
        slow_kept = [
            i
            for i, op in enumerate(slow)
            if (op.path or filters.path_prefix).startswith(filters.path_prefix)
        ]
        slow = [slow[i] for i in slow_kept]
        slow_record = [slow_record[i] for i in slow_kept]
    record = ops.record
    count = len(record)
    columns = {
        "server": pa.repeat(pa.scalar(server), count),
        "file": pa.repeat(pa.scalar(file), count),
        "position": pa.array(starts[record] - RECORD_HEADER + offset),
        "zxid": pa.array(zxids[record]),
        "idx": pa.array(ops.idx.astype(np.int32)),
        "size": pa.array(sizes[record].astype(np.int32)),
        "time": timestamps(heads["time"].astype(np.int64)[record]),
        "session": pa.array(heads["session"].astype(np.int64)[record]),
        "cxid": pa.array(heads["cxid"].astype(np.int32)[record]),
        "type": _NAMES.take(pa.array(ops.code - _LOWEST)),
        "path": texts(paths),
        "data": _gather(block, fields["data_at"], fields["data_size"]),
        "digest": pa.array(digests[record], mask=~has_digest[record]),
        "tried": pa.nulls(count, pa.string()),
        "deleted": pa.nulls(count, _SCHEMA.field("deleted").type),
    }
    for name in ("version", "parent_cversion", "error", "timeout", "ttl", "ephemeral"):
        dtype = _SCHEMA.field(name).type
        if name in fields:
            values = fields[name].astype(dtype.to_pandas_dtype())
            columns[name] = pa.array(values, dtype, mask=~fields[f"has_{name}"])
        else:
            columns[name] = pa.nulls(count, dtype)
    batch = pa.RecordBatch.from_arrays([columns[f.name] for f in _SCHEMA], schema=_SCHEMA)
    if slow:
        batch = _merge(batch, record, slow, slow_record, server, file)
    first, last = (int(zxids[0]), int(zxids[records - 1])) if records else (0, 0)
    return Found(batch, records, first, last)


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
    """Open the multis. Those that do not fit are marked in ``bad``."""
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
        # Errors too: the operations beside one were undone, which the slow way tells.
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


def _fields(data: _Block, ops: _Ops, bad: Numbers, has_digest: Numbers) -> dict[str, Numbers]:
    """Find the fields of every operation; records that do not fit exactly become ``bad``.

    A ``..._size`` of -1 is null.
    """
    known = (ops.code >= _LOWEST) & (ops.code <= max(TYPES))
    wants = _FIELD_TABLE[np.where(known, ops.code - _LOWEST, len(_FIELD_TABLE) - 1)]
    wrong = wants < 0
    wants = np.where(wrong, 0, wants)
    at, end = ops.at.copy(), ops.end
    count = len(at)
    path_at, path_size = ops.at.copy(), np.full(count, -1, np.int64)
    found: dict[str, Numbers] = {"path_at": path_at, "path_size": path_size}

    def some(mask: Numbers) -> Any:
        return slice(None) if mask.all() else np.flatnonzero(mask)

    def number(name: str, mask: Numbers, width: int = 4) -> None:
        if not mask.any():
            return
        rows = some(mask)
        values = found.setdefault(name, np.zeros(count, np.int64))
        has = found.setdefault(f"has_{name}", np.zeros(count, bool))
        values[rows] = data.int32(at[rows]) if width == 4 else data.int64(at[rows])
        has[rows] = True
        at[rows] += width

    def bounded(rows: Any, size: Numbers, least: int) -> Numbers:
        """Advance over a length and its bytes; what does not fit is wrong and stays empty."""
        fits = (size >= least) & (size <= end[rows] - at[rows] - 4)
        wrong[rows] |= ~fits
        size = np.where(fits, size, -1)
        at[rows] += 4 + np.maximum(size, 0)
        return size

    mask = wants & _PATH != 0
    rows = some(mask)
    path_at[rows] = at[rows] + 4
    path_size[rows] = bounded(rows, data.int32(at[rows]), 0)
    data_at, data_size = at.copy(), np.full(count, -1, np.int64)
    found |= {"data_at": data_at, "data_size": data_size}
    mask = wants & _DATA != 0
    if mask.any():
        rows = some(mask)
        data_at[rows] = at[rows] + 4
        data_size[rows] = bounded(rows, data.int32(at[rows]), -1)
    # Rows without the field keep a place in order, and never one outside of the block.
    np.minimum(path_at, end, out=path_at)
    np.minimum(data_at, end, out=data_at)
    rows = np.flatnonzero(wants & _ACL)
    if len(rows):
        entries = data.int32(at[rows])
        at[rows] += 4
        wrong[rows] |= (entries > _MOST_ACLS) | (entries < -1)
        for step in range(int(np.minimum(entries, _MOST_ACLS).max())):
            live = rows[(entries > step) & ~wrong[rows]]
            at[live] += 4
            for _ in ("scheme", "id"):
                bounded(live, data.int32(at[live]), -1)
    flagged = wants & _FLAG != 0
    if flagged.any():
        rows = some(flagged)
        found["ephemeral"], found["has_ephemeral"] = np.zeros(count, bool), np.zeros(count, bool)
        found["ephemeral"][rows] = data.bytes[np.minimum(at[rows], len(data.bytes) - 1)] != 0
        found["has_ephemeral"][rows] = True
        at[rows] += 1
        left = end - at
        number("parent_cversion", flagged & ((left == 4) | (ops.single & (left == 16))))
    kept = wants & _PARENT != 0
    if kept.any():
        found.setdefault("ephemeral", np.zeros(count, bool))
        found.setdefault("has_ephemeral", np.zeros(count, bool))[kept] = True
        number("parent_cversion", kept)
        number("ttl", wants & _TTL != 0, 8)
    number("version", wants & _VERSION != 0)
    number("error", ops.code == ERROR)
    number("timeout", ops.code == CREATE_SESSION)
    left = end - at
    digest = ops.single & (left == DIGEST_SIZE)
    wrong |= (left != 0) & ~digest
    has_digest[ops.record[digest]] = True
    bad[ops.record[wrong]] = True
    return found


def _gather(block: bytes, at: Numbers, size: Numbers) -> pa.Array:
    """Binary values at the given places, which must not go backward; a size of -1 is null.

    Arrow sees one array of wanted bytes and gaps in turn, over the block itself, and copies out
    the wanted ones.
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
    wanted = np.arange(0, 2 * count, 2)
    return alternating.take(pa.array(wanted, mask=null if null.any() else None))


def texts(values: pa.Array) -> pa.Array:
    """Bytes as strings; what is not UTF-8 becomes the replacement character, as in Java."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        decoded = [v if v is None else v.decode("utf-8", "replace") for v in values.to_pylist()]
        return pa.array(decoded, pa.string())


def timestamps(milliseconds: Numbers) -> pa.Array:
    """Milliseconds since 1970 as UTC; null outside the years 1 to 9999, which no calendar holds."""
    outside = (milliseconds < _EARLIEST_MS) | (milliseconds > _LATEST_MS)
    values = np.where(outside, 0, milliseconds) * 1000
    return pa.array(values, mask=outside).cast(_SCHEMA.field("time").type)


def operations_batch(ops: list[Operation], server: str, file: str) -> pa.RecordBatch:
    """Operations of the slow decoder in the columns of ``schema.TXNLOG``."""
    columns: list[Any] = []
    for field in _SCHEMA:
        if field.name in ("server", "file"):
            value = server if field.name == "server" else file
            columns.append(pa.array([value] * len(ops), field.type))
        elif field.name == "time":
            columns.append(timestamps(np.array([op.time_ms for op in ops], np.int64)))
        else:
            columns.append(pa.array([getattr(op, field.name) for op in ops], field.type))
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def _merge(
    batch: pa.RecordBatch,
    record: Numbers,
    slow: list[Operation],
    slow_record: list[int],
    server: str,
    file: str,
) -> pa.RecordBatch:
    """Put the slow decoder's operations where they belong. Both inputs are in order."""
    both = pa.concat_batches([batch, operations_batch(slow, server, file)])
    order = np.argsort(np.concatenate([record, np.array(slow_record, np.int64)]), kind="stable")
    return both.take(pa.array(order))
