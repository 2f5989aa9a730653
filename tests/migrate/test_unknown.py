"""What cannot be known counts as a problem: no command passes it as fine. No server."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from zkmigrate.apply import guard
from zkmigrate.apply.holding import Event, Holding
from zkmigrate.model import Record, Stage, Store
from zkmigrate.stores import mirror_state, record

from tests.migrate import matrix
from tests.migrate.matrix import DO
from tests.migrate.operators import Killed, World, registers, virtual_time
from tests.migrate.rows import rows_of
from tests.migrate.simulated import SENT, Simulated, simulated
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Create, ZkOp
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.errors import BrokerError, LeaderUnavailableError, ZooKeeperError

__all__ = ["simulated"]
PATHS = GroupPaths("g")
T0 = TopicPartition("t", 0)


def status(one: Simulated) -> tuple[int, dict[str, Any]]:
    """The exit status of ``status``, and the group's row."""
    ran = one.run("status", "--group", "g")
    return ran.status, ran.rows[0]


def test_a_lock_that_an_undo_left_is_shown(simulated: Simulated) -> None:
    """Both stores have the same offsets. Old consumers cannot start, and no move explains it."""
    matrix.untouched(simulated)
    simulated.in_kafka("g", "t", 100, 50)
    simulated.run("plan", "--group", "g", "--out", "plan")
    assert simulated.run("apply", "plan", *DO).status == 0
    assert simulated.run("undo", "plan", *DO).status == 0
    assert status(simulated)[0] == 0
    assert simulated.zk.run(guard.lock("g")) is None  # the undo was killed before it unlocked
    code, row = status(simulated)
    assert (code, row["truth"], row["reasons"]) == (3, "both", ["locked"])
    assert simulated.run("unlock", "--group", "g", *DO).status == 0
    assert status(simulated)[0] == 0


