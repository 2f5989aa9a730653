"""Assignment strategies: what a member sends to the leader, and how the leader assigns partitions.

``range`` and ``roundrobin`` are those of the Java and Python consumers; ``legacy-range`` and
``legacy-roundrobin`` assign by stream, exactly as ``zkconsumer.core.common.assign`` does for
groups in ZooKeeper, so that a group keeps its assignment when it moves. The sticky strategies are
in ``zkconsumer.core.groups.assignors.sticky``. Pure; any thread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from zkconsumer.core.common.assign import RoundRobinHash, assign_range, assign_roundrobin
from zkconsumer.core.common.types import ConsumerThreadId, TopicPartition
from zkconsumer.core.groups.events import GroupMember
from zkconsumer.core.groups.formats.consumer_protocol import (
    AssignmentData,
    SubscriptionData,
    by_topic,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)


@dataclass(frozen=True, slots=True)
class MemberState:
    """The data that a member reports about itself. ``topics`` maps topics to numbers of streams.

    ``owned``: partitions that it keeps while it joins. ``before``: the last assignment, which
    eager members have released, and its generation.
    """

    consumer_id: str
    topics: Mapping[str, int]
    owned: frozenset[TopicPartition]
    generation: int
    before: tuple[frozenset[TopicPartition], int] = (frozenset(), -1)


class Strategy(Protocol):
    """A strategy that a member offers in JoinGroup."""

    @property
    def name(self) -> str:
        """The strategy's name in JoinGroup. The coordinator chooses a strategy that all members
        offer."""

    @property
    def cooperative(self) -> bool:
        """Whether members keep their partitions while they join."""

    def subscribe(self, state: MemberState) -> bytes:
        """Return the metadata for JoinGroup."""

    def assign(
        self, members: Sequence[GroupMember], partitions: Mapping[str, int]
    ) -> dict[str, bytes]:
        """Return the assignment of every member by member id. ``partitions``: number of partitions
        by topic."""


@dataclass(frozen=True, slots=True)
class RangeStrategy:
    """Assigns each topic's partitions in consecutive runs: to static members first, then to the
    others, both ordered by id.

    Source: Kafka 3.9 RangeAssignor without racks, as in kafka-python.
    """

    name: str = "range"
    cooperative: bool = False

    def subscribe(self, state: MemberState) -> bytes:
        """Implement ``Strategy.subscribe``."""
        return encode_subscription(SubscriptionData(tuple(sorted(state.topics))))

    def assign(
        self, members: Sequence[GroupMember], partitions: Mapping[str, int]
    ) -> dict[str, bytes]:
        """Implement ``Strategy.assign``."""
        given: dict[str, set[TopicPartition]] = {member.member_id: set() for member in members}
        for topic, ids in _members_by_topic(members).items():
            share, extra = divmod(partitions.get(topic, 0), len(ids))
            start = 0
            for place, member_id in enumerate(ids):
                end = start + share + (place < extra)
                given[member_id].update(TopicPartition(topic, n) for n in range(start, end))
                start = end
        return _encoded(given)


@dataclass(frozen=True, slots=True)
class RoundRobinStrategy:
    """Assigns partitions in order to the members that subscribe to their topic, in rotation.

    Source: Kafka 3.9 RoundRobinAssignor.
    """

    name: str = "roundrobin"
    cooperative: bool = False

    def subscribe(self, state: MemberState) -> bytes:
        """Implement ``Strategy.subscribe``."""
        return encode_subscription(SubscriptionData(tuple(sorted(state.topics))))

    def assign(
        self, members: Sequence[GroupMember], partitions: Mapping[str, int]
    ) -> dict[str, bytes]:
        """Implement ``Strategy.assign``."""
        given: dict[str, set[TopicPartition]] = {member.member_id: set() for member in members}
        topics = {topic: set(ids) for topic, ids in _members_by_topic(members).items()}
        ring = [member.member_id for member in sorted(members, key=_order)]
        turn = 0
        for topic in sorted(topics):
            for number in range(partitions.get(topic, 0)):
                while ring[turn % len(ring)] not in topics[topic]:
                    turn += 1
                given[ring[turn % len(ring)]].add(TopicPartition(topic, number))
                turn += 1
        return _encoded(given)


@dataclass(frozen=True, slots=True)
class LegacyStrategy:
    """Assigns by stream, as members in ZooKeeper do (Scala 1.1.1 PartitionAssignor).

    The user data of subscriptions and assignments has the consumer id and streams as JSON.
    """

    name: str
    hash_form: RoundRobinHash = RoundRobinHash.DASH
    cooperative: bool = False

    def subscribe(self, state: MemberState) -> bytes:
        """Implement ``Strategy.subscribe``."""
        user_data = {"v": 1, "consumer": state.consumer_id, "streams": dict(state.topics)}
        return encode_subscription(
            SubscriptionData(tuple(sorted(state.topics)), json.dumps(user_data).encode())
        )

    def assign(
        self, members: Sequence[GroupMember], partitions: Mapping[str, int]
    ) -> dict[str, bytes]:
        """Implement ``Strategy.assign``."""
        threads: dict[str, list[ConsumerThreadId]] = {}
        member_of: dict[str, str] = {}
        for member in members:
            consumer, streams = _streams_of(member)
            if consumer in member_of:  # two members with one consumer id: tell them apart
                consumer = f"{consumer}-{member.member_id}"
            member_of[consumer] = member.member_id
            for topic, count in streams.items():
                ids = (ConsumerThreadId(consumer, stream) for stream in range(count))
                threads.setdefault(topic, []).extend(ids)
        numbers = {topic: range(count) for topic, count in partitions.items()}
        owners = (
            assign_range(threads, numbers)
            if self.name == "legacy-range"
            else assign_roundrobin(threads, numbers, self.hash_form)
        )
        given: dict[str, dict[TopicPartition, int]] = {m.member_id: {} for m in members}
        for tp, thread in owners.items():
            given[member_of[thread.consumer]][tp] = thread.stream
        return {
            member_id: encode_assignment(
                AssignmentData(
                    frozenset(mine),
                    json.dumps({"v": 1, "streams": [[*tp, n] for tp, n in mine.items()]}).encode(),
                )
            )
            for member_id, mine in given.items()
        }


def assign_to_streams(
    consumer_id: str,
    topics: Mapping[str, int],
    assignment: AssignmentData,
    held: Mapping[TopicPartition, ConsumerThreadId],
) -> dict[TopicPartition, ConsumerThreadId]:
    """Return the stream of this member for each partition that no stream has yet.

    The user data of a legacy strategy decides. Otherwise streams get consecutive runs of each
    topic's partitions or, if some are already held, each partition goes to the stream with the
    fewest partitions of the topic. Partitions of topics without a subscription are left out.
    """
    said = _said_streams(assignment.user_data)
    given: dict[TopicPartition, ConsumerThreadId] = {}
    fresh = {tp for tp in assignment.partitions - held.keys() if tp.topic in topics}
    for topic, numbers in by_topic(fresh).items():
        loads = [0] * topics[topic]
        for tp, thread in held.items():
            if tp.topic == topic and thread.stream < len(loads):
                loads[thread.stream] += 1
        if not any(loads):
            share, extra = divmod(len(numbers), len(loads))
            runs = [n for n in range(len(loads)) for _ in range(share + (n < extra))]
        else:
            runs = []
            for _ in numbers:
                runs.append(loads.index(min(loads)))
                loads[runs[-1]] += 1
        for number, run in zip(numbers, runs, strict=True):
            tp = TopicPartition(topic, number)
            stream = said.get(tp, run)
            given[tp] = ConsumerThreadId(consumer_id, stream if stream < topics[topic] else run)
    return given


def topics_of(member: GroupMember) -> tuple[str, ...]:
    """Return the topics to which a member subscribes; empty if its metadata cannot be decoded."""
    try:
        return decode_subscription(member.metadata).topics
    except ValueError:
        return ()


def _order(member: GroupMember) -> tuple[bool, str, str]:
    """Return the sort key: static members by instance id, then the others by member id."""
    return (member.instance_id is None, member.instance_id or "", member.member_id)


def _members_by_topic(members: Sequence[GroupMember]) -> dict[str, list[str]]:
    members_of: dict[str, list[str]] = {}
    for member in sorted(members, key=_order):
        for topic in dict.fromkeys(topics_of(member)):
            members_of.setdefault(topic, []).append(member.member_id)
    return members_of


def _encoded(given: Mapping[str, set[TopicPartition]]) -> dict[str, bytes]:
    return {
        member_id: encode_assignment(AssignmentData(frozenset(partitions)))
        for member_id, partitions in given.items()
    }


_UNREADABLE: Final = (ValueError, KeyError, TypeError, OverflowError, RecursionError)
"""Errors that user data of other clients can cause, including infinite numbers and unlimited
nesting."""


def _streams_of(member: GroupMember) -> tuple[str, dict[str, int]]:
    """Return consumer id and streams of a member; one stream for each topic if it does not report
    them."""
    try:
        data = decode_subscription(member.metadata)
    except ValueError:
        return member.member_id, {}
    try:
        user_data = json.loads(data.user_data)
        streams = {str(topic): int(n) for topic, n in user_data["streams"].items()}
        if all(1 <= n <= 1000 for n in streams.values()):
            return str(user_data["consumer"]), streams
    except (*_UNREADABLE, AttributeError):
        pass
    return member.member_id, dict.fromkeys(data.topics, 1)


def _said_streams(user_data: bytes) -> dict[TopicPartition, int]:
    try:
        rows = json.loads(user_data)["streams"]
        return {
            TopicPartition(str(topic), int(number)): int(stream)
            for topic, number, stream in rows
            if int(stream) >= 0
        }
    except _UNREADABLE:
        return {}


@dataclass(frozen=True, slots=True)
class JoinOffer:
    """The strategies that a member offers, in order of preference.

    ``kept_out``: the member's report if the coordinator refuses the offer, because other members
    support none of these strategies. The member then retries until it can join. Without this text,
    the refusal is final.
    """

    strategies: tuple[Strategy, ...]
    kept_out: str = ""

    @property
    def cooperative(self) -> bool:
        """Whether the member keeps its partitions while it joins, because all strategies support
        that."""
        return all(strategy.cooperative for strategy in self.strategies)

    def strategy(self, name: str) -> Strategy | None:
        """Return the strategy with this name; ``None`` if it is not offered."""
        return next((strategy for strategy in self.strategies if strategy.name == name), None)


@dataclass(frozen=True, slots=True)
class OfferChanged:
    """The offer has changed. The member rejoins the group with ``offer`` (classic protocol)."""

    offer: JoinOffer
