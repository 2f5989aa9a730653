"""Rules about members that harm their group: sessions that expire repeatedly, owners that stop
committing, for all their partitions or for one."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from zkaudit.group.coverage import UNKNOWN
from zkaudit.group.events import Commit, Ended, Kind, Lifetime, Moment
from zkaudit.group.rules.rule import Evidence, Finding, Group, Rule
from zkaudit.group.rules.words import clocks, partition_of, timed
from zkaudit.group.znodes import IDS, OWNERS

REGULAR: Final = 5
"""Number of last intervals. An owner commits regularly if together they took at most about the
time after which an owner counts as stalled."""
_SLOTS: Final = 50
"""Number of slots in that time. Commits in the same slot count as one."""
_CAUGHT_UP: Final = 0.5
"""Smallest share of a partition's usual offsets that shows that its topic had messages."""


@dataclass(slots=True)
class _Expiries:
    first: Lifetime
    last: Lifetime
    recent: deque[int] = field(default_factory=deque)
    """Times of expiries within ``flapping_seconds``."""
    most: int = 0


class Flapping(Rule):
    """Finds members whose sessions expired repeatedly."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._expired: dict[str, _Expiries] = {}

    def ended(self, lifetime: Lifetime) -> Iterable[Finding]:
        """Count the expiries of a member."""
        end = lifetime.end
        if lifetime.znode.tree != IDS or not lifetime.expired or end is None:
            return ()
        member = self._expired.get(lifetime.znode.name)
        if member is None:
            member = self._expired[lifetime.znode.name] = _Expiries(lifetime, lifetime)
        member.last = lifetime
        if end.time is not None:
            member.recent.append(end.time)
            since = end.time - int(self.group.limits.flapping_seconds * 1_000_000)
            while member.recent[0] < since:
                member.recent.popleft()
            member.most = max(member.most, len(member.recent))
        return ()

    def finish(self, end: Moment) -> Iterable[Finding]:
        """Report the members whose sessions expired too often."""
        limits = self.group.limits
        for name, member in self._expired.items():
            first, last = member.first.end, member.last.end
            if member.most < limits.flapping_expiries or first is None or last is None:
                continue
            yield Finding(
                severity="medium",
                kind="flapping member",
                basis=timed(first.zxid, last.zxid),
                sentence=f"Sessions of member {name} of group {self.group.name} expired "
                f"{member.most} times within {limits.flapping_seconds:g} s. Each expiry and each "
                f"return rebalances the group.{clocks(first.zxid, last.zxid)}",
                evidence=(
                    Evidence("membership", first.zxid, None, member.first.session, "first expiry"),
                    Evidence("membership", last.zxid, None, member.last.session, "last expiry"),
                ),
                zxid=first.zxid,
                time=first.time,
                end_zxid=last.zxid,
                end_time=last.time,
                member=name,
                session=member.first.session,
            )


class _Stall(NamedTuple):
    """An interval in which a member did not commit."""

    lasted: int
    last_zxid: int
    last: Commit
    until: int
    own: int
    next: Commit | None


@dataclass(slots=True)
class _Member:
    """The commits of a member."""

    last: Commit
    time: int
    """Time of the last commit."""
    regular: deque[int]
    """Times of its last commits, one per slot."""
    first_time: int
    count: int = 1
    gone: list[Lifetime] = field(default_factory=list)
    """Owner znodes that ended after its last commit, and late enough for a stall."""
    stall: _Stall | None = None
    """The longest stall."""
    times: int = 0


class Stalled(Rule):
    """Finds owners that stopped committing while other members continued. There is one finding for
    each member, about its longest stall.

    Pauses of a whole group are ignored, because after an outage all members resume at about the
    same time.
    """

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._wait = int(group.limits.stalled_seconds * 1_000_000)
        self._slot = max(1, self._wait // _SLOTS)
        self._members: dict[str, _Member] = {}
        self._newest: tuple[str | None, int] = None, 0
        """Member and time of the group's newest commit."""
        self._resumed: int | None = None
        """When the group last resumed after no member had committed."""

    def committed(self, commit: Commit) -> Iterable[Finding]:
        """Compare the time of a commit with that of the member's last commit."""
        owner, now = commit.owner, commit.time
        if commit.kind is not Kind.COMMIT or not isinstance(owner, Lifetime):
            return ()
        name = owner.member
        if owner.session != commit.session or name is None or now is None:
            return ()
        (before, before_time), resumed = self._newest, self._resumed
        self._newest = name, now
        if before is not None and now - before_time >= self._wait:
            self._resumed = now
        member = self._members.get(name)
        if member is None:
            self._members[name] = _Member(commit, now, deque(maxlen=REGULAR), now)
            return ()
        last = member.time
        if now // self._slot != last // self._slot:
            if now - last >= self._wait and not self._is_outage(last, now, resumed):
                other = before_time if before != name else None
                self._keep(member, self._stall(name, member, other, now, commit))
            member.regular.append(last)
        member.last, member.time = commit, now
        member.count += 1
        if member.gone:
            member.gone.clear()
        return ()

    def _is_outage(self, last: int, now: int, resumed: int | None) -> bool:
        """Whether the whole group had been silent and resumed just before."""
        return resumed is not None and resumed > last and now - resumed < self._wait // REGULAR

    def _stall(
        self, name: str, member: _Member, other: int | None, until: int, now: Commit | None
    ) -> _Stall | None:
        """Return the stall since the member's last commit, up to a time. ``other``: that of
        another member's commit."""
        last, time, wait = member.last, member.time, self._wait
        if len(member.regular) < REGULAR or time - member.regular[0] > wait + self._slot:
            return None
        if other is None or other - time < wait or until - time < wait:
            return None
        # A partition that it owned at its last commit and for the whole time limit afterwards.
        live = [lifetime for lifetime in self.group.owned_by(name) if self._owned(lifetime, last)]
        gone = [
            lifetime.end.time
            for lifetime in member.gone
            if lifetime.end is not None and lifetime.end.time
        ]
        if not live and not gone:
            return None
        if not live:
            until = min(until, max(gone))
        return _Stall(until - time, last.zxid, last, until, len(live) + len(gone), now)

    def _owned(self, lifetime: Lifetime, last: Commit) -> bool:
        started = lifetime.start is not UNKNOWN and lifetime.start.zxid <= last.zxid
        return started and lifetime.session == last.session

    def _keep(self, member: _Member, stall: _Stall | None) -> None:
        if stall is not None:
            member.times += 1
            longest = member.stall
            if longest is None or stall[:2] > longest[:2]:
                member.stall = stall

    def ended(self, lifetime: Lifetime) -> Iterable[Finding]:
        """Record a partition that the member owned for a while without committing."""
        end = lifetime.end
        member = self._members.get(lifetime.member or "")
        if member is None or lifetime.znode.tree != OWNERS or end is None or end.time is None:
            return ()
        late = end.time - member.time >= self._wait
        if late and lifetime.ended is not Ended.UNKNOWN and self._owned(lifetime, member.last):
            member.gone.append(lifetime)
        return ()

    def gap(self) -> Iterable[Finding]:
        """Note that commits in the log gap are unknown."""
        for member in self._members.values():
            member.regular.clear()
            member.gone.clear()
        return ()

    def finish(self, end: Moment) -> Iterable[Finding]:
        """Report the longest stall of each member. A stall that has not ended lasts until the
        group's newest commit."""
        name, newest = self._newest
        if name is None or not self._often():
            return
        for member_name, member in self._members.items():
            longest, times = member.stall, member.times
            resumes = self._is_outage(member.time, newest, self._resumed)
            if member_name != name and not resumes:
                last = self._stall(member_name, member, newest, newest, None)
                times += last is not None
                if last is not None and (longest is None or last[:2] > longest[:2]):
                    longest = last
            if longest is not None:
                yield self._finding(member_name, longest, times)

    def _often(self) -> bool:
        """Whether several members commit, one of them on average at least once in the
        time limit."""
        members = self._members.values()
        return len(members) > 1 and any(
            member.count > REGULAR
            and member.time - member.first_time <= self._wait * (member.count - 1)
            for member in members
        )

    def _finding(self, name: str, stall: _Stall, times: int) -> Finding:
        last, after = stall.last, stall.next
        more = f" It stalled {times} times; this was the longest time." if times > 1 else ""
        evidence = [Evidence("commits", last.zxid, last.idx, last.session, "last commit")]
        if after is not None:
            evidence.append(
                Evidence("commits", after.zxid, after.idx, after.session, "next commit")
            )
        return Finding(
            severity="medium",
            kind="stalled owner",
            basis="inferred",
            sentence=f"Member {name} of group {self.group.name} committed nothing for "
            f"{stall.lasted / 1_000_000:,.1f} s although it owned {stall.own} partitions and other "
            f"members kept committing.{more}",
            evidence=tuple(evidence),
            zxid=last.zxid,
            time=last.time,
            end_zxid=after.zxid if after is not None and (after.time or 0) <= stall.until else None,
            end_time=stall.until,
            member=name,
            session=last.session,
        )


