"""The result of a pass of a mirror for a group."""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from zkmigrate.apply.outcome import Outcome
from zkmigrate.reasons import Reason
from zkmigrate.text import moment

IN_STEP: Final = "in step"
STANDBY: Final = "standby"
ENDED: Final = "not mirrored"
HANDED_OVER: Final = "handed over"


class Step(NamedTuple):
    """The result of one pass for one group; see the schema ``mirror`` in ``rows``. ``copied``:
    number of offsets copied."""

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
        """Whether the group is in order, so that no operator has to act."""
        return self.state in (IN_STEP, STANDBY, ENDED, HANDED_OVER, Outcome.WOULD.value)


class Lateness:
    """Remembers since when each group has not been in step."""

    def __init__(self) -> None:
        self._since: dict[str, str] = {}

    def timed(self, step: Step) -> Step:
        """Return the step with ``late_since`` set if the group is not in step."""
        if step.good:
            self._since.pop(step.group, None)
            return step
        since = self._since.setdefault(step.group, moment(int(time.time() * 1000)))
        return step._replace(late_since=since)
