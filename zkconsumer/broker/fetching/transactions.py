"""Removes the records that ``isolation.level=read_committed`` must not deliver.

All record bytes pass this filter before they are decoded, so decoders do not handle transactions.
No IO and no state; runs on fetcher threads.

The rule is that of KIP-98, section *Consumer*, and of Kafka's protocol guide, *Fetch* version 4. A
broker ends the answer at the last stable offset, the first offset of the oldest open transaction.
With the records it returns the aborted transactions that overlap them, as producer id and first
offset. From that offset on, the producer's transactional batches were aborted, until its ABORT
marker. A producer has one transaction at a time, and a transaction that began before the answer is
also in its list. So no state from earlier answers is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from crc32c import crc32c

from zkconsumer.broker.fetching.records import OpenBatch, open_batch, record_bounds
from zkconsumer.broker.types import AbortedTransaction
from zkconsumer.errors import InvalidMessageError

_HEAD: Final = Struct(">qi4xbIhi16xq10x")
"""First offset, size, format, checksum, attributes, last offset's distance and producer id of a
record batch of format 2."""
_KEY: Final = Struct(">2xh")
"""Version and type of a control record."""
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_ABORT: Final = 0


def without_aborted(data: bytes, aborted: Sequence[AbortedTransaction]) -> bytes:
    """Return ``data`` without the batches of aborted transactions.

    ``data`` and ``aborted`` are one partition's part of one answer. From the first batch with a
    wrong checksum on, everything is kept, and decoding fails there.

    Raises ``InvalidMessageError`` or ``CodecUnavailableError`` if a marker is unreadable although
    its checksum is correct.
    """
    if not aborted:
        return data
    begins = sorted(aborted, key=lambda each: each[1], reverse=True)
    aborting: set[int] = set()
    kept: list[bytes] = []
    kept_from = pos = 0
    last = len(data) - _HEAD.size
    while pos <= last:
        base, size, magic, crc, attributes, delta, producer = _HEAD.unpack_from(data, pos)
        stop = pos + 12 + size
        if stop > len(data) or size <= 0:
            break
        if magic == 2 and producer >= 0:
            while begins and begins[-1][1] <= base + delta:
                aborting.add(begins.pop()[0])
            if producer in aborting and attributes & (_CONTROL | _TRANSACTIONAL):
                if size < _HEAD.size - 12 or crc32c(memoryview(data)[pos + 21 : stop]) != crc:
                    break
                if not attributes & _CONTROL:
                    kept.append(data[kept_from:pos])
                    kept_from = stop
                elif _type_of(open_batch(data, pos, stop, control=True)) == _ABORT:
                    aborting.remove(producer)
        pos = stop
    if not kept_from:
        return data
    kept.append(data[kept_from:])
    return b"".join(kept)


def _type_of(marker: OpenBatch | None) -> int | None:
    """Return the type of a control batch, which is in its record's key: 0 is ABORT, 1 is COMMIT
    (Kafka 3.9 ControlRecordType). ``None`` if compaction has removed the record.

    Raises ``InvalidMessageError``.
    """
    assert marker is not None
    bounds: list[int] = []
    record_bounds(marker, 0, bounds)
    if not bounds:
        return None
    data, pos, end = marker.data, bounds[0] + 1, bounds[1]  # the first byte has attributes
    first = pos
    for _ in ("time", "offset", "size of the key"):
        first = pos
        while pos < end and data[pos] > 127:
            pos += 1
        pos += 1
    short = pos + _KEY.size > end or (pos == first + 1 and data[first] < 2 * _KEY.size)
    if short or data[first] & 1:  # an odd size is negative: there is no key
        raise InvalidMessageError(f"damaged control record at offset {marker.base}")
    return int(_KEY.unpack_from(data, pos)[0])