class _Pause(NamedTuple):
    """A time in which the offset of a partition stood still, and by how much it then rose."""

    lasted: int
    last: Commit
    owner: Lifetime
    next: Commit | None = None
    rise: int = 0


@dataclass(slots=True)
class _Offset:
    """The commits of a partition by its owners."""

    last: Commit
    owner: Lifetime
    """The owner that made the last commit."""
    time: int
    """Time of the last commit."""
    since: int
    """Time of the first commit after the last pause that was as long as a stall."""
    regular: deque[tuple[int, int]]
    """Time and offset of the first commits in its last slots."""
    pause: _Pause | None = None
    """The pause in which this owner's time ended, until the next commit."""
    longest: _Pause | None = None
    """The longest pause after which the partition had messages."""


class StuckPartitions(Rule):
    """Finds partitions whose offset had risen regularly, and then stood still while their owner
    committed other partitions of the topic. There is one finding for each partition.

    ``medium``: the offset then rose by about as much as usual in such a time, so the partition had
    messages. ``low``: it has not risen again. If it rose less, the partition probably had no
    messages, and there is no finding.
    """

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._wait = int(group.limits.stalled_seconds * 1_000_000)
        self._slot = max(1, self._wait // _SLOTS)
        self._topics: defaultdict[str, dict[int | None, _Offset]] = defaultdict(dict)

    def committed(self, commit: Commit) -> Iterable[Finding]:
        """Compare a commit with the partition's last one."""
        owner, now, offset = commit.owner, commit.time, commit.offset
        if commit.kind is not Kind.COMMIT or not isinstance(owner, Lifetime):
            return ()
        if owner.session != commit.session or now is None or offset is None:
            return ()
        partitions, number = self._topics[commit.znode.topic], commit.znode.partition
        state = partitions.get(number)
        if state is None:
            regular = deque([(now, offset)], maxlen=REGULAR)
            partitions[number] = _Offset(commit, owner, now, now, regular)
            return ()
        if now - state.time >= self._wait:
            self._resume(state, commit, self._pause(state, now) if owner is state.owner else None)
            state.since = now
        if now // self._slot != state.time // self._slot:
            state.regular.append((now, offset))
        state.last, state.owner, state.time = commit, owner, now
        return ()

    def ended(self, lifetime: Lifetime) -> Iterable[Finding]:
        """Check whether the owner's last commit of a partition was long ago."""
        end, znode = lifetime.end, lifetime.znode
        state = self._topics.get(znode.topic, {}).get(znode.partition)
        if state is None or state.owner is not lifetime or lifetime.ended is Ended.UNKNOWN:
            return ()
        if end is not None and end.time is not None:
            state.pause = self._pause(state, end.time)
        return ()

    def gap(self) -> Iterable[Finding]:
        """Report all pauses, and discard state because commits in the log gap are unknown."""
        known = [state.longest for state in self._states() if state.longest is not None]
        self._topics.clear()
        return [self._finding(pause) for pause in known]

    def finish(self, end: Moment) -> Iterator[Finding]:
        """Report each partition's longest pause, and pauses that have not ended."""
        newest = {
            topic: max(state.time for state in partitions.values())
            for topic, partitions in self._topics.items()
        }
        for state in self._states():
            last = state.pause
            if state.owner.end is None:
                last = self._pause(state, newest[state.last.znode.topic])
            for pause in (state.longest, last):
                if pause is not None:
                    yield self._finding(pause)

    def _states(self) -> Iterator[_Offset]:
        for partitions in self._topics.values():
            yield from partitions.values()

    def _pause(self, state: _Offset, now: int) -> _Pause | None:
        """Return the time from a partition's last commit until ``now``, if it was stuck."""
        lasted, usual = now - state.time, state.time - state.regular[0][0]
        if lasted < self._wait or len(state.regular) < REGULAR or usual > self._wait + self._slot:
            return None
        # Another partition without such a pause, of the same session.
        others = any(
            other.since <= state.time
            and now - other.time < self._wait
            and other.last.session == state.last.session
            for other in self._topics[state.last.znode.topic].values()
            if other is not state
        )
        return _Pause(lasted, state.last, state.owner) if others else None

    def _resume(self, state: _Offset, commit: Commit, pause: _Pause | None) -> None:
        """Keep a pause if its partition had messages, which the next commit shows."""
        pause, state.pause = pause or state.pause, None
        if pause is None:
            return
        begin, first = state.regular[0]
        last = pause.last.offset or 0
        usual = (last - first) * pause.lasted / max(1, state.time - begin)
        rise = (commit.offset or 0) - last
        longest = state.longest
        if rise >= _CAUGHT_UP * usual > 0 and (longest is None or pause.lasted > longest.lasted):
            state.longest = pause._replace(next=commit, rise=rise)

    def _finding(self, pause: _Pause) -> Finding:
        last, after, member = pause.last, pause.next, pause.owner.member
        evidence = [Evidence("commits", last.zxid, last.idx, last.session, "last commit")]
        effect = "Either the topic had no messages there, or the owner did not read them."
        if after is not None:
            effect = f"It then rose by {pause.rise}, so messages had waited there."
            evidence.append(
                Evidence("commits", after.zxid, after.idx, after.session, "next commit")
            )
        return Finding(
            severity="low" if after is None else "medium",
            kind="stuck partition",
            basis="inferred",
            sentence=f"The committed offset of {partition_of(last.znode)} of group "
            f"{self.group.name} stood still at {last.offset} for {pause.lasted / 1_000_000:,.1f} "
            f"s, although member {member} owned it and committed other partitions of the topic. "
            f"{effect}",
            evidence=tuple(evidence),
            zxid=last.zxid,
            time=last.time,
            end_zxid=None if after is None else after.zxid,
            end_time=None if last.time is None else last.time + pause.lasted,
            topic=last.znode.topic,
            partition=last.znode.partition,
            member=member,
            session=last.session,
        )
