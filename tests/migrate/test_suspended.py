"""zkmigrate is suspended at any step until its session with ZooKeeper has ended. No server.

Meanwhile another operator finishes the work with a copy of the journal, and consumers commit. When
the suspended run continues, it must not replace what they have committed, or must say that it may
have done so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from zkmigrate.apply import guard, permission, resetting
from zkmigrate.apply.journal import read_records
from zkmigrate.apply.migrator import Migrator
from zkmigrate.apply.outcome import Outcome, Result
from zkmigrate.apply.parallel import Run
from zkmigrate.apply.records import RESET, begun_by, late_partitions
from zkmigrate.errors import GroupRefusedError, JournalWriteError
from zkmigrate.formats.plan_file import PlanFile
from zkmigrate.model import Direction, GroupState, KafkaOffset, Record, Stage, Store, ZkOffset
from zkmigrate.plan.reset import Reset
from zkmigrate.reasons import Reason
from zkmigrate.stores import record
from zkmigrate.verify import BEHIND, doubtful

from tests.migrate import matrix
from tests.migrate.simulated import Simulated, simulated
from tests.migrate.test_simulated import PATHS, SENT, T0, T1, Journal, Stores
from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.errors import (
    BrokerError,
    LeaderUnavailableError,
    ZkConsumerError,
    ZkUnavailableError,
)

__all__ = ["simulated"]
LATER = {T0: StoredOffset(190), T1: StoredOffset(190)}


def apply(operator: Stores, plan: PlanFile) -> Result:
    """Move the group."""
    return operator.apply(plan)


def rollback(operator: Stores, plan: PlanFile) -> Result:
    """Undo the move."""
    return operator.rollback(plan)


def reset(operator: Stores, _plan: PlanFile) -> Result:
    """Set the offsets in Kafka to 3."""
    zk = {tp: ZkOffset(n, 0, 0, 0) for tp, n in ((T0, 7), (T1, 9))}
    held = {tp: KafkaOffset(one.offset) for tp, one in operator.committed.items()}
    rows = [Reset(tp, held[tp].offset, 3, "") for tp in held]
    stores: Any = operator
    operator.zk.before = lambda op: operator.step("zookeeper")
    try:
        state = GroupState("g", zk=zk, kafka=held)
        found = operator.zk.run(record.read("g"))
        resetting.carry_out(stores, state, Store.KAFKA, rows, found, lambda _late: None)
    except GroupRefusedError as error:
        return Result("g", Outcome.REFUSED, 0, str(error))
    except ZkConsumerError as error:
        return Result("g", Outcome.FAILED, 0, str(error))
    return Result("g", Outcome.DONE, 2)


Act = Callable[[Stores, PlanFile], Result]


def prepared(act: Act) -> tuple[Stores, PlanFile]:
    """A group on which something is to be done."""
    operator = Stores()
    plan = operator.plan()
    if act is not apply:
        assert operator.apply(plan).outcome is Outcome.DONE
    return operator, plan


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The machine's clock, in seconds."""
    now = [0.0]
    monkeypatch.setattr(permission.time, "clock_gettime", lambda _which: now[0])
    return now


def steps(act: Act) -> list[str]:
    """The steps of an undisturbed run."""
    operator, plan = prepared(act)
    seen: list[str] = []
    operator.step = seen.append
    assert act(operator, plan).outcome is Outcome.DONE
    assert SENT in seen
    return seen


