"""The rule about members that own less than their share."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from zkaudit.group.coverage import UNKNOWN
from zkaudit.group.events import Ended, Lifetime, Moment
from zkaudit.group.rules.rule import Evidence, Finding, Group, Rule
from zkaudit.group.rules.words import clocks, latest, seconds_between, timed
from zkaudit.group.znodes import IDS, OWNERS

KIND: Final = "member without its share"
_CROWDED: Final = 2


class _Topic(NamedTuple):
    """A topic at the end of the history."""

    partitions: int

    grown: int | None
    """When the last partition was created."""
    streams: int
    """Number of streams of all members that subscribe to the topic."""
    owned: int
    """Partitions with an owner."""


class Shares(Rule):
    """Finds members that own fewer partitions at the end of the history than any assignment would
    give them.

    With n partitions and t streams, both legacy strategies give each stream at least n / t
    partitions, rounded down. (roundrobin counts all topics together; it requires that all members
    subscribe to the same topics.) A partition without an owner is a separate finding, so here it
    counts as owned by the member. Groups that rebalanced less than ``unowned_seconds`` before the
    end are skipped, as they may not have finished.
    """

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._changed: int | None = None
        self._changed_zxid = 0

    def began(self, lifetime: Lifetime) -> Iterable[Finding]:
        """Record the start of a lifetime."""
        if lifetime.start is not UNKNOWN:
            self._note(lifetime, lifetime.start)
        return ()

    def ended(self, lifetime: Lifetime) -> Iterable[Finding]:
        """Record the end of a lifetime."""
        if lifetime.end is not None:
            self._note(lifetime, lifetime.end)
        return ()

    def _note(self, lifetime: Lifetime, at: Moment) -> None:
        if lifetime.znode.tree in (IDS, OWNERS):
            self._changed = latest(self._changed, at.time)
            self._changed_zxid = max(self._changed_zxid, at.zxid)

    def finish(self, end: Moment) -> Iterable[Finding]:
        """Compare the number of partitions of each member with its share."""
        live = [
            lifetime for lifetime in self.group.live.values() if lifetime.ended is Ended.STILL_HELD
        ]
        owned = [lifetime for lifetime in live if lifetime.znode.tree == OWNERS]
        topics = {lifetime.znode.topic for lifetime in owned}
        wants = {
            lifetime.znode.path: (lifetime, self.group.wanted.streams(lifetime, topics))
            for lifetime in live
            if lifetime.znode.tree == IDS
        }
        mine = Counter((lifetime.member, lifetime.znode.topic) for lifetime in owned)
        known = self._topics(wants, owned)
        crowded = {
            topic
            for (topic, _), count in Counter((o.znode.topic, o.data) for o in owned).items()
            if count >= _CROWDED
        }
        owners = {lifetime.member for lifetime in owned}
        for member, streams in wants.values():
            yield from self._short(member, streams, known, mine, end)
            if member.znode.name not in owners:
                unknown = crowded.intersection(streams).difference(known)
                yield from self._idle(member, unknown, end)

    def _topics(
        self,
        wants: Mapping[str, tuple[Lifetime, Mapping[str, int]]],
        owned: Iterable[Lifetime],
    ) -> dict[str, _Topic]:
        streams: Counter[str] = Counter()
        for _, topics in wants.values():
            streams.update(topics)
        whole: defaultdict[str, set[int | None]] = defaultdict(set)
        for lifetime in owned:
            whole[lifetime.znode.topic].add(lifetime.znode.partition)
        sizes = {}
        for topic, total in streams.items():
            listed = self.group.facts.topics.get((self.group.chroot, topic), {})
            exist = [partition for partition in listed.values() if partition.gone_zxid is None]
            if exist and total > 0:
                grown = latest(*(partition.time for partition in exist))
                sizes[topic] = _Topic(len(exist), grown, total, len(whole[topic]))
        return sizes

    def _short(
        self, member: Lifetime, streams: Mapping[str, int], known: Mapping[str, _Topic],
        mine: Mapping[tuple[str | None, str], int], end: Moment,
    ) -> Iterator[Finding]:  # fmt: skip
        topics = [
            (topic, count, known[topic]) for topic, count in streams.items() if topic in known
        ]
        name = member.znode.name
        share = sum(count * (topic.partitions // topic.streams) for _, count, topic in topics)
        own = sum(mine.get((name, topic), 0) for topic, _, _ in topics)
        free = sum(topic.partitions - topic.owned for _, _, topic in topics)
        if own + free >= share:
            return
        since = latest(self._changed, *(topic.grown for _, _, topic in topics))
        seconds = seconds_between(since, end.time)
        if seconds < self.group.limits.unowned_seconds:
            return
        yield self._finding(
            member, timed(self._changed_zxid, end.zxid),
            f"owns {own} partitions {seconds:,.1f} s after the last change; every assignment gives "
            f"it {share} or more." + clocks(self._changed_zxid, end.zxid),
        )  # fmt: skip

    def _idle(self, member: Lifetime, topics: Iterable[str], end: Moment) -> Iterator[Finding]:
        """Return the members without partitions. Without the topic's znode, only the partitions
        of other members show that the topic has any."""
        topic = min(topics, default=None)
        if topic is None or member.start is UNKNOWN:
            return
        seconds = seconds_between(latest(member.start.time, self._changed), end.time)
        if seconds >= self.group.limits.unowned_seconds:
            yield self._finding(
                member, "inferred",
                f"owns nothing {seconds:,.1f} s after the last change, while another stream holds "
                f"two or more partitions of {topic}.",
            )  # fmt: skip

    def _finding(self, member: Lifetime, basis: str, what: str) -> Finding:
        assert isinstance(member.start, Moment)
        return Finding(
            severity="medium",
            kind=KIND,
            basis=basis,
            sentence=f"Member {member.znode.name} of group {self.group.name} {what}",
            evidence=(Evidence("registrations", member.start.zxid, what="registered since"),),
            zxid=member.start.zxid,
            time=member.start.time,
            member=member.znode.name,
        )
