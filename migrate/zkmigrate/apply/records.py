"""The records of each group in a journal. Pure.

A record is one of three: the start of a run (``run``), a step that is about to begin (``group`` and
``step``), or a group's outcome in a run (``group`` and ``outcome``).

A group that is planned when it is applied has a record ``plan`` that contains its plan. If nothing
was written after it, the next run plans the group again, and only the records after the last
``plan`` count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from zkconsumer.core.common.types import TopicPartition
from zkmigrate.apply.outcome import Outcome, Result
from zkmigrate.errors import JournalError
from zkmigrate.formats import plan_file
from zkmigrate.plan.values import GroupPlan

Records = list[dict[str, Any]]
PLAN: Final = "plan"
RESET: Final = "reset"
_UNWRITTEN: Final = (PLAN, "claim")
_MOVE: Final = ("claim", "write", "mark", "done")
_LATE: Final = ("late", "undo-late")
"""Offsets were committed after the session had ended: a remark, not a step."""
_STEPS: Final = frozenset({PLAN, RESET, *_LATE, *_MOVE, *(f"undo-{step}" for step in _MOVE)})
_WRITTEN: Final = frozenset({"at_ms", "n"})
"""Keys of every record."""
_RUN: Final = frozenset({"run"}) | _WRITTEN
_STEP: Final = frozenset({"group", "step", "name", "held", "locked", "plan", "store"}) | _WRITTEN
_OUTCOMES: Final = frozenset(one.value for one in Outcome)
_OUTCOME: Final = frozenset({"group", "outcome", "offsets", "why", "not_locked"}) | _WRITTEN


def _checked(records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the records of groups. Raises JournalError for one of an unknown kind."""
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
                f"the journal has a record of an unknown kind ({', '.join(odd) or 'no group'}), "
                "perhaps from a newer zkmigrate: nothing was changed"
            )
        if known is not _RUN:
            yield record


def begun_by(records: Iterable[dict[str, Any]]) -> Mapping[str, Records]:
    """Return the steps of each group that was begun. Raises JournalError."""
    begun: dict[str, Records] = {}
    for record in _checked(records):
        if "step" in record:
            begun.setdefault(record["group"], []).append(record)
    return begun


def outcome_of(result: Result) -> dict[str, Any]:
    """Return the record of a group's outcome."""
    record: dict[str, Any] = {
        "group": result.group,
        "outcome": result.outcome.value,
        "offsets": result.offsets,
        "why": result.why,
    }
    if result.not_locked:
        record["not_locked"] = True
    return record


def outcomes_of(records: Iterable[dict[str, Any]]) -> Mapping[str, Result]:
    """Return each group's last outcome. Raises JournalError.

    A group whose last run was killed has none, because the steps of that run follow the outcome of
    the run before.
    """
    ended: dict[str, Result] = {}
    for record in _checked(records):
        group = record["group"]
        if "step" in record:
            ended.pop(group, None)
            continue
        result = Result(
            group,
            Outcome(record["outcome"]),
            int(record.get("offsets", 0)),
            str(record.get("why", "")),
            record.get("not_locked") is True,
        )
        before = ended.get(group)
        if result.outcome is Outcome.WAS_DONE and before is not None and before.not_locked:
            result = replace(result, why=before.why, not_locked=True)  # nothing has locked it since
        ended[group] = result
    return ended


def since_plan(records: Records) -> Records:
    """Return the records after the last plan of a group, or all."""
    for index in range(len(records) - 1, -1, -1):
        if records[index]["step"] == PLAN:
            return records[index + 1 :]
    return records


def recorded(records: Records) -> GroupPlan | None:
    """Return the plan by which a group was written; ``None`` if nothing was written."""
    after = since_plan(records)
    if len(after) == len(records) or all(record["step"] in _UNWRITTEN for record in after):
        return None
    return plan_file.parse_one("the journal", str(records[len(records) - len(after) - 1]["plan"]))


def late_partitions(records: Records) -> list[TopicPartition]:
    """Return the partitions whose offsets a run may have overwritten without a claim."""
    partitions = {
        TopicPartition(str(topic), int(number))
        for record in since_plan(records)
        if record["step"] in _LATE
        for topic, number in record["held"]
    }
    return sorted(partitions)


def names_in(records: Records) -> set[str]:
    """Return the names under which earlier runs claimed a group."""
    return {str(record["name"]) for record in records if "name" in record}


def was_locked(records: Records) -> bool:
    """Whether the group was locked before the first run claimed it."""
    return any(record.get("locked") for record in records if record["step"] == "claim")
