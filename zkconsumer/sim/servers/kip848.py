"""A broker's side of KIP-848 in virtual time: group epoch, target assignment, reconciliation.

It takes the commands of ``zkconsumer.core.groups.kip848`` as requests and answers with its events,
so its members use the real machine. One group. Source of states, codes and rules: Kafka 4
``GroupMetadataManager`` and ``CurrentAssignmentBuilder``. Everything is stored before it is
answered, so a broker that takes over has it. Runs inside kernel events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Final

from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.expansion import expand
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.core.groups import (
    events as group_events,
    kip848_commands as commands,
    kip848_events as events,
)
from zkconsumer.core.groups.commands import CommitOffsets, LeaveGroup, LoadTopics
from zkconsumer.core.groups.spec import ClassicSpec, Kip848Spec
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.servers.group_roster import (
    GroupWatch,
    Protocols,
    failure,
    store_offsets,
    topics_loaded,
)

AWAY: Final = -2
"""Epoch of a static member that will return."""


FIRST: Final = 1
"""Group epoch of a new group, before any member joins."""


class SeatState(Enum):
    """A member's progress towards its target assignment."""

    STABLE = "has it"
    UNREVOKED = "must give up partitions first"
    UNRELEASED = "waits for partitions of other members"


@dataclass(slots=True, eq=False)
class MemberSeat:
    """The coordinator's data about one member.

    ``since``: the epoch in which each partition was assigned to it. ``phase`` counts its waits for
    a revocation; deadlines of earlier waits are ignored. ``protocols``: the strategies that a
    member with the classic protocol offers; ``None`` for other members.
    """

    spec: Kip848Spec | ClassicSpec
    heard_us: int
    epoch: int = 0
    previous: int = -1
    state: SeatState = SeatState.STABLE
    assigned: frozenset[TopicPartition] = frozenset()
    revoking: frozenset[TopicPartition] = frozenset()
    since: dict[TopicPartition, int] = field(default_factory=dict)
    phase: int = 0
    protocols: Protocols | None = None


