"""The result of a pass of a mirror for a group."""

from __future__ import annotations

from typing import Final, NamedTuple

from zkmigrate.apply.outcome import Outcome
from zkmigrate.reasons import Reason

IN_STEP: Final = "in step"
STANDBY: Final = "standby"
ENDED: Final = "not mirrored"


class Step(NamedTuple):
    """One group after one pass. ``state``: ``in step``, ``standby``, ``behind``, ``stopped``,
    ``refused``, ``failed`` or ``not mirrored``. ``since``: when its store began to lead, in UTC.
    ``late_since``: since when it has not been in step; empty if it is. ``copied``: number of
    offsets copied."""

    group: str
    leader: str
    state: str
    since: str = ""
    late_since: str = ""
    why: str = ""
    reasons: tuple[Reason, ...] = ()
    copied: int = 0

    @property
    def good(self) -> bool:
        """Whether the group needs no operator."""
        return self.state in (IN_STEP, STANDBY, ENDED, Outcome.WOULD.value)
