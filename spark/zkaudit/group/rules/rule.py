"""The base class of rules. A rule reads the rows of a group's fold in order, and
returns findings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from zkaudit.group.coverage import UNKNOWN, Coverage, Unknown
from zkaudit.group.events import (
    Act,
    Burst,
    Change,
    Commit,
    Deleted,
    Event,
    Lifetime,
    Membership,
    Moment,
)
from zkaudit.group.facts import Facts, Partition
from zkaudit.group.later import LaterEvents
from zkaudit.group.live_moves import LiveMove
from zkaudit.group.rules.wanted import Wanted
from zkaudit.group.rules.words import latest
from zkaudit.group.subscriptions import store_of
from zkaudit.group.znodes import IDS, MIGRATION, OWNERS
from zkaudit.limits import SEVERITIES, Limits

_READING_SECONDS: Final = (60, 3_600, 86_400, 30 * 86_400)


class Evidence(NamedTuple):
    """A transaction or line that shows what a finding says (``zkaudit.schema.EVIDENCE_ROW``). Its
    place in the logs is added later."""

    table: str
    zxid: int | None
    idx: int | None = None
    session: int | None = None
    what: str | None = None
    server: str | None = None
    file: str | None = None
    position: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A finding about a group, with the columns of the table ``findings``. Times are microseconds
    since 1970."""

    severity: str
    kind: str
    basis: str
    sentence: str
    evidence: tuple[Evidence, ...]
    zxid: int | None
    time: int | None
    end_zxid: int | None = None
    end_time: int | None = None
    topic: str | None = None
    partition: int | None = None
    member: str | None = None
    session: int | None = None
    effect: str | None = None
    messages: int | None = None


def raised(severity: str, skipped: int, limits: Limits) -> str:
    """Return the severity of a finding about offsets that may not have been delivered.

    It rises by one step if the fastest consumer (``jump_rate``) needs at least a minute to read so
    many, and by one more step each for an hour, a day, and 30 days. ``skipped``: the number of
    offsets.
    """
    seconds = skipped / limits.jump_rate
    steps = sum(seconds >= least for least in _READING_SECONDS)
    return SEVERITIES[max(0, SEVERITIES.index(severity) - steps)]


