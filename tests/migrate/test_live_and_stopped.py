"""A live move and the commands for stopped groups know of each other. No server.

Whole commands run on a simulated cluster.
"""

from __future__ import annotations

from typing import Any

import pytest
from zkmigrate.apply import guard, live
from zkmigrate.apply.journal import read_records
from zkmigrate.apply.records import histories_of

from tests.migrate import matrix
from tests.migrate.rows import step_words
from tests.migrate.simulated import Simulated, simulated
from zkconsumer.admin import ids_lock
from zkconsumer.admin.tools import GroupTools
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.migration.modes import Mode
from zkconsumer.core.migration.znodes import LivePaths, encode_member, encode_mode
from zkconsumer.core.zookeeper.ops import AclEntry, GetAcl, Multi, Ok, SetAcl
from zkconsumer.core.zookeeper.znodes import GroupPaths

__all__ = ["simulated"]  # the fixture

PATHS, GROUP = LivePaths.of("g"), GroupPaths("g")


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch, simulated: Simulated) -> None:
    monkeypatch.setattr(live, "_POLL", 0)


def group(simulated: Simulated) -> None:
    """A group with an offset in ZooKeeper that was prepared for a live move."""
    simulated.topic("t", (0, 100))
    simulated.in_zookeeper("g", "t", 40)
    simulated.zk.set(GROUP.ids)
    assert simulated.run("live", "prepare", "--group", "g", "--execute", "--wait", "0").status == 0


def to(simulated: Simulated, mode: Mode) -> None:
    """Take the group, which has no members, to a mode."""
    for step in ("lock", "to-kafka", "finalize"):
        if simulated.zk.text(PATHS.mode) == encode_mode(mode):
            return
        if step == "finalize":
            simulated.in_kafka("g", "t", 40)
        ran = simulated.run(*step_words(step), "--group", "g", "--execute", "--wait", "0")
        assert ran.status == 0, ran
    assert simulated.zk.text(PATHS.mode) == encode_mode(mode)


def status(simulated: Simulated) -> dict[str, Any]:
    """The group's row of ``zkmigrate status``."""
    (row,) = simulated.run("status", "--group", "g").rows
    return row


def plan(simulated: Simulated, *words: str) -> dict[str, Any]:
    """The group's first row of ``zkmigrate plan``; the file is called ``plan``."""
    file = simulated.file("plan")
    rows = simulated.run("plan", "--group", "g", "--out", file, *words).rows
    assert rows[0]["group"] == "g"
    return rows[0]


def test_a_prepared_group_can_be_moved_stopped(simulated: Simulated) -> None:
    """And ``groups verify`` finds nothing wrong with it."""
    group(simulated)
    tools = GroupTools("sim:1")
    tools._zk = simulated.zk  # type: ignore[assignment]
    assert list(tools.verify(["g"], lag=False)) == []
    assert plan(simulated)["verdict"] == "ready"
    assert simulated.run("apply", simulated.file("plan"), "--execute").status == 0
    assert simulated.held("g", "t")[1] == {0: 40}
    row = status(simulated)
    assert (row["truth"], row["locked"], row["attention"]) == ("kafka", "locked", "")


def test_a_group_that_was_moved_stopped_is_not_moved_again(simulated: Simulated) -> None:
    """Its members would start at the old offsets. ``lock`` and ``unlock`` work on the lock of the
    move, and leave the mode alone."""
    group(simulated)
    plan(simulated)
    assert simulated.run("apply", simulated.file("plan"), "--execute").status == 0
    ran = simulated.run("live", "prepare", "--group", "g", "--execute", "--wait", "0")
    assert ran.status == 3
    assert ran.rows[0]["reasons"] == ["moved"]
    for step, state in (("unlock", ids_lock.Guard.OPEN), ("lock", ids_lock.Guard.LOCKED)):
        ran = simulated.run(step, "--group", "g", "--execute")
        assert (ran.status, ran.rows[0]["outcome"], ran.rows[0]["mode"]) == (0, "done", None)
        assert simulated.zk.run(ids_lock.look("g")).guard is state
        assert simulated.zk.text(PATHS.mode) == encode_mode(Mode.ZOOKEEPER)


