"""Requests of the consumer group protocol (KIP-848), sent by hand to a broker of Kafka 4."""

from __future__ import annotations

import uuid
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import pytest

from tests.support.specs import kip848_spec
from zkconsumer.broker.cluster_reader import read_cluster
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.groups.classic_client import GroupClient
from zkconsumer.broker.groups.coordinator_calls import search_coordinator
from zkconsumer.broker.groups.kip848_client import (
    LEAVE,
    LEAVE_STATIC,
    ConsumerGroupClient,
    Partitions,
)
from zkconsumer.broker.known_brokers import KnownBrokers
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.types import BrokerEndpoint, Pattern, Subscription, TopicPartition
from zkconsumer.core.groups import commands, events
from zkconsumer.core.groups.assignors.strategies import (
    LegacyStrategy,
    MemberState,
    RangeStrategy,
    Strategy,
)
from zkconsumer.core.groups.kip848_commands import FetchMemberOffsets, MemberHeartbeat
from zkconsumer.servers import LocalCluster, wait_until

JOIN: Final = 0
"""Epoch of a member that joins."""


@pytest.fixture
def broker(kraft: LocalCluster, unique: str) -> Iterator[BrokerConnection]:
    """A connection to the only broker, which is the coordinator of the group ``unique``."""
    host, port = kraft.bootstrap.split(":")
    connection = BrokerConnection(BrokerEndpoint(0, host, int(port)), "tests", 10.0, 0)

    def found() -> bool:
        at = [connection.endpoint]
        return search_coordinator(unique, at, lambda _: connection).coordinator is not None

    wait_until(found, 30, "a coordinator")
    yield connection
    connection.close()


def topic_id(broker: BrokerConnection, topic: str) -> str:
    """The id of the topic in heartbeats."""
    text = read_cluster(broker).topics[topic].topic_id
    return str(uuid.UUID(bytes=urlsafe_b64decode(text + "==")))


LOADING = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


class Member:
    """Sends heartbeats by hand and stores the coordinator's last response. The group has the name
    of its topic."""

    def __init__(
        self,
        broker: BrokerConnection,
        group: str,
        instance: str | None = None,
        assignor: str | None = None,
    ) -> None:
        self.id, self.epoch = str(uuid.uuid4()), JOIN
        spec = kip848_spec(
            group=group,
            member_id=self.id,
            instance_id=instance,
            subscription=Subscription(Pattern.STATIC, {group: 1}),
            assignor=assignor,
        )
        at = broker.endpoint
        known = KnownBrokers(lambda: (at,), lambda _: 0)
        self._client = ConsumerGroupClient(spec, "tests", known, timeout=10.0)
        self._client.coordinator = at
        self.assigned: Partitions = {}

    def ask(self, epoch: int, owned: Partitions | None, full: bool = False) -> Any:
        """Send one heartbeat, again while the broker still loads the group."""

        def sent() -> Any:
            command = MemberHeartbeat(0, self.id, epoch, full, owned)
            answer = self._client.execute(command)
            return None if answer.code in LOADING else answer

        return wait_until(sent, 10, "the coordinator has loaded the group")

    def beat(
        self, epoch: int | None = None, owned: Partitions | None = None, full: bool = False
    ) -> Any:
        """Send one heartbeat. An accepted one updates epoch and assignment."""
        answer = self.ask(self.epoch if epoch is None else epoch, owned, full)
        if not answer.code:
            self.epoch = answer.epoch
            self.assigned = self.assigned if answer.assignment is None else answer.assignment
        return answer

    def commit(
        self, epoch: int, offsets: Mapping[TopicPartition, int], name: str | None = None
    ) -> dict[TopicPartition, int]:
        """Commit with this epoch, as this member or the one of that ``name``; return the codes."""
        answer = self._client.execute(commands.CommitOffsets(0, name or self.id, epoch, offsets))
        return dict(answer.codes)

    def fetch(self, epoch: int, partitions: Iterable[TopicPartition]) -> Any:
        """Read committed offsets with this epoch."""
        return self._client.execute(FetchMemberOffsets(0, self.id, epoch, frozenset(partitions)))

    def beat_until(self, arrived: Callable[[], bool]) -> None:
        """Send heartbeats, which must be accepted, until the assignment is the expected one."""

        def beaten() -> bool:
            answer = self.beat()
            assert not answer.code, answer
            return arrived()

        wait_until(beaten, 10, f"another assignment than {self.assigned}")

    def join(self) -> Any:
        """Join with no partitions."""
        return self.beat(JOIN, {}, full=True)


def owns_one(member: Member) -> bool:
    """Return whether a member is assigned exactly one partition."""
    return [len(partitions) for partitions in member.assigned.values()] == [1]


