"""What became of a group that was to be moved. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

NOT_LOCKED = "not locked"
"""How the remark of a group begins that is moved, and whose old consumers could still start."""


class Outcome(Enum):
    """What became of a group. The value is what commands print."""

    DONE = "done"
    WAS_DONE = "was done before"
    NOTHING = "nothing to do"
    WOULD = "would be done"
    SKIPPED = "skipped"
    FAILED = "failed"

    @property
    def good(self) -> bool:
        """Whether nothing is left to do."""
        return self not in (Outcome.SKIPPED, Outcome.FAILED)


@dataclass(frozen=True, slots=True)
class Result:
    """One group's outcome; ``offsets``: how many were written; ``why``: for people."""

    group: str
    outcome: Outcome
    offsets: int
    why: str = ""
