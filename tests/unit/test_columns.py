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
    found, last, failure = columns.decode(data, "t", 3, start)
    found.validate(full=True)
    assert found.schema == columns.SCHEMA
    assert not found.num_rows or last == found["offset"][-1].as_py()
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


@pytest.fixture(params=[False, True] if columns._native else [False], autouse=True)
def native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoder in C, where there is one, and the one that is used without it."""
    if not request.param:
        monkeypatch.setattr(columns, "_native", None)


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


@pytest.mark.parametrize("names", [columns.SCHEMA.names, ["offset"]])
def test_names_of_headers_are_text(names: list[str]) -> None:
    """They are checked as Python checks UTF-8, also in columns that are left out."""
    rng = random.Random(SEED)
    good = 0
    edges = (
        b"\x00\x7f\x80\x8f\x90\x9f\xa0\xbf\xc1\xc2\xdf\xe0\xe1\xec\xed\xee\xef\xf0\xf1\xf3\xf4\xf5"
    )
    for _ in range(RESPONSES):
        name = bytes(rng.choice(edges) for _ in range(rng.randint(1, 4))).ljust(4, b"a")
        data = seal(WITH_HEADERS.replace(b"none", name))
        schema = columns.schema_of(names)
        found, _, failure = columns.decode(data, "t", 3, 0, schema)
        try:
            name.decode()
        except UnicodeDecodeError:
            assert isinstance(failure, InvalidMessageError), name
        else:
            good += 1
            assert (found.num_rows, failure) == (4, None), name
    assert RESPONSES // 50 < good < RESPONSES // 2


def test_some_columns() -> None:
    """They are those of all columns, in the order asked for, and no others are possible."""
    bad = bytearray(build(2, ITEMS, 50))
    bad[-1] ^= 1
    for data in (WITH_HEADERS, build(2, ITEMS, 0, 1), build(1, ITEMS, 0), b"", bytes(bad)):
        whole, _, failure = columns.decode(data, "t", 3, 1)
        for names in (("value",), ("headers", "offset"), ("topic", "key"), ("partition",)):
            some = columns.decode(data, "t", 3, 1, columns.schema_of(names))
            some.batch.validate(full=True)
            assert some.batch.equals(whole.select(names))
            assert str(some.failure) == str(failure)
    for wrong in ((), ("value", "value"), ("values",), "value"):
        with pytest.raises(ValueError, match="at least one of topic, partition"):
            columns.schema_of(wrong)


def test_what_is_good_is_not_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoder of single messages is not needed for it. Sizes are around a checksum's steps."""
    monkeypatch.setattr(columns, "_slow", lambda *_: pytest.fail("it was read again"))
    for size in (0, 1, 7, 8, 127, 128, *range(3000, 3100), *range(6050, 6150), 20_000):
        data = batch([(b"k", b"v" * size), (None, None)], 7)
        found = columns.decode(data, "t", 3, 8 if size % 2 else 0).batch
        assert found["offset"].to_pylist() == ([8] if size % 2 else [7, 8])
        changed = bytearray(data)
        changed[21 + size * 7 % (len(data) - 21)] ^= 1 << size % 8
        with pytest.raises(pytest.fail.Exception):
            columns.decode(bytes(changed), "t", 3, 0)
    for codec in (0, 1, 2, 3, 4):
        assert columns.decode(build(2, ITEMS, 7, codec), "t", 3, 0).batch.num_rows == len(ITEMS)
    assert columns.decode(WITH_HEADERS, "t", 3, 0).batch.num_rows == 4


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
