"""A real broker returns each error code of the table, and the member reacts as documented.

NOT_COORDINATOR and COORDINATOR_LOAD_IN_PROGRESS need a second broker. ``tests/faults`` covers them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    KafkaAdminClient,
    ResourcePattern,
    ResourceType,
)

from tests.support.groups import Producer, Reader
from tests.support.members import quick
from zkconsumer.broker.groups.classic_client import GroupClient
from zkconsumer.broker.known_brokers import KnownBrokers
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.core.groups import commands, events
from zkconsumer.errors import BrokerError, CommitFailedError
from zkconsumer.servers import LocalCluster, wait_until


class Listened(CoordinatorConsumerConnector):
    """A member that records the error code of each response."""

    def __init__(self, config: dict[str, object]) -> None:
        self.seen: list[tuple[str, int]] = []
        super().__init__(config, on_exchange=self._note)

    def _note(self, _broker: object, request: Any, answer: Any) -> None:
        name = type(request).__name__.removesuffix("Request")
        codes = {getattr(answer, "error_code", 0)}
        if name in ("OffsetCommit", "OffsetFetch"):
            codes |= {part.error_code for topic in answer.topics for part in topic.partitions}
        self.seen += [(name, code) for code in codes if code]

    @property
    def machine(self) -> Any:
        """The member's state machine."""
        assert self._loop is not None
        return self._loop.machine


Make = Callable[..., Listened]


