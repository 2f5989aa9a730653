"""``undo``, from another machine: without the plan, the journal and the memory of the first one.

Whole commands on a simulated cluster. A command is killed before any of its requests, or another
operator runs a command there.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from zkmigrate.apply import guard, live, ownership
from zkmigrate.apply.hooks import Hooks
from zkmigrate.apply.journal import read_records
from zkmigrate.apply.records import histories_of
from zkmigrate.stores import record

from tests.migrate import matrix
from tests.migrate.matrix import DO
from tests.migrate.simulated import Ran, Simulated, SimulatedZk, simulated
from zkconsumer.core.zookeeper.ops import GetAcl, GetMany, ZkOp
from zkconsumer.core.zookeeper.znodes import GroupPaths

__all__ = ["simulated"]
OLD, NEW = {0: 100, 1: 50}, {0: 500, 1: 501}
IDS = GroupPaths("g").ids


class Killed(BaseException):
    """The process is gone."""


class Machine:
    """A machine with its own folder and its own session with ZooKeeper."""

    def __init__(self, one: Simulated, folder: Path) -> None:
        self.one, self.folder = one, folder
        folder.mkdir(exist_ok=True)
        self.zk = SimulatedZk(lambda: one.now_ms)
        self.zk.zk, self.zk._times = one.zk.zk, one.zk._times
        self.connect()

    def connect(self) -> None:
        """Open a new session."""
        zk = self.zk
        zk._client = zk.zk.connect(6.0, lambda event: None, lambda state, session: None)
        zk._pass(1.0)

    def run(self, *words: str) -> Ran:
        """Run a command there."""
        first, here = self.one.zk, os.getcwd()
        self.one.zk = self.zk
        os.chdir(self.folder)
        try:
            return self.one.run(*words)
        finally:
            os.chdir(here)
            self.one.zk = first

    def before(self, number: int, act: Callable[[], None], *words: str) -> tuple[Ran | None, bool]:
        """Run a command, and do something before a request of it. Return whether it came that
        far, and the result, if the command was not killed."""
        left = [number]

        def request(*_: object) -> None:
            left[0] -= 1
            if left[0] == -1:
                act()

        kafka: Any = self.one.kafka
        commit, delete = kafka.commit, kafka.delete

        def counted(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **named: Any) -> Any:
                request()
                found = real(*arguments, **named)
                request()
                return found

            return call

        self.zk.before = request
        kafka.commit, kafka.delete = counted(commit), counted(delete)
        try:
            return self.run(*words), left[0] < 0
        except Killed:
            return None, True
        finally:
            self.zk.before = lambda op: None
            kafka.commit, kafka.delete = commit, delete

    def killed(self, number: int, *words: str) -> bool:
        """Run a command and kill it before a request; return whether it came that far."""

        def kill() -> None:
            def gone(*_: object) -> None:
                raise Killed

            self.zk.before = gone
            raise Killed

        _, came = self.before(number, kill, *words)
        self.zk._client.kill()
        self.zk._pass(20.0)
        self.connect()
        return came


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_POLL", 0)


def clusters(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[Simulated]:
    """Yield one new cluster after another."""
    number = 0
    while True:
        here = folder / str(number)
        here.mkdir()
        yield Simulated(monkeypatch, here)
        number += 1


def status(one: Simulated) -> dict[str, Any]:
    """The group's row of ``status``."""
    (row,) = one.run("status", "--group", "g").rows
    return row


def stored(one: Simulated) -> tuple[dict[int, int], dict[int, int]]:
    """The offsets in ZooKeeper and in Kafka."""
    return one.held("g", "t")


def ids(one: Simulated) -> object:
    """Data and access list of the group's ids."""
    return one.zk.text(IDS), one.zk.do(GetAcl(IDS)).value.entries


@pytest.mark.parametrize("then", ["undo", "apply"])
def test_a_move_killed_at_any_request_is_ended_from_another_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, then: str
) -> None:
    """``undo`` restores both stores, the access list and the case. A new plan ends the move."""
    number, came = 0, True
    every = clusters(monkeypatch, tmp_path)
    while came:
        one = next(every)
        matrix.untouched(one)
        before = ids(one)
        one.run("plan", "--group", "g", "--out", one.file("plan"))
        first, second = (Machine(one, one.folder / name) for name in ("first", "second"))
        came = first.killed(number, "apply", one.file("plan"), *DO)
        assert status(one)["case"] in ("untouched", "interrupted", "moved"), number
        if then == "undo":
            ran = second.run("undo", "--group", "g", *DO)
            assert ran.status == 0, (number, ran)
            assert stored(one) == (OLD, {}), number
            assert ids(one) == before, number
            assert status(one)["case"] in ("untouched", "rolled back")
            assert status(one)["reasons"] == []
        assert second.run("plan", "--group", "g", "--out", "plan").status == 0, number
        assert second.run("apply", "plan", *DO).status == 0, number
        assert second.run("lock", "--group", "g", *DO).status == 0
        assert stored(one) == (OLD, OLD), number
        row = status(one)
        assert (row["case"], row["locked"], row["reasons"]) == ("moved", "locked", []), number
        number += 1
    assert number > 30


