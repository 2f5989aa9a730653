"""The list of planted bugs fits the code. A planted bug is found, or reported as not found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.run import ROOT, Mutant, Trees, load, try_all

MUTANTS = load()


def test_there_are_enough_in_each_part() -> None:
    """Core, runtime, drivers, commands, migrator and audit all have planted bugs."""
    assert len(MUTANTS) >= 110
    parts = [mutant.file for mutant in MUTANTS]
    for part in (
        "zkconsumer/core/common",
        "zkconsumer/core/groups",
        "zkconsumer/core/zookeeper",
        "zkconsumer/runtime/fetch",
        "zkconsumer/runtime",
        "zkconsumer/zk",
        "zkconsumer/broker",
        "zkconsumer/admin",
        "zkconsumer/cli",
        "migrate/zkmigrate/plan",
        "migrate/zkmigrate/apply",
        "spark/zkaudit",
    ):
        assert sum(file.startswith(f"{part}/") for file in parts) >= 3, part


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_planted_bug_has_its_place(mutant: Mutant) -> None:
    """The text that a bug replaces is in its file exactly once, and the bug's tests exist."""
    assert (ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1
    for test in mutant.tests:
        path, *names = test.partition("[")[0].split("::")
        text = (ROOT / path).read_text(encoding="utf-8")
        assert all(f"def {name}(" in text for name in names), test


def test_a_sample_is_found_and_what_changes_nothing_survives(tmp_path: Path) -> None:
    """A short run of the command itself. ``make mutants`` runs the whole list."""
    name = "automatic commits pile up"
    (planted,) = (mutant for mutant in MUTANTS if mutant.name == name)
    harmless = replace(planted, name="nothing", new=planted.old)
    missing = replace(planted, name="missing", old="no such text")
    results = try_all(
        Trees(tmp_path, 2, compiled=False), [planted, harmless, missing], lambda result: None
    )
    assert [result.outcome.partition(":")[0] for result in results] == [
        "found",
        "survived",
        "stale",
    ]
    assert results[0].by == planted.tests[0]