class Group:
    """The state of one group that all its rules use. It is updated with each row before the rules
    read the row.

    Args:
        chroot: the path before ``/consumers``.
        name: the group's name.
        coverage: the segments of the history.
        facts: data that concern all groups.
        limits: the thresholds.
    """

    def __init__(
        self, chroot: str, name: str, coverage: Coverage, facts: Facts, limits: Limits
    ) -> None:
        self.chroot = chroot
        self.name = name
        self.coverage = coverage
        self.facts = facts
        self.limits = limits
        self.segment = 0
        """The segment of the current row."""
        self.latest: Moment | Event | Commit | None = None
        """The last row up to now that is not in a log gap; ``None`` if there are no log gaps."""
        self.known: Moment | Event | Commit | None = None
        """The first row of the current segment at which all owners are known, if there are log
        gaps."""
        self.live: dict[str, Lifetime] = {}
        """The lifetimes that have begun and not ended, by path, in all trees."""
        self.wanted = Wanted(chroot, facts.topics)
        """The subscriptions of live registrations."""
        self.later: LaterEvents | None = None
        """The whole history, read to its end."""
        self._members: dict[int, str] = {}
        self._owned: dict[str, dict[str, Lifetime]] = {}
        """Live owner znodes by member and path."""
        self._movers: set[int] = set()
        self.moved_to_kafka: int | None = None
        """The transaction that moved the group to Kafka; ``None``: its offsets are in ZooKeeper."""
        self.may_be_back = False
        """A log gap may hide that the group was moved back from Kafka."""

    def member(self, session: int | None) -> str | None:
        """Return the consumer id of a session's member, from its claims so far or from any of its
        registrations."""
        if session is None:
            return None
        member = self._members.get(session)
        if member is None and self.later is not None:
            member = min(self.later.names(self.chroot, self.name, session), default=None)
        return member

    def registered_before(self, zxid: int) -> int | None:
        """Return the number of members registered just before a transaction; ``None``
        if unknown."""
        if not self.is_known(zxid):
            return None
        return sum(
            lifetime.znode.tree == IDS
            and self.exists(lifetime)
            and (lifetime.start_zxid or zxid) < zxid
            for lifetime in self.live.values()
        )

    def is_known(self, zxid: int) -> bool:
        """Whether all ephemeral znodes are known at a transaction of the current segment."""
        known_from = self.coverage.known_from(self.segment)
        return known_from is not None and zxid >= known_from

    def is_migration(self, commit: Commit) -> bool:
        """Whether a migration wrote an offset: a mirror, a session that registers without topics,
        or a session that writes the migration marker at any time."""
        if commit.by_mirror or commit.session in self._movers:
            return True
        later = self.later
        return later is not None and later.moves(self.chroot, self.name, commit.session)

    def owned_by(self, member: str) -> Iterable[Lifetime]:
        """Return the live owner znodes that name a member."""
        return self._owned.get(member, {}).values()

    def is_new(self, session: int | None) -> bool:
        """Whether a session was opened in the current segment, so that the logs show everything it
        did."""
        opened = self.facts.opened.zxid(session)
        return opened is not None and self.coverage.segment(opened) == self.segment

    def exists(self, lifetime: Lifetime) -> bool:
        """Whether a lifetime that has not ended is known to continue in the current segment."""
        return lifetime.seen_in >= self.segment

    def any_existed(self, live: Iterable[Lifetime], at: Moment | Unknown) -> bool:
        """Whether at least one of these znodes is known to have existed at ``at``. ``live``:
        lifetimes that began before ``at``, and have not ended."""
        return any(
            lifetime.seen_in == self.coverage.last_segment
            or (at is not UNKNOWN and at.zxid <= lifetime.seen_until(self.coverage))
            for lifetime in live
        )

    def last_end(self, ended: Moment | None, live: Iterable[Lifetime]) -> Moment | None:
        """Return when the last of several znodes ended, or was last seen before a log gap; ``None``
        if one still exists at the end.

        Args:
            ended: the last end of the znodes that have ended.
            live: the lifetimes of the others.
        """
        ends = [] if ended is None else [ended]
        for lifetime in live:
            if lifetime.seen_in == self.coverage.last_segment:
                return None
            ends.append(Moment(lifetime.seen_until(self.coverage), 0))
        return max(ends, key=lambda end: end.zxid, default=None)

    def is_new_in(self, segment: int, partition: Partition) -> bool:
        """Whether a partition was created in a segment."""
        return partition.is_created and self.coverage.segment(partition.zxid) == segment

    def from_known(
        self, partition: Partition, begin: Moment, until: Moment | None
    ) -> tuple[Moment, bool]:
        """Return where a period without an owner certainly begins, and whether that is after
        ``begin``.

        Before a snapshot shows all owners again, a log gap may hide one. If the first such point in
        the segment where the period ends is after ``begin``, the period begins there. ``until``:
        the end of the period, in the current segment or an earlier one; ``None``: the end of the
        history.
        """
        last = self.coverage.last_segment
        segment = last if until is None else self.coverage.segment(until.zxid)
        known, time = self.coverage.known_from(segment), self.facts.known_us
        if segment < last:
            row = self.known if segment == self.segment else None
            known, time = (None, None) if row is None else (row.zxid, row.time)
        if not known or time is None or begin.zxid >= known or self.is_new_in(segment, partition):
            return begin, False
        if until is not None and until.zxid <= known:
            return begin, False
        return Moment(known, 0, latest(time, begin.time)), True

    def began(self, lifetime: Lifetime) -> None:
        """Record the start of a lifetime."""
        self.live[lifetime.znode.path] = lifetime
        content = self.wanted.began(lifetime)
        if content is not None and content.subscription == {} and lifetime.session is not None:
            self._movers.add(lifetime.session)
        if lifetime.znode.tree == OWNERS and lifetime.member is not None:
            self._owned.setdefault(lifetime.member, {})[lifetime.znode.path] = lifetime
        self._name(lifetime)

    def changed(self, change: Change) -> None:
        """Record a change of the migration marker."""
        if change.znode.tree == MIGRATION:
            event = change.event
            self._movers.add(event.session)
            moved = event.act is not Act.DELETE and store_of(event.data) == "kafka"
            self.moved_to_kafka = event.zxid if moved else None
            self.may_be_back = False

    def enter(self, segment: int) -> None:
        """Record the start of a segment. A log gap before it may hide the end of a move."""
        self.segment, self.known = segment, None
        later = self.later
        if later is None or later.shows_marker(self.chroot, self.name, segment):
            return
        if self.coverage.known_from(segment) is None:
            self.may_be_back = self.moved_to_kafka is not None
        else:  # a snapshot shows that there is no marker
            self.moved_to_kafka, self.may_be_back = None, False

    def ended(self, lifetime: Lifetime) -> None:
        """Record the end of a lifetime."""
        self.live.pop(lifetime.znode.path, None)
        self.wanted.ended(lifetime)
        mine = self._owned.get(lifetime.member or "")
        if mine is not None and mine.pop(lifetime.znode.path, None) is not None and not mine:
            del self._owned[lifetime.member or ""]
        if lifetime.start is UNKNOWN:
            self._name(lifetime)

    def _name(self, lifetime: Lifetime) -> None:
        tree = lifetime.znode.tree
        name = lifetime.znode.name if tree == IDS else lifetime.member if tree == OWNERS else None
        if lifetime.session is not None and name is not None:
            known = self._members.get(lifetime.session)
            self._members[lifetime.session] = name if known is None else min(known, name)


