"""A broker's group coordinator and its members, in virtual time: what replaced ZooKeeper groups.

Owns both sides of the protocol of Kafka 0.9 and later as far as membership goes: JoinGroup,
SyncGroup, Heartbeat, LeaveGroup, generations, and the offsets that move with partitions; eager
rebalancing, as the first release did it. One broker is the coordinator; requests queue there.
Source of states and rules: Kafka's ``GroupCoordinator`` and ``AbstractCoordinator``. Runs inside
kernel events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from zkconsumer.core.assign import assign_range, thread_ids
from zkconsumer.core.types import ConsumerThreadId, TopicPartition
from zkconsumer.journal.tally import Tally
from zkconsumer.journal.wire import Cost
from zkconsumer.sim.kernel import Handle, Kernel

#: ``heartbeat.interval.ms`` and ``retry.backoff.ms`` of Kafka's consumer, in seconds.
HEARTBEAT = 3.0
RETRY = 0.1
_HEADER = 4 + 8 + 2 + 10  # length, api key, version and correlation id, client id


class GroupState(Enum):
    """State of a group at its coordinator."""

    EMPTY = "no members"
    PREPARING = "waits for all members to join"
    COMPLETING = "waits for the leader's assignment"
    STABLE = "all have their assignment"


class Answer(Enum):
    """How a request ended."""

    OK = "ok"
    REJOIN = "rebalance in progress"
    UNKNOWN = "unknown member or generation"
    UNAVAILABLE = "no coordinator here"


Assignment = Mapping[TopicPartition, ConsumerThreadId]


@dataclass(frozen=True, slots=True)
class Response:
    """``members`` only for the leader; ``partitions`` only in answer to SyncGroup."""

    answer: Answer
    generation: int = 0
    members: tuple[str, ...] = ()
    partitions: tuple[TopicPartition, ...] = ()


Reply = Callable[[Response], None]


@dataclass(slots=True)
class _Seat:
    """A member as the coordinator knows it."""

    joining: Reply | None = None
    syncing: Reply | None = None
    expiry: Handle | None = None


@dataclass(slots=True)
class GroupCoordinator:
    """One group at its coordinator. ``up`` is False while the broker is away."""

    kernel: Kernel
    session_timeout: float
    rebalance_timeout: float
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    up: bool = True
    seats: dict[str, _Seat] = field(default_factory=dict)
    parts: dict[str, list[TopicPartition]] = field(default_factory=dict)
    _deadline: Handle | None = None

    def join(self, member: str, reply: Reply) -> None:
        """JoinGroup: answered when the others have joined as well."""
        seat = self.seats.setdefault(member, _Seat())
        seat.joining = reply
        self._heard(member)
        if self.state is not GroupState.PREPARING:
            self._prepare()
        self._complete_if_all_joined()

    def sync(self, member: str, generation: int, given: Assignment | None, reply: Reply) -> None:
        """SyncGroup: the leader's brings the assignment, and all are answered then."""
        if not self._known(member, generation, reply):
            return
        if self.state is GroupState.PREPARING:
            reply(Response(Answer.REJOIN))
            return
        self.seats[member].syncing = reply
        if given is not None:
            self.parts = {}
            for tp, thread in given.items():
                self.parts.setdefault(thread.consumer, []).append(tp)
            self.state = GroupState.STABLE
        if self.state is GroupState.STABLE:
            for name, seat in self.seats.items():
                waiting, seat.syncing = seat.syncing, None
                if waiting is not None:
                    mine = tuple(self.parts.get(name, ()))
                    waiting(Response(Answer.OK, self.generation, partitions=mine))

    def heartbeat(self, member: str, generation: int, reply: Reply) -> None:
        """Heartbeat: this is how a member learns of a rebalance."""
        if self._known(member, generation, reply):
            rejoin = self.state is GroupState.PREPARING
            reply(Response(Answer.REJOIN if rejoin else Answer.OK))

    def leave(self, member: str) -> None:
        """LeaveGroup, or the end of a member's session."""
        seat = self.seats.pop(member, None)
        if seat is None:
            return
        if seat.expiry is not None:
            self.kernel.cancel(seat.expiry)
        if not self.seats:
            self.state = GroupState.EMPTY
        elif self.state is not GroupState.PREPARING:
            self._prepare()
        self._complete_if_all_joined()

    def _known(self, member: str, generation: int, reply: Reply) -> bool:
        if member not in self.seats or generation != self.generation:
            reply(Response(Answer.UNKNOWN))
            return False
        self._heard(member)
        return True

    def _heard(self, member: str) -> None:
        seat = self.seats[member]
        if seat.expiry is not None:
            self.kernel.cancel(seat.expiry)
        seat.expiry = self.kernel.schedule(self.session_timeout, partial(self._expired, member))

    def _expired(self, member: str) -> None:
        seat = self.seats.get(member)
        if seat is None:
            return
        if not self.up or seat.joining is not None:
            self._heard(member)  # who waits for an answer is not late
        else:
            self.leave(member)

    def _prepare(self) -> None:
        self.state = GroupState.PREPARING
        for seat in self.seats.values():
            waiting, seat.syncing = seat.syncing, None
            if waiting is not None:
                waiting(Response(Answer.REJOIN))
        if self._deadline is not None:
            self.kernel.cancel(self._deadline)
        self._deadline = self.kernel.schedule(self.rebalance_timeout, self._drop_the_late)

    def _drop_the_late(self) -> None:
        if self.state is GroupState.PREPARING:
            for name in [name for name, seat in self.seats.items() if seat.joining is None]:
                self.leave(name)

    def _complete_if_all_joined(self) -> None:
        if self.state is not GroupState.PREPARING:
            return
        if any(seat.joining is None for seat in self.seats.values()):
            return
        self.generation += 1
        self.state = GroupState.COMPLETING
        names = tuple(self.seats)
        for index, seat in enumerate(self.seats.values()):
            reply, seat.joining = seat.joining, None
            assert reply is not None
            reply(Response(Answer.OK, self.generation, names if index == 0 else ()))