@pytest.mark.parametrize("mode", [Mode.LOCKED, Mode.KAFKA, Mode.OPEN])
@pytest.mark.parametrize("way", ["zk-to-kafka", "kafka-to-zk"])
def test_a_group_in_a_live_move_is_refused_with_the_way_out(
    simulated: Simulated, mode: Mode, way: str
) -> None:
    """Its mode says which store counts, and a plan does not know that."""
    group(simulated)
    to(simulated, mode)
    row = plan(simulated, "--direction", way)
    assert (row["verdict"], row["kind"]) == ("refused", "live-move")
    assert ("zkmigrate complete" if mode is Mode.OPEN else "live to-zookeeper") in row["fix"]
    (row,) = simulated.run("unlock", "--group", "g", "--execute", "--wait", "0").rows
    assert row["outcome"] == ("done" if mode is Mode.LOCKED else "refused")


@pytest.mark.parametrize("mode", [Mode.LOCKED, Mode.KAFKA, Mode.OPEN])
def test_status_knows_live_moves(simulated: Simulated, mode: Mode) -> None:
    """It shows the mode and the store that counts, and calls for attention when the lock is gone or
    an old consumer runs, but not for members that take part."""
    group(simulated)
    to(simulated, mode)
    simulated.in_kafka("g", "t", 60)
    row = status(simulated)
    assert row["truth"] == ("zookeeper" if mode is Mode.LOCKED else "kafka")
    assert (row["moved"], row["locked"]) == (f"live: {mode.value}", "locked")
    assert row["attention"] == ""
    simulated.zk.set(f"{GROUP.ids}/g_new", b"{}")
    simulated.zk.set(f"{PATHS.members}/g_new", encode_member(1))
    assert status(simulated)["attention"] == ""
    simulated.zk.run(guard.unlock("g"))
    simulated.zk.set(f"{GROUP.ids}/g_old", b"{}")
    attention = status(simulated)["attention"]
    assert "old consumers run: stop g_old;" in attention
    assert "is not locked, so old consumers can start: repeat the last step of" in attention


def test_status_names_a_moved_group_that_is_not_locked(simulated: Simulated) -> None:
    """An old consumer could start there."""
    group(simulated)
    plan(simulated)
    assert simulated.run("apply", simulated.file("plan"), "--execute", "--no-lock").status == 0
    assert "old consumers can start: run zkmigrate lock" in status(simulated)["attention"]
    assert simulated.run("lock", "--group", "g", "--execute").status == 0
    assert status(simulated)["attention"] == ""


@pytest.mark.parametrize("state", ["untouched", "rolled_back", "moved_back", "prepared"])
def test_status_names_a_locked_group_that_counts_in_zookeeper(
    simulated: Simulated, state: str
) -> None:
    """No consumer could start there. A command was killed, or two operators worked at once."""
    getattr(matrix, state)(simulated)
    assert simulated.zk.run(guard.lock("g")) is None
    assert simulated.run("status", "--group", "g").status == 3
    (text, reasons) = (status(simulated)[name] for name in ("attention", "reasons"))
    assert text == "is locked, so old consumers cannot start: run zkmigrate unlock"
    assert reasons == ["locked"]
    simulated.zk.set(f"{GROUP.owners}/g_zkmigrate-12345678")
    row = status(simulated)
    assert (row["truth"], row["attention"]) == ("moving", ""), "a command holds the group"
    simulated.zk.delete(f"{GROUP.owners}/g_zkmigrate-12345678")
    assert simulated.run("unlock", "--group", "g", "--wait", "0", "--execute").status == 0
    assert simulated.run("status", "--group", "g").status == 0