def test_a_member_joins_hands_over_and_leaves(
    kraft: LocalCluster, broker: BrokerConnection, unique: str
) -> None:
    """The second member gets a partition only after the first one has acknowledged its
    revocation."""
    kraft.create_topic(unique, partitions=2)
    topic = topic_id(broker, unique)
    first, second = (Member(broker, unique, assignor="range") for _ in range(2))
    answer = first.join()
    assert not answer.code, answer
    assert answer.interval > 0
    first.beat_until(lambda: first.assigned == {topic: (0, 1)})
    first.beat(owned=first.assigned)

    both = [TopicPartition(unique, 0), TopicPartition(unique, 1)]
    assert set(first.commit(first.epoch, dict.fromkeys(both, 7)).values()) == {0}
    assert second.join().code == 0
    first.beat_until(lambda: len(first.assigned.get(topic, ())) == 1)
    second.beat()
    assert second.assigned == {}, "given before its owner acknowledged"
    old = first.epoch
    first.beat(owned=first.assigned)
    assert first.epoch > old
    second.beat_until(lambda: second.assigned != {})
    second.beat(owned=second.assigned)
    assert sorted(first.assigned[topic] + second.assigned[topic]) == [0, 1]

    kept = TopicPartition(unique, first.assigned[topic][0])
    gone = TopicPartition(unique, second.assigned[topic][0])
    stale = ErrorCode.STALE_MEMBER_EPOCH
    together = first.commit(old, dict.fromkeys(both, 8))
    assert together == dict.fromkeys(both, stale), "one refused partition refuses all"
    for tp, code in ((gone, stale), (kept, 0)):
        assert first.commit(old, {tp: 8}) == {tp: code}, f"kept {kept}, gone {gone}"
    assert second.fetch(second.epoch - 1, both).code == ErrorCode.STALE_MEMBER_EPOCH
    assert second.fetch(second.epoch, both).offsets == {kept: 8, gone: 7}
    assert first.beat(first.epoch + 5).code == ErrorCode.FENCED_MEMBER_EPOCH

    assert first.beat(LEAVE).epoch == LEAVE
    assert first.beat(1).code == ErrorCode.UNKNOWN_MEMBER_ID
    second.beat_until(lambda: second.assigned == {topic: (0, 1)})
    assert second.beat(LEAVE).code == 0


def test_a_static_member_comes_back_to_its_partitions(
    kraft: LocalCluster, broker: BrokerConnection, unique: str
) -> None:
    """A static member that leaves with epoch -2 keeps its partitions. While it is in the group,
    another member with its instance id is refused."""
    kraft.create_topic(unique, partitions=2)
    before, after = Member(broker, unique, "one"), Member(broker, unique, "one")
    assert before.join().code == 0
    before.beat_until(lambda: before.assigned != {})
    assert after.join().code == ErrorCode.UNRELEASED_INSTANCE_ID
    assert before.beat(LEAVE_STATIC).epoch == LEAVE_STATIC
    assert after.join().code == 0
    assert after.assigned == before.assigned
    assert after.beat(LEAVE).code == 0


def test_after_a_lost_answer_a_member_says_again_what_it_owns(
    kraft: LocalCluster, broker: BrokerConnection, unique: str
) -> None:
    """The coordinator accepts the previous epoch only together with the partitions that the member
    still owns."""
    kraft.create_topic(unique, partitions=2)
    first, second = (Member(broker, unique, assignor="range") for _ in range(2))
    assert first.join().code == 0
    first.beat_until(lambda: first.assigned != {})
    everything = first.assigned
    joined = first.epoch
    assert first.join().code == 0
    assert (first.epoch, first.assigned) == (joined, everything), "joining twice is as once"
    first.beat(owned=everything)
    assert second.join().code == 0
    first.beat_until(lambda: first.assigned != everything)
    before = first.epoch
    first.beat(owned=first.assigned)
    assert first.epoch > before

    assert first.ask(before, None).code == ErrorCode.FENCED_MEMBER_EPOCH
    assert first.ask(before, everything).code == ErrorCode.FENCED_MEMBER_EPOCH
    accepted = first.ask(before, first.assigned)
    assert (accepted.code, accepted.epoch) == (0, first.epoch)
    kept = first.epoch, first.assigned
    assert first.join().code == 0
    assert (first.epoch, first.assigned) == kept, "a member that joins again has lost its place"
    assert (first.beat(LEAVE).code, second.beat(LEAVE).code) == (0, 0)
    assert first.beat(LEAVE).code == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_present_epoch_may_commit_any_partition(
    kraft: LocalCluster, broker: BrokerConnection, unique: str
) -> None:
    """The coordinator does not check who owns the partition, so the member must do so itself."""
    kraft.create_topic(unique, partitions=2)
    first, second = (Member(broker, unique, assignor="range") for _ in range(2))
    tp = TopicPartition(unique, 1)
    assert (first.join().code, second.join().code) == (0, 0)
    for member in (first, second):
        member.beat_until(lambda member=member: owns_one(member))  # type: ignore[misc]
        member.beat(owned=member.assigned)  # else the second one waits for the first one's end
        assert member.commit(member.epoch, {tp: 1}) == {tp: 0}
        for epoch in (-1, JOIN, member.epoch + 5):
            assert member.commit(epoch, {tp: 1}) == {tp: ErrorCode.STALE_MEMBER_EPOCH}
    unknown = {tp: ErrorCode.UNKNOWN_MEMBER_ID}
    assert first.commit(first.epoch, {tp: 1}, "another") == unknown
    assert (first.beat(LEAVE).code, second.beat(LEAVE).code) == (0, 0)


