"""Decoding record bytes: kafka-python builds them, and our decoder reads them."""

from __future__ import annotations

import random
import struct
import sys
import zlib
from collections.abc import Sequence
from itertools import chain

import pytest
from crc32c import crc32c
from kafka.codec import lz4_encode, snappy_encode
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from tests.support.batches import batch
from zkconsumer.broker.fetching import codecs
from zkconsumer.broker.fetching.records import PythonDecoder, Record, TimestampType, scan
from zkconsumer.errors import CodecUnavailableError, InvalidMessageError

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CASES = [(fmt, codec) for fmt in (0, 1, 2) for codec in (NONE, GZIP, SNAPPY, LZ4)] + [(2, ZSTD)]
Item = tuple[bytes | None, bytes | None]

ITEMS: list[Item] = [
    (b"k", b"v"),
    (None, b"no key"),
    (b"tombstone", None),
    (b"", b""),
    (b"long" * 50, b"x" * 20_000),
    (None, None),
    *((b"%d" % i, b"value %d" % i) for i in range(200)),
]


def old_lz4(data: bytes) -> bytes:
    """Give an lz4 frame the header checksum of Kafka up to 0.9, which includes the magic."""
    end = 14 if data[4] & 8 else 6
    wrong = (codecs._xxh32_short(data[:end]) >> 8) & 255
    return data[:end] + bytes((wrong,)) + data[end + 1 :]


def message_set(fmt: int, items: Sequence[Item], base: int = 0, codec: int = NONE) -> bytes:
    """Return messages of format 0 or 1. Compressed ones are in one wrapper, as the broker stores
    them."""
    builder = LegacyRecordBatchBuilder(fmt, NONE, 1 << 30)
    for i, (key, value) in enumerate(items):
        relative = codec != NONE and fmt == 1
        builder.append(i if relative else base + i, 1000 + i if fmt else None, key, value)
    inner = bytes(builder.build())
    if codec == NONE:
        return inner
    pack = {GZIP: gzip, SNAPPY: snappy, LZ4: lz4}[codec]
    data = pack(inner)
    if codec == LZ4 and fmt == 0:
        data = old_lz4(data)
    return wrapper(fmt, base + len(items) - 1, codec, data, 1000 + len(items) - 1)


def gzip(data: bytes) -> bytes:
    """As a gzip member."""
    packer = zlib.compressobj(wbits=31)
    return packer.compress(data) + packer.flush()


def snappy(data: bytes) -> bytes:
    """As xerial blocks."""
    return bytes(snappy_encode(data))


def lz4(data: bytes) -> bytes:
    """As a frame."""
    return bytes(lz4_encode(data))


def wrapper(fmt: int, offset: int, attributes: int, value: bytes, time: int) -> bytes:
    """A message without key around ``value``."""
    body = struct.pack(">bb", fmt, attributes)
    if fmt:
        body += struct.pack(">q", time)
    body += struct.pack(">ii", -1, len(value)) + value
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def build(fmt: int, items: Sequence[Item], base: int = 0, codec: int = NONE) -> bytes:
    """One set or batch of any format."""
    return batch(items, base, codec) if fmt == 2 else message_set(fmt, items, base, codec)


def decode(data: bytes, start: int = 0) -> list[Record]:
    """Decode all records into one list."""
    return list(chain.from_iterable(PythonDecoder().decode(data, "t", 3, start)))


def seal(data: bytes) -> bytes:
    """Compute the checksum of a batch of format 2 again."""
    return data[:17] + struct.pack(">I", crc32c(data[21:])) + data[21:]


@pytest.mark.parametrize(("fmt", "codec"), CASES)
def test_every_format_and_codec(fmt: int, codec: int) -> None:
    """Offsets, keys, values, nulls and times are unchanged after encoding and decoding."""
    data = build(fmt, ITEMS, 70, codec) + build(fmt, [(b"next", b"set")], 500, codec)
    records = decode(data)
    assert [record[2] for record in records] == [*range(70, 70 + len(ITEMS)), 500]
    assert [(record[3], record[4]) for record in records] == [*ITEMS, (b"next", b"set")]
    assert {record[:2] for record in records} == {("t", 3)}
    times = [record[5] for record in records]
    if fmt == 0:
        assert set(times) == {-1}
        assert {record[6] for record in records} == {TimestampType.NONE}
    else:
        assert times == [*range(1000, 1000 + len(ITEMS)), 1000]
        assert {record[6] for record in records} == {TimestampType.CREATE_TIME}
    assert scan(data)[:3] == (501, len(data), False)


