"""Whole logs and snapshots as Arrow batches in the columns of ``schema``. Pure: no Spark.

A log is read in chunks of a few megabytes. In each chunk, record lengths are followed from a known
start, all checksums are verified together, and ``columns`` decodes the bodies. ``txnlog.judge``
classifies the end of the file. Used in Spark's Python workers and tests; one reader belongs to one
thread.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa

from zkaudit.decode.columns import Filters, Found, Heads, batch_of, heads_of, nodes_batch
from zkaudit.decode.snapshot import open_snapshot
from zkaudit.decode.txnlog import (
    END_OF_RECORD,
    FILE_HEADER,
    MAX_RECORD,
    RECORD_HEADER,
    TXN_HEADER,
    LogEnd,
    Stop,
    judge,
)
from zkaudit.errors import LogFormatError
from zkaudit.schema import SNAPSHOT_SESSIONS, arrow_schema
from zkaudit.storage import File, name_of, opened, shown

_H = TypeVar("_H", bound=Heads)
CHUNK: Final = 2 << 20
SNAPSHOT_ROWS: Final = 20_000
_OVERHEAD: Final = RECORD_HEADER + 1
_MOST_BREAKS: Final = 1000
_MODULUS: Final = 65521  # of Adler-32
_BETWEEN: Final = np.dtype(f"V{_OVERHEAD}")
_NOTHING: Final = np.zeros(1, _BETWEEN)[0]


@dataclass(slots=True)
class LogReader:
    """Reads one log from ``start`` (0, or ``LogEnd.position`` of an earlier reader) to its end.

    Iterate over ``batches``, ``blocks`` or ``heads``. Afterwards ``end`` shows where and why
    reading stopped. ``first_zxid``, ``last_zxid`` and ``transactions`` cover all transactions read,
    including those filtered out. A corrupt record raises ``LogFormatError``, after the rows before
    it were yielded. With ``tolerant``, ``end`` reports it instead.
    """

    path: str | Path
    server: str = ""
    start: int = 0
    filters: Filters = field(default_factory=Filters)
    tolerant: bool = False
    stop_at: int | None = None
    """Where to stop: the end of a record (an earlier ``LogEnd.position``); ``None``: the end of
    the file."""
    columns: Sequence[str] | None = None
    """The wanted columns of ``schema.TXNLOG``, in this order; ``None``: all."""
    chunk: int = CHUNK
    end: LogEnd | None = None
    first_zxid: int | None = None
    last_zxid: int | None = None
    transactions: int = 0
    longest: tuple[int, int] = (0, 0)
    """Size of the longest record, and the position of the first such record."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the operations in the order of the file."""
        return (found.batch for found in self.blocks() if found.batch.num_rows)

    def blocks(self) -> Iterator[Found]:
        """Yield the wanted operations of each block, with the zxids and times of all its
        records."""
        name = name_of(self.path)

        def decode(block: bytes, starts: np.ndarray, lengths: np.ndarray, position: int) -> Found:
            filters, columns = self.filters, self.columns
            return batch_of(block, starts, lengths, position, self.server, name, filters, columns)

        return self._all(decode)

    def heads(self) -> Iterator[Heads]:
        """Yield only the zxids and times of all records. All checksums are verified, but no body is
        decoded."""
        return self._all(lambda block, starts, _lengths, _position: heads_of(block, starts))

    def _all(self, decode: Callable[[bytes, np.ndarray, np.ndarray, int], _H]) -> Iterator[_H]:
        with opened(self.path) as file:
            yield from self._read(file, decode)
        assert self.end is not None
        if self.end.stop is Stop.CORRUPT and not self.tolerant:
            raise LogFormatError(shown(self.path), self.end.position, self.end.reason)

    def _read(
        self, file: File, decode: Callable[[bytes, np.ndarray, np.ndarray, int], _H]
    ) -> Iterator[_H]:
        name = name_of(self.path)
        position = self.start
        if position < len(FILE_HEADER):
            self.end = judge(file, name, 0)
            if self.end is not None:
                return
            position = len(FILE_HEADER)
        size = self.chunk
        refused = -1
        while True:
            if self.stop_at is not None:
                size = min(size, self.stop_at - position)
                if size <= 0:
                    self.end = LogEnd(position, Stop.EOF, "the requested end")
                    return
            block = file.read_at(size, position)
            starts, lengths, wanted = frame(block)
            good = checked(block, starts, lengths)
            if good:
                found = decode(block, starts[:good], lengths[:good], position)
                good = len(found.zxids)
                if good:
                    self.transactions += good
                    self.last_zxid = int(found.zxids[-1])
                    at = int(lengths[:good].argmax())
                    if lengths[at] > self.longest[0]:
                        begin = position + int(starts[at]) - RECORD_HEADER
                        self.longest = int(lengths[at]), begin
                    if self.first_zxid is None:
                        self.first_zxid = int(found.zxids[0])
                    yield found
                    position += int(starts[good - 1] + lengths[good - 1]) + 1
                    size = self.chunk
                    continue
            if not len(starts) and wanted > len(block) == size:  # one record longer than the chunk
                size = wanted
                continue
            self.end = judge(file, name, position)
            if self.end is None and refused == position:
                self.end = LogEnd(position, Stop.CORRUPT, "the record cannot be decoded")
            if self.end is not None:
                return
            refused = position  # it was completed meanwhile


