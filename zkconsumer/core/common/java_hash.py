"""Java's hash of a text. A separate module, because choosing a fetcher also needs it."""

from __future__ import annotations

from typing import Final

MASK: Final = 0xFFFFFFFF


def java_hash(text: str) -> int:
    """Return Java's ``text.hashCode()``: signed, 32 bits, over UTF-16 code units."""
    return signed(java_hash_bits(0, text))


def java_hash_bits(value: int, text: str) -> int:
    """Continue the Java hash ``value`` over the UTF-16 units of ``text``. ``value`` is unsigned;
    start with 0."""
    if text.isascii():
        for unit in text.encode():
            value = (31 * value + unit) & MASK
        return value
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & MASK
    return value


def signed(value: int) -> int:
    """Return an unsigned 32-bit number as Java's ``int``."""
    return value - 0x100000000 if value & 0x80000000 else value