def test_a_move_closes_the_lock_that_a_live_move_left(simulated: Simulated) -> None:
    """``lock`` was killed before it wrote the mode, so migratable members could register. After a
    stopped move they would read on from ZooKeeper's old offsets."""
    group(simulated)
    assert simulated.zk.run(guard.lock("g", (ids_lock.LIVE,))) is None
    plan(simulated)
    assert simulated.run("apply", simulated.file("plan"), "--execute").status == 0
    assert ids_lock.LIVE not in access(simulated)


def test_lock_and_status_notice_migratable_members_that_may_still_register(
    simulated: Simulated,
) -> None:
    """The move was killed between its marker and the lock."""
    group(simulated)
    assert simulated.zk.run(guard.lock("g", (ids_lock.LIVE,))) is None
    plan(simulated)
    assert simulated.run("apply", simulated.file("plan"), "--execute", "--no-lock").status == 0
    simulated.zk.do(SetAcl(GROUP.ids, (*access(simulated), ids_lock.LIVE), -1))
    assert status(simulated)["reasons"] == ["not-locked"]
    (row,) = simulated.run("lock", "--group", "g", "--execute").rows
    assert row["outcome"] == "done"
    assert ids_lock.LIVE not in access(simulated)
    assert (status(simulated)["locked"], status(simulated)["reasons"]) == ("locked", [])


def access(simulated: Simulated) -> tuple[AclEntry, ...]:
    """The access list of the group's ``ids``."""
    acl = simulated.zk.run(ids_lock.look("g")).acl
    assert acl is not None
    return acl.entries


def test_a_live_move_after_a_move_back(simulated: Simulated) -> None:
    """In its modes the coordinator's offsets count, whatever an earlier marker says."""
    moved_back(simulated, "g")
    to(simulated, Mode.KAFKA)
    for store in (simulated.in_kafka, simulated.in_zookeeper):
        store("g", "t", 60)
    for mode in (Mode.KAFKA, Mode.OPEN):
        row = status(simulated)
        assert (row["mode"], row["truth"], row["changed"]) == (mode.value, "kafka", 0)
        assert row["attention"] == ""
        simulated.run("live", "finalize", "--group", "g", "--execute", "--wait", "0")
        simulated.in_kafka("g", "t", 61)


def test_a_reset_in_a_live_move_after_a_move_under_another_name(simulated: Simulated) -> None:
    """Members commit under the group's own name. The group that it once was in Kafka is another."""
    moved_back(simulated, "new")
    to(simulated, Mode.KAFKA)
    for store in (simulated.in_kafka, simulated.in_zookeeper):
        store("g", "t", 60)
    words = ("reset", "--group", "g", "--all-topics", "--to-earliest", "--execute")
    assert simulated.run(*words).status == 0
    assert simulated.held("g", "t") == ({0: 0}, {0: 0})
    assert simulated.held("new", "t")[1] == {0: 50}


def moved_back(simulated: Simulated, name: str) -> None:
    """A group that was moved to Kafka under a name, and back."""
    group(simulated)
    plan(simulated, "--rename", f"g={name}")
    assert simulated.run("apply", simulated.file("plan"), "--execute").status == 0
    simulated.in_kafka(name, "t", 50)
    assert simulated.run("undo", "--group", "g", "--execute").status == 0
    assert status(simulated)["case"] == "prepared"


