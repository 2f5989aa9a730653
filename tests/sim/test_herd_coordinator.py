"""The simulated group coordinator: every member has its share, whatever happens."""

from __future__ import annotations

import pytest

from zkconsumer.core.types import TopicPartition
from zkconsumer.sim.coordinator import Answer, GroupCoordinator, GroupState, Response
from zkconsumer.sim.herd import EVENTS, Herd
from zkconsumer.sim.herd_coordinator import CoordinatorRun, simulate_any
from zkconsumer.sim.kernel import Kernel


@pytest.mark.parametrize("event", EVENTS)
def test_all_partitions_are_owned_evenly_after_each_event(event: str) -> None:
    """After each event every partition has one live owner, and shares differ by one at most."""
    for seed in range(5):
        run = CoordinatorRun(Herd(7, 23, event=event, profile="coordinator", seed=seed))
        figures = run.perform()
        assert figures.unowned_at_end == 0, seed
        live = {member.name for member in run.members.values() if member.alive}
        owners = [
            run.tally.ownership.owner(TopicPartition(topic, number))
            for topic in run._topics
            for number in range(23)
        ]
        assert set(owners) == live
        counts = [owners.count(name) for name in live]
        assert max(counts) - min(counts) <= len(run._topics)


def test_no_zookeeper_and_no_square() -> None:
    """One join costs each member a handful of requests, whatever the size of the group."""
    per_member = []
    for members in (20, 200):
        found = simulate_any(Herd(members, 400, profile="coordinator"))
        assert (found.reads, found.writes, found.watches_fired) == (0, 0, 0)
        per_member.append(found.requests / members)
    assert per_member[1] < per_member[0] * 1.2 < 8


def test_a_crash_is_noticed_by_the_session_timeout() -> None:
    """Partitions of a crashed member wait for its session timeout and the next heartbeats."""
    found = simulate_any(Herd(10, 30, event="crash", profile="coordinator", session_timeout=10.0))
    assert found.seconds_to_stable is not None
    assert 7.0 < found.seconds_to_stable < 14.0
    assert found.unowned_longest > 7.0


def test_an_old_generation_is_refused() -> None:
    """A member of an earlier generation, or a stranger, is told so and changes nothing."""
    kernel = Kernel(0)
    group = GroupCoordinator(kernel, 10.0, 60.0)
    said: list[Response] = []
    group.join("a", said.append)
    assert (said[-1].generation, said[-1].members) == (1, ("a",))
    group.sync("a", 1, {}, said.append)
    assert group.state is GroupState.STABLE
    group.join("b", said.append)
    assert group.state is GroupState.PREPARING
    group.heartbeat("a", 1, said.append)
    assert said[-1].answer is Answer.REJOIN
    group.join("a", said.append)
    assert [found.generation for found in said[-2:]] == [2, 2]
    group.heartbeat("a", 1, said.append)
    assert said[-1].answer is Answer.UNKNOWN
    group.sync("c", 2, {}, said.append)
    assert said[-1].answer is Answer.UNKNOWN
    assert group.state is GroupState.COMPLETING
