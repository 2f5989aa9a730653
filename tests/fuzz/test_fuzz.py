"""No bytes from outside make a decoder fail in a way that its callers do not expect.

A sample of what ``make fuzz`` does for longer, with the inputs it has found. ``ZKC_SEED=N`` replays
a run, and ``ZKC_FUZZ_INPUTS=N`` makes it longer.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.fuzz.check import fault
from tests.fuzz.mutate import mutate
from tests.fuzz.targets import TARGETS

pytestmark = pytest.mark.timeout(60)
FOUND = Path(__file__).parent / "found"
SEED = int(os.environ.get("ZKC_SEED", "1"))
INPUTS = int(os.environ.get("ZKC_FUZZ_INPUTS", "400"))


@pytest.mark.parametrize("name", TARGETS)
def test_valid_inputs_are_accepted(name: str) -> None:
    """Mutations begin at inputs that reach the end of the decoder."""
    for seed in TARGETS[name].seeds:
        TARGETS[name].run(seed)


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_inputs(name: str) -> None:
    """Damaged inputs end in time, with a result or an expected error."""
    rng = random.Random(f"{name} {SEED}")
    for _ in range(INPUTS):
        data = mutate(rng, TARGETS[name].seeds)
        assert not (what := fault(TARGETS[name], data)), f"{what}: {data!r} (ZKC_SEED={SEED})"


@pytest.mark.parametrize("path", sorted(FOUND.glob("*/*")), ids=lambda path: path.name)
def test_inputs_that_failed_once(path: Path) -> None:
    """What fuzzing has found stays mended."""
    assert not (what := fault(TARGETS[path.parent.name], path.read_bytes())), what