@pytest.mark.parametrize("act", [apply, rollback, reset])
def test_18_a_run_that_was_suspended_replaces_nothing(act: Act, clock: list[float]) -> None:
    """At every step but one it changes nothing in Kafka any more. Only a request that was on its
    way already cannot be called back. Then the partitions are named, by every later run too."""
    every = steps(act)
    for number, wanted in enumerate(every):
        operator, plan = prepared(act)
        left = [number]

        def suspend(
            what: str,
            operator: Stores = operator,
            plan: PlanFile = plan,
            left: list[int] = left,
        ) -> None:
            left[0] -= 1
            if left[0] != -1:
                return
            clock[0] += 1000
            operator.zk.expire()
            other = operator.another()
            assert act(other, plan).outcome.good, what
            operator.consume(LATER)

        operator.step = suspend
        result = act(operator, plan)
        operator.step = lambda what: None
        late = wanted == SENT
        assert (operator.committed == LATER) != late, (number, wanted, result)
        if late:
            assert result.outcome is Outcome.REFUSED
            assert "t-0, t-1: newer offsets may have been overwritten" in result.why
            assert operator.zk.run(record.read("g")).late == (T0, T1)
        if not late or act is reset:
            continue
        assert noted_late(operator) == [T0, T1]
        elsewhere = operator.another()
        elsewhere.journal.records = []
        for machine in (operator, elsewhere):
            again = act(machine, plan)
            assert again.outcome is Outcome.REFUSED
            assert "newer offsets may have been overwritten" in again.why
    assert len(every) > 10


@pytest.mark.parametrize("fault", ["the disk is full", "the coordinator is away"])
def test_a_late_commit_reaches_the_record_whatever_else_fails(
    clock: list[float], fault: str
) -> None:
    """Neither the journal nor the commits' log is needed for that."""
    operator, plan = prepared(apply)
    write = operator.journal.write

    def full(**written: Any) -> None:
        if written.get("step") == "late" and fault == "the disk is full":
            raise JournalWriteError(fault)
        write(**written)

    def away(group: str, position: int) -> list[tuple[TopicPartition, int | None]]:
        if fault == "the coordinator is away":
            raise LeaderUnavailableError(fault)
        return operator.log[position:]

    def suspend(what: str) -> None:
        if what == SENT:
            clock[0] += 1000
            operator.zk.expire()

    operator.journal.write, operator.step = full, suspend
    operator.commits_since = away  # type: ignore[method-assign]
    with suppress(JournalWriteError):
        assert "newer offsets may have been overwritten" in apply(operator, plan).why
    assert operator.zk.run(record.read("g")).late == (T0, T1)
    noted = noted_late(operator)
    assert noted == ([] if "full" in fault else [T0, T1])


def noted_late(operator: Stores) -> list[TopicPartition]:
    """The partitions that the journal has named, before ZooKeeper had them."""
    steps = begun_by(operator.journal.records).get("g", [])
    first = next((at for at, one in enumerate(steps, 1) if one["step"].endswith("late")), 0)
    return late_partitions(steps[:first])


class Killed(BaseException):
    """The process is gone."""


def kill_at(operator: Stores, number: int) -> None:
    """Let the next run end at its step of that number."""
    left = [number]

    def kill(_what: str) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise Killed

    operator.step = kill


def test_a_move_that_is_resumed_after_its_marker_leaves_nothing_to_undo_twice() -> None:
    """The run was killed after the marker was written. The next one keeps what was there before the
    first one, once, so that after the undo the group is as it was."""
    every = steps(apply)
    marked = max(
        number for number, what in enumerate(every) if what.startswith("after zookeeper m")
    )
    for number in range(marked, len(every)):
        operator, plan = prepared(apply)
        kill_at(operator, number)
        with pytest.raises(Killed):
            apply(operator, plan)
        operator.step = lambda what: None
        operator.zk.expire()
        assert operator.zk.run(record.read("g")).stage is Stage.DONE
        assert apply(operator, plan).outcome is Outcome.DONE
        assert rollback(operator, plan).outcome is Outcome.DONE
        assert operator.zk.run(record.read("g")).stage is Stage.UNDONE


