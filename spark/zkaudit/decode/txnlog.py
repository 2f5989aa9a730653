"""Decodes ZooKeeper's transaction log one record at a time, and classifies the end of a log.

This is the readable decoder: every field of every type, with the standard library only.
``batches`` does the same for many records at once, and uses this module for rare records and for
the end of a file. Formats: ZooKeeper 3.9 ``zookeeper.jute``, ``FileTxnLog``, ``SerializeUtils``.
Any thread.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from zkaudit.errors import LogFormatError
from zkaudit.schema import TYPES
from zkaudit.storage import File, opened, shown

FILE_HEADER: Final = struct.pack(">4siq", b"ZKLG", 2, 0)
"""First bytes of every log. The last number is the database id, which servers set to 0."""

RECORD_HEADER: Final = 12
"""Bytes before a payload: checksum (8) and length (4). One byte, ``END_OF_RECORD``, follows it."""

TXN_HEADER: Final = struct.Struct(">qiqqi")
"""Header of a payload: session, cxid, zxid, time in milliseconds, type."""

END_OF_RECORD: Final = 0x42
MAX_RECORD: Final = 1 << 28
"""Longest plausible payload, in bytes. By default, servers refuse requests of more than 1 MiB."""

DIGEST_SIZE: Final = 12
_ERROR_SIZE: Final = 4
_BLOCK: Final = 1 << 20
_ZEROS: Final = bytes(_BLOCK)

ERROR: Final = -1
CREATE_SESSION: Final = -10
CLOSE_SESSION: Final = -11
MULTI: Final = 14


class Stop(Enum):
    """Why reading a log stopped."""

    EOF = "eof"
    """The file ends with a complete record."""
    PADDING = "padding"
    """Only zeros follow, because a server preallocates space."""
    TORN = "torn"
    """The last record is incomplete: it is being written, or the server died while writing it."""
    CORRUPT = "corrupt"
    """The bytes cannot be a record. Nothing after them is read."""


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where and why reading a log stopped. ``position``: the byte at which the next record
    begins."""

    position: int
    stop: Stop
    reason: str


@dataclass(frozen=True, slots=True)
class Acl:
    """One entry of an ACL."""

    perms: int
    scheme: str
    id: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of one transaction. Fields are the columns of ``schema.TXNLOG``."""

    position: int
    zxid: int
    idx: int
    size: int
    time_ms: int
    session: int
    cxid: int
    type: str
    tried: str | None = None
    path: str | None = None
    data: bytes | None = None
    ephemeral: bool | None = None
    version: int | None = None
    parent_cversion: int | None = None
    error: int | None = None
    timeout: int | None = None
    ttl: int | None = None
    deleted: tuple[str, ...] | None = None
    digest: int | None = None
    acl: tuple[Acl, ...] | None = None


class BodyError(ValueError):
    """The bytes are not a transaction. The text gives the reason."""


class Jute:
    """Reads Jute's primitives from one buffer, never beyond ``end``. Raises ``BodyError``."""

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self._data = data
        self.at = at
        self.end = end

    @property
    def left(self) -> int:
        """Number of bytes not read yet."""
        return self.end - self.at

    def int32(self) -> int:
        """Read a big-endian signed number of 4 bytes."""
        return int.from_bytes(self._take(4), "big", signed=True)

    def int64(self) -> int:
        """Read a big-endian signed number of 8 bytes."""
        return int.from_bytes(self._take(8), "big", signed=True)

    def boolean(self) -> bool:
        """Read one byte as a boolean. Raises ``BodyError`` unless it is 0 or 1, although Java reads
        any other byte as true."""
        return self._take(1) != b"\0"

    def buffer(self) -> bytes | None:
        """Read a length, and then as many bytes. A length of -1 means null."""
        size = self.int32()
        return None if size == -1 else self._take(size)

    def string(self) -> str | None:
        """Read a buffer as text. Invalid UTF-8 becomes the replacement character, as in Java."""
        data = self.buffer()
        return None if data is None else data.decode("utf-8", "replace")

    def count(self) -> int:
        """Read the length of a vector. Null is read as empty."""
        size = self.int32()
        if size < -1 or size > self.left:
            raise BodyError(f"a vector of {size} entries does not fit into the remaining bytes")
        return max(size, 0)

    def strings(self) -> tuple[str, ...]:
        """Read a vector of strings. Null strings become empty."""
        return tuple(self.string() or "" for _ in range(self.count()))

    def acl(self) -> tuple[Acl, ...]:
        """Read an ACL."""
        return tuple(
            Acl(self.int32(), self.string() or "", self.string() or "") for _ in range(self.count())
        )

    def _take(self, size: int) -> bytes:
        if size < 0 or size > self.left:
            raise BodyError(f"{size} bytes do not fit into the remaining {self.left} bytes")
        self.at += size
        return self._data[self.at - size : self.at]


