"""Every cell of the table of states and commands (``matrix``) on a simulated cluster."""

from __future__ import annotations

import re

import pytest
from zkmigrate.model import GroupState
from zkmigrate.plan.cases import MEANING, Case, case_of

from tests.migrate.matrix import COMMANDS, STATES, answer_of, cells
from tests.migrate.simulated import Simulated, simulated

__all__ = ["simulated"]


@pytest.mark.parametrize(("state", "command", "answer"), list(cells()))
def test_a_command_in_a_state(simulated: Simulated, state: str, command: str, answer: str) -> None:
    """The command gives the one allowed answer."""
    assert answer_of(simulated, state, command) == answer


def test_every_cell_has_an_answer() -> None:
    """Nothing is left out. An answer begins with an exit status, or is ``-`` where there is no
    plan to give to the command."""
    every = [(one.__name__, two.__name__) for one in STATES for two in COMMANDS]
    assert [cell[:2] for cell in cells()] == every
    assert [cell for cell in cells() if not re.fullmatch(r"-|[0-9]+ [a-z].*", cell[2])] == []


def test_every_case_is_in_the_table() -> None:
    """Except that of a group without offsets. Each has a meaning in the reference."""
    states = {answer for _, command, answer in cells() if command == "status"}
    shown = {answer.partition(" ")[2].partition(";")[0] for answer in states}
    assert shown == {case.value for case in Case} - {Case.EMPTY.value}
    assert MEANING.keys() == set(Case)
    assert case_of(GroupState("g")) is Case.EMPTY
