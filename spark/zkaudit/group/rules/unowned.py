"""Rules about partitions without an owner although a member subscribes to their topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from zkaudit.group.coverage import UNKNOWN
from zkaudit.group.events import FROM_SNAPSHOT, Ended, Lifetime, Moment
from zkaudit.group.facts import Partition
from zkaudit.group.rules.rule import Evidence, Finding, Group, Rule
from zkaudit.group.rules.words import clocks, latest, partition_of, seconds_between, timed
from zkaudit.group.znodes import IDS, OWNERS, Znode

_LATE = 2**63 - 1


class _Free(NamedTuple):
    """The time in which a partition has no owner, up to a claim or the end of the history."""

    znode: Znode
    begin: Moment
    since: int | None
    """The time of ``begin``, or of the recreation of the topic."""
    evidence: Evidence
    words: str = ""
    sure_from: int = 0
    """The zxid from which on the absence of an owner is certain."""


def _owner(group: Group, topic: str, number: int) -> Znode:
    """Return the owner znode of a partition."""
    name = f"{topic}/{number}"
    path = f"{group.chroot}/consumers/{group.name}/owners/{name}"
    return Znode(path, group.chroot, group.name, OWNERS, name, topic, number)


def _is_shown(lifetime: Lifetime) -> bool:
    """Whether the logs show when an owner znode was gone, even if a log gap hides whose it was."""
    return lifetime.ended_by is not None and lifetime.gone_in is not None


class _Time(NamedTuple):
    """An interval in which a partition had no owner and one member was registered."""

    free: _Free
    begin: Moment
    until: Moment
    seconds: float
    is_later: bool
    """Whether the member registered after the partition had lost its owner."""
    has_left: bool
    """Whether the time ends because the member left."""


class Unowned(Rule):
    """Finds periods in which a partition had no owner while a member that subscribes to its topic
    was registered.

    The proof is one member that was registered for the whole time. If it registered after the
    partition had lost its owner, the period begins with its registration. If it left before the
    next claim, for example because an operator restarted it, the period ends then. A deleted topic
    has no partitions, and a recreated topic may have fewer. The partitions of a recreated topic
    have no owner from its creation on.
    """

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._released: dict[str, Lifetime | None] = {}
        """Since the last log gap, by path, the last lifetime if it has ended; ``None`` if a znode
        exists, or its end is unknown."""
        self._until_left: dict[str, _Time] = {}
        """By path, until the next claim, the longest time that ended because the member left."""

    def began(self, lifetime: Lifetime) -> Iterable[Finding]:
        """Note that a claim ends the period without an owner."""
        if lifetime.znode.tree != OWNERS or lifetime.start is UNKNOWN:
            return ()
        znode, start = lifetime.znode, lifetime.start
        first = znode.path not in self._released
        last = None if first else self._released[znode.path]
        self._released[znode.path] = None
        free, left = None, self._until_left.pop(znode.path, None)
        if last is not None:
            free = self._after(last, start)
        elif first and start.idx != FROM_SNAPSHOT:
            free = self._before_first(znode, start)
        return () if free is None else self._judge(free, start, start, left)

    def ended(self, lifetime: Lifetime) -> Iterable[Finding]:
        """Note that a partition has lost its owner, or that a member has left while partitions had
        no owner."""
        if lifetime.znode.tree == OWNERS:
            if lifetime.ended_by is not None:  # otherwise it ended in the log gap
                self._released[lifetime.znode.path] = lifetime if _is_shown(lifetime) else None
        elif lifetime.znode.tree == IDS and lifetime.ended is not Ended.UNKNOWN:
            self._left(lifetime)
        return ()

    def _left(self, member: Lifetime) -> None:
        end, start = member.end, member.start
        assert end is not None
        if (
            start is UNKNOWN
            or seconds_between(start.time, end.time) < self.group.limits.unowned_seconds
        ):
            return
        released = [last for last in self._released.values() if last is not None]
        topics = self.group.wanted.streams(member, {last.znode.topic for last in released})
        frees = [self._after(last, end) for last in released if last.znode.topic in topics]
        frees += (self._before_first(znode, end) for znode in self._unclaimed(topics))
        for free in filter(None, frees):
            time = self._time(free, member, end, has_left=True)
            longest = self._until_left.get(free.znode.path)
            if time is not None and (longest is None or time.seconds > longest.seconds):
                self._until_left[free.znode.path] = time

    def _unclaimed(self, topics: Iterable[str]) -> Iterator[Znode]:
        """Return the owner znodes of partitions without an owner since the last log gap."""
        for topic in topics:
            for number in self.group.facts.topics.get((self.group.chroot, topic), ()):
                znode = _owner(self.group, topic, number)
                owner = self.group.live.get(znode.path)
                is_owned = owner is not None and self.group.exists(owner)
                if znode.path not in self._released and not is_owned:
                    yield znode

    def gap(self) -> Iterable[Finding]:
        """Report the periods without an owner that ended before the log gap, or last until it."""
        yield from self._before_gap()
        self._released.clear()
        self._until_left.clear()

    def _before_gap(self) -> Iterator[Finding]:
        """Return the group's last row before the log gap, which shows how long a time lasted at
        least."""
        group, latest = self.group, self.group.latest
        if latest is None:
            return
        until = Moment(latest.zxid, latest.idx, latest.time)
        released = (last for last in self._released.values() if last is not None)
        frees = {last.znode.path: self._after(last, until) for last in released}
        members = [one for one in group.live.values() if one.znode.tree == IDS]
        topics = {t for one in filter(group.exists, members) for t in group.wanted.streams(one)}
        for znode in self._unclaimed(sorted(topics)):
            frees[znode.path] = self._before_first(znode, until)
        for path in (*frees, *(path for path in self._until_left if path not in frees)):
            free, left = frees.get(path), self._until_left.get(path)
            if free is not None:
                yield from self._judge(free, until, None, left, before_gap=True)
            elif left is not None:
                yield self._finding(left, None)

    def finish(self, end: Moment) -> Iterable[Finding]:
        """Check the partitions that have no owner at the end."""
        if self.group.coverage.segment(end.zxid) > self.group.segment:
            yield from self._before_gap()
            return
        for path, last in self._released.items():
            if last is not None and (free := self._after(last, end)) is not None:
                yield from self._judge(free, end, None, self._until_left.get(path))

    def _partition(self, znode: Znode) -> tuple[bool, Partition | None]:
        """Return whether the partition exists, as far as known, and the data in its
        topic's znode."""
        known = self.group.facts.topics.get((self.group.chroot, znode.topic))
        if known is None:
            return True, None
        partition = known.get(znode.partition if znode.partition is not None else -1)
        return partition is not None and partition.gone_zxid is None, partition

    def _after(self, last: Lifetime, until: Moment) -> _Free | None:
        end = last.end
        assert end is not None
        exists, partition = self._partition(last.znode)
        coverage = self.group.coverage
        if not exists or coverage.segment(end.zxid) != coverage.segment(until.zxid):
            return None
        recreated = partition is not None and partition.zxid > end.zxid
        since = partition.time if recreated and partition is not None else end.time
        is_known = last.ended is not Ended.UNKNOWN
        what = f"owner gone: {last.ended}" if is_known else "owner znode deleted"
        evidence = Evidence("ownership", end.zxid, end.idx, last.ended_by, what)
        return _Free(last.znode, end, since, evidence)

    def _before_first(self, znode: Znode, claim: Moment) -> _Free | None:
        """Return the time of a partition from its creation, or from the oldest data that shows it,
        to its first claim. The snapshot with which the logs begin shows that there was no owner
        then."""
        exists, partition = self._partition(znode)
        if not exists or partition is None or partition.zxid >= claim.zxid:
            return None
        group = self.group
        begin, later = group.from_known(partition, Moment(partition.zxid, 0, partition.time), claim)
        here = group.coverage.segment(claim.zxid)
        is_new = group.is_new_in(here, partition)
        known = group.coverage.known_from(here)
        evidence = Evidence("partitions", partition.zxid, None, None, "partition")
        words = " before its first claim in the logs" if later else " before its first claim"
        sure = 0 if is_new else _LATE if known is None else known
        return _Free(znode, begin, begin.time, evidence, words, sure)

    def _judge(
        self,
        free: _Free,
        until: Moment,
        claim: Moment | None,
        left: _Time | None,
        before_gap: bool = False,
    ) -> Iterator[Finding]:
        """Return the findings about a time. ``left``: the longest time that ended because a member
        left. ``before_gap``: the claim may be in a log gap."""
        member = next(filter(self.group.exists, self.group.wanted.by(free.znode.topic)), None)
        time = None if member is None else self._time(free, member, until)
        is_over = claim is not None or before_gap
        if time is None or (is_over and left is not None and left.seconds > time.seconds):
            time = left
        if time is not None:
            yield self._finding(time, claim, before_gap)

    def _time(
        self, free: _Free, member: Lifetime, until: Moment, has_left: bool = False
    ) -> _Time | None:
        """Return the time up to an end; ``None`` if it is too short or uncertain."""
        limit, start = self.group.limits.unowned_seconds, member.start
        if seconds_between(free.since, until.time) < limit:
            return None
        if start is UNKNOWN or start.zxid >= until.zxid:
            return None
        later = start.zxid > free.begin.zxid
        begin = start if later else free.begin
        if begin.zxid < free.sure_from:
            return None
        since = latest(free.since, start.time) if later else free.since
        seconds = seconds_between(since, until.time)
        return None if seconds < limit else _Time(free, begin, until, seconds, later, has_left)

    def _finding(self, time: _Time, claim: Moment | None, before_gap: bool = False) -> Finding:
        free, begin, until, seconds = time[:4]
        evidence, end = [free.evidence], claim
        if time.is_later:
            evidence.append(Evidence("registrations", begin.zxid, what="a subscribed member"))
        what = f"{partition_of(free.znode)} of group {self.group.name} "
        is_orphan = claim is None and not time.has_left and not before_gap
        if time.has_left:
            end = until
            evidence.append(Evidence("membership", until.zxid, what="the member left"))
            what += (
                f"had no owner for {seconds:,.1f} s although a member was registered, until that "
                "member left."
            )
        elif before_gap:
            end = until
            what += (
                f"had no owner for {seconds:,.1f} s although members were registered, up to a log "
                "gap."
            )
        elif claim is None:
            what += (
                f"has had no owner for the last {seconds:,.1f} s of the logs although members are "
                "registered."
            )
        else:
            evidence.append(Evidence("ownership", claim.zxid, what="next claim"))
            what += (
                f"had no owner for {seconds:,.1f} s{free.words} although members were registered."
            )
        return Finding(
            severity="high" if is_orphan else "medium",
            kind="orphan partition" if is_orphan else "unowned interval",
            basis=timed(begin.zxid, until.zxid),
            sentence=what + clocks(begin.zxid, until.zxid),
            evidence=tuple(evidence),
            zxid=begin.zxid,
            time=begin.time,
            end_zxid=None if end is None else end.zxid,
            end_time=None if end is None else end.time,
            topic=free.znode.topic,
            partition=free.znode.partition,
        )


