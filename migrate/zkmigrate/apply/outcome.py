"""Outcomes of groups that a command should have moved. Values only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from zkconsumer.errors import GroupActiveError, ZkConsumerError, ZkUnavailableError
from zkmigrate.errors import GroupRefusedError, JournalError, MigrationError
from zkmigrate.exits import exit_status
from zkmigrate.model import GroupState
from zkmigrate.plan.cases import case_of
from zkmigrate.plan.table import BY_RECORD, Action, Do, Way, decide
from zkmigrate.plan.values import GroupPlan, Problem, StaysBehind, Verdict
from zkmigrate.reasons import Reason
from zkmigrate.text import late_text

NOT_LOCKED = "not locked"
"""Start of the remark on a group that is moved but whose old consumers could still start."""


class Outcome(Enum):
    """The outcome of a group. Commands print its value."""

    DONE = "done"
    WAS_DONE = "was done before"
    NOTHING = "nothing to do"
    WOULD = "would be done"
    SKIPPED = "skipped"
    """According to the plan, the group is not ready."""
    REFUSED = "refused"
    """Another action is needed first, such as stopping a consumer."""
    FAILED = "failed"
    """A server returned an error. The same command may succeed later."""

    @property
    def good(self) -> bool:
        """Whether the group needs no further work."""
        return self not in (Outcome.SKIPPED, Outcome.REFUSED, Outcome.FAILED)


class Changed(NamedTuple):
    """One offset that was changed in a store. ``None`` means no offset."""

    topic: str
    partition: int
    store: str
    before: int | None
    after: int | None


@dataclass(frozen=True, slots=True)
class Result:
    """One group's outcome. ``offsets``: number of offsets written. ``why``: the reason as text."""

    group: str
    outcome: Outcome
    offsets: int
    why: str = ""
    reasons: tuple[Reason, ...] = ()
    not_locked: bool = False
    """The group is moved, but its old consumers could still start; ``why`` gives the reason."""
    locked: bool | None = None
    """Whether old consumers are kept from starting, if that was checked."""
    changed: tuple[Changed, ...] = ()
    """The offsets that were changed, by this run or by a killed run that it resumed."""
    kafka_group: str = ""
    """The group's name in Kafka, if different."""
    way: Way | None = None
    """How ``undo`` takes the group back."""
    mode: str | None = None
    """The group's mode, if it is in a live move."""
    stays: tuple[StaysBehind, ...] = ()
    """Offsets that the plan leaves behind."""
    problem: Problem | None = None
    """Why the plan says that the group is not ready."""


_BY_TABLE: Final = {
    Do.DONE: Outcome.WAS_DONE,
    Do.SKIP: Outcome.SKIPPED,
    Do.DECIDE: Outcome.SKIPPED,
    Do.REFUSE: Outcome.REFUSED,
    Do.FAIL: Outcome.FAILED,
}


def by_table(state: GroupState, action: Action, force: bool = False) -> Result | None:
    """Return the outcome if the table of cases forbids the action on a group, otherwise ``None``.

    ``force``: allow the action even if newer offsets may be lost, or an old consumer has committed.
    """
    answer = decide(state, action)
    late = answer.reason is Reason.WRITTEN_LATE
    if answer.do is Do.GO or (force and (late or answer.reason is Reason.CONFLICT)):
        return None
    reasons = () if answer.reason is None else (answer.reason,)
    why = "; ".join(state.faults)
    if not why and answer.reason is not None:
        text = late_text(state.record.late, state.record.late_more) if late else answer.why
        # The record alone does not show offsets, and so not always the case.
        why = text if action in BY_RECORD else f"{case_of(state).value}: {text}"
    outcome = _BY_TABLE[answer.do]
    return Result(state.group, outcome, 0, why, reasons, kafka_group=state.kafka_group)


def ended_by(group: str, error: ZkConsumerError) -> Result:
    """Return the outcome of a group, given the error that ended the work on it."""
    match error:
        case GroupRefusedError():
            return Result(group, Outcome.REFUSED, 0, str(error), (error.reason,))
        case GroupActiveError():
            return Result(group, Outcome.REFUSED, 0, str(error), (Reason.LIVE_MEMBER,))
    return Result(group, Outcome.FAILED, 0, str(error))


def not_read(group: str, problem: Problem) -> Result:
    """Return the outcome of a group that cannot be read."""
    away = problem.kind is Reason.COORDINATOR_AWAY
    outcome = Outcome.FAILED if away else Outcome.REFUSED
    return Result(group, outcome, 0, f"{problem.what}: {problem.fix}", (problem.kind,))


def unreadable(group: str, problem: Problem) -> MigrationError:
    """Return the error for a group that cannot be read."""
    text = f"group {group}: {problem.what}: {problem.fix}"
    if problem.kind is Reason.COORDINATOR_AWAY:
        return MigrationError(text)
    return GroupRefusedError(text, problem.kind)


def not_ready(group: GroupPlan) -> Result | None:
    """Return the outcome of a planned group that is ignored or has problems; ``None`` for any other
    group."""
    if group.verdict is Verdict.IGNORED:
        why = f"is ignored: {group.ignored}"
        return Result(group.group, Outcome.NOTHING, 0, why, (Reason.IGNORED,))
    if group.verdict not in (Verdict.DECIDE, Verdict.REFUSED):
        return None
    problem = group.problems[0]
    reasons = tuple(one.kind for one in group.problems)
    return Result(group.group, Outcome.SKIPPED, 0, f"{problem.what}: {problem.fix}", reasons)


def result_of(group: str, work: Callable[[], Result], *raised: type[ZkConsumerError]) -> Result:
    """Do the work on a group, and return the outcome, even if the work fails.

    Raises JournalError and ZkUnavailableError, which concern all groups, and errors of the types
    ``raised``.
    """
    try:
        return work()
    except (JournalError, ZkUnavailableError):
        raise
    except ZkConsumerError as error:
        if isinstance(error, raised):
            raise
        return ended_by(group, error)


def status_of_outcomes(outcomes: Iterable[Outcome]) -> int:
    """Return the exit status of a command for groups with these outcomes."""
    bad = {outcome for outcome in outcomes if not outcome.good}
    return exit_status(failed=Outcome.FAILED in bad, attention=bool(bad))
