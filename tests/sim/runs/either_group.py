"""A group that members of both protocols may use: a broker's side of online migration.

``EitherGroup`` turns a classic group into one of KIP-848 when its first such member joins, and back
when the last one has gone. ``MixedGroupCoordinator`` is the group in between: the coordinator of
KIP-848, which also takes the requests of classic members. Source of states, codes and rules:
``classicGroup...ToConsumerGroup``, ``convertTo...Group`` of Kafka 4 ``GroupMetadataManager``,
``ConsumerGroup.fromClassicGroup``, ``ClassicGroup.fromConsumerGroup``. No static members: a broker
converts a group also when one takes the place of another. Runs inside kernel events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.core.groups import commands, events, kip848_commands as member_commands
from zkconsumer.core.groups.formats.consumer_protocol import (
    AssignmentData,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from zkconsumer.core.groups.spec import ClassicSpec, Kip848Spec
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.servers.classic import GroupCoordinator, GroupState
from zkconsumer.sim.servers.group_roster import GroupWatch, Protocols, Reply, Seat, failure
from zkconsumer.sim.servers.kip848 import ConsumerGroupCoordinator, MemberSeat, SeatState

LENIENCIES: Final = (
    "The generations and epochs of a group that has become empty continue. A broker begins with 0.",
    "When a classic group becomes one of KIP-848, its members have what they were assigned last "
    "and what they said that they own. A broker forgets what they own: in the first of the two "
    "rounds of a cooperative rebalance, it assigns partitions to a new member before the previous "
    "owner has released them.",
    "When a group that has just become classic becomes one of KIP-848 again, its members keep "
    "the partitions that they own. A broker assumes that they own their target assignment, even "
    "if another member has not released it yet.",
    "When another broker takes over a group that has just become classic, all members join again. "
    "A broker continues with the stored assignment, which has no owner for the partitions of the "
    "member that left last.",
)
"""How ``EitherGroup`` differs from a broker."""


class MixedGroupCoordinator(ConsumerGroupCoordinator):
    """A group by KIP-848 with classic members.

    Args:
        emptied: called when the last member of KIP-848 is about to go and classic members stay.
            It gets the name, and takes the group over.
    """

    def __init__(
        self,
        kernel: Kernel,
        topics: Callable[[], Mapping[str, int]],
        interval: float,
        watch: GroupWatch | None,
        brokers: Callable[[], tuple[BrokerEndpoint, ...]],
        emptied: Callable[[], object],
    ) -> None:
        super().__init__(kernel, topics, interval, watch=watch, brokers=brokers)
        self._emptied = emptied
        self._deadlines: dict[tuple[str, str], int] = {}
        self._armed = 0

    # -- requests of classic members

    def handle(
        self, command: Any, spec: Kip848Spec | ClassicSpec, reply: Callable[[Any], object]
    ) -> None:
        """See ``ConsumerGroupCoordinator``."""
        if isinstance(spec, Kip848Spec):
            super().handle(command, spec, reply)
            return
        self._look_at_topics()
        match command:
            case commands.JoinGroup():
                self._join(command, spec, reply)
            case commands.SyncGroup(token, name, generation):
                code = self._classic(name, generation) or self._behind(name)
                if code:
                    reply(failure(command, code))
                    return
                self._deadlines.pop((name, "sync"), None)
                seat = self.seats[name]
                seat.heard_us = self.kernel.now_us
                reply(events.Synced(token, encode_assignment(AssignmentData(seat.assigned))))
            case commands.Heartbeat(token, name, generation):
                code = self._classic(name, generation)
                if not code:
                    self.seats[name].heard_us = self.kernel.now_us
                    code = self._calls(name)
                reply(events.HeartbeatAnswered(token, code))
            case commands.LeaveGroup(token, name):
                found = self.seats.get(name)
                if found is not None and found.protocols is not None:
                    self._leave(name, spec)
                reply(events.Left(token))
            case commands.FetchOffsets(token, wanted):
                reply(events.OffsetsFetched(token, {tp: self.offsets.get(tp) for tp in wanted}))
            case commands.CommitOffsets():
                super().handle(command, spec, reply)  # type: ignore[arg-type]

    def _join(self, command: commands.JoinGroup, spec: ClassicSpec, reply: Reply) -> None:
        name, protocols = command.member_id, command.protocols
        if not name:
            self._made += 1
            name = f"{spec.consumer_id}-m{self._made}"
            reply(events.RequestFailed(command.token, ErrorCode.MEMBER_ID_REQUIRED, "", name))
            return
        data = decode_subscription(protocols[0][1])
        seat = self.seats.get(name)
        if seat is None:
            seat = self.seats[name] = MemberSeat(spec, self.kernel.now_us, protocols=protocols)
            self._expire_later(name, seat)
            self._change()
        elif _topics_of(seat.protocols) != data.topics:
            seat.protocols = protocols
            self._change()
        seat.protocols, seat.heard_us = protocols, self.kernel.now_us
        self._make_target()
        self._reconcile(name, seat, data.owned)
        self._deadlines.pop((name, "join"), None)
        self._deadlines.pop((name, "sync"), None)
        self._expect(name, "sync")
        reply(events.Joined(command.token, name, seat.epoch, "", protocols[0][0]))

    def _change(self) -> None:
        self.generation += 1
        self._seen = self._see()

    def _classic(self, name: str, generation: int) -> int:
        """Why this is not a classic member of ``generation``, or 0."""
        seat = self.seats.get(name)
        if seat is None or seat.protocols is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return 0 if generation == seat.epoch else ErrorCode.ILLEGAL_GENERATION

    def _behind(self, name: str) -> int:
        """Whether the member must join again before it may sync: a code or 0."""
        seat = self.seats[name]
        if self._target_epoch <= seat.epoch or seat.state is SeatState.UNREVOKED:
            return 0
        self._expect(name, "join")
        return ErrorCode.REBALANCE_IN_PROGRESS

    def _calls(self, name: str) -> int:
        """Whether a heartbeat tells the member to join again: a code or 0."""
        seat = self.seats[name]
        waits = seat.state is SeatState.UNRELEASED and not self._free(name)
        if seat.epoch >= self._target_epoch and (seat.state is SeatState.STABLE or waits):
            return 0
        self._expect(name, "join")
        return ErrorCode.REBALANCE_IN_PROGRESS

    def _free(self, name: str) -> bool:
        """Whether no other member has the partitions that the member waits for."""
        lacks = self._target.get(name, frozenset()) - self.seats[name].assigned
        others = (one for other, one in self.seats.items() if other != name)
        return not any(lacks & (one.assigned | one.revoking) for one in others)

    def _may_commit(self, name: str, epoch: int, positions: Mapping[TopicPartition, int]) -> int:
        code = super()._may_commit(name, epoch, positions)
        seat = self.seats.get(name)
        classic = seat is not None and seat.protocols is not None
        stale = code == ErrorCode.STALE_MEMBER_EPOCH
        return ErrorCode.ILLEGAL_GENERATION if classic and stale else code

    # -- the end of members

    def _expect(self, name: str, what: str) -> None:
        """The member is removed unless it joins (syncs) within its rebalance timeout."""
        key, life = (name, what), self._life
        if key in self._deadlines:
            return
        self._armed += 1
        number = self._deadlines[key] = self._armed

        def due() -> None:
            if self._life == life and self._deadlines.get(key) == number and name in self.seats:
                self._fence(name)

        self.kernel.schedule(self.seats[name].spec.rebalance_timeout, due)

    def _fence_later(self, name: str, seat: MemberSeat) -> None:
        if seat.protocols is None:
            super()._fence_later(name, seat)

    def _fence(self, name: str) -> None:
        if self._is_last(name):
            self._forget(name, left=False)
            self._emptied()
        else:
            super()._fence(name)

    def _leave(self, name: str, spec: Kip848Spec | ClassicSpec) -> None:
        if self._is_last(name):
            self._forget(name, left=True)
            self._emptied()
        else:
            super()._leave(name, spec)  # type: ignore[arg-type]

    def _forget(self, name: str, left: bool) -> None:
        super()._forget(name, left)
        for what in ("join", "sync"):
            self._deadlines.pop((name, what), None)

    def _is_last(self, name: str) -> bool:
        """Whether all others are classic members, and there are some."""
        others = [seat for other, seat in self.seats.items() if other != name]
        here = name in self.seats
        return here and bool(others) and all(seat.protocols is not None for seat in others)

    def restart(self) -> None:
        """See ``ConsumerGroupCoordinator``: also the time to join begins again."""
        self._deadlines.clear()
        super().restart()

    # -- topics

    def _wanted(self, seat: MemberSeat) -> list[str]:
        if seat.protocols is None:
            return super()._wanted(seat)
        topics = self._topics()
        return [one for one in _topics_of(seat.protocols) if one in topics]

    # -- conversion

    def take_over(
        self, group: GroupCoordinator, given: Mapping[str, frozenset[TopicPartition]]
    ) -> None:
        """Continue as ``group``; its members have the assignments ``given``."""
        self._look_at_topics()
        self.generation = self._target_epoch = group.generation
        self._target_at = -self._interval
        for name, before in group.seats.items():
            seat = MemberSeat(before.spec, self.kernel.now_us, protocols=before.protocols)
            seat.epoch = seat.previous = group.generation
            seat.assigned = self._target[name] = given[name]
            seat.since = dict.fromkeys(given[name], group.generation)
            self.seats[name] = seat
            self._expire_later(name, seat)
        self._seen = self._see()

    def hand_over(self) -> dict[str, tuple[MemberSeat, frozenset[TopicPartition]]]:
        """Remove all members, and return each with its target assignment."""
        found = {
            name: (seat, self._target.get(name, frozenset())) for name, seat in self.seats.items()
        }
        self.seats.clear()
        self._target.clear()
        self._deadlines.clear()
        self._seen = None
        return found


class EitherGroup:
    """The group as its brokers know it. It is used like the coordinators that it consists of.

    ``conversions`` counts how often it became one of KIP-848, and classic.
    """

    def __init__(
        self,
        kernel: Kernel,
        topics: Callable[[], Mapping[str, int]],
        interval: float = 1.0,
        watch: GroupWatch | None = None,
        brokers: Callable[[], tuple[BrokerEndpoint, ...]] = tuple,
    ) -> None:
        self.kernel = kernel
        self.conversions = {"consumer": 0, "classic": 0}
        self.misfenced: set[str] = set()
        self._make = partial(
            GroupCoordinator, kernel, topics, 1.0, watch, lenient=True, brokers=brokers
        )
        self._classic = self._make()
        self._mixed = MixedGroupCoordinator(
            kernel, topics, interval, watch, brokers, self._to_classic
        )
        self._mixed.offsets = self._classic.offsets
        self._now: GroupCoordinator | MixedGroupCoordinator = self._classic
        self._life = 0
        self._converted = -1  # the group epoch at which the group last became classic
        self._had: dict[str, tuple[Protocols, frozenset[TopicPartition]]] = {}
        """What each member offered and had then."""

    @property
    def classic(self) -> bool:
        """Whether it is a classic group now."""
        return self._now is self._classic

    @property
    def seats(self) -> Mapping[str, Seat | MemberSeat]:
        """The members by id."""
        return self._now.seats

    @property
    def generation(self) -> int:
        """The generation, or the group epoch."""
        return self._now.generation

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """The committed offsets."""
        return self._now.offsets

    @property
    def loading(self) -> bool:
        """Whether the coordinator still reads the group."""
        return self._now.loading

    @loading.setter
    def loading(self, value: bool) -> None:
        self._now.loading = value

    def generation_of(self, name: str) -> int:
        """The generation that the member must be in; -1: there is no such member."""
        seat = self.seats.get(name)
        if isinstance(seat, MemberSeat):
            return seat.epoch
        return -1 if seat is None else self.generation

    def handle(
        self, command: Any, spec: Kip848Spec | ClassicSpec, reply: Callable[[Any], object]
    ) -> None:
        """See ``GroupCoordinator``."""
        modern, life = isinstance(spec, Kip848Spec), self._life

        def answer(event: Any) -> None:
            if self._life == life:
                reply(event)

        of_topics = member_commands.ReadTopicNames | commands.LoadTopics
        if modern and isinstance(command, of_topics):
            self._mixed.handle(command, spec, answer)
        elif self.loading or isinstance(command, commands.LoadTopics):
            self._classic.loading = self.loading
            if modern:
                answer(failure(command, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            else:
                self._classic.handle(command, spec, answer)  # type: ignore[arg-type]
        elif modern and self.classic:
            self._from_modern(command, spec, answer)
        else:
            joins = isinstance(command, commands.JoinGroup)
            if not self.classic and joins and not self.seats:
                self._continue_classic({})
                self._classic.state = GroupState.EMPTY
            self._now.handle(command, spec, answer)  # type: ignore[arg-type]

    def _from_modern(self, command: Any, spec: Any, reply: Callable[[Any], object]) -> None:
        """A member of KIP-848 asks a classic group."""
        group = self._classic
        match command:
            case member_commands.MemberHeartbeat(epoch=0):
                if group.seats and not group._protocol:
                    # A broker looks for the strategy of the first generation and fails.
                    group.resign(ErrorCode.REBALANCE_IN_PROGRESS)
                    reply(failure(command, ErrorCode.UNKNOWN_SERVER_ERROR))
                    return
                self._to_consumer()
                self._mixed.handle(command, spec, reply)
            case member_commands.MemberHeartbeat():
                reply(failure(command, ErrorCode.GROUP_ID_NOT_FOUND))
            case commands.LeaveGroup(token):
                reply(events.Left(token))
            case member_commands.FetchMemberOffsets(token, _, _, wanted):
                found = {tp: self.offsets.get(tp) for tp in wanted}
                reply(events.OffsetsFetched(token, found))
            case _:
                group.handle(command, spec, reply)

    # -- conversion

    def _to_consumer(self) -> None:
        group = self._classic
        given = self._given()
        group.resign(ErrorCode.REBALANCE_IN_PROGRESS)
        self._mixed.take_over(group, given)
        self._mixed.loading = False
        group.roster.clear()
        group._phase += 1  # no deadline of it counts any more
        self._now = self._mixed
        self.conversions["consumer"] += bool(self.seats)

    def _given(self) -> dict[str, frozenset[TopicPartition]]:
        """What each member of the classic group has."""
        group = self._classic
        if group.generation == self._converted:  # they have not been assigned anything since
            return {name: self._kept(name, seat.protocols) for name, seat in group.seats.items()}
        parts = group._parts or group._before
        found = {name: decode_assignment(parts.get(name, b"")).partitions for name in group.seats}
        others = frozenset[TopicPartition]().union(*found.values())
        for name, seat in group.seats.items():
            found[name] |= _owned(seat.protocols) - others
            others |= found[name]
        return found

    def _kept(self, name: str, protocols: Protocols) -> frozenset[TopicPartition]:
        nothing: tuple[Protocols | None, frozenset[TopicPartition]] = (None, frozenset())
        before, had = self._had.get(name, nothing)
        return had if before is protocols else had & _owned(protocols)

    def _to_classic(self) -> None:
        members = self._mixed.hand_over()
        self._had = {
            name: (seat.protocols or (), seat.assigned | seat.revoking)
            for name, (seat, _) in members.items()
        }
        self._continue_classic(members)
        self.conversions["classic"] += 1
        self._converted = self.generation
        self._classic._prepare()

    def _continue_classic(
        self, members: Mapping[str, tuple[MemberSeat, frozenset[TopicPartition]]]
    ) -> None:
        """Create a classic group; the group epoch is its generation, whatever its members' epochs
        are."""
        group = self._classic = self._make()
        group.offsets = self._mixed.offsets
        group.generation = self._mixed.generation
        group._ids = self._mixed._made = self._mixed._made + 1
        for name, (before, _) in members.items():
            assert isinstance(before.spec, ClassicSpec)
            assert before.protocols is not None
            group._add(name, before.spec, before.protocols, new=False)
        if members:
            group.state = GroupState.STABLE
            group._protocol = group.roster.vote()
            group._parts = {
                name: encode_assignment(AssignmentData(target))
                for name, (_, target) in members.items()
            }
        group._store()
        self._now = group

    # -- the end of brokers

    def resign(self, code: int) -> None:
        """See ``GroupCoordinator``."""
        self._now.resign(code)

    def restart(self) -> None:
        """See ``GroupCoordinator``."""
        self._life += 1
        self._now.restart()
        if self.classic and self.seats and self.generation == self._converted:
            self._classic._prepare()


def _owned(protocols: Protocols) -> frozenset[TopicPartition]:
    """The partitions that a classic member named as owned when it last joined."""
    return decode_subscription(protocols[0][1]).owned


def _topics_of(protocols: Protocols | None) -> tuple[str, ...]:
    assert protocols
    return decode_subscription(protocols[0][1]).topics


__all__ = ["LENIENCIES", "EitherGroup", "MixedGroupCoordinator"]
