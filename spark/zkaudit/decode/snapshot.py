"""ZooKeeper's snapshots, which may be compressed: sessions and znodes. Every checksum is verified.

Formats: ZooKeeper 3.9 ``FileSnap``, ``DataTree.serialize``, ``SnapStream``. A snapshot is read
into memory, because its checksum covers the whole file. Any thread.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from zkaudit.compressed import is_zstd, unpack_zstd
from zkaudit.decode.txnlog import BodyError, Jute
from zkaudit.errors import AuditError, LogFormatError
from zkaudit.storage import name_of, opened, read_all, shown

MAGIC: Final = struct.pack(">4si", b"ZKSN", 2)
GZIP: Final = b"\x1f\x8b"
SNAPPY: Final = b"\x82SNAPPY\x00"
"""First bytes of snappy-java's framing, which differs from the standard one."""

STAT: Final = struct.Struct(">qqqqiiiqq")
"""The fields: czxid, mzxid, ctime, mtime, version, cversion, aversion, session of an ephemeral
znode, pzxid."""
_SEARCHED: Final = 1 << 20
_SEAL_SIZE: Final = 13  # checksum, length 1, "/"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A complete snapshot, whose znodes ``columns.nodes_batch`` decodes."""

    file: str
    zxid: int
    sessions: dict[int, int]
    complete_zxid: int | None
    """Zxid up to which the snapshot certainly contains every transaction; ``None`` if unknown
    (before 3.6)."""
    content: bytes
    """The whole file, uncompressed."""
    starts: array[int]
    """Positions in ``content`` at which znodes begin, the root (an empty path) first. A znode has
    the length and text of its path, the length and bytes of its data, the number of its access
    list, and ``STAT``."""


def snapshot_zxid(path: str | Path) -> int | None:
    """Return the zxid in the name of a snapshot; ``None`` for other names."""
    parts = name_of(path).split(".")
    if (
        parts[0] != "snapshot"
        or len(parts) not in (2, 3)
        or parts[2:] not in ([], ["gz"], ["snappy"], ["zst"])
    ):
        return None
    try:
        return int(parts[1], 16)
    except (IndexError, ValueError):
        return None


def open_snapshot(path: str | Path) -> Snapshot:
    """Read one snapshot and verify all its checksums. Raises ``LogFormatError``, ``OSError``.

    A snapshot without its final checksum, because it was still being written or its server died, is
    an error, too. ZooKeeper itself does not use such a file.
    """
    name = shown(path)
    zxid = snapshot_zxid(path)
    if zxid is None:
        raise LogFormatError(name, 0, "the name is not snapshot.ZXID[.gz|.snappy|.zst]")
    content = _uncompressed(read_all(path), name)
    if not content.startswith(MAGIC):
        raise LogFormatError(name, 0, f"not a snapshot: it begins with {content[:8]!r}")
    jute = Jute(content, len(MAGIC) + 8, len(content))
    try:
        sessions = {jute.int64(): jute.int32() for _ in range(jute.count())}
        for _ in range(jute.count()):  # access lists
            jute.int64()
            jute.acl()
        starts, jute.at = _nodes(content, jute.at)
        _seal(jute, content)
        known, tail = list[int](), jute.left
        if tail in (20 + _SEAL_SIZE, 20 + 8 + 2 * _SEAL_SIZE):
            digest_zxid, version, _ = jute.int64(), jute.int32(), jute.int64()
            _seal(jute, content)
            if version:  # 0: digests are disabled
                known.append(digest_zxid)
        if tail in (8 + _SEAL_SIZE, 20 + 8 + 2 * _SEAL_SIZE):  # 3.9: the last processed zxid
            known.append(jute.int64())
            _seal(jute, content)
        if jute.left:
            raise BodyError(f"{jute.left} bytes after the last checksum")
    except (BodyError, struct.error) as error:
        at = error.args[1] if len(error.args) > 1 else jute.at
        raise LogFormatError(name, at, f"{error.args[0]} (counted uncompressed)") from None
    return Snapshot(name, zxid, sessions, max(known, default=None), content, starts)


