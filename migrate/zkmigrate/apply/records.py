"""The records of each group in a journal. Pure.

A record is one of three: the start of a run (``run``), a step that is about to begin (``group`` and
``step``), or a group's outcome in a run (``group`` and ``outcome``).

A group that is planned while it is applied has a record ``plan`` with its plan. If nothing was
written after that, the next run plans the group again, and uses only the records after the last
``plan``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from zkconsumer.core.common.types import TopicPartition
from zkmigrate.apply.outcome import Changed, Outcome, Result
from zkmigrate.errors import JournalError
from zkmigrate.formats import plan_file
from zkmigrate.plan.table import Action
from zkmigrate.plan.values import GroupPlan
from zkmigrate.reasons import Reason

Records = list[dict[str, Any]]
PLAN: Final = "plan"
RESET: Final = "reset"
"""Name of a reset's step."""
ELSEWHERE: Final = "to-cluster"
"""Name of the step that stores offsets in another cluster."""
ALONE: Final = frozenset(
    one.value
    for one in (
        Action.PREPARE, Action.TO_KAFKA, Action.FINALIZE, Action.TO_ZOOKEEPER, Action.LOCK,
        Action.UNLOCK, Action.CUT_OVER, Action.COMPLETE, Action.UNDO,
    )
)  # fmt: skip
"""Steps from which no later run resumes, because the group's state shows everything."""
WITHOUT_PLAN: Final = ("live", RESET, *(one for one in ALONE if " " not in one))
"""Commands without a plan, whose name the journal has in place of a plan's digest."""
_UNWRITTEN: Final = (PLAN, "claim")
_MOVE: Final = ("claim", "write", "mark", "done")
_LATE: Final = ("late", "undo-late")
"""A remark, not a step: newer offsets may have been overwritten."""
_STEPS: Final = frozenset(
    {PLAN, RESET, ELSEWHERE, *_LATE, *_MOVE, *ALONE, *(f"undo-{step}" for step in _MOVE)}
)
_WRITTEN: Final = frozenset({"at_ms", "n"})
"""Keys that every record has."""
_RUN: Final = frozenset({"run"}) | _WRITTEN
_STEP: Final = frozenset({"group", "step", "name", "held", "plan", "store"}) | _WRITTEN
_OUTCOMES: Final = frozenset(one.value for one in Outcome)
_OUTCOME: Final = (
    frozenset(
        {"group", "outcome", "offsets", "why", "reasons", "not_locked", "locked", "changed", "mode"}
    )
    | _WRITTEN
)


