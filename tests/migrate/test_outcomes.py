"""The journal has the outcome of each group in each run, and the report is made of these.

The stores are simulated; the journal is a real file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from zkmigrate import report
from zkmigrate.apply import resetting, steps
from zkmigrate.apply.journal import Journal, read_records
from zkmigrate.apply.outcome import Changed, Outcome, Result
from zkmigrate.apply.parallel import Run
from zkmigrate.apply.records import RESET, begun_by, histories_of
from zkmigrate.errors import JournalError
from zkmigrate.formats.plan_file import PlanFile
from zkmigrate.report import GroupReport

from tests.migrate.rows import rows_of, run
from tests.migrate.simulated import Simulated, simulated
from tests.migrate.test_simulated import T0, T1, Stores, at
from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.core.zookeeper.ops import Delete
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.errors import BrokerError

__all__ = ["simulated"]
NOBODY_REFUSED = "No group was refused."


class Runs:
    """Runs of one plan, each of which opens the journal again."""

    def __init__(self, stores: Stores, path: Path) -> None:
        self.stores = stores
        self.plan: PlanFile = stores.plan()
        self.path = path

    def apply(self, **options: Any) -> Result:
        """Apply the plan."""
        with Journal(self.path, "digest") as self.stores.journal:
            self.stores.journal.begin(command="apply")
            stores: Any = self.stores
            migrator = steps_migrator(stores, **options)
            (result,) = migrator.apply(
                self.plan, Run(self.stores.journal, idle=True), lambda result: None
            )
        return result  # type: ignore[no-any-return]

    def rollback(self) -> Result:
        """Roll it back."""
        with Journal(self.path, "digest") as self.stores.journal:
            return self.stores.rollback(self.plan)

    @property
    def report(self) -> GroupReport:
        """The report about the group."""
        records = read_records(self.path, "digest")
        (found,) = report.look(self.plan.groups, begun_by(records), histories_of(records))
        return found

    @property
    def page(self) -> str:
        """The report's page."""
        return report.page(self.plan, [self.report], [])


def steps_migrator(stores: Any, **options: Any) -> Any:
    """Return a migrator; ``lock``: also lock what was moved."""
    from zkmigrate.apply.migrator import Migrator

    return Migrator(stores, **options)


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    """A plan for the group of both stores."""
    return Runs(Stores(), tmp_path / "plan.journal")


def test_a_moved_group_is_moved_in_the_report(runs: Runs) -> None:
    """A run that finds it done does not change that."""
    assert runs.report.state == report.LEFT
    assert runs.apply().outcome is Outcome.DONE
    assert (runs.report.state, runs.report.written) == (report.MOVED, 2)
    assert runs.apply().outcome is Outcome.WAS_DONE
    assert runs.report.state == report.MOVED
    assert NOBODY_REFUSED in runs.page


def test_a_late_writer_is_in_the_report(runs: Runs) -> None:
    """A client that commits in the source store right after the move: apply exits with 3, so the
    report must not call the group moved. The offsets were written all the same."""

    def deregisters(op: object) -> bool:
        return isinstance(op, Delete) and op.path.startswith(GroupPaths("g").ids)

    at(runs.stores, deregisters, lambda: runs.stores.write(b"8"))
    for _ in range(2):
        assert runs.apply().outcome is Outcome.REFUSED
        assert runs.report.state == "refused"
        assert runs.report.wrote
        assert NOBODY_REFUSED not in runs.page
        assert "zookeeper holds 8, not 7" in runs.page
    (row,) = report.group_rows([runs.report])
    assert (row[3], "zookeeper holds 8, not 7" in str(row[6])) == (2, True)


def test_a_group_that_is_refused_before_anything_is_in_the_report(runs: Runs) -> None:
    """Its consumers have joined since the plan. Once they have stopped, it is moved."""
    runs.stores.members = ("consumer-1",)
    assert runs.apply().outcome is Outcome.REFUSED
    assert runs.report.state == "refused"
    assert "consumer-1 joined at the broker" in runs.page
    assert NOBODY_REFUSED not in runs.page
    runs.stores.members = ()
    runs.apply()
    assert runs.report.state == report.MOVED
    assert NOBODY_REFUSED in runs.page


def test_a_failed_group_is_in_the_report(runs: Runs) -> None:
    """An error of a server is not a refusal."""

    def away(_group: str) -> Any:
        raise BrokerError("the coordinator does not answer")

    runs.stores.kafka.members = away
    assert runs.apply().outcome is Outcome.FAILED
    assert runs.report.state == "failed"
    assert "the coordinator does not answer" in runs.page


