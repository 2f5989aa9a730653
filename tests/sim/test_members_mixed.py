"""Whole members of both protocols in a group that the broker converts. No rule is broken.

``ZKC_SEEDS=500:2000`` runs seeds 500 to 2499. ``make test-sim-all`` runs many, with more faults.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.sim.runs.either_group import EitherGroup
from tests.sim.runs.mixed_scenario import MixedWorld
from tests.sim.runs.run import run

EVENTS = 60
FIRST, COUNT = map(int, os.environ.get("ZKC_SEEDS", "0:100").split(":"))
BATCH = 50


@pytest.mark.parametrize("start", range(FIRST, FIRST + COUNT, BATCH))
def test_no_rule_is_broken_in_any_run(start: int) -> None:
    """Members are rolled classic -> KIP-848 -> classic while requests and answers are lost or late.
    One member delivers each partition, nothing is lost, and each member ends in the group. Each
    kind of fault happens."""
    conversions: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    rolled = deliveries = 0
    ends = set()
    seeds = range(start, min(start + BATCH, FIRST + COUNT))
    for seed in seeds:
        result = run(seed, coordination="mixed", events=EVENTS)
        assert not result.violations, result
        world: MixedWorld = result.world
        assert isinstance(world.group, EitherGroup)
        conversions.update(world.group.conversions)
        faults.update(result.faults)
        rolled += world.rolled
        deliveries += result.deliveries
        ends.add(world.group.classic)
    if len(seeds) == BATCH:
        assert min(conversions["consumer"], conversions["classic"]) > BATCH
        assert rolled > 4 * BATCH
        assert ends == {False, True}, "groups end in either protocol"
        assert faults.keys() >= {"roll", "cut", "pause", "coordinator dies", "crash"}
        assert deliveries > BATCH * 150


@pytest.mark.parametrize("seed", [1, 8])
def test_same_seed_same_history(seed: int) -> None:
    """Every event and delivery of a run depends on its seed alone."""
    first, second = (
        run(seed, coordination="mixed", events=EVENTS, record=True).history for _ in range(2)
    )
    assert first is not None
    assert len(first) > 100
    assert first == second