def decode_payload(payload: bytes, position: int = 0) -> list[Operation]:
    """Return the operations of one transaction, in order. Raises ``BodyError``.

    ``position`` is only stored as a field. A multi is expanded; each operation carries the digest
    of the whole transaction.
    """
    if len(payload) < TXN_HEADER.size:
        raise BodyError(f"a transaction of {len(payload)} bytes is too short")
    session, cxid, zxid, time_ms, code = TXN_HEADER.unpack_from(payload)
    jute = Jute(payload, TXN_HEADER.size, len(payload))
    bodies: list[tuple[str, dict[str, object]]] = []
    size = 0
    if code == MULTI:
        size = jute.count()
        for _ in range(size):
            sub = jute.int32()
            body = jute.buffer() or b""
            inner = Jute(body, 0, len(body))
            if sub in (MULTI, CLOSE_SESSION, CREATE_SESSION):
                raise BodyError(f"a multi cannot contain an operation of type {sub}")
            if sub == ERROR and len(body) != _ERROR_SIZE:
                # DataTree.processTxn marks the operations of a failed multi and leaves their
                # bytes; so a follower logs them that takes the applied transaction over.
                bodies.append(("error", {"error": 0}))
                continue
            bodies.append(_body(sub, inner, whole=True))
            if inner.left:
                raise BodyError(f"{inner.left} extra bytes in a multi's {bodies[-1][0]}")
        if any(name == "error" for name, _ in bodies):
            bodies = [
                (name, fields) if name == "error" else _undone(name, fields)
                for name, fields in bodies
            ]
        bodies = bodies or [("multi", {})]
    else:
        bodies.append(_body(code, jute, whole=False))
    digest = None
    if jute.left == DIGEST_SIZE:
        jute.int32()
        digest = jute.int64()
    if jute.left:
        raise BodyError(f"{jute.left} extra bytes after {bodies[-1][0]}")
    return [
        Operation(position, zxid, idx, size, time_ms, session, cxid, name, digest=digest, **fields)  # type: ignore[arg-type]
        for idx, (name, fields) in enumerate(bodies)
    ]


def _undone(name: str, fields: dict[str, object]) -> tuple[str, dict[str, object]]:
    """Return the fields of operations in a failed multi that did not fail themselves, as they were
    logged."""
    return "error", fields | {"tried": name, "error": 0}


