"""The optional extension module, of which ``_native.c`` is the source."""

from collections.abc import Callable
from typing import Any

Buffer = Any
"""What ``allocate`` returned. It may be longer than its content."""
Bytes = tuple[Buffer | None, Buffer, Buffer]
"""Arrow's buffers of a column of bytes: validity (``None``: no nulls), offsets, bytes."""

def columns(
    data: bytes,
    start: int,
    wanted: int,
    decompress: Callable[[int, bytes], bytes],
    allocate: Callable[[int], Buffer],
    /,
) -> (
    tuple[
        int,
        int,
        Buffer,
        Buffer | None,
        Buffer | None,
        Bytes | None,
        Bytes | None,
        tuple[int, Buffer, Bytes, Bytes] | None,
    ]
    | None
):
    """Return the rows with offset >= ``start``: their number, the last offset, offsets, times and
    their validity, keys, values, headers.

    ``wanted`` has a bit for each column of the schema from ``offset`` on; the others are ``None``.
    Returns ``None`` for bytes that the decoder in Python has to read: damaged ones, other formats,
    and numbers of more than 64 bits.
    """
