"""Members on the broker's coordinator, on a real broker of 3.9."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from tests.support.groups import Producer, Reader, delivered_once
from tests.support.members import held, quick, share, started
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.servers import LocalCluster, wait_until

Make = Callable[..., CoordinatorConsumerConnector]


@pytest.fixture
def config(cluster: LocalCluster, group: str) -> dict[str, object]:
    """Settings of a member that reads from the beginning and reacts quickly."""
    return quick(cluster, group, refresh_leader_backoff_ms=50, metadata_max_age_ms=300)


@pytest.fixture
def make(config: dict[str, object]) -> Iterator[Make]:
    """Creates members that are shut down after the test."""
    with started(CoordinatorConsumerConnector, config) as start:
        yield start


def test_one_member_reads_and_goes_on(cluster: LocalCluster, make: Make, topic: str) -> None:
    """A member reads everything once. The next member continues where it stopped."""
    cluster.create_topic(topic, 3)
    with Producer(cluster.bootstrap, topic, range(3)) as producer:
        producer.send(30)
        member = make()
        reader = Reader(member.create_message_streams({topic: 1})[topic])
        reader.wait(30)
        assert member.metrics().owned_partitions == 3
        assert member._plane is not None
        host, port = cluster.broker_servers[0].address.split(":")
        load = member._plane._manager.requests_to
        assert load(BrokerEndpoint(-1, host, int(port))) == 1, "one fetcher reads from the broker"
        assert load(BrokerEndpoint(0, host, int(port) + 1)) == 0
        member.shutdown()
        assert member.metrics().kafka_commits >= 3
        producer.send(6)
        after = Reader(make().create_message_streams({topic: 2})[topic])
        after.wait(6)
        assert sorted(found.offset for found in after.deliveries) == [10, 10, 10, 11, 11, 11]


@pytest.mark.parametrize(
    "strategy",
    ["cooperative-sticky", "legacy-range", "legacy-roundrobin"],
)
def test_two_members_share(cluster: LocalCluster, make: Make, topic: str, strategy: str) -> None:
    """The members share partitions when the second one joins. The first gets them back when the
    second leaves. Each message is delivered once, because offsets are committed before each
    move. Groups with other clients (``test_coordinator_mixed``) have the other strategies."""
    cluster.create_topic(topic, 6)
    settings = {"partition_assignment_strategy": strategy}
    with Producer(cluster.bootstrap, topic, range(6), interval=0.002) as producer:
        first = make(**settings)
        readers = [Reader(first.create_message_streams({topic: 2})[topic])]
        second = make(**settings)
        readers.append(Reader(second.create_message_streams({topic: 1})[topic]))
        wait_until(lambda: share([first, second], 6), 10, "both have their share")
        wait_until(lambda: len(readers[1].deliveries) > 50, 10, "the second member reads")
        if not strategy.startswith("legacy"):
            assert len(held(second)) == 3
        else:
            assert len(held(first)) == 4, "the first member has two of three streams"
        second.shutdown()
        wait_until(lambda: len(held(first)) == 6, 10, "the first member owns everything again")
        delivered_once(producer, readers)


def test_a_listener_that_shuts_the_member_down(
    cluster: LocalCluster, make: Make, topic: str
) -> None:
    """The member leaves the group cleanly and at once. The other member has everything long before
    the session timeout of the member that left."""
    cluster.create_topic(topic, 4)
    slow = {"session_timeout_ms": 60_000}
    first, second = make(**slow), make(**slow)
    ended = threading.Event()

    class Listener:
        def on_partitions_revoked(self, _partitions: object) -> None:
            first.shutdown()
            ended.set()

    first.set_consumer_rebalance_listener(Listener())
    first.create_message_streams({topic: 1})
    second.create_message_streams({topic: 1})
    assert ended.wait(20)
    wait_until(lambda: len(held(second)) == 4, 20, "the other member has everything")


def test_listener(cluster: LocalCluster, make: Make, topic: str) -> None:
    """The listener is called with assigned and revoked partitions under both kinds of names."""
    cluster.create_topic(topic, 2)
    told: list[tuple[str, object]] = []

    class Listener:
        def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
            told.append(("assigned", set(partitions)))

        def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
            told.append(("revoked", set(partitions)))

        def before_releasing_partitions(self, partitions: dict[str, frozenset[int]]) -> None:
            told.append(("releasing", dict(partitions)))

    member = make()
    member.set_consumer_rebalance_listener(Listener())
    member.create_message_streams({topic: 1})
    both = {TopicPartition(topic, 0), TopicPartition(topic, 1)}
    assert told == [("assigned", both)]
    second = make()
    second.create_message_streams({topic: 1})
    wait_until(lambda: share([member, second], 2), 10, "both have a share")
    assert told[1:3] == [("releasing", {topic: frozenset({0, 1})}), ("revoked", both)]
    member.shutdown()
    assert told[-1] == ("revoked", told[-2][1]), "the legacy call is not for the end"


def test_the_slow_one_leaves_and_comes_back(cluster: LocalCluster, make: Make, topic: str) -> None:
    """A member whose application works on one message beyond max.poll.interval.ms leaves. Other
    members get its partitions. It rejoins when the application requests the next message."""
    cluster.create_topic(topic, 2)
    with Producer(cluster.bootstrap, topic, (0, 1)) as producer:
        producer.send(10)
    slow = make(max_poll_interval_ms=1500)
    (stream,) = slow.create_message_streams({topic: 1})[topic]
    iterator = iter(stream)
    next(iterator)
    other = make()
    other.create_message_streams({topic: 1})
    wait_until(lambda: len(held(other)) == 2, 15, "the other member gets everything")
    wait_until(lambda: slow.metrics().state == "OUTSIDE", 10, "the slow member has left")
    stream.mark_consumed()
    wait_until(lambda: share([slow, other], 2), 10, "both have a share")


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
def test_partitions_are_added(cluster: LocalCluster, make: Make, topic: str, static: bool) -> None:
    """Added partitions are assigned and read from the beginning. This also holds if the leader is a
    static member that was restarted and does not know that it leads."""
    cluster.create_topic(topic, 2)
    settings = [{"group_instance_id": name if static else None} for name in ("a", "b")]
    first, second = (make(**more) for more in settings)
    readers = [Reader(one.create_message_streams({topic: 1})[topic]) for one in (first, second)]
    wait_until(lambda: share([first, second], 2), 20, "both have a share")
    if static:
        first.shutdown()
        first = make(**settings[0])
        readers[0] = Reader(first.create_message_streams({topic: 1})[topic])
    cluster.add_partitions(topic, 4)
    wait_until(lambda: share([first, second], 4), 20, "the new partitions are assigned")
    with Producer(cluster.bootstrap, topic, (2, 3)) as producer:
        producer.send(10)
    wait_until(
        lambda: sum(len(reader.deliveries) for reader in readers) == 10, 20, "everything is read"
    )
