"""Compressed files, which are unpacked while they are read. An open file belongs to one thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, Final

if TYPE_CHECKING:
    import pyarrow as pa

CODECS: Final = {".gz": "gzip", ".zst": "zstd"}
"""The supported formats, by the ends of file names."""
RATIO: Final = 8
"""Expected ratio of unpacked to compressed bytes of a log, for planning tasks."""
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_BLOCK: Final = 64 << 10


def codec_of(name: str) -> str | None:
    """Return the compression format of a file, by its name; ``None`` if it is not compressed."""
    return next((codec for end, codec in CODECS.items() if name.endswith(end)), None)


def is_zstd(content: bytes) -> bool:
    """Whether a file begins like a zstd file."""
    return content.startswith(_ZSTD)


def unpack_zstd(content: bytes) -> bytes:
    """Return the bytes of a zstd file. Raises ``OSError`` if it is truncated or damaged."""
    import pyarrow as pa

    with pa.CompressedInputStream(pa.BufferReader(content), "zstd") as stream:
        return bytes(stream.read())


class Unpacked:
    """A compressed file, which should be read in order.

    Only the part that was read last is in memory. To read an earlier part, the file is unpacked
    again from its start. ``open`` opens the compressed file. ``damage``: why the rest cannot be
    read; ``None`` if no damage has been found.
    """

    def __init__(self, open: Callable[[], BinaryIO], codec: str) -> None:
        self._open = open
        self._codec = codec
        self._stream: pa.CompressedInputStream | None = None
        self._used = 0  # behind the last byte that is not zero, of those read
        self._end: int | None = None
        self.damage: str | None = None
        self._begin()

    def _begin(self) -> None:
        import pyarrow as pa

        self.close()
        self._stream = pa.CompressedInputStream(pa.PythonFile(self._open(), "r"), self._codec)
        self._held = b""
        self._at = 0  # where the held bytes begin
        self._next = 0  # where the stream continues

    def read_at(self, size: int, position: int) -> bytes:
        """Return ``size`` bytes from ``position`` on, or fewer at the end."""
        held_end = self._at + len(self._held)
        if position < self._at or (position + size > held_end != self._next):
            self._begin()
        parts = [self._held[position - self._at :]]
        while self._next < position + size and (part := self._more()):
            parts.append(part[max(0, len(part) - (self._next - position)) :])
        self._held = b"".join(parts)
        self._at = self._next - len(self._held)
        return self._held[:size]

    def _more(self) -> bytes:
        """Return the next block; nothing at the end. All blocks have the same size, so that
        damage always ends the file at the same byte."""
        assert self._stream is not None
        if self._next == self._end:
            return b""
        try:
            part = bytes(self._stream.read(_BLOCK))
        except OSError as error:
            self.damage, self._end = f"{self._codec}: {error}", self._next
            return b""
        self._next += len(part)
        if rest := part.rstrip(b"\0"):
            self._used = max(self._used, self._next - len(part) + len(rest))
        if not part:
            self._end = self._next
        return part

    def size(self) -> int:
        """Return the number of bytes. Zeros at the end do not count, because servers preallocate
        space."""
        while self._more():
            pass
        return self._used

    def close(self) -> None:
        """Close the file."""
        if self._stream is not None:
            self._stream.close()