def end_of_log(path: str | Path, start: int) -> LogEnd:
    """Scan a log from ``start`` to its end, verifying checksums without decoding. Raises
    ``OSError``."""
    position, size = start, CHUNK
    with opened(path) as file:
        while True:
            block = file.read_at(size, position) if position else b""
            starts, lengths, wanted = frame(block)
            good = checked(block, starts, lengths)
            if good:
                position += int(starts[good - 1] + lengths[good - 1]) + 1
                size = CHUNK
            elif not len(starts) and wanted > len(block) == size:
                size = wanted
            else:
                end = judge(file, name_of(path), position)
                if end is not None:
                    return end
                position = position or len(FILE_HEADER)


def cuts(path: str | Path, every: int) -> list[int]:
    """Return the positions at which to split a log. Each part has at least ``every`` bytes.

    All record lengths are read from the start of the file on, because bytes at any other position
    may be inside a znode's data. There is no cut after a damaged record, because reading stops
    there. Raises ``OSError``.
    """
    found: list[int] = []
    position, size, least = len(FILE_HEADER), CHUNK, every
    with opened(path) as file:
        while True:
            block = file.read_at(size, position)
            starts, lengths, wanted = frame(block)
            good = checked(block, starts, lengths)
            if good:
                heads = starts[:good] - RECORD_HEADER + position
                while least <= heads[-1]:
                    found.append(int(heads[np.searchsorted(heads, least)]))
                    least = found[-1] + every
                position += int(starts[good - 1] + lengths[good - 1]) + 1
                size = CHUNK
            elif wanted > len(block) == size:
                size = wanted
            else:
                return found


def frame(block: bytes) -> tuple[np.ndarray, np.ndarray, int]:
    """Split a block into records, starting at its first byte.

    Returns the starts of the payloads, their lengths, and the number of bytes that the first
    incomplete record needs; 0 if the next bytes are not a record. Every record but the first begins
    right after an end byte, so all such bytes are candidates, and are searched together. They are
    accepted only if each record ends where the next begins. Otherwise, for example if a znode's
    data look like a record, the lengths are followed from one record to the next.
    """
    size = len(block)
    if size < _OVERHEAD:
        return np.empty(0, np.int64), np.empty(0, np.int64), _OVERHEAD + TXN_HEADER.size
    data = np.frombuffer(block, np.uint8)
    int32s = np.ndarray((size - 3,), ">i4", block, strides=(1,))
    heads = np.append(0, np.flatnonzero(data == END_OF_RECORD) + 1)
    heads = heads[: np.searchsorted(heads, size - _OVERHEAD, "right")]
    lengths = int32s[heads + 8].astype(np.int64)
    ends = heads + lengths + _OVERHEAD
    fits = (int32s[heads] == 0) & (lengths >= TXN_HEADER.size) & (ends <= size)
    fits &= data[np.where(fits, ends - 1, 0)] == END_OF_RECORD
    heads, lengths, ends = heads[fits], lengths[fits], ends[fits]
    chain = _chain(heads, ends)
    heads, lengths = _walk(block) if chain is None else (heads[chain], lengths[chain])
    at = int(heads[-1] + lengths[-1]) + _OVERHEAD if len(heads) else 0
    if at + _OVERHEAD > size:
        return heads + RECORD_HEADER, lengths, _OVERHEAD + TXN_HEADER.size
    length = int(int32s[at + 8])
    wanted = _OVERHEAD + length if TXN_HEADER.size <= length <= MAX_RECORD else 0
    return heads + RECORD_HEADER, lengths, wanted


