"""Record batches of format 2, encoded by kafka-python."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from kafka.record.default_records import DefaultRecordBatchBuilder

from zkconsumer.runtime.delivery.chunks import Chunk, PartitionTopicInfo


def batch(
    items: Iterable[tuple[bytes | None, bytes | None]],
    base: int = 0,
    codec: int = 0,
    headers: Sequence[tuple[str, bytes | None]] = (),
) -> bytes:
    """Return one batch of these keys and values, with create times 1000, 1001, ..."""
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 30)
    for number, (key, value) in enumerate(items):
        builder.append(number, 1000 + number, key, value, list(headers))
    return struct.pack(">q", base) + bytes(builder.build())[8:]


def counted(first: int, count: int = 1, codec: int = 0) -> bytes:
    """Return one batch of consecutive offsets. Keys and values are the offsets as text."""
    items = [(b"k%d" % offset, b"%d" % offset) for offset in range(first, first + count)]
    return batch(items, first, codec)


def chunk(info: PartitionTopicInfo, first: int, last: int, start: int | None = None) -> Chunk:
    """Return a chunk with the offsets first..last, fetched from ``start``."""
    data = counted(first, last + 1 - first)
    return Chunk(info, data, first if start is None else start, last + 1)


__all__ = ["batch", "chunk", "counted"]
