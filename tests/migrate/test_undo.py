"""``undo``, from another machine: without the plan, the journal and the memory of the first one.

Whole commands on a simulated cluster. ``test_operators`` has what may happen at any point of them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from zkmigrate.apply import guard, live, ownership
from zkmigrate.apply.hooks import Hooks
from zkmigrate.apply.journal import read_records
from zkmigrate.apply.records import histories_of
from zkmigrate.formats import plan_file
from zkmigrate.model import Before, KafkaOffset, Stage, Store
from zkmigrate.stores import migration_marker, record

from tests.migrate import matrix
from tests.migrate.matrix import DO
from tests.migrate.operators import Killed, Machine, machines, virtual_time
from tests.migrate.simulated import SENT, Ran, Simulated, simulated
from tests.unit import tool_zk
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Multi, Reply, SetAcl, SetData, ZkOp
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.sim.servers.zk import FakeZk

__all__ = ["simulated"]
OLD, NEW = {0: 100, 1: 50}, {0: 500, 1: 501}


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_POLL", 0)


def status(one: Simulated) -> dict[str, Any]:
    """The group's row of ``status``."""
    (row,) = one.run("status", "--group", "g").rows
    return row


def stored(one: Simulated) -> tuple[dict[int, int], dict[int, int]]:
    """The offsets in ZooKeeper and in Kafka."""
    return one.held("g", "t")


@pytest.mark.parametrize("state", ["moved", "used", "moved_back"])
def test_a_group_that_was_taken_back_stays_so(simulated: Simulated, state: str) -> None:
    """The same command is run again when another group was refused. Only --again goes further. A
    group that is in Kafka again is refused, whatever its consumers have done since."""
    getattr(matrix, state)(simulated)
    ran = simulated.run("undo", "--all", *DO)
    assert (ran.status, ran.rows[0]["outcome"]) == (0, "done"), ran
    refused = state == "moved_back"
    if refused:
        simulated.in_kafka("g", "t", 520)
    offsets, row, znodes = stored(simulated), status(simulated), simulated.znodes("g")
    assert row["truth"] == ("kafka" if refused else "zookeeper")
    for words in (("--all",), ("--group", "g"), ("--all", *DO), ("--group", "g", *DO)):
        ran = simulated.run("undo", *words)
        answer = (3, "refused") if refused else (0, "was done before")
        assert (ran.status, ran.rows[0]["outcome"]) == answer, ran
        assert ("--again" in ran.rows[0]["why"]) is (state != "moved")
        assert " back: g" not in ran.err
    assert simulated.znodes("g") == znodes
    assert (stored(simulated), status(simulated)) == (offsets, row)
    again = simulated.run("undo", "--all", "--again", *DO)
    assert again.rows[0]["outcome"] == ("was done before" if state == "moved" else "done")


def test_undo_of_a_plan_may_be_repeated_after_a_copy_back(simulated: Simulated) -> None:
    """The record then no longer has the plan. A dry run is the same."""
    matrix.used(simulated)
    words = ("undo", simulated.file("move"))
    ran = simulated.run(*words, *DO)
    assert (ran.status, ran.rows[0]["way"]) == (0, "copy back"), ran
    znodes = simulated.znodes("g")
    for more in ((), DO):
        ran = simulated.run(*words, *more)
        assert (ran.status, ran.rows[0]["outcome"]) == (0, "was done before"), ran
        assert " back: g" not in ran.err
    assert simulated.znodes("g") == znodes
    assert stored(simulated) == (NEW, NEW)


