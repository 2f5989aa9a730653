"""A broker's group coordinator in virtual time: members, generations, sessions, offsets.

It takes the commands of ``zkconsumer.core.groups`` as requests and answers with its events, so its
members use the real machine. One group. Source of states, codes and rules: Kafka 3.9
``GroupCoordinator`` (groups of the classic protocol). Runs inside kernel events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Any, Final

from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.core.groups import commands, events
from zkconsumer.core.groups.events import Event, GroupMember
from zkconsumer.core.groups.formats.consumer_protocol import decode_assignment, decode_subscription
from zkconsumer.core.groups.spec import ClassicSpec
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.servers.group_roster import (
    GroupWatch,
    Protocols,
    Reply,
    Roster,
    Seat,
    failure,
    store_offsets,
    topics_loaded,
)

LOADING: Final = 14
NOT_AVAILABLE: Final = ErrorCode.COORDINATOR_NOT_AVAILABLE
ILLEGAL_GENERATION: Final = ErrorCode.ILLEGAL_GENERATION
INCONSISTENT_PROTOCOL: Final = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
UNKNOWN_MEMBER: Final = ErrorCode.UNKNOWN_MEMBER_ID
REBALANCING: Final = ErrorCode.REBALANCE_IN_PROGRESS
ID_REQUIRED: Final = ErrorCode.MEMBER_ID_REQUIRED
FENCED_INSTANCE: Final = ErrorCode.FENCED_INSTANCE_ID

FIRST_JOIN_SECONDS: Final = 300.0
"""Longest time in seconds that a new member may wait for its first generation."""

LENIENCIES: Final = (
    "When a static member comes back to a stable group with other metadata, the group rebalances. "
    "A broker returns its former assignment, even if that was from the first of the two rounds "
    "of a cooperative rebalance. Partitions that another member has released then wait for the "
    "next change.",
)
"""Differences between a lenient coordinator and a broker."""

_ANY: Final = "?"
"""Replacement for a leader that has left, until the next generation has another one."""


class GroupState(Enum):
    """The state of a group on its coordinator."""

    DEAD = "does not exist"
    EMPTY = "no members"
    PREPARING = "waits for all members to join"
    COMPLETING = "waits for the leader's assignment"
    STABLE = "all have their assignment"


@dataclass(frozen=True, slots=True)
class _Stored:
    """The data that survives the broker, written when a group becomes stable or empty."""

    generation: int = 0
    protocol: str = ""
    leader: str = ""
    seats: Mapping[str, tuple[ClassicSpec, Protocols]] = field(default_factory=dict)
    parts: Mapping[str, bytes] = field(default_factory=dict)


class GroupCoordinator:
    """The coordinator of one group. ``topics`` returns the current number of partitions of each
    topic.

    Args:
        initial_delay: ``group.initial.rebalance.delay.ms`` in seconds, for which an empty group
            waits for more members.
        lenient: differ from a broker as described in ``LENIENCIES``.
        brokers: the running brokers.
    """

    def __init__(
        self,
        kernel: Kernel,
        topics: Callable[[], Mapping[str, int]],
        initial_delay: float = 3.0,
        watch: GroupWatch | None = None,
        lenient: bool = False,
        brokers: Callable[[], tuple[BrokerEndpoint, ...]] = tuple,
    ) -> None:
        self.kernel = kernel
        self.lenient = lenient
        self.misfenced: set[str] = set()
        """Instance ids whose live holder another coordinator does not know, so that the holder is
        fenced."""
        self.state = GroupState.DEAD
        self.generation = 0
        self.roster = Roster()
        self.seats = self.roster.seats
        self.offsets: dict[TopicPartition, int] = {}
        self.loading = False
        self._topics = topics
        self._brokers = brokers
        self._initial_delay = initial_delay
        self._watch = watch
        self._protocol = ""
        self._leader = ""
        self._parts: Mapping[str, bytes] = {}
        self._before: Mapping[str, bytes] = {}  # those of the last generation, until they are known
        self._gathering = False  # the initial delay: nothing completes the join before its end
        self._more_came = False  # during the initial delay of the first generation
        self._unsynced: set[str] = set()  # of this generation
        self._phase = 0  # of rebalances: a deadline of an earlier one says nothing
        self._ids = 0
        self._stored: _Stored | None = None
        self._life = 0

    # -- requests

    def handle(self, command: Any, spec: ClassicSpec, reply: Reply) -> None:
        """Handle a request from the member with ``spec``. ``reply`` is called once, or never if the
        broker dies first."""
        life = self._life

        def answer(event: Event) -> None:
            if self._life == life:
                reply(event)

        if self.loading and not isinstance(command, commands.LoadTopics):
            match command:
                case commands.Heartbeat(token):
                    answer(events.HeartbeatAnswered(token, 0))
                case commands.SyncGroup():
                    answer(failure(command, REBALANCING))
                case _:
                    answer(failure(command, LOADING))
            return
        match command:
            case commands.LoadTopics():
                answer(topics_loaded(command, self._topics(), self._brokers()))
            case commands.JoinGroup():
                self._join(command, spec, answer)
            case commands.SyncGroup():
                self._sync(command, spec, answer)
            case commands.Heartbeat(token, name, generation):
                code = self._known(name, generation, spec)
                if not code:
                    self._hear(name)
                    code = REBALANCING if self.state is GroupState.PREPARING else 0
                answer(events.HeartbeatAnswered(token, code))
            case commands.LeaveGroup(token, name):
                self._forget_pending(name)
                self._expel(name, left=True)
                answer(events.Left(token))
            case commands.FetchOffsets(token, wanted):
                answer(events.OffsetsFetched(token, {tp: self.offsets.get(tp) for tp in wanted}))
            case commands.CommitOffsets(token, name, generation, positions):
                code = self._may_commit(name, generation, spec)
                if not code:
                    if name in self.seats:
                        self._hear(name)
                    store_offsets(self.offsets, positions, name, self.generation, self._watch)
                answer(events.OffsetsCommitted(token, dict.fromkeys(positions, code)))

    def _may_commit(self, name: str, generation: int, spec: ClassicSpec) -> int:
        if self.state is GroupState.DEAD:
            if generation >= 0:
                return ILLEGAL_GENERATION
            self.state = GroupState.EMPTY
        if generation < 0 and self.state is GroupState.EMPTY:
            return 0
        code = self._known(name, generation, spec)
        return REBALANCING if not code and self.state is GroupState.COMPLETING else code

    def _is_member(self, name: str, spec: ClassicSpec) -> int:
        """Return why this is not a member of the group, or 0."""
        if spec.instance_id is not None:
            holder = self.roster.instances.get(spec.instance_id)
            if holder is not None and holder != name:
                return FENCED_INSTANCE
            if holder is None:
                return UNKNOWN_MEMBER
        return 0 if name in self.seats else UNKNOWN_MEMBER

    def _known(self, name: str, generation: int, spec: ClassicSpec) -> int:
        """Return why a member of ``generation`` is refused, or 0."""
        code = self._is_member(name, spec)
        return ILLEGAL_GENERATION if not code and generation != self.generation else code

    def _hear(self, name: str) -> None:
        self.seats[name].heard_us = self.kernel.now_us

    # -- joining

    def _join(self, command: commands.JoinGroup, spec: ClassicSpec, reply: Reply) -> None:
        name, replaces = command.member_id, ""
        if self.state is GroupState.DEAD:
            if name:
                reply(failure(command, UNKNOWN_MEMBER))
                return
            self.state = GroupState.EMPTY
        if not self.roster.supports(command.protocols):
            reply(failure(command, INCONSISTENT_PROTOCOL))
            return
        if not name:
            self._ids += 1
            name = f"{spec.consumer_id}-{self._ids}"
            if spec.instance_id is None:
                self.roster.pending.add(name)
                self.kernel.schedule(spec.session_timeout, partial(self._forget_pending, name))
                reply(events.RequestFailed(command.token, ID_REQUIRED, "", name))
                return
            replaces = self.roster.instances.get(spec.instance_id, "")
        elif name not in self.roster.pending:
            code = self._is_member(name, spec)
            if code:
                reply(failure(command, code))
                return
        self.roster.pending.discard(name)
        self._seat(command, spec, name, replaces, reply)
        self._complete_join()

    def _seat(
        self, command: commands.JoinGroup, spec: ClassicSpec, name: str, replaces: str, reply: Reply
    ) -> None:
        if self._watch is not None and name in self.seats:
            self._watch.joins(name, _owned(dict(command.protocols).get(self._protocol, b"")))
        before = self.seats.get(name)
        leader = self._leader
        if replaces:
            same = self.seats[replaces].protocols == command.protocols
            self._replace(replaces, name, command, spec)
            keeps = self.roster.vote() == self._protocol and (same or not self.lenient)
            if self.state is GroupState.STABLE and keeps:
                self._tell_assigned({name: self._parts.get(name, b"")})
                reply(events.Joined(command.token, name, self.generation, leader, self._protocol))
                self._store()
                return
        elif before is None:
            self._add(name, spec, command.protocols)
            if self.state is GroupState.PREPARING and self.generation == 0:
                self._more_came = True
        elif before.protocols == command.protocols and (
            self.state is GroupState.COMPLETING
            or (self.state is GroupState.STABLE and name != self._leader)
        ):  # nothing new: the answer was lost on its way
            reply(self._joined(command.token, name))
            return
        seat = self.seats[name]
        self.roster.offer(seat, command.protocols)
        # A request of an earlier connection of this member is never answered.
        seat.joining = partial(_with_token, reply, command.token)
        if self.state is not GroupState.PREPARING:
            self._prepare()

    def _replace(self, old: str, new: str, command: commands.JoinGroup, spec: ClassicSpec) -> None:
        """Fence the member whose instance id another process has started to use."""
        seat = self.roster.remove(old)
        assert seat is not None
        self._refuse(seat, FENCED_INSTANCE)
        self._add(new, spec, command.protocols, new=False)
        self._parts = {new if name == old else name: part for name, part in self._parts.items()}
        if self._leader == old:
            self._leader = new
        if self._watch is not None:
            self._watch.removed(old, False)

    def _joined(self, token: int, name: str) -> events.Joined:
        members: tuple[GroupMember, ...] = ()
        if name == self._leader:
            members = tuple(
                GroupMember(member_id, seat.spec.instance_id, dict(seat.protocols)[self._protocol])
                for member_id, seat in self.seats.items()
            )
        return events.Joined(token, name, self.generation, self._leader, self._protocol, members)

    def _prepare(self) -> None:
        """Make all members rejoin within the longest of their rebalance timeouts."""
        first = self.state is GroupState.EMPTY
        self._before = {}
        self.state = GroupState.PREPARING
        self._unsynced.clear()
        for seat in self.seats.values():
            waiting, seat.syncing = seat.syncing, None
            if waiting is not None:
                waiting(events.RequestFailed(0, REBALANCING))
        if first:
            self._gather(self._initial_delay, self._patience() - self._initial_delay)
        else:
            self._arm(self._patience(), self._begin)

    def _gather(self, delay: float, left: float) -> None:
        """Wait ``delay`` seconds for more members, and again as long as new members join."""
        self._gathering = True

        def over() -> None:
            if self._more_came and left > 0:
                self._more_came = False
                self._gather(min(self._initial_delay, left), left - delay)
            else:
                self._begin()

        self._arm(delay, over)

    def _patience(self) -> float:
        return max((seat.spec.rebalance_timeout for seat in self.seats.values()), default=0.0)

    def _arm(self, patience: float, late: Callable[[], None]) -> None:
        self._phase += 1
        phase, life = self._phase, self._life

        def due() -> None:
            if (self._phase, self._life) == (phase, life):
                late()

        self.kernel.schedule(patience, due)

    def _late_sync(self) -> None:
        for name in self._unsynced.copy():
            self._drop(name)
        self._prepare()
        self._complete_join()

    def _complete_join(self) -> None:
        """Begin the next generation if all have joined."""
        if self.state is not GroupState.PREPARING or self._gathering or self.roster.pending:
            return
        if all(seat.joining is not None for seat in self.seats.values()):
            self._begin()

    def _begin(self) -> None:
        """Begin the next generation with those that have joined, and with late static members."""
        self._gathering = False
        for name, seat in list(self.seats.items()):
            if seat.joining is None and seat.spec.instance_id is None:
                self._drop(name)
        joined = [name for name, seat in self.seats.items() if seat.joining is not None]
        if self.seats and not joined:
            self._arm(self._patience(), self._begin)
            return
        self._phase += 1
        self.generation += 1
        self._before, self._parts = self._parts, {}
        if not joined:
            self.state, self._protocol = GroupState.EMPTY, ""
            self._store()
            return
        self.state = GroupState.COMPLETING
        self._protocol = self.roster.vote()
        if self._leader not in joined:
            self._leader = self._elect(joined)
        self._unsynced = set(self.seats)
        self._arm(self._patience(), self._late_sync)
        if self._watch is not None:
            for name in self.seats.keys() - set(joined):
                self._watch.passed_over(name, self.generation)
        for name, seat in self.seats.items():
            reply, seat.joining = seat.joining, None
            seat.heard_us = self.kernel.now_us
            if seat.new:
                seat.new = False
                self._expire_later(name, seat)
            if reply is not None:
                reply(self._joined(0, name))

    def _elect(self, joined: Sequence[str]) -> str:
        """Return who leads after the leader has gone. A broker chooses any of ``joined``."""
        return joined[0]

    # -- the assignment

    def _sync(self, command: commands.SyncGroup, spec: ClassicSpec, reply: Reply) -> None:
        code = self._known(command.member_id, command.generation, spec)
        if not code and self.state is GroupState.PREPARING:
            code = REBALANCING
        if code:
            reply(failure(command, code))
            return
        seat = self.seats[command.member_id]
        seat.syncing = partial(_with_token, reply, command.token)
        self._unsynced.discard(command.member_id)
        if self.state is GroupState.COMPLETING and command.member_id == self._leader:
            self._parts = {name: command.assignments.get(name, b"") for name in self.seats}
            self.state = GroupState.STABLE
            self._store()
            self._tell_assigned(self._parts)
        elif self.state is GroupState.STABLE:  # it has missed the answer before
            self._tell_assigned({command.member_id: self._parts.get(command.member_id, b"")})
        if self.state is GroupState.STABLE:
            for name, other in self.seats.items():
                waiting, other.syncing = other.syncing, None
                if waiting is not None:
                    other.heard_us = self.kernel.now_us
                    waiting(events.Synced(0, self._parts.get(name, b"")))
        if not self._unsynced:
            self._phase += 1

    def _tell_assigned(self, parts: Mapping[str, bytes]) -> None:
        if self._watch is not None:
            given = {n: decode_assignment(raw).partitions for n, raw in parts.items()}
            self._watch.assigned(self.generation, given)

    # -- the end of members

    def _add(self, name: str, spec: ClassicSpec, protocols: Protocols, new: bool = True) -> None:
        seat = Seat(spec, protocols, self.kernel.now_us, new=new)
        self.roster.add(name, seat)
        self._leader = self._leader or name
        if new:
            self.kernel.schedule(FIRST_JOIN_SECONDS, partial(self._look_at_new, name, seat))
        else:
            self._expire_later(name, seat)

    def _forget_pending(self, name: str) -> None:
        if name in self.roster.pending:
            self.roster.pending.discard(name)
            self._complete_join()

    def _expire_later(self, name: str, seat: Seat) -> None:
        due = seat.heard_us + round(seat.spec.session_timeout * 1e6)
        self.kernel.schedule_at_us(due, partial(self._look, name, seat))

    def _look_at_new(self, name: str, seat: Seat) -> None:
        """Expel a member that has waited for its first generation for too long."""
        if seat.new and not seat.gone and self.seats.get(name) is seat:
            self._expel(name)

    def _look(self, name: str, seat: Seat) -> None:
        """Expel a member that was silent for its session timeout, unless it waits for an answer."""
        if seat.gone or self.seats.get(name) is not seat:
            return
        if seat.joining is not None or seat.syncing is not None:
            seat.heard_us = self.kernel.now_us
        if seat.heard_us + round(seat.spec.session_timeout * 1e6) > self.kernel.now_us:
            self._expire_later(name, seat)
        else:
            self._expel(name)

    def _drop(self, name: str, left: bool = False) -> Seat | None:
        """Remove a member from the group. A SyncGroup from it is never answered."""
        seat = self.roster.remove(name)
        if seat is None:
            return None
        self._unsynced.discard(name)
        if self._leader == name:
            self._leader = _ANY if self.seats else ""
        if self._watch is not None:
            self._watch.removed(name, left)
        return seat

    def _expel(self, name: str, left: bool = False) -> None:
        """Remove a member that left, or was silent for too long. The others rejoin."""
        seat = self._drop(name, left)
        if seat is None:
            return
        if seat.joining is not None:
            seat.joining(events.RequestFailed(0, UNKNOWN_MEMBER))
        if self.state in (GroupState.STABLE, GroupState.COMPLETING):
            self._prepare()
        self._complete_join()

    def _refuse(self, seat: Seat, code: int) -> None:
        for waiting in (seat.joining, seat.syncing):
            if waiting is not None:
                waiting(events.RequestFailed(0, code))
        seat.joining = seat.syncing = None

    # -- the end of brokers

    def _store(self) -> None:
        self._stored = _Stored(
            self.generation,
            self._protocol,
            self._leader,
            {name: (seat.spec, seat.protocols) for name, seat in self.seats.items()},
            dict(self._parts),
        )

    def resign(self, code: int) -> None:
        """Hand the group over to another broker. Waiting members get ``code``."""
        for seat in self.seats.values():
            self._refuse(seat, code)

    def restart(self) -> None:
        """Continue with only the stored data, as if the broker had died."""
        before = dict(self.roster.instances)
        self.roster.clear()
        self._unsynced.clear()
        self._gathering = self._more_came = False
        known = self._stored is not None or bool(self.offsets)
        stored = self._stored or _Stored()
        self._life += 1
        self.generation, self._protocol = stored.generation, stored.protocol
        self._leader, self._parts = stored.leader, stored.parts
        for name, (spec, protocols) in stored.seats.items():
            self._add(name, spec, protocols, new=False)
        after = self.roster.instances
        self.misfenced |= {name for name in after if name in before and after[name] != before[name]}
        if self.seats:
            self.state = GroupState.STABLE
        else:
            self.state = GroupState.EMPTY if known else GroupState.DEAD


def _with_token(reply: Reply, token: int, event: Any) -> None:
    reply(replace(event, token=token))


def _owned(metadata: bytes) -> frozenset[TopicPartition]:
    try:
        return decode_subscription(metadata).owned
    except ValueError:
        return frozenset()
