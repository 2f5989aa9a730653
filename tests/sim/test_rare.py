"""The rare branches of ``tests.sim.rare`` are in the code, and are counted."""

from __future__ import annotations

from tests.sim.rare import BRANCHES, UNREACHED, Reached, places
from tests.sim.runs.run import run


def test_each_rare_branch_has_its_place() -> None:
    """The text that names it occurs once in its file, and no two are the same line."""
    assert len(places()) == len(BRANCHES)
    assert UNREACHED.keys() < BRANCHES.keys()


def test_a_branch_that_a_run_enters_is_counted() -> None:
    """Tracing changes nothing in the run."""
    with Reached() as counts:
        traced = run(0, coordination="live", events=60)
    assert counts["an offset disappears below its owner"] > 0
    assert str(run(0, coordination="live", events=60)) == str(traced)
