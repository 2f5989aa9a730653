"""Number of members of a group after each change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from zkaudit.group.coverage import UNKNOWN, Coverage
from zkaudit.group.events import FROM_SNAPSHOT, Began, Lifetime, Membership, Moment, Row
from zkaudit.group.znodes import IDS


class Members:
    """Adds rows about changes of a group's members to the rows from ``Fold``.

    Args:
        coverage: the segments of the history.
    """

    def __init__(self, coverage: Coverage) -> None:
        self._coverage = coverage
        self._segment = 0
        self._existing: dict[Lifetime, None] = {}
        """Registrations that are known to exist in the current segment."""

    def read(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the rows, each followed by the change of the group's members that it causes, if
        any."""
        for row in rows:
            yield row
            if isinstance(row, Began):
                one, at = row.lifetime, row.lifetime.start
                if one.znode.tree == IDS and at is not UNKNOWN:
                    yield from self._hide(at.zxid)
                    self._existing[one] = None
                    yield Membership(one, at, "join", 1, self._count(at.zxid))
            elif isinstance(row, Lifetime) and row.znode.tree == IDS and row.end is not None:
                yield from self._hide(row.end.zxid)
                step = -1 if row in self._existing else 0
                self._existing.pop(row, None)
                yield Membership(row, row.end, "leave", step, self._count(row.end.zxid))

    def _hide(self, zxid: int) -> Iterator[Membership]:
        """Remove the registrations whose end a log gap may hide."""
        segment = self._coverage.segment(zxid)
        if segment > self._segment:
            self._segment = segment
            for one in [one for one in self._existing if one.seen_in < segment]:
                del self._existing[one]
                last_seen = Moment(one.seen_until(self._coverage), FROM_SNAPSHOT)
                yield Membership(one, last_seen, None, -1, None)

    def _count(self, zxid: int) -> int | None:
        return len(self._existing) if self._coverage.is_known(zxid) else None