def test_a_finished_live_move_counts_as_moved_and_can_go_back(simulated: Simulated) -> None:
    """``complete`` records it. The lock stays, and lets no migratable member in any more."""
    group(simulated)
    to(simulated, Mode.OPEN)
    simulated.in_kafka("g", "t", 70)  # plain consumers
    ran = simulated.run("complete", "--group", "g")
    assert (ran.status, ran.rows[0]["outcome"]) == (0, "would be done")
    assert status(simulated)["moved"] == "live: open"
    ran = simulated.run("complete", "--all", "--execute")
    assert (ran.status, ran.rows[0]["outcome"]) == (0, "done")
    ran = simulated.run("complete", "--group", "g", "--execute")
    assert (ran.status, ran.rows[0]["outcome"]) == (0, "was done before")
    row = status(simulated)
    assert (row["truth"], row["locked"], row["attention"]) == ("kafka", "locked", "")
    assert row["moved"].startswith("kafka ")
    found = simulated.zk.run(ids_lock.look("g"))
    assert found.guard is ids_lock.Guard.LOCKED
    assert ids_lock.LIVE not in found.acl.entries

    assert plan(simulated, "--direction", "kafka-to-zk")["verdict"] == "ready"
    assert simulated.run("apply", simulated.file("plan"), "--execute").status == 0
    assert simulated.held("g", "t")[0] == {0: 70}
    assert simulated.zk.run(ids_lock.look("g")).guard is ids_lock.Guard.OPEN
    row = status(simulated)
    assert (row["truth"], row["attention"]) == ("zookeeper", "")
    assert simulated.run("live", "prepare", "--group", "g", "--execute", "--wait", "0").status == 0


def test_complete_decides_by_the_group_s_case(simulated: Simulated) -> None:
    """With --all, it completes mirrored groups and live moves, and leaves out what is not ready."""
    simulated.topic("t", (0, 100))
    for name in ("g", "kafka", "mirrored", "other"):
        simulated.in_zookeeper(name, "t", 40)
    for name, steps in {
        "g": ("live prepare", "lock", "live to-kafka", "live finalize"),
        "kafka": ("live prepare", "lock", "live to-kafka"),
        "mirrored": ("mirror --once", "cut-over"),
    }.items():
        for step in steps:
            matrix.good(simulated.run(*step.split(), "--group", name, "--execute"))
            simulated.in_kafka(name, "t", 40)
    found = []
    for words in ((), ("--execute",), ("--execute",)):
        ran = simulated.run("complete", "--all", *words)
        assert ran.status == 0, ran
        found.append({row["group"]: row["outcome"] for row in ran.rows})
    assert found == [
        {"g": word, "mirrored": word, "other": "skipped"}
        for word in ("would be done", "done", "was done before")
    ]
    assert status(simulated)["case"] == "moved"


@pytest.mark.parametrize("mode", [Mode.ZOOKEEPER, Mode.LOCKED, Mode.KAFKA])
def test_a_live_move_that_is_not_finished_is_not_completed(
    simulated: Simulated, mode: Mode
) -> None:
    """Nothing changes."""
    group(simulated)
    to(simulated, mode)
    for words in ((), ("--execute",)):
        ran = simulated.run("complete", "--group", "g", *words)
        assert ran.status == 3
        assert (ran.rows[0]["reasons"], ran.rows[0]["mode"]) == (["wrong-mode"], mode.value)
    assert simulated.zk.text(PATHS.mode) == encode_mode(mode)


def test_a_member_that_comes_back_stops_the_completion(simulated: Simulated) -> None:
    """At any request of the tool. Then the group is as before, and lets the member in again."""
    number, came = 0, True
    group(simulated)
    to(simulated, Mode.OPEN)
    mine = f"{PATHS.members}/g_back"
    while came:
        came, left = False, number

        def before(_op: object) -> None:
            nonlocal came, left
            left -= 1
            if left == -1 and ids_lock.LIVE in simulated.zk.run(ids_lock.look("g")).acl.entries:
                came = True
                simulated.zk.before = lambda op: None
                simulated.zk.set(mine, encode_member(1))

        simulated.zk.before = before
        ran = simulated.run("complete", "--group", "g", "--execute")
        simulated.zk.before = lambda op: None
        if came:
            assert ran.status == 3, number
            assert simulated.zk.text(PATHS.mode) == encode_mode(Mode.OPEN)
            assert ids_lock.LIVE in simulated.zk.run(ids_lock.look("g")).acl.entries
            simulated.zk.delete(mine)
        number += 1
    assert number > 5
    assert simulated.zk.text(PATHS.mode) == encode_mode(Mode.ZOOKEEPER)


