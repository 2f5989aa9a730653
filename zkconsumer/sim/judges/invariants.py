"""The rules of every simulated group: their table, and the observer that checks them.

``Observer`` follows a group's history (owners, offsets, deliveries) and records each violation of
a rule as it happens. The rules of delivery, of records and of an idle group are checked by tests
(``tests/sim/runs``). Times are in seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from zkconsumer.core.common.types import TopicPartition

#: Every rule, and what it means. A violation names one of them.
RULES: Final[Mapping[str, str]] = {
    # Of a group, at every moment.
    "single_delivery": "two members never deliver one partition, except for one record in flight",
    "owned_before_fetch": "a member delivers a partition only while it owns it",
    "stopped_before_release": "a member delivers nothing more when it gives up a partition",
    "no_foreign_release": "no member deletes another one's claim",
    "offsets_never_lowered": "members never lower a committed offset, except after a reset",
    "commits_fenced": "no member commits a partition that another one owns",
    "commits_in_session": "no offset is sent to Kafka unless the sender's session is certainly "
    "alive",
    "starts_at_committed": "no owner begins below the offset that an owner has stored",
    "no_record_lost": "each record below a committed offset was delivered, or has left the log",
    "committed_is_processed": "a committed offset is at most what applications have processed",
    # Of a group that moves between ZooKeeper and the coordinator, at every moment.
    "both_locks": "between the modes a member delivers only as a member of both groups",
    "legacy_kept_out": "while the coordinator assigns, no legacy consumer can register",
    "offset_carried_over": "a claim begins at the higher of the offsets in ZooKeeper and in Kafka",
    # Of a mirrored group, at every moment.
    "program_continues": "a program starts at the offset that the other one has committed",
    "mirror_lowers_nothing": "a mirror lowers no offset, unless its program has",
    "copied_one_way": "offsets are copied from the leading store to the other",
    "copied_before_replaced": "an offset of a client is replaced only after it was copied",
    "agreed_with_copies": "offsets are written to ZooKeeper together with the agreed state",
    "leads_with_everything": "a store begins to lead when it has all offsets of the other one",
    "leads_alone": "Kafka begins to lead when no old member is registered",
    "one_mirror": "only the process with the lease mirrors a group",
    "ended_is_over": "nothing is copied after complete or mirror --end",
    "stops_with_cause": "a mirror stops only if both programs ran, or the follower has moved",
    # Of one member, at every moment.
    "none_lost": "a claim skips no record that is in the log",
    "none_twice": "a claim delivers no record twice",
    "none_aborted": "with read_committed, no record of an aborted transaction is delivered",
    "content": "a record is delivered with the offset at which it was written",
    "gate": "nothing is delivered while the gate is shut",
    "lease": "the gate is open only while the servers are certain to count the member as live",
    "nothing_after_revoke": "nothing of a partition is delivered once it is revoked",
    "final_is_final": "the position of a released partition does not move any more",
    "stopped_is_known": "the position of a stopped partition is known until its release",
    "release_waits": "a release waits for the unacknowledged record",
    "reset_with_reason": "a position is reset only where none is stored, or it is out of range",
    "queue_bound": "a queue holds at most what its capacity and one answer allow",
    "stopped_is_not_asked_for": "a partition that was stopped is not fetched",
    "asked_by_one_worker": "at most one worker asks for a partition at a time",
    "no_error_of_its_own": "no step of a member raises",
    "stream_works": "a stream raises only what ends the member",
    "goes_on": "a stream ends only when its member has ended",
    "end_is_heard": "when a member has ended or failed, its streams and calls end or raise",
    "commits_answered": "every commit call is answered",
    "commit_stores": "a commit that is answered without a fault has stored what it was given",
    "commit_in_generation": "no commit is sent without a generation",
    "timers_count_once": "a timer that was replaced starts nothing",
    "poll_expires": "a member whose application is too slow leaves the group",
    "leaves_in_order": "a member that has left cleanly is gone from the servers",
    # At rest.
    "no_orphan_at_rest": "every partition has one owner, and that member alone fetches it",
    "no_member_without_share": "every member fetches what the assignment gives it",
    "no_lost_trigger": "every member has seen the last change",
    "registered_at_rest": "every member is registered",
    "stable_at_rest": "every member is in the group's last generation",
    "no_ghosts_at_rest": "the group has only live members",
    "holds_what_is_there": "a member holds partitions that exist, in streams that it has",
    "in_step_at_rest": "both stores are in step in time after the last fault",
    "move_resumes": "a move that was interrupted is finished by the next operator",
    "committed_at_rest": "a member that commits automatically has stored its position",
    "no_silent_partition": "a waiting application gets the available records within a time limit",
}

#: Rules that members with exact legacy behaviour may break, and why. Others may never break them.
ALLOWED_LEGACY: Mapping[str, str] = {
    "owned_before_fetch": "after a session loss the JVM's fetchers continue without owning "
    "anything",
    "stopped_before_release": "its znodes disappear with the session while its streams continue",
    "single_delivery": "it has no lease: a member without a session continues to deliver",
    "offsets_never_lowered": "its commits are unconditional: the last writer wins",
    "no_foreign_release": "it deletes owner znodes by path, again after a lost answer",
    "commits_fenced": "nothing fences its commits",
    "starts_at_committed": "it reads the offset before it claims the partition",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """A violation of ``rule`` at ``at`` seconds; ``text`` names the member and the fault."""

    rule: str
    at: float
    text: str

    def __str__(self) -> str:
        return f"{self.at:.6f} {self.rule}: {self.text} ({RULES[self.rule]})"


class Records(Protocol):
    """The history of each record in the brokers' logs, if members read from such logs."""

    def committed(self, tp: TopicPartition, offset: int) -> tuple[str, str] | None:
        """Record that ``offset`` was stored. Return the rule that this violates, if any, with a
        line about it."""