def _checked(records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the records. Raises JournalError for one of an unknown kind."""
    for record in records:
        if "run" in record:
            known = _RUN
        elif "outcome" in record:
            known = _OUTCOME
        else:
            known = _STEP
        step = record.get("step")
        odd = sorted(record.keys() - known)
        if known is _STEP and step not in _STEPS:
            odd.append(f"step {step}")
        if known is _OUTCOME and record["outcome"] not in _OUTCOMES:
            odd.append(f"outcome {record['outcome']}")
        if odd or (known is not _RUN and not isinstance(record.get("group"), str)):
            raise JournalError(
                "the journal contains a record of an unknown kind "
                f"({', '.join(odd) or 'no group'}), perhaps from a newer zkmigrate: nothing was "
                "changed"
            )
        yield record


def begun_by(records: Iterable[dict[str, Any]]) -> Mapping[str, Records]:
    """Return the steps in a journal, by group. Raises JournalError."""
    begun: dict[str, Records] = {}
    for record in _checked(records):
        if "step" in record:
            begun.setdefault(record["group"], []).append(record)
    return begun


def moves_by(records: Iterable[dict[str, Any]]) -> Mapping[str, Records]:
    """Return the steps of moves in a journal, by group. Steps in ``ALONE`` belong to no move.
    Raises JournalError."""
    found = {name: [one for one in all_ if one["step"] not in ALONE]
             for name, all_ in begun_by(records).items()}  # fmt: skip
    return {name: steps for name, steps in found.items() if steps}


def outcome_of(result: Result) -> dict[str, Any]:
    """Return the journal's record of a group's outcome."""
    record: dict[str, Any] = {
        "group": result.group,
        "outcome": result.outcome.value,
        "offsets": result.offsets,
        "why": result.why,
    }
    if result.reasons:
        record["reasons"] = [one.value for one in result.reasons]
    if result.not_locked:
        record["not_locked"] = True
    if result.locked is not None:
        record["locked"] = result.locked
    if result.mode is not None:
        record["mode"] = result.mode
    if result.changed:
        record["changed"] = result.changed
    return record


@dataclass(frozen=True, slots=True)
class Ended:
    """The outcome of a group in one run. ``run``: the journal's record of the run, with command,
    options and operator."""

    result: Result
    run: Mapping[str, Any]
    at_ms: int | None


@dataclass(slots=True)
class History:
    """The outcomes of a group, one for each run that worked on the group."""

    ended: list[Ended] = field(default_factory=list)
    open: bool = False
    """Whether steps follow the last outcome, because the last run was killed."""

    @property
    def last(self) -> Result | None:
        """The outcome of the last run; ``None`` if it was killed."""
        return None if self.open or not self.ended else self.ended[-1].result

    @property
    def changed(self) -> tuple[Changed, ...]:
        """The offsets that were changed by the last run that changed any."""
        return next((one.result.changed for one in reversed(self.ended) if one.result.changed), ())


def histories_of(records: Iterable[dict[str, Any]]) -> dict[str, History]:
    """Return the outcomes in a journal, by group. Raises JournalError."""
    found: dict[str, History] = {}
    run: Mapping[str, Any] = {}
    for record in _checked(records):
        if "run" in record:
            run = record["run"] if isinstance(record["run"], dict) else {}
            continue
        history = found.setdefault(record["group"], History())
        history.open = "step" in record
        if "outcome" in record:
            result = _result(record)
            before = history.ended[-1].result if history.ended else None
            if result.outcome is Outcome.WAS_DONE and before is not None and before.not_locked:
                # nothing has locked it since
                result = replace(result, why=before.why, not_locked=True, locked=False)
            history.ended.append(Ended(result, run, record.get("at_ms")))
    return found


def _result(record: Mapping[str, Any]) -> Result:
    locked = record.get("locked")
    try:
        changed = tuple(Changed(*row) for row in record.get("changed", ()))
        reasons = tuple(map(Reason, record.get("reasons", ())))
    except (TypeError, ValueError):
        raise JournalError(
            "an outcome in the journal is damaged, or was written by a newer zkmigrate"
        ) from None
    return Result(
        record["group"],
        Outcome(record["outcome"]),
        int(record.get("offsets", 0)),
        str(record.get("why", "")),
        reasons,
        not_locked=record.get("not_locked") is True,
        locked=locked if isinstance(locked, bool) else None,
        changed=changed,
        mode=record.get("mode"),
    )


def since_plan(records: Records) -> Records:
    """Return the records after a group's last plan, or all records if there is no plan."""
    for index in range(len(records) - 1, -1, -1):
        if records[index]["step"] == PLAN:
            return records[index + 1 :]
    return records


def last_done(records: Records) -> int:
    """Return the index of the last record of a finished move or undo; -1 if there is none."""
    ends = (at for at, record in enumerate(records) if record["step"] in ("done", "undo-done"))
    return max(ends, default=-1)


def recorded(records: Records) -> GroupPlan | None:
    """Return a group's last plan, if offsets were written with it; otherwise ``None``."""
    after = since_plan(records)
    if len(after) == len(records) or all(record["step"] in _UNWRITTEN for record in after):
        return None
    return plan_file.parse_one("the journal", str(records[len(records) - len(after) - 1]["plan"]))


def late_partitions(records: Records) -> list[TopicPartition]:
    """Return the partitions where a run may have overwritten newer offsets, as its claim had ended.
    Partitions that the group's record in ZooKeeper already lists are not included."""
    partitions: set[TopicPartition] = set()
    for record in since_plan(records):
        if record["step"] in _LATE:
            late = {TopicPartition(str(topic), int(number)) for topic, number in record["held"]}
            partitions = partitions | late if late else late
    return sorted(partitions)


def names_in(records: Records) -> set[str]:
    """Return the names under which earlier runs claimed a group."""
    return {str(record["name"]) for record in records if "name" in record}
