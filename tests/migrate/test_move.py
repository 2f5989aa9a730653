"""Moves on real servers: to Kafka, back, twice, rolled back, and refused while the group has
members."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
from zkmigrate.apply.migrator import Migrator
from zkmigrate.apply.outcome import Outcome
from zkmigrate.apply.parallel import Run
from zkmigrate.model import Direction, GroupState
from zkmigrate.plan.options import Options, Skip
from zkmigrate.plan.values import Verdict
from zkmigrate.reasons import Reason
from zkmigrate.stores.group_states import read_offsets

from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.cli.main import run as run_tools
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.servers import wait_until

if TYPE_CHECKING:
    from conftest import Bench  # type: ignore[import-not-found]


def test_there_undone_and_there_and_back(any_bench: Bench, group: str, topic: str) -> None:
    """On every broker line a move writes the planned offsets, and a rollback restores both stores.
    A move back without changes writes nothing."""
    any_bench.topic(topic, 4)
    any_bench.set_zk(group, topic, {0: 0, 1: 7, 3: -1})
    before = any_bench.znodes(group)
    plan, journal = any_bench.plan([group])
    assert plan.groups[0].verdict is Verdict.READY, plan.groups[0].problems
    assert [result.outcome for result in any_bench.apply(plan, journal)] == [Outcome.DONE]
    moved = {TopicPartition(topic, 0): StoredOffset(0), TopicPartition(topic, 1): StoredOffset(7)}
    assert any_bench.committed(group, {topic: 4}) == moved
    after = any_bench.znodes(group)
    marker = after.pop(f"/consumers/{group}/migration")
    assert json.loads(marker)["moved_to"] == "kafka"
    assert after == before
    assert [result.outcome for result in any_bench.apply(plan, journal)] == [Outcome.WAS_DONE]

    assert [result.outcome for result in any_bench.rollback(plan, journal)] == [Outcome.DONE]
    assert any_bench.committed(group, {topic: 4}) == {}
    assert any_bench.znodes(group) == before
    (refused,) = any_bench.apply(plan, journal)
    assert "was rolled back" in refused.why

    again, second = any_bench.plan([group])
    assert any_bench.apply(again, second)[0].outcome is Outcome.DONE
    back, third = any_bench.plan([group], Direction.KAFKA_TO_ZK)
    assert not any(entry.write for entry in back.groups[0].entries)
    assert any_bench.apply(back, third)[0].outcome is Outcome.DONE
    assert any_bench.znodes(group) | {f"/consumers/{group}/migration": b""} == before | {
        f"/consumers/{group}/migration": b""
    }


def test_kafka_to_zk_and_undone(any_bench: Bench, group: str, topic: str) -> None:
    """On every broker line offsets in Kafka are written to ZooKeeper. This includes lower ones
    after a rewind, if a migration marker explains them. The rollback restores ZooKeeper's old
    offsets and deletes the new ones."""
    any_bench.topic(topic, 3)
    any_bench.set_zk(group, topic, {0: 9, 1: 9})
    plan, journal = any_bench.plan([group])
    assert any_bench.apply(plan, journal)[0].outcome is Outcome.DONE
    any_bench.set_kafka(group, topic, {0: 2, 1: 11, 2: 4})
    between = any_bench.znodes(group)
    back, second = any_bench.plan([group], Direction.KAFKA_TO_ZK)
    assert back.groups[0].verdict is Verdict.READY, back.groups[0].problems
    assert any_bench.apply(back, second)[0].outcome is Outcome.DONE
    offsets = f"/consumers/{group}/offsets/{topic}"
    now = any_bench.znodes(group)
    assert [now[f"{offsets}/{p}"] for p in range(3)] == [b"2", b"11", b"4"]
    assert any_bench.rollback(back, second)[0].outcome is Outcome.DONE
    assert any_bench.znodes(group) == between


def test_metadata_and_leader_epoch_come_back(bench: Bench, group: str, topic: str) -> None:
    """A rollback restores a Kafka offset with its metadata and leader epoch."""
    bench.topic(topic, 1)
    bench.set_zk(group, topic, {0: 3})
    bench.set_kafka(group, topic, {0: StoredOffset(5, 0, "note é")})
    plan, journal = bench.plan([group], options=Options("zookeeper"))
    assert bench.apply(plan, journal)[0].outcome is Outcome.DONE
    tp = TopicPartition(topic, 0)
    assert bench.committed(group, {topic: 1}) == {tp: StoredOffset(3)}
    assert bench.rollback(plan, journal)[0].outcome is Outcome.DONE
    assert bench.committed(group, {topic: 1}) == {tp: StoredOffset(5, 0, "note é")}


def test_a_moved_group_is_known_to_the_tools(
    bench: Bench, group: str, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The migration marker is not an unknown znode: ``zkconsumer groups verify`` finds nothing."""
    bench.topic(topic, 1)
    bench.set_zk(group, topic, {0: 3})
    plan, journal = bench.plan([group])
    assert bench.apply(plan, journal)[0].outcome is Outcome.DONE
    words = ["groups", "verify", group, "--zookeeper", bench.cluster.zookeeper]
    assert run_tools(words) == 0
    assert "errors: 0" in capsys.readouterr().err