def test_a_move_back_killed_at_any_request_is_undone_from_another_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Kafka's offsets count again, and ZooKeeper has what it had."""
    number, came = 0, True
    every = clusters(monkeypatch, tmp_path)
    while came:
        one = next(every)
        matrix.used(one)
        way = ("--direction", "kafka-to-zk", "--out", one.file("back"))
        assert one.run("plan", "--group", "g", *way).status == 0
        first, second = (Machine(one, one.folder / name) for name in ("first", "second"))
        came = first.killed(number, "apply", one.file("back"), *DO)
        case = status(one)["case"]
        assert case in ("moved and used", "interrupted", "moved back"), number
        if case != "moved and used":
            ran = second.run("undo", "--group", "g", *DO)
            assert ran.status == 0, (number, ran)
        assert stored(one) == (OLD, NEW), (number, case)
        assert second.run("lock", "--group", "g", *DO).status == 0
        row = status(one)
        assert (row["truth"], row["locked"], row["reasons"]) == ("kafka", "locked", []), number
        number += 1
    assert number > 30


@pytest.mark.parametrize("state", ["moved", "used"])
def test_an_undo_killed_at_any_request_is_ended_by_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state: str
) -> None:
    """It is one of the two states, and the second ``undo`` ends in the same one as without a
    kill."""
    number, came = 0, True
    every = clusters(monkeypatch, tmp_path)
    while came:
        one = next(every)
        getattr(matrix, state)(one)
        first, second = (Machine(one, one.folder / name) for name in ("first", "second"))
        came = first.killed(number, "undo", "--group", "g", *DO)
        for machine in (first, second):
            machine.connect()
            ran = machine.run("undo", "--group", "g", *DO)
            assert ran.status == 0, (number, ran)
        wanted = (OLD, {}) if state == "moved" else (NEW, NEW)
        assert stored(one) == wanted, number
        assert (status(one)["truth"], status(one)["locked"]) == ("zookeeper", "no"), number
        number += 1
    assert number > 30


@pytest.mark.parametrize("state", ["moved", "used", "moved_back"])
def test_a_group_that_was_taken_back_stays_so(simulated: Simulated, state: str) -> None:
    """The same command is run again when another group was refused. Only --again goes further."""
    getattr(matrix, state)(simulated)
    ran = simulated.run("undo", "--all", *DO)
    assert (ran.status, ran.rows[0]["outcome"]) == (0, "done"), ran
    offsets, row, znodes = stored(simulated), status(simulated), simulated.znodes("g")
    for words in (("--all",), ("--group", "g"), ("--all", *DO), ("--group", "g", *DO)):
        ran = simulated.run("undo", *words)
        assert (ran.status, ran.rows[0]["outcome"]) == (0, "was done before"), ran
        assert " roll back: g" not in ran.err
    assert simulated.znodes("g") == znodes
    assert (stored(simulated), status(simulated)) == (offsets, row)
    again = simulated.run("undo", "--all", "--again", *DO)
    assert again.rows[0]["outcome"] == ("was done before" if state == "moved" else "done")