def test_a_group_with_its_offsets_in_kafka_is_moved_without_writing(simulated: Simulated) -> None:
    """offsets.storage=kafka: the group gets the marker and the lock, and keeps its offsets."""
    simulated.topic("t", (0, 100))
    simulated.zk.set(GROUP.ids)
    simulated.zk.set(GROUP.owners_topic("t"))
    simulated.in_kafka("g", "t", 60)
    row = plan(simulated)
    assert (row["verdict"], row["to_write"]) == ("ready", 0)
    assert "offsets.storage=kafka" in row["notes"]
    assert simulated.run("apply", simulated.file("plan"), "--execute").status == 0
    assert simulated.held("g", "t")[1] == {0: 60}
    row = status(simulated)
    assert (row["truth"], row["locked"], row["attention"]) == ("kafka", "locked", "")
    simulated.run("plan", "--group", "g", "--out", simulated.file("again"))
    assert simulated.run("status", simulated.file("plan")).status == 0


def test_a_group_that_zookeeper_does_not_know_is_still_an_error(simulated: Simulated) -> None:
    """Such as a wrong name, or a wrong chroot."""
    simulated.topic("t", (0, 100))
    simulated.in_kafka("g", "t", 60)
    ran = simulated.run("plan", "--group", "g", "--out", simulated.file("plan"))
    assert (ran.status, ran.rows) == (1, [])
    assert "g" in ran.err


@pytest.mark.parametrize("in_zookeeper", [None, 40])
def test_a_live_move_does_not_begin_where_kafka_is_ahead(
    simulated: Simulated, in_zookeeper: int | None
) -> None:
    """The first migratable member would deliver again what was consumed since. Nobody is told to
    delete the only right offsets."""
    simulated.topic("t", (0, 100))
    simulated.zk.set(GROUP.ids)
    simulated.in_zookeeper("g", "t", in_zookeeper)
    simulated.in_kafka("g", "t", 60)
    for step, mode in (("prepare", None), ("lock", encode_mode(Mode.ZOOKEEPER))):
        if mode is not None:
            simulated.zk.set(PATHS.mode, mode)
        for words in ((), ("--execute",)):
            ran = simulated.run(*step_words(step), "--group", "g", "--wait", "0", *words)
            assert ran.status == 3
            assert "offsets.storage=kafka" in ran.rows[0]["why"]
            assert "delete" not in ran.rows[0]["why"]
        assert simulated.zk.text(PATHS.mode) == mode


@pytest.mark.parametrize("store", ["zookeeper", "kafka"])
def test_a_reset_that_dual_commit_would_undo_is_refused(simulated: Simulated, store: str) -> None:
    """A member with dual commit begins at the higher of both offsets."""
    simulated.topic("t", (0, 100))
    simulated.in_zookeeper("g", "t", 40)
    simulated.in_kafka("g", "t", 40)
    words = ("reset", "--group", "g", "--all-topics", "--execute")
    ran = simulated.run(*words, "--to-earliest", "--store", store)
    assert ran.status == 3
    assert "would undo the reset: use --store both" in ran.rows[0]["why"]
    assert simulated.held("g", "t") == ({0: 40}, {0: 40})
    assert simulated.run(*words, "--to-earliest").status == 3
    ran = simulated.run(*words, "--to-earliest", "--store", "both")
    assert ran.status == 0
    assert [(one["store"], one["before"], one["after"]) for one in ran.rows] == [
        ("kafka", 40, 0),
        ("zookeeper", 40, 0),
    ]
    assert simulated.held("g", "t") == ({0: 0}, {0: 0})
    ran = simulated.run(*words, "--to-latest", "--store", store)
    assert ran.status == 0, "forwards, the other store does not matter"