@dataclass(slots=True)
class _Delivery:
    """One session's delivery of one partition, from ``started`` to ``stopped``."""

    active: bool = True
    #: Messages delivered after another session had become the owner.
    late: int = 0


@dataclass(slots=True)
class Observer:
    """Checks the rules of one group. Pass it each event in chronological order.

    ``violations`` are the violations by members of the default profile, and ``allowed`` are those
    by ``legacy_sessions`` that ``ALLOWED_LEGACY`` permits. ``records``: the history of each record,
    if members read from simulated logs.
    """

    records: Records | None = None
    violations: list[Violation] = field(default_factory=list)
    allowed: list[Violation] = field(default_factory=list)
    legacy_sessions: set[int] = field(default_factory=set)
    #: Session that owns the partition's owner znode, as committed.
    owners: dict[TopicPartition, int] = field(default_factory=dict)
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    #: Offsets in Kafka, where ZooKeeper has them as well.
    in_kafka_too: dict[TopicPartition, int] = field(default_factory=dict)
    deliveries: int = 0
    #: Members that have not connected since the servers were restored.
    unaware: set[str] = field(default_factory=set)
    #: How often the servers were restored, or a member has become aware of it.
    restores: int = 0
    resets: Counter[TopicPartition] = field(default_factory=Counter)
    #: Offset last stored by a session while no other one was the owner.
    _by_owner: dict[TopicPartition, int] = field(default_factory=dict)
    _ended: set[int] = field(default_factory=set)
    #: What sessions owned when they ended.
    _had: set[tuple[TopicPartition, int]] = field(default_factory=set)
    _excused: set[tuple[TopicPartition, int]] = field(default_factory=set)
    _reading: dict[tuple[TopicPartition, int], _Delivery] = field(default_factory=dict)
    #: Partitions whose stored offset a member wrote that had lost them, which nothing refused.
    _foreign: set[TopicPartition] = field(default_factory=set)
    _names: dict[int, str] = field(default_factory=dict)
    #: How often resets allow a member to lower what is stored: once for each reset.
    _may_lower: Counter[tuple[TopicPartition, str]] = field(default_factory=Counter)

    def note(self, rule: str, at: float, session: int, text: str) -> None:
        """Record that the member in ``session`` has violated ``rule``."""
        violation = Violation(rule, at, text)
        if session in self.legacy_sessions and rule in ALLOWED_LEGACY:
            self.allowed.append(violation)
        else:
            self.violations.append(violation)

    def session_begins(self, session: int, member: str) -> None:
        """Record that the session belongs to ``member``."""
        self._names[session] = member

    def session_ended(self, session: int) -> None:
        """Record that the server ended a session. Call it before the session's owner znodes are
        deleted."""
        self._ended.add(session)
        self._had |= {(tp, owner) for tp, owner in self.owners.items() if owner == session}

    def restored(
        self,
        sessions: Collection[int],
        owners: Mapping[TopicPartition, int],
        committed: Mapping[TopicPartition, int] | None,
    ) -> None:
        """Record that the servers have started with older data: live ``sessions``, ``owners`` and,
        if offsets are in ZooKeeper, ``committed`` offsets.

        A member that reads a partition does not know the restored owner until it has read the owner
        znode.
        """
        self._ended = (self._ended | self._names.keys()) - set(sessions)
        self._excused |= {*self._reading, *self.owners.items()}
        # Its member may have learned of neither the end nor the restore.
        self._excused |= {one for one in self._had if one[1] in sessions}
        self.unaware = set(self._names.values())
        self.restores += 1
        self.owners = dict(owners)
        if committed is not None:
            self.committed, self._by_owner = dict(committed), dict(committed)

    def connected(self, member: str) -> None:
        """Record that the member has connected to the servers."""
        if member in self.unaware:
            self.unaware.remove(member)
            self.restores += 1

    def owner_changed(
        self,
        at: float,
        tp: TopicPartition,
        owner: int | None,
        by: int,
        *,
        fenced: bool = True,
    ) -> None:
        """Record that ``by`` changed the owner of ``tp`` to ``owner`` (``None``: deleted the owner
        znode).

        ``by`` is a session, or 0 for an administrator. After a change by an administrator,
        violations by the previous owner are ignored until it claims the partition again.
        ``fenced``: there is an offset znode, whose version a release checks.
        """
        before = self.owners.pop(tp, None)
        if before is not None and before not in self._ended:
            reading = self._reading.get((tp, before))
            if by != before:
                self._excused.add((tp, before))
                if by and (fenced or (tp, by) not in self._excused):
                    text = f"{tp}: session {by} deleted the owner znode of {before}"
                    self.note("no_foreign_release", at, by, text)
            elif reading is not None and reading.active and owner != before:
                text = f"{tp}: session {before} releases while it delivers"
                self.note("stopped_before_release", at, before, text)
        if owner is not None:
            self.owners[tp] = owner
            self._excused.discard((tp, owner))
            self._reading.pop((tp, owner), None)

    def offset_changed(
        self,
        at: float,
        tp: TopicPartition,
        before: int | None,
        after: int | None,
        by: int,
        *,
        fenced: bool = True,
    ) -> None:
        """Record a change of the stored offset of ``tp``, unless an administrator made it.

        ``fenced``: the store refuses commits of members that have lost the partition.
        """
        # A member that has lost a partition may still store its offset where nothing is fenced.
        owner = self.owners.get(tp, by if fenced else None)
        if after is None or (before is not None and after < before):
            member = self._names.get(by, "")
            if self._may_lower[tp, member]:
                self._may_lower[tp, member] -= 1
            elif fenced or (owner == by and tp not in self._foreign):
                self.note("offsets_never_lowered", at, by, f"{tp}: {before} -> {after} by {by}")
        if after is None:
            self.committed.pop(tp, None)
            return
        if owner == by:
            self._by_owner[tp] = after
            self._foreign.discard(tp)
        elif not fenced:
            self._by_owner[tp] = min(after, self._by_owner.get(tp, after))
            self._foreign.add(tp)
        elif owner not in self.legacy_sessions:
            text = f"{tp}: {after} committed by {by}, owner is {owner}"
            self.note("commits_fenced", at, by, text)
        self.committed[tp] = after
        broken = None if self.records is None else self.records.committed(tp, after)
        if broken is not None:
            self.note(broken[0], at, by, f"{broken[1]}, by {by}")

    def stored(self, tp: TopicPartition) -> int:
        """Return the offset that a claim would read (with two stores, the larger one); -1 if there
        is none.

        Only ZooKeeper refuses a late commit of a previous owner, so Kafka may have the larger
        offset.
        """
        return max(self.committed.get(tp, -1), self.in_kafka_too.get(tp, -1))

    def reset(self, tp: TopicPartition, member: str) -> None:
        """Record that ``auto.offset.reset`` replaced the member's position, which was out of
        range."""
        self._may_lower[tp, member] += 1
        self.resets[tp] += 1

    def started(
        self, at: float, tp: TopicPartition, session: int, position: int, member: str = ""
    ) -> None:
        """Record that ``member`` starts to deliver ``tp`` at ``position`` in ``session``."""
        self._names[session] = member
        stored = self._by_owner.get(tp, 0)
        excused = self._may_lower[tp, member] > 0
        if position < stored and self.owners.get(tp) == session and not excused:
            text = f"{tp}: session {session} starts at {position}, stored is {stored}"
            self.note("starts_at_committed", at, session, text)
        owner = self.owners.get(tp)
        if owner != session and session not in self._ended and (tp, session) not in self._excused:
            text = f"{tp}: session {session} starts, owner is {owner}"
            self.note("owned_before_fetch", at, session, text)
        reading = self._reading.setdefault((tp, session), _Delivery())
        reading.active = True

    def stopped(self, tp: TopicPartition, session: int) -> None:
        """Record that the member in ``session`` stops delivering messages of ``tp``."""
        reading = self._reading.get((tp, session))
        if reading is not None:
            reading.active = False

    def delivered(self, at: float, tp: TopicPartition, session: int, first: int, last: int) -> None:
        """Record that the application received the messages ``first`` to ``last``, one
        at a time."""
        self.deliveries += last - first + 1
        reading = self._reading.setdefault((tp, session), _Delivery())
        if self.owners.get(tp) == session or (tp, session) in self._excused:
            return
        if tp in self.owners:
            reading.late += last - first + 1
            if reading.late > 1:
                text = f"{tp}: {last} by {session}, owner is {self.owners[tp]}"
                self.note("single_delivery", at, session, text)
        elif session not in self._ended:
            text = f"{tp}: {last} by {session}, which owns nothing of it"
            self.note("owned_before_fetch", at, session, text)
