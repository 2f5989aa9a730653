"""The list of planted bugs fits the code."""

from __future__ import annotations

import pytest

from tests.mutants.run import ROOT, Mutant, load


@pytest.mark.parametrize("mutant", load(), ids=lambda mutant: mutant.name)
def test_every_planted_bug_has_its_place(mutant: Mutant) -> None:
    """The text that it replaces is in its file once, and its tests exist."""
    assert (ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1
    for test in mutant.tests:
        assert (ROOT / test.partition("::")[0]).exists(), test