class Broker:
    """The way to the coordinator and back: latency, a queue, and what it costs."""

    def __init__(
        self, kernel: Kernel, tally: Tally, group: GroupCoordinator, service: float
    ) -> None:
        self.kernel = kernel
        self.tally = tally
        self.group = group
        self.service = service
        self._free_us = 0

    def ask(
        self,
        member: CoordinatorMember,
        kind: str,
        sizes: tuple[int, Callable[[Response], int]],
        handle: Callable[[Reply], None],
        then: Reply,
    ) -> None:
        """Send a request of ``sizes[0]`` bytes; ``then`` gets the response."""
        sent, trip = self.kernel.now_us, member.trip_us
        epoch = member.epoch

        def respond(response: Response) -> None:
            self.kernel.schedule_at_us(self.kernel.now_us + trip, partial(arrive, response))

        def arrive(response: Response) -> None:
            out, back = sizes[0], sizes[1](response)
            now = self.kernel.now_us
            self.tally.spend(now, member.name, kind, Cost(1, 0, 0, 0, out, back), sent)
            if member.alive and member.epoch == epoch:
                then(response)

        def serve() -> None:
            if self.group.up:
                handle(respond)
            else:
                respond(Response(Answer.UNAVAILABLE))

        def received() -> None:
            self._free_us = max(self._free_us, self.kernel.now_us) + round(self.service * 1e6)
            self.kernel.schedule_at_us(self._free_us, serve)

        self.kernel.schedule_at_us(sent + trip, received)


