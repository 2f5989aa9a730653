"""The result of a pass of a mirror for a group."""

from __future__ import annotations

from typing import Final, NamedTuple

from zkmigrate.apply.outcome import Outcome
from zkmigrate.reasons import Reason
from zkmigrate.text import moment

IN_STEP: Final = "in step"
STANDBY: Final = "standby"
ENDED: Final = "not mirrored"
HANDED_OVER: Final = "handed over"


class Step(NamedTuple):
    """One group after one pass. ``state``: ``in step``, ``standby``, ``behind``, ``stopped``,
    ``refused``, ``failed``, ``not mirrored`` or, to another cluster, ``handed over``. ``since``:
    when its store began to lead, in UTC. ``late_since``: since when it has not been in step; empty
    if it is. ``copied``: number of offsets copied."""

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
        return self.state in (IN_STEP, STANDBY, ENDED, HANDED_OVER, Outcome.WOULD.value)


class Lateness:
    """Since when groups have not been in step."""

    def __init__(self) -> None:
        self._since: dict[str, str] = {}

    def timed(self, step: Step, now_ms: int) -> Step:
        """Add the time since when the group has not been in step."""
        if step.good:
            self._since.pop(step.group, None)
            return step
        return step._replace(late_since=self._since.setdefault(step.group, moment(now_ms)))