def _body(code: int, jute: Jute, *, whole: bool) -> tuple[str, dict[str, object]]:
    """Read one body. ``whole``: nothing may follow it. A digest after it is not read."""
    name = TYPES.get(code)
    if name is None or code == MULTI:
        raise BodyError(f"unknown transaction type {code}")
    fields: dict[str, object] = {}
    if code == CREATE_SESSION:
        fields["timeout"] = jute.int32()
    elif code == CLOSE_SESSION:
        fields["deleted"] = _close_session(jute)
    elif code == ERROR:
        fields["error"] = jute.int32()
    else:
        fields["path"] = jute.string()
        if name in ("create", "create2", "createContainer", "createTTL", "setData", "reconfig"):
            fields["data"] = jute.buffer()
        if name.startswith("create") or name == "setACL":
            fields["acl"] = jute.acl()
        if name in ("create", "create2"):
            fields["ephemeral"] = jute.boolean()
            if jute.left in ((4,) if whole else (4, 4 + DIGEST_SIZE)):  # ZooKeeper 3.3 wrote none
                fields["parent_cversion"] = jute.int32()
        elif name in ("createContainer", "createTTL"):
            fields["ephemeral"] = False
            fields["parent_cversion"] = jute.int32()
            if name == "createTTL":
                fields["ttl"] = jute.int64()
        elif name not in ("delete", "deleteContainer"):
            fields["version"] = jute.int32()
    return name, fields


def _close_session(jute: Jute) -> tuple[str, ...] | None:
    """Read one of three layouts: empty (up to 3.5), only a digest (3.6+), or deleted paths first
    (3.6+)."""
    start = jute.at
    if not jute.left:
        return None
    try:
        deleted = jute.strings()
    except BodyError:
        deleted = None
    if deleted is None or jute.left not in (0, DIGEST_SIZE):
        jute.at = start
        return None
    return deleted


def close_session(body: bytes) -> tuple[tuple[str, ...] | None, int]:
    """Return the deleted paths in the body of a closeSession, and the number of bytes after
    them."""
    jute = Jute(body, 0, len(body))
    return _close_session(jute), jute.left


def judge(file: File, name: str, position: int) -> LogEnd | None:
    """Return why no complete record begins at ``position``; ``None`` if one has been written since.

    Bytes are written in order into a file of zeros. So a partly written record is a prefix that is
    followed only by zeros, or by nothing. Everything else is corruption.
    """
    end = _judged(file, name, position)
    if end is not None and file.damage is not None:
        return LogEnd(position, Stop.CORRUPT, file.damage)
    return end


def _judged(file: File, name: str, position: int) -> LogEnd | None:
    size = file.size()
    if position == 0:
        head = file.read_at(len(FILE_HEADER), 0)
        if head[:8] == FILE_HEADER[:8] and len(head) == len(FILE_HEADER):
            return None
        return _judge_file_header(head, name, _last_written(file, 0, size))
    last = _last_written(file, position, size)
    if last < position:
        if size > position:
            return LogEnd(position, Stop.PADDING, "only zeros follow")
        return LogEnd(position, Stop.EOF, "the file ends with a complete record")
    head = file.read_at(RECORD_HEADER, position)
    checksum, length = struct.unpack(">qi", head.ljust(RECORD_HEADER, b"\0"))
    if checksum >> 32:
        return LogEnd(position, Stop.CORRUPT, "no checksum of a record begins here")
    if last < position + RECORD_HEADER:
        return LogEnd(position, Stop.TORN, "the last record is cut off after its head")
    if length == 0 and checksum == 0:
        return LogEnd(position, Stop.CORRUPT, f"zeros, but the file continues at byte {last}")
    if not TXN_HEADER.size <= length <= MAX_RECORD:
        return LogEnd(position, Stop.CORRUPT, f"{length} is not the length of a record")
    there = last - position - RECORD_HEADER
    if there < length:
        written = file.read_at(max(there, 0), position + RECORD_HEADER)
        if _is_too_long(length, written):
            return LogEnd(position, Stop.CORRUPT, f"{length} is not the length of this record")
        return LogEnd(position, Stop.TORN, f"{max(there, 0)} of the record's {length} bytes exist")
    payload = file.read_at(length + 1, position + RECORD_HEADER)
    found = zlib.adler32(payload[:length])
    if found != checksum:
        reason = f"checksum {checksum:#x} of a record whose bytes give {found:#x}"
        return LogEnd(position, Stop.CORRUPT, reason)
    if payload[length] != END_OF_RECORD:
        return LogEnd(position, Stop.CORRUPT, f"a record ends with {payload[length]:#04x}")
    try:
        decode_payload(payload[:length])
    except BodyError as error:
        return LogEnd(position, Stop.CORRUPT, _wrong(error))
    return None


