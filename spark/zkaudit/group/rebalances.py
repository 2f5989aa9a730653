"""Bursts of changes in a group, most of which are rebalances."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from zkaudit.group.coverage import UNKNOWN
from zkaudit.group.events import Began, Burst, Lifetime, Moment, Refused, Row
from zkaudit.group.znodes import IDS, OWNERS, Znode

QUIET_US: Final = 5_000_000
"""Microseconds without a change in the group after which a burst ends."""


class Bursts:
    """Divides the changes of a group into bursts (see ``Burst``)."""

    def __init__(self) -> None:
        self._now: Burst | None = None
        self._time = 0
        """Time of the last change. The clock may go back when the leader changes; this never
        begins a new burst."""

    def read(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the rows. If a burst ended before a row, yield the burst first."""
        for row in rows:
            if isinstance(row, Began):
                start = row.lifetime.start
                if start is not UNKNOWN:
                    yield from self._add(row, row.lifetime.znode, start)
            elif isinstance(row, Refused):
                yield from self._add(row, row.registration.znode, row.at)
            elif isinstance(row, Lifetime) and row.end is not None:
                yield from self._add(row, row.znode, row.end)
            yield row

    def finish(self) -> Sequence[Burst]:
        """Return the last burst, if there is one."""
        return () if self._now is None else (self._now,)

    def _add(self, row: Row, znode: Znode, at: Moment) -> Iterator[Burst]:
        if at.time is None or znode.tree not in (IDS, OWNERS):
            return
        burst = self._now
        if burst is None or at.time - self._time > QUIET_US:
            if burst is not None:
                yield burst
            burst = self._now = Burst(znode, at.zxid, at.time, at.zxid, at.time)
        self._time = at.time
        burst.last_zxid = at.zxid
        burst.start_time = min(burst.start_time, at.time)
        burst.end_time = max(burst.end_time, at.time)
        if isinstance(row, Refused):
            burst.refused += 1
        elif isinstance(row, Began):
            self._begin(burst, row)
        elif znode.tree == OWNERS:
            burst.ends += 1
            burst.released.add(znode.name)
        else:
            burst.leaves += 1
            burst.changed[znode.name] += 1

    def _begin(self, burst: Burst, row: Began) -> None:
        znode = row.lifetime.znode
        if znode.tree == OWNERS:
            burst.claims[znode.name] += 1
            burst.claimants.add(row.lifetime.member)
        else:
            burst.joins += 1
            burst.changed[znode.name] += 1
