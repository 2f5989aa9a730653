"""The records of each group in a journal. Pure.

A group that is planned when it is applied has a record ``plan`` that contains its plan. If nothing
was written after it, the next run plans the group again, and only the records after the last
``plan`` count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from zkmigrate.errors import JournalError
from zkmigrate.formats import plan_file
from zkmigrate.plan.values import GroupPlan

Records = list[dict[str, Any]]
PLAN: Final = "plan"
_UNWRITTEN: Final = (PLAN, "claim")


def begun_by(records: Iterable[dict[str, Any]]) -> Mapping[str, Records]:
    """Return the records of each group. Raises JournalError."""
    begun: dict[str, Records] = {}
    for record in records:
        if "run" in record:
            continue
        if not isinstance(record.get("group"), str) or not isinstance(record.get("step"), str):
            raise JournalError(
                "the journal has a record of an unknown kind, perhaps from a newer zkmigrate: "
                "nothing was changed"
            )
        begun.setdefault(record["group"], []).append(record)
    return begun


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


def names_in(records: Records) -> set[str]:
    """Return the names under which earlier runs claimed a group."""
    return {str(record["name"]) for record in records if "name" in record}


def was_locked(records: Records) -> bool:
    """Whether the group was locked before the first run claimed it."""
    return any(record.get("locked") for record in records if record["step"] == "claim")