@pytest.fixture(scope="module")
def guarded() -> Iterator[LocalCluster]:
    """A broker that checks ACLs. It has not had any request about a group yet."""
    properties = {
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with LocalCluster("3.9", properties=properties) as running:
        yield running


@pytest.fixture(scope="module")
def first_ever(guarded: LocalCluster) -> list[tuple[str, int]]:
    """The error codes that the first member of a new cluster gets."""
    with Listened(quick(guarded, "first-ever")) as member:
        member.create_message_streams({"none": 1})
        assert member.metrics().state == "STABLE"
    return member.seen


@pytest.fixture
def make(guarded: LocalCluster, first_ever: object, group: str) -> Iterator[Make]:
    """Creates members of the test's group. They are shut down after the test."""
    made: list[Listened] = []

    def one(**more: object) -> Listened:
        made.append(Listened(quick(guarded, group, **more)))
        return made[-1]

    yield one
    for member in made:
        member.shutdown()


@pytest.fixture
def outsider(guarded: LocalCluster, group: str) -> Iterator[GroupClient]:
    """Sends single requests about the test's group."""
    host, _, port = guarded.bootstrap.rpartition(":")
    broker = BrokerEndpoint(0, host, int(port))
    client = GroupClient(
        group,
        "outsider",
        None,
        KnownBrokers(lambda: [broker], lambda _: 0),
        session_timeout=10,
        rebalance_timeout=10,
        timeout=10,
    )
    client.coordinator = broker
    yield client
    client.close()


def test_15_no_coordinator_yet(first_ever: list[tuple[str, int]]) -> None:
    """FindCoordinator before ``__consumer_offsets`` exists: the member retries until there is a
    coordinator."""
    assert ("FindCoordinator", 15) in first_ever


def test_79_an_id_is_handed_out(make: Make, topic: str) -> None:
    """The response to the first JoinGroup has an id. With this id the second JoinGroup succeeds."""
    member = make()
    member.create_message_streams({topic: 1})
    assert member.seen == [("JoinGroup", 79)]
    assert member.machine.member_id


def test_27_others_come(guarded: LocalCluster, make: Make, topic: str) -> None:
    """A heartbeat response says that the group rebalances. The member rejoins with its id."""
    guarded.create_topic(topic, 2)
    member = make()
    member.create_message_streams({topic: 1})
    before = member.machine.member_id
    make().create_message_streams({topic: 1})
    wait_until(lambda: len(member.machine.held) == 1, 20, "the partitions are shared")
    assert ("Heartbeat", 27) in member.seen
    assert member.machine.member_id == before


@pytest.mark.parametrize("code", [22, 25])
def test_the_group_went_on(
    guarded: LocalCluster, make: Make, outsider: GroupClient, topic: str, code: int
) -> None:
    """After ILLEGAL_GENERATION (22) or UNKNOWN_MEMBER_ID (25) the member drops its partitions, and
    the listener gets ``lost``. Nothing from that time is stored. The member rejoins, after code 25
    as a new one, and continues at the last commit."""
    guarded.create_topic(topic, 1)
    tp = TopicPartition(topic, 0)
    lost: list[frozenset[TopicPartition]] = []

    class Listener:
        def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
            lost.append(partitions)

    with Producer(guarded.bootstrap, topic, (0,)) as producer:
        producer.send(20)
        member = make(auto_commit_enable="false")
        member.set_consumer_rebalance_listener(Listener())
        reader = Reader(member.create_message_streams({topic: 1})[topic])
        reader.wait(20)
        member.commit_offsets({tp: 7})
        machine = member.machine
        former, generation = machine.member_id, machine.generation
        if code == 25:
            assert isinstance(outsider.execute(commands.LeaveGroup(1, former)), events.Left)
        else:  # a response of the older generation is still in flight
            machine.generation -= 1
        wait_until(lambda: ("Heartbeat", code) in member.seen, 20, f"code {code}")
        wait_until(lambda: set(machine.held) == {tp} and lost, 20, "it is a member again")
        assert lost == [frozenset({tp})]
        assert (machine.member_id == former) is (code == 22)
        reader.wait(20 + 13)
        assert [found.offset for found in reader.deliveries[20:]] == list(range(7, 20))
        stale = commands.CommitOffsets(2, former, generation - (code == 22), {tp: 19})
        assert outsider.execute(stale) == events.OffsetsCommitted(2, {tp: code})
        fetched = outsider.execute(commands.FetchOffsets(3, frozenset({tp})))
        assert fetched == events.OffsetsFetched(3, {tp: 7})


def test_30_not_allowed(guarded: LocalCluster, make: Make, group: str, topic: str) -> None:
    """A member that loses access to its group ends with the error. Its commits are refused, then
    its streams end. A member that never had access gets the error at once."""
    guarded.create_topic(topic, 1)
    member = make(auto_commit_enable="false")
    iterator = iter(member.create_message_streams({topic: 1})[topic][0])
    rule = ACL(
        "User:ANONYMOUS",
        "*",
        ACLOperation.ALL,
        ACLPermissionType.DENY,
        ResourcePattern(ResourceType.GROUP, group),
    )
    admin = KafkaAdminClient(bootstrap_servers=guarded.bootstrap)
    admin.create_acls([rule])
    with pytest.raises(BrokerError, match="30"):
        next(iterator)
    assert ("Heartbeat", 30) in member.seen
    assert member.machine.held == {}
    with pytest.raises(CommitFailedError, match="failed"):
        member.commit_offsets({TopicPartition(topic, 0): 1})
    with pytest.raises(BrokerError, match="30"):
        make().create_message_streams({topic: 1})
    admin.close()


def test_82_the_same_instance_id_twice(guarded: LocalCluster, make: Make, topic: str) -> None:
    """Two processes use one ``group.instance.id``. The older one ends with the error, and its
    commits are refused. The newer one owns the partitions."""
    guarded.create_topic(topic, 1)
    elder, younger = (make(group_instance_id="one", auto_commit_enable="false") for _ in range(2))
    iterator = iter(elder.create_message_streams({topic: 1})[topic][0])
    younger.create_message_streams({topic: 1})
    with pytest.raises(BrokerError, match="82"):
        next(iterator)
    assert 82 in {code for _, code in elder.seen}
    assert elder.machine.held == {}
    with pytest.raises(CommitFailedError):
        elder.commit_offsets({TopicPartition(topic, 0): 1})
    wait_until(lambda: len(younger.machine.held) == 1, 20, "the newer process owns it")
