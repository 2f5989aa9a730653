"""Rules about the cost of rebalances: storms, refused claims, and herds."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from zkaudit.group.events import Burst, Membership, Moment
from zkaudit.group.rules.rule import Evidence, Finding, Group, Rule
from zkaudit.group.rules.words import host_of
from zkaudit.limits import Limits

_MINUTE: float = 60_000_000
_FEW = 2
"""Number of joins and leaves below which their source is not named."""


def per_minute(times: int, minutes: float, most: int, limits: Limits) -> float:
    """Return the rebalances per minute in a storm, on average or in its worst ``storm_seconds``,
    whichever is more.

    Args:
        times: rebalances in the whole storm.
        minutes: its duration.
        most: rebalances in the worst ``storm_seconds``.
        limits: the thresholds.
    """
    return max(times / minutes, most / max(limits.storm_seconds * 1_000_000 / _MINUTE, 1.0))


class _Recent(NamedTuple):
    """A burst, its rebalances, and all rebalances in the window that ends with it."""

    burst: Burst
    times: int
    recent: int


@dataclass(slots=True)
class _Storm:
    """Bursts that belong together."""

    first: Burst
    last: Burst
    hot: int
    """The time at which a burst last exceeded the limit."""
    begin: int
    end: int
    most: int = 0
    times: int = 0
    changes: int = 0
    claims: int = 0
    ends: int = 0
    busy: int = 0
    changed: Counter[str] = field(default_factory=Counter)

    def add(self, recent: _Recent) -> None:
        """Add a later burst."""
        burst = recent.burst
        self.changed.update(burst.changed)
        if burst.is_rebalance:
            self.last = burst
            self.begin = min(self.begin, burst.start_time)
            self.end = max(self.end, burst.end_time)
            self.most = max(self.most, recent.recent)
            self.times += recent.times
            self.changes += burst.joins + burst.leaves
            self.claims += burst.claims.total()
            self.ends += burst.ends
            self.busy += burst.end_time - burst.start_time


class Storms(Rule):
    """Finds storms: many rebalances in a short time. There is one finding for each storm.

    If the limit is ten, the tenth rebalance makes a storm, which includes the nine before it. A
    burst of changes may contain several rebalances. Their number is the larger of two lower bounds.
    The first is the number of members that joined or left, if a partition was claimed that often.
    The second is the number of claims of one partition minus the refused claims, because a member
    tries again only after a refusal. Of a burst longer than ``storm_seconds``, only the share
    within that time is counted.
    """

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._span = int(group.limits.storm_seconds * 1_000_000)
        self._window: deque[_Recent] = deque()
        self._count = 0
        """Number of rebalances in the window."""
        self._waiting: list[_Recent] = []
        """The last bursts that are not part of a storm yet."""
        self._storm: _Storm | None = None

    def burst(self, burst: Burst) -> Iterable[Finding]:
        """Add a burst to a storm, or begin a storm."""
        times = self._times(burst)
        if times:
            self._window.append(_Recent(burst, times, 0))
            self._count += times
        since = burst.start_time - self._span
        while self._window and self._window[0].burst.start_time < since:
            self._count -= self._window.popleft().times
        self._waiting = [recent for recent in self._waiting if recent.burst.start_time >= since]
        self._waiting.append(_Recent(burst, times, self._count))
        if times and self._count >= self.group.limits.storm_rebalances:
            storm = self._storm
            if storm is not None and storm.hot < since:
                yield self._finding(storm)
                storm = None
            self._storm = self._extended(storm, burst)
            self._waiting = []

    def _times(self, burst: Burst) -> int:
        """Return the smallest number of rebalances that a burst can have."""
        if not burst.is_rebalance:
            return 0
        rounds = burst.rounds
        times = max(min(rounds, burst.joins + burst.leaves), rounds - burst.refused)
        lasted = max(burst.end_time - burst.start_time, 1)
        return max(int(times * min(1.0, self._span / lasted)), 1)

    def _extended(self, storm: _Storm | None, hot: Burst) -> _Storm:
        for recent in self._waiting:
            if storm is None and recent.burst.is_rebalance:
                start = recent.burst.start_time
                storm = _Storm(recent.burst, recent.burst, start, start, recent.burst.end_time)
            if storm is not None:
                storm.add(recent)
        assert storm is not None
        storm.hot = hot.start_time
        return storm

    def finish(self, end: Moment) -> Iterable[Finding]:
        """Report the last storm."""
        if self._storm is not None:
            yield self._finding(self._storm)

    def _finding(self, storm: _Storm) -> Finding:
        limits, first, last = self.group.limits, storm.first.first_zxid, storm.last.last_zxid
        lasted = storm.end - storm.begin
        minutes = max(lasted / _MINUTE, 1.0)
        rate = per_minute(storm.times, minutes, storm.most, limits)
        share = min(1.0, storm.busy / max(lasted, 1)) * 100
        claims, ends, changes = (
            f"{count / minutes:,.1f}" for count in (storm.claims, storm.ends, storm.changes)
        )
        return Finding(
            severity="high" if rate >= limits.storm_per_minute else "medium",
            kind="rebalance storm",
            basis="inferred",
            sentence=f"Group {self.group.name} rebalanced {storm.most} times within "
            f"{limits.storm_seconds:g} s; there were {storm.changes} joins and leaves. The "
            f"averages per minute were {claims} claims, {ends} ends of ownership, and {changes} "
            f"joins and leaves. Rebalances took {share:,.0f} % of the time."
            + self._source(storm.changed),
            evidence=(
                Evidence("rebalances", first, what="first"),
                Evidence("rebalances", last, what="last"),
            ),
            zxid=first,
            time=storm.begin,
            end_zxid=last,
            end_time=storm.end,
        )

    def _source(self, changed: Counter[str]) -> str:
        """Return the source of more than half of the joins and leaves: a host, or a member without
        a generated consumer id."""
        sources: Counter[str] = Counter()
        for member, count in changed.items():
            host = host_of(self.group.name, member)
            sources[f"host {host}" if host else f"member {member}"] += count
        for source, count in sources.most_common(1):
            if count > sources.total() / 2 and sources.total() > _FEW:
                return f" {count} of the joins and leaves came from {source}."
        return ""


class Contention(Rule):
    """Finds rebalances in which ZooKeeper refused many claims."""

    def burst(self, burst: Burst) -> Iterator[Finding]:
        """Check whether many claims were refused in a rebalance."""
        if not burst.is_rebalance or burst.refused < self.group.limits.contention:
            return
        refused = f"{burst.refused} refused"
        yield Finding(
            severity="medium",
            kind="claim contention",
            basis="inferred",
            sentence=f"In one rebalance of group {self.group.name} ZooKeeper refused "
            f"{burst.refused} writes by members because the znode already existed; "
            f"{burst.claims.total()} claims succeeded.",
            evidence=(Evidence("rebalances", burst.first_zxid, what=refused),),
            zxid=burst.first_zxid,
            time=burst.start_time,
            end_zxid=burst.last_zxid,
            end_time=burst.end_time,
        )


class Herd(NamedTuple):
    """A member that joined or left, and what the other members did then: a row of the table
    ``herds``."""

    zxid: int
    idx: int
    time: int | None
    member: str
    change: str
    basis: str
    cause: str | None
    notified: int
    rebalances: int
    reads: int


def herd_finding(group: str, herd: Herd) -> Finding:
    """Return the finding about a change that woke many members."""
    bound = {"modelled": "up to ", "measured": ""}.get(herd.basis, "at least ")
    basis = "modelled" if herd.basis == "modelled" else "measured"
    return Finding(
        severity="low",
        kind="herd",
        basis="proven" if herd.cause == "proven" else basis,
        sentence=f"The {herd.change} of {herd.member} made {bound}{herd.notified} members of group "
        f"{group} react, with {herd.rebalances} rebalances and {herd.reads} znode reads.",
        evidence=(Evidence("herds", herd.zxid, herd.idx, what=herd.basis),),
        zxid=herd.zxid,
        time=herd.time,
        member=herd.member,
    )


class Herds(Rule):
    """Finds joins and leaves that woke many members. Without journals the figures are upper bounds,
    because it is unknown how many members had a watch."""

    def membership(self, row: Membership) -> Iterator[Finding]:
        """Check how many members a join or leave woke."""
        if row.change is None or row.members is None:
            return
        notified = row.members - 1 if row.change == "join" else row.members
        if notified >= self.group.limits.herd_members:
            member = row.registration.znode.name
            figures = notified, row.members, row.members**2
            yield herd_finding(
                self.group.name, Herd(*row.at, member, row.change, "modelled", None, *figures)
            )
