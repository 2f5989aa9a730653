"""Record bytes as Arrow columns have the same content as the decoder's records, whatever the
bytes."""

from __future__ import annotations

import os
import random
import struct
from itertools import pairwise

import pytest

from tests.fuzz.mutate import mutate
from tests.support.batches import batch
from tests.unit.test_records import CASES, ITEMS, build, seal
from zkconsumer.broker.fetching import columns
from zkconsumer.broker.fetching.records import PythonDecoder, Record
from zkconsumer.errors import InvalidMessageError

SEED = int(os.environ.get("ZKC_SEED", "1"))
RESPONSES = int(os.environ.get("ZKC_RESPONSES", "2000"))


def plain(data: bytes, start: int) -> tuple[list[Record], str | None]:
    """Return the decoder's records, and its error."""
    found: list[Record] = []
    try:
        for part in PythonDecoder().decode(data, "t", 3, start):
            found += part
    except InvalidMessageError as exc:
        return found, str(exc)
    return found, None


def as_columns(data: bytes, start: int) -> tuple[list[tuple[object, ...]], str | None]:
    """Return the columns as rows, and the error."""
    found, failure = columns.decode(data, "t", 3, start)
    found.validate(full=True)
    assert found.schema == columns.SCHEMA
    rows = [
        (
            *(row["topic"], row["partition"], row["offset"], row["key"], row["value"]),
            None if row["timestamp"] is None else row["timestamp"],
            tuple((header["key"], header["value"]) for header in row["headers"]),
        )
        for row in found.set_column(
            3, "timestamp", found.column("timestamp").cast("int64")
        ).to_pylist()
    ]
    return rows, None if failure is None else str(failure)


def same(data: bytes, start: int = 0) -> int:
    """Compare both. Return the number of records."""
    records, failure = plain(data, start)
    expected = [
        (*r[:5], r[5] if 0 <= r[5] < 1 << 63 else None, r[7])  # no time: null
        for r in records
    ]
    assert as_columns(data, start) == (expected, failure), data.hex()
    return len(records)


WITH_HEADERS = batch(ITEMS[:4], 7, headers=[("h", b"v"), ("none", None)])


def test_every_format_and_codec() -> None:
    """One after the other, and all in one answer, from any offset."""
    for fmt, codec in CASES:
        data = build(fmt, ITEMS, 1000, codec)
        for start in (0, 1000, 1003, 1000 + len(ITEMS) - 1, 5000):
            same(data, start)
    mixed = [build(2, ITEMS[:5], 100 * n, codec) for n, codec in enumerate((0, 1, 0, 4, 2))]
    assert same(b"".join(mixed)) == 25
    assert same(b"".join(mixed), 203) == 10 + 2
    assert same(b"") == 0


def test_headers() -> None:
    """Only some records have headers. The first records may not be requested."""
    data = build(2, ITEMS[:3], 0) + WITH_HEADERS + build(2, ITEMS[:3], 50)
    assert same(data) == 10
    assert same(data, 9) == 5


def test_control_batches_and_times_of_the_broker() -> None:
    """Control batches are skipped. Log append time applies to all records. -1 becomes null."""
    control = bytearray(batch(ITEMS[:1], 3))
    control[22] |= 0x20
    stamped = bytearray(batch(ITEMS[:4], 10))
    stamped[22] |= 8
    timeless = bytearray(batch(ITEMS[:1], 20))
    timeless[27:35] = struct.pack(">q", -1)
    parts = [seal(bytes(part)) for part in (control, stamped, timeless)]
    assert same(b"".join(parts)) == 5


def test_times_and_offsets_at_their_limits() -> None:
    """Sums of more than 64 bits do not wrap around."""
    for first in (-(1 << 63), -1, (1 << 63) - 2):
        extreme = bytearray(batch([(b"k", b"v")] * 3, 5))
        extreme[27:43] = struct.pack(">qq", first, first)
        same(seal(bytes(extreme)))
    far = batch([(b"k", b"v")] * 3, (1 << 63) - 2)
    with pytest.raises(InvalidMessageError, match="more than 64 bits"):
        columns.decode(far, "t", 3, 0)


def test_damage_comes_behind_what_is_good() -> None:
    """The columns end where the decoder's records end, with the same error."""
    bad = bytearray(build(2, ITEMS, 50))
    bad[-1] ^= 1
    data = build(2, ITEMS[:3], 0) + bytes(bad)
    assert same(data) == 3
    for cut in range(0, len(data), 101):
        same(data[:cut])


def test_mutated_answers() -> None:
    """A damaged disk or a hostile broker may send anything. ``ZKC_SEED``, ``ZKC_RESPONSES``."""
    rng = random.Random(SEED)
    responses = [
        build(fmt, ITEMS[:4], base, codec) for fmt, codec in CASES for base in (0, 1 << 40)
    ]
    responses += [WITH_HEADERS, *(a + b for a, b in pairwise(responses))]
    for _ in range(RESPONSES):
        data = mutate(rng, responses)
        if rng.random() < 0.8 and len(data) > 61:
            data = seal(data)
        same(data, rng.choice((0, 0, 4)))
