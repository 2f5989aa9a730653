"""Offsets below ``offset``, where a 1.1.0 broker stores those of simple consumers, belong to the
group like the others. On a simulated cluster.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from tests.migrate.simulated import Simulated, simulated
from zkconsumer.core.zookeeper.ops import Create, Delete, Multi, ZkOp

__all__ = ["simulated"]
DO = ("--execute", "--parallel", "1")
BELOW = "/consumers/g/offset/t"


@pytest.fixture(params=[(None, 50), (100, 50), (100, 900)], ids=["alone", "lower", "higher"])
def group(simulated: Simulated, request: pytest.FixtureRequest) -> Simulated:
    """A group with an offset below ``offset``, and perhaps another one below ``offsets``."""
    simulated.topic("t", (0, 1000), (0, 1000))
    simulated.zk.set("/consumers/g/offsets")
    simulated.in_zookeeper("g", "t", *request.param[:1])
    simulated.in_zookeeper("g", "t", request.param[1], where="offset")
    return simulated


def plan(simulated: Simulated, name: str, *words: str) -> str:
    """Plan all groups, with the offsets below ``offset``."""
    file = simulated.file(name)
    made = simulated.run("plan", "--all", "--misplaced", "use", "--out", file, *words)
    assert made.rows[0]["verdict"] in ("ready", "moved"), made
    return file


def stored(simulated: Simulated) -> int:
    """The offset below ``offset`` of partition 0."""
    return int(simulated.zk.text(f"{BELOW}/0") or b"-1")


def test_nothing_is_left_after_a_move(group: Simulated) -> None:
    """The marker records both places, and no command finds a difference."""
    file = plan(group, "plan")
    assert group.run("apply", file, *DO).status == 0
    assert group.held("g", "t")[1] == {0: stored(group)}
    marker = json.loads(group.zk.text("/consumers/g/migration") or b"")
    assert marker["misplaced"] == {"t": {"0": stored(group)}}
    assert group.run("apply", file, *DO).rows[0]["outcome"] == "was done before"
    assert group.run("status", file, "--strict").status == 0
    assert group.run("status", "--all").status == 0
    assert group.run("gate", "--all").status == 0
    again = group.run("plan", "--all")  # without a decision
    assert [(row["verdict"], row["kind"]) for row in again.rows] == [("moved", "")], again
    assert group.run("undo", file, *DO).status == 0
    assert group.held("g", "t")[1] == {}
    assert group.run("gate", "--all").status == 3


@pytest.mark.parametrize("partition", [0, 1], ids=["newer", "first"])
@pytest.mark.parametrize("at_apply", [False, True])
def test_a_commit_after_the_plan_is_noticed(
    group: Simulated, partition: int, at_apply: bool
) -> None:
    """Apply refuses, and the group keeps its offsets. A plan at apply takes it, if the preview had
    the same question."""
    file = plan(group, "plan", *(("--at-apply",) if at_apply else ()))
    group.zk.set(f"{BELOW}/{partition}", b"80")
    done = group.run("apply", file, *DO)
    if at_apply:
        assert done.status == 0, done
        assert group.held("g", "t")[1][partition] == 80
    else:
        assert (done.status, done.rows[0]["outcome"]) == (3, "refused")
        assert f"t-{partition}: zookeeper has 80 below 'offset'" in done.rows[0]["why"]
        assert group.held("g", "t")[1] == {}
        assert group.run("status", file).status == 3


def registers(op: ZkOp) -> bool:
    """The migrator registers."""
    return isinstance(op, Create) and op.ephemeral


def claims(op: ZkOp) -> bool:
    """It claims partitions."""
    return isinstance(op, Multi) and any(
        isinstance(one, Create) and one.ephemeral for one in op.ops
    )


def marks(op: ZkOp) -> bool:
    """It writes the marker."""
    return isinstance(op, Multi) and getattr(op.ops[-1], "path", "").endswith("/migration")


def releases(op: ZkOp) -> bool:
    """It gives its registration back."""
    return isinstance(op, Delete) and "_zkmigrate-" in op.path


@pytest.mark.parametrize("moment", [registers, claims, marks, releases])
@pytest.mark.parametrize("partition", [0, 1], ids=["newer", "first"])
@pytest.mark.parametrize("at_apply", [False, True])
def test_a_commit_during_the_move_is_noticed(
    group: Simulated, moment: Callable[[ZkOp], bool], partition: int, at_apply: bool
) -> None:
    """At whatever moment it arrives, the group is not reported as moved, now or later."""
    file = plan(group, "plan", *(("--at-apply",) if at_apply else ()))
    done: list[ZkOp] = []

    def before(op: ZkOp) -> None:
        if not done and moment(op):
            done.append(op)
            group.zk.set(f"{BELOW}/{partition}", b"81")

    group.zk.before = before
    for _ in range(1 if moment in (registers, claims) else 2):
        found = group.run("apply", file, *DO)
        assert done
        assert (found.status, found.rows[0]["outcome"]) == (3, "refused"), found
        text = rf"t-{partition}: zookeeper (has|holds) 81\b.* below '?offset"
        assert re.search(text, found.rows[0]["why"])


def test_a_commit_after_the_move_is_noticed(group: Simulated) -> None:
    """By each command that looks for late commits. A new plan needs a decision about it."""
    file = plan(group, "plan")
    assert group.run("apply", file, *DO).status == 0
    group.zk.set(f"{BELOW}/0", b"82")
    again = group.run("apply", file, *DO)
    assert again.status == 3
    assert "t-0: zookeeper holds 82" in again.rows[0]["why"]
    found = group.run("status", file)
    assert found.status == 3
    assert [(row["kind"], row["found"]) for row in found.rows] == [("source-moved-on", 82)]
    (row,) = group.run("status", "--all").rows
    assert row["changed"] == 1
    assert group.run("status", "--all").status == 3
    behind = group.held("g", "t")[1][0] < 82
    assert group.run("gate", "--all").status == (3 if behind else 0)
    assert [one["kind"] for one in group.run("plan", "--all").rows] == ["misplaced-offsets"]
    more = group.run("plan", "--all", "--misplaced", "use")
    assert [one["kind"] for one in more.rows] == ["conflict"]
    repair = plan(group, "repair", "--on-conflict", "max")
    assert group.run("apply", repair, *DO).status == 0
    assert group.run("status", repair).status == 0
    assert group.run("status", "--all").status == 0


def test_an_offset_that_is_ignored_or_deleted_is_no_difference(group: Simulated) -> None:
    """The decision counts until the offset changes."""
    file = plan(group, "plan", "--misplaced", "ignore")
    assert group.run("apply", file, *DO).status == 0
    assert group.run("status", file).status == 0
    assert group.run("status", "--all").status == 0
    assert group.run("gate", "--all").status == 0
    group.zk.set(f"{BELOW}/0", b"83")
    assert group.run("status", "--all").status == 3
    group.zk.delete(f"{BELOW}/0")
    assert group.run("status", file).status == 0
    assert group.run("status", "--all").status == 0
    assert group.run("apply", file, *DO).status == 0


def test_an_expired_offset_that_was_only_there(simulated: Simulated) -> None:
    """It was moved, so its loss in Kafka needs a decision."""
    simulated.topic("t", (0, 1000))
    simulated.in_zookeeper("g", "t", 50, where="offset")
    assert simulated.run("apply", plan(simulated, "plan"), *DO).status == 0
    simulated.kafka.committed.clear()
    assert simulated.run("status", "--all").status == 3
    made = simulated.run("plan", "--all", "--misplaced", "use")
    assert [row["kind"] for row in made.rows] == ["expired"]
    again = plan(simulated, "again", "--expired-offsets", "moved")
    assert simulated.run("apply", again, *DO).status == 0
    assert simulated.held("g", "t")[1] == {0: 50}