def _is_too_long(length: int, written: bytes) -> bool:
    """Whether a record's fields end before its length, which means that the length is wrong."""
    if len(written) < TXN_HEADER.size:
        return False
    code = TXN_HEADER.unpack_from(written)[4]
    jute = Jute(written, TXN_HEADER.size, len(written))
    try:
        if code == MULTI:
            for _ in range(jute.count()):
                jute.int32()
                jute.buffer()
        elif code != CLOSE_SESSION and code in TYPES:
            _body(code, jute, whole=False)
        else:
            return False
    except BodyError:
        return False  # cut off within its fields, as a torn record is
    return length - jute.at not in (0, 4, DIGEST_SIZE, 4 + DIGEST_SIZE)


def _judge_file_header(head: bytes, name: str, last: int) -> LogEnd:
    if last < len(FILE_HEADER) and FILE_HEADER.startswith(head.rstrip(b"\0")):
        return LogEnd(0, Stop.TORN, "the file's header is incomplete")
    if head[:4] != FILE_HEADER[:4]:
        return LogEnd(
            0, Stop.CORRUPT, f"{name} is not a transaction log: it begins with {head[:4]!r}"
        )
    version = int.from_bytes(head[4:8], "big")
    return LogEnd(0, Stop.CORRUPT, f"unknown version {version} of the log format")


def _last_written(file: File, start: int, size: int) -> int:
    """Return the position of the last nonzero byte from ``start`` on; ``start - 1`` if there is
    none."""
    end = size
    while end > start:
        begin = max(start, end - _BLOCK)
        block = file.read_at(end - begin, begin)
        if block != _ZEROS[: len(block)]:
            return begin + len(block.rstrip(b"\0")) - 1
        end = begin
    return start - 1


def whole_record(file: File, position: int) -> bytes | None:
    """Return the payload of the record at ``position`` if it is complete and its checksum is
    correct.

    If the result is ``None``, ``judge`` returns the reason.
    """
    head = file.read_at(RECORD_HEADER, position)
    if len(head) < RECORD_HEADER:
        return None
    checksum, length = struct.unpack(">qi", head)
    if not TXN_HEADER.size <= length <= MAX_RECORD:
        return None
    record = file.read_at(length + 1, position + RECORD_HEADER)
    payload = record[:length]
    if record[length:] != b"\x42" or zlib.adler32(payload) != checksum:
        return None
    return payload


def read_transactions(path: str | Path) -> Iterator[Operation]:
    """Yield the operations of one log (a path or URL), one record at a time. Slow, but simple.

    Raises ``LogFormatError`` if the log is corrupt. An incomplete last record is silently left out
    (``judge`` reports it).
    """
    name = shown(path)
    with opened(path) as file:
        end = judge(file, name, 0)
        position = len(FILE_HEADER)
        while end is None:
            payload = whole_record(file, position)
            if payload is not None:
                try:
                    yield from decode_payload(payload, position)
                except BodyError as error:
                    raise LogFormatError(name, position, _wrong(error)) from None
                position += RECORD_HEADER + len(payload) + 1
            else:
                end = judge(file, name, position)
    if end.stop is Stop.CORRUPT:
        raise LogFormatError(name, end.position, end.reason)


def first_zxid(path: str | Path) -> int | None:
    """Return the zxid of a log's first transaction; ``None`` if there is none or it is damaged.
    Raises ``OSError``."""
    with opened(path) as file:
        if judge(file, shown(path), 0) is not None:
            return None
        payload = whole_record(file, len(FILE_HEADER))
    return None if payload is None else int(TXN_HEADER.unpack_from(payload)[2])


def _wrong(error: BodyError) -> str:
    return f"the checksum is right, but the transaction is invalid: {error}"