def test_a_group_that_stayed_unlocked_is_on_disk(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a run that finds the group done and locks nothing."""

    def lock(_group: str) -> Iterator[object]:
        yield from ()
        return "ZooKeeper does not enforce access lists"

    monkeypatch.setattr(steps.guard, "lock", lock)
    assert runs.apply(lock=True).not_locked
    for _ in range(2):
        assert (runs.report.state, runs.report.not_locked) == (report.MOVED, True)
        assert "not locked: ZooKeeper does not enforce access lists" in runs.page
        runs.apply(lock=True)


def test_a_run_that_was_killed_before_its_outcome_is_unfinished(runs: Runs) -> None:
    """Also if the last step was recorded: the source store was not read again after it."""
    runs.apply()
    *lines, outcome = runs.path.read_bytes().splitlines(keepends=True)
    assert b'"outcome"' in outcome
    runs.path.write_bytes(b"".join(lines))
    assert runs.report.state == report.OPEN
    assert NOBODY_REFUSED not in runs.page
    runs.apply()
    assert runs.report.state == report.MOVED


def test_a_killed_rerun_has_no_outcome(runs: Runs) -> None:
    """The outcome of the run before it says nothing about what the killed run did."""
    runs.stores.refuses = {T1: BrokerError("not allowed")}
    assert runs.apply().outcome is Outcome.REFUSED
    assert runs.report.state == "refused"
    with Journal(runs.path, "digest") as journal:
        journal.write(group="g", step="claim", name="x")
    assert runs.report.state == report.OPEN


def test_a_group_that_was_rolled_back_stays_so(runs: Runs) -> None:
    """A later apply is refused, and changes nothing."""
    runs.apply()
    assert runs.rollback().outcome is Outcome.DONE
    assert runs.report.state == report.BACK
    assert runs.apply().outcome is Outcome.REFUSED
    assert (runs.report.state, runs.report.written) == (report.BACK, 0)


def test_a_refusal_survives_a_rollback_of_other_groups(runs: Runs) -> None:
    """A group that was never begun has nothing to roll back: its reason stays in the report."""
    runs.stores.members = ("consumer-1",)
    runs.apply()
    assert runs.rollback().outcome is Outcome.NOTHING
    assert runs.report.state == "refused"


def test_a_refused_rollback_is_in_the_report(runs: Runs) -> None:
    """The group is then not rolled back."""
    runs.apply()
    runs.stores.committed[T0] = StoredOffset(50)
    assert runs.rollback().outcome is Outcome.REFUSED
    assert runs.report.state == "refused"
    assert "it has changed since" in runs.page


def test_report_prints_json(simulated: Simulated, capsys: pytest.CaptureFixture[str]) -> None:
    """One object for each group, with its state and the reason, for scripts."""
    simulated.topic("t", (0, 100))
    for group in ("a", "b"):
        simulated.in_zookeeper(group, "t", 5)
    assert simulated.run("plan", "--all", "--out", "plan").status == 0
    simulated.in_kafka("b", "t", 7)
    simulated.run("apply", "plan", "--execute")
    capsys.readouterr()
    assert run(["report", "plan", "--json"]) == 3
    rows = rows_of(capsys.readouterr().out)
    found = [(row["group"], row["state"], row["offsets"], row["locked"]) for row in rows]
    assert found == [("a", "moved", 1, True), ("b", "refused", 0, None)]
    assert [row["reasons"] for row in rows] == [[], ["changed"]]
    assert rows[1]["runs"][0]["reasons"] == ["changed"]
    assert "kafka holds 7, not none" in rows[1]["why"]
    assert run(["report", "plan"]) == 2


def test_export_takes_json_too(simulated: Simulated) -> None:
    """As every other command does."""
    simulated.in_zookeeper("g", "t", 5)
    plain = simulated.run("offsets", "export", "--all", "--format", "json", rows=False).err
    assert simulated.run("offsets", "export", "--all", "--json", rows=False).err == plain
    assert '"topic"' in plain


@pytest.mark.parametrize(
    "record",
    [
        {"group": "g", "step": "claim", "fence": 4},
        {"group": "g", "step": "copy"},
        {"group": "g", "outcome": "done", "fence": 4},
        {"group": "g", "outcome": "perhaps"},
        {"run": {}, "fence": 4},
        {"step": "claim"},
        {"group": "g"},
    ],
)
def test_a_record_of_a_newer_tool_is_refused(runs: Runs, record: dict[str, Any]) -> None:
    """It may mean something that this tool would get wrong."""
    with Journal(runs.path, "digest") as journal:
        journal.write(**record)
    with pytest.raises(JournalError, match="record of an unknown kind"):
        runs.apply()
    assert runs.stores.done == []


@pytest.fixture
def held(simulated: Simulated) -> Simulated:
    """Two groups with the offsets 3 and 40."""
    simulated.zk.set("/cluster/id", b'{"version":"1","id":"abc"}')
    simulated.topic("t", (0, 100), (0, 100))
    for group in ("a", "g"):
        simulated.in_zookeeper(group, "t", 3, 40)
    return simulated


RESET_TO_7 = ("reset", "--to-offset", "7", "--all-topics", "--parallel", "1")


def test_a_reset_records_what_it_replaces(held: Simulated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who, when, which group and the previous offsets are on disk before anything is changed, and
    the outcome after it. The next reset continues the same journal."""
    path, real = Path(held.file("reset.journal")), resetting.carry_out
    seen: list[dict[str, Any]] = []

    def carry_out(*arguments: Any) -> Any:
        seen[:] = read_records(path, RESET)
        return real(*arguments)

    monkeypatch.setattr(resetting, "carry_out", carry_out)
    for before in ([3, 40], [7, 7]):
        words = ("--group", "g", "--execute", "--journal", str(path))
        assert held.run(*RESET_TO_7, *words).status == 0
        begun, step = seen[-2:]
        assert begun["run"]["command"] == "reset"
        assert "@" in begun["run"]["by"]
        assert begun["run"]["cluster"] == "abc"
        assert begun["run"]["options"]["group"] == ["g"]
        assert begun["run"]["options"]["to"] == "--to-offset"
        assert (step["group"], step["step"], step["store"]) == ("g", "reset", "zookeeper")
        assert step["held"] == [["t", number, one, 7] for number, one in enumerate(before)]
    records = read_records(path, RESET)
    assert [one["outcome"] for one in records if "outcome" in one] == ["done", "done"]
    assert list(histories_of(records)) == ["g"]


def test_a_refused_reset_is_recorded_and_counted_once(held: Simulated) -> None:
    """One refused group does not make the next one a failure."""
    held.znode("/consumers/a/ids/a_x", b"{}")
    ran = held.run(*RESET_TO_7, "--all", "--execute")
    assert ran.status == 3
    assert "2 offsets; groups: 1 done, 1 refused" in ran.err
    assert [(row["group"], row["after"]) for row in ran.rows] == [("a", None), ("g", 7), ("g", 7)]
    assert "a_x registered in ZooKeeper: stop" in ran.rows[0]["why"]
    found = histories_of(read_records(held.folder / "zkmigrate-reset.journal", RESET))
    ended = [one.last for one in found.values()]
    assert [one.outcome for one in ended if one] == [Outcome.REFUSED, Outcome.DONE]


def test_a_reset_that_cannot_be_recorded_changes_nothing(held: Simulated) -> None:
    """The error names the file, in a dry run too, which writes none."""
    away, here = held.folder / "away" / "journal", held.folder / "journal"
    assert f"{away}: No such file or directory" in held.run(
        *RESET_TO_7, "--all", "--execute", "--journal", str(away), rows=False
    ).err  # fmt: skip
    assert held.held("g", "t")[0] == {0: 3, 1: 40}
    assert held.run(*RESET_TO_7, "--all", "--journal", str(away), rows=False).status == 2
    assert held.run(*RESET_TO_7, "--all", "--journal", str(here)).status == 0
    assert not here.exists()


def test_the_record_has_the_offsets_before_and_after(runs: Runs) -> None:
    """And whether the group is locked. A run that finds it done adds an outcome, and changes
    nothing of that. The way back has offsets of its own."""
    runs.stores.committed[T0] = StoredOffset(3)
    runs.plan = runs.stores.plan()
    runs.apply(lock=True)
    runs.apply(lock=True)
    first, second = runs.report.history.ended
    assert first.result.changed == (
        Changed("t", 0, "kafka", 3, 7),
        Changed("t", 1, "kafka", None, 9),
    )
    assert (second.result.outcome, second.result.changed) == (Outcome.WAS_DONE, ())
    assert runs.report.history.changed == first.result.changed
    assert runs.report.written == 2
    runs.rollback()
    last = runs.report.history.ended[-1].result
    assert last.changed == (
        Changed("t", 0, "kafka", 7, 3),
        Changed("t", 1, "kafka", 9, None),
    )


@pytest.mark.parametrize("step", ["write", "mark", "done"])
def test_the_offsets_of_a_killed_run_are_in_the_record(runs: Runs, step: str) -> None:
    """The run that resumes it finds them changed; what was there before is in the journal."""
    runs.apply()
    (whole,) = runs.report.history.ended
    lines = runs.path.read_bytes().splitlines(keepends=True)
    (index,) = [n for n, line in enumerate(lines) if f'"step":"{step}"'.encode() in line]
    runs.path.write_bytes(b"".join(lines[: index + 1]))
    runs.apply()
    (resumed,) = runs.report.history.ended
    assert resumed.result.changed == whole.result.changed
    assert len(whole.result.changed) == 2


def test_what_a_forced_rollback_overwrites_is_in_the_record(runs: Runs) -> None:
    """It is not what the plan knows."""
    runs.apply()
    runs.stores.committed[T0] = StoredOffset(50)
    with Journal(runs.path, "digest") as journal:
        stores: Any = runs.stores
        steps_migrator(stores, force=True).rollback(runs.plan, Run(journal), lambda result: None)
    assert Changed("t", 0, "kafka", 50, None) in runs.report.history.ended[-1].result.changed


def test_note_and_approval_are_in_the_report(
    simulated: Simulated, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of each run, in JSON and on the page."""
    simulated.topic("t", (0, 100))
    simulated.in_zookeeper("a", "t", 5)
    assert simulated.run("plan", "--all", "--out", "plan").status == 0
    words = ("--note", "CHG-17 <b>", "--approved-by", "lea")
    assert simulated.run("apply", "plan", *words, "--execute").status == 0
    assert simulated.run("undo", "plan", "--note", "CHG-18", "--execute").status == 0
    capsys.readouterr()
    assert run(["report", "plan", "--json", "--out", "page.html"]) == 3
    (row,) = rows_of(capsys.readouterr().out)
    found = [
        (one["command"], one["note"], one["approved_by"], one["outcome"]) for one in row["runs"]
    ]
    assert found == [("apply", "CHG-17 <b>", "lea", "done"), ("undo", "CHG-18", None, "done")]
    assert row["changed"] == [
        {"topic": "t", "partition": 0, "store": "kafka", "before": 5, "after": None}
    ]
    assert row["locked"] is False
    assert "CHG-17 &lt;b&gt;" in Path("page.html").read_text()


def test_resets_are_reported(simulated: Simulated, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a plan, from the journal of ``reset``: page, CSV and JSON."""
    simulated.topic("t", (0, 100))
    for group in ("a", "b"):
        simulated.in_zookeeper(group, "t", 5)
    assert run(["report", "--json"]) == 2, "there is no journal"
    words = ("reset", "--all-topics", "--to-offset", "3", "--execute", "--note", "CHG-19")
    assert simulated.run(*words, "--group", "a").status == 0
    simulated.zk.set("/consumers/b/ids/x", b"{}")
    assert simulated.run(*words, "--group", "b").status == 3
    capsys.readouterr()
    assert run(["report", "--json", "--out", "page.html"]) == 3
    a, b = rows_of(capsys.readouterr().out)
    assert (a["state"], b["state"]) == ("reset", "refused")
    assert a["changed"] == [
        {"topic": "t", "partition": 0, "store": "zookeeper", "before": 5, "after": 3}
    ]
    assert a["runs"][0]["note"] == "CHG-19"
    page = Path("page.html").read_text()
    assert "Offsets that were changed by zkmigrate reset" in page
    assert '<td>t-0</td><td>ZooKeeper</td><td class="n">5</td><td class="n">3</td>' in page


def test_what_was_taken_back_is_reported(
    simulated: Simulated, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the plan, from the journal of ``undo``. A plan's own journal needs its plan."""
    simulated.topic("t", (0, 100))
    simulated.in_zookeeper("a", "t", 5)
    assert simulated.run("plan", "--all", "--out", "plan").status == 0
    assert simulated.run("apply", "plan", "--execute").status == 0
    assert simulated.run("undo", "--group", "a", "--execute", "--note", "CHG-20").status == 0
    assert run(["report", "--json", "--journal", "plan.journal"]) == 1
    capsys.readouterr()
    words = ["report", "--json", "--journal", "zkmigrate-undo.journal", "--out", "page.html"]
    assert run(words) == 0
    (row,) = rows_of(capsys.readouterr().out)
    assert (row["state"], row["runs"][0]["note"]) == ("rolled back", "CHG-20")
    assert row["changed"] == [
        {"topic": "t", "partition": 0, "store": "kafka", "before": 5, "after": None}
    ]
    assert "changed by zkmigrate undo" in Path("page.html").read_text()


def test_cut_over_and_complete_are_reported(
    simulated: Simulated, capsys: pytest.CaptureFixture[str]
) -> None:
    """From their journals, like ``live`` and ``lock``."""
    simulated.topic("t", (0, 100))
    simulated.in_zookeeper("a", "t", 5)
    assert simulated.run("mirror", "--group", "a", "--execute", "--once").status == 0
    for command in ("cut-over", "complete"):
        assert simulated.run(command, "--group", "a", "--execute").status == 0
        capsys.readouterr()
        assert run(["report", "--json", "--journal", f"zkmigrate-{command}.journal"]) == 0
        (row,) = rows_of(capsys.readouterr().out)
        assert row["state"] == "done"
