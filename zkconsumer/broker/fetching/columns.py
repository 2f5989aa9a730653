"""Converts record bytes to columns: one Arrow record batch for a partition's part of a fetch.

Converts record batches of format 2 to ``pyarrow`` without an object for each message: in C, or
without the extension module with numpy. Formats 0 and 1 and damaged records are left to
``PythonDecoder``. No IO, no state; runs on consuming threads. Needs the extra ``arrow``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from zkconsumer.broker.fetching.codecs import decompress
from zkconsumer.broker.fetching.records import (
    Headers,
    OpenBatch,
    PythonDecoder,
    Record,
    open_batch,
    read_headers,
    record_bounds,
)
from zkconsumer.errors import CodecUnavailableError, InvalidMessageError

try:
    from zkconsumer.broker.fetching import _native
except ImportError:  # a build without a compiler
    _native = None  # type: ignore[assignment]

Ints = Any
"""A numpy array of int64."""

_HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", "UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(_HEADER), nullable=False),
    ]
)
"""Columns of every batch. ``timestamp`` is null for messages of format 0, which have none."""

_NO_HEADERS: Final = pa.array([], _HEADER)
_LIMIT: Final = 1 << 63
_LARGE: Final = 1 << 62
"""Largest number for which the sum of two such numbers fits into 64 bits."""

_ENTRY: Final = Struct(">8xi4xb")  # size, magic


Arrays = dict[str, Any]
"""Columns by name; those of the schema, without topic and partition."""


class Decoded(NamedTuple):
    """Decoded columns, and the error at which decoding stopped, if any."""

    batch: Any
    """A ``pyarrow.RecordBatch``."""
    last: int
    """Offset of the last row; undefined if there are no rows."""
    failure: Exception | None
    """Why the bytes after the batch are unreadable; ``None`` if everything was read."""


def schema_of(names: Sequence[str] | None) -> Any:
    """Return the schema with these columns; with all columns for ``None``.

    Raises ``ValueError`` if a name is unknown or repeated, or if there are no names.
    """
    if names is None:
        return SCHEMA
    unknown = [name for name in names if name not in SCHEMA.names]
    if isinstance(names, str) or unknown or not names or len(set(names)) < len(names):
        raise ValueError(
            f"columns is {names!r}: name at least one of {', '.join(SCHEMA.names)}, none twice"
        )
    return pa.schema([SCHEMA.field(name) for name in names])


def decode(data: bytes, topic: str, partition: int, start: int, schema: Any = SCHEMA) -> Decoded:
    """Decode all records with offset >= ``start``. A cut-off last entry is ignored.

    ``schema`` has some or all columns of ``SCHEMA``. ``failure`` is an ``InvalidMessageError`` or a
    ``CodecUnavailableError``, as in ``Decoder.decode``.
    """
    native = _native is not None and start < _LIMIT
    found = (_in_c if native else _fast)(data, start, schema.names)
    if found is None:
        return _slow(data, topic, partition, start, schema)
    count, last, arrays = found
    return Decoded(_batch(topic, partition, count, arrays, schema), last, None)


@lru_cache(128)
def _dictionary(topic: str) -> Any:
    return pa.array([topic], pa.string())


def _batch(topic: str, partition: int, count: int, arrays: Arrays, schema: Any) -> Any:
    if "topic" in schema.names:
        arrays["topic"] = pa.DictionaryArray.from_arrays(
            np.zeros(count, np.int32), _dictionary(topic), safe=False
        )
    if "partition" in schema.names:
        arrays["partition"] = np.full(count, partition, np.int32)
    return pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)


def of_records(topic: str, partition: int, records: Sequence[Record], schema: Any = SCHEMA) -> Any:
    """Convert decoded records to a ``pyarrow.RecordBatch``.

    Raises ``InvalidMessageError`` for an offset of more than 64 bits.
    """
    offsets = [record[2] for record in records]
    times = [record[5] if 0 <= record[5] < _LIMIT else None for record in records]
    if offsets and max(offsets) >= _LIMIT:
        raise InvalidMessageError(f"{topic}-{partition} has an offset of more than 64 bits")
    arrays = {
        "offset": pa.array(offsets, pa.int64()),
        "timestamp": pa.array(times, pa.timestamp("ms", "UTC")),
        "key": pa.array([record[3] for record in records], pa.binary()),
        "value": pa.array([record[4] for record in records], pa.binary()),
        "headers": _headers(list(enumerate(record[7] for record in records)), len(records)),
    }
    return _batch(topic, partition, len(records), arrays, schema)


def _slow(data: bytes, topic: str, partition: int, start: int, schema: Any) -> Decoded:
    records: list[Record] = []
    failure: Exception | None = None
    try:
        for part in PythonDecoder().decode(data, topic, partition, start):
            records += part
    except (InvalidMessageError, CodecUnavailableError) as exc:
        failure = exc
    last = records[-1][2] if records else -1
    return Decoded(of_records(topic, partition, records, schema), last, failure)


def _in_c(data: bytes, start: int, names: Sequence[str]) -> tuple[int, int, Arrays] | None:
    """Do the same as ``_fast``, in C."""
    wanted = sum(1 << bit for bit, name in enumerate(SCHEMA.names[2:]) if name in names)
    try:
        found = _native.columns(data, start, wanted, decompress, pa.allocate_buffer)
    except (InvalidMessageError, CodecUnavailableError):
        return None
    if found is None:
        return None
    count, last, offsets, times, timed, keys, values, headers = found
    arrays = {"offset": _array(pa.int64(), count, None, offsets)}
    if times is not None:
        arrays["timestamp"] = _array(pa.timestamp("ms", "UTC"), count, timed, times)
    if keys is not None:
        arrays["key"] = _array(pa.binary(), count, *keys)
    if values is not None:
        arrays["value"] = _array(pa.binary(), count, *values)
    if headers is not None:
        total, lists, header_names, header_values = headers
        flat = _NO_HEADERS
        if total:
            strings = _array(pa.string(), total, *header_names)
            values_ = _array(pa.binary(), total, *header_values)
            flat = pa.StructArray.from_arrays([strings, values_], fields=list(_HEADER))
        kind = SCHEMA.field("headers").type
        arrays["headers"] = pa.ListArray.from_buffers(kind, count, [None, lists], children=[flat])
    return count, last, arrays


def _array(kind: Any, count: int, *buffers: Any) -> Any:
    return pa.Array.from_buffers(kind, count, list(buffers))


def _fast(data: bytes, start: int, names: Sequence[str]) -> tuple[int, int, Arrays] | None:
    """Return the number of rows, the offset of the last one, and the columns; ``None`` if ``_slow``
    must read them."""
    batches: list[OpenBatch] = []
    pos, end = 0, len(data)
    try:
        while pos + 17 <= end:
            size, magic = _ENTRY.unpack_from(data, pos)
            stop = pos + 12 + size
            if magic != 2 or size < 49:
                return None
            if stop > end:
                break
            batch = open_batch(data, pos, stop)
            if batch is not None:
                batches.append(batch)
            pos = stop
        buffer, bounds, counts = _joined(data, batches)
        return _columns(buffer, bounds, counts, batches, start, names)
    except (InvalidMessageError, CodecUnavailableError, IndexError, UnicodeDecodeError):
        return None


def _joined(data: bytes, batches: list[OpenBatch]) -> tuple[bytes, Ints, list[int]]:
    """Return a buffer with all records, where each begins and ends, and each batch's number."""
    bounds: list[int] = []
    counts: list[int] = []
    pieces: list[bytes] = []
    length = 0
    whole = all(batch.data is data for batch in batches)
    for batch in batches:
        before = len(bounds)
        record_bounds(batch, 0 if whole else length - batch.pos, bounds)
        counts.append((len(bounds) - before) // 2)
        if not whole:
            pieces.append(batch.data[batch.pos : batch.stop])
            length += batch.stop - batch.pos
    buffer = data if whole else b"".join(pieces)
    return buffer, np.array(bounds, np.int64).reshape(-1, 2), counts


def _columns(
    buffer: bytes,
    bounds: Ints,
    counts: list[int],
    batches: list[OpenBatch],
    start: int,
    names: Sequence[str],
) -> tuple[int, int, Arrays] | None:
    octets = np.frombuffer(buffer, np.uint8)
    steps, pos = _varints(octets, bounds[:, 0] + 1, 10)
    deltas, pos = _varints(octets, pos, 5)
    key_sizes, key_starts = _varints(octets, pos, 5)
    key_ends = key_starts + np.where(key_sizes & 1, 0, key_sizes >> 1)
    value_sizes, value_starts = _varints(octets, key_ends, 5)
    value_ends = value_starts + np.where(value_sizes & 1, 0, value_sizes >> 1)
    ends = value_ends + 1
    with_headers = np.flatnonzero(octets[value_ends])
    rows: list[tuple[int, Headers]] = []
    for row in with_headers.tolist():
        headers, ends[row] = read_headers(buffer, int(value_ends[row]))
        rows.append((row, headers))

    base = np.repeat(np.array([batch.base for batch in batches], np.int64), counts)
    offsets = base + (deltas >> 1)
    firsts = [batch.first_time if b is None else b for batch in batches for b in [batch.fixed_time]]
    fixed = np.repeat([batch.fixed_time is not None for batch in batches], counts)
    steps = np.where(fixed, 0, (steps >> 1) ^ -(steps & 1))
    times = np.repeat(np.array(firsts, np.int64), counts) + steps
    if (
        (deltas & 1).any()
        or (ends != bounds[:, 1]).any()
        or (offsets < base).any()
        or (np.abs(steps) > _LARGE).any()
        or any(abs(first) > _LARGE for first in firsts)
    ):
        return None

    wanted = offsets >= start
    if not wanted.all():
        keep = np.flatnonzero(wanted)
        row_of = {int(row): number for number, row in enumerate(keep)}
        rows = [(row_of[row], headers) for row, headers in rows if row in row_of]
        offsets, times = offsets[keep], times[keep]
        key_starts, key_ends, key_sizes = key_starts[keep], key_ends[keep], key_sizes[keep]
        value_starts, value_ends = value_starts[keep], value_ends[keep]
        value_sizes = value_sizes[keep]
    arrays = {"offset": offsets}
    if "timestamp" in names:
        arrays["timestamp"] = pa.array(times, pa.timestamp("ms", "UTC"), mask=times < 0)
    if "key" in names:
        arrays["key"] = _binary(buffer, key_starts, key_ends, key_sizes & 1)
    if "value" in names:
        arrays["value"] = _binary(buffer, value_starts, value_ends, value_sizes & 1)
    if "headers" in names:
        arrays["headers"] = _headers(rows, len(offsets))
    return len(offsets), int(offsets[-1]) if len(offsets) else -1, arrays


def _varints(octets: Any, pos: Ints, most: int) -> tuple[Ints, Ints]:
    """Read one unsigned variable-length number at each position. Return the numbers and their
    ends.

    Raises ``IndexError`` or ``InvalidMessageError``.
    """
    pos = pos.copy()
    first = octets[pos]
    values = (first & 127).astype(np.int64)
    pos += 1
    longer = np.flatnonzero(first > 127)
    shift = 7
    while longer.size:
        if shift == 7 * most:
            raise InvalidMessageError(f"a variable-length number has more than {most} bytes")
        more = octets[pos[longer]]
        values[longer] |= (more & 127).astype(np.int64) << shift
        pos[longer] += 1
        longer = longer[more > 127]
        shift += 7
    return values, pos


def _binary(buffer: bytes, starts: Ints, ends: Ints, null: Ints) -> Any:
    """Return the bytes from each start to its end. Positions are ascending.

    An array in which every second entry is the space between two values is a view of the buffer.
    ``take`` copies the values.
    """
    count = len(starts)
    if not count:
        return pa.array([], pa.binary())
    edges = np.empty(2 * count, np.int32)
    edges[::2], edges[1::2] = starts, ends
    validity = None
    if null.any():
        valid = np.ones(2 * count, bool)
        valid[::2] = null == 0
        validity = pa.py_buffer(np.packbits(valid, bitorder="little"))
    view = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [validity, pa.py_buffer(edges), pa.py_buffer(buffer)]
    )
    return view.take(pa.array(np.arange(0, 2 * count, 2)))


def _headers(rows: list[tuple[int, Headers]], count: int) -> Any:
    """Return the column of headers. ``rows`` are those with headers, and the numbers of these."""
    sizes = np.zeros(count + 1, np.int32)
    for row, headers in rows:
        sizes[row + 1] = len(headers)
    flat = [{"key": key, "value": value} for _, headers in rows for key, value in headers]
    return pa.ListArray.from_arrays(
        pa.array(np.cumsum(sizes, dtype=np.int32)), pa.array(flat, _HEADER)
    )
