"""Decompression of message payloads: the library for each codec, and the size limit.

No state; runs on the consuming thread. Every fault of the compressed bytes is raised as
``InvalidMessageError``, and a missing library as ``CodecUnavailableError``. Output is limited to
``MAX_DECOMPRESSED`` bytes, so that a few malicious bytes cannot fill the memory.

The libraries are called directly, not through ``kafka.codec``, which has no output limit and does
not check the lengths of xerial blocks.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Final

from zkconsumer.errors import CodecUnavailableError, InvalidMessageError

MAX_DECOMPRESSED: Final = 512 * 1024 * 1024
"""Largest decompressed size of one compressed message or batch, in bytes."""

_FIRST_STEP: Final = 64 * 1024
"""Smallest number of bytes reserved for output of unknown size."""

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_MASK: Final = 0xFFFFFFFF
_LIBRARIES: Final = frozenset({"snappy", "cramjam", "lz4", "zstandard"})
"""Packages whose Python code decompresses. Errors of their C code appear in this module."""


def decompress(codec: int, data: bytes, *, old_lz4: bool = False) -> bytes:
    """Decompress ``data``. ``codec`` is the number in a message's attributes: 1 gzip, 2 snappy, 3
    lz4, 4 zstd. ``old_lz4``: the frame has the wrong header checksum that Kafka writes in message
    format 0 (KAFKA-3160).

    Raises:
        InvalidMessageError: unknown codec, or the bytes are damaged or expand too much.
        CodecUnavailableError: the library for this codec is not installed.
        MemoryError: there is not enough memory for the result; the bytes may be valid.
    """
    name, read = _CODECS.get(codec, ("", None))
    if read is None:
        raise InvalidMessageError(f"compression codec {codec} is unknown")
    if old_lz4 and codec == 3:
        data = _mend_lz4_header(data)
    try:
        return read(data)
    except (InvalidMessageError, CodecUnavailableError, MemoryError):
        raise
    # The libraries share no base class for "these bytes are damaged".
    except Exception as exc:
        if not _is_of_library(exc):
            raise
        raise InvalidMessageError(f"{name} data is damaged: {exc}") from exc


def _is_of_library(error: Exception) -> bool:
    """Whether a library raised an error, not a signal handler that ran during the call."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    module = "" if traceback is None else traceback.tb_frame.f_globals.get("__name__", "")
    return module == __name__ or module.partition(".")[0] in _LIBRARIES


def _library(module: str, codec: str, package: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as exc:
        raise CodecUnavailableError(
            f"messages are compressed with {codec}: install {package}, "
            "or run pip install '.[codecs]' in a clone to install all codecs"
        ) from exc


def _check_size(size: int) -> None:
    if not 0 <= size <= MAX_DECOMPRESSED:
        raise InvalidMessageError(
            f"a compressed message expands to {size} bytes, more than {MAX_DECOMPRESSED}"
        )


def _gzip(data: bytes) -> bytes:
    parts: list[bytes] = []
    room = MAX_DECOMPRESSED
    while data:
        member = zlib.decompressobj(wbits=31)
        part = member.decompress(data, room + 1)
        room -= len(part)
        _check_size(MAX_DECOMPRESSED - room)
        if not member.eof:
            raise InvalidMessageError("gzip data ends early")
        parts.append(part)
        data = member.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _snappy(data: bytes) -> bytes:
    decompress_block: Callable[[bytes], bytes] = _library(
        "snappy", "snappy", "python-snappy"
    ).decompress
    if not data.startswith(_XERIAL_MAGIC):
        return _snappy_block(data, decompress_block)
    parts: list[bytes] = []
    total, pos = 0, 16
    while pos < len(data):
        size = int.from_bytes(data[pos : pos + 4], "big")
        pos += 4
        if size == 0 or pos + size > len(data):
            raise InvalidMessageError("a snappy block is truncated or empty")
        parts.append(_snappy_block(data[pos : pos + size], decompress_block))
        total += len(parts[-1])
        _check_size(total)
        pos += size
    return b"".join(parts)


def _snappy_block(block: bytes, decompress_block: Callable[[bytes], bytes]) -> bytes:
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    _check_size(size)
    return decompress_block(block)


def _lz4(data: bytes) -> bytes:
    frame = _library("lz4.frame", "lz4", "lz4").LZ4FrameDecompressor()

    def read(size: int) -> bytes:
        nonlocal data
        given, data = data, b""  # the decompressor keeps what it has not used
        part: bytes = b"" if frame.eof else frame.decompress(given, size)
        return part

    out = _in_steps(read, len(data))
    if not frame.eof:
        raise InvalidMessageError("lz4 data ends early")
    return out


def _zstd(data: bytes) -> bytes:
    zstandard = _library("zstandard", "zstd", "zstandard")
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        return _in_steps(reader.read, len(data))


def _in_steps(read: Callable[[int], bytes], compressed: int) -> bytes:
    """Join the results of ``read(size)`` until one is empty.

    Both libraries reserve ``size`` bytes before they know the real size. So the first size is
    derived from the compressed one, and each further size equals the length read so far.
    """
    parts: list[bytes] = []
    size, total = max(_FIRST_STEP, 4 * compressed), 0
    while part := read(min(size, MAX_DECOMPRESSED + 1 - total)):
        parts.append(part)
        total += len(part)
        _check_size(total)
        size = max(_FIRST_STEP, total)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _mend_lz4_header(data: bytes) -> bytes:
    """Correct the header checksum in an LZ4 frame of message format 0.

    Kafka up to 0.9 computed it including the frame's magic number. According to the format it is
    the second byte of the xxHash32 of the descriptor only.
    """
    if len(data) < 7 or not data.startswith(_LZ4_MAGIC):
        raise InvalidMessageError("not an lz4 frame")
    end = 14 if data[4] & 8 else 6
    checksum = (_xxh32_short(data[4:end]) >> 8) & 255
    return data[:end] + bytes((checksum,)) + data[end + 1 :]


def _rotl(value: int, bits: int) -> int:
    value &= _MASK
    return ((value << bits) | (value >> (32 - bits))) & _MASK


def _xxh32_short(data: bytes) -> int:
    """Return xxHash32 with seed 0 of fewer than 16 bytes."""
    p1, p2, p3, p4, p5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
    acc, pos = p5 + len(data), 0
    while pos + 4 <= len(data):
        acc = _rotl(acc + int.from_bytes(data[pos : pos + 4], "little") * p3, 17) * p4
        pos += 4
    for byte in data[pos:]:
        acc = _rotl(acc + byte * p5, 11) * p1
    acc &= _MASK
    acc = ((acc ^ (acc >> 15)) * p2) & _MASK
    acc = ((acc ^ (acc >> 13)) * p3) & _MASK
    return acc ^ (acc >> 16)


_CODECS: Final[dict[int, tuple[str, Callable[[bytes], bytes]]]] = {
    1: ("gzip", _gzip),
    2: ("snappy", _snappy),
    3: ("lz4", _lz4),
    4: ("zstd", _zstd),
}
