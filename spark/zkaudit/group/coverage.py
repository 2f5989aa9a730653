"""Coverage of the logs: segments between log gaps, and the value for data that a gap hides."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from enum import Enum
from typing import Final

LogGap = tuple[int, int]
"""The last zxid before missing transactions, and the first one after them."""


class Unknown(Enum):
    """The type of ``UNKNOWN``. It is an enum so that type checkers know its only value."""

    UNKNOWN = "unknown"


UNKNOWN: Final = Unknown.UNKNOWN
"""A value that a log gap hides. ``None`` means that there is no such value."""


class Coverage:
    """The log gaps of a history, and the segments between them.

    Log gaps divide the history into segments, numbered from 0. What a segment shows about a znode
    may not be true in the next one.

    Args:
        log_gaps: pairs (after, before); all transactions strictly between the two are missing. A
            history that does not reach back to the first transaction begins with (0, its first
            zxid).
        known: for each segment, the zxid from which on all ephemeral znodes are known; ``None`` if
            they are never all known. By default they are known in the first segment only, from its
            beginning.
    """

    def __init__(self, log_gaps: Sequence[LogGap] = (), known: Sequence[int | None] = (0,)) -> None:
        self.log_gaps = tuple(sorted(log_gaps))
        self.last_segment = len(self.log_gaps)
        self._begins = [before for _, before in self.log_gaps]
        self._known = tuple(known)

    def segment(self, zxid: int) -> int:
        """Return the segment of a zxid, which is the number of log gaps before it."""
        return bisect_right(self._begins, zxid)

    def end_of(self, segment: int) -> int:
        """Return the last zxid of a segment. The segment must end with a log gap."""
        return self.log_gaps[segment][0]

    def known_from(self, segment: int) -> int | None:
        """Return the zxid from which on all ephemeral znodes are known in a segment; ``None`` if
        they never are."""
        return self._known[segment] if segment < len(self._known) else None

    def is_known(self, zxid: int) -> bool:
        """Return whether all ephemeral znodes after a transaction are known.

        In a log gap they are not, because a snapshot there shows the effect of only some of the
        gap's transactions.
        """
        segment = self.segment(zxid)
        known_from = self.known_from(segment)
        in_gap = segment < self.last_segment and zxid > self.end_of(segment)
        return known_from is not None and zxid >= known_from and not in_gap

    def is_missing(self, first: int, last: int | None) -> bool:
        """Return whether transactions between two zxids are missing. ``last``: ``None`` means the
        end of the history."""
        return any(
            (before if last is None else min(last, before)) - max(first, after) > 1
            for after, before in self.log_gaps
        )