@pytest.mark.parametrize(
    "state", ["moved", "used", "copied_back", "copy_back_killed", "moved_back"]
)
def test_undo_of_another_plan_names_the_one_that_changed_the_group(
    simulated: Simulated, state: str
) -> None:
    """It is refused on any machine, with or without the journal of that plan. Nothing changes."""
    matrix.untouched(simulated)
    assert simulated.run("plan", "--group", "g", "--out", "other").status == 0
    simulated.now_ms += 1
    matrix.moved_back(simulated) if state == "moved_back" else matrix.moved(simulated)
    whose = simulated.file("back" if state == "moved_back" else "move")
    if state.startswith("cop") or state == "used":
        simulated.in_kafka("g", "t", *NEW.values())
    if state == "copied_back":
        assert simulated.run("undo", whose, *DO).rows[0]["way"] == "copy back"
    elif state == "copy_back_killed":
        machine, _ = machines(simulated)
        kill_before_offsets(machine, "undo", whose, *DO)
        assert status(simulated)["case"] == "interrupted"
    digest, znodes = plan_file.load(whose).digest, simulated.znodes("g")
    for words in ((), DO, ("--again", *DO)):
        ran = simulated.run("undo", "other", *words)
        assert (ran.status, ran.rows[0]["reasons"]) == (3, ["moved-since"]), ran
        assert digest in ran.rows[0]["why"], ran
    assert simulated.znodes("g") == znodes


@pytest.mark.parametrize("state", ["moved", "used", "moved_back"])
@pytest.mark.parametrize("ignored", [False, True])
def test_undo_of_a_plan_passes_over_groups_that_it_found_moved(
    simulated: Simulated, state: str, ignored: bool
) -> None:
    """An earlier plan moved them, so this one has not changed them, and will not. That is the same
    before and after it is applied."""
    getattr(matrix, state)(simulated)
    words = ("--decisions", "ignored.toml") if ignored else ()
    Path("ignored.toml").write_text('[[rule]]\ngroup = "g"\nignore = "why"\n')
    assert simulated.run("plan", "--group", "g", "--out", "later", *words).status == 0
    znodes = simulated.znodes("g")
    for _ in range(1 if state == "moved_back" and not ignored else 2):
        for more in ((), DO):
            ran = simulated.run("undo", "later", *more)
            assert (ran.status, ran.rows[0]["outcome"]) == (0, "nothing to do"), ran
        assert simulated.znodes("g") == znodes
        simulated.run("apply", "later", *DO)


@pytest.mark.parametrize("plan", ["first", "moved", "last"])
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("state", ["moved", "used"])
def test_undo_of_a_plan_passes_over_a_group_that_was_taken_back_from_another(
    simulated: Simulated, state: str, killed: bool, plan: str
) -> None:
    """The plan was made before the move, when the group was in Kafka, or after the undo, and has
    not changed the group. If the undo was killed before it lifted the lock, only one of the plan
    that moved the group lifts it."""
    matrix.untouched(simulated)
    assert simulated.run("plan", "--group", "g", "--out", "first").status == 0
    simulated.now_ms += 1
    getattr(matrix, state)(simulated)
    assert simulated.run("plan", "--group", "g", "--out", "moved").status == 0
    assert simulated.run("undo", "--group", "g", *DO).rows[0]["outcome"] == "done"
    assert simulated.run("plan", "--group", "g", "--out", "last").status == 0
    if killed:
        assert simulated.zk.run(guard.lock("g")) is None
    refused = (plan, state) == ("first", "used")
    answer = (3, "refused") if refused else (0, "nothing to do")
    for words in ((), DO, DO, ("--again",)):
        ran = simulated.run("undo", plan, *words)
        assert (ran.status, ran.rows[0]["outcome"]) == answer, ran
    assert status(simulated)["locked"] == ("locked" if killed else "no")
    if killed:
        ran = simulated.run("undo", simulated.file("move"), *DO)
        assert (ran.status, ran.rows[0]["outcome"]) == (0, "done"), ran
    ran = simulated.run("undo", simulated.file("move"))
    assert (ran.status, ran.rows[0]["outcome"]) == (0, "was done before"), ran
    assert " back: g" not in ran.err
    assert status(simulated)["locked"] == "no"


@pytest.mark.parametrize("way", ["live", "mirror"])
def test_undo_of_a_plan_does_not_copy_back_what_was_moved_without_it(
    simulated: Simulated, way: str
) -> None:
    """The plan's move was copied back, and then the group was moved live, or by its mirror. A dry
    run is the same."""
    matrix.used(simulated)
    assert simulated.run("undo", simulated.file("move"), *DO).rows[0]["way"] == "copy back"
    steps = "live prepare", "lock", "live to-kafka", "live finalize", "complete"
    if way == "mirror":
        steps = "mirror --once", "cut-over", "complete"
    for step in steps:
        matrix.good(simulated.run(*step.split(), "--group", "g", "--execute"))
    assert status(simulated)["case"] == "moved"
    for words in ((), DO):
        ran = simulated.run("undo", simulated.file("move"), *words)
        assert (ran.status, ran.rows[0]["reasons"]) == (3, ["moved-since"]), ran
    assert simulated.run("undo", "--group", "g").rows[0]["way"] == "copy back"


