"""Mirrored groups on a simulated cluster: whole commands, killed or overtaken at any point.

What may be lost is what the leading store had: after each fault, and one more pass of a mirror on
another machine, the store that follows has it, and the store that leads was not changed.
"""

from __future__ import annotations

import gc
import io
import json
import os
import subprocess
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
from zkmigrate.apply import guard, resetting
from zkmigrate.apply.permission import MIRROR_PERMITTED_S
from zkmigrate.cli import run
from zkmigrate.errors import GroupInUseError
from zkmigrate.mirror import mirroring, writes
from zkmigrate.model import Mirror, Store
from zkmigrate.plan.mirror import mark
from zkmigrate.reasons import Reason
from zkmigrate.stores import mirror_state, record, sessions

from tests.migrate import matrix
from tests.migrate.operators import CLOCK, Machine, World, joins, registers, virtual_time
from tests.migrate.simulated import SENT, Ran, Simulated, SimulatedCoordinators, simulated
from zkconsumer.broker.groups.coordinator_calls import Answered, StoredOffset
from zkconsumer.console import repeating
from zkconsumer.console.signals import SignalledError
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import (
    AclEntry,
    Check,
    Code,
    Create,
    Delete,
    Failed,
    GetMany,
    Multi,
    Node,
    Ok,
    Reply,
    SetAcl,
    SetData,
    Stat,
    ZkOp,
)
from zkconsumer.core.zookeeper.scripts.common import PACKET_BYTES, Script
from zkconsumer.errors import BrokerError, ZkUnavailableError, ZooKeeperError

__all__ = ["simulated"]  # the fixture

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
ONCE: Final = ("mirror", "--group", "g", "--execute", "--once")
CUT_OVER: Final = ("cut-over", "--group", "g", "--execute", "--wait", "0")
UNDO: Final = ("undo", "--group", "g", "--execute", "--wait", "0")
COMPLETE: Final = ("complete", "--group", "g", "--execute", "--wait", "0")
END: Final = ("mirror", "--group", "g", "--execute", "--end")
PREPARE: Final = ("live", "prepare", "--group", "g", "--execute", "--wait", "0")


def row(one: Simulated, *words: str, status: int = 0) -> dict[str, Any]:
    """Run a command and return the group's row."""
    ran = one.run(*words)
    assert ran.status == status, ran
    return ran.rows[0]


def not_enforced(*_: object) -> Script[str]:
    """``guard.lock`` on a server that does not enforce access lists."""
    yield from ()
    return guard.NOT_ENFORCED


def two_groups(one: Simulated) -> None:
    """Groups ``g`` and ``h`` with offsets in ZooKeeper."""
    matrix.untouched(one)
    one.znode("/consumers/h/ids")
    one.in_zookeeper("h", "t", 7)


def two_in_kafka(simulated: Simulated, monkeypatch: pytest.MonkeyPatch) -> mirroring.Mirroring:
    """Return a new mirror of ``g`` and ``h``, in which Kafka leads."""
    virtual_time(monkeypatch)
    two_groups(simulated)
    matrix.good(simulated.run("mirror", "--all", "--execute", "--once"))
    matrix.good(simulated.run("cut-over", "--all", "--execute", "--wait", "0"))
    return mirroring.Mirroring(simulated.stores())


def held(one: Simulated) -> tuple[list[int], list[int]]:
    """The offsets in both stores."""
    zk, kafka = one.held("g", "t")
    return [zk[at] for at in sorted(zk)], [kafka[at] for at in sorted(kafka)]


def test_there_and_back_and_there(simulated: Simulated) -> None:
    """A group is mirrored, cut over, taken back while its new consumers have committed, cut over
    again and completed. It then counts as moved."""
    matrix.untouched(simulated)
    assert row(simulated, *ONCE)["state"] == "in step"
    assert held(simulated) == ([100, 50], [100, 50])
    simulated.in_zookeeper("g", "t", 120)
    row(simulated, *ONCE)
    assert held(simulated) == ([120, 50], [120, 50])
    simulated.in_zookeeper("g", "t", 130)
    assert row(simulated, *CUT_OVER)["why"] == mirroring.START
    assert held(simulated) == ([130, 50], [130, 50])
    simulated.in_kafka("g", "t", 400, 300)
    row(simulated, *ONCE)
    assert held(simulated) == ([400, 300], [400, 300])
    simulated.in_kafka("g", "t", 500)
    assert row(simulated, *UNDO)["way"] == "mirror back"
    assert held(simulated) == ([500, 300], [500, 300])
    assert row(simulated, "status", "--group", "g", status=3)["locked"] == "no"
    simulated.in_zookeeper("g", "t", 600)
    row(simulated, *CUT_OVER)
    simulated.in_kafka("g", "t", 700)
    assert row(simulated, *COMPLETE)["outcome"] == "done"
    assert held(simulated) == ([700, 300], [700, 300])
    found = row(simulated, "status", "--group", "g")
    assert (found["case"], found["locked"], found["mirror"]) == ("moved", "locked", "")
    assert row(simulated, "gate", "--group", "g")["left"] is False


def test_end_leaves_the_group_as_it_was(simulated: Simulated) -> None:
    """Kafka has no offset of it any more, and it counts as untouched."""
    matrix.untouched(simulated)
    row(simulated, *ONCE)
    assert row(simulated, *END)["state"] == "not mirrored"
    assert held(simulated) == ([100, 50], [])
    assert row(simulated, "status", "--group", "g")["case"] == "untouched"
    assert "mirror" not in simulated.zk.zk.children(record.path("g"))


def test_an_end_is_refused_while_kafka_leads(simulated: Simulated) -> None:
    """Otherwise the old program would start at older offsets."""
    matrix.mirror_kafka_leads(simulated)
    before = held(simulated)
    found = row(simulated, *END, status=3)
    assert (found["state"], found["reasons"]) == ("refused", ["mirrored"])
    assert held(simulated) == before


def test_a_stopped_group_begins_again_with_the_store_that_is_chosen(simulated: Simulated) -> None:
    """Its row names both values before."""
    matrix.mirror_zookeeper_leads(simulated)
    row(simulated, *ONCE)
    simulated.in_zookeeper("g", "t", 120)
    simulated.in_kafka("g", "t", 500)
    row(simulated, *ONCE, status=3)
    why = row(simulated, *ONCE, status=3)["why"]
    assert "500" in why
    assert "120" in why
    assert held(simulated) == ([120, 60], [500, 60])
    assert row(simulated, *ONCE, "--lead", "zookeeper")["state"] == "in step"
    assert held(simulated) == ([120, 60], [120, 60])
    simulated.in_kafka("g", "t", 500)
    row(simulated, *ONCE, status=3)
    assert row(simulated, *ONCE, "--lead", "kafka")["leader"] == "kafka"
    assert held(simulated) == ([500, 60], [500, 60])


@pytest.mark.parametrize("stays", [True, False], ids=["stays", "leaves"])
def test_kafka_is_chosen_although_it_has_what_the_mirror_has_copied(
    simulated: Simulated, tmp_path: Path, stays: bool
) -> None:
    """It is not overwritten with a later offset of the old members, whether a new member has
    left or runs and has not committed yet."""
    matrix.mirror_zookeeper_leads(simulated)
    row(simulated, *ONCE)
    old = Machine(simulated, tmp_path / "old")
    registers(old)
    joins(old)
    simulated.in_zookeeper("g", "t", 200)
    row(simulated, *ONCE, status=3)
    old.zk.expire()
    if not stays:
        simulated.kafka.joined.clear()
    assert row(simulated, *ONCE, "--lead", "kafka")["state"] == "in step"
    assert held(simulated) == ([110, 60], [110, 60])


def test_a_choice_of_kafka_overwrites_no_commit(simulated: Simulated, tmp_path: Path) -> None:
    """A client that is not a member commits, after the group was read."""
    matrix.mirror_zookeeper_leads(simulated)
    row(simulated, *ONCE)
    old = Machine(simulated, tmp_path / "old")
    registers(old)
    joins(old)
    simulated.in_zookeeper("g", "t", 200)
    row(simulated, *ONCE, status=3)
    old.zk.expire()
    simulated.kafka.joined.clear()

    def commits(what: str) -> None:
        if what == "before commit":
            simulated.in_kafka("g", "t", 777)

    simulated.kafka.around = commits
    found = row(simulated, *ONCE, "--lead", "kafka", status=3)
    assert "other-operator" in found["reasons"]
    assert held(simulated) == ([200, 60], [777, 60])


def test_a_group_begins_again_whose_mirror_znode_is_gone(simulated: Simulated) -> None:
    """As its row advises."""
    matrix.mirror_zookeeper_leads(simulated)
    simulated.zk.delete(mirror_state.path("g"))
    assert "mirror --lead" in row(simulated, *ONCE, status=1)["why"]
    assert row(simulated, *ONCE, "--lead", "zookeeper")["state"] == "in step"
    assert held(simulated) == ([110, 60], [110, 60])


def test_stores_that_differ_need_a_decision_first(simulated: Simulated) -> None:
    """Nothing is written before."""
    matrix.untouched(simulated)
    simulated.in_kafka("g", "t", 70)
    found = row(simulated, *ONCE, status=3)
    assert (found["state"], found["reasons"]) == ("refused", ["conflict"])
    assert held(simulated) == ([100, 50], [70])
    assert "record" not in simulated.zk.zk.children("/consumers/g")
    row(simulated, *ONCE, "--lead", "zookeeper")
    assert held(simulated) == ([100, 50], [100, 50])


def test_a_dry_run_changes_nothing(simulated: Simulated) -> None:
    """Of each command."""
    matrix.untouched(simulated)
    before = simulated.znodes("g")
    found = row(simulated, *(word for word in ONCE if word != "--execute"))
    assert found["state"] == "would be done"
    assert (simulated.znodes("g"), simulated.kafka.committed) == (before, {})
    for words in (CUT_OVER, UNDO, COMPLETE):
        row(simulated, *ONCE)
        if words is not CUT_OVER:
            row(simulated, *CUT_OVER)
        before, offsets = simulated.znodes("g"), dict(simulated.kafka.committed["g"])
        found = row(simulated, *(word for word in words if word != "--execute"))
        assert found["outcome"] == "would be done"
        assert (simulated.znodes("g"), simulated.kafka.committed["g"]) == (before, offsets)