@pytest.mark.parametrize(("fmt", "codec"), CASES)
@pytest.mark.parametrize("start", [70, 71, 75, 79, 80])
def test_records_below_the_start_are_skipped(fmt: int, codec: int, start: int) -> None:
    """A set that begins before the requested offset yields no record below it."""
    data = build(fmt, [(b"k", b"v")] * 10, 70, codec)
    assert [record[2] for record in decode(data, start)] == list(range(start, 80))


@pytest.mark.parametrize(("fmt", "codec"), CASES)
def test_partial_last_entry(fmt: int, codec: int) -> None:
    """Wherever the bytes are cut, whole entries are returned and the rest is ignored."""
    first = build(fmt, [(b"a", b"1"), (b"b", b"2")], 0, codec)
    second = build(fmt, [(b"c", b"3" * 50)], 2, codec)
    for cut in range(len(second)):
        data = first + second[:cut]
        assert [record[2] for record in decode(data)] == [0, 1]
        assert scan(data)[:3] == (2, len(first), False)
    for cut in range(1, len(second)):
        assert decode(second[:cut]) == []
        assert scan(second[:cut]) == (None, 0, False, -1)


@pytest.mark.parametrize("fmt", [0, 1, 2])
@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_checksum_error_after_good_messages(fmt: int, codec: int) -> None:
    """One wrong bit raises InvalidMessageError, after everything before it was yielded."""
    good, bad = build(fmt, ITEMS, 0, codec), bytearray(build(fmt, ITEMS, len(ITEMS), codec))
    bad[-1] ^= 1
    lists = PythonDecoder().decode(good + bytes(bad), "t", 3, 0)
    seen: list[Record] = []
    with pytest.raises(InvalidMessageError, match=r"t-3 .*checksum"):
        seen.extend(chain.from_iterable(lists))
    first_bad = len(ITEMS) if fmt == 2 or codec else 2 * len(ITEMS) - 1
    assert [record[2] for record in seen] == list(range(first_bad))


def test_headers_of_format_2() -> None:
    """Headers keep their order, repeated names and null values."""
    headers = [("a", b"1"), ("b", None), ("a", b""), ("ü" * 40, b"x" * 200)]
    assert decode(batch([(b"k", b"v")], headers=headers))[0][7] == tuple(headers)
    assert decode(batch([(b"k", b"v")]))[0][7] == ()


def test_control_batches_are_skipped() -> None:
    """The marker at a transaction's end is not a message, but moves the next offset."""
    plain, control = batch([(b"k", b"v")], 0), bytearray(batch([(b"\0\0\0\1", b"")], 1))
    control[22] |= 0x20
    data = plain + seal(bytes(control)) + batch([(b"k", b"v")], 2)
    assert [record[2] for record in decode(data)] == [0, 2]
    assert scan(data[: len(plain) + len(control)]).next_offset == 2


def test_transactional_batches_are_messages() -> None:
    """Only the marker at a transaction's end is not."""
    transactional = bytearray(batch([(b"k", b"v")] * 2))
    transactional[22] |= 0x10
    assert [record[2] for record in decode(seal(bytes(transactional)))] == [0, 1]


def test_compressed_data_that_ends_early_is_damaged() -> None:
    """The existing data can be decompressed, but messages are missing."""
    with pytest.raises(InvalidMessageError, match="ends early"):
        codecs.decompress(GZIP, gzip(b"x" * 1000)[:-9])


def test_log_append_time() -> None:
    """With log-append time, all messages have the broker's time."""
    two = bytearray(batch([(b"k", b"v")] * 3))
    two[22] |= 8
    two[35:43] = struct.pack(">q", 4242)
    one = bytearray(message_set(1, [(b"k", b"v")] * 3, 0, GZIP))
    one = bytearray(wrapper(1, 2, GZIP | 8, bytes(one[34:]), 4242))
    for data in (seal(bytes(two)), bytes(one)):
        records = decode(data)
        assert [record[2] for record in records] == [0, 1, 2]
        assert {record[5] for record in records} == {4242}
        assert {record[6] for record in records} == {TimestampType.LOG_APPEND_TIME}


