"""Arrow columns and batches in the shape of ``schema.TXNLOG``, from numbers and from operations.

Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from zkaudit.schema import TXNLOG, arrow_schema
from zkaudit.txnlog import Operation

Numbers: TypeAlias = np.ndarray

_LATEST_MS: Final = 253_402_300_799_999
_EARLIEST_MS: Final = -62_135_596_800_000
_SCHEMA: Final = arrow_schema(TXNLOG)
_PLAIN: Final = {pa.int32(): "<i4", pa.int64(): "<i8", _SCHEMA.field("time").type: "<i8"}


def schema_of(columns: Iterable[str] | None) -> pa.Schema:
    """The schema of some columns of ``schema.TXNLOG``, in the order given; ``None``: of all."""
    return _SCHEMA if columns is None else pa.schema([_SCHEMA.field(name) for name in columns])


def numbers(values: Numbers, kind: pa.DataType, has: Numbers | None = None) -> pa.Array:
    """Numbers or booleans as a column of ``kind``; null where ``has`` is false.

    Made from the buffers themselves: ``pa.array`` looks for pandas at each call.
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
    return alternating.take(numbers(np.arange(0, 2 * count, 2), pa.int64(), ~null))


def lists(which: Numbers, found: Sequence[Sequence[str] | None]) -> pa.Array:
    """Lists of strings: row i is ``found[which[i]]``, null where ``which`` is negative."""
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
    """Bytes as strings; what is not UTF-8 becomes the replacement character, as in Java."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        decoded = [v if v is None else v.decode("utf-8", "replace") for v in values.to_pylist()]
        return pa.array(decoded, pa.string())


def timestamps(milliseconds: Numbers) -> pa.Array:
    """Milliseconds since 1970 as UTC; null outside the years 1 to 9999, which no calendar holds."""
    outside = (milliseconds < _EARLIEST_MS) | (milliseconds > _LATEST_MS)
    values = np.where(outside, 0, milliseconds) if outside.any() else milliseconds
    return numbers(values * 1000, _SCHEMA.field("time").type, ~outside)


def operations_batch(
    ops: Sequence[Operation], server: str, file: str, columns: Iterable[str] | None = None
) -> pa.RecordBatch:
    """Operations of the slow decoder as a batch."""
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
    """Put ``extra``'s rows between the batch's, by their records, which are in order in both."""
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
