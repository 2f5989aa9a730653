"""Every cell of the table of states and commands (``matrix``) on a simulated cluster."""

from __future__ import annotations

import re
from copy import deepcopy

import pytest
from zkmigrate.model import GroupState
from zkmigrate.plan.cases import MEANING, Case, case_of
from zkmigrate.plan.table import BY_RECORD, TABLE, Action, Do
from zkmigrate.reasons import MEANING as REASONS, Reason

from tests.migrate.matrix import COMMANDS, STATES, answer_of, build, cells
from tests.migrate.simulated import Simulated, simulated

__all__ = ["simulated"]


@pytest.mark.parametrize(("state", "command", "answer"), list(cells()))
def test_a_command_in_a_state(simulated: Simulated, state: str, command: str, answer: str) -> None:
    """The command gives the one allowed answer. One that is refused changes nothing, except that an
    undo takes a live group back mode by mode, as far as it can."""
    build(simulated, state)
    before = simulated.znodes("g"), deepcopy(simulated.kafka.committed)
    assert answer_of(simulated, command) == answer
    if answer.startswith(("3 refused", "3 skipped")) and "refused live back" not in answer:
        assert (simulated.znodes("g"), simulated.kafka.committed) == before


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


ACTIONS = {
    "plan": Action.PLAN,
    "plan_back": Action.PLAN_BACK,
    "apply": Action.APPLY,
    "undo": Action.UNDO,
    "lock": Action.LOCK,
    "unlock": Action.UNLOCK,
    "reset": Action.RESET,
    "gate": Action.GATE,
    "status": Action.STATUS,
    "live_prepare": Action.PREPARE,
    "live_to_kafka": Action.TO_KAFKA,
    "live_finalize": Action.FINALIZE,
    "live_to_zookeeper": Action.TO_ZOOKEEPER,
    "mirror": Action.MIRROR,
    "cut_over": Action.CUT_OVER,
    "complete": Action.COMPLETE,
}
STATUS = {Do.DONE: "0", Do.SKIP: "3", Do.DECIDE: "3", Do.REFUSE: "3", Do.FAIL: "1"}


def test_answers_are_those_of_the_product_s_table() -> None:
    """Where the table of cases does not let an action begin, the command has that exit status, and
    gives that reason. An action that knows the group's record alone does not see other cases."""
    others = {Action.APPLY_BACK, Action.MIRROR_ELSEWHERE}  # need another cluster
    assert set(ACTIONS.values()) | others == set(Action)
    case_of_state = {
        state: Case(answer.partition(" ")[2].partition(";")[0])
        for state, command, answer in cells()
        if command == "status"
    }
    checked = 0
    for state, command, answer in cells():
        action, case = ACTIONS.get(command), case_of_state[state]
        if action is None or (action in BY_RECORD and case is Case.UNREADABLE):
            continue
        cell = TABLE[action][case]
        if cell.do is Do.GO:
            continue
        checked += 1
        assert answer.startswith(STATUS[cell.do]), (state, command, cell)
        if cell.reason is not None and action is not Action.RESET:
            words = answer.replace("!", "").split()
            assert cell.reason.value in words, (state, command, cell)
    assert checked > 100


def test_reasons_are_complete() -> None:
    """Each reason has a meaning."""
    assert REASONS.keys() == set(Reason)
