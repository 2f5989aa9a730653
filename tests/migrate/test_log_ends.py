"""An offset and the end of its log are compared as of one moment. On a simulated cluster."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from zkmigrate.formats import plan_file
from zkmigrate.reasons import Reason
from zkmigrate.stores import logs as logs_module

from tests.migrate.simulated import Simulated, simulated
from zkconsumer.admin import snapshot
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Multi, ZkOp

__all__ = ["simulated"]
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture(autouse=True)
def one_group_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups are read one after the other, as those of a large estate are in batches."""
    monkeypatch.setattr(snapshot, "_BATCH", 1)


def grow(simulated: Simulated, group: str, ends: Mapping[TopicPartition, int]) -> None:
    """Right before a group's offsets are read, its logs grow and its member commits the ends."""
    done: list[ZkOp] = []

    def before(op: ZkOp) -> None:
        if not done and f"/consumers/{group}/offsets" in str(op):
            done.append(op)
            for tp, end in ends.items():
                simulated.ends[tp] = (0, end)
                path = f"/consumers/{group}/offsets/{tp.topic}/{tp.partition}"
                simulated.zk.set(path, b"%d" % end)

    simulated.zk.before = before


@pytest.mark.parametrize("rule", ["refuse", "clamp"])
def test_a_group_that_reads_up_to_the_end_is_ready(simulated: Simulated, rule: str) -> None:
    """The log grows after it was read for the first group, and the second group commits its new
    end. Only the ends that the offset is above are read again."""
    simulated.topic("t", (0, 100), (0, 100))
    for group in "abc":
        simulated.in_zookeeper(group, "t", 100, 100)
    grow(simulated, "b", {T0: 150})
    file = simulated.file("plan")
    made = simulated.run("plan", "--all", "--out-of-range", rule, "--out", file)
    assert [row["verdict"] for row in made.rows] == ["ready"] * 3, made
    assert simulated.asked == [T0, T1, T0]
    (b,) = [group for group in plan_file.load(file).groups if group.group == "b"]
    assert [(entry.to, entry.decided) for entry in b.entries] == [
        (150, frozenset()),
        (100, frozenset()),
    ]


def test_topics_and_partitions_that_are_new_are_not_missing(simulated: Simulated) -> None:
    """A topic is created, and another gets a partition, after both were looked up."""
    simulated.topic("t", (0, 100))
    simulated.in_zookeeper("a", "t", 100)
    simulated.in_zookeeper("a", "new", 5)
    simulated.in_zookeeper("b", "t", 100, 7)
    simulated.in_zookeeper("b", "new", 5)

    def before(op: ZkOp) -> None:
        if "/consumers/b/offsets" in str(op):
            simulated.zk.before = lambda op: None
            simulated.topic("t", (0, 100), (0, 100))
            simulated.topic("new", (0, 100))

    simulated.zk.before = before
    made = simulated.run("plan", "--all", "--recreated-topics", "earliest")
    assert [(row["group"], row["kind"]) for row in made.rows] == [("a", "topic-missing"), ("b", "")]


def test_an_end_that_cannot_be_read_again_is_not_known(simulated: Simulated) -> None:
    """The old end is not used instead: nothing is clamped to it."""
    simulated.topic("t", (0, 100), (0, 100))
    simulated.in_zookeeper("a", "t", 100, 100)
    simulated.in_zookeeper("b", "t", 100, 100)
    grow(simulated, "b", {T0: 150})
    simulated.without_leader = {T0}
    made = simulated.run("plan", "--group", "b", "--out-of-range", "clamp")
    assert [(row["kind"], row["what"]) for row in made.rows] == [
        ("unknown", "the brokers returned no log range: t-0")
    ]


@pytest.mark.parametrize("rule", ["refuse", "clamp"])
def test_twenty_groups_that_stop_at_the_end_are_moved_exactly(
    simulated: Simulated, rule: str
) -> None:
    """Each group commits the log's end, which has grown since the log was read for the group
    before, right before it is moved. The offsets are planned then."""
    simulated.topic("t", (0, 100), (0, 100))
    groups = [f"g{number:02}" for number in range(20)]
    for group in groups:
        simulated.in_zookeeper(group, "t", 100, 100)
    file = simulated.file("plan")
    assert not simulated.run(
        "plan", "--all", "--at-apply", "--out-of-range", rule, "--out", file
    ).status
    left = list(enumerate(groups))

    def before(op: ZkOp) -> None:
        if left and f"/consumers/{left[0][1]}/offsets" in str(op):
            number, group = left.pop(0)
            simulated.ends |= {T0: (0, 200 + number), T1: (0, 300 + number)}
            simulated.in_zookeeper(group, "t", 200 + number)
            simulated.in_zookeeper(group, "t", None, 300 + number)

    simulated.zk.before = before
    done = simulated.run("apply", file, "--execute", "--parallel", "1")
    assert {row["outcome"] for row in done.rows} == {"done"}, done
    for number, group in enumerate(groups):
        assert simulated.held(group, "t")[1] == {0: 200 + number, 1: 300 + number}