class CoordinatorMember:
    """One member: joins, syncs, reads offsets, consumes, sends heartbeats."""

    def __init__(
        self, broker: Broker, name: str, topics: Callable[[], Mapping[str, int]], trip_us: int
    ) -> None:
        self.name = name
        self.alive = True
        self.stable = False
        self.trip_us = trip_us
        self.epoch = 0  # of joins: answers to requests of an earlier one are dropped
        self._broker = broker
        self._kernel = broker.kernel
        self._topics = topics
        self._generation = -1
        self._held: tuple[TopicPartition, ...] = ()
        self._beat: Handle | None = None

    def start(self) -> None:
        """Join the group."""
        self._join()

    def close(self) -> None:
        """Leave: commit, tell the coordinator."""
        self._give_up()
        self.alive = False
        self._broker.ask(
            self,
            "leave group",
            (_HEADER + 40, lambda response: 10),
            self._leave,
            lambda response: None,
        )

    def _leave(self, reply: Reply) -> None:
        self._broker.group.leave(self.name)
        reply(Response(Answer.OK))

    def crash(self) -> None:
        """The process dies; the coordinator finds out by the session timeout."""
        self.alive = False
        self._broker.tally.ownership.gone(self._kernel.now_us, self.name)
        if self._beat is not None:
            self._kernel.cancel(self._beat)

    def rejoin(self) -> None:
        """Something else than a heartbeat calls for a rebalance (new partitions)."""
        if self.alive:
            self._give_up()
            self._join()

    def _give_up(self) -> None:
        """Stop fetching everything, as the eager protocol asks."""
        self.stable = False
        if self._beat is not None:
            self._kernel.cancel(self._beat)
            self._beat = None
        for tp in self._held:
            self._broker.tally.ownership.lost(self._kernel.now_us, tp, self.name)
        self._held = ()

    def _join(self) -> None:
        self.epoch += 1
        self._broker.tally.member(self.name).attempts += 1
        topics = sum(2 + len(topic) for topic in self._topics())
        size = _HEADER + 2 + 1 + 4 + 4 + 2 + len(self.name) + 10 + 4 + 5 + 4 + 6 + topics
        self._broker.ask(
            self,
            "join group",
            (size, lambda r: 40 + len(self.name) + len(r.members) * (len(self.name) + 16 + topics)),
            partial(self._broker.group.join, self.name),
            self._joined,
        )

    def _joined(self, response: Response) -> None:
        if self._again(response):
            return
        self._generation = response.generation
        given = self._assign(response.members) if response.members else None
        per = 4 + 2 + len(self.name) + 4 + 14
        size = _HEADER + 30 + len(self.name)
        if given is not None:
            size += len(response.members) * per + len(given) * 4
        self._broker.ask(
            self,
            "sync group",
            (size, lambda r: 20 + 4 * len(r.partitions)),
            partial(self._broker.group.sync, self.name, response.generation, given),
            self._synced,
        )

    def _assign(self, members: tuple[str, ...]) -> Assignment:
        topics = self._topics()
        threads: dict[str, list[ConsumerThreadId]] = {}
        for member in members:
            for topic, ids in thread_ids(member, dict.fromkeys(topics, 1)).items():
                threads.setdefault(topic, []).extend(ids)
        return assign_range(threads, {topic: tuple(range(n)) for topic, n in topics.items()})

    def _synced(self, response: Response) -> None:
        if self._again(response):
            return
        self._next_beat()
        if not response.partitions:
            self.stable = True
            return
        self._broker.ask(
            self,
            "fetch offsets",
            (_HEADER + 20 + 4 * len(response.partitions), lambda r: 8 + 18 * len(r.partitions)),
            lambda reply: reply(Response(Answer.OK, partitions=response.partitions)),
            self._own,
        )

    def _own(self, response: Response) -> None:
        if self._again(response):
            return
        self._held = response.partitions
        for tp in self._held:
            self._broker.tally.ownership.took(self._kernel.now_us, tp, self.name)
        self.stable = True

    def _again(self, response: Response) -> bool:
        """Deal with an answer that is not ok; whether it was none."""
        if response.answer is Answer.OK:
            return False
        self._give_up()
        self._broker.tally.member(self.name).failed_attempts += 1
        wait = RETRY if response.answer is Answer.UNAVAILABLE else 0.0
        self.epoch += 1
        self._kernel.schedule(wait, self._join_if_alive)
        return True

    def _join_if_alive(self) -> None:
        if self.alive:
            self._join()

    def _next_beat(self, wait: float = HEARTBEAT) -> None:
        self._beat = self._kernel.schedule(wait, self._heartbeat)

    def spread(self) -> None:
        """Beat at a moment of one's own, as members that joined one after the other do."""
        if self._beat is not None:
            self._kernel.cancel(self._beat)
            self._next_beat(HEARTBEAT * self._kernel.rng.random())

    def _heartbeat(self) -> None:
        if not self.alive:
            return
        self._broker.ask(
            self,
            "heartbeat",
            (_HEADER + 2 + 1 + 4 + 2 + len(self.name), lambda response: 10),
            partial(self._broker.group.heartbeat, self.name, self._generation),
            self._beaten,
        )

    def _beaten(self, response: Response) -> None:
        if response.answer is Answer.OK:
            self._next_beat()
        elif response.answer is Answer.UNAVAILABLE:
            # Look for the coordinator, and beat again when it is back.
            self._broker.tally.spend(
                self._kernel.now_us, self.name, "find coordinator", Cost(1, 0, 0, 0, 40, 40)
            )
            self._next_beat(RETRY)
        else:
            self._give_up()
            self._join()


__all__ = ["Broker", "CoordinatorMember", "GroupCoordinator", "GroupState"]
