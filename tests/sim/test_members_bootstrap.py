"""Whole members that coordinate in ZooKeeper and learn of topics and brokers from the brokers.

``ZKC_SEEDS=500:2000`` runs seeds 500 to 2499. ``make test-sim-all`` runs many, with more faults.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.sim.runs.run import run
from zkconsumer.runtime.membership import cluster

EVENTS = 60
FIRST, COUNT = map(int, os.environ.get("ZKC_SEEDS", "0:150").split(":"))
BATCH = 75


@pytest.mark.parametrize("start", range(FIRST, FIRST + COUNT, BATCH))
def test_no_rule_is_broken_in_any_run(start: int) -> None:
    """The rules for all members hold for these too. Late or missing answers of brokers, new and
    deleted topics, and JVM members in the group cause no loss and no double delivery."""
    faults: Counter[str] = Counter()
    deliveries = 0
    for seed in range(start, min(start + BATCH, FIRST + COUNT)):
        result = run(seed, coordination="bootstrap", events=EVENTS)
        assert not result.violations, result
        faults.update(result.faults)
        deliveries += result.deliveries
    assert faults["jvm registration"]
    assert faults["create topic"]
    assert deliveries > BATCH * 50


def test_two_members_of_another_library() -> None:
    """ZooKeeper may list their registrations in another order: the group has not changed."""
    result = run(274, coordination="bootstrap", events=EVENTS)
    assert not result.violations, result


def test_a_session_that_ends_while_its_member_is_suspended() -> None:
    """The member learns it when it runs again. What it sends before that is no fault."""
    result = run(30053, coordination="bootstrap", events=200)
    assert not result.violations, result


def test_changes_that_nobody_notices_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge finds a member that asks the brokers and ignores changes."""

    def nothing(*_views: object) -> Iterator[str]:
        return iter(())

    monkeypatch.setattr(cluster, "changed_paths", nothing)
    rules = {
        violation.rule
        for seed in range(40)
        for violation in run(seed, coordination="bootstrap", events=EVENTS).violations
    }
    assert "no_lost_trigger" in rules


def test_same_seed_same_history() -> None:
    """A run is a function of its seed alone."""
    first, second = (
        run(8, coordination="bootstrap", events=EVENTS, record=True).history for _ in range(2)
    )
    assert first is not None
    assert len(first) > 100
    assert first == second
