"""Whole KIP-848 members under random faults. No rule is broken in any run.

``ZKC_SEEDS=500:2000`` runs seeds 500 to 2499. ``make test-sim-all`` runs many, with more faults.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.sim.runs.group_scenario import World
from tests.sim.runs.run import run
from zkconsumer.core.coordinator.states import State

EVENTS = 60
FIRST, COUNT = map(int, os.environ.get("ZKC_SEEDS", "0:300").split(":"))
BATCH = 100
UNUSED = {State.LEADING, State.SYNCING}
"""Commands of the classic protocol only."""


@pytest.mark.parametrize("start", range(FIRST, FIRST + COUNT, BATCH))
def test_no_rule_is_broken_in_any_run(start: int) -> None:
    """See ``test_members_coordinator``. Each kind of fault also happens."""
    faults: Counter[str] = Counter()
    states: set[State] = set()
    deliveries = 0
    seeds = range(start, min(start + BATCH, FIRST + COUNT))
    for seed in seeds:
        result = run(seed, coordination="consumer", events=EVENTS)
        assert not result.violations, result
        world: World = result.world
        faults.update(result.faults)
        states |= world.states
        deliveries += result.deliveries
    if len(seeds) == BATCH:
        assert faults.keys() >= {"cut", "pause", "coordinator dies", "static restart", "crash"}
        assert states >= set(State) - {State.NEW, State.FAILED} - UNUSED
        assert deliveries > BATCH * 200


@pytest.mark.parametrize("seed", [1, 8])
def test_same_seed_same_history(seed: int) -> None:
    """Every event and delivery of a run depends on its seed alone."""
    first, second = (
        run(seed, coordination="consumer", events=EVENTS, record=True).history for _ in range(2)
    )
    assert first is not None
    assert len(first) > 100
    assert first == second
