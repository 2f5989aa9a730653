"""The list of planted bugs fits the code. A planted bug is found, or reported as not found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.at_random import bugs, choose
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


def test_bugs_at_random_fit_the_code() -> None:
    """Each is in a module that has no other, compiles, and has tests. A seed gives the same."""
    chosen = choose(1, 20)
    assert chosen == choose(1, 20)
    assert len({mutant.file for mutant in chosen} - {mutant.file for mutant in MUTANTS}) == 20
    for mutant in chosen:
        text = (ROOT / mutant.file).read_text(encoding="utf-8")
        assert text.count(mutant.old) == 1
        compile(text.replace(mutant.old, mutant.new), mutant.file, "exec")
        assert all((ROOT / test).is_file() for test in mutant.tests)
    source = "if a < b and not c:\n    d += 1\nf(é in x)\n"
    raw = source.encode()
    assert sorted(
        (raw[:start] + new.encode() + raw[end:]).decode() for start, end, new in bugs(source)
    ) == [
        "if a < b and c:\n    d += 1\nf(é in x)\n",
        "if a < b and not c:\n    d += 1\nf(é not in x)\n",
        "if a < b and not c:\n    d += 1\npass\n",
        "if a < b and not c:\n    pass\nf(é in x)\n",
        "if a < b or not c:\n    d += 1\nf(é in x)\n",
        "if a <= b and not c:\n    d += 1\nf(é in x)\n",
    ]


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
