"""The compiled record decoder and its Python source find the same records and the same faults.

``make test-compiled`` runs this on a compiled wheel, together with the tests of decoder and
streams. ``ZKC_SEED`` and ``ZKC_RESPONSES`` (default 20,000) choose the mutated responses.
"""

from __future__ import annotations

import importlib.util
import os
import random
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from crc32c import crc32c

from tests.fuzz.mutate import mutate
from tests.support.batches import batch
from tests.unit.test_records import CASES, ITEMS, build, seal
from zkconsumer.broker.fetching import columns, records
from zkconsumer.errors import InvalidMessageError

SEED = int(os.environ.get("ZKC_SEED", "1"))
RESPONSES = int(os.environ.get("ZKC_RESPONSES", "20000"))


def _source() -> ModuleType:
    path = Path(records.__file__).with_name("records.py")
    spec = importlib.util.spec_from_file_location("records_in_python", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["records_in_python"] = module
    spec.loader.exec_module(module)
    return module


PYTHON = _source()


def _sealed(data: bytes) -> bytes:
    """Correct all checksums, so that a mutation reaches the fields that they protect."""
    out = bytearray(data)
    pos = 0
    while pos + 17 <= len(out):
        size, magic = struct.unpack_from(">i4xb", out, pos + 8)
        stop = pos + 12 + size
        if not pos + 17 <= stop <= len(out):
            break
        if magic == 2 and stop >= pos + 21:
            struct.pack_into(">I", out, pos + 17, crc32c(bytes(out[pos + 21 : stop])))
        elif magic in (0, 1):
            struct.pack_into(">I", out, pos + 12, zlib.crc32(out[pos + 16 : stop]))
        pos = stop
    return bytes(out)


def _found(decoder: Callable[[], object], data: bytes, start: int) -> list[object]:
    """The lists that a decoder returns for ``data``, and how it ended."""
    found: list[object] = []
    try:
        for part in decoder().decode(data, "t", 3, start):  # type: ignore[attr-defined]
            found.append([(*record[:6], int(record[6]), record[7]) for record in part])
    except InvalidMessageError as exc:
        found.append(str(exc))
    return found


def _made(module: ModuleType, data: bytes, start: int, decoders: object) -> list[object]:
    """The messages that the module returns for ``data`` to an application, and how it ended."""
    found: list[object] = []
    try:
        for part in module.MessageDecoder(None, decoders).decode(data, "t", 3, start):
            for message in part:
                record = message.as_record()
                kind = int(message.timestamp_type)
                found.append(
                    (*record[:6], kind, record[7], message.key, message.value, repr(message))
                )
    except InvalidMessageError as exc:
        found.append(str(exc))
    return found


def _responses() -> list[bytes]:
    items = ITEMS[:4] + ITEMS[-8:]
    found = [build(fmt, items, base, codec) for fmt, codec in CASES for base in (0, 1 << 40)]
    found.append(batch(items, 7, headers=[("h", b"v"), ("none", None)]))
    control = bytearray(batch(items[:1], 3))
    control[22] |= 0x20
    found.append(seal(bytes(control)))
    stamped = bytearray(batch(items, 3))
    stamped[22] |= 8
    found.append(seal(bytes(stamped)))
    extreme = bytearray(batch([(b"k", b"v" * 5000)] * 3, (1 << 63) - 10))
    extreme[27:43] = struct.pack(">qq", -(1 << 63), (1 << 63) - 1)
    found.append(seal(bytes(extreme)))
    return found


def test_the_compiled_module_runs() -> None:
    """The compiled module is loaded. Otherwise the other tests here would compare Python with
    itself."""
    assert records.COMPILED
    assert not PYTHON.COMPILED
    assert columns._native is not None, "tests/unit/test_columns.py compares it"


def test_both_decode_valid_responses_alike() -> None:
    """Both decode every format and codec, headers, control batches, log append time and 64-bit
    times."""
    responses = _responses()
    whole = b"".join(responses)
    for data in (*responses, whole, *(whole[:cut] for cut in range(0, len(whole), 997))):
        for start in (0, 5):
            assert _found(records.PythonDecoder, data, start) == _found(
                PYTHON.PythonDecoder, data, start
            )
            assert records.scan(data) == PYTHON.scan(data)


def test_both_make_the_same_messages() -> None:
    """Both return the same messages for whole and cut responses, with decoders and without."""
    responses = _responses()
    whole = b"".join(responses)
    for data in (*responses, whole, *(whole[:cut] for cut in range(0, len(whole), 1997))):
        for start in (0, 5):
            for decoders in (None, (bytes.hex, len)):
                made = _made(records, data, start, decoders)
                assert made == _made(PYTHON, data, start, decoders)
                expected = []
                for part in _found(records.PythonDecoder, data, start):
                    expected += [part] if isinstance(part, str) else part
                assert [one if isinstance(one, str) else one[:8] for one in made] == expected


def test_both_decode_mutated_responses_alike() -> None:
    """Neither decoder crashes, and both find the same records and the same fault."""
    replay = f"ZKC_SEED={SEED} ZKC_RESPONSES={RESPONSES} make test-compiled"
    rng = random.Random(SEED)
    responses = _responses()
    damaged = 0
    for number in range(RESPONSES):
        data = mutate(rng, responses)
        if rng.random() < 0.8:
            data = _sealed(data)
        start = rng.choice((0, 0, 4))
        compiled = _found(records.PythonDecoder, data, start)
        assert compiled == _found(PYTHON.PythonDecoder, data, start), (replay, data)
        assert records.scan(data) == PYTHON.scan(data), (replay, data)
        if number % 4 == 0:
            made = _made(records, data, start, None)
            assert made == _made(PYTHON, data, start, None), (replay, data)
        damaged += bool(compiled) and isinstance(compiled[-1], str)
    assert RESPONSES // 10 < damaged < RESPONSES - RESPONSES // 10
