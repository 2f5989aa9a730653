"""What must hold in every group at every moment, and what must hold once nothing changes any more.

``Observer`` folds a group's history (owner znodes, offsets, deliveries) and notes each violation of
a named rule as it happens; the functions below it judge a group at rest. Pure; the simulator, the
property tests and the fault tests on real servers feed them alike. Times are seconds on one clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from zkconsumer.core.common.types import ConsumerThreadId, TopicPartition
from zkconsumer.core.zookeeper.view import GroupView

#: Rules that members with exact legacy behaviour may break, and why. Others may never break them.
ALLOWED_LEGACY: Mapping[str, str] = {
    "owned_before_fetch": "after a session loss the JVM's fetchers go on without owning anything",
    "stopped_before_release": "its znodes vanish with the session while its streams go on",
    "single_delivery": "it knows no lease: a member without a session goes on delivering",
    "offsets_never_lowered": "its commits are unconditional: the last writer wins",
    "no_foreign_release": "it deletes owner znodes by path, again after a lost answer",
    "commits_fenced": "nothing fences its commits",
    "starts_at_committed": "it reads the offset before it claims the partition",
    "positions_monotone": "after a failed attempt it starts again from the committed offset",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """Rule ``rule`` was broken at ``at`` seconds; ``text`` says by whom and how."""

    rule: str
    at: float
    text: str

    def __str__(self) -> str:
        return f"{self.at:.6f} {self.rule}: {self.text}"


@dataclass(slots=True)
class _Delivery:
    """One session's reading of one partition, from ``started`` to ``stopped``."""

    active: bool = True
    #: The last offset delivered; reading may go back to it (the message in hand), no further.
    last: int | None = None
    #: Messages delivered after another session had become the owner.
    late: int = 0


@dataclass(slots=True)
class Observer:
    """Follows one group. Feed it each event in the order of time.

    ``violations`` are rules broken by members of the default profile, ``allowed`` those broken by
    ``legacy_sessions`` as ``ALLOWED_LEGACY`` permits. Rules: ``single_delivery`` (never two members
    that deliver a partition, but for one message in hand), ``owned_before_fetch``,
    ``stopped_before_release``, ``no_foreign_release``, ``offsets_never_lowered``,
    ``commits_fenced`` (no commit by a session while another one owns the partition),
    ``commit_within_delivered`` (no committed offset above what somebody was given),
    ``starts_at_committed`` (nobody begins below the stored offset), ``no_skip`` (nobody is given a
    message before all earlier ones were given to somebody), ``positions_monotone`` (one owner reads
    forwards).
    """

    violations: list[Violation] = field(default_factory=list)
    allowed: list[Violation] = field(default_factory=list)
    legacy_sessions: set[int] = field(default_factory=set)
    #: Session that owns the partition's owner znode, as committed.
    owners: dict[TopicPartition, int] = field(default_factory=dict)
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    #: All messages below this offset were delivered to somebody.
    delivered_below: dict[TopicPartition, int] = field(default_factory=dict)
    deliveries: int = 0
    #: Offset last stored by a session while no other one was the owner.
    _by_owner: dict[TopicPartition, int] = field(default_factory=dict)
    _ended: set[int] = field(default_factory=set)
    _excused: set[tuple[TopicPartition, int]] = field(default_factory=set)
    _reading: dict[tuple[TopicPartition, int], _Delivery] = field(default_factory=dict)

    def _note(self, rule: str, at: float, session: int, text: str) -> None:
        violation = Violation(rule, at, text)
        if session in self.legacy_sessions and rule in ALLOWED_LEGACY:
            self.allowed.append(violation)
        else:
            self.violations.append(violation)

    def session_ended(self, session: int) -> None:
        """The server ended a session (call it before the owner znodes it takes away)."""
        self._ended.add(session)

    def owner_changed(self, at: float, tp: TopicPartition, owner: int | None, by: int) -> None:
        """The owner znode of ``tp`` is now ``owner``'s (``None``: deleted), changed by ``by``.

        ``by`` 0 is an administrator: the former owner is excused until it claims again.
        """
        before = self.owners.pop(tp, None)
        if before is not None and before not in self._ended:
            reading = self._reading.get((tp, before))
            if by != before:
                self._excused.add((tp, before))
                if by:
                    text = f"{tp}: session {by} deleted the owner znode of {before}"
                    self._note("no_foreign_release", at, by, text)
            elif reading is not None and reading.active and owner != before:
                text = f"{tp}: session {before} releases while it delivers"
                self._note("stopped_before_release", at, before, text)
        if owner is not None:
            self.owners[tp] = owner
            self._excused.discard((tp, owner))
            self._reading.pop((tp, owner), None)

    def offset_changed(
        self, at: float, tp: TopicPartition, before: int | None, after: int | None, by: int
    ) -> None:
        """The stored offset of ``tp`` changed. Not for changes an administrator makes."""
        if after is None or (before is not None and after < before):
            self._note("offsets_never_lowered", at, by, f"{tp}: {before} -> {after} by {by}")
        if after is None:
            self.committed.pop(tp, None)
            return
        owner = self.owners.get(tp, by)
        if owner == by:
            self._by_owner[tp] = after
        if owner != by and owner not in self.legacy_sessions:
            text = f"{tp}: {after} committed by {by}, owner is {owner}"
            self._note("commits_fenced", at, by, text)
        self.committed[tp] = after
        below = self.delivered_below.get(tp, 0)
        if after > below:
            text = f"{tp}: {after} committed by {by}, delivered below {below}"
            self._note("commit_within_delivered", at, by, text)

    def started(self, at: float, tp: TopicPartition, session: int, position: int) -> None:
        """A member begins to deliver ``tp`` at ``position`` in ``session``."""
        stored = self._by_owner.get(tp, 0)
        if position < stored and self.owners.get(tp) == session:
            text = f"{tp}: session {session} starts at {position}, stored is {stored}"
            self._note("starts_at_committed", at, session, text)
        owner = self.owners.get(tp)
        if owner != session and session not in self._ended and (tp, session) not in self._excused:
            text = f"{tp}: session {session} starts, owner is {owner}"
            self._note("owned_before_fetch", at, session, text)
        reading = self._reading.setdefault((tp, session), _Delivery())
        reading.active = True

    def stopped(self, tp: TopicPartition, session: int) -> None:
        """The member that reads ``tp`` in ``session`` delivers nothing more of it."""
        reading = self._reading.get((tp, session))
        if reading is not None:
            reading.active = False

    def delivered(self, at: float, tp: TopicPartition, session: int, first: int, last: int) -> None:
        """The messages ``first`` to ``last`` were handed to the application, one by one."""
        self.deliveries += last - first + 1
        below = self.delivered_below.get(tp, 0)
        if first > below:
            self._note("no_skip", at, session, f"{tp}: {first} before {below} by {session}")
        if last >= below:
            self.delivered_below[tp] = last + 1
        reading = self._reading.setdefault((tp, session), _Delivery())
        if reading.last is not None and first < reading.last:
            text = f"{tp}: {first} after {reading.last} by {session}"
            self._note("positions_monotone", at, session, text)
        reading.last = last
        if self.owners.get(tp) == session or (tp, session) in self._excused:
            return
        if tp in self.owners:
            reading.late += last - first + 1
            if reading.late > 1:
                text = f"{tp}: {last} by {session}, owner is {self.owners[tp]}"
                self._note("single_delivery", at, session, text)
        elif session not in self._ended:
            text = f"{tp}: {last} by {session}, which owns nothing of it"
            self._note("owned_before_fetch", at, session, text)