@pytest.mark.parametrize("way", list(Direction))
def test_a_forced_rollback_goes_past_both_stores(
    bench: Bench, group: str, topic: str, way: Direction
) -> None:
    """A forced rollback restores the store that the move wrote, even if the other store has
    changed. It does not change the other store."""
    source, target = bench.set_zk, bench.set_kafka
    if way is Direction.KAFKA_TO_ZK:
        source, target = target, source
    bench.topic(topic, 2)
    source(group, topic, {0: 3, 1: 4})
    target(group, topic, {1: 4})
    plan, journal = bench.plan([group], way)
    assert bench.apply(plan, journal)[0].outcome is Outcome.DONE
    source(group, topic, {0: 5})
    (refused,) = bench.rollback(plan, journal)
    assert f"{topic}-0: {way.source.value} holds 5" in refused.why
    (result,) = bench.rollback(plan, journal, force=True)
    assert result.outcome is Outcome.DONE, result.why
    with bench.stores() as stores:
        ((_, state),) = read_offsets(stores, plan.groups)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    assert isinstance(state, GroupState)
    assert state.offsets(way.source) == {first: 5, second: 4}
    assert state.offsets(way.target) == {second: 4}


def test_a_rollback_of_a_mere_claim(bench: Bench, group: str, topic: str) -> None:
    """A group that an apply claimed but did not write has nothing to undo, even if its offsets have
    changed since. Nothing is changed."""
    bench.topic(topic, 1)
    bench.set_zk(group, topic, {0: 3})
    plan, journal = bench.plan([group])

    def register(what: str) -> None:
        if what == "after journal claim":
            bench.client.create(f"/consumers/{group}/ids/late", b"{}", makepath=True)

    assert bench.apply(plan, journal, register)[0].outcome is Outcome.REFUSED
    bench.client.delete(f"/consumers/{group}/ids/late")
    bench.set_zk(group, topic, {0: 5})
    bench.set_kafka(group, topic, {0: 9})
    before = bench.znodes(group), journal.read_bytes()
    with bench.stores() as stores:
        (dry,) = Migrator(stores).rollback(plan, Run(None), lambda _result: None)
    assert dry.outcome is Outcome.NOTHING
    assert (bench.znodes(group), journal.read_bytes()) == before
    (result,) = bench.rollback(plan, journal)
    assert (result.outcome, result.why) == (Outcome.NOTHING, "was not begun")
    assert bench.znodes(group) == before[0]
    assert bench.committed(group, {topic: 1}) == {TopicPartition(topic, 0): StoredOffset(9)}
    assert "it has changed since" in bench.apply(plan, journal)[0].why


