"""The simulation of whole members finds planted bugs: each breaks a rule at a known seed.

``.venv/bin/python -m tests.sim.plants`` searches for the seeds again.
"""

from __future__ import annotations

import pytest

from tests.sim.plants import EVENTS, FOUND, plants
from tests.sim.runs.run import run


@pytest.mark.parametrize("name", FOUND)
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Each of these bugs, alone, breaks a rule in one of the first thousand runs."""
    plant, _ = plants()[name]
    plant(monkeypatch)
    coordination, seed, rule = FOUND[name]
    result = run(seed, coordination=coordination, events=EVENTS)
    assert rule in {violation.rule for violation in result.violations}


def test_every_bug_is_in_the_table() -> None:
    """Each bug is in the table, and all seeds are low."""
    assert FOUND.keys() == plants().keys()
    assert all(found.seed < 1000 for found in FOUND.values())
