"""Whole members of a group in ZooKeeper under random faults. No rule is broken in any run.

``ZKC_SEEDS=500:2000`` runs seeds 500 to 2499. ``make test-sim-all`` runs many, with more faults.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.sim.runs.scenario import World, run
from zkconsumer.core.common.commands import Outcome
from zkconsumer.core.common.types import Pattern, Subscription
from zkconsumer.core.zookeeper.view import MemberSpec
from zkconsumer.errors import ConnectorClosedError
from zkconsumer.sim.kernel import Kernel

EVENTS = 60
FIRST, COUNT = map(int, os.environ.get("ZKC_SEEDS", "0:500").split(":"))
BATCH = 125


@pytest.mark.parametrize("start", range(FIRST, FIRST + COUNT, BATCH))
def test_no_rule_is_broken_in_any_run(start: int) -> None:
    """Two members never deliver one partition. A stable group owns every partition, nothing is
    lost, no offset is lowered, and no member is silent. Members join, leave, crash, expire, pause
    and lose answers. Brokers, logs, offset stores and applications fail."""
    for seed in range(start, min(start + BATCH, FIRST + COUNT)):
        result = run(seed, events=EVENTS)
        assert not result.violations, result


def test_runs_are_troubled_in_every_way() -> None:
    """Each kind of fault happens, messages flow, and partitions move."""
    faults: Counter[str] = Counter()
    deliveries = transactions = 0
    for seed in range(60):
        result = run(seed, events=EVENTS)
        faults.update(result.faults)
        deliveries += result.deliveries
        transactions += result.world.zk.zxid
    assert set(faults) == {
        *("join", "leave", "crash", "restart", "expire", "disconnect", "pause", "drop watch"),
        *("create topic", "add partitions", "delete topic", "hostile registration"),
        *("registration deleted", "registration touched", "owner deleted", "brokers gone"),
        *("commit asked for", "slow application", "fault inside", "slow offsets"),
        *("leader moves", "broker stops", "unclean election", "retention", "compaction"),
        "slow brokers",
    }
    assert deliveries > 60 * 100
    assert transactions > 60 * 40


@pytest.mark.parametrize("seed", [1, 8, 23])
def test_same_seed_same_history(seed: int) -> None:
    """Every event, transaction and delivery of a run depends on its seed alone."""
    first, second = (run(seed, events=EVENTS, record=True).history for _ in range(2))
    assert first is not None
    assert len(first) > 100
    assert first == second


def test_legacy_members_break_only_what_the_table_allows() -> None:
    """In mixed groups, the JVM-like member shows its anomalies. Default members never do."""
    allowed: Counter[str] = Counter()
    for seed in range(30_000, 30_120):
        result = run(seed, legacy=True, events=EVENTS)
        assert not result.violations, result
        allowed.update(violation.rule for violation in result.world.observer.allowed)
    assert allowed["single_delivery"]


@pytest.mark.parametrize("leaves_after", [0.3, 5.0, 15.0])
@pytest.mark.parametrize("seed", range(5))
def test_two_live_members_with_one_id(seed: int, leaves_after: float) -> None:
    """A second live member with the same id leaves before or after it is refused. The first one
    keeps its registration and its partitions, and continues reading."""
    kernel = Kernel(seed)
    world = World.make(kernel)
    world.set_topic("t0", 2)
    spec = MemberSpec(world.paths, "g_m1", Subscription(Pattern.STATIC, {"t0": 1}))
    first = world.add_member(spec)
    kernel.run(until=5.0)
    path = world.paths.member("g_m1")
    before, attempts = world.zk.get(path), first.machine.attempts
    delivered = first.plane.positions()
    assert before is not None
    assert len(delivered) == 2
    second = world.add_member(spec)
    kernel.schedule(leaves_after, second.close)
    kernel.run(until=60.0)
    assert not second.alive
    if leaves_after > 10:
        assert second.loop.started.result(0).outcome is Outcome.DUPLICATE_ID
    else:
        assert isinstance(second.loop.started.exception(0), ConnectorClosedError)
    now = world.zk.get(path)
    assert now is not None
    assert now.stat.czxid == before.stat.czxid, f"registered again, seed {seed}"
    assert first.fetching == delivered.keys()
    assert all(first.plane.positions()[tp] > position for tp, position in delivered.items())
    assert first.machine.attempts <= attempts + 2, "no event but the periodic reading"
    assert not world.observer.violations