@pytest.mark.parametrize("mode", [Mode.LOCKED, Mode.KAFKA, Mode.OPEN])
def test_a_reset_in_a_live_move_sets_both_stores(simulated: Simulated, mode: Mode) -> None:
    """Its members begin at the higher offset. --shift-by counts from it."""
    group(simulated)
    to(simulated, mode)
    simulated.in_kafka("g", "t", 60)
    words = ("reset", "--group", "g", "--all-topics", "--execute")
    assert simulated.run(*words, "--to-earliest", "--store", "zookeeper").status == 3
    assert simulated.run(*words, "--shift-by", "-10").status == 0
    assert simulated.held("g", "t") == ({0: 50}, {0: 50})
    assert simulated.run(*words, "--to-earliest").status == 0
    assert simulated.held("g", "t") == ({0: 0}, {0: 0})


def test_status_fails_for_a_live_group_that_cannot_be_read(simulated: Simulated) -> None:
    """A script must not continue with the next step. The other groups are shown."""
    group(simulated)
    simulated.zk.set("/consumers/other/live/mode", b"?")
    ran = simulated.run("status", "--group", "other", "--group", "g")
    assert ran.status == 1
    assert [(one["group"], one["mode"]) for one in ran.rows] == [
        ("other", ""),
        ("g", "zookeeper"),
    ]
    assert simulated.run("status", "--group", "g").status == 0
    for step in ("prepare", "lock", "to-kafka", "finalize", "complete", "to-zookeeper", "unlock"):
        for words in ((), ("--execute",)):
            ran = simulated.run(*step_words(step), "--group", "other", "--wait", "0", *words)
            assert ran.status == 1, step
    simulated.zk.set(f"{PATHS.members}/g_new", b"?")
    ran = simulated.run("status", "--group", "g")
    assert (ran.status, "g_new" in ran.rows[0]["attention"]) == (1, True)


@pytest.mark.parametrize(
    ("entry", "verdict", "lockable"),
    [
        (AclEntry(31, "digest", "ops:hash"), "ready", True),
        (AclEntry(15, "digest", "ops:x"), "ready", False),  # ZooKeeper hides the digest
        (AclEntry(31, "digest", "other:x"), "refused", False),
        (AclEntry(15, "world", "anyone"), "ready", False),
    ],
)
def test_a_masked_access_list_is_understood(
    simulated: Simulated, entry: AclEntry, verdict: str, lockable: bool
) -> None:
    """ZooKeeper shows digests only to those who may change the list. Whoever may register but not
    lock is told so before the move."""
    group(simulated)
    simulated.zk.identities = (("world", "anyone"), ("digest", "ops:hash"))
    assert simulated.zk.do(SetAcl(GROUP.ids, (entry,), 0)) == Ok(None)
    row = plan(simulated)
    assert row["verdict"] == verdict
    assert ("cannot be locked" in row["notes"]) != lockable


@pytest.mark.parametrize(
    ("root", "own"),
    [
        ((AclEntry(31, "digest", "app:hash"), AclEntry(1, "digest", "ops:hash")), True),
        ((AclEntry(31, "digest", "app:x"),), False),  # the digest is hidden
        ((AclEntry(5, "digest", "app:hash"),), False),  # nobody could write it again
        ((AclEntry(31, "world", "anyone"),), False),
    ],
)
def test_the_marker_has_the_access_list_of_its_group(
    simulated: Simulated, root: tuple[AclEntry, ...], own: bool
) -> None:
    """It says which store counts, so only those who may write the group may write it."""
    group(simulated)
    simulated.zk.identities = (("digest", "app:hash"), ("digest", "app:x"), ("world", "anyone"))
    plan(simulated)
    assert simulated.zk.do(SetAcl(GROUP.root, root, 0)) == Ok(None)
    assert simulated.run("apply", simulated.file("plan"), "--execute").status == 0
    found = simulated.zk.do(GetAcl(f"{GROUP.root}/migration")).value.entries
    assert found == (root if own else (AclEntry(31, "world", "anyone"),))


