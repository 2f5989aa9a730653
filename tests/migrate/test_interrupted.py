"""Runs that end early: what is printed, what the exit status says, what a dry run can foresee."""

from __future__ import annotations

import os
from typing import Any

import pytest
from zkmigrate.apply import journal as journals

from tests.migrate.simulated import Simulated, simulated

__all__ = ["simulated"]


@pytest.fixture
def planned(simulated: Simulated) -> Simulated:
    """A plan for three groups."""
    simulated.topic("t", (0, 100))
    for group in "abc":
        simulated.in_zookeeper(group, "t", 5)
    assert simulated.run("plan", "--all", "--out", "plan").status == 0
    return simulated


class Disk:
    """A disk that becomes full before a certain record of the journal."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, word: bytes) -> None:
        self.word: bytes | None = word
        self._write = os.write
        monkeypatch.setattr(journals.os, "write", self)

    def __call__(self, file: int, data: Any) -> int:
        if self.word is not None and self.word in bytes(data):
            raise OSError(28, "No space left on device")
        return self._write(file, data)


def test_a_full_disk_is_a_failure_and_the_rows_so_far_are_printed(
    planned: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no wrong option. Nothing happens after the last record, and the same command goes on
    when there is room."""
    disk = Disk(monkeypatch, b'"group":"b","step":"write"')
    ran = planned.run("apply", "plan", "--execute", "--parallel", "1")
    assert ran.status == 1, ran.err
    assert (
        "No space left on device; nothing was done after the last record: free disk space"
        in ran.err
    )
    assert [(row["group"], row["outcome"]) for row in ran.rows] == [("a", "done")]
    assert planned.held("b", "t") == ({0: 5}, {})
    disk.word = None
    assert planned.run("apply", "plan", "--execute").status == 0
    assert [planned.held(group, "t")[1] for group in "abc"] == [{0: 5}] * 3


def test_a_rollback_on_a_full_disk_is_not_a_finished_one(
    planned: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group is still moved and locked. ``apply`` must not call it rolled back, which sends the
    operator to a new plan."""
    assert planned.run("apply", "plan", "--execute").status == 0
    disk = Disk(monkeypatch, b'"step":"undo-write"')
    assert planned.run("undo", "plan", "--execute", "--parallel", "1").status == 1
    disk.word = None
    (row,) = planned.run("apply", "plan", "--group", "a").rows
    assert row["outcome"] == "refused"
    assert "its rollback was begun and is not finished: run undo again" in row["why"]
    assert planned.held("a", "t")[1] == {0: 5}
    assert planned.run("undo", "plan", "--execute").status == 0
    assert planned.held("a", "t")[1] == {}
    (row,) = planned.run("apply", "plan", "--group", "a").rows
    assert "was rolled back: make a new plan" in row["why"]


def test_a_dry_run_says_that_the_journal_cannot_be_written(
    planned: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the night, and not in it."""
    right = os.access
    monkeypatch.setattr(
        journals.os, "access", lambda path, mode: str(path) != "." and right(path, mode)
    )
    ran = planned.run("apply", "plan")
    assert ran.status == 2
    assert "cannot be written, so --execute would fail" in ran.err
    there = planned.file("journal")
    assert planned.run("apply", "plan", "--journal", there).status == 0
    assert not os.path.exists(there)


@pytest.mark.parametrize("to", ["--shift-by=10", "--to-latest"])
def test_a_shift_that_ended_early_warns_of_its_repetition(
    planned: Simulated, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    """It would shift the first group twice. Every other reset can be repeated."""
    Disk(monkeypatch, b'"group":"b","step":"reset"')
    ran = planned.run("reset", "--all", "--all-topics", to, "--execute", "--parallel", "1")
    assert (ran.status, [row["group"] for row in ran.rows]) == (1, ["a"])
    assert ("leave them out when you repeat the command" in ran.err) is to.startswith("--shift")