def _chain(heads: np.ndarray, ends: np.ndarray) -> np.ndarray | None:
    """Mark the candidates that form a chain from 0 on; ``None`` if following the lengths is
    faster.

    A candidate that begins inside a record of the chain is part of that record's data.
    """
    chain = np.ones(len(heads), bool)
    if not len(heads) or heads[0]:
        return np.zeros(len(heads), bool)
    breaks = np.flatnonzero(heads[1:] != ends[:-1])
    if len(breaks) > _MOST_BREAKS:
        return None
    known = 0  # all before it is settled
    for last in breaks.tolist():
        if last < known:
            continue
        following = int(np.searchsorted(heads, ends[last]))
        chain[last + 1 : following] = False
        if following == len(heads) or heads[following] != ends[last]:
            chain[following:] = False
            break
        known = following
    return chain


def _walk(block: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and payload lengths of the records, found one record at a time."""
    size = len(block)
    heads: list[int] = []
    at = 0
    while at + _OVERHEAD <= size:
        length = int.from_bytes(block[at + 8 : at + 12], "big")
        after = at + _OVERHEAD + length
        if after > size or length < TXN_HEADER.size:
            break
        heads.append(at)
        at = after
    found = np.array(heads, np.int64)
    return found, np.diff(np.append(found, at)) - _OVERHEAD


def checked(block: bytes, starts: np.ndarray, lengths: np.ndarray) -> int:
    """Return the number of records before the first one with a wrong checksum or last byte.

    Adler-32 is linear, so the checksum of the whole block, with zeros between the payloads, follows
    from the records' checksums. It is computed in one call and compared. Only if it differs are the
    records checked one by one. Damage to several records could cancel out, but that is as unlikely
    as damage that Adler-32 misses.
    """
    count = len(starts)
    if not count:
        return 0
    ends = starts + lengths
    int64s = np.ndarray((len(block) - 7,), ">i8", block, strides=(1,))
    stated = int64s[starts - RECORD_HEADER].astype(np.int64)
    low, high = stated & 0xFFFF, stated >> 16
    first, last = int(starts[0]), int(ends[-1])
    only = bytearray(memoryview(block)[first:last])
    if count > 1:
        between = np.ndarray((len(only) - _OVERHEAD + 1,), _BETWEEN, only, strides=(1,))
        between[ends[:-1] - first] = _NOTHING
    foretold_high = int((high - lengths + (last - ends) * (low - 1)).sum()) + last - first
    foretold = foretold_high % _MODULUS << 16 | (int((low - 1).sum()) + 1) % _MODULUS
    sound = zlib.adler32(only) == foretold and bool(
        ((low < _MODULUS) & (high >= 0) & (high < _MODULUS)).all()
        and (np.frombuffer(block, np.uint8)[ends] == END_OF_RECORD).all()
    )
    if sound:
        return count
    for number, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        if zlib.adler32(block[start:end]) != stated[number] or block[end] != END_OF_RECORD:
            return number
    return count


def read_log(
    path: str | Path, server: str = "", filters: Filters | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield all operations of one log in the columns of ``schema.TXNLOG``.

    An incomplete last record is left out (``LogReader.end`` shows it). Raises ``LogFormatError``
    if the log is corrupt.
    """
    yield from LogReader(path, server, filters=filters or Filters()).batches()


def read_snapshot(
    path: str | Path,
    server: str = "",
    filters: Filters | None = None,
    columns: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield all znodes of one snapshot, the root (path ``/``) first.

    ``columns``: the wanted columns of ``schema.SNAPSHOT``, by default all. Of ``filters``, only the
    path prefix is used. Raises ``LogFormatError``.
    """
    snapshot, filters = open_snapshot(path), filters or Filters()
    for begin in range(0, len(snapshot.starts), SNAPSHOT_ROWS):
        yield nodes_batch(snapshot, begin, begin + SNAPSHOT_ROWS, server, filters, columns)


def read_snapshot_sessions(path: str | Path, server: str = "") -> Iterator[pa.RecordBatch]:
    """Yield the sessions of one snapshot in the columns of ``schema.SNAPSHOT_SESSIONS``."""
    snapshot = open_snapshot(path)
    schema = arrow_schema(SNAPSHOT_SESSIONS)
    rows = [
        (server, name_of(snapshot.file), snapshot.zxid, session, timeout)
        for session, timeout in snapshot.sessions.items()
    ]
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(values, f.type) for values, f in zip(columns, schema, strict=True)]
    yield pa.RecordBatch.from_arrays(arrays, schema=schema)
