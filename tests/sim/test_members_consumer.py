"""Whole KIP-848 members under random faults. No rule is broken in any run.

``ZKC_SEEDS=500:2000`` runs seeds 500 to 2499. ``make test-sim-all`` runs many, with more faults.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.sim.runs.group_scenario import World
from tests.sim.runs.run import run
from zkconsumer.core.common.types import Pattern, Subscription, TopicPartition
from zkconsumer.core.groups import kip848_commands as commands
from zkconsumer.core.groups.commands import CommitOffsets, LeaveGroup
from zkconsumer.core.groups.spec import Kip848Spec
from zkconsumer.core.groups.states import State
from zkconsumer.sim.judges.group_judge import GroupJudge
from zkconsumer.sim.judges.invariants import Observer
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.servers.kip848 import ConsumerGroupCoordinator

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


def test_a_static_member_that_returns_is_the_same_owner() -> None:
    """It returns in the epoch of the group, without a new one. A commit in that epoch is its own,
    also after the group has got another."""
    kernel, observer = Kernel(1), Observer()
    judge = GroupJudge(kernel, observer)
    group = ConsumerGroupCoordinator(kernel, lambda: {"t": 1}, watch=judge)
    spec = Kip848Spec(
        group="g",
        member_id="m",
        consumer_id="c",
        instance_id="i",
        subscription=Subscription(Pattern.STATIC, {"t": 1}),
        exclude_internal=True,
        assignor=None,
        rack=None,
        auto_commit=True,
        session_timeout=45.0,
        rebalance_timeout=30.0,
        heartbeat_interval=5.0,
        backoff=0.1,
        reread=30.0,
    )
    answers: list[Any] = []

    def send(command: Any, of: Kip848Spec = spec) -> Any:
        group.handle(command, of, answers.append)
        return answers[-1]

    epoch = send(commands.MemberHeartbeat(1, "m", 0, True, {})).epoch
    send(LeaveGroup(2, "m"))
    again = send(commands.MemberHeartbeat(3, "m", 0, True, {}))
    assert (again.epoch, again.assignment) == (epoch, {"t#1": (0,)})
    kernel.run(until=10)
    other = replace(spec, member_id="n", instance_id="j")
    send(commands.MemberHeartbeat(4, "n", 0, True, {}), other)
    assert send(commands.MemberHeartbeat(5, "m", epoch, False, None)).epoch > epoch
    tp = TopicPartition("t", 0)
    assert send(CommitOffsets(6, "m", epoch, {tp: 1})).codes == {tp: 0}
    assert observer.violations == []