def test_an_undo_lifts_no_lock_of_a_move_that_came_meanwhile(
    simulated: Simulated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group was only locked when ``undo`` looked. Another operator moves it during the hook."""
    matrix.untouched(simulated)
    assert simulated.zk.run(guard.lock("g", 1)) is None
    first, second = (Machine(simulated, tmp_path / name) for name in ("first", "second"))

    def move(*_: object) -> None:
        assert second.run("plan", "--group", "g", "--out", "plan").status == 0
        assert second.run("apply", "plan", *DO).status == 0

    monkeypatch.setattr(Hooks, "begin", move)
    ran = first.run("undo", "--group", "g", "--before-group", "true", *DO)
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
    why = "The group was not moved, and is not in a live move. Nothing, or move it first."
    assert {row["group"]: row["why"] for row in locks} == {"g": "", "other": why}
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


def test_a_group_that_another_operator_undoes_during_the_hook(
    simulated: Simulated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing left to do in it, and the run continues."""
    matrix.moved(simulated)
    first, second = (Machine(simulated, tmp_path / name) for name in ("first", "second"))
    others: list[Ran] = []
    monkeypatch.setattr(
        Hooks, "begin", lambda *_: others.append(second.run("undo", "--group", "g", *DO))
    )
    ran = first.run("undo", "--group", "g", "--before-group", "true", *DO)
    assert (others[0].status, others[0].rows[0]["outcome"]) == (0, "done")
    assert (ran.status, ran.rows[0]["outcome"]) == (0, "was done before"), ran
    assert stored(simulated) == (OLD, {})
    assert status(simulated)["case"] == "rolled back"


def test_an_unlock_after_the_marker_leaves_no_claim(simulated: Simulated, tmp_path: Path) -> None:
    """Another operator unlocks the group before the run does. The run continues with other groups,
    so it releases this one at once."""
    matrix.used(simulated)
    first, second = (Machine(simulated, tmp_path / name) for name in ("first", "second"))
    assert first.run("plan", "--group", "g", "--direction", "kafka-to-zk", "--out", "back").rows
    others: list[Ran] = []

    def before(op: ZkOp) -> None:
        asks = isinstance(op, GetMany) and "zkmigrate-" in op.paths[0]
        if asks and op.paths[-1] == record.path("g") and not others:
            others.append(second.run("unlock", "--group", "g", *DO))

    first.zk.before = before
    ran = first.run("apply", "back", *DO)
    assert [other.rows[0]["outcome"] for other in others] == ["done"]
    assert (ran.status, ran.rows[0]["reasons"]) == (3, ["other-operator"]), ran
    assert not any("zkmigrate-" in name for name in simulated.zk.run(ownership.migrators("g")))
    assert simulated.zk.zk.children(GroupPaths("g").owners_topic("t")) == ()
    assert first.run("apply", "back", *DO).rows[0]["outcome"] == "done"


COMMANDS: dict[str, tuple[str, ...]] = {
    "apply": ("apply", "plan", *DO),
    "apply back": ("apply", "back", *DO),
    "undo": ("undo", "--group", "g", "--wait", "0", *DO),
    "lock": ("lock", "--group", "g", "--wait", "0", *DO),
    "unlock": ("unlock", "--group", "g", "--wait", "0", *DO),
    "reset": ("reset", "--group", "g", "--all-topics", "--shift-by", "3", "--execute"),
    "prepare": ("live", "prepare", "--group", "g", "--wait", "0", *DO),
    "to kafka": ("live", "to-kafka", "--group", "g", "--wait", "0", *DO),
    "finalize": ("live", "finalize", "--group", "g", "--wait", "0", *DO),
    "complete": ("live", "complete", "--group", "g", "--wait", "0", *DO),
    "to zookeeper": ("live", "to-zookeeper", "--group", "g", "--wait", "0", *DO),
}
STATES = ("untouched", "moved", "used", "moved_back", "interrupted", "prepared", "live_locked",
          "live_kafka", "live_open")  # fmt: skip


def test_two_operators_with_any_two_commands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first is stopped before any request, and the second runs a whole command. Nothing is
    lost or lowered, a group that counts in Kafka stays locked unless it was to be unlocked, and
    both report an outcome."""
    seed = int(os.environ.get("ZKC_SEED") or random.randrange(2**32))
    sys.stdout.write(f"repeat with ZKC_SEED={seed}\n")
    chance = random.Random(seed)
    every = clusters(monkeypatch, tmp_path)
    met = 0
    for _ in range(int(os.environ.get("ZKC_PAIRS", "40"))):
        state, *names = chance.choice(STATES), *chance.choices(list(COMMANDS), k=2)
        number = chance.randrange(40)
        one = next(every)
        getattr(matrix, state)(one)
        machines = [Machine(one, one.folder / name) for name in ("first", "second")]
        for machine in machines:
            for name, way in (("plan", "zk-to-kafka"), ("back", "kafka-to-zk")):
                machine.run("plan", "--group", "g", "--out", name, "--direction", way)
        truth = status(one)["truth"]
        least = {n: max(at.get(n, 0) for at in stored(one)) for n in OLD}
        others: list[Ran] = []

        def come(machines: list[Machine] = machines, names: list[str] = names,
                 others: list[Ran] = others) -> None:  # fmt: skip
            others.append(machines[1].run(*COMMANDS[names[1]]))

        ran, came = machines[0].before(number, come, *COMMANDS[names[0]])
        met += came
        said = (seed, state, names, number, ran, others)
        assert ran is not None
        for outcome in (ran, *others):
            assert outcome.status in (0, 1, 2, 3), said
            assert outcome.rows or outcome.err, said
        now = status(one)
        zk, kafka = stored(one)
        current = kafka if now["truth"] == "kafka" else zk
        if now["mode"]:  # members of a live move begin at the higher offset
            current = {n: max(zk.get(n, -1), kafka.get(n, -1)) for n in least}
        went_back = {"undo", "apply back"} & set(names) and truth == "kafka"
        if now["case"] != "interrupted" and not went_back and state != "interrupted":
            assert all(current.get(n, -1) >= at for n, at in least.items()), (said, zk, kafka)
        if now["truth"] == "kafka" and not {"unlock", "undo", "apply back"} & set(names):
            assert now["locked"] == "locked", said
        if now["locked"] == "no":
            assert ids(one) == (b"", one.zk.do(GetAcl("/consumers")).value.entries), said
    assert met > 10
