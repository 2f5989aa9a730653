"""How ``undo`` takes a group back, or why it does not: the one place that decides it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from zkmigrate.apply.outcome import Outcome, Result, by_table, ended_by
from zkmigrate.apply.records import Records, since_plan
from zkmigrate.errors import refused
from zkmigrate.model import GroupState, Stage, Store
from zkmigrate.plan.table import Action, Way, decide
from zkmigrate.plan.values import GroupPlan, Verdict
from zkmigrate.reasons import MEANING, Reason

TAKEN_BACK: Final = (
    "undo has taken back its last change; undo --again takes back the one before, or the copy"
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be undone.

    ``digest``: of the plan that must have made the last change; empty: whatever made it, unless
    ``undo`` has taken the group back and ``again`` is not given. ``force``: also roll back groups
    with offsets that were committed after the move.
    """

    digest: str = ""
    force: bool = False
    again: bool = False


def way_back(state: GroupState, asked: Asked, planned: GroupPlan, records: Records) -> Way | Result:
    """Return how a group is taken back; if it is not, its outcome.

    ``state``: if it was read from ZooKeeper alone, it does not show whether new consumers have used
    the group, which decides between ``ROLL_BACK`` and ``COPY_BACK``. ``planned``: the group, with
    the plan's marker and verdict. ``records``: its steps in the plan's journal.
    """
    group, found = state.group, state.record
    other = bool(asked.digest) and asked.digest not in (found.of_plan, found.undoes)
    refusal = by_table(state, Action.UNDO, asked.force)
    if refusal is not None and not (other and refusal.outcome is Outcome.WAS_DONE):
        return refusal
    if asked.digest not in ("", found.of_plan):
        return _without_change(state, asked, planned, records)
    way = decide(state, Action.UNDO).way or Way.ROLL_BACK
    if way is Way.UNLOCK and asked.again and state.copied_back:
        way = Way.ROLL_BACK  # it was moved live, which has left it a mode
    if way not in (Way.ROLL_BACK, Way.COPY_BACK):
        return way
    in_kafka = state.moved_to is Store.KAFKA
    if found.taken_back and not asked.again:
        if in_kafka and not asked.digest:
            return Result(group, Outcome.REFUSED, 0, TAKEN_BACK, (Reason.MOVED,))
        if not asked.digest or state.copied_back or found.stage is Stage.UNDONE:
            why = "" if asked.digest or found.stage is Stage.UNDONE else TAKEN_BACK
            return Result(group, Outcome.WAS_DONE, 0, why)
    if found.stage not in (Stage.NONE, Stage.UNDONE):
        return Way.ROLL_BACK if asked.force else way
    if in_kafka and not (asked.digest and found.plan and found.stage is Stage.UNDONE):
        return Way.COPY_BACK  # what was before the move is not known
    if found.stage is Stage.NONE:
        return _without_change(state, asked, planned, records)
    return Result(group, Outcome.WAS_DONE, 0)


def _without_change(
    state: GroupState, asked: Asked, planned: GroupPlan, records: Records
) -> Result:
    """Return the outcome of a group whose last change is not the one to be undone."""
    group, found = state.group, state.record
    if found.mirror:
        why = " ".join(MEANING[Reason.MIRRORED]).replace("`", "")
        return Result(group, Outcome.REFUSED, 0, why, (Reason.MIRRORED,))
    last = records[-1]["step"] if records else ""
    finished = found.stage in (Stage.DONE, Stage.UNDONE)
    undone = last in ("undo-mark", "undo-done") and finished
    if undone or (asked.digest and found.taken_back and asked.digest == found.undoes):
        return Result(group, Outcome.WAS_DONE, 0)
    marker = None if state.marker is None else state.marker.data
    since = found.interrupted or (found.stage is Stage.DONE and marker != planned.marker)
    stands = since and planned.verdict is Verdict.READY
    # ``write`` is in the journal before the group's record says that it begins.
    if stands or (since_plan(records) and last not in ("claim", "write")):
        whose = f"the plan with the SHA-256 {found.of_plan}" if found.of_plan else "no plan"
        text = f"its last change was made by {found.by} with {whose}"
        return ended_by(group, refused(group, Reason.MOVED_SINCE, text))
    return Result(group, Outcome.NOTHING, 0, "was not begun", (Reason.NOT_MOVED,))