def test_what_is_left_out_may_be_unreadable(bench: Bench, group: str, topic: str) -> None:
    """An unreadable offset of a skipped topic does not fail the move, the second apply, or the move
    back."""
    bench.topic(topic, 1)
    bench.topic(f"{topic}-bad", 1)
    bench.set_zk(group, topic, {0: 3})
    bench.set_zk(group, f"{topic}-bad", {0: b"x"})
    options = Options(skips=(Skip(group, f"{topic}-bad"),), max_idle_days=10**6)
    plan, journal = bench.plan([group], options=options)
    assert bench.apply(plan, journal)[0].outcome is Outcome.DONE
    bench.set_zk(group, f"{topic}-bad", {0: b"y"})
    assert bench.apply(plan, journal)[0].outcome is Outcome.WAS_DONE
    back, second = bench.plan([group], Direction.KAFKA_TO_ZK, options)
    assert bench.apply(back, second)[0].outcome is Outcome.DONE


def test_a_new_partition_is_seen(any_bench: Bench, group: str, topic: str) -> None:
    """On every broker line, an offset for a partition that is newer than the plan stops the group.
    This also holds if the broker returns offsets only for the partitions in the request."""
    any_bench.topic(topic, 1)
    any_bench.set_zk(group, topic, {0: 3})
    any_bench.set_kafka(group, topic, {0: 3})
    plan, journal = any_bench.plan([group], Direction.KAFKA_TO_ZK)
    any_bench.cluster.add_partitions(topic, 2)
    any_bench.set_kafka(group, topic, {1: 7})
    (refused,) = any_bench.apply(plan, journal)
    assert refused.outcome is Outcome.REFUSED
    assert f"{topic}-1: kafka holds 7, which is not in the plan" in refused.why


def test_newest_takes_what_was_written_last(any_bench: Bench, group: str, topic: str) -> None:
    """On every broker line the times of both stores are found, and the later write wins."""
    any_bench.topic(topic, 2)
    any_bench.set_zk(group, topic, {0: 3})
    any_bench.set_kafka(group, topic, {1: 9})
    moment = time.time()  # the servers' clocks have milliseconds
    wait_until(lambda: time.time() > moment + 0.005, 5, "the clock advances")
    any_bench.set_kafka(group, topic, {0: 5})
    any_bench.set_zk(group, topic, {1: 4})
    options = Options("newest", max_idle_days=10**6)
    plan, _ = any_bench.plan([group], options=options)
    assert plan.groups[0].verdict is Verdict.READY, plan.groups[0].problems
    assert [(entry.to, entry.write) for entry in plan.groups[0].entries] == [(5, False), (4, True)]


@pytest.mark.parametrize("way", list(Direction))
def test_newest_does_not_follow_the_migrator(
    bench: Bench, group: str, topic: str, way: Direction
) -> None:
    """The migrator's writes are not commits. After a move that was killed after it had claimed the
    group, the newest offset is the same as before. A rollback sets new times, so ``newest`` is
    refused by name until a consumer commits."""
    bench.topic(topic, 1)
    to_kafka = way is Direction.ZK_TO_KAFKA
    old, new = (bench.set_zk, bench.set_kafka) if to_kafka else (bench.set_kafka, bench.set_zk)
    old(group, topic, {0: 3})
    moment = time.time()
    wait_until(lambda: time.time() > moment + 0.005, 5, "the clock advances")
    new(group, topic, {0: 9})
    newest = Options("newest", max_idle_days=10**6)

    def planned() -> tuple[int | None, bool]:
        plan, journal = bench.plan([group], way, newest)
        assert plan.groups[0].verdict is Verdict.READY, plan.groups[0].problems

        def kill(what: str) -> None:
            if what.startswith("after zookeeper multi"):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            bench.apply(plan, journal, kill)
        (entry,) = plan.groups[0].entries
        return entry.to, entry.write

    assert planned() == (9, False)
    assert planned() == (9, False)
    rule = "zookeeper" if to_kafka else "kafka"
    plan, journal = bench.plan([group], way, Options(rule, max_idle_days=10**6))
    assert bench.apply(plan, journal)[0].outcome is Outcome.DONE
    assert bench.rollback(plan, journal)[0].outcome is Outcome.DONE
    for direction in Direction:
        plan, _ = bench.plan([group], direction, newest)
        (problem,) = plan.groups[0].problems
        assert problem.kind is Reason.CONFLICT
        assert "a rollback restored offsets" in problem.what
