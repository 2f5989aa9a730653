"""The simulated group coordinators: their answers, and that every member gets its share.

Profiles: ``coordinator`` is the classic protocol, ``consumer`` is KIP-848.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.specs import classic_spec
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.groups import commands, events
from zkconsumer.core.groups.classic import ClassicMachine
from zkconsumer.core.groups.kip848 import Kip848Machine
from zkconsumer.herd.parameters import EVENTS
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.runs.herd import Herd
from zkconsumer.sim.runs.herd_coordinator import CoordinatorRun, simulate_any
from zkconsumer.sim.servers.classic import GroupCoordinator, GroupState

SPEC = classic_spec(session_timeout=10.0, rebalance_timeout=60.0)
RANGE = (("range", b"\0\0"),)
MACHINES = {"coordinator": ClassicMachine, "consumer": Kip848Machine}

on_brokers = pytest.mark.parametrize("profile", list(MACHINES))


@on_brokers
@pytest.mark.parametrize("event", EVENTS)
def test_all_partitions_are_owned_evenly_after_each_event(event: str, profile: str) -> None:
    """After each event, every partition has one live owner, and shares differ by one at most. The
    members are the real machine."""
    for seed in range(5):
        run = CoordinatorRun(Herd(7, 23, event=event, profile=profile, seed=seed))
        figures = run.perform()
        assert figures.unowned_at_end == 0, seed
        live = {member.name for member in run.members.values() if member.alive}
        owners = [
            run.tally.ownership.owner(TopicPartition(topic, number))
            for topic in run.topics
            for number in range(23)
        ]
        assert set(owners) == live
        counts = [owners.count(name) for name in live]
        assert max(counts) - min(counts) <= len(run.topics)
        for member in run.members.values():
            assert isinstance(member.machine, MACHINES[profile])
            if member.alive:
                held = {run.tally.ownership.owner(tp) for tp in member.machine.held}
                assert held == {member.name}


@on_brokers
def test_no_zookeeper_and_no_square(profile: str) -> None:
    """A join costs each member a handful of requests, whatever the size of the group. Members of
    KIP-848 do not join again."""
    per_member = []
    for members in (20, 200):
        found = simulate_any(Herd(members, 400, profile=profile))
        assert (found.reads, found.writes, found.watches_fired) == (0, 0, 0)
        assert found.attempts == (members + 1 if profile == "coordinator" else 0)
        per_member.append(found.requests / members)
    assert per_member[1] < per_member[0] * 1.2 < 9


@pytest.mark.parametrize(("event", "moved"), [("join", 45), ("leave", 50), ("crash", 50)])
def test_only_partitions_that_move_stop_with_kip_848(event: str, moved: int) -> None:
    """Partitions that stay with their member are read without a pause. With ``range`` and the
    classic protocol, all stop.

    A member that joins ten members with 500 partitions gets 45 of them. One that leaves had 50.
    """
    found = simulate_any(Herd(10, 500, event=event, profile="consumer"))
    assert (found.moved, found.stopped, found.unowned_at_end) == (moved, moved, 0)
    assert simulate_any(Herd(10, 500, event=event, profile="coordinator")).stopped == 500


@on_brokers
def test_a_crash_is_noticed_by_the_session_timeout(profile: str) -> None:
    """Partitions of a crashed member wait for its session timeout and the next heartbeats."""
    found = simulate_any(Herd(10, 30, event="crash", profile=profile, session_timeout=10.0))
    assert found.seconds_to_stable is not None
    assert 7.0 < found.seconds_to_stable < 14.0
    assert found.unowned_longest > 7.0


@on_brokers
def test_the_death_of_the_coordinator_stops_nobody(profile: str) -> None:
    """Another broker knows the generation and the members, so no member releases a partition."""
    found = simulate_any(Herd(10, 30, event="broker-bounce", profile=profile))
    assert (found.attempts, found.moved, found.unowned_seconds) == (0, 0, 0)
    assert found.by_kind["find coordinator"]["requests"] >= 10


def _coordinator() -> tuple[GroupCoordinator, list[Any]]:
    kernel = Kernel(0)
    return GroupCoordinator(kernel, lambda: {"t": 2}, 0.0), []


def _join(group: GroupCoordinator, said: list[Any], name: str) -> str:
    """Join with the id that the coordinator assigns, and return it."""
    spec = replace(SPEC, consumer_id=name)
    group.handle(commands.JoinGroup(1, "", RANGE), spec, said.append)
    assert said[-1].code == 79
    given: str = said[-1].member_id
    group.handle(commands.JoinGroup(2, given, RANGE), spec, said.append)
    group.kernel.run(until=group.kernel.now)  # the initial delay of 0 s
    return given


def test_an_old_generation_is_refused() -> None:
    """A member of an earlier generation, or an unknown one, gets an error and changes nothing."""
    group, said = _coordinator()
    one = _join(group, said, "a")
    assert (said[-1].generation, said[-1].leader, len(said[-1].members)) == (1, one, 1)
    group.handle(commands.SyncGroup(3, one, 1, {}), SPEC, said.append)
    assert group.state is GroupState.STABLE
    _join(group, said, "b")
    assert group.state is GroupState.PREPARING
    group.handle(commands.Heartbeat(4, one, 1), SPEC, said.append)
    assert said[-1] == events.HeartbeatAnswered(4, 27)
    group.handle(commands.JoinGroup(5, one, RANGE), SPEC, said.append)
    assert [found.generation for found in said[-2:]] == [2, 2]
    group.handle(commands.Heartbeat(6, one, 1), SPEC, said.append)
    assert said[-1] == events.HeartbeatAnswered(6, 22)
    tp = TopicPartition("t", 0)
    group.handle(commands.CommitOffsets(7, one, 1, {tp: 5}), SPEC, said.append)
    assert said[-1] == events.OffsetsCommitted(7, {tp: 22})
    group.handle(commands.SyncGroup(8, "c", 2, {}), SPEC, said.append)
    assert said[-1] == events.RequestFailed(8, 25)
    assert group.offsets == {}
    assert group.state is GroupState.COMPLETING


def test_a_follower_whose_answer_was_lost_disturbs_nobody() -> None:
    """JoinGroup without a change returns the current generation and causes no rebalance."""
    group, said = _coordinator()
    one = _join(group, said, "a")
    two = _join(group, said, "b")
    group.handle(commands.SyncGroup(3, one, 1, {}), SPEC, said.append)
    group.handle(commands.JoinGroup(4, one, RANGE), SPEC, said.append)
    group.handle(commands.SyncGroup(5, one, 2, {one: b"x", two: b"y"}), SPEC, said.append)
    assert group.state is GroupState.STABLE
    group.handle(commands.JoinGroup(6, two, RANGE), SPEC, said.append)
    assert (said[-1].generation, group.state) == (2, GroupState.STABLE)
    group.handle(commands.SyncGroup(7, two, 2, {}), SPEC, said.append)
    assert said[-1] == events.Synced(7, b"y")


def test_a_strategy_that_not_all_offer_is_refused() -> None:
    """A newcomer without a common strategy gets INCONSISTENT_GROUP_PROTOCOL."""
    group, said = _coordinator()
    _join(group, said, "a")
    group.handle(commands.JoinGroup(1, "", RANGE), SPEC, said.append)
    other = (("sticky", b""),)
    group.handle(commands.JoinGroup(2, said[-1].member_id, other), SPEC, said.append)
    assert said[-1] == events.RequestFailed(2, 23)