def test_a_clamp_counts_only_where_the_preview_showed_it(simulated: Simulated) -> None:
    """An offset that is outside of its log only when the plan is applied was not reviewed."""
    simulated.topic("t", (0, 100), (0, 100))
    simulated.in_zookeeper("g", "t", 200, 100)
    file = simulated.file("plan")
    words = ("--at-apply", "--out-of-range", "clamp")
    made = simulated.run("plan", "--all", *words, "--out", file)
    assert made.status == 0, made
    (group,) = plan_file.load(file).groups
    decided = {entry.tp: entry.decided for entry in group.entries}
    assert decided == {T0: {Reason.OUT_OF_RANGE}, T1: frozenset()}
    simulated.in_zookeeper("g", "t", 200, 101)
    (row,) = simulated.run("apply", file, "--execute", "--parallel", "1").rows
    assert row["outcome"] == "refused"
    assert "t-1 (" in row["why"], row
    assert "t-0" not in row["why"]
    assert simulated.held("g", "t")[1] == {}
    simulated.in_zookeeper("g", "t", 200, 100)
    (row,) = simulated.run("apply", file, "--execute", "--parallel", "1").rows
    assert row["outcome"] == "done"
    assert simulated.held("g", "t")[1] == {0: 100, 1: 100}


def test_a_log_is_read_again_after_the_claim(simulated: Simulated) -> None:
    """A log that is cut below the offset between the check and the claim stops the move."""
    simulated.topic("t", (0, 100), (0, 100))
    simulated.in_zookeeper("g", "t", 7, 9)
    file = simulated.file("plan")
    assert simulated.run("plan", "--all", "--out", file).status == 0

    def before(op: ZkOp) -> None:
        if isinstance(op, Multi) and "owners" in str(op):
            simulated.ends[T1] = (50, 100)

    simulated.zk.before = before
    (row,) = simulated.run("apply", file, "--execute", "--parallel", "1").rows
    assert row["outcome"] == "refused"
    assert "t-1: the log is 50-100 now, which does not include 9" in row["why"]
    assert simulated.held("g", "t")[1] == {}


@pytest.mark.parametrize(
    ("words", "after"),
    [
        (("--to-current",), {"a": 100, "b": 150}),
        (("--shift-by", "0"), {"a": 100, "b": 150}),
        (("--to-latest",), {"a": 100, "b": 150}),
        (("--to-offset", "150"), {"a": 100, "b": 150}),
    ],
)
def test_a_reset_of_several_groups_knows_the_end_of_now(
    simulated: Simulated, words: tuple[str, ...], after: Mapping[str, int]
) -> None:
    """The log grows between two groups. The second one is not set back to the old end."""
    simulated.topic("t", (0, 100))
    simulated.in_zookeeper("a", "t", 100)
    simulated.in_zookeeper("b", "t", 100)
    grow(simulated, "b", {T0: 150})
    done = simulated.run("reset", "--all", "--all-topics", *words, "--execute")
    assert {row["group"]: row["after"] for row in done.rows} == after, done
    for group, offset in after.items():
        assert simulated.held(group, "t")[0] == {0: offset}


def test_status_never_hides_a_negative_lag(simulated: Simulated) -> None:
    """A group that commits a new end has no lag. An offset above the end of now is named."""
    simulated.topic("t", (0, 100), (0, 100))
    for group in "abc":
        simulated.in_zookeeper(group, "t", 100, 100)
    simulated.in_zookeeper("c", "t", None, 120)
    grow(simulated, "b", {T0: 150})
    found = {row["group"]: row for row in simulated.run("status", "--all").rows}
    assert {name: row["attention"] for name, row in found.items()} == {
        "a": "",
        "b": "",
        "c": "offsets are above the end of the log, so auto.offset.reset decides: reset them (t-1)",
    }


def test_ends_are_remembered_for_some_seconds_only(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock decides, and not the number of groups that were read."""
    now = [1000.0]
    monkeypatch.setattr(logs_module.time, "monotonic", lambda: now[0])
    simulated.topic("t", (0, 100))
    with simulated.stores() as stores:
        assert stores.logs.of(["t"])[1][T0].latest == 100
        simulated.ends[T0] = (0, 101)
        now[0] += logs_module._FRESH
        assert stores.logs.of(["t"])[1][T0].latest == 100
        now[0] += 0.001
        assert stores.logs.of(["t"])[1][T0].latest == 101
        simulated.ends[T0] = (0, 102)
        assert stores.logs.fresh([T0])[T0].latest == 102
        assert stores.logs.of(["t"])[1][T0].latest == 102


def test_a_comparison_with_a_plan_reads_no_log(simulated: Simulated) -> None:
    """A partition without an offset and groups that are not moved yet need none, and in an estate
    there are thousands of them."""
    simulated.topic("t", (0, 100), (0, 100))
    simulated.in_zookeeper("g", "t", 5)
    assert simulated.run("plan", "--all", "--out", "plan").status == 0
    for status, words in ((3, ()), (0, ("apply", "plan", "--execute"))):
        if words:
            assert simulated.run(*words).status == 0
        simulated.asked.clear()
        assert simulated.run("status", "plan").status == status
        assert simulated.asked == []