class Rule:
    """A rule and its state for one group. A subclass overrides the methods that it needs.

    Each method is called with the next row of its type, and returns the findings that are complete.
    A rule may keep state for each member or partition, but not all commits.
    """

    def __init__(self, group: Group) -> None:
        self.group = group

    def began(self, lifetime: Lifetime) -> Iterable[Finding]:
        """Handle the creation of a registration, an owner or another ephemeral znode."""
        return ()

    def ended(self, lifetime: Lifetime) -> Iterable[Finding]:
        """Handle the end of a lifetime. If its start is unknown, ``began`` was not called."""
        return ()

    def membership(self, row: Membership) -> Iterable[Finding]:
        """Handle a member that joined or left. ``began`` or ``ended`` was called before with its
        registration. The member may have left in a log gap."""
        return ()

    def committed(self, commit: Commit) -> Iterable[Finding]:
        """Handle a write of an offset."""
        return ()

    def deleted(self, deleted: Deleted) -> Iterable[Finding]:
        """Handle the deletion of an offset."""
        return ()

    def burst(self, burst: Burst) -> Iterable[Finding]:
        """Handle a burst of claims, releases, joins and leaves. It ended with a pause, or at the
        end of the history."""
        return ()

    def changed(self, change: Change) -> Iterable[Finding]:
        """Handle a change of a znode that belongs to a migration."""
        return ()

    def live_move(self, move: LiveMove) -> Iterable[Finding]:
        """Handle the live move of a group that has a mode, at the end of the history."""
        return ()

    def gap(self) -> Iterable[Finding]:
        """Handle a log gap before the next row. ``Group`` still has its state from before the
        gap."""
        return ()

    def finish(self, end: Moment) -> Iterable[Finding]:
        """Handle the end of the history. ``Group.live`` has the znodes that still exist.

        May be called again with a later end, so it must not change the rule's state.
        """
        return ()