def test_a_member_that_registers_during_a_reset_is_named(simulated: Simulated) -> None:
    """It cannot claim anything yet, but may have read an old offset. The rows and the journal say
    that the offsets are set."""
    group(simulated)
    done: list[object] = []

    def register(op: object) -> None:
        if not done and "/offsets/t/0" in str(op) and isinstance(op, Multi):
            done.append(op)
            simulated.zk.set(f"{GROUP.ids}/g_new", b"{}")

    simulated.zk.before = register
    ran = simulated.run("reset", "--group", "g", "--all-topics", "--to-earliest", "--execute")
    assert done
    assert ran.status == 3
    row, refusal = ran.rows
    assert (row["store"], row["before"], row["after"]) == ("zookeeper", 40, 0)
    assert "g_new registered in the meantime and may have read the old ones" in refusal["why"]
    assert "1 offsets; groups: 1 refused" in ran.err
    assert simulated.held("g", "t")[0] == {0: 0}
    records = read_records(simulated.folder / "zkmigrate-reset.journal", "reset")
    assert histories_of(records)["g"].ended[-1].result.changed[0].after == 0


def test_a_complete_move_records_misplaced_offsets_that_members_have_passed(
    simulated: Simulated,
) -> None:
    """Later commands know them, and do not treat them as commits of an old consumer."""
    group(simulated)
    simulated.in_zookeeper("g", "t", 30, where="offset")
    to(simulated, Mode.OPEN)
    assert simulated.run("complete", "--group", "g", "--execute", "--wait", "0").status == 0
    assert simulated.run("status", "--group", "g").status == 0
    assert plan(simulated)["verdict"] == "moved"
    assert simulated.run("gate", "--group", "g").status == 0


def test_a_complete_move_records_offsets_that_only_kafka_has(simulated: Simulated) -> None:
    """Plain consumers have committed them in mode ``open``. If they expire, ``status`` shows it."""
    group(simulated)
    to(simulated, Mode.OPEN)
    simulated.topic("t", (0, 100), (0, 100))
    simulated.in_kafka("g", "t", None, 7)
    assert simulated.run("complete", "--group", "g", "--execute", "--wait", "0").status == 0
    assert simulated.run("status", "--group", "g").status == 0
    simulated.forget("g", TopicPartition("t", 1))
    found = simulated.run("status", "--group", "g")
    assert found.status == 3
    assert (
        "gone from kafka: make a new plan, which shows what to decide (t-1)"
        in (found.rows[0]["attention"])
    )


@pytest.mark.parametrize("step", ["prepare", "lock"])
def test_a_refused_start_changes_nothing(simulated: Simulated, step: str) -> None:
    """A group with offsets that a live move would leave behind keeps its znodes and its ACL."""
    simulated.topic("t", (0, 100))
    simulated.in_zookeeper("g", "t", 40)
    simulated.in_zookeeper("g", "t", 41, where="offset")
    simulated.zk.set(GROUP.ids)
    if step == "lock":
        simulated.zk.set(PATHS.mode, encode_mode(Mode.ZOOKEEPER))
    before = simulated.znodes("g")
    ran = simulated.run(*step_words(step), "--group", "g", "--execute", "--wait", "0")
    assert (ran.status, ran.rows[0]["outcome"]) == (3, "refused")
    assert "higher than those below offsets, where members read: t-0" in ran.rows[0]["why"]
    assert simulated.znodes("g") == before
    simulated.in_zookeeper("g", "t", 41)
    assert simulated.run(*step_words(step), "--group", "g", "--execute", "--wait", "0").status == 0
