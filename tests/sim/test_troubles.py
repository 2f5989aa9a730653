"""Whole groups under random troubles: the invariants hold in every run, and a run can be replayed.

``ZKC_SEED=4711`` runs that seed alone; ``ZKC_SEEDS=20000`` runs more than the usual number.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from zkconsumer.sim.scenario import run

SEEDS = int(os.environ.get("ZKC_SEEDS", "1000"))
BATCH = 250
ONLY = os.environ.get("ZKC_SEED")
STARTS = [int(ONLY)] if ONLY else list(range(0, SEEDS, BATCH))


@pytest.mark.parametrize("start", STARTS)
def test_no_violation_in_any_run(start: int) -> None:
    """Never two that deliver one partition, none without an owner at rest, nothing lost, no offset
    lowered, no lost trigger: in groups that join, leave, crash, expire, pause and lose answers.
    """
    for seed in range(start, start + (1 if ONLY else min(BATCH, SEEDS - start))):
        result = run(seed)
        found = "\n".join(map(str, result.violations[:10]))
        assert not result.violations, f"replay with ZKC_SEED={seed}\n{result.faults}\n{found}"


def test_runs_are_troubled_in_every_way() -> None:
    """The runs do what they claim: each kind of trouble happens, messages flow, members move."""
    faults: Counter[str] = Counter()
    deliveries = transactions = 0
    for seed in range(60):
        result = run(seed)
        faults.update(result.faults)
        deliveries += result.deliveries
        transactions += result.transactions
    assert set(faults) == {
        *(
            "join",
            "leave",
            "crash",
            "restart",
            "expire",
            "disconnect",
            "pause",
            "drop watch",
            "create topic",
        ),
        *("add partitions", "delete topic", "hostile registration", "registration deleted"),
        *("registration touched", "owner deleted", "brokers gone", "commit asked for"),
    }
    assert deliveries > 60 * 200
    assert transactions > 60 * 40


@pytest.mark.parametrize("seed", [1, 8, 23])
def test_same_seed_same_history(seed: int) -> None:
    """Every fact, transaction and delivery of a run is a function of its seed alone."""
    first, second = run(seed, record=True).history, run(seed, record=True).history
    assert first is not None
    assert len(first) > 100
    assert first == second


def test_legacy_members_break_only_what_the_table_allows() -> None:
    """In mixed groups the JVM-like member shows its anomalies; default members never do."""
    allowed: Counter[str] = Counter()
    for seed in range(30_000, 30_120):
        result = run(seed, legacy=True)
        found = "\n".join(map(str, result.violations[:10]))
        assert not result.violations, f"run(seed={seed}, legacy=True)\n{found}"
        allowed.update(violation.rule for violation in result.allowed)
    assert allowed["single_delivery"]
