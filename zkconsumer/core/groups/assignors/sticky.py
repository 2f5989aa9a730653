"""The sticky strategies, based on kafka-python's algorithm: eager, and cooperative in two rounds.

Source of the algorithm: kafka-python's ``StickyAssignmentExecutor`` (KIP-54); of the two rounds:
KIP-429. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

from kafka.coordinator.assignors.sticky.sticky_assignor import (
    StickyAssignmentExecutor,
    StickyAssignorMemberMetadataV1,
)
from kafka.structs import TopicPartition as KafkaTopicPartition

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.groups.assignors.strategies import MemberState
from zkconsumer.core.groups.events import GroupMember
from zkconsumer.core.groups.formats.consumer_protocol import (
    AssignmentData,
    SubscriptionData,
    decode_sticky,
    decode_subscription,
    encode_assignment,
    encode_sticky,
    encode_subscription,
)


class _Name(str):
    """A topic or member in the form that the algorithm needs.

    The algorithm picks arbitrary elements of sets, so the hash must be the same in every process.
    """

    __slots__ = ()

    def __hash__(self) -> int:
        return crc32(self.encode(errors="surrogatepass"))

    def __deepcopy__(self, _: object) -> _Name:
        return self


class _Cluster:
    """The algorithm's input."""

    def __init__(self, partitions: Mapping[str, int]) -> None:
        self._partitions = {_Name(topic): count for topic, count in sorted(partitions.items())}

    def topics(self) -> list[_Name]:
        """Topics that exist."""
        return list(self._partitions)

    def partitions_for_topic(self, topic: _Name) -> set[int] | None:
        """Numbers of a topic's partitions."""
        count = self._partitions.get(topic)
        return None if count is None else set(range(count))


@dataclass(frozen=True, slots=True)
class StickyStrategy:
    """Leaves partitions with their owners if the shares remain even.

    ``cooperative``: a partition that moves has no owner after the first round. Its previous owner
    releases it and joins again, and the second round assigns it to the new owner.
    """

    cooperative: bool

    @property
    def name(self) -> str:
        """Name of the strategy in the protocol."""
        return "cooperative-sticky" if self.cooperative else "sticky"

    def subscribe(self, state: MemberState) -> bytes:
        """Implement ``Strategy.subscribe``."""
        topics = tuple(sorted(state.topics))
        if self.cooperative:
            generation = state.generation
            user_data = generation.to_bytes(4, "big", signed=True)
            data = SubscriptionData(topics, user_data, state.owned, generation, 2)
        else:
            owned = encode_sticky(*state.before) if state.before[0] else b""
            data = SubscriptionData(topics, owned)
        return encode_subscription(data)

    def assign(
        self, members: Sequence[GroupMember], partitions: Mapping[str, int]
    ) -> dict[str, bytes]:
        """Implement ``Strategy.assign``."""
        before = {_Name(member.member_id): _before(member, self.cooperative) for member in members}
        known = {name: list(state.partitions) for name, state in before.items()}
        wanted = {name: _wanted(state) for name, state in before.items()}
        executor = StickyAssignmentExecutor(_Cluster(partitions), wanted)
        executor.perform_initial_assignment()
        executor.balance()
        owner = {tp: name for name, owned in known.items() for tp in owned}
        given: dict[str, bytes] = {}
        for member_id in before:
            final = [
                KafkaTopicPartition(topic, number)
                for topic, numbers in executor.get_final_assignment(member_id)
                for number in numbers
            ]
            if self.cooperative:
                final = [tp for tp in final if owner.get(tp, member_id) == member_id]
            mine = frozenset(TopicPartition(str(tp.topic), tp.partition) for tp in final)
            given[str(member_id)] = encode_assignment(AssignmentData(mine))
        return given


def _wanted(member: StickyAssignorMemberMetadataV1) -> StickyAssignorMemberMetadataV1:
    """Return the members without topics to which they no longer subscribe, because these can make
    the algorithm fail with a KeyError."""
    kept = [tp for tp in member.partitions if tp.topic in member.subscription]
    return member._replace(partitions=kept)


def _before(member: GroupMember, cooperative: bool) -> StickyAssignorMemberMetadataV1:
    """Return a member's previous partitions. With the eager strategy they are in the user data, in
    any version."""
    owned: Iterable[TopicPartition] = ()
    generation, topics = -1, list[str]()
    try:
        data = decode_subscription(member.metadata)
        topics = list(data.topics)
        if cooperative:
            owned, generation = data.owned, data.generation
            if generation < 0 and len(data.user_data) == 4:
                generation = int.from_bytes(data.user_data, "big", signed=True)
        elif data.user_data:
            owned, generation = decode_sticky(data.user_data)
    except ValueError:
        pass  # it had nothing that anybody could read
    return StickyAssignorMemberMetadataV1(
        partitions=[KafkaTopicPartition(_Name(topic), number) for topic, number in sorted(owned)],
        generation=generation,
        subscription=[_Name(topic) for topic in topics],
    )
