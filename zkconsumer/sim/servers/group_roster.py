"""Parts that the simulated coordinators of both protocols share: members, topics, offsets,
refusals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.core.groups import events
from zkconsumer.core.groups.commands import CommitOffsets, Heartbeat, LoadTopics
from zkconsumer.core.groups.kip848_commands import MemberHeartbeat
from zkconsumer.core.groups.kip848_events import MemberHeartbeatAnswered
from zkconsumer.core.groups.reactions import UNREACHABLE
from zkconsumer.core.groups.spec import ClassicSpec

Reply = Callable[[Any], object]
"""Called with the event that answers a request. Each kind of member has its own events."""
Protocols = tuple[tuple[str, bytes], ...]


@dataclass(slots=True)
class Seat:
    """One member. ``joining`` answers its JoinGroup request, and ``syncing`` its SyncGroup request;
    both are called when the group can continue.

    ``new``: its first generation has not begun.
    """

    spec: ClassicSpec
    protocols: Protocols
    heard_us: int
    joining: Reply | None = None
    syncing: Reply | None = None
    gone: bool = False
    new: bool = False


class GroupWatch(Protocol):
    """Receives the coordinator's decisions and passes them to the group's observers. ``name`` is a
    member id."""

    def joins(self, name: str, owned: frozenset[TopicPartition]) -> None:
        """Record that JoinGroup was received. The member has released all partitions except
        ``owned``."""

    def assigned(self, generation: int, given: Mapping[str, frozenset[TopicPartition]]) -> None:
        """Record the leader's assignment, which is valid from now on in ``generation``."""

    def removed(self, name: str, left: bool) -> None:
        """Record that the member left (``left``), was expelled, or lost its instance id to another
        process."""

    def passed_over(self, name: str, generation: int) -> None:
        """Record that ``generation`` began without this static member, which may rejoin."""

    def committed(
        self, name: str, generation: int, tp: TopicPartition, before: int | None, after: int
    ) -> None:
        """Record that an offset was stored, in ``generation``."""


class Roster:
    """The members by id, in the order of joining. ``instances``: ids of static members.

    ``pending`` are ids that were issued and have not been used yet.
    """

    def __init__(self) -> None:
        self.seats: dict[str, Seat] = {}
        self.instances: dict[str, str] = {}
        self.pending: set[str] = set()
        self._offers: Counter[frozenset[str]] = Counter()

    def add(self, name: str, seat: Seat) -> None:
        """Add a member."""
        self.seats[name] = seat
        self._offers[_names(seat.protocols)] += 1
        if seat.spec.instance_id is not None:
            self.instances[seat.spec.instance_id] = name

    def remove(self, name: str) -> Seat | None:
        """Remove a member and return it; ``None`` if there is no such member."""
        seat = self.seats.pop(name, None)
        if seat is not None:
            seat.gone = True
            self._offers[_names(seat.protocols)] -= 1
            if seat.spec.instance_id is not None:
                self.instances.pop(seat.spec.instance_id, None)
        return seat

    def clear(self) -> None:
        """Remove all members."""
        for name in list(self.seats):
            self.remove(name)
        self.pending.clear()

    def offer(self, seat: Seat, protocols: Protocols) -> None:
        """Record the strategies with which a member has joined."""
        self._offers[_names(seat.protocols)] -= 1
        self._offers[_names(protocols)] += 1
        seat.protocols = protocols

    def supports(self, protocols: Protocols) -> bool:
        """Whether at least one of ``protocols`` is offered by every member."""
        sets = [names for names, count in self._offers.items() if count > 0]
        return bool(_names(protocols).intersection(*sets))

    def vote(self) -> str:
        """Return the winning strategy. Each member votes for the first of its strategies that all
        others offer too."""
        offered = [[name for name, _ in seat.protocols] for seat in self.seats.values()]
        common = set.intersection(*map(set, offered))
        votes = Counter(next(name for name in names if name in common) for names in offered)
        return max(votes, key=lambda name: votes[name])


def topics_loaded(
    command: LoadTopics, topics: Mapping[str, int], brokers: tuple[BrokerEndpoint, ...]
) -> events.TopicsLoaded:
    """Return the answer to ``command``. ``topics``: topic to number of partitions."""
    wanted = topics if command.topics is None else command.topics
    counts = {name: topics[name] for name in wanted if name in topics}
    return events.TopicsLoaded(command.token, counts, brokers)


def store_offsets(
    offsets: dict[TopicPartition, int],
    positions: Mapping[TopicPartition, int],
    name: str,
    generation: int,
    watch: GroupWatch | None,
) -> None:
    """Store the offsets that member ``name`` commits in ``generation``."""
    for tp, offset in positions.items():
        before = offsets.get(tp)
        offsets[tp] = offset
        if watch is not None:
            watch.committed(name, generation, tp, before, offset)


def failure(command: Any, code: int) -> Any:
    """Return the answer to ``command`` with error ``code``; ``UNREACHABLE`` means that no broker
    answered."""
    match command:
        case Heartbeat(token):
            return events.HeartbeatAnswered(token, code)
        case MemberHeartbeat(token):
            return MemberHeartbeatAnswered(token, code)
        case CommitOffsets(token) if code != UNREACHABLE:
            return events.OffsetsCommitted(token, dict.fromkeys(command.positions, code))
        case _:
            return events.RequestFailed(command.token, code)


def _names(protocols: Iterable[tuple[str, bytes]]) -> frozenset[str]:
    return frozenset(name for name, _ in protocols)