class ClassicMember:
    """A member of the classic protocol, whose requests are sent by hand."""

    def __init__(self, broker: BrokerConnection, group: str, topic: str) -> None:
        self.client = GroupClient(
            group,
            "tests",
            None,
            KnownBrokers(lambda: (broker.endpoint,), lambda _: 0),
            session_timeout=30.0,
            rebalance_timeout=30.0,
            timeout=10.0,
        )
        self.id, self.generation = "", -1
        state = MemberState("classic", {topic: 1}, frozenset(), -1)
        strategy = RangeStrategy()
        self.protocols = ((strategy.name, strategy.subscribe(state)),)
        self.client.execute(commands.FindCoordinator(0))

    def join(
        self,
        partitions: Mapping[str, int] | None = None,
        strategy: Strategy | None = None,
        given: bytes = b"",
    ) -> None:
        """Join or rejoin, and fetch the assignment.

        A leader assigns ``partitions`` by ``strategy``, or assigns ``given`` to itself.
        """
        answer = self.client.execute(commands.JoinGroup(0, self.id, self.protocols))
        if isinstance(answer, events.RequestFailed):
            assert answer.code == ErrorCode.MEMBER_ID_REQUIRED, answer
            self.id = answer.member_id
            answer = self.client.execute(commands.JoinGroup(0, self.id, self.protocols))
        assert isinstance(answer, events.Joined), answer
        self.generation = answer.generation
        assigned = {self.id: given} if given else {}
        if strategy is not None and partitions is not None:
            assigned = strategy.assign(answer.members, partitions)
        command = commands.SyncGroup(0, self.id, self.generation, assigned)
        assert isinstance(self.client.execute(command), events.Synced)

    def leave(self) -> None:
        """Leave the group, and end."""
        self.client.execute(commands.LeaveGroup(0, self.id))
        self.client.close()

    def beat(self) -> int:
        """The error code of a heartbeat."""
        answer = self.client.execute(commands.Heartbeat(0, self.id, self.generation))
        assert isinstance(answer, events.HeartbeatAnswered)
        return answer.code

    def commit(self, tp: TopicPartition) -> int:
        """The error code of a commit."""
        command = commands.CommitOffsets(0, self.id, self.generation, {tp: 1})
        answer = self.client.execute(command)
        assert isinstance(answer, events.OffsetsCommitted)
        return answer.codes[tp]


def test_a_classic_member_that_is_behind_is_fenced_when_the_group_turns_classic(
    kraft: LocalCluster, broker: BrokerConnection, unique: str
) -> None:
    """The classic group begins with the group epoch as its generation. A member with an older epoch
    cannot commit its delivered messages, but a member that has caught up can. If this fails, the
    broker was fixed. Then correct the page on the three kinds of coordination."""
    kraft.create_topic(unique, partitions=3)
    tp = TopicPartition(unique, 0)
    behind, last = (ClassicMember(broker, unique, unique) for _ in range(2))
    modern = Member(broker, unique)
    behind.join()
    assert modern.join().code == 0
    assert behind.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    behind.join()
    assert (behind.beat(), behind.commit(tp)) == (0, 0)
    last.join()
    assert behind.generation < last.generation
    assert behind.commit(tp) == 0, "its own epoch counts while the group is of both protocols"
    assert modern.beat(LEAVE).code == 0
    illegal = ErrorCode.ILLEGAL_GENERATION
    assert (behind.beat(), behind.commit(tp)) == (illegal, illegal)
    assert (last.beat(), last.commit(tp)) == (ErrorCode.REBALANCE_IN_PROGRESS, 0)
    for one in (behind, last):
        one.leave()


def test_a_group_with_an_assignor_of_its_own_is_not_converted(
    kraft: LocalCluster, broker: BrokerConnection, unique: str
) -> None:
    """The legacy strategies tell members which stream reads what: the broker calls that custom."""
    kraft.create_topic(unique, partitions=2)
    strategy = LegacyStrategy("legacy-range")
    state = MemberState("classic", {unique: 1}, frozenset(), -1)
    classic = ClassicMember(broker, unique, unique)
    classic.protocols = ((strategy.name, strategy.subscribe(state)),)
    classic.join({unique: 2}, strategy)
    answer = Member(broker, unique).join()
    assert answer.code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "custom assignor" in answer.detail
    assert classic.beat() == 0
    classic.leave()
