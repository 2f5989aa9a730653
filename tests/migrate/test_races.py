"""Another client acts at the worst moment: between two steps of a move, or between two runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from zkmigrate.apply.outcome import Outcome
from zkmigrate.formats.plan_file import PlanFile
from zkmigrate.model import Direction, GroupState
from zkmigrate.plan.options import Options, Skip
from zkmigrate.stores.group_states import read_offsets
from zkmigrate.verify import AHEAD, NOT_MOVED, SOURCE, compare

from zkconsumer.core.common.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Bench  # type: ignore[import-not-found]


class KilledError(BaseException):
    """Simulates a kill."""


def at(word: str, act: Callable[[], object]) -> Callable[[str], None]:
    """An effect that acts once, at the first item whose name contains ``word``."""
    left = [act]

    def effect(what: str) -> None:
        if left and word in what:
            left.pop()()

    return effect


def kill() -> None:
    """Stop the run as a kill would."""
    raise KilledError


def test_a_zombies_commit_is_fenced(filled: Bench, group: str, topic: str) -> None:
    """A late commit by a member of this library checks the member's registration. So it fails if
    the session has ended, and does not disturb the move."""
    path = f"/consumers/{group}/offsets/{topic}/0"
    member = f"/consumers/{group}/ids/zombie"
    filled.client.create(member, b"{}", makepath=True)
    version = filled.client.get(path)[1].version
    filled.client.delete(member)
    plan, journal = filled.plan([group])
    failures: list[str] = []

    def commit() -> None:
        transaction = filled.client.transaction()
        transaction.check(member, 0)
        transaction.set_data(path, b"9", version)
        failures.extend(type(one).__name__ for one in transaction.commit())

    assert filled.apply(plan, journal, at("before kafka commit", commit))[0].outcome.good
    assert failures == ["NoNodeError", "RuntimeInconsistency"]
    assert filled.client.get(path)[0] == b"3"


def test_a_claim_leaves_no_trace_in_the_offset(filled: Bench, group: str, topic: str) -> None:
    """Claiming a group changes neither time nor version of an offset znode, whether the move
    succeeds, fails or is killed. So ``newest`` still sees when consumers committed."""
    paths = [f"/consumers/{group}/offsets/{topic}/{partition}" for partition in range(2)]
    before = [filled.client.exists(path) for path in paths]

    def fail() -> None:
        filled.client.create(f"/consumers/{group}/ids/late", b"{}", makepath=True)

    plan, journal = filled.plan([group])
    with pytest.raises(KilledError):
        filled.apply(plan, journal, at("after zookeeper multi", kill))
    assert [filled.client.exists(path) for path in paths] == before
    (failed,) = filled.apply(plan, journal, at("before zookeeper create", fail))
    assert failed.outcome is Outcome.REFUSED
    filled.client.delete(f"/consumers/{group}/ids/late")
    assert [filled.client.exists(path) for path in paths] == before
    assert filled.apply(plan, journal)[0].outcome is Outcome.DONE
    assert [filled.client.exists(path) for path in paths] == before


@pytest.mark.parametrize("new", ["topic", "partition"])
@pytest.mark.parametrize("way", list(Direction))
def test_an_offset_that_comes_after_the_plan(
    bench: Bench, group: str, topic: str, way: Direction, new: str
) -> None:
    """If an offset of a topic or partition is not in the plan, the group is refused with its name.
    This holds before the claim and after it, and nothing is written. verify finds the offset in
    either store. Topics that the operator skips do not count."""
    to_kafka = way is Direction.ZK_TO_KAFKA
    source, target = (
        (bench.set_zk, bench.set_kafka) if to_kafka else (bench.set_kafka, bench.set_zk)
    )
    left = f"{topic}-left"
    for name in (topic, left):
        bench.topic(name, 1)
        source(group, name, {0: 3})
    target(group, left, {0: 1})
    options = Options(skips=(Skip(group, left),), max_idle_days=10**6)
    late = TopicPartition(topic, 1) if new == "partition" else TopicPartition(f"{topic}-new", 0)

    def come() -> None:
        if new == "topic":
            bench.topic(late.topic, 1)
        else:
            bench.cluster.add_partitions(topic, 2)
            bench.produce(topic, 1, 9)
        source(group, left, {0: 4})
        source(group, late.topic, {late.partition: 7})

    def stored(plan: PlanFile) -> GroupState:
        with bench.stores() as stores:
            ((_, state),) = read_offsets(stores, plan.groups)
        assert isinstance(state, GroupState)
        return state

    plan, journal = bench.plan([group], way, options)
    (result,) = bench.apply(plan, journal, at("before zookeeper multi", come))
    assert result.outcome is Outcome.REFUSED
    assert f"{late}: {way.source.value} holds 7, which is not in the plan" in result.why
    assert stored(plan).offsets(way.target) == {TopicPartition(left, 0): 1}
    before = bench.znodes(group)
    (result,) = bench.apply(plan, bench.folder / "second")
    assert f"{late}: {way.source.value} holds 7, which is not in the plan" in result.why
    assert bench.znodes(group) == before
    again, third = bench.plan([group], way, options)
    assert bench.apply(again, third)[0].outcome is Outcome.DONE
    held = stored(again)
    assert held.offsets(way.target)[late] == 7
    assert held.offsets(way.target)[TopicPartition(left, 0)] == 1
    assert list(compare(again.groups[0], way, held)) == []
    (ahead,) = compare(plan.groups[0], way, held)
    assert ahead[1:7] == (*late, None, 7, AHEAD, "not in the plan")
    assert bench.rollback(again, third)[0].outcome is Outcome.DONE
    not_moved, found = compare(plan.groups[0], way, stored(plan))
    assert not_moved.kind == NOT_MOVED
    assert found[1:7] == (*late, None, 7, SOURCE, f"in {way.source.value}, not in the plan")


@pytest.mark.parametrize("way", list(Direction))
def test_an_offset_that_comes_after_the_move(
    bench: Bench, group: str, topic: str, way: Direction
) -> None:
    """Consumers have stored offsets for a topic that was not moved. A rollback does not leave these
    behind unless forced."""
    to_kafka = way is Direction.ZK_TO_KAFKA
    source, target = (
        (bench.set_zk, bench.set_kafka) if to_kafka else (bench.set_kafka, bench.set_zk)
    )
    other = f"{topic}-new"
    for name in (topic, other):
        bench.topic(name, 1)
    source(group, topic, {0: 3})
    plan, journal = bench.plan([group], way)
    assert bench.apply(plan, journal)[0].outcome is Outcome.DONE
    target(group, other, {0: 7})
    (refused,) = bench.rollback(plan, journal)
    assert refused.outcome is Outcome.REFUSED
    assert f"{other}-0: {way.target.value} holds 7, which is not in the plan" in refused.why
    assert bench.rollback(plan, journal, force=True)[0].outcome is Outcome.DONE


@pytest.mark.parametrize("where", ["zookeeper", "kafka"])
@pytest.mark.parametrize(
    "word", ["after zookeeper multi", "after kafka commit", "after journal mark"]
)
def test_a_change_between_a_kill_and_the_next_run(
    filled: Bench, group: str, topic: str, where: str, word: str
) -> None:
    """Resuming refuses a group that was used since the kill, and writes nothing. If Kafka was used,
    so does ``undo``. It takes back what was written there if only ZooKeeper was used, which counts.
    If the run was killed before it wrote, there is nothing to undo."""
    plan, journal = filled.plan([group])
    with pytest.raises(KilledError):
        filled.apply(plan, journal, at(word, kill))
    if where == "zookeeper":
        filled.set_zk(group, topic, {1: 8})
    else:
        filled.set_kafka(group, topic, {1: 8})
    before = filled.znodes(group)
    (result,) = filled.apply(plan, journal)
    assert result.outcome is Outcome.REFUSED
    assert f"{TopicPartition(topic, 1)}: {where} holds 8" in result.why
    assert filled.znodes(group) == before
    (undone,) = filled.rollback(plan, journal)
    written = Outcome.DONE if where == "zookeeper" else Outcome.REFUSED
    claimed = word == "after zookeeper multi"
    assert undone.outcome is (Outcome.NOTHING if claimed else written)
    znodes = filled.znodes(group)
    assert {path: znodes[path] for path in before} == before