def test_what_was_written_late_is_shown_until_a_reset(simulated: Simulated) -> None:
    """By every command, on a machine without the journal."""
    simulated.topic("t", (0, 10))
    simulated.in_zookeeper("g", "t", 5)
    late = record.encode(Record(late=(T0,)))
    simulated.zk.set(record.path("g"), late)
    for words in (("status",), ("gate",), ("plan",)):
        ran = simulated.run(*words, "--group", "g")
        assert ran.status == 3
        assert "written-late" in (ran.rows[0].get("reasons") or ran.rows[0]["kind"]), words
    words = ("reset", "--group", "g", "--all-topics", "--to-earliest", "--execute")
    assert simulated.run(*words).status == 0
    ran = simulated.run("status", "--group", "g")
    assert (ran.status, ran.rows[0]["serial"]) == (0, 2)
    assert "@" in ran.rows[0]["operator"]


def test_a_change_that_was_interrupted_and_written_late_is_ended_by_a_reset(
    simulated: Simulated,
) -> None:
    """Once all offsets in doubt are set. Then the group can be planned and moved."""
    matrix.written_late(simulated)
    words = ("reset", "--group", "g", "--store", "kafka", "--execute", "--to-offset", "600")

    def status() -> tuple[str, bool]:
        (row,) = simulated.run("status", "--group", "g").rows
        return row["case"], "written-late" in row["reasons"]

    assert simulated.run(*words, "--topic", "t:0").status == 0
    assert status() == ("written late", True), "t-1 is still in doubt"
    assert simulated.run(*words, "--topic", "t:1").status == 0
    assert status() == ("untouched", False)
    more = ("--on-conflict", "max", "--out", simulated.file("new"))
    assert simulated.run("plan", "--group", "g", *more).status == 0
    assert simulated.run("apply", simulated.file("new"), "--execute").status == 0
    assert simulated.held("g", "t")[1] == {0: 600, 1: 600}