class ConsumerGroupCoordinator:
    """The coordinator of one group. ``topics`` returns the current number of partitions of each
    topic.

    Args:
        interval: seconds between target assignments (``group.consumer.assignment.interval.ms``).
        heartbeat: seconds between heartbeats, as sent to members.
        watch: receives the decisions.
        brokers: the running brokers.
        assignor: ``range``; or ``uniform``, a broker's default, for members that all subscribe to
            the same topics.
    """

    def __init__(
        self,
        kernel: Kernel,
        topics: Callable[[], Mapping[str, int]],
        interval: float = 1.0,
        heartbeat: float = 2.0,
        watch: GroupWatch | None = None,
        brokers: Callable[[], tuple[BrokerEndpoint, ...]] = tuple,
        assignor: str = "range",
    ) -> None:
        self.kernel = kernel
        self.generation = FIRST
        """The group epoch."""
        self.seats: dict[str, MemberSeat] = {}
        self.offsets: dict[TopicPartition, int] = {}
        self.loading = False
        self.misfenced: set[str] = set()
        self._topics = topics
        self._brokers = brokers
        self._interval = interval
        self._heartbeat = heartbeat
        self._watch = watch
        self._uniform = assignor == "uniform"
        self._target: dict[str, frozenset[TopicPartition]] = {}
        self._target_epoch = 0
        self._target_at = -interval
        self._seen: object = None
        self._looked: Mapping[str, int] | None = None
        """The topics at the last call of ``_see``; ``None`` if a member has gone since."""
        self._ids: dict[str, str] = {}
        self._made = 0
        self._life = 0

    # -- requests

    def handle(self, command: Any, spec: Kip848Spec, reply: Callable[[Any], object]) -> None:
        """Handle a request from the member with ``spec``. ``reply`` is called once, or never if the
        broker dies first."""
        if self.loading:
            reply(failure(command, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            return
        token = command.token
        self._look_at_topics()
        match command:
            case commands.ReadTopicNames(_, ids):
                names = {topic_id: name for name, topic_id in self._ids.items() if topic_id in ids}
                reply(events.TopicNamesRead(token, names, self._brokers()))
            case LoadTopics():
                reply(topics_loaded(command, self._topics(), self._brokers()))
            case commands.MemberHeartbeat():
                reply(self._beat(command, spec))
            case LeaveGroup(_, name):
                self._leave(name, spec)
                reply(group_events.Left(token))
            case commands.FetchMemberOffsets(_, name, epoch, wanted):
                code = self._may_fetch(name, epoch)
                stored = {tp: self.offsets.get(tp) for tp in wanted}
                reply(
                    failure(command, code) if code else group_events.OffsetsFetched(token, stored)
                )
            case CommitOffsets(_, name, epoch, positions):
                code = self._may_commit(name, epoch, positions)
                if not code:
                    store_offsets(self.offsets, positions, name, epoch, self._watch)
                codes = dict.fromkeys(positions, code)
                reply(group_events.OffsetsCommitted(token, codes))

    def _may_fetch(self, name: str, epoch: int) -> int:
        seat = self.seats.get(name)
        if seat is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return 0 if epoch == seat.epoch else ErrorCode.STALE_MEMBER_EPOCH

    def _may_commit(self, name: str, epoch: int, positions: Mapping[TopicPartition, int]) -> int:
        """Whether offsets may be committed. A member with the current epoch may commit any
        partition; with an older one, only partitions that it has kept since."""
        code = self._may_fetch(name, epoch)
        if code != ErrorCode.STALE_MEMBER_EPOCH:
            return code
        seat = self.seats[name]
        kept = all(seat.since.get(tp, epoch + 1) <= epoch for tp in positions)
        return 0 if kept and 0 < epoch < seat.epoch else code

    # -- heartbeats

    def _beat(self, command: commands.MemberHeartbeat, spec: Kip848Spec) -> Any:
        name, owned = command.member_id, command.owned
        named = None if owned is None else self._partitions(owned)
        seat = self.seats.get(name)
        if command.epoch == 0:
            seat = self._enter(name, spec)
            if seat is None:
                return failure(command, ErrorCode.UNRELEASED_INSTANCE_ID)
        elif seat is None:
            taken = self._holder(spec) is not None
            fenced, unknown = ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNKNOWN_MEMBER_ID
            return failure(command, fenced if taken else unknown)
        elif command.epoch != seat.epoch:
            again = command.epoch == seat.previous and named is not None
            if not again or not named <= seat.assigned:  # type: ignore[operator]
                return failure(command, ErrorCode.FENCED_MEMBER_EPOCH)
        seat.heard_us = self.kernel.now_us
        self._make_target()
        before = seat.assigned
        self._reconcile(name, seat, named)
        told = command.full or command.epoch == 0 or seat.assigned != before
        return events.MemberHeartbeatAnswered(
            command.token,
            0,
            "",
            seat.epoch,
            self._heartbeat,
            self._by_id(seat.assigned) if told else None,
        )

    def _enter(self, name: str, spec: Kip848Spec) -> MemberSeat | None:
        """Return the seat of a member that joins or rejoins; None if its instance id is in use.

        The id may be in use by this member itself, if it is static and has not left, because a
        broker ignores the member id then.
        """
        seat = self.seats.get(name)
        if seat is not None and spec.instance_id is None:
            return seat
        holder = self._holder(spec)
        seat = MemberSeat(spec, self.kernel.now_us)
        if holder is not None:
            before = self.seats[holder]
            if before.epoch != AWAY:
                return None
            target = self._target.get(holder)
            self._forget(holder, left=True)  # it has left in order: see ``_leave``
            seat.state, seat.assigned, seat.since = before.state, before.assigned, before.since
            if target is not None:
                self._target[name] = target
            if before.spec.subscription != spec.subscription:
                self.generation += 1
        else:
            self.generation += 1
        self.seats[name] = seat
        self._seen = self._see()  # a member that joins changes the group epoch once
        self._expire_later(name, seat)
        return seat

    def _holder(self, spec: Kip848Spec) -> str | None:
        """Return the member that has the instance id of ``spec``."""
        if spec.instance_id is None:
            return None
        names = (n for n, seat in self.seats.items() if seat.spec.instance_id == spec.instance_id)
        return next(names, None)

    def _leave(self, name: str, spec: Kip848Spec) -> None:
        seat = self.seats.get(name)
        if seat is None:
            return
        if spec.instance_id is None:
            self._forget(name, left=True)
            self.generation += 1
        else:
            seat.epoch, seat.revoking = AWAY, frozenset()  # the state stays
            seat.phase += 1
            if self._watch is not None:
                self._watch.removed(name, True)

    # -- assignments

    def _make_target(self) -> None:
        if self.generation == self._target_epoch:
            return
        if self._target_epoch and self.kernel.now < self._target_at + self._interval:
            return
        self._target_at, self._target_epoch = self.kernel.now, self.generation
        topics = self._topics()
        wanting: dict[str, list[str]] = {}
        for name in sorted(self.seats, key=self._place):
            for topic in self._wanted(self.seats[name]):
                wanting.setdefault(topic, []).append(name)
        given: dict[str, set[TopicPartition]] = {name: set() for name in self.seats}
        for topic, names in sorted(wanting.items()):
            share, extra = divmod(topics.get(topic, 0), len(names))
            start = 0
            for place, name in enumerate(names):
                end = start + share + (place < extra)
                given[name] |= {TopicPartition(topic, number) for number in range(start, end)}
                start = end
        if self._uniform:
            self._balance(frozenset().union(*given.values()))
            return
        self._target = {name: frozenset(partitions) for name, partitions in given.items()}

    def _balance(self, partitions: frozenset[TopicPartition]) -> None:
        """Assign each member its share. Members keep as many of their partitions as fit into it.

        Source: Kafka 4 ``UniformHomogeneousAssignmentBuilder``, whose order of members is a hash
        map's.
        """
        share, extras = divmod(len(partitions), max(1, len(self.seats)))
        kept: dict[str, list[TopicPartition]] = {}
        for name in self.seats:
            had = sorted(self._target.get(name, frozenset()) & partitions)
            kept[name] = had[: share + (extras > 0)]
            extras -= len(kept[name]) > share
        free = iter(sorted(partitions.difference(*kept.values())))
        for name, own in kept.items():
            while len(own) < share:
                own.append(next(free))
            if extras and len(own) == share:
                extras -= 1
                own.append(next(free))
            self._target[name] = frozenset(own)

    def _place(self, name: str) -> tuple[bool, str]:
        """Return the sort key: static members first, by instance id. Source: Kafka 4
        ``RangeAssignor``."""
        instance = self.seats[name].spec.instance_id
        return instance is None, instance or name

    def _reconcile(
        self, name: str, seat: MemberSeat, owned: frozenset[TopicPartition] | None
    ) -> None:
        """Move a member towards its target, as far as it and the other members have progressed."""
        if seat.state is SeatState.UNREVOKED and (owned is None or owned & seat.revoking):
            return
        if seat.state is SeatState.STABLE and seat.epoch == self._target_epoch:
            return
        target = self._target.get(name, frozenset())
        kept = seat.assigned & target
        revoking = seat.assigned - kept
        if revoking and (owned is None or owned & revoking):
            if seat.revoking and self._watch is not None:  # these are released, others follow
                self._watch.joins(name, kept | revoking)
            seat.state, seat.assigned, seat.revoking = SeatState.UNREVOKED, kept, revoking
            seat.previous = seat.epoch  # also where the epoch stays: as ``updateMemberEpoch``
            self._fence_later(name, seat)
            return
        fresh = lacks = target - kept
        if lacks:
            others = (owner for other, owner in self.seats.items() if other != name)
            fresh = lacks.difference(*(other.assigned | other.revoking for other in others))
        waits = fresh != lacks
        seat.previous, seat.epoch = seat.epoch, self._target_epoch
        seat.state = SeatState.UNRELEASED if waits else SeatState.STABLE
        released = bool(revoking or seat.revoking)
        seat.assigned, seat.revoking = kept | fresh, frozenset()
        seat.phase += 1
        since = seat.since
        seat.since = {tp: since.get(tp, seat.epoch) for tp in seat.assigned}
        if self._watch is not None:
            if released:
                self._watch.joins(name, seat.assigned)
            self._watch.assigned(seat.epoch, {name: seat.assigned})

    # -- topics

    def _look_at_topics(self) -> None:
        """Check for changed topics. A recreated topic has another id, so subscriptions may have
        changed."""
        topics = dict(self._topics())
        if topics == self._looked:
            return
        self._looked = topics
        for gone in self._ids.keys() - topics.keys():
            del self._ids[gone]
        for topic in sorted(topics.keys() - self._ids.keys()):
            self._made += 1
            self._ids[topic] = f"{topic}#{self._made}"
        seen = self._see()
        if seen != self._seen:
            self._seen = seen
            if self.seats:
                self.generation += 1

    def _see(self) -> dict[str, int]:
        """Return the ids and numbers of partitions of the topics to which members subscribe."""
        topics = self._topics()
        wanted = {topic for seat in self.seats.values() for topic in self._wanted(seat)}
        return {self._ids[topic]: topics[topic] for topic in wanted if topic in self._ids}

    def _wanted(self, seat: MemberSeat) -> list[str]:
        topics = tuple(sorted(self._topics()))
        names = expand("", seat.spec.subscription, topics, False)
        return [name for name in names if name in topics]

    def _by_id(self, partitions: frozenset[TopicPartition]) -> dict[str, tuple[int, ...]]:
        by_name: dict[str, list[int]] = {}
        for topic, number in sorted(partitions):
            by_name.setdefault(self._ids.get(topic, f"{topic}#gone"), []).append(number)
        return {name: tuple(numbers) for name, numbers in by_name.items()}

    def _partitions(self, owned: Mapping[str, tuple[int, ...]]) -> frozenset[TopicPartition]:
        return frozenset(
            TopicPartition(name.partition("#")[0], number)
            for name, numbers in owned.items()
            for number in numbers
        )

    # -- the end of members and brokers

    def _expire_later(self, name: str, seat: MemberSeat) -> None:
        due = seat.heard_us + round(seat.spec.session_timeout * 1e6)
        self.kernel.schedule_at_us(due, partial(self._look, name, seat))

    def _look(self, name: str, seat: MemberSeat) -> None:
        if self.seats.get(name) is not seat:
            return
        if seat.heard_us + round(seat.spec.session_timeout * 1e6) > self.kernel.now_us:
            self._expire_later(name, seat)
        else:
            self._fence(name)

    def _fence_later(self, name: str, seat: MemberSeat) -> None:
        seat.phase += 1
        phase, life = seat.phase, self._life

        def due() -> None:
            if self.seats.get(name) is seat and (seat.phase, self._life) == (phase, life):
                self._fence(name)

        self.kernel.schedule(seat.spec.rebalance_timeout, due)

    def _fence(self, name: str) -> None:
        """Remove a member. The next target is computed immediately, so that the epoch shows
        observers whether the member acts before or after it rejoins. A real broker may wait for
        its interval."""
        self._forget(name, left=False)
        self.generation += 1
        self._target_at = -self._interval

    def _forget(self, name: str, left: bool) -> None:
        del self.seats[name]
        self._looked = None
        self._target.pop(name, None)
        if self._watch is not None:
            if left:
                self._watch.removed(name, True)
            else:  # it may join again under this id
                self._watch.passed_over(name, self.generation + 1)

    def resign(self, code: int) -> None:
        """Hand the group over to another broker. No request waits for an answer any more."""

    def restart(self) -> None:
        """Continue on another broker with all data and new timers."""
        self._life += 1
        for name, seat in self.seats.items():
            seat.heard_us = self.kernel.now_us
            if seat.state is SeatState.UNREVOKED:
                self._fence_later(name, seat)
