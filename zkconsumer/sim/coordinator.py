"""A broker's group coordinator in virtual time: members, generations, sessions, offsets.

It takes the orders of ``zkconsumer.core.membership`` as requests and answers with its facts, so the
members that speak to it are the real machine. One group. Source of states, codes and rules: Kafka
3.9 ``GroupCoordinator`` (groups of the classic protocol). Runs inside kernel events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Any, Final, Protocol

from zkconsumer.core.membership import facts, orders
from zkconsumer.core.membership.facts import GroupMember, MembershipFact
from zkconsumer.core.membership.spec import GroupSpec
from zkconsumer.core.membership.wire import decode_assignment, decode_subscription
from zkconsumer.core.types import TopicPartition
from zkconsumer.sim.group_roster import Protocols, Reply, Roster, Seat
from zkconsumer.sim.kernel import Kernel

LOADING: Final = 14
NOT_AVAILABLE: Final = 15
ILLEGAL_GENERATION: Final = 22
INCONSISTENT_PROTOCOL: Final = 23
UNKNOWN_MEMBER: Final = 25
REBALANCING: Final = 27
ID_REQUIRED: Final = 79
FENCED_INSTANCE: Final = 82


class GroupState(Enum):
    """State of a group at its coordinator."""

    EMPTY = "no members"
    PREPARING = "waits for all members to join"
    COMPLETING = "waits for the leader's assignment"
    STABLE = "all have their assignment"


class GroupWatch(Protocol):
    """Told what the coordinator decides, for those who judge a group. ``name`` is a member id."""

    def joins(self, name: str, owned: frozenset[TopicPartition]) -> None:
        """JoinGroup has come: the member has given up all but ``owned``."""

    def assigned(self, given: Mapping[str, frozenset[TopicPartition]]) -> None:
        """The leader's assignment holds from now on."""

    def removed(self, name: str, left: bool) -> None:
        """The member left (``left``), was expelled, or another process took its instance id."""

    def passed_over(self, name: str, generation: int) -> None:
        """``generation`` began without this static member, which may join again."""

    def committed(self, name: str, tp: TopicPartition, before: int | None, after: int) -> None:
        """An offset was stored."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """What survives the broker: written when a group becomes stable, or empty."""

    generation: int = 0
    protocol: str = ""
    leader: str = ""
    seats: Mapping[str, tuple[GroupSpec, Protocols]] = field(default_factory=dict)
    parts: Mapping[str, bytes] = field(default_factory=dict)


class GroupCoordinator:
    """One group. ``topics`` tells how many partitions each topic has now.

    Args:
        initial_delay: ``group.initial.rebalance.delay.ms`` in seconds: how long an empty group
            waits for more members.
    """

    def __init__(
        self,
        kernel: Kernel,
        topics: Callable[[], Mapping[str, int]],
        initial_delay: float = 3.0,
        watch: GroupWatch | None = None,
    ) -> None:
        self.kernel = kernel
        self.state = GroupState.EMPTY
        self.generation = 0
        self.roster = Roster()
        self.seats = self.roster.seats
        self.offsets: dict[TopicPartition, int] = {}
        self.loading = False
        self._topics = topics
        self._initial_delay = initial_delay
        self._watch = watch
        self._protocol = ""
        self._leader = ""
        self._parts: Mapping[str, bytes] = {}
        self._not_before_us = 0
        self._phase = 0  # of rebalances: a deadline of an earlier one says nothing
        self._ids = 0
        self._stored = _Stored()
        self._life = 0

    # -- requests

    def handle(self, order: Any, spec: GroupSpec, reply: Reply) -> None:
        """One request arrives from the member with ``spec``; ``reply`` is called once, or never
        when the broker dies before."""
        life = self._life

        def answer(fact: MembershipFact) -> None:
            if self._life == life:
                reply(fact)

        if self.loading and not isinstance(order, orders.LoadTopics):
            answer(failure(order, LOADING))
            return
        match order:
            case orders.LoadTopics(token, wanted):
                known = self._topics()
                names = known if wanted is None else [name for name in wanted if name in known]
                answer(facts.TopicsLoaded(token, {name: known[name] for name in names}))
            case orders.JoinGroup():
                self._join(order, spec, answer)
            case orders.SyncGroup():
                self._sync(order, spec, answer)
            case orders.Heartbeat(token, name, generation):
                code = self._known(name, generation, spec)
                if not code and self.state is GroupState.PREPARING:
                    code = REBALANCING
                answer(facts.HeartbeatAnswered(token, code))
            case orders.LeaveGroup(token, name):
                self.roster.pending.discard(name)
                self._remove(name, left=True)
                self._complete_join()
                answer(facts.Left(token))
            case orders.FetchOffsets(token, wanted):
                answer(facts.OffsetsFetched(token, {tp: self.offsets.get(tp) for tp in wanted}))
            case orders.CommitOffsets(token, name, generation, positions):
                code = self._known(name, generation, spec)
                if not code and self.state is GroupState.COMPLETING:
                    code = REBALANCING
                if not code:
                    self._store_offsets(name, positions)
                answer(facts.OffsetsCommitted(token, dict.fromkeys(positions, code)))

    def _known(self, name: str, generation: int, spec: GroupSpec) -> int:
        """Why a member of ``generation`` is refused, or 0; who is not counts as heard."""
        if spec.instance_id is not None:
            holder = self.roster.instances.get(spec.instance_id)
            if holder is not None and holder != name:
                return FENCED_INSTANCE
        seat = self.seats.get(name)
        if seat is None:
            return UNKNOWN_MEMBER
        if generation != self.generation:
            return ILLEGAL_GENERATION
        seat.heard_us = self.kernel.now_us
        return 0

    def _store_offsets(self, name: str, positions: Mapping[TopicPartition, int]) -> None:
        for tp, offset in positions.items():
            before = self.offsets.get(tp)
            self.offsets[tp] = offset
            if self._watch is not None:
                self._watch.committed(name, tp, before, offset)

    # -- joining

    def _join(self, order: orders.JoinGroup, spec: GroupSpec, reply: Reply) -> None:
        name, replaces = order.member_id, ""
        if not name:
            self._ids += 1
            name = f"{spec.consumer_id}-{self._ids}"
            if spec.instance_id is None:
                self.roster.pending.add(name)
                self.kernel.schedule(spec.session_timeout, partial(self._forget_pending, name))
                reply(facts.RequestFailed(order.token, ID_REQUIRED, "", name))
                return
            replaces = self.roster.instances.get(spec.instance_id, "")
        elif name not in self.seats and name not in self.roster.pending:
            fenced = spec.instance_id is not None and spec.instance_id in self.roster.instances
            reply(failure(order, FENCED_INSTANCE if fenced else UNKNOWN_MEMBER))
            return
        if not self.roster.in_common(order.protocols, self.seats.get(replaces or name)):
            reply(failure(order, INCONSISTENT_PROTOCOL))
            return
        self.roster.pending.discard(name)
        self._seat(order, spec, name, replaces, reply)

    def _seat(
        self, order: orders.JoinGroup, spec: GroupSpec, name: str, replaces: str, reply: Reply
    ) -> None:
        metadata = dict(order.protocols)
        if self._watch is not None and name in self.seats:
            self._watch.joins(name, _owned(metadata.get(self._protocol, b"")))
        before = self.seats.get(replaces or name)
        same = before is not None and before.protocols == order.protocols
        if replaces:
            self._replace(replaces, name, order, spec)
            if self.state is GroupState.STABLE and same:
                self._tell_assigned({name: self._parts.get(name, b"")})
                leader = replaces if self._leader == name else self._leader
                reply(facts.Joined(order.token, name, self.generation, leader, self._protocol))
                self._store()
                return
        elif before is None:
            self._add(name, spec, order.protocols)
        seat = self.seats[name]
        self.roster.offer(seat, order.protocols)
        seat.heard_us = self.kernel.now_us
        settled = (
            self.state is GroupState.COMPLETING
            or (self.state is GroupState.STABLE and name != self._leader)
        ) and same
        if settled and not replaces:  # nothing new: the answer was lost on its way
            reply(self._joined(order.token, name))
            return
        self._refuse(seat, UNKNOWN_MEMBER)  # a request of an earlier connection
        seat.joining = partial(_with_token, reply, order.token)
        self.roster.awaited.discard(name)
        if self.state is GroupState.EMPTY:
            self._prepare(self._initial_delay)
        elif self.state is not GroupState.PREPARING:
            self._prepare()
        elif before is None and self.kernel.now_us < self._not_before_us:
            self._wait_for_more()
        self._complete_join()

    def _replace(self, old: str, new: str, order: orders.JoinGroup, spec: GroupSpec) -> None:
        """A process has started with the instance id of another: that one is fenced."""
        self._take_away(old, FENCED_INSTANCE)
        self._add(new, spec, order.protocols)
        self._parts = {new if name == old else name: part for name, part in self._parts.items()}
        if self._leader == old:
            self._leader = new
        if self._watch is not None:
            self._watch.removed(old, False)

    def _joined(self, token: int, name: str) -> facts.Joined:
        members: tuple[GroupMember, ...] = ()
        if name == self._leader:
            members = tuple(
                GroupMember(one, seat.spec.instance_id, dict(seat.protocols)[self._protocol])
                for one, seat in self.seats.items()
            )
        return facts.Joined(token, name, self.generation, self._leader, self._protocol, members)

    def _prepare(self, delay: float = 0.0) -> None:
        """All shall join again, within the longest of their rebalance timeouts."""
        self.state = GroupState.PREPARING
        for seat in self.seats.values():
            waiting, seat.syncing = seat.syncing, None
            if waiting is not None:
                waiting(facts.RequestFailed(0, REBALANCING))
        self.roster.awaited = {name for name, seat in self.seats.items() if seat.joining is None}
        self._not_before_us = self.kernel.now_us + round(delay * 1e6)
        self._arm(self._late_join)
        if delay:
            self.kernel.schedule(delay, self._complete_join)

    def _wait_for_more(self) -> None:
        self._not_before_us = self.kernel.now_us + round(self._initial_delay * 1e6)
        self.kernel.schedule(self._initial_delay, self._complete_join)

    def _arm(self, late: Callable[[], None]) -> None:
        self._phase += 1
        phase, life = self._phase, self._life
        patience = max(seat.spec.rebalance_timeout for seat in self.seats.values())

        def due() -> None:
            if (self._phase, self._life) == (phase, life):
                late()

        self.kernel.schedule(patience, due)

    def _late_join(self) -> None:
        if self.state is GroupState.PREPARING:
            self.roster.pending.clear()
            self._not_before_us = 0
            for name, seat in list(self.seats.items()):
                if seat.joining is None and seat.spec.instance_id is None:
                    self._remove(name)
            self._complete_join(late=True)

    def _late_sync(self) -> None:
        if self.state is GroupState.COMPLETING:
            for name in [name for name, seat in self.seats.items() if seat.syncing is None]:
                self._remove(name)
            self._complete_join()

    def _complete_join(self, late: bool = False) -> None:
        """Begin the next generation if all have joined; static members may be late."""
        if self.state is not GroupState.PREPARING or self.kernel.now_us < self._not_before_us:
            return
        if not late and (self.roster.pending or self.roster.awaited):
            return
        joined = [name for name, seat in self.seats.items() if seat.joining is not None]
        if not joined:
            if self.seats:
                self._arm(self._late_join)
            return
        self.generation += 1
        self.state = GroupState.COMPLETING
        self._parts = {}
        self._protocol = self.roster.vote()
        if self._leader not in joined:
            self._leader = joined[0]
        self._arm(self._late_sync)
        if self._watch is not None:
            for name in self.seats.keys() - set(joined):
                self._watch.passed_over(name, self.generation)
        for name in joined:
            seat = self.seats[name]
            reply, seat.joining = seat.joining, None
            seat.heard_us = self.kernel.now_us
            assert reply is not None
            reply(self._joined(0, name))

    # -- the assignment

    def _sync(self, order: orders.SyncGroup, spec: GroupSpec, reply: Reply) -> None:
        code = self._known(order.member_id, order.generation, spec)
        if not code and self.state is GroupState.PREPARING:
            code = REBALANCING
        if code:
            reply(failure(order, code))
            return
        seat = self.seats[order.member_id]
        seat.syncing = partial(_with_token, reply, order.token)
        if self.state is GroupState.COMPLETING and order.member_id == self._leader:
            self._parts = {name: order.assignments.get(name, b"") for name in self.seats}
            self.state = GroupState.STABLE
            self._phase += 1
            self._store()
            self._tell_assigned(self._parts)
        elif self.state is GroupState.STABLE:  # it has missed the answer before
            self._tell_assigned({order.member_id: self._parts.get(order.member_id, b"")})
        if self.state is GroupState.STABLE:
            for name, one in self.seats.items():
                waiting, one.syncing = one.syncing, None
                if waiting is not None:
                    one.heard_us = self.kernel.now_us
                    waiting(facts.Synced(0, self._parts.get(name, b"")))

    def _tell_assigned(self, parts: Mapping[str, bytes]) -> None:
        if self._watch is not None:
            self._watch.assigned({n: decode_assignment(raw).partitions for n, raw in parts.items()})

    # -- the end of members

    def _add(self, name: str, spec: GroupSpec, protocols: Protocols) -> None:
        seat = Seat(spec, protocols, self.kernel.now_us)
        self.roster.add(name, seat)
        self._expire_later(name, seat)

    def _take_away(self, name: str, code: int) -> Seat | None:
        seat = self.roster.remove(name)
        if seat is not None:
            self._refuse(seat, code)
        return seat

    def _forget_pending(self, name: str) -> None:
        if name in self.roster.pending:
            self.roster.pending.discard(name)
            self._complete_join()

    def _expire_later(self, name: str, seat: Seat) -> None:
        due = seat.heard_us + round(seat.spec.session_timeout * 1e6)
        self.kernel.schedule_at_us(due, partial(self._look, name, seat))

    def _look(self, name: str, seat: Seat) -> None:
        """Has the member been silent for its session timeout? Who waits for an answer has not."""
        if seat.gone or self.seats.get(name) is not seat:
            return
        if seat.joining is not None or seat.syncing is not None:
            seat.heard_us = self.kernel.now_us
        if seat.heard_us + round(seat.spec.session_timeout * 1e6) > self.kernel.now_us:
            self._expire_later(name, seat)
        else:
            self._remove(name)
            self._complete_join()

    def _remove(self, name: str, left: bool = False) -> None:
        seat = self._take_away(name, UNKNOWN_MEMBER)
        if seat is None:
            return
        if self._watch is not None:
            self._watch.removed(name, left)
        if not self.seats:
            self.state, self._phase = GroupState.EMPTY, self._phase + 1
            self._parts = {}
            self._store()
        elif self.state is not GroupState.PREPARING:
            self._prepare()

    def _refuse(self, seat: Seat, code: int) -> None:
        for waiting in (seat.joining, seat.syncing):
            if waiting is not None:
                waiting(facts.RequestFailed(0, code))
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
        """The broker hands the group over: who waits for an answer gets ``code``."""
        for seat in self.seats.values():
            self._refuse(seat, code)

    def restart(self) -> None:
        """The broker has died: another one, or itself, knows what was stored and no more."""
        self.roster.clear()
        stored = self._stored
        self._life += 1
        self.generation, self._protocol = stored.generation, stored.protocol
        self._leader, self._parts = stored.leader, stored.parts
        for name, (spec, protocols) in stored.seats.items():
            self._add(name, spec, protocols)
        self.state = GroupState.STABLE if self.seats else GroupState.EMPTY


def _with_token(reply: Reply, token: int, fact: Any) -> None:
    reply(replace(fact, token=token))


def failure(order: Any, code: int) -> MembershipFact:
    """The answer to ``order`` that says ``code``."""
    if isinstance(order, orders.Heartbeat):
        return facts.HeartbeatAnswered(order.token, code)
    return facts.RequestFailed(order.token, code)


def _owned(metadata: bytes) -> frozenset[TopicPartition]:
    try:
        return decode_subscription(metadata).owned
    except ValueError:
        return frozenset()
