"""Whole migratable members whose group moves between both coordinations under random faults.

``ZKC_SEEDS=500:2000`` runs seeds 500 to 2499. ``make test-sim-all`` runs many, with more faults.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.sim.runs.live_scenario import run
from zkconsumer.core.migration.modes import Mode

EVENTS = 30
FIRST, COUNT = map(int, os.environ.get("ZKC_SEEDS", "0:300").split(":"))
BATCH = 50


@pytest.mark.parametrize("start", range(FIRST, FIRST + COUNT, BATCH))
def test_no_rule_is_broken_in_any_move(start: int) -> None:
    """Two members never deliver one partition, and between the modes none delivers without both
    locks. No record is skipped, no offset is lowered, and another operator finishes what one has
    begun. Members, operators, sessions, brokers and answers fail at any moment of a move."""
    for seed in range(start, min(start + BATCH, FIRST + COUNT)):
        result = run(seed, events=EVENTS)
        assert not result.violations, result


@pytest.mark.parametrize("seed", [101, 466, 486, 561, 2651])
def test_runs_that_once_broke_a_rule(seed: int) -> None:
    """A member that closed while claims had an unknown outcome never left the coordinator's group
    (101). One joined plain consumers with an eager strategy and kept its partitions (466). One
    committed after a pause that had ended its session (486). One gave up when the group chose a
    strategy that it had offered before the mode changed (561). The tool did not name the plain
    consumer that kept a member from acknowledging (2651)."""
    result = run(seed, events=200)
    assert not result.violations, result


def test_groups_move_in_every_way() -> None:
    """Each kind of fault happens. Records flow in each mode, also while members act on different
    ones. Tools die on the way, and plain and legacy members read."""
    faults: Counter[str] = Counter()
    delivered, written, ends = set(), Counter[Mode](), set()
    plain = legacy = killed = 0
    for seed in (*range(40), 73, 99, 105):  # in the last three, plain consumers read much
        result = run(seed, events=60)
        world = result.world
        faults.update(result.faults)
        delivered |= world.modes
        ends.add(world.mode)
        plain += world.group_observer.deliveries
        legacy += len(world.zk_world.members)
        for operator in world.operators:
            written.update(operator.written)
            killed += bool(operator.written) and not operator.reached and not operator.why
    assert {name for _, name, _ in world.kinds} <= faults.keys()
    assert {mode for mode, _ in delivered} == set(Mode)
    assert {mode for mode, several in delivered if several} >= {Mode.LOCKED, Mode.KAFKA}
    assert min(written[mode] for mode in Mode) > 10
    assert ends == set(Mode)
    assert killed > 0
    assert plain > 100
    assert legacy > 10


@pytest.mark.parametrize("seed", [1, 8])
def test_same_seed_same_history(seed: int) -> None:
    """Every event and delivery of a run depends on its seed alone."""
    first, second = (run(seed, events=EVENTS, record=True).history for _ in range(2))
    assert first is not None
    assert len(first) > 100
    assert first == second