def test_compacted_wrapper_of_format_1() -> None:
    """Relative offsets count back from the wrapper's offset, even with gaps inside."""
    builder = LegacyRecordBatchBuilder(1, NONE, 1 << 30)
    for relative in (0, 3, 7):
        builder.append(relative, 5, b"k", b"v")
    data = wrapper(1, 107, GZIP, gzip(bytes(builder.build())), 5)
    assert [record[2] for record in decode(data)] == [100, 103, 107]


@pytest.mark.parametrize("fmt", [0, 1])
@pytest.mark.parametrize("seed", range(20))
def test_wrappers_are_read_as_kafka_python_reads_them(fmt: int, seed: int) -> None:
    """Random wrappers, also compacted ones and ones with any first relative offset: offsets, keys,
    values and times are the same, record by record."""
    rng = random.Random(seed)
    builder = LegacyRecordBatchBuilder(fmt, NONE, 1 << 30)
    offset, base, time = rng.choice((0, 5)), rng.randrange(10**12), rng.randrange(10**12)
    for _ in range(rng.randrange(1, 60)):
        key, value = (rng.choice((None, b"", rng.randbytes(rng.randrange(300)))) for _ in "kv")
        builder.append(offset if fmt else base + offset, time if fmt else None, key, value)
        last, offset, time = offset, offset + rng.choice((1, 1, 7)), time + rng.randrange(5)
    inner = gzip(bytes(builder.build()))
    appended = fmt == 1 and rng.random() < 0.5  # the wrapper says log append time
    data = wrapper(fmt, base + last, GZIP | 8 * appended, inner, 77 if appended else time)
    (theirs,) = MemoryRecords(data)
    expected = [(r.offset, r.key, r.value, -1 if fmt == 0 else r.timestamp) for r in theirs]
    assert [(r[2], r[3], r[4], r[5]) for r in decode(data, 0)] == expected
    assert len(expected) > 0


def test_compacted_batch_of_format_2() -> None:
    """The last offset delta of a batch decides the next offset, even if that record is gone."""
    data = bytearray(batch([(b"k", b"v")] * 3, 10))
    data[23:27] = struct.pack(">i", 9)
    data = bytearray(seal(bytes(data)))
    assert scan(bytes(data)).next_offset == 20
    assert [record[2] for record in decode(bytes(data))] == [10, 11, 12]


def test_large_numbers() -> None:
    """Offsets, times and lengths beyond two-byte variable-length numbers are read correctly."""
    builder = DefaultRecordBatchBuilder(2, NONE, False, -1, -1, -1, 1 << 30)
    times = [1, 1 << 40, 5, -(1 << 40), 70, -70, 9000, -9000]
    for i, time in enumerate(times):
        builder.append(i * 300_000, time, b"k" * (9000 * i), b"v" * (300_000 * (i % 3)), [])
    records = decode(bytes(builder.build()))
    assert [record[2] for record in records] == [i * 300_000 for i in range(len(times))]
    assert [record[5] for record in records] == times
    assert [len(record[4] or b"") for record in records] == [
        300_000 * (i % 3) for i in range(len(times))
    ]


@pytest.mark.parametrize(
    ("codec", "module", "package"),
    [(SNAPPY, "snappy", "python-snappy"), (LZ4, "lz4.frame", "lz4"), (ZSTD, "zstandard", "zstd")],
)
def test_missing_codec_names_the_extra(
    codec: int, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the codec's library the error names the package and the extra."""
    data = batch([(b"k", b"v" * 1000)], 0, codec)
    monkeypatch.setitem(sys.modules, module, None)
    fix = rf"{package}.*pip install '\.\[codecs\]' in a clone"
    with pytest.raises(CodecUnavailableError, match=fix):
        decode(data)


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_decompression_is_bounded(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that decompress to more than the limit raise an error and do not fill the memory."""
    data = batch([(b"k", b"v" * 100_000)], 0, codec)
    assert len(decode(data)) == 1
    monkeypatch.setattr(codecs, "MAX_DECOMPRESSED", 50_000)
    with pytest.raises(InvalidMessageError):
        decode(data)


def test_xerial_blocks_are_checked() -> None:
    """A block length that points back or beyond the end raises an error, and cannot cause a
    loop."""
    framed = bytearray(snappy(b"x" * 1000))
    for length in (-4, 0, 1 << 30):
        framed[16:20] = struct.pack(">i", length)
        with pytest.raises(InvalidMessageError):
            codecs.decompress(SNAPPY, bytes(framed))