# -- at rest -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemberAtRest:
    """A live member once nothing changes any more. ``legacy``: of the ``scala`` profile."""

    consumer_id: str
    session: int
    legacy: bool
    fetching: frozenset[TopicPartition]
    view: GroupView | None
    mine: Mapping[TopicPartition, ConsumerThreadId]


def no_orphan(
    at: float,
    partitions: Iterable[TopicPartition],
    owners: Mapping[TopicPartition, int],
    members: Collection[MemberAtRest],
) -> list[Violation]:
    """Every partition has exactly one owner, alive, and that one and no other fetches it.

    What the assignment gives a legacy member may be without an owner: its attempts are limited.
    """
    found = []
    of_session = {member.session: member for member in members}
    legacy_share = {tp for member in members if member.legacy for tp in member.mine}
    for tp in partitions:
        owner = of_session.get(owners.get(tp, 0))
        fetchers = sorted(m.consumer_id for m in members if tp in m.fetching)
        if owner is None:
            if tp not in legacy_share:
                text = f"{tp}: owned by session {owners.get(tp)}, fetched by {fetchers}"
                found.append(Violation("no_orphan_at_rest", at, text))
        elif fetchers != [owner.consumer_id] and not owner.legacy:
            text = f"{tp}: owned by {owner.consumer_id}, fetched by {fetchers}"
            found.append(Violation("no_orphan_at_rest", at, text))
    return found


def no_member_without_share(
    at: float,
    should: Mapping[TopicPartition, ConsumerThreadId],
    owners: Mapping[TopicPartition, int],
    members: Collection[MemberAtRest],
) -> list[Violation]:
    """Every member of the default profile fetches just what the assignment ``should`` gives it.

    What a legacy member still owns, though it is assigned to another, is passed over.
    """
    found = []
    legacy = {member.session for member in members if member.legacy}
    for member in members:
        if member.legacy:
            continue
        share = {tp for tp, thread in should.items() if thread.consumer == member.consumer_id}
        share = {tp for tp in share if owners.get(tp) not in legacy}
        if share != member.fetching:
            text = (
                f"{member.consumer_id}: lacks {sorted(share - member.fetching)}, "
                f"has too much {sorted(member.fetching - share)}"
            )
            found.append(Violation("no_member_without_share", at, text))
    return found


def no_lost_trigger(
    at: float, truth: Mapping[str, GroupView], members: Collection[MemberAtRest]
) -> list[Violation]:
    """Every member's view is what it would read now (``truth``, by consumer id)."""
    return [
        Violation("no_lost_trigger", at, f"{member.consumer_id}: its view is not the tree")
        for member in members
        if not member.legacy and member.view != truth[member.consumer_id]
    ]


def no_loss(
    at: float, ends: Mapping[TopicPartition, int], delivered_below: Mapping[TopicPartition, int]
) -> list[Violation]:
    """Every message was delivered to somebody: ``ends`` has each partition's log-end offset."""
    return [
        Violation("no_loss", at, f"{tp}: {delivered_below.get(tp, 0)} of {end} delivered")
        for tp, end in ends.items()
        if delivered_below.get(tp, 0) < end
    ]