def is_whole(path: str | Path) -> bool:
    """Whether a snapshot is complete. Verifies only its last checksum, which covers all bytes
    before it. Raises ``LogFormatError`` if it is unreadable, and ``OSError``."""
    content = _uncompressed(read_all(path), shown(path))
    jute = Jute(content, max(0, len(content) - _SEAL_SIZE), len(content))
    try:
        _seal(jute, content)
    except (BodyError, struct.error):
        return False
    return content.startswith(MAGIC)


def data_in(path: str | Path, znode: str) -> bytes | None:
    """Return the data of a znode in a snapshot; ``None`` if there is no such znode, or no data.

    The file is read until the znode is found, and no checksum is verified. Raises ``OSError``.
    """
    name = znode.encode()
    wanted = struct.pack(">i", len(name)) + name
    with opened(path) as file:
        compressed = file.read_at(len(SNAPPY), 0) == SNAPPY
        content = _Whole(_uncompressed(read_all(path), shown(path))) if compressed else file
        position = 0
        while len(block := content.read_at(_SEARCHED, position)) >= len(wanted):
            found = block.find(wanted)
            if found >= 0:
                after = position + found + len(wanted)
                size = int.from_bytes(content.read_at(4, after), "big", signed=True)
                data = content.read_at(max(size, 0), after + 4)
                return data if len(data) == size > 0 else None
            position += len(block) - len(wanted) + 1
    return None


class _Whole:
    """Bytes in memory that are read like a file."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def read_at(self, size: int, position: int) -> bytes:
        return self._content[position : position + size]


def _nodes(content: bytes, at: int) -> tuple[array[int], int]:
    """Return the positions of all znodes, and the position after their end mark."""
    unpack_int = struct.Struct(">i").unpack_from
    end = len(content)
    starts = array("q")
    while True:
        (size,) = unpack_int(content, at)
        if size == 1 and content[at + 4 : at + 5] == b"/":
            return starts, at + 5
        if size < 0 or at + 8 + size > end:
            raise BodyError("the snapshot is truncated or damaged", at)
        after = at + 4 + size
        (size,) = unpack_int(content, after)
        after += 12 + STAT.size + max(size, 0)
        if size < -1 or after > end:
            raise BodyError("the snapshot is truncated or damaged", at)
        starts.append(at)
        at = after


def _seal(jute: Jute, content: bytes) -> None:
    found = zlib.adler32(memoryview(content)[: jute.at])
    at = jute.at
    checksum = jute.int64()
    if jute.string() != "/" or checksum != found:
        raise BodyError(f"the stored checksum is {checksum:#x}, the computed one {found:#x}", at)


def _uncompressed(content: bytes, name: str) -> bytes:
    if content.startswith(GZIP):
        try:
            return gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise LogFormatError(name, 0, f"gzip: {error}") from None
    if is_zstd(content):
        try:
            return unpack_zstd(content)
        except OSError as error:
            raise LogFormatError(name, 0, f"zstd: {error}") from None
    if content.startswith(SNAPPY):
        return _snappy_java(content, name)
    return content


def _snappy_java(content: bytes, name: str) -> bytes:
    """Unpack snappy-java's stream: 8 magic bytes, two versions, then repeatedly a length and a
    block."""
    try:
        import cramjam
    except ImportError:
        raise AuditError(
            f"{name}: reading snappy needs cramjam: in a clone run pip install '.[audit]'"
        ) from None
    parts = []
    at = len(SNAPPY) + 8
    while at < len(content):
        size = int.from_bytes(content[at : at + 4], "big", signed=True)
        block = content[at + 4 : at + 4 + size]
        if size < 0 or len(block) < size:
            raise LogFormatError(name, at, "a snappy block is truncated")
        try:
            parts.append(bytes(cramjam.snappy.decompress_raw(block)))
        except cramjam.DecompressionError as error:
            raise LogFormatError(name, at, f"snappy: {error}") from None
        at += 4 + size
    return b"".join(parts)