def test_old_members_that_stay_are_locked_out_and_named(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cut-over may be repeated, or undone, which only unlocks."""
    matrix.mirror_zookeeper_leads(simulated)
    old = Machine(simulated, simulated.folder / "old")
    registers(old)
    found = row(simulated, *CUT_OVER, status=3)
    assert found["reasons"] == ["live-member"]
    assert "g_old" in found["why"]
    assert row(simulated, *UNDO)["way"] == "mirror back"
    assert row(simulated, "status", "--group", "g", status=3)["locked"] == "no"
    old.zk.expire()
    row(simulated, *CUT_OVER)
    assert held(simulated) == ([110, 60], [110, 60])


def test_new_members_must_stop_before_the_way_back(simulated: Simulated) -> None:
    """And the group stays as it is."""
    matrix.mirror_kafka_leads(simulated)
    simulated.kafka.joined["g"] = ("new-1",)
    found = row(simulated, *UNDO, status=3)
    assert (found["outcome"], found["reasons"]) == ("refused", ["coordinator-member"])
    assert row(simulated, "status", "--group", "g", status=3)["truth"] == "kafka"


def waits_for_old_members(one: Simulated, machine: Machine) -> None:
    """A cut-over has locked the group and waits: an old member ran, and has left since."""
    registers(machine)
    assert machine.run(*CUT_OVER).status == 3
    machine.zk.expire()


@pytest.mark.parametrize("words", [UNDO, END])
def test_a_cut_over_that_waits_is_not_taken_back_beside_new_members(
    simulated: Simulated, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """They were started early, and no mirror has seen them. Old members would run next to them, or
    start at older offsets. The group stays locked, and nothing is lost in Kafka."""
    matrix.mirror_zookeeper_leads(simulated)
    row(simulated, *ONCE)
    waits_for_old_members(simulated, Machine(simulated, tmp_path / "old"))
    for joined, reason in ((("new-1",), "coordinator-member"), ((), "follower-moved")):
        simulated.kafka.joined["g"] = joined
        simulated.in_kafka("g", "t", 800)
        found = row(simulated, *words, status=3)
        assert reason in found["reasons"]
        assert row(simulated, "status", "--group", "g", status=3)["locked"] == "locked"
        assert held(simulated) == ([110, 60], [800, 60])


def test_the_way_back_changes_nothing_if_zookeeper_leads_already(simulated: Simulated) -> None:
    """Another operator was faster, between the look at the group and this. Since when it leads
    remains the same."""
    matrix.mirror_zookeeper_leads(simulated)
    row(simulated, *ONCE)
    before = simulated.znodes("g")
    work = mirroring.Mirroring(simulated.stores())
    assert work.back("g", True, 0).outcome.value == "nothing to do"
    assert simulated.znodes("g") == before


def test_new_members_without_a_cut_over_lead_and_old_ones_are_locked_out(
    simulated: Simulated,
) -> None:
    """All that the old ones have stored was copied."""
    matrix.mirror_zookeeper_leads(simulated)
    row(simulated, *ONCE)
    simulated.kafka.joined["g"] = ("new-1",)
    simulated.in_kafka("g", "t", 800)
    assert row(simulated, *ONCE)["leader"] == "kafka"
    assert held(simulated) == ([800, 60], [800, 60])
    assert row(simulated, "status", "--group", "g", status=3)["locked"] == "locked"


def test_what_status_shows(simulated: Simulated) -> None:
    """Who mirrors it, by how much the follower differs, and since when."""
    matrix.mirror_zookeeper_leads(simulated)
    found = row(simulated, "status", "--group", "g", status=3)
    assert (found["truth"], found["mirror"], found["mirror_lag"]) == ("zookeeper", "none", 20)
    assert found["mirror_seconds"] >= 0
    assert found["mirror_since"].endswith("Z")
    row(simulated, *ONCE)
    found = row(simulated, "status", "--group", "g", status=3)
    assert (found["mirror_lag"], found["mirror_seconds"]) == (0, None)


def test_a_second_mirror_is_on_standby(simulated: Simulated, tmp_path: Path) -> None:
    """Until the session of the first has ended."""
    matrix.mirror_zookeeper_leads(simulated)
    first = mirroring.Mirroring(simulated.stores())
    assert [one.state for one in first.steps(["g"])] == ["in step"]
    second = Machine(simulated, tmp_path / "second")
    simulated.in_zookeeper("g", "t", 120)
    (found,) = second.run(*ONCE).rows
    assert found["state"] == "standby"
    assert row(simulated, "status", "--group", "g")["mirror"] == record.operator()
    simulated.zk.expire()
    (found,) = second.run(*ONCE).rows
    assert found["state"] == "in step"
    assert held(simulated) == ([120, 60], [120, 60])


def test_a_lease_is_recognized_that_no_answer_has_confirmed(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection was lost, and the next server did not have the lease yet. The process that has
    it does not wait for itself."""
    virtual_time(monkeypatch)
    matrix.mirror_zookeeper_leads(simulated)
    lost: list[ZkOp] = []

    def after(op: ZkOp, reply: Reply) -> Reply:
        where = mirror_state.lease_path("g")
        if isinstance(op, Create) and op.path == where:
            lost.append(op)
            return Failed(Code.CONNECTION_LOSS)
        if lost and isinstance(op, GetMany) and op.paths == (where,):
            simulated.zk.after = lambda op, reply: reply
            return Ok((None,))
        return reply

    simulated.zk.after = after
    mirror = mirroring.Mirroring(simulated.stores())
    assert [one.state for one in mirror.steps(["g"])] == ["standby"]
    mirroring.time.sleep(mirroring.READ_AGAIN_S)
    assert [one.state for one in mirror.steps(["g"])] == ["in step"]
    assert lost


def test_a_running_mirror_continues_when_its_group_begins_again(simulated: Simulated) -> None:
    """It was ended meanwhile. The process still has the lease, and uses it."""
    matrix.mirror_zookeeper_leads(simulated)
    mirror = mirroring.Mirroring(simulated.stores())
    states = [one.state for one in mirror.steps(["g"])]
    second = Machine(simulated, simulated.folder / "second")
    second.run(*END)
    states += [one.state for one in mirror.steps(["g"])]
    second.run(*ONCE)
    states += [one.state for one in mirror.steps(["g"])]
    assert states == ["in step", "not mirrored", "in step"]


def test_a_mirror_that_was_killed_is_replaced_at_once_on_its_machine(
    simulated: Simulated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session has not ended. A process that runs, or of another machine, is not replaced, and a
    mirror that was on standby does not take over so."""
    matrix.mirror_zookeeper_leads(simulated)
    virtual_time(monkeypatch)
    with subprocess.Popen(["true"]) as gone:
        pass
    first = Machine(simulated, tmp_path / "first")
    for by, process, state in (
        (record.operator(), os.getpid(), "standby"),
        ("root@elsewhere", gone.pid, "standby"),
        (record.operator(), gone.pid, "in step"),
    ):
        data = f"{by} 1234abcd {process}".encode()
        first.zk.do(Create(mirror_state.lease_path("g"), data, ephemeral=True))
        mirror = mirroring.Mirroring(simulated.stores())
        assert [one.state for one in mirror.steps(["g"])] == [state]
        simulated.zk.do(Delete(mirror_state.lease_path("g")))
        first.zk.do(Create(mirror_state.lease_path("g"), data, ephemeral=True))
        mirroring.time.sleep(mirroring.READ_AGAIN_S)
        assert [one.state for one in mirror.steps(["g"])] == ["standby"]
        first.zk.expire()


def test_a_mirror_cuts_over_when_the_last_member_has_left(
    simulated: Simulated, tmp_path: Path
) -> None:
    """If it has seen one."""
    matrix.mirror_zookeeper_leads(simulated)
    said: list[str] = []
    mirror = mirroring.Mirroring(simulated.stores(), said.append)
    assert [one.leader for one in mirror.steps(["g"], True)] == ["zookeeper"]
    old = Machine(simulated, tmp_path / "old")
    registers(old)
    assert [one.leader for one in mirror.steps(["g"], True)] == ["zookeeper"]
    simulated.in_zookeeper("g", "t", 150)
    old.zk.expire()
    assert [one.leader for one in mirror.steps(["g"], True)] == ["kafka"]
    assert held(simulated) == ([150, 60], [150, 60])
    assert said == [f"group g: {mirroring.START}"]


@pytest.mark.parametrize(
    ("reason", "state"), [(Reason.UNREADABLE, "refused"), (Reason.CANNOT_LOCK, "failed")]
)
def test_a_mirror_shows_why_it_cannot_cut_over(
    simulated: Simulated,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reason: Reason,
    state: str,
) -> None:
    """In each pass, until the cause is gone. Then it cuts over."""
    matrix.mirror_zookeeper_leads(simulated)
    said: list[str] = []
    mirror = mirroring.Mirroring(simulated.stores(), said.append)
    old = Machine(simulated, tmp_path / "old")
    registers(old)
    assert [one.state for one in mirror.steps(["g"], True)] == ["in step"]
    old.zk.expire()
    with monkeypatch.context() as fault:
        if reason is Reason.UNREADABLE:
            simulated.znode("/consumers/g/offsets/t/1", b"garbage")
        else:
            fault.setattr(guard, "lock", not_enforced)
        for _ in range(2):
            (found,) = mirror.steps(["g"], True)
            assert (found.state, found.reasons, said) == (state, (reason,), [])
            assert found.why
    simulated.in_zookeeper("g", "t", 110, 60)
    assert [one.leader for one in mirror.steps(["g"], True)] == ["kafka"]


def test_a_cut_over_that_cannot_lock_has_not_begun(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mirror that starts later does not try to finish it."""
    matrix.mirror_zookeeper_leads(simulated)
    monkeypatch.setattr(guard, "lock", not_enforced)
    assert row(simulated, *CUT_OVER, status=1)["reasons"] == ["cannot-lock"]
    assert row(simulated, *ONCE, "--when-empty")["state"] == "in step"
    assert held(simulated) == ([110, 60], [110, 60])


def test_a_mirror_finishes_a_cut_over_that_another_has_begun(
    simulated: Simulated, tmp_path: Path
) -> None:
    """It was killed after it had locked the group. No old member can come back."""
    matrix.mirror_zookeeper_leads(simulated)
    old = Machine(simulated, tmp_path / "old")
    registers(old)
    row(simulated, *CUT_OVER, status=3)
    old.zk.expire()
    mirror = mirroring.Mirroring(simulated.stores())
    assert [one.leader for one in mirror.steps(["g"], True)] == ["kafka"]


def seen_with_a_member(simulated: Simulated, tmp_path: Path) -> tuple[mirroring.Mirroring, Machine]:
    """Start a mirror that cuts over when the last member has left, and has seen one: both."""
    matrix.mirror_zookeeper_leads(simulated)
    mirror = mirroring.Mirroring(simulated.stores())
    old = Machine(simulated, tmp_path / "old")
    registers(old)
    assert [one.leader for one in mirror.steps(["g"], True)] == ["zookeeper"]
    return mirror, old


def test_a_mirror_finishes_its_cut_over_when_the_coordinator_answers_again(
    simulated: Simulated, tmp_path: Path
) -> None:
    """The last member has left meanwhile."""
    mirror, old = seen_with_a_member(simulated, tmp_path)
    old.zk.expire()
    simulated.kafka.away.add("g")
    assert [one.state for one in mirror.steps(["g"], True)] == ["failed"]
    simulated.kafka.away.clear()
    assert [one.leader for one in mirror.steps(["g"], True)] == ["kafka"]


@pytest.mark.parametrize(("minutes", "period"), [(10_080, mirroring.REFRESH_S), (40, 600.0)])
def test_offsets_are_committed_again_before_they_expire(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch, minutes: int, period: float
) -> None:
    """Also when nothing moves: after six hours, or a quarter of a shorter retention."""
    virtual_time(monkeypatch)
    matrix.mirror_zookeeper_leads(simulated)
    simulated.kafka.retention = (minutes, True)
    mirror = mirroring.Mirroring(simulated.stores())
    commits = []
    for seconds in (0.0, 60.0, period, 60.0):
        mirroring.time.sleep(seconds)
        before = len(simulated.kafka.log)
        assert [one.state for one in mirror.steps(["g"])] == ["in step"]
        commits.append(len(simulated.kafka.log) - before)
    assert commits == [2, 0, 2, 0]


def test_a_group_is_read_again_when_a_watch_fires(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or after some seconds, or when watches may be lost. Not in each pass."""
    virtual_time(monkeypatch)
    matrix.mirror_zookeeper_leads(simulated)
    mirror = mirroring.Mirroring(simulated.stores())
    asked: list[str] = []
    simulated.zk.before = lambda op: asked.append(type(op).__name__)

    def reads() -> bool:
        asked.clear()
        assert [one.state for one in mirror.steps(["g"])] == ["in step"]
        return bool(asked)

    assert reads()
    assert not reads()
    simulated.in_zookeeper("g", "t", 120)
    assert reads()
    assert held(simulated) == ([120, 60], [120, 60])
    reads()
    assert not reads()
    old = Machine(simulated, simulated.folder / "old")
    registers(old)
    assert reads()
    assert not reads()
    mirroring.time.sleep(mirroring.READ_AGAIN_S)
    assert reads()
    assert not reads()
    simulated.zk.expire()
    assert reads()


def test_what_has_not_changed_is_not_read_again(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Watches show the first offset of a partition, and one that is deleted, too."""
    virtual_time(monkeypatch)
    matrix.mirror_zookeeper_leads(simulated)
    simulated.topic("t", *[(0, 1000)] * 3)
    mirror = mirroring.Mirroring(simulated.stores())
    read: list[str] = []
    simulated.zk.before = lambda op: read.extend(op.paths if isinstance(op, GetMany) else ())

    def reads() -> set[str]:
        read.clear()
        assert [one.state for one in mirror.steps(["g"])] == ["in step"]
        return {path for path in read if "/offsets/" in path}

    assert len(reads()) == 2
    mirroring.time.sleep(mirroring.READ_AGAIN_S)
    assert reads() == set()
    simulated.in_zookeeper("g", "t", 120)
    assert reads() == {"/consumers/g/offsets/t/0"}
    assert held(simulated) == ([120, 60], [120, 60])
    simulated.in_zookeeper("g", "t", None, None, 7)
    assert len(reads()) == 3
    assert held(simulated) == ([120, 60, 7], [120, 60, 7])
    simulated.zk.delete("/consumers/g/offsets/t/2")
    assert len(reads()) == 2
    assert reads() == set()
    simulated.zk.expire()
    assert len(reads()) == 2
    mirroring.time.sleep(mirroring.READ_AGAIN_S)
    assert reads() == set()


def test_what_has_not_changed_in_kafka_is_read_with_one_request(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Kafka leads, of all groups. A group that has changed, or is not in the answer, is read
    completely."""
    virtual_time(monkeypatch)
    matrix.mirror_kafka_leads(simulated)
    mirror = mirroring.Mirroring(simulated.stores())
    asked: list[str] = []
    simulated.zk.before = lambda op: asked.append(type(op).__name__)
    for name in ("fetch_several", "members_of"):
        call = getattr(simulated.kafka, name)

        def noted(*words: Any, name: str = name, call: Any = call, **options: Any) -> Any:
            asked.append(name)
            return call(*words, **options)

        monkeypatch.setattr(simulated.kafka, name, noted)

    def reads(state: str = "in step") -> list[str]:
        asked.clear()
        assert [one.state for one in mirror.steps(["g"])] == [state]
        return asked

    reads()
    mirroring.time.sleep(mirroring.READ_AGAIN_S)
    reads()
    assert reads() == ["fetch_several"]
    simulated.in_kafka("g", "t", 700)
    assert "members_of" in reads()
    assert held(simulated) == ([700, 501], [700, 501])
    reads()
    assert reads() == ["fetch_several"]
    simulated.kafka.away.add("g")
    reads("failed")
    simulated.kafka.away.clear()
    simulated.in_zookeeper("g", "t", 120)
    reads("stopped")


def test_a_group_that_is_due_is_asked_for_together_with_the_others(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the request, and the answer that is compared with the last one, remain the same."""
    mirror = two_in_kafka(simulated, monkeypatch)
    asked: list[list[str]] = []
    fetch = simulated.kafka.fetch_several

    def noted(groups: Iterable[str], *more: Any, **options: Any) -> Any:
        asked.append(list(groups))
        return fetch(asked[-1], *more, **options)

    monkeypatch.setattr(simulated.kafka, "fetch_several", noted)

    def reads() -> list[list[str]]:
        asked.clear()
        steps = list(mirror.steps("gh"))
        assert sorted((one.group, one.state) for one in steps) == [(n, "in step") for n in "gh"]
        return asked

    reads()
    mirroring.time.sleep(mirroring.READ_AGAIN_S)
    reads()
    assert reads() == [["g", "h"]]
    simulated.in_zookeeper("h", "t", 7)
    assert reads() == [["g", "h"], ["h"]]
    assert reads() == [["g", "h"]]
    simulated.in_kafka("h", "t", 8)
    assert reads() == [["g", "h"]]  # that answer has the new offset, too
    assert simulated.held("h", "t")[0][0] == 8


def test_everything_is_read_again_in_the_end(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the watches were lost and nothing has said so."""
    virtual_time(monkeypatch)
    matrix.mirror_zookeeper_leads(simulated)
    mirror = mirroring.Mirroring(simulated.stores())
    for _ in range(3):
        assert [one.state for one in mirror.steps(["g"])] == ["in step"]
        mirroring.time.sleep(mirroring.READ_AGAIN_S)
    simulated.in_zookeeper("g", "t", 120)
    monkeypatch.setattr(simulated.zk, "fired", set)
    for _ in range(11):
        mirroring.time.sleep(mirroring.READ_AGAIN_S)
        assert [one.state for one in mirror.steps(["g"])] == ["in step"]
    assert held(simulated) == ([120, 60], [120, 60])


@pytest.mark.parametrize("ended", [False, True])
def test_what_is_remembered_permits_nothing(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    """A cut-over, or an end, was not noticed, since the watches were lost. The new program's commit
    does not stop the mirror, and it commits nothing again. It reads again instead."""
    virtual_time(monkeypatch)
    matrix.mirror_zookeeper_leads(simulated)
    mirror = mirroring.Mirroring(simulated.stores())
    for _ in range(3):
        assert [one.state for one in mirror.steps(["g"])] == ["in step"]
        mirroring.time.sleep(mirroring.READ_AGAIN_S)
    monkeypatch.setattr(simulated.zk, "fired", set)
    other = Machine(simulated, simulated.folder / "other")
    assert other.run(*(END if ended else CUT_OVER)).status == 0
    if not ended:
        simulated.in_kafka("g", "t", 400)
    before = len(simulated.kafka.log)
    (found,) = mirror.steps(["g"])
    assert len(simulated.kafka.log) == before
    if ended:
        assert (found.state, held(simulated)) == ("not mirrored", ([110, 60], []))
    else:
        assert (found.leader, found.state) == ("kafka", "in step")
        assert held(simulated) == ([400, 60], [400, 60])


@pytest.mark.parametrize("error", [ZooKeeperError("refused"), BrokerError("away")])
def test_groups_that_are_read_together_fail_alone(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Such as for an access list of one topic."""
    virtual_time(monkeypatch)
    matrix.untouched(simulated)
    simulated.topic("other", (0, 1000))
    simulated.znode("/consumers/h/ids")
    simulated.in_zookeeper("h", "other", 7)
    assert simulated.run("mirror", "--all", "--execute", "--once").status == 0
    stores = simulated.stores()
    topics = stores.logs.topics

    def fails(names: Collection[str]) -> Any:
        if "other" in names:
            raise error
        return topics(names)

    mirror = mirroring.Mirroring(stores)
    assert all(one.good for one in mirror.steps("gh"))  # now it has the leases
    mirroring.time.sleep(mirroring.READ_AGAIN_S)
    monkeypatch.setattr(stores.logs, "topics", fails)
    steps = {one.group: one for one in mirror.steps("gh")}
    assert (steps["g"].state, steps["h"].state) == ("in step", "failed")
    assert steps["h"].why == str(error)


def several_have_changed(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> mirroring.Mirroring:
    """Return the mirror of three groups, whose members have committed 500 since its last pass."""
    virtual_time(monkeypatch)
    matrix.untouched(simulated)
    for group in "hi":
        simulated.znode(f"/consumers/{group}/ids")
        simulated.in_zookeeper(group, "t", 7)
    assert simulated.run("mirror", "--all", "--execute", "--once").status == 0
    mirror = mirroring.Mirroring(simulated.stores())
    assert all(one.good for one in mirror.steps("ghi"))  # now it has the leases
    for group in "ghi":
        simulated.in_zookeeper(group, "t", 500)
    mirroring.time.sleep(10 * mirroring.READ_AGAIN_S)
    return mirror


def agreed_on(simulated: Simulated, group: str) -> tuple[int, int]:
    """Return the agreed offset of a group, and how often its agreed state was written."""
    node = simulated.zk.zk.get(mirror_state.path(group))
    return json.loads(node.data)["offsets"]["t"]["0"], node.stat.version


def test_what_is_written_together_may_have_changed_meanwhile(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process writes a group between its commit to Kafka and the write to ZooKeeper. The
    group is read again, and the others are written once."""
    mirror = several_have_changed(simulated, monkeypatch)
    before = {group: agreed_on(simulated, group)[1] for group in "ghi"}
    seen: list[str] = []

    def another(what: str) -> None:
        seen.append(what)
        if seen.count("after commit") == 3:
            simulated.kafka.around = lambda what: None
            path = mirror_state.path("h")
            simulated.zk.set(path, simulated.zk.text(path))

    simulated.kafka.around = another
    assert [one.state for one in mirror.steps("ghi")] == ["in step"] * 3
    for group, more in {"g": 1, "h": 2, "i": 1}.items():
        assert agreed_on(simulated, group) == (500, before[group] + more)
        assert simulated.held(group, "t")[1][0] == 500


def test_a_group_whose_agreed_state_has_no_room_any_more_fails_alone(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are written, although their requests are sent together with its own."""
    mirror = several_have_changed(simulated, monkeypatch)
    room = len(simulated.zk.text(mirror_state.path("g")) or b"") - 1
    monkeypatch.setattr(record, "MAX_BYTES", PACKET_BYTES + room)
    steps = {one.group: one for one in mirror.steps("ghi")}
    assert [steps[name].state for name in "ghi"] == ["failed", "in step", "in step"]
    assert "too many for a mirror" in steps["g"].why
    assert [agreed_on(simulated, group)[0] for group in "ghi"] == [100, 500, 500]


def test_a_group_that_cannot_be_cleaned_up_fails_alone(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another command has ended its mirror, and ZooKeeper refuses what follows. The next pass tries
    it again."""
    two_groups(simulated)
    assert simulated.run("mirror", "--all", "--execute", "--once").status == 0
    mirror = mirroring.Mirroring(simulated.stores())
    assert all(one.good for one in mirror.steps("gh"))  # now it has the leases
    assert Machine(simulated, simulated.folder / "other").run(*END).status == 0

    def refuses(_group: str) -> Script[None]:
        raise ZooKeeperError("refused")

    with monkeypatch.context() as fault:
        fault.setattr(guard, "let_in", refuses)
        steps = {one.group: one for one in mirror.steps("gh")}
        assert (steps["g"].state, steps["g"].why) == ("failed", "refused")
        assert steps["h"].state == "in step"
    steps = {one.group: one for one in mirror.steps("gh")}
    assert (steps["g"].state, steps["h"].state) == ("not mirrored", "in step")


def test_a_reset_is_not_undone_while_groups_are_committed_again(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka leads, and an operator sets the offset of a group right before a mirror commits it
    again, so that it does not expire. No later pass would put that right."""
    virtual_time(monkeypatch)
    two_groups(simulated)
    assert simulated.run("mirror", "--all", "--execute", "--once").status == 0
    for group in "gh":
        words = ("cut-over", "--group", group, "--execute", "--wait", "0")
        assert simulated.run(*words).status == 0
    mirror = mirroring.Mirroring(simulated.stores())
    assert all(one.good for one in mirror.steps("gh"))  # now it has the leases
    mirroring.time.sleep(mirroring.REFRESH_S + 1.0)

    def reset(what: str) -> None:
        if what == "after commit":
            simulated.kafka.around = lambda what: None
            simulated.in_kafka("h", "t", 300)

    simulated.kafka.around = reset
    assert [one.state for one in mirror.steps("gh")] == ["in step"] * 2
    assert simulated.held("h", "t") == ({0: 300}, {0: 300})


def test_a_reset_outlasts_each_permission_from_before_it(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka leads, and a mirror was permitted to commit right before. Its commit would replace the
    new offset, and no later pass would put that right."""
    virtual_time(monkeypatch)
    matrix.mirror_kafka_leads(simulated)
    row(simulated, *ONCE)
    changed: dict[str, float] = {}
    where = record.path("g")

    def before(op: ZkOp) -> None:
        if any(isinstance(one, SetData) and one.path == where for one in getattr(op, "ops", ())):
            changed["record"] = resetting.time.monotonic()

    def around(what: str) -> None:
        changed.setdefault(what, resetting.time.monotonic())

    simulated.zk.before, simulated.kafka.around = before, around
    words = ("--all-topics", "--to-offset", "300")
    row(simulated, "reset", "--group", "g", *words, "--execute")
    assert held(simulated)[1] == [300, 300]
    assert changed["before commit"] - changed["record"] > MIRROR_PERMITTED_S


def test_a_group_that_changed_does_not_hold_up_the_others(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Permissions are asked for in one request, which fails as a whole. Then each group asks for
    its own, and only the one that changed is read again."""
    mirror = several_have_changed(simulated, monkeypatch)
    path = mirror_state.path("h")
    read: list[str] = []

    def before(op: ZkOp) -> None:
        if isinstance(op, Multi) and all(isinstance(one, Check) for one in op.ops):
            simulated.zk.before = noted
            simulated.zk.set(path, simulated.zk.text(path))

    def noted(op: ZkOp) -> None:
        read.extend(op.paths if isinstance(op, GetMany) else ())

    simulated.zk.before = before
    assert [one.state for one in mirror.steps("ghi")] == ["in step"] * 3
    assert {path.split("/")[2] for path in read if "/offsets/" in path} == {"h"}
    assert [agreed_on(simulated, group)[0] for group in "ghi"] == [500] * 3


def test_what_the_mirror_wrote_itself_is_not_compared_again(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka leads. The watch of an offset fires because of the mirror's own write, and is set
    again, so that a client's later write is noticed."""
    virtual_time(monkeypatch)
    matrix.mirror_kafka_leads(simulated)
    mirror = mirroring.Mirroring(simulated.stores())
    members: list[str] = []
    members_of = simulated.kafka.members_of

    def noted(groups: Iterable[str]) -> Any:
        members.extend(groups)
        return members_of(groups)

    monkeypatch.setattr(simulated.kafka, "members_of", noted)

    def step() -> str:
        members.clear()
        (one,) = mirror.steps(["g"])
        return one.state

    step()
    step()
    simulated.in_kafka("g", "t", 700)
    assert (step(), members) == ("in step", ["g"])
    assert (step(), members) == ("in step", [])
    simulated.in_zookeeper("g", "t", 120)
    assert (step(), members) == ("stopped", ["g"])


def test_a_change_is_copied_in_the_next_pass_if_zookeeper_is_silent(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every point of a pass, without losing the connection or a watch. The failed pass may have
    read the change."""
    virtual_time(monkeypatch)
    matrix.mirror_zookeeper_leads(simulated)
    mirror = mirroring.Mirroring(simulated.stores())
    left = 0

    def before(_op: ZkOp) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise ZkUnavailableError("ZooKeeper did not answer")

    simulated.zk.before = before
    for point in count(1):
        mirroring.time.sleep(mirroring.READ_AGAIN_S)
        assert [one.state for _ in range(3) for one in mirror.steps(["g"])] == ["in step"] * 3
        left, offset = point, 200 + point
        simulated.in_zookeeper("g", "t", offset)
        with suppress(ZkUnavailableError):
            list(mirror.steps(["g"]))
        if left > 0:
            break
        assert [one.state for one in mirror.steps(["g"])] == ["in step"]
        assert held(simulated) == ([offset, 60], [offset, 60])
    assert point > 3


def test_an_offset_of_a_topic_that_is_recreated_during_a_pass_is_not_copied(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka leads, and has deleted the offset with the topic. The mirror has polled it before, and
    does not commit it for the new topic."""
    virtual_time(monkeypatch)
    matrix.mirror_kafka_leads(simulated)
    stores = simulated.stores()
    mirror = mirroring.Mirroring(stores)
    assert [one.state for _ in range(3) for one in mirror.steps(["g"])] == ["in step"] * 3
    describe = stores.logs.topics

    def recreated(names: Collection[str]) -> Any:
        monkeypatch.setattr(stores.logs, "topics", describe)
        simulated.forget("g", T0, T1)
        simulated.zk.delete("/brokers/topics/t")
        simulated.topic("t", (0, 1000), (0, 1000))
        return describe(names)

    monkeypatch.setattr(stores.logs, "topics", recreated)
    simulated.in_kafka("g", "t", 700)
    assert [one.state for _ in range(3) for one in mirror.steps(["g"])] == ["in step"] * 3
    assert held(simulated)[1] == []


def test_answers_of_earlier_passes_are_not_kept(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka leads. Each pass has fewer groups, so other groups are the first ones of a request."""
    mirror = two_in_kafka(simulated, monkeypatch)

    def kept(groups: str) -> int:
        assert [one.state for one in mirror.steps(groups)] == ["in step"] * len(groups)
        gc.collect()
        answers = [one for one in gc.get_objects() if isinstance(one, Answered)]
        return sum(len(one.offsets) for one in answers)

    kept("gh")
    assert [kept(groups) for groups in ("gh", "h", "gh", "h")] == [2, 1, 2, 1]


@pytest.mark.parametrize("suspended", [False, True])
@pytest.mark.parametrize("seconds", [0.0, 1.1 * writes.IN_ADVANCE_S])
def test_a_permission_that_was_asked_for_together_is_soon_too_old(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch, seconds: float, suspended: bool
) -> None:
    """The commit of the first group takes a while, and another process writes the second group. So
    its permission is asked for again. A commit that is sent too early is put right at once.

    The machine may be suspended meanwhile, which ``time.monotonic`` does not count.
    """
    mirror = several_have_changed(simulated, monkeypatch)

    def another(what: str) -> None:
        if what == "after commit":
            simulated.kafka.around = lambda what: None
            if suspended:
                later = CLOCK.now + seconds
                monkeypatch.setattr(mirroring.time, "clock_gettime", lambda _which: later)
            else:
                mirroring.time.sleep(seconds)
            simulated.in_zookeeper("h", "t", 700)
            path = mirror_state.path("h")
            simulated.zk.set(path, simulated.zk.text(path))

    simulated.kafka.around = another
    assert [one.state for one in mirror.steps("ghi")] == ["in step"] * 3
    commits = [offset for group, tp, offset in simulated.kafka.log if (group, tp) == ("h", T0)]
    assert commits[-2:] == ([500, 700] if seconds == 0 else [7, 700])
    assert agreed_on(simulated, "h")[0] == 700


def test_a_reading_that_a_silent_coordinator_has_delayed_is_not_used(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new member may have committed meanwhile, and left."""
    virtual_time(monkeypatch)
    two_groups(simulated)
    assert simulated.run("mirror", "--all", "--execute", "--once").status == 0
    stores = simulated.stores()
    mirror = mirroring.Mirroring(stores)
    assert all(one.good for one in mirror.steps("gh"))  # now it has the leases
    mirroring.time.sleep(mirroring.READ_AGAIN_S)
    simulated.in_zookeeper("g", "t", 120)
    fetch = simulated.kafka.fetch_several

    def slow(groups: Iterable[str], *more: Any, **options: Any) -> Any:
        answers = fetch(groups, *more, **options)
        mirroring.time.sleep(5.0)
        simulated.in_kafka("g", "t", 130)
        return answers

    monkeypatch.setattr(simulated.kafka, "fetch_several", slow)
    steps = {one.group: one for one in mirror.steps("gh")}
    assert simulated.held("g", "t")[1][0] == 130
    assert steps["g"].state == "stopped"


def test_many_groups_are_not_read_more_often_than_some_each_second(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When nothing moves."""
    virtual_time(monkeypatch)
    monkeypatch.setattr(mirroring, "GROUPS_PER_S", 0.05)
    matrix.untouched(simulated)
    for group in "hi":
        simulated.znode(f"/consumers/{group}/ids")
        simulated.in_zookeeper(group, "t", 7)
    assert simulated.run("mirror", "--all", "--execute", "--once").status == 0
    mirror = mirroring.Mirroring(simulated.stores())
    asked: list[str] = []
    monkeypatch.setattr(simulated.kafka, "_check", asked.append)
    seconds = 600
    for _ in range(seconds):
        assert all(one.good for one in mirror.steps("ghi"))
        mirroring.time.sleep(1.0)
    reads = asked.count("g") / 2  # offsets and members
    assert 600 / 60 <= reads <= 4 + 600 / 30, reads


def test_a_running_mirror_does_not_wait_long_for_one_server(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other groups would be late meanwhile, and those of a mirror that was killed. A single pass
    waits as it was told."""
    matrix.untouched(simulated)
    waits: list[float] = []
    sessions_s: list[float] = []

    def zookeeper(_connect: str, timeout: float, *_: object) -> object:
        sessions_s.append(timeout)
        return simulated.zk

    def coordinators(*words: Any, **_: Any) -> object:
        waits.append(words[3])
        return simulated.kafka

    def end(_seconds: float) -> None:
        raise SignalledError(15)

    monkeypatch.setattr(sessions, "ClusterZk", zookeeper)
    monkeypatch.setattr(sessions, "GroupCoordinators", coordinators)
    monkeypatch.setattr(repeating.time, "sleep", end)
    words = ("mirror", "--group", "g", "--execute", "--coordinator-timeout")
    options = ("--zookeeper", "sim:1")
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        for more in ("60", "1"):
            run([*words, more, *options])
        run([*words, "60", *options, "--once"])
    assert waits == [4.0, 1.0, 60.0]
    assert sessions_s == [6.0, 6.0, 30.0]


def test_a_coordinator_that_is_away_is_named(simulated: Simulated) -> None:
    """The group is in step again when it is back."""
    matrix.mirror_zookeeper_leads(simulated)
    mirror = mirroring.Mirroring(simulated.stores())
    simulated.kafka.away.add("g")
    (found,) = mirror.steps(["g"])
    assert (found.state, found.good) == ("failed", False)
    assert found.late_since
    simulated.kafka.away.clear()
    (found,) = mirror.steps(["g"])
    assert (found.state, found.late_since) == ("in step", "")


@pytest.mark.parametrize(
    ("slow", "reason"), [("fetch", "coordinator-away"), ("zookeeper", "unreadable")]
)
def test_a_server_that_permits_too_slowly_is_named_soon(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch, slow: str, reason: str
) -> None:
    """Other groups wait meanwhile. Nothing is committed. It is when the server is quick again."""
    virtual_time(monkeypatch)
    matrix.mirror_zookeeper_leads(simulated)
    mirror = mirroring.Mirroring(simulated.stores())
    assert [one.state for one in mirror.steps(["g"])] == ["in step"]
    simulated.in_zookeeper("g", "t", 120)
    fetch = simulated.kafka.fetch

    def slowly(group: str, tps: object) -> dict[TopicPartition, StoredOffset]:
        mirroring.time.sleep(2.0)
        return fetch(group, tps)

    with monkeypatch.context() as fault:
        if slow == "fetch":
            fault.setattr(simulated.kafka, "fetch", slowly)
        else:
            fault.setattr(simulated.zk, "before", lambda op: mirroring.time.sleep(0.3))
        began = CLOCK.now
        (found,) = mirror.steps(["g"])
        assert (found.state, found.reasons) == ("failed", (Reason(reason),))
        assert "before a commit" in found.why
        assert CLOCK.now - began < 12.0
        assert held(simulated) == ([120, 60], [110, 60])
    assert [one.state for one in mirror.steps(["g"])] == ["in step"]
    assert held(simulated) == ([120, 60], [120, 60])


def test_an_offset_of_a_deleted_topic_is_not_committed_for_its_successor(
    simulated: Simulated,
) -> None:
    """Also if a mirror has looked while there was no such topic."""
    matrix.mirror_kafka_leads(simulated)
    row(simulated, *ONCE)
    simulated.zk.delete("/brokers/topics/t")
    simulated.kafka.committed["g"].clear()
    row(simulated, *ONCE)
    simulated.topic("t", (0, 10), (0, 10))
    row(simulated, *ONCE)
    assert simulated.kafka.committed["g"] == {}


def test_an_offset_that_cannot_be_read_ends_a_cut_over(simulated: Simulated) -> None:
    """The new program would begin anywhere."""
    matrix.mirror_zookeeper_leads(simulated)
    simulated.znode("/consumers/g/offsets/t/1", b"garbage")
    found = row(simulated, *CUT_OVER, status=3)
    assert (found["outcome"], found["reasons"]) == ("refused", ["unreadable"])
    assert "/consumers/g/offsets/t/1" in found["why"]
    simulated.in_zookeeper("g", "t", 110, 60)
    assert row(simulated, *CUT_OVER)["why"] == mirroring.START


def test_a_cut_over_that_waits_ends_when_it_is_undone(
    simulated: Simulated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the operator who has changed his mind. The old program may start again."""
    virtual_time(monkeypatch)
    matrix.mirror_zookeeper_leads(simulated)
    old, other = Machine(simulated, tmp_path / "old"), Machine(simulated, tmp_path / "other")
    registers(old)

    def undo(_seconds: float) -> None:
        assert other.run(*UNDO).status == 0
        old.zk.expire()
        monkeypatch.setattr(mirroring.time, "sleep", lambda _seconds: None)

    monkeypatch.setattr(mirroring.time, "sleep", undo)
    ran = simulated.run("cut-over", "--group", "g", "--execute", "--wait", "5s")
    assert (ran.status, ran.rows[0]["reasons"]) == (3, ["other-operator"])
    found = row(simulated, "status", "--group", "g", status=3)
    assert (found["truth"], found["locked"]) == ("zookeeper", "no")


def test_a_mirror_that_starts_while_a_coordinator_is_away_goes_on(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a group that is mirrored already, and of one that begins. One without offsets begins when
    it has some."""
    matrix.mirror_zookeeper_leads(simulated)
    virtual_time(monkeypatch)  # in all modules that are loaded
    simulated.znode("/consumers/h/ids")
    simulated.in_zookeeper("h", "t", 7)
    simulated.znode("/consumers/k/ids")
    simulated.kafka.away |= {"g", "h"}
    passes: list[dict[str, str]] = []

    def passed(seconds: float) -> None:
        passes.append({})
        if len(passes) == 3:
            simulated.kafka.away.clear()
            simulated.in_zookeeper("k", "t", 9)
        if len(passes) == 30:
            raise SignalledError(15)
        CLOCK.pass_(seconds)

    monkeypatch.setattr(repeating.time, "sleep", passed)
    words = ("--group", "g", "--group", "h", "--group", "k", "--execute")
    ran = simulated.run("mirror", *words, rows=False)
    assert "3 in step" in ran.err, ran.err
    assert held(simulated) == ([110, 60], [110, 60])
    assert simulated.held("h", "t") == ({0: 7}, {0: 7})
    assert simulated.held("k", "t") == ({0: 9}, {0: 9})


def test_a_group_that_may_not_be_written_keeps_no_other_from_beginning(
    simulated: Simulated,
) -> None:
    """Its row names the znode."""
    two_groups(simulated)
    simulated.zk.do(SetAcl("/consumers/g", (AclEntry(1, "world", "anyone"),), 0))
    ran = simulated.run("mirror", "--all", "--execute", "--once")
    assert ran.status == 1, ran
    found = {one["group"]: one for one in ran.rows}
    assert found["g"]["state"] == "failed"
    assert "/consumers/g/record" in found["g"]["why"]
    assert found["h"]["state"] == "in step"


def test_many_offsets_are_written_in_several_requests(simulated: Simulated) -> None:
    """Each agrees on its part."""
    count = 1201
    simulated.topic("t", *[(0, 1000)] * count)
    simulated.znode("/consumers/g/ids")
    simulated.in_zookeeper("g", "t", *[5] * count)
    row(simulated, *ONCE)
    row(simulated, *CUT_OVER)
    simulated.in_kafka("g", "t", *range(6, 6 + count))
    row(simulated, *ONCE)
    assert held(simulated) == (list(range(6, 6 + count)),) * 2


def test_no_request_is_longer_than_zookeeper_takes(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server ends the connection of a longer one, again and again. Each offset znode is checked
    as far as there is room."""
    count, most = 500, 30_000
    monkeypatch.setattr(record, "MAX_REQUEST_BYTES", most)
    simulated.topic("t", *[(0, 1000)] * count)
    simulated.znode("/consumers/g/ids")
    simulated.in_zookeeper("g", "t", *[5] * count)
    row(simulated, *ONCE)
    checks: list[int] = []

    def measure(op: ZkOp) -> None:
        if isinstance(op, Multi):
            data = sum(len(getattr(one, "data", b"")) for one in op.ops)
            assert data + sum(len(one.path) + 17 for one in op.ops) < most
            checks.append(sum(isinstance(one, Check) for one in op.ops))

    simulated.zk.before = measure
    row(simulated, *CUT_OVER)
    assert 100 < max(checks) < count
    checks.clear()
    row(simulated, *COMPLETE)
    assert 100 < max(checks) < count


def test_a_group_with_too_many_offsets_is_not_mirrored(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is agreed on has no room in a znode."""
    matrix.untouched(simulated)
    monkeypatch.setattr(record, "MAX_BYTES", PACKET_BYTES + 100)
    found = row(simulated, *ONCE, status=1)
    assert (found["state"], "too many for a mirror" in found["why"]) == ("failed", True)


def test_metrics(simulated: Simulated) -> None:
    """The file has the groups by leader and state."""
    matrix.mirror_zookeeper_leads(simulated)
    path = simulated.file("metrics")
    row(simulated, *ONCE, "--metrics-file", path)
    text = Path(path).read_text()
    assert (
        'zkmigrate_mirrored_groups{command="mirror",leader="zookeeper",state="in step"} 1\n' in text
    )
    assert 'zkmigrate_mirrored_offsets{command="mirror"} 2\n' in text


def test_what_is_agreed_on_is_read_as_it_was_written() -> None:
    """All of it."""
    stopped = ("follower-moved", "why")
    mirror = Mirror(Store.KAFKA, 7, {T0: 1, T1: 2}, {"t": 9}, stopped, 3)
    node = Node(mirror_state.encode(mirror), Stat(0, 0, 3, 0))
    assert mirror_state.decode("/z", node) == mirror
    assert json.loads(node.data)["leader"] == "kafka"


# -- at every point --------------------------------------------------------------------------------


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], World]:
    """Return a world of a state."""
    virtual_time(monkeypatch)
    made: dict[str, World] = {}

    def world(state: str) -> World:
        if state not in made:
            made[state] = World(monkeypatch, tmp_path, state)
        return made[state].new()

    return world


def points(worlds: Callable[[str], World], state: str, words: tuple[str, ...]) -> Iterator[int]:
    """Yield the number of each point of a command in a state."""
    world = worlds(state)
    seen: list[str] = []
    world.first.point = seen.append
    world.first.run(*words)
    world.close()
    assert len(seen) > 5
    yield from range(len(seen))


def settled(world: World, words: tuple[str, ...]) -> tuple[Ran, list[int], list[int]]:
    """Run a command, and a mirror, on the second machine; return what the first and the stores
    have."""
    ran = world.second.run(*words)
    world.second.run(*ONCE)
    return ran, *held(world.one)


@pytest.mark.parametrize(
    ("state", "words", "end"),
    [
        ("untouched", ONCE, ([100, 50], [100, 50])),
        ("mirror_zookeeper_leads", ONCE, ([110, 60], [110, 60])),
        ("mirror_kafka_leads", ONCE, ([500, 501], [500, 501])),
        ("mirror_zookeeper_leads", CUT_OVER, ([110, 60], [110, 60])),
        ("mirror_kafka_leads", UNDO, ([500, 501], [500, 501])),
        ("mirror_kafka_leads", COMPLETE, ([500, 501], [500, 501])),
    ],
)
def test_killed_at_every_point(
    worlds: Callable[[str], World],
    state: str,
    words: tuple[str, ...],
    end: tuple[list[int], list[int]],
) -> None:
    """Then the same command is run on another machine, and ends as if the first had never run."""
    wanted = worlds(state)
    wanted.second.run(*words)
    wanted.second.run(*ONCE)
    last = wanted.end()
    for number in points(worlds, state, words):
        world = worlds(state)
        world.first.at(number, world.first.kill, lambda machine: machine.run(*words))
        ran, *stores = settled(world, words)
        assert ran.status == 0, (number, ran)
        assert tuple(stores) == end, number
        found = world.end()
        assert (found.truth, found.locked, found.case) == (last.truth, last.locked, last.case)
        world.close()


@pytest.mark.parametrize("how", ["stopped", "suspended"])
@pytest.mark.parametrize("words", [ONCE, CUT_OVER])
def test_overtaken_at_every_point_by_a_cut_over(
    worlds: Callable[[str], World], how: str, words: tuple[str, ...]
) -> None:
    """Another operator cuts the group over, and its new consumer commits. The first command then
    continues: it changes nothing, in neither store."""
    for number in points(worlds, "mirror_zookeeper_leads", words):
        world = worlds("mirror_zookeeper_leads")

        def meanwhile(_what: str, world: World = world) -> None:
            if how == "suspended":
                world.first.suspend()
            ran = world.second.run(*CUT_OVER)
            assert ran.status == 0, ran
            joins(world.second)
            world.one.kafka.store("g", {T0: StoredOffset(900), T1: StoredOffset(901)})

        world.first.at(number, meanwhile, lambda machine: machine.run(*words))
        world.first.zk.expire()
        assert held(world.one)[1] == [900, 901], number
        _, *stores = settled(world, ONCE)
        assert tuple(stores) == ([900, 901], [900, 901]), number
        world.close()


def test_a_cut_over_is_overtaken_by_a_mirror_with_an_older_reading(
    worlds: Callable[[str], World],
) -> None:
    """It commits what it has read before the last commit of an old member. When the command reports
    that the new program may start, Kafka has the last offset."""
    for number in points(worlds, "mirror_zookeeper_leads", CUT_OVER):
        world = worlds("mirror_zookeeper_leads")
        late: list[bool] = []

        def meanwhile(what: str, world: World = world, late: list[bool] = late) -> None:
            agreed = world.one.zk.text(mirror_state.path("g")) or b""
            late.append(b'"0":110' in agreed)  # it would not be permitted any more
            if not late[0] and what != SENT:
                world.one.kafka.store("g", {T0: StoredOffset(100, -1, mark(100))})

        ran = world.first.at(number, meanwhile, lambda machine: machine.run(*CUT_OVER))
        assert ran is not None
        assert ran.status == 0
        assert held(world.one)[1] == [110, 60], (number, late)
        world.close()


def test_overtaken_at_every_point_by_an_old_member(worlds: Callable[[str], World]) -> None:
    """It commits while the group is cut over or mirrored: its offset is not lost."""
    for words in (ONCE, CUT_OVER):
        for number in points(worlds, "mirror_zookeeper_leads", words):
            world = worlds("mirror_zookeeper_leads")
            led: list[bool] = []

            def meanwhile(_what: str, world: World = world, led: list[bool] = led) -> None:
                led.append(b'"mirror":"kafka"' in (world.one.zk.text(record.path("g")) or b""))
                world.one.in_zookeeper("g", "t", 777)

            world.first.at(number, meanwhile, lambda machine, words=words: machine.run(*words))  # type: ignore[misc]
            world.first.zk.expire()
            ran, zk, kafka = settled(world, ONCE)
            assert zk == [777, 60], (words, number)
            if led == [True]:  # it came after Kafka had begun to lead
                assert ran.rows[0]["state"] == "stopped"
                assert "777" in ran.rows[0]["why"]
            else:
                assert kafka == [777, 60], (words, number)
            world.close()


@pytest.mark.parametrize(("words", "store"), [(COMPLETE, "zookeeper"), (UNDO, "kafka")])
def test_overtaken_at_every_point_by_a_client_of_the_other_store(
    worlds: Callable[[str], World], words: tuple[str, ...], store: str
) -> None:
    """An old client commits while the group is completed, or a new one while it is taken back: the
    offset is copied, or somebody is told."""
    for number in points(worlds, "mirror_kafka_leads", words):
        world = worlds("mirror_kafka_leads")
        if words is COMPLETE:
            joins(world.second)

        def meanwhile(_what: str, world: World = world) -> None:
            if store == "kafka":
                world.one.in_kafka("g", "t", 777)
            else:
                world.one.in_zookeeper("g", "t", 777)

        world.first.at(number, meanwhile, lambda machine: machine.run(*words))
        world.first.zk.expire()
        world.second.run(*ONCE)
        zk, kafka = held(world.one)
        found = world.status()
        told = {"follower-moved", "source-moved-on"} & set(found["reasons"])
        assert told or (store == "kafka" and zk == kafka == [777, 501]), (number, found)
        world.close()


def test_an_end_deletes_no_commit_of_a_client(worlds: Callable[[str], World]) -> None:
    """The new program was started early, at any point until the copies in Kafka are deleted, but
    for the last question to ZooKeeper and the request itself."""
    lost: list[str] = []
    for number in points(worlds, "mirror_zookeeper_leads", END):
        world = worlds("mirror_zookeeper_leads")
        at: list[str] = []

        def meanwhile(what: str, world: World = world, at: list[str] = at) -> None:
            at.append(what)
            world.one.in_kafka("g", "t", 777)

        ran = world.first.at(number, meanwhile, lambda machine: machine.run(*END))
        assert ran is not None
        assert ran.status == 0, (number, ran)
        if held(world.one)[1] != [777]:
            lost += at
        world.close()
    assert lost == ["Multi", SENT]


@pytest.mark.parametrize("words", [CUT_OVER, UNDO])
def test_overtaken_at_every_point_by_the_last_member(
    worlds: Callable[[str], World], words: tuple[str, ...]
) -> None:
    """It commits and leaves, for the first time in a partition. If the command then succeeds, the
    offset was copied."""
    old = words is CUT_OVER
    state = "mirror_zookeeper_leads" if old else "mirror_kafka_leads"
    copied = 0
    for number in points(worlds, state, words):
        world = worlds(state)
        world.one.topic("t", *[(0, 1000)] * 3)
        (registers if old else joins)(world.second)

        def meanwhile(_what: str, world: World = world) -> None:
            (world.one.in_zookeeper if old else world.one.in_kafka)("g", "t", None, None, 33)
            world.one.kafka.joined.clear()
            world.second.zk.expire()

        ran = world.first.at(number, meanwhile, lambda machine: machine.run(*words))
        assert ran is not None
        if ran.status == 0:
            zk, kafka = held(world.one)
            assert zk[2:] == kafka[2:] == [33], number
            copied += 1
        world.close()
    assert copied


@pytest.mark.parametrize("words", [CUT_OVER, UNDO, COMPLETE])
def test_overtaken_at_every_point_by_a_mirror(
    worlds: Callable[[str], World], words: tuple[str, ...]
) -> None:
    """A member has committed, and a running mirror copies that. The command succeeds, and the
    group is not stopped."""
    state = "mirror_zookeeper_leads" if words is CUT_OVER else "mirror_kafka_leads"
    before = worlds(state).status()["case"]
    for number in points(worlds, state, words):
        world = worlds(state)
        cases: list[str] = []

        def meanwhile(_what: str, world: World = world, cases: list[str] = cases) -> None:
            cases.append(world.status()["case"])
            store = world.one.in_zookeeper if words is CUT_OVER else world.one.in_kafka
            store("g", "t", 777)
            world.second.run(*ONCE)

        ran = world.first.at(number, meanwhile, lambda machine: machine.run(*words))
        if cases == [before]:  # otherwise it came too late
            assert ran is not None
            assert ran.status == 0, (number, ran)
            world.second.run(*ONCE)
            assert held(world.one) == (([777, 60],) * 2 if words is CUT_OVER else ([777, 501],) * 2)
            assert world.status()["case"] not in (before, "mirrored: stopped"), number
        world.close()


def test_overtaken_at_every_point_by_an_undo(worlds: Callable[[str], World]) -> None:
    """The group is completed meanwhile. It is locked in the end unless ZooKeeper leads."""
    for number in points(worlds, "mirror_kafka_leads", COMPLETE):
        world = worlds("mirror_kafka_leads")

        def meanwhile(_what: str, world: World = world) -> None:
            world.second.run(*UNDO)

        world.first.at(number, meanwhile, lambda machine: machine.run(*COMPLETE))
        found = world.status()
        wanted = "no" if found["truth"] == "zookeeper" else "locked"
        assert found["locked"] == wanted, (number, found)
        world.close()


def test_a_mirror_without_the_lease_commits_nothing(worlds: Callable[[str], World]) -> None:
    """Its session has ended after it had read the group, and another process has the lease."""
    for number in points(worlds, "mirror_zookeeper_leads", ONCE):
        world = worlds("mirror_zookeeper_leads")
        commits: list[int] = []

        def meanwhile(what: str, world: World = world, commits: list[int] = commits) -> None:
            if what == "before commit":
                world.first.zk.expire()
                assert world.second.zk.run(mirror_state.take_lease("g", "other"))
                commits.append(len(world.one.kafka.log))

        ran = world.first.at(number, meanwhile, lambda machine: machine.run(*ONCE))
        if commits:
            assert commits == [len(world.one.kafka.log)]
            assert ran is not None
            assert ran.rows[0]["state"] == "standby"
        world.close()


def overtaken(
    world: World, words: tuple[str, ...], before: str, meanwhile: Callable[[], object]
) -> Ran:
    """Run a command of the first machine; something happens before its first operation of a
    kind."""
    happened: list[str] = []

    def point(what: str) -> None:
        if what == before and not happened:
            happened.append(what)
            world.first.point = lambda what: None
            meanwhile()

    world.first.point = point
    ran = world.first.run(*words)
    assert happened
    return ran


def test_the_permission_uses_no_connection_that_is_to_commit(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take the turn of the commit, or close its connection. Then the commit is sent
    late."""
    matrix.mirror_zookeeper_leads(simulated)
    asks = SimulatedCoordinators(simulated.zk)
    asks.committed = simulated.kafka.committed
    monkeypatch.setattr(simulated.kafka, "another", lambda: asks)
    seen: list[str] = []
    simulated.kafka.around = seen.append
    for name, one in (("commits", simulated.kafka), ("asks", asks)):
        monkeypatch.setattr(one, "_check", lambda _group, name=name: seen.append(name))
    mirror = mirroring.Mirroring(simulated.stores())
    assert [one.state for one in mirror.steps(["g"])] == ["in step"]
    at = seen.index("before commit")
    assert seen[at + 1 : seen.index(SENT)] == ["asks"]


def test_an_expired_offset_is_not_restored_over_that_of_a_member(
    worlds: Callable[[str], World],
) -> None:
    """A new member commits and leaves, after its group's offsets were read and before its members
    were."""
    world = worlds("mirror_kafka_leads")
    world.second.run(*ONCE)
    world.one.forget("g", T0)
    overtaken(world, ONCE, "before commit", lambda: world.one.in_kafka("g", "t", 777))
    assert held(world.one) == ([777, 501], [777, 501])
    world.close()


@pytest.mark.parametrize("state", ["mirror_zookeeper_leads", "mirror_kafka_leads"])
def test_nothing_is_committed_for_a_topic_that_was_deleted(
    worlds: Callable[[str], World], state: str
) -> None:
    """It was deleted after the mirror had read that it exists."""
    world = worlds(state)
    world.second.run(*ONCE)
    world.one.forget("g", T0)

    def meanwhile() -> None:
        world.one.zk.delete("/brokers/topics/t")
        world.one.forget("g", T1)

    overtaken(world, ONCE, "before commit", meanwhile)
    assert held(world.one)[1] == []
    world.close()


def test_a_group_is_not_completed_without_an_offset_that_has_expired(
    worlds: Callable[[str], World],
) -> None:
    """It expires in Kafka while the group is completed."""
    world = worlds("mirror_kafka_leads")
    world.second.run(*ONCE)
    ran = overtaken(world, COMPLETE, "Create", lambda: world.one.forget("g", T0))
    assert ran.status == 0
    assert held(world.one) == ([500, 501], [500, 501])
    world.close()


@pytest.mark.parametrize("seconds", [None, 2.0, 0.5])
def test_a_late_commit_of_a_suspended_mirror_is_put_right(
    worlds: Callable[[str], World], seconds: float | None
) -> None:
    """It was permitted and sent late: after a cut-over, and before the new program has started.

    It is suspended for that long, or until its session has ended.
    """
    late = 0
    for number in points(worlds, "mirror_zookeeper_leads", ONCE):
        world = worlds("mirror_zookeeper_leads")
        sent: list[str] = []

        def meanwhile(what: str, world: World = world, sent: list[str] = sent) -> None:
            sent.append(what)
            if seconds is None:
                world.first.suspend()
            else:
                CLOCK.pass_(seconds)
            world.one.in_zookeeper("g", "t", 200)
            assert world.second.run(*CUT_OVER).status == 0

        world.first.at(number, meanwhile, lambda machine: machine.run(*ONCE))
        stored = [offset for _, tp, offset in world.one.kafka.log if tp == T0]
        if sent == [SENT]:
            assert stored[-3:] == [200, 110, 200]  # the last one puts it right
            late += 1
        else:  # it asks for permission right before
            assert 110 not in stored[stored.index(200) :], number
        world.first.zk.expire()
        ran, *stores = settled(world, ONCE)
        assert ran.rows[0]["state"] == "in step", (number, ran)
        assert tuple(stores) == ([200, 60], [200, 60]), number
        world.close()
    assert late == 1


@pytest.mark.parametrize("words", [ONCE, CUT_OVER])
def test_overtaken_at_every_point_by_an_end(
    worlds: Callable[[str], World], words: tuple[str, ...]
) -> None:
    """If the group is no longer mirrored, it is not locked, and Kafka has no copies. A mirror that
    had not read it before has begun again."""
    ended = 0
    for number in points(worlds, "mirror_zookeeper_leads", words):
        world = worlds("mirror_zookeeper_leads")

        def meanwhile(_what: str, world: World = world) -> None:
            world.second.run(*END)

        ran = world.first.at(number, meanwhile, lambda machine: machine.run(*words))
        assert ran is not None
        assert ran.status in (0, 3), (number, ran)
        found = world.status()
        if found["case"] == "untouched":
            ended += 1
            assert (found["locked"], held(world.one)) == ("no", ([110, 60], [])), number
        else:
            assert found["truth"] == "kafka" or words is ONCE, number
            assert held(world.one) == ([110, 60], [110, 60])
        world.close()
    assert ended


@pytest.mark.parametrize("words", [UNDO, END])
def test_a_cut_over_that_was_killed_is_named_and_taken_back(
    worlds: Callable[[str], World], words: tuple[str, ...]
) -> None:
    """At any point before Kafka leads. ``status`` names the commands that work, ``unlock`` the one
    to use instead, and ``gate`` reports the group. Afterwards nothing continues the cut-over."""
    begun = 0
    for number in points(worlds, "mirror_zookeeper_leads", CUT_OVER):
        world = worlds("mirror_zookeeper_leads")
        world.first.at(number, world.first.kill, lambda machine: machine.run(*CUT_OVER))
        found, second = world.status(), world.second
        if found["truth"] == "zookeeper" and "cut-over" in found["attention"]:
            begun += 1
            assert "locked" in found["reasons"]
            assert second.run("gate", "--group", "g").rows[0]["reasons"][-1] == "mirrored"
            ran = second.run("unlock", "--group", "g", "--execute")
            assert (ran.rows[0]["outcome"], ran.rows[0]["reasons"]) == ("refused", ["mirrored"])
            assert "undo" in ran.rows[0]["why"]
            assert second.run(*words).status == 0, number
            second.run(*ONCE, "--when-empty")
            found = world.status()
            assert (found["truth"], "locked" in found["reasons"]) == ("zookeeper", False), number
        if found["truth"] == "zookeeper":
            assert found["locked"] == "no", (number, found)
        world.close()
    assert begun > 3


@pytest.mark.parametrize("words", [END, PREPARE])
@pytest.mark.parametrize("then", [END, PREPARE])
def test_an_end_is_killed_at_every_point(
    worlds: Callable[[str], World], words: tuple[str, ...], then: tuple[str, ...]
) -> None:
    """A cut-over had locked old members out. They are let in, and Kafka has no copies any more,
    after the same command, or the other one that ends the mirror, on another machine."""

    def waits(state: str) -> World:
        world = worlds(state)
        waits_for_old_members(world.one, world.second)
        return world

    for number in points(waits, "mirror_zookeeper_leads", words):
        world = waits("mirror_zookeeper_leads")
        world.first.at(number, world.first.kill, lambda machine: machine.run(*words))
        assert world.second.run(*then).status == 0, number
        assert (world.status()["locked"], held(world.one)[1]) == ("no", []), number
        world.close()


@pytest.mark.parametrize("how", ["killed", "undone", "completed"])
def test_a_change_of_the_leader_is_interrupted_at_every_point(
    worlds: Callable[[str], World], how: str
) -> None:
    """New members have joined without a cut-over. The mirror is killed, and another one runs; or
    the new members leave, and another operator takes the group back; or one completes the mirror.
    Old members are locked out if Kafka leads, and only then."""

    def joined(state: str) -> World:
        world = worlds(state)
        world.second.run(*ONCE)
        world.second.zk.expire()
        joins(world.second)
        return world

    leaders = set()
    for number in points(joined, "mirror_zookeeper_leads", ONCE):
        world = joined("mirror_zookeeper_leads")

        def meanwhile(_what: str, world: World = world) -> None:
            if how == "killed":
                world.first.kill()
            if how == "completed":
                world.second.run(*COMPLETE)
                return
            world.one.kafka.joined.clear()
            assert world.second.run(*UNDO).status == 0

        ran = world.first.at(number, meanwhile, lambda machine: machine.run(*ONCE))
        if how == "killed":
            ran = world.second.run(*ONCE)
        assert ran is not None
        assert ran.status in (0, 3), (number, ran)
        found = world.status()
        leaders.add(found["truth"])
        assert found["locked"] == ("locked" if found["truth"] == "kafka" else "no"), number
        world.close()
    assert leaders == ({"kafka", "zookeeper"} if how == "undone" else {"kafka"})


@pytest.mark.parametrize("words", [UNDO, END])
def test_a_cut_over_that_waits_is_taken_back_while_new_members_start(
    worlds: Callable[[str], World], words: tuple[str, ...]
) -> None:
    """At any point of the command, and a mirror lets Kafka lead, which has not read the group since
    before the cut-over. Then old members are locked out, whatever the command was about to do."""
    running: list[mirroring.Mirroring] = []

    def waits(state: str) -> World:
        world = worlds(state)
        running.append(mirroring.Mirroring(world.one.stores()))
        list(running[-1].steps(["g"]))
        waits_for_old_members(world.one, world.second)
        return world

    leaders = set()
    for number in points(waits, "mirror_zookeeper_leads", words):
        world = waits("mirror_zookeeper_leads")

        def meanwhile(_what: str, world: World = world) -> None:
            joins(world.second)
            world.one.in_kafka("g", "t", 900)
            list(running[-1].steps(["g"]))

        ran = world.first.at(number, meanwhile, lambda machine: machine.run(*words))
        assert ran is not None
        found = world.status()
        leaders.add(found["truth"])
        assert (found["locked"] == "locked") == (found["truth"] == "kafka"), (number, ran, found)
        assert world.one.held("g", "t")[1][0] == 900, number
        world.close()
    assert "kafka" in leaders


@pytest.mark.parametrize(
    ("words", "then"), [(UNDO, COMPLETE), (COMPLETE, UNDO), (CUT_OVER, END), (UNDO, END)]
)
def test_a_command_that_is_overtaken_says_which_one_came_first(
    worlds: Callable[[str], World], words: tuple[str, ...], then: tuple[str, ...]
) -> None:
    """And what to do. A group that is no longer mirrored is not called damaged."""
    state = "mirror_zookeeper_leads" if then is END else "mirror_kafka_leads"

    def world_of(state: str) -> World:
        world = worlds(state)
        if (words, then) == (UNDO, END):
            waits_for_old_members(world.one, world.second)
        return world

    named = 0
    for number in points(world_of, state, words):
        world = world_of(state)
        others: list[Ran] = []

        def meanwhile(_what: str, world: World = world, others: list[Ran] = others) -> None:
            others.append(world.second.run(*then))

        ran = world.first.at(number, meanwhile, lambda machine: machine.run(*words))
        assert ran is not None
        why = ran.rows[0]["why"]
        assert ran.status in (0, 3), (number, ran)
        assert "is gone" not in why, (number, ran)
        if ran.rows[0]["reasons"] == ["other-operator"] and others[0].status == 0:
            named += "has run zkmigrate" in why
        world.close()
    assert named


@pytest.mark.parametrize("words", [END, PREPARE])
def test_a_mirror_is_ended_while_it_is_busy(
    worlds: Callable[[str], World], words: tuple[str, ...]
) -> None:
    """It copies what an old member has committed, at any point of the command. The command is not
    refused because of that."""
    for number in points(worlds, "mirror_zookeeper_leads", words):
        world = worlds("mirror_zookeeper_leads")
        mirror = mirroring.Mirroring(world.one.stores())

        def meanwhile(_what: str, world: World = world, mirror: Any = mirror) -> None:
            world.one.in_zookeeper("g", "t", 777)
            list(mirror.steps(["g"]))

        ran = world.first.at(number, meanwhile, lambda machine: machine.run(*words))
        assert ran is not None
        assert ran.status == 0, (number, ran)
        assert (world.status()["mirror"], held(world.one)) == ("", ([777, 60], [])), number
        world.close()


def test_a_mirror_lets_members_in_if_an_undo_was_killed(worlds: Callable[[str], World]) -> None:
    """After ZooKeeper leads, before it has unlocked the group."""
    led = False
    for number in points(worlds, "mirror_kafka_leads", UNDO):
        world = worlds("mirror_kafka_leads")
        world.first.at(number, world.first.kill, lambda machine: machine.run(*UNDO))
        world.second.run(*ONCE)
        found = world.status()
        led = led or found["truth"] == "zookeeper"
        assert (found["locked"] == "no") == (found["truth"] == "zookeeper"), number
        world.close()
    assert led


def test_another_leader_is_not_chosen_while_a_group_is_mirrored(simulated: Simulated) -> None:
    """A remark names the command that changes it. The mirror runs nevertheless, such as that of a
    service with this option."""
    matrix.mirror_zookeeper_leads(simulated)
    for words, remarks in ((CUT_OVER, ("", "cut-over")), (ONCE, ("undo", ""))):
        for lead, remark in zip(("zookeeper", "kafka"), remarks, strict=True):
            ran = simulated.run(*ONCE, "--lead", lead)
            assert ran.rows[0]["state"] == "in step"
            assert (f"run zkmigrate {remark} " in ran.err) == bool(remark), ran.err
        row(simulated, *words)


def test_a_mirror_that_has_lost_its_connection_does_not_cut_over(
    simulated: Simulated, tmp_path: Path
) -> None:
    """An outage of ZooKeeper ends the sessions of all members, although they run. It does when it
    has seen a member since."""
    mirror, old = seen_with_a_member(simulated, tmp_path)
    old.zk.expire()
    simulated.zk.expire()
    assert [one.leader for one in mirror.steps(["g"], True)] == ["zookeeper"]
    again = Machine(simulated, tmp_path / "again")
    registers(again)
    assert [one.leader for one in mirror.steps(["g"], True)] == ["zookeeper"]
    again.zk.expire()
    assert [one.leader for one in mirror.steps(["g"], True)] == ["kafka"]


def test_a_mirror_that_loses_its_connection_while_it_reads_does_not_cut_over(
    simulated: Simulated, tmp_path: Path
) -> None:
    """The reading is repeated when the connection is back. It shows no member any more, as the
    outage has ended their sessions."""
    mirror, old = seen_with_a_member(simulated, tmp_path)
    simulated.in_zookeeper("g", "t", 150)

    def outage(_op: ZkOp) -> None:
        simulated.zk.before = lambda op: None
        old.zk.expire()
        simulated.zk.interrupt()

    simulated.zk.before = outage
    for _ in range(2):
        assert [one.leader for one in mirror.steps(["g"], True)] == ["zookeeper"]
    assert simulated.zk.losses == 1


def test_a_cut_over_reads_again_after_a_lost_connection(simulated: Simulated) -> None:
    """ZooKeeper was restored from a backup that has an old member, and the version of the group's
    record is the same. So Kafka does not lead."""
    matrix.mirror_zookeeper_leads(simulated)

    def restored(op: ZkOp) -> None:
        if isinstance(op, Multi) and any(one.path == mirror_state.path("g") for one in op.ops):
            simulated.zk.before = lambda op: None
            simulated.zk.zk.do(Create("/consumers/g/ids/old", b"{}"))
            simulated.zk.interrupt()

    simulated.zk.before = restored
    with pytest.raises(GroupInUseError, match="old"):
        mirroring.Mirroring(simulated.stores()).cut_over("g", True, 0.0)
    mirror, _ = simulated.zk.run(mirror_state.read_mirror("g"))
    assert mirror.leader is Store.ZOOKEEPER


def test_a_live_move_ends_the_mirror(simulated: Simulated, tmp_path: Path) -> None:
    """While ZooKeeper leads, and if the move can be prepared. Kafka has no copies any more, and a
    mirror that runs lets the group be."""
    matrix.mirror_zookeeper_leads(simulated)
    mirror = mirroring.Mirroring(simulated.stores())
    assert [one.state for one in mirror.steps(["g"])] == ["in step"]
    other = Machine(simulated, tmp_path / "other")
    assert other.run(*(word for word in PREPARE if word != "--execute")).status == 0
    assert held(simulated) == ([110, 60], [110, 60])
    assert other.run(*PREPARE).status == 0
    assert other.run("status", "--group", "g").rows[0]["case"] == "prepared"
    assert held(simulated) == ([110, 60], [])
    assert [one.state for one in mirror.steps(["g"])] == ["not mirrored"]
