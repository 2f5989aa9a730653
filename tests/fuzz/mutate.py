"""Random changes to valid bytes, as a broken disk, another program or an attacker could make
them."""

from __future__ import annotations

import random
from collections.abc import Sequence

_NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_TEXTS = (b"{", b"[" * 300, b'"', b"\\u", b"\xff\xfe", b"null", b"1e9", b"9" * 30, b"(a+)+", b"\n")


def mutate(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Return one of ``seeds`` after one to six changes."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.randint(1, 6)):
        at = rng.randint(0, len(data))
        match rng.randrange(7):
            case 0:
                if at < len(data):
                    data[at] ^= 1 << rng.randrange(8)
            case 1:
                del data[at:]
            case 2:
                del data[at : at + rng.randint(1, 8)]
            case 3:
                data[at:at] = rng.randbytes(rng.randint(1, 8))
            case 4:
                width = rng.choice((1, 2, 4, 8))
                number = rng.choice(_NUMBERS) & (1 << 8 * width) - 1
                data[at : at + width] = number.to_bytes(width, "big")
            case 5:
                data[at:at] = rng.choice(_TEXTS)
            case 6:
                other = rng.choice(seeds)
                begin = rng.randint(0, len(other))
                data[at:at] = other[begin : begin + rng.randint(1, 64)]
    return bytes(data)