@dataclass(slots=True)
class _Never:
    """Partitions of a topic that were created together, and the members that subscribed to them."""

    zxid: int
    time: int | None
    registered: int
    seconds: float = -1.0
    timed_from: int = 0
    until: int = 0
    left_time: int | None = None
    live: bool = False
    known_later: bool = False


class Unclaimed(Rule):
    """Finds partitions that no member owned in the last segment although a subscribed member was
    registered.

    Partitions of a topic that were created together are kept as one row until the end, which limits
    the number of rows if members join and leave often. If both the member and the partition are
    older than the logs, the period begins with the snapshot that shows no owner.
    """

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._known = group.coverage.known_from(group.coverage.last_segment)
        self._owned: dict[tuple[str, int | None], bool] = {}
        """Partitions that had an owner. True: in the last segment, where all owners are known."""
        self._never: dict[tuple[str, int], _Never] = {}
        """Partitions by topic and by the zxid of their creation."""

    def began(self, lifetime: Lifetime) -> Iterable[Finding]:
        """Note that a partition had an owner."""
        if lifetime.znode.tree == OWNERS and lifetime.start is not UNKNOWN:
            self._own(lifetime, lifetime.start.zxid)
        return ()

    def ended(self, lifetime: Lifetime) -> Iterable[Finding]:
        """Note how long a member was registered, or that a partition had an owner."""
        if lifetime.znode.tree == OWNERS:
            assert lifetime.end is not None
            self._own(lifetime, lifetime.end.zxid, _is_shown(lifetime))
        elif lifetime.znode.tree == IDS and lifetime.ended is not Ended.UNKNOWN:
            assert lifetime.end is not None
            self._registered(self._never, lifetime, lifetime.end)
        return ()

    def _own(self, lifetime: Lifetime, zxid: int, is_shown: bool = False) -> None:
        """Record an owned partition. ``is_shown``: ``Unowned`` checks the time after that."""
        key, coverage = (lifetime.znode.topic, lifetime.znode.partition), self.group.coverage
        here = not self._known or zxid >= self._known
        here = here or (is_shown and coverage.segment(zxid) == coverage.last_segment)
        self._owned[key] = self._owned.get(key, False) or here

    def _registered(
        self, unclaimed: dict[tuple[str, int], _Never], lifetime: Lifetime, until: Moment
    ) -> None:
        """Compare the time of a registration with the partitions of its topics."""
        group, limit, start = self.group, self.group.limits.unowned_seconds, lifetime.start
        if start is UNKNOWN or seconds_between(start.time, until.time) < limit:
            return
        live = lifetime.end is None
        for topic in group.wanted.streams(lifetime):
            made = group.facts.topics.get((group.chroot, topic), {})
            free = {
                partition.zxid: partition
                for number, partition in made.items()
                if partition.gone_zxid is None and not self._owned.get((topic, number), False)
            }
            for partition in free.values():
                self._compare(unclaimed, topic, partition, start, until, live)

    def _compare(
        self, unclaimed: dict[tuple[str, int], _Never], topic: str, partition: Partition,
        start: Moment, until: Moment, live: bool,
    ) -> None:  # fmt: skip
        group = self.group
        time = latest(start.time, partition.time)
        since = Moment(max(start.zxid, partition.zxid), 0, time)
        begin, later = group.from_known(partition, since, None if live else until)
        sure = group.is_new_in(group.coverage.last_segment, partition) or (
            self._known is not None and begin.zxid >= self._known
        )
        seconds = seconds_between(begin.time, until.time)
        if not sure or seconds < group.limits.unowned_seconds:
            return
        key = topic, partition.zxid
        never = unclaimed.get(key)
        if never is None:
            never = unclaimed[key] = _Never(begin.zxid, begin.time, start.zxid)
        never.zxid = min(never.zxid, begin.zxid)
        if never.time is not None and begin.time is not None:
            never.time = min(never.time, begin.time)
        never.registered = min(never.registered, start.zxid)
        if seconds > never.seconds:
            never.seconds, never.timed_from, never.until = seconds, begin.zxid, until.zxid
        if not live:
            never.left_time = latest(never.left_time, until.time)
        never.live |= live
        never.known_later |= later

    def finish(self, end: Moment) -> Iterable[Finding]:
        """Check the partitions that no member owned."""
        unclaimed = {key: replace(never) for key, never in self._never.items()}
        owned = dict(self._owned)
        for lifetime in self.group.live.values():
            if lifetime.ended is not Ended.STILL_HELD:
                continue
            if lifetime.znode.tree == OWNERS:
                owned[lifetime.znode.topic, lifetime.znode.partition] = True
            elif lifetime.znode.tree == IDS:
                self._registered(unclaimed, lifetime, end)
        for (topic, made_zxid), never in unclaimed.items():
            made = self.group.facts.topics[self.group.chroot, topic]
            for number, partition in made.items():
                here = owned.get((topic, number))
                free = here is None or (never.known_later and not here)
                if partition.zxid == made_zxid and free:
                    yield self._finding(topic, number, partition, never)

    def _finding(self, topic: str, number: int, partition: Partition, never: _Never) -> Finding:
        what = "had no owner when the logs begin, and none later"
        shown = Evidence("partitions", partition.zxid, what="partition")
        if not never.known_later:
            what = "never had an owner"
            shown = Evidence("partitions", never.zxid, what="member and partition exist")
        return Finding(
            severity="high" if never.live else "medium",
            kind="orphan partition" if never.live else "unowned interval",
            basis=timed(never.timed_from, never.until),
            sentence=f"{topic}-{number} of group {self.group.name} {what}, although members that "
            f"subscribe to the topic were registered for {never.seconds:,.1f} s."
            + clocks(never.timed_from, never.until),
            evidence=(
                Evidence("registrations", never.registered, what="a subscribed member"),
                shown,
            ),
            zxid=never.zxid,
            time=never.time,
            end_time=None if never.live else never.left_time,
            topic=topic,
            partition=number,
        )