def test_a_reset_that_is_late_says_so_when_zookeeper_is_silent(
    simulated: Simulated, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claims end with the session. The journal has the partitions, and so has the outcome."""
    simulated.topic("t", (0, 10))
    simulated.in_zookeeper("g", "t", 5)
    simulated.in_kafka("g", "t", 5)
    commit = simulated.kafka.commit

    def silent(_op: object) -> None:
        raise ZkUnavailableError("zookeeper is silent")

    def late(*words: Any) -> Any:
        failed = commit(*words)
        clock[0] += 1000
        simulated.zk.before = silent
        return failed

    monkeypatch.setattr(simulated.kafka, "commit", late)
    words = ("reset", "--group", "g", "--store", "kafka", "--all-topics", "--to-offset", "7")
    ran = simulated.run(*words, "--execute", "--journal", simulated.file("j"))
    assert ran.status == 3
    assert "t-0: newer offsets may have been overwritten" in ran.rows[0]["why"]
    steps = begun_by(read_records(Path(simulated.file("j")), RESET))["g"]
    assert late_partitions(steps) == [T0]


def test_a_reset_of_zookeeper_leaves_what_was_written_late_to_kafka(simulated: Simulated) -> None:
    """Only Kafka's offsets are in doubt. A reset of ZooKeeper ends the doubt about one that is gone
    from there, unless it may be hidden."""
    matrix.written_late(simulated)
    simulated.in_kafka("g", "t", 500, 50)
    words = ("reset", "--group", "g", "--store", "zookeeper", "--execute", "--to-offset", "600")
    for topic in ("--all-topics", "--topic=t:0"):
        assert simulated.run(*words, topic).status == 0
        found = simulated.zk.run(record.read("g"))
        assert (found.stage, found.late) == (Stage.BEGUN, (T0, T1))
    simulated.forget("g", T0)
    assert simulated.run(*words, "--all-topics").status == 0
    assert simulated.zk.run(record.read("g")).late == (T1,)
    simulated.forget("g", T1)
    simulated.hide("t")
    simulated.run(*words, "--all-topics")
    assert simulated.zk.run(record.read("g")).late == (T1,)


def test_a_reset_that_was_killed_leaves_what_was_written_late_in_doubt() -> None:
    """At every step, until the offsets are set and read back. The next reset ends the doubt."""
    ended: list[bool] = []
    number = 0
    while True:
        operator, plan = prepared(reset)
        operator.zk.run(record.note_late("g", [T0, T1]))
        kill_at(operator, number)
        try:
            reset(operator, plan)
            break
        except Killed:
            ended.append(not operator.zk.run(record.read("g")).in_doubt)
        done = {one.offset for one in operator.committed.values()} == {3}
        assert done or not ended[-1], number
        operator.step = lambda what: None
        operator.zk.expire()
        assert reset(operator, plan).outcome is Outcome.DONE
        assert not operator.zk.run(record.read("g")).in_doubt
        number += 1
    assert set(ended) == {False, True}


def test_an_undo_that_was_written_late_is_ended_by_a_reset(simulated: Simulated) -> None:
    """The group is then what it was before the undo, moved to Kafka."""
    matrix.moved(simulated)
    where = record.path("g")
    found = simulated.zk.run(record.read("g"))
    undoing = replace(found, stage=Stage.UNDOING, late=(T0,), by_undo=True)
    simulated.zk.set(where, record.encode(undoing))
    assert simulated.run("undo", "--group", "g", "--execute").status == 3
    words = ("reset", "--group", "g", "--all-topics", "--to-offset", "70", "--execute")
    assert simulated.run(*words).status == 0
    (row,) = simulated.run("status", "--group", "g").rows
    assert (row["case"], row["truth"]) == ("moved and used", "kafka")
    assert simulated.run("undo", "--group", "g", "--execute").rows[0]["way"] == "copy back"
    assert simulated.held("g", "t")[0] == {0: 70, 1: 70}


def test_the_record_names_as_many_late_partitions_as_have_room(simulated: Simulated) -> None:
    """The number of the others is shown, and they are in doubt until all offsets are set."""
    simulated.topic("t", (0, 10), (0, 10))
    simulated.in_zookeeper("g", "t", 5, 5)
    every = [TopicPartition("t" * 200, number) for number in range(500)]
    simulated.zk.run(record.note_late("g", every[:400]))
    noted = simulated.zk.run(record.note_late("g", every[300:]))
    size = len(simulated.zk.text(record.path("g")) or b"")
    assert size < 50 * 1024 < len(record.encode(Record(late=tuple(every))))
    assert noted.late == tuple(every[: len(noted.late)])
    assert len(noted.late) + noted.late_more >= len(every)
    (row,) = simulated.run("status", "--group", "g").rows
    assert f"and {noted.late_more} that only the journal of that run names" in row["attention"]
    simulated.zk.set(record.path("g"), record.encode(Record(late=(T0,), late_more=3)))
    for topic, doubt in (("t:0", True), ("t:0,1", False)):
        words = ("reset", "--group", "g", "--topic", topic, "--to-earliest", "--execute")
        assert simulated.run(*words).status == 0
        assert simulated.zk.run(record.read("g")).in_doubt is doubt


def test_verify_names_what_was_written_late() -> None:
    """Although it looks as planned. Once the consumers are ahead there is nothing to name."""
    operator = Stores()
    (group,) = operator.plan().groups
    for kafka, kinds in ((7, [BEHIND]), (190, [])):
        state = GroupState("g", kafka={T0: KafkaOffset(kafka)})
        found = doubtful(group, Direction.ZK_TO_KAFKA, state, [T0])
        assert [one.kind for one in found] == kinds


@pytest.mark.parametrize("fault", ["killed", "refused", "away", "session", "silent"])
def test_an_offset_that_is_not_given_back_is_in_doubt(clock: list[float], fault: str) -> None:
    """A client that is not a member has committed it, and the migrator has overwritten it. Every
    later run names it, on other machines too unless ZooKeeper cannot be reached."""
    operator, plan = prepared(apply)
    commit, seen = operator.kafka.commit, operator.commits_since
    requests: list[str] = []

    def silent(_op: object) -> None:
        raise ZkUnavailableError("zookeeper is silent")

    def restore(group: str, new: Any, permit: Callable[[], object]) -> Mapping[Any, Any]:
        requests.append("")
        if len(requests) == 1:
            operator.consume({T0: StoredOffset(190)})
            return commit(group, new, permit)
        if fault == "killed":
            raise Killed
        if fault == "refused":
            return {T0: BrokerError("not allowed")}
        raise LeaderUnavailableError("the coordinator is away")

    def look(group: str, position: int) -> list[tuple[TopicPartition, int | None]]:
        if fault == "session":
            operator.zk.expire()
        if fault == "silent":
            operator.zk.before = silent
        return seen(group, position)

    operator.kafka.commit = restore
    operator.commits_since = look  # type: ignore[method-assign]
    with suppress(Killed):
        result = apply(operator, plan)
        assert "t-0: " in result.why
        assert "newer offsets may have been overwritten" in result.why
        assert noted_late(operator) == [T0]
    operator.zk.before = lambda op: None
    assert operator.committed[T0] == StoredOffset(7)
    operator.zk.expire()
    elsewhere = operator.another()
    elsewhere.journal.records = []
    for machine in (operator, elsewhere)[: 1 if fault == "silent" else 2]:
        assert "t-0: " in apply(machine, plan).why
        assert machine.zk.run(record.read("g")).late == (() if fault == "silent" else (T0,))
    assert operator.committed[T0] == StoredOffset(7)


def test_a_lock_is_not_lifted_without_a_claim(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run moves a group back, and is suspended right before it unlocks the group. By then
    another operator may have moved it to Kafka and locked it again."""
    operator = Stores()
    stores: Any = operator
    plan = operator.plan()
    (done,) = Migrator(stores, lock=True).apply(
        plan, Run(operator.journal, idle=True), lambda result: None
    )
    assert done.outcome is Outcome.DONE
    locked = operator.zk.text(PATHS.ids)
    assert b"zkmigrate" in (locked or b"")
    operator.consume({T0: StoredOffset(20), T1: StoredOffset(20)})
    back = operator.plan(Direction.KAFKA_TO_ZK)
    (group,) = back.groups
    marker = operator.zk.text(f"{PATHS.root}/migration")
    back = replace(back, groups=(replace(group, marker=marker),))
    operator.journal = Journal(operator.done)
    real, suspended = guard.unlock, list[str]()

    def unlock(group: str, still: Any = None) -> Any:
        suspended.append(group)
        clock[0] += 1000
        operator.zk.expire()
        return real(group, still)

    monkeypatch.setattr(guard, "unlock", unlock)
    result = operator.apply(back)
    assert suspended == ["g"]
    assert result.outcome is not Outcome.DONE
    assert operator.zk.text(PATHS.ids) == locked


def test_a_group_is_not_locked_without_a_claim(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is suspended right before it locks the group. By then another operator may have
    rolled the group back, so that old consumers must be able to start."""
    operator = Stores()
    stores: Any = operator
    plan = operator.plan()
    real = guard.lock

    def lock(group: str, *more: Any) -> Any:
        clock[0] += 1000
        operator.zk.expire()
        assert operator.another().rollback(plan).outcome is Outcome.DONE
        return real(group, *more)

    monkeypatch.setattr(guard, "lock", lock)
    (result,) = Migrator(stores, lock=True).apply(
        plan, Run(operator.journal, idle=True), lambda result: None
    )
    assert result.outcome is Outcome.REFUSED
    assert result.locked is None
    assert not operator.zk.text(PATHS.ids)


def test_what_was_read_elsewhere_is_checked_right_before_the_change() -> None:
    """Not only before the claim, for which the run may wait. Consumers there may start again."""
    operator = Stores()
    stores: Any = operator

    def check(_plan: object) -> None:
        if operator.claimed:
            raise GroupRefusedError("consumers are on the other cluster", Reason.CHANGED)

    migrator = Migrator(stores, check=check)
    (result,) = migrator.apply(operator.plan(), Run(operator.journal), lambda result: None)
    assert "consumers are on the other cluster" in result.why
    assert (operator.committed, operator.claimed) == ({}, False)
