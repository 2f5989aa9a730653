"""Random changes to valid bytes, as a broken disk, another program or an attacker could make
them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, Final

_NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_TEXTS = (b"{", b"[" * 300, b'"', b"\\u", b"\xff\xfe", b"null", b"1e9", b"9" * 30, b"(a+)+", b"\n")
_VALUES: Final = (
    *(None, True, -1, 0, 1, 2**31, 2**64, 1.5, float("inf"), "", "..", "a/b", "t0", ".*", "(a"),
    *("((a{9999}){9999})", "\ud800", "PLAINTEXT://h:1", [], {}, ["t0"], {"t0": 1}, {"0": [[]]}),
)
"""What another program may write where a JSON document has something else."""


def mutate(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Return one of ``seeds`` after one to six changes of its bytes, or of its values in JSON."""
    seed = rng.choice(seeds)
    if rng.random() < 0.3 and (confused := _confused(rng, seed)):
        if rng.random() < 0.8:
            return confused
        seed = confused
    data = bytearray(seed)
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


def _confused(rng: random.Random, data: bytes) -> bytes | None:
    """Return a JSON document in which values are replaced or left out; ``None`` for other data."""
    try:
        document = {"": json.loads(data)}
    except (ValueError, RecursionError):
        return None
    for _ in range(rng.randint(1, 3)):
        places: list[tuple[Any, Any]] = [(document, "")]
        for container, key in places:  # grows meanwhile
            inner = container[key]
            if isinstance(inner, dict | list):
                places += [
                    (inner, name)
                    for name in (inner if isinstance(inner, dict) else range(len(inner)))
                ]
        container, key = rng.choice(places)
        if rng.random() < 0.2 and container is not document:
            del container[key]
        else:
            container[key] = json.loads(json.dumps(rng.choice(_VALUES)))
    return json.dumps(document[""]).encode()