def test_a_lock_that_cannot_be_read_is_shown(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a group that was moved, it may be missing."""
    matrix.moved(simulated)
    denied = [("g", ZooKeeperError("ZooKeeper refused the operation"))]
    monkeypatch.setattr(guard, "look_at_all", lambda _zk, _groups: denied)
    code, row = status(simulated)
    assert (row["case"], row["locked"]) == ("moved", "unknown")
    assert (code, row["reasons"]) == (3, ["unknown"])


def test_a_lag_is_not_that_of_some_partitions(simulated: Simulated) -> None:
    """It would be lower, the more leaders are away. A topic that was deleted has no lag."""
    matrix.untouched(simulated)
    simulated.in_zookeeper("g", "gone", 7)
    assert status(simulated)[1]["zookeeper_lag"] == 1850
    simulated.without_leader.add(T0)
    assert status(simulated)[1]["zookeeper_lag"] is None


@pytest.mark.parametrize("what", ["log_end", "commits_since"])
@pytest.mark.parametrize("error", [LeaderUnavailableError, BrokerError])
def test_a_log_of_commits_that_does_not_answer_is_no_proof(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch, what: str, error: type[BrokerError]
) -> None:
    """The move fails, and may be repeated. If the log may not be read at all, it is not needed."""
    simulated.topic("__consumer_offsets", (0, 0))
    matrix.untouched(simulated)
    simulated.run("plan", "--group", "g", "--out", "plan")

    def fails(*_: object) -> object:
        raise error("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(simulated.kafka, what, fails)
        away = error.retriable
        assert simulated.run("apply", "plan", *DO).status == (1 if away else 0)
    assert simulated.run("apply", "plan", *DO).rows[0]["outcome"] == (
        "done" if away else "was done before"
    )


def test_what_a_killed_undo_has_overwritten_is_restored_after_other_commands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A client commits right before the undo does, the undo is killed, and another operator unlocks
    the group and moves it again."""
    virtual_time(monkeypatch)
    world = World(monkeypatch, tmp_path, "untouched")
    first, second = world.first, world.second
    world.one.in_kafka("g", "t", 40)
    plan = ("plan", "--group", "g", "--on-conflict", "zookeeper", "--out", "p")
    for words in (plan, ("apply", "p", *DO)):
        assert first.run(*words).status == 0

    def at(what: str) -> None:
        if what == SENT:
            world.one.in_kafka("g", "t", 90)
        elif what == "after commit":
            first.kill()

    first.point = at
    with suppress(Killed):
        first.run("undo", "--group", "g", *DO)
    first.point = lambda what: None
    first.zk.expire()
    assert world.one.held("g", "t")[1][0] == 40
    ran = second.run("plan", "--group", "g")
    assert (ran.status, ran.rows[0]["kind"]) == (3, "conflict"), "it is not as it was moved"
    for words in (("unlock", "--group", "g", *DO), plan, ("apply", "p", *DO)):
        ran = second.run(*words)
    assert ran.rows[0]["reasons"] == ["other-writer"], ran
    assert world.one.held("g", "t")[1][0] == 90


def test_a_later_change_that_was_killed_is_not_as_planned(simulated: Simulated) -> None:
    """An undo had begun, and had not changed an offset yet. Its plan must not call it moved."""
    matrix.moved(simulated)
    found = simulated.zk.run(record.read("g"))
    undoing = replace(found, stage=Stage.UNDOING, by_undo=True, command="undo")
    simulated.znode(record.path("g"), record.encode(undoing))
    ran = simulated.run("status", "move")
    assert (ran.status, [row["kind"] for row in ran.rows]) == (3, ["not-moved"])
    ran = simulated.run("apply", "move", *DO)
    assert (ran.status, ran.rows[0]["reasons"]) == (3, ["unfinished"])
    assert simulated.run("undo", "--group", "g", *DO).status == 0


def test_an_old_consumer_that_starts_right_before_the_lock_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The lock keeps others out, but not that one."""
    virtual_time(monkeypatch)
    world = World(monkeypatch, tmp_path, "moved")
    assert world.first.run("unlock", "--group", "g", *DO).status == 0

    def at(what: str) -> None:
        if what == "SetAcl":
            registers(world.second)

    world.first.point = at
    ran = world.first.run("lock", "--group", "g", *DO)
    assert (ran.status, ran.rows[0]["reasons"]) == (3, ["live-member"])
    assert status(world.one)[1]["locked"] == "locked"
    world.second.zk.expire()
    assert world.first.run("lock", "--group", "g", *DO).status == 0


def test_members_that_a_killed_complete_keeps_out_are_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The group is still in mode ``open``, and its members must be able to start again."""
    virtual_time(monkeypatch)
    world = World(monkeypatch, tmp_path, "live_open_alike")
    assert world.status()["reasons"] == []

    def at(what: str) -> None:
        if what == "Multi":
            world.first.kill()

    world.first.point = at
    with suppress(Killed):
        world.first.run("complete", "--group", "g", "--wait", "0", *DO)
    world.first.point = lambda what: None
    world.first.zk.expire()
    row = world.status()
    assert (row["mode"], row["locked"], row["reasons"]) == ("open", "locked", ["locked"])
    assert world.second.run("complete", "--group", "g", "--wait", "0", *DO).status == 0
    assert world.status()["reasons"] == []


def test_a_group_that_was_taken_back_is_not_held(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The undo ends right before ``lock --hold`` registers."""
    virtual_time(monkeypatch)
    world = World(monkeypatch, tmp_path, "moved")
    assert world.first.run("unlock", "--group", "g", *DO).status == 0

    def at(op: ZkOp) -> None:
        if isinstance(op, Create) and op.ephemeral:
            world.first.zk.before = lambda op: None
            assert world.second.run("undo", "--group", "g", *DO).status == 0

    world.first.zk.before = at
    holding = Holding(world.first.zk, ["g"])
    assert [event for _, event, _ in holding.take()] == [Event.OTHER]
    assert not holding.held
    assert not world.one.zk.zk.children(PATHS.ids)


def test_a_reset_names_the_znodes_that_prevent_it(simulated: Simulated) -> None:
    """They are owners that no member has registered."""
    matrix.untouched(simulated)
    simulated.znode(PATHS.owner(T0), b"g_dead-0")
    ran = simulated.run("reset", "--group", "g", "--all-topics", "--to-earliest", "--execute")
    assert ran.status == 3
    assert "delete /consumers/g/owners when" in ran.rows[0]["why"]


@pytest.mark.parametrize("since", [-(10**30), float("inf"), "1"])
def test_a_mirror_with_an_impossible_time_is_unreadable(
    simulated: Simulated, since: object
) -> None:
    """It does not end the command for the other groups."""
    matrix.untouched(simulated)
    leads = Record(id="x", by="a@b", mirror=Store.ZOOKEEPER.value)
    simulated.znode(record.path("g"), record.encode(leads))
    made = {"version": 1, "leader": "zookeeper", "since_ms": since, "offsets": {}, "topics": {}}
    simulated.znode(mirror_state.path("g"), json.dumps({**made, "stopped": None}).encode())
    code, row = status(simulated)
    assert (code, row["case"]) == (1, "unreadable")


@pytest.mark.parametrize("data", [b"x", b"[]", b"[" * 100_000])
def test_what_another_program_wrote_over_the_earlier_state_is_named(
    simulated: Simulated, data: bytes
) -> None:
    """The next change would keep it. It does not end the command for the other groups."""
    matrix.used(simulated)
    simulated.znode(record.before_path("g"), data)
    ran = simulated.run("undo", "--group", "g", *DO)
    assert ran.status == 1
    assert "/consumers/g/record/before" in ran.rows[0]["why"]
    assert simulated.held("g", "t")[0] == {0: 100, 1: 50}


def test_the_report_has_no_time_where_nothing_was_done(simulated: Simulated) -> None:
    """JSON has null there, and times as the other documents have them."""
    matrix.untouched(simulated)
    simulated.run("plan", "--group", "g", "--out", "plan")
    for ended in (None, "Z"):
        said = simulated.run("report", "plan", "--json", servers=False).err
        (row,) = rows_of(said[said.index('{"schema"') :])
        assert row["ended"] == ended or row["ended"][-1] == ended
        simulated.run("apply", "plan", *DO)