@pytest.mark.parametrize("state", ["interrupted", "written late"])
def test_a_first_move_to_another_name_that_was_interrupted_is_known_by_it(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """No marker says so yet, but the group's record does. Otherwise ``reset`` would set offsets
    that a later undo deletes, and ``plan`` would create the group in ZooKeeper."""
    virtual_time(monkeypatch)
    simulated.topic("__consumer_offsets", (0, 0))
    matrix.untouched(simulated)
    machine, _ = machines(simulated)
    late = state == "written late"
    sent = machine.suspend if late else machine.kill
    machine.point = lambda what: sent() if what == (SENT if late else "after commit") else None
    machine.run("plan", "--group", "g", "--rename", "g=new", "--out", "plan")
    with suppress(Killed):
        assert machine.run("apply", "plan", *DO).rows[0]["reasons"] == ["written-late"]
    machine.point = lambda what: None
    machine.zk.expire()
    (row,) = simulated.run("status", "--group", "g").rows
    assert (row["case"], row["kafka_group"]) == (state, "new")
    back = ("--direction", "kafka-to-zk")
    to = ("--all-topics", "--to-offset", "600", "--store", "kafka")
    for name in ("g", "new"):
        (row,) = simulated.run("plan", "--group", name, *back).rows
        assert (row["group"], row["kafka_group"]) == ("g", "new")
        ran = simulated.run("reset", "--group", name, *to)
        assert ran.status == (0 if late else 3), ran
        assert {row["group"] for row in ran.rows} == {"g"}
    if late:
        assert simulated.run("reset", "--group", "new", *to, *DO).status == 0
        assert simulated.held("new", "t")[1] == {0: 600, 1: 600}
        assert status(simulated)["reasons"] == []
        return
    assert simulated.run("plan", "--group", "g").rows[0]["verdict"] == "ready"
    assert simulated.run("undo", "--group", "g", *DO).rows[0]["outcome"] == "done"
    assert simulated.held("new", "t")[1] == {}


def test_undo_of_a_plan_continues_a_copy_back_that_was_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """At any of its points, by the same command."""
    virtual_time(monkeypatch)
    for number in count():
        folder = tmp_path / str(number)
        folder.mkdir()
        one = Simulated(monkeypatch, folder)
        matrix.used(one)
        machine, _ = machines(one)

        def undo(machine: Machine, plan: str = one.file("move")) -> Ran:
            return machine.run("undo", plan, *DO)

        if machine.at(number, machine.kill, undo) is not None:
            break
        ran = undo(machine)
        assert ran.status == 0, (number, ran)
        assert stored(one) == (NEW, NEW), number
        row = status(one)
        assert (row["case"], row["locked"]) == ("moved back", "no"), number
    assert number > 20


def test_a_large_copy_back_that_was_killed_is_continued_by_the_plan(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record had no room for what was there before the move."""
    monkeypatch.setattr(record, "_EARLIER_BYTES", 0)
    matrix.used(simulated)
    first, second = machines(simulated)
    kill_before_offsets(first, "undo", simulated.file("move"), *DO)
    for outcome in ("done", "was done before"):
        ran = second.run("undo", simulated.file("move"), *DO)
        assert (ran.status, ran.rows[0]["outcome"]) == (0, outcome), ran
        assert stored(simulated) == (NEW, NEW)


def test_undo_of_a_plan_may_be_repeated_on_another_machine(simulated: Simulated) -> None:
    """The record names the plan that was undone, and not only the one that counts again."""
    matrix.moved_back(simulated)
    for machine, outcome in zip(machines(simulated), ("done", "was done before"), strict=True):
        ran = machine.run("undo", simulated.file("back"), *DO)
        assert (ran.status, ran.rows[0]["outcome"]) == (0, outcome), ran


def test_an_undo_lifts_no_lock_of_a_move_that_came_meanwhile(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group was only locked when ``undo`` looked. Another operator moves it during the hook."""
    matrix.untouched(simulated)
    assert simulated.zk.run(guard.lock("g")) is None
    first, second = machines(simulated)

    def move(*_: object) -> None:
        assert second.run("plan", "--group", "g", "--out", "plan").status == 0
        assert second.run("apply", "plan", *DO).status == 0

    monkeypatch.setattr(Hooks, "begin", move)
    ran = first.run("undo", "--group", "g", "--before-group", "true", *DO)
    assert (ran.status, ran.rows[0]["reasons"]) == (3, ["other-operator"]), ran
    assert (status(simulated)["case"], status(simulated)["locked"]) == ("moved", "locked")


def test_an_unlock_lifts_no_lock_of_a_move_that_came_meanwhile(simulated: Simulated) -> None:
    """Another operator moves the group right before ``unlock`` lifts its lock."""
    matrix.untouched(simulated)
    assert simulated.zk.run(guard.lock("g")) is None
    first, second = machines(simulated)
    second.plan()
    others: list[Ran] = []

    def before(op: ZkOp) -> None:
        if isinstance(op, SetAcl) and not others:
            others.append(second.run("apply", "plan", *DO))

    first.zk.before = before
    ran = first.run("unlock", "--group", "g", *DO)
    assert [other.rows[0]["outcome"] for other in others] == ["done"]
    assert (ran.status, ran.rows[0]["reasons"]) == (3, ["other-operator"]), ran
    assert (status(simulated)["case"], status(simulated)["locked"]) == ("moved", "locked")


def test_the_report_of_a_second_undo_has_its_own_offsets(simulated: Simulated) -> None:
    """The journal has those of the first one, too."""
    changed = []
    for offset in (100, 300):
        simulated.topic("t", (0, 1000))
        simulated.in_zookeeper("g", "t", offset)
        plan = simulated.file(str(offset))
        assert simulated.run("plan", "--group", "g", "--out", plan).status == 0
        assert simulated.run("apply", plan, *DO).status == 0
        assert simulated.run("undo", "--group", "g", *DO).status == 0
        records = read_records(simulated.folder / "zkmigrate-undo.journal", "undo")
        changed.append(histories_of(records)["g"].changed[0].before)
    assert changed == [100, 300]


def test_the_way_is_said_first(simulated: Simulated) -> None:
    """In a dry run, and before anything is changed. With --all, other groups are left out."""
    matrix.used(simulated)
    simulated.in_zookeeper("other", "t", 5)
    znodes = simulated.znodes("g")
    ran = simulated.run("undo", "--all")
    assert "would copy back: g\n" in ran.err
    assert "would unlock" not in ran.err, "the other group is not locked"
    locks = simulated.run("lock", "--all").rows
    assert {row["group"]: row["reasons"] for row in locks} == {"g": [], "other": ["not-moved"]}
    (row,) = ran.rows
    assert (row["outcome"], row["way"]) == ("would be done", "copy back")
    assert simulated.znodes("g") == znodes
    ran = simulated.run("undo", "--all", *DO, "--journal", simulated.file("undo"))
    assert "now copy back: g\n" in ran.err
    assert stored(simulated) == (NEW, NEW)
    assert [row["group"] for row in ran.rows] == ["g"]


def test_force_rolls_back_what_was_used(simulated: Simulated) -> None:
    """The offsets of new consumers are overwritten only when that is asked for."""
    matrix.used(simulated)
    ran = simulated.run("undo", "--group", "g", "--force", *DO, "--journal", simulated.file("u"))
    assert (ran.status, ran.rows[0]["way"]) == (0, "roll back")
    assert stored(simulated) == (OLD, {})


def kill_before_offsets(machine: Machine, *words: str) -> None:
    """Kill a command right before it writes offsets to ZooKeeper."""

    def before(op: ZkOp) -> None:
        ops = op.ops if isinstance(op, Multi) else ()
        if any(isinstance(one, SetData) and "/offsets/" in one.path for one in ops):
            machine.kill()

    machine.zk.before = before
    with pytest.raises(Killed):
        machine.run(*words)
    machine.zk.expire()


def test_a_commit_to_a_new_partition_is_copied_back(simulated: Simulated) -> None:
    """The group is used, even if it has committed nothing else since the move. Offsets that the
    move has skipped do not count."""
    simulated.topic("s", (0, 10))
    simulated.in_kafka("g", "s", 5)
    matrix.moved(simulated, "--skip", "g:s")
    ran = simulated.run("undo", "--group", "g")
    assert ran.rows[0]["way"] == "roll back", ran
    simulated.topic("t", (0, 1000), (0, 1000), (0, 1000))
    simulated.in_kafka("g", "t", None, None, 7)
    assert status(simulated)["case"] == "moved and used"
    ran = simulated.run("undo", "--group", "g", *DO)
    assert (ran.status, ran.rows[0]["way"]) == (0, "copy back"), ran
    assert stored(simulated)[0] == {**OLD, 2: 7}


def test_a_move_after_an_interrupted_one_is_undone_with_it(simulated: Simulated) -> None:
    """Another plan is applied. The record still has what was there before both."""
    matrix.interrupted(simulated)
    assert simulated.run("plan", "--group", "g", "--out", "plan").status == 0
    assert simulated.run("apply", "plan", *DO).status == 0
    assert stored(simulated) == (OLD, OLD)
    ran = simulated.run("undo", "--group", "g", *DO)
    assert (ran.status, ran.rows[0]["way"]) == (0, "roll back"), ran
    assert stored(simulated) == (OLD, {})


def interrupted_back(one: Simulated) -> None:
    """A move to ZooKeeper was killed after it had written one of two offsets."""
    matrix.used(one)
    zk, kafka = (
        {TopicPartition("t", number): KafkaOffset(offset) for number, offset in offsets.items()}
        for offsets in (OLD, NEW)
    )
    state = one.zk.run(migration_marker.state_of("g"))
    assert state.marker is not None
    before = Before(Store.ZOOKEEPER, "", state.marker.data, True, frozenset(), zk, kafka, to=kafka)
    begun = replace(state.record, plan="p", stage=Stage.BEGUN)
    one.znode(record.path("g"), record.encode(begun))
    one.znode(record.before_path("g"), record.encode_before(before))
    one.in_zookeeper("g", "t", 500)


@pytest.mark.parametrize("source", list(Store))
def test_the_source_may_change_between_two_moves(simulated: Simulated, source: Store) -> None:
    """The first move was killed, and the source store's consumers have gone on before the second
    plan. The record has the source store's offsets as the second plan has them."""
    newer = {0: 620, 1: 630}
    if source is Store.ZOOKEEPER:
        matrix.interrupted(simulated)
        simulated.in_zookeeper("g", "t", *newer.values())
        way, ends = "zk-to-kafka", (newer, {})
    else:
        interrupted_back(simulated)
        simulated.in_kafka("g", "t", *newer.values())
        way, ends = "kafka-to-zk", (OLD, newer)
    words = ("--direction", way, "--on-conflict", source.value, "--out", "plan")
    assert simulated.run("plan", "--group", "g", *words).status == 0
    assert simulated.run("apply", "plan", *DO).status == 0
    assert stored(simulated) == (newer, newer)
    ran = simulated.run("undo", "--group", "g", *DO)
    assert (ran.status, ran.rows[0]["way"]) == (0, "roll back"), ran
    assert stored(simulated) == ends


def test_force_rolls_back_after_a_late_commit(simulated: Simulated) -> None:
    """ZooKeeper keeps what the old consumer has committed, as only Kafka was changed."""
    matrix.late_commit(simulated)
    for words in ((), ("--force",)):
        ran = simulated.run("undo", "--group", "g", *words, *DO)
        assert ran.status == (0 if words else 3), ran
    assert stored(simulated) == ({0: 101, 1: 50}, {})
    assert (status(simulated)["case"], status(simulated)["locked"]) == ("rolled back", "no")


def test_changes_are_undone_one_after_another(simulated: Simulated) -> None:
    """The record keeps what was there before the last two."""
    matrix.moved_back(simulated)
    for offsets, truth in (((OLD, NEW), "kafka"), ((NEW, NEW), "zookeeper")):
        ran = simulated.run(
            "undo", "--group", "g", "--again", *DO, "--journal", simulated.file(truth)
        )
        assert (ran.status, ran.rows[0]["outcome"]) == (0, "done"), ran
        assert stored(simulated) == offsets
        assert status(simulated)["truth"] == truth


def test_a_copy_back_of_a_group_that_was_moved_live_is_undone(simulated: Simulated) -> None:
    """It still has its mode, so its case is that of one that is prepared. Another --again copies
    the offsets back again."""
    matrix.live_finished(simulated)
    for words, way, offsets, truth in (
        ((), "copy back", (NEW, NEW), "zookeeper"),
        (("--again",), "roll back", (OLD, NEW), "kafka"),
        (("--again",), "copy back", (NEW, NEW), "zookeeper"),
    ):
        ran = simulated.run("undo", "--group", "g", *words, *DO)
        assert (ran.status, ran.rows[0]["way"]) == (0, way), ran
        assert stored(simulated) == offsets
        row = status(simulated)
        assert (row["truth"], row["reasons"]) == (truth, []), row


@pytest.mark.parametrize("ends", ["the same", "undo", "another plan"])
@pytest.mark.parametrize("first", ["apply", "undo"])
def test_an_overwritten_offset_is_given_back_after_a_kill(
    simulated: Simulated, first: str, ends: str
) -> None:
    """A client that is not a member commits while a command's commit is on its way, and the command
    is killed before it looks for that. Whoever ends the change on another machine finds it."""
    simulated.topic("__consumer_offsets", (0, 0))
    matrix.moved(simulated) if first == "undo" else matrix.untouched(simulated)
    one, two = machines(simulated)
    words = ("undo", "--group", "g")
    if first == "apply":
        one.plan()
        words = ("apply", str(one.folder / "plan"), "--journal", "own")

    def point(what: str) -> None:
        if what == SENT:
            simulated.in_kafka("g", "t", 600)
        elif what.startswith("after "):
            one.kill()

    one.point = point
    with pytest.raises(Killed):
        one.run(*words, *DO)
    one.point = lambda what: None
    one.zk.expire()
    assert stored(simulated)[1] == ({0: 100, 1: 50} if first == "apply" else {})
    if ends == "undo":
        words = ("undo", "--group", "g")
    elif ends == "another plan":
        simulated.now_ms += 1
        two.run("plan", "--group", "g", "--expired-offsets", "moved", "--out", "plan")
        words = ("apply", "plan")
    ran = two.run(*words, *DO)
    assert (ran.status, ran.rows[0]["reasons"]) == (3, ["other-writer"]), ran
    assert stored(simulated)[1][0] == 600
    assert status(simulated)["case"] == "interrupted"


def test_an_undo_after_a_reset_is_not_refused_by_an_old_journal(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All undos without PLAN have the same journal, and one of them was late. Once ``reset`` has
    set the right offsets, nothing is in doubt."""
    virtual_time(monkeypatch)
    simulated.topic("__consumer_offsets", (0, 0))
    matrix.moved(simulated)
    one, _ = machines(simulated)
    one.point = lambda what: one.suspend() if what == SENT else None
    undo = ("undo", "--group", "g", *DO)
    assert one.run(*undo).rows[0]["reasons"] == ["written-late"]
    one.point = lambda what: None
    assert one.run(*undo).rows[0]["reasons"] == ["written-late"]
    for partition, offset in OLD.items():
        to = ("--topic", f"t:{partition}", "--to-offset", str(offset), *DO)
        assert one.run("reset", "--group", "g", "--store", "kafka", *to).status == 0
    assert status(simulated)["case"] == "moved"
    ran = one.run(*undo)
    assert (ran.status, ran.rows[0]["way"]) == (0, "roll back"), ran


def test_a_group_that_another_operator_undoes_during_the_hook(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing left to do in it, and the run continues."""
    matrix.moved(simulated)
    first, second = machines(simulated)
    others: list[Ran] = []
    monkeypatch.setattr(
        Hooks, "begin", lambda *_: others.append(second.run("undo", "--group", "g", *DO))
    )
    ran = first.run("undo", "--group", "g", "--before-group", "true", *DO)
    assert (others[0].status, others[0].rows[0]["outcome"]) == (0, "done")
    assert (ran.status, ran.rows[0]["outcome"]) == (0, "was done before"), ran
    assert stored(simulated) == (OLD, {})
    assert status(simulated)["case"] == "rolled back"


def test_a_lock_that_comes_during_a_move_back_is_lifted(simulated: Simulated) -> None:
    """Its operator has written the record before, and was killed before it took the lock back."""
    matrix.used(simulated)
    assert simulated.run("unlock", "--group", "g", *DO).status == 0
    first, second = machines(simulated)
    locked: list[str | None] = []

    def before(op: ZkOp) -> None:
        ops = op.ops if isinstance(op, Multi) else ()
        marker = migration_marker.path("g")
        if any(isinstance(one, SetData) and one.path == marker for one in ops) and not locked:
            locked.append(second.zk.run(guard.lock("g")))

    first.zk.before = before
    ran = first.run("undo", "--group", "g", *DO)
    assert (ran.status, ran.rows[0]["way"]) == (0, "copy back"), ran
    assert locked == [None]
    assert status(simulated)["locked"] == "no"


def test_an_unlock_before_the_offsets_are_written_is_that_of_another_operator(
    simulated: Simulated,
) -> None:
    """Nothing is written then, and the reason says why."""
    matrix.used(simulated)
    first, second = machines(simulated)
    assert first.run("plan", "--group", "g", "--direction", "kafka-to-zk", "--out", "back").rows
    others: list[Ran] = []

    def before(op: ZkOp) -> None:
        ops = op.ops if isinstance(op, Multi) else ()
        if any(isinstance(one, SetData) and "/offsets/" in one.path for one in ops) and not others:
            others.append(second.run("unlock", "--group", "g", *DO))

    first.zk.before = before
    ran = first.run("apply", "back", *DO)
    assert [other.rows[0]["outcome"] for other in others] == ["done"]
    assert (ran.status, ran.rows[0]["reasons"]) == (3, ["other-operator"]), ran
    assert stored(simulated) == (OLD, NEW)


@pytest.mark.parametrize("lag", [False, True])
def test_a_commit_to_kafka_is_permitted_by_the_leader_of_zookeeper(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lag: bool
) -> None:
    """Another operator has changed the group's record, which the server of this one may not show
    yet. Nothing is committed."""
    if lag:
        ensemble = partial(FakeZk, followers=9, max_lag=1e5)
        monkeypatch.setattr(tool_zk, "FakeZk", ensemble)
    simulated = Simulated(monkeypatch, tmp_path)
    matrix.moved(simulated)
    first, second = machines(simulated)

    def point(what: str) -> None:
        if what == "before commit":
            assert second.run("unlock", "--group", "g", *DO).rows[0]["outcome"] == "done"

    first.point = point
    to = ("--all-topics", "--to-offset", "700", "--execute")
    ran = first.run("reset", "--group", "g", *to)
    assert ran.status == 3, ran
    assert "another operator has changed the group" in ran.rows[0]["why"]
    assert stored(simulated)[1] == OLD


def test_an_unlock_after_the_marker_leaves_no_claim(simulated: Simulated) -> None:
    """Another operator unlocks the group before the run does. The run continues with other groups,
    so it releases this one at once."""
    matrix.used(simulated)
    first, second = machines(simulated)
    assert first.run("plan", "--group", "g", "--direction", "kafka-to-zk", "--out", "back").rows
    others: list[Ran] = []

    def after(op: ZkOp, reply: Reply) -> Reply:
        where = migration_marker.path("g")
        if isinstance(op, Multi) and where in {one.path for one in op.ops} and not others:
            others.append(second.run("unlock", "--group", "g", *DO))
        return reply

    first.zk.after = after
    ran = first.run("apply", "back", *DO)
    assert [other.rows[0]["outcome"] for other in others] == ["done"]
    assert (ran.status, ran.rows[0]["reasons"]) == (3, ["other-operator"]), ran
    assert not any("zkmigrate-" in name for name in simulated.zk.run(ownership.migrators("g")))
    assert simulated.zk.zk.children(GroupPaths("g").owners_topic("t")) == ()
    assert first.run("apply", "back", *DO).rows[0]["outcome"] == "done"
