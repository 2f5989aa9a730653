"""Whatever bytes a decoder reads, it raises only errors that its callers expect.

This is a sample of what ``make fuzz`` does for longer, and of the inputs that it has found.
``ZKC_SEED=N`` replays a run, and ``ZKC_FUZZ_INPUTS=N`` makes it longer.
"""

from __future__ import annotations

import ast
import os
import random
from pathlib import Path

import pytest

from tests.fuzz.check import fault
from tests.fuzz.mutate import mutate
from tests.fuzz.targets import DECODERS, TARGETS

pytestmark = pytest.mark.timeout(60)
FOUND = Path(__file__).parent / "found"
SEED = int(os.environ.get("ZKC_SEED", "1"))
INPUTS = int(os.environ.get("ZKC_FUZZ_INPUTS", "400"))


@pytest.mark.parametrize("name", TARGETS)
def test_valid_inputs_are_accepted(name: str) -> None:
    """Each valid input, from which mutations start, passes the decoder."""
    for seed in TARGETS[name].seeds:
        TARGETS[name].run(seed)


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_inputs(name: str) -> None:
    """For damaged inputs, a decoder returns in time with a result or an expected error."""
    rng = random.Random(f"{name} {SEED}")
    for _ in range(INPUTS):
        data = mutate(rng, TARGETS[name].seeds)
        assert not (what := fault(TARGETS[name], data)), f"{what}: {data!r} (ZKC_SEED={SEED})"


HOSTILE = [
    b'{"subscription":{"((a{9999}){9999})":1},"pattern":"black_list"}',
    b"[" * 65536,
    b'{"":' * 16000,
    b'"' + b"\\" * 65534,
    b'{"subscription":{"' + b'\\"' * 30000,
    b"9" * 65536,
    b"-" * 65536,
    b"\xff" * 65536,
    b'{"a":"' + b"\\u" * 30000 + b'"}',
    b"{" + b",".join(b'"%d":1' % n for n in range(7000)) + b"}",
    b'{"partitions":{' + b",".join(b'"%d":[]' % n for n in range(90000)) + b"}}",
    b'{"version":2,"endpoints":["' + b":" * 60000 + b'"]}',
    b'{"version":2,"endpoints":["' + b"a" * 60000 + b'"]}',
    b'{"subscription":{"' + b"(" * 60000 + b'":1},"pattern":"white_list"}',
    b'{"subscription":{"' + b"(?:a|a)*" * 7000 + b'b":1},"pattern":"white_list"}',
]


@pytest.mark.parametrize("name", ["registration", "offset-znode", "broker-znode", "topic-znode"])
def test_large_hostile_znodes(name: str) -> None:
    """Bytes that are made to be slow, as large as a znode may be, do not stop a member."""
    target = TARGETS[name]._replace(limit_s=1.0)
    for data in HOSTILE:
        assert not (what := fault(target, data)), f"{what}: {data[:40]!r}"


ROOT = Path(__file__).parents[2]
CALLS = {"loads", "raw_decode", "unpack", "unpack_from", "iter_unpack", "from_bytes", "frombuffer"}
CALLS |= {"decompress", "decompressobj"}


def test_every_decoder_has_a_target() -> None:
    """Every module that decodes bytes is in the table of decoders, and its targets exist."""
    decoding = {
        str(path.relative_to(ROOT))
        for package in ("zkconsumer", "migrate/zkmigrate", "spark/zkaudit")
        for path in (ROOT / package).rglob("*.py")
        if not path.is_relative_to(ROOT / "zkconsumer" / "sim")
        and not path.is_relative_to(ROOT / "zkconsumer" / "servers")
        and any(
            isinstance(node, ast.Attribute) and node.attr in CALLS
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        )
    }
    assert decoding == set(DECODERS)
    named = {name for names in DECODERS.values() if isinstance(names, tuple) for name in names}
    assert named <= set(TARGETS)


@pytest.mark.parametrize("path", sorted(FOUND.glob("*/*")), ids=lambda path: path.name)
def test_inputs_that_failed_once(path: Path) -> None:
    """Inputs that fuzzing has found no longer fail."""
    assert not (what := fault(TARGETS[path.parent.name], path.read_bytes())), what
