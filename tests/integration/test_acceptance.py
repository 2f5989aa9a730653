"""The behaviour of streams that programs rely on, the same with both kinds of ownership.

Each test runs with both connectors. The programs differ only in the class name.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest

from tests.support.groups import Producer, Reader, delivered_once
from tests.support.members import started
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.core.common.topic_filter import Blacklist, Whitelist
from zkconsumer.core.common.types import ConsumerThreadId, TopicPartition
from zkconsumer.errors import (
    CommitFailedError,
    ConfigError,
    ConnectorClosedError,
    ConsumerTimeoutError,
    StreamsAlreadyCreatedError,
    UsageError,
)
from zkconsumer.servers import LocalCluster, wait_until

Connector: TypeAlias = ZookeeperConsumerConnector | CoordinatorConsumerConnector
Make: TypeAlias = Callable[..., Connector]

pytestmark = pytest.mark.filterwarnings("ignore:bootstrap.servers is not a known key")


@pytest.fixture(params=[ZookeeperConsumerConnector, CoordinatorConsumerConnector])
def make(request: pytest.FixtureRequest, cluster: LocalCluster, group: str) -> Iterator[Make]:
    """Creates members of one group with one configuration for both. They are shut down after the
    test."""
    config: dict[str, object] = {
        "zookeeper.connect": cluster.zookeeper,
        "bootstrap.servers": cluster.bootstrap,
        "group.id": group,
        "zookeeper.session.timeout.ms": 10_000,
        "auto.offset.reset": "smallest",
        "auto.commit.interval.ms": 200,
        "rebalance.backoff.ms": 200,
        "rebalance.max.retries": 20,
        "refresh.leader.backoff.ms": 50,
        "zkconsumer.reread.interval.ms": 500,
    }
    if request.param is CoordinatorConsumerConnector:
        config["heartbeat.interval.ms"] = 200
    with started(request.param, config) as start:
        yield start


def test_streams_of_a_topic(cluster: LocalCluster, make: Make, topic: str) -> None:
    """Each of several streams delivers its own partitions in order, and everything is delivered
    once."""
    cluster.create_topic(topic, 4)
    with Producer(cluster.bootstrap, topic, range(4)) as producer:
        producer.send(40)
    streams = make().create_message_streams({topic: 2})[topic]
    readers = [Reader([stream]) for stream in streams]
    for index, reader in enumerate(readers):
        reader.wait(20)
        for partition in (2 * index, 2 * index + 1):
            assert reader.offsets(partition) == list(range(10))
        assert len(reader.deliveries) == 20


def test_several_topics(cluster: LocalCluster, make: Make, unique: str) -> None:
    """Each topic has its own streams. If it has more streams than partitions, some are idle."""
    wide, narrow = f"{unique}-wide", f"{unique}-narrow"
    for name, count in ((wide, 3), (narrow, 1)):
        cluster.create_topic(name, count)
        with Producer(cluster.bootstrap, name, range(count)) as producer:
            producer.send(6)
    streams = make().create_message_streams({wide: 2, narrow: 3})
    readers = {name: [Reader([stream]) for stream in found] for name, found in streams.items()}
    for name, counts in ((wide, [4, 2]), (narrow, [6, 0, 0])):
        assert len(readers[name]) == len(counts)
        for reader, count in zip(readers[name], counts, strict=True):
            reader.wait(count)
        assert [len(reader.deliveries) for reader in readers[name]] == counts
        assert {found.topic for reader in readers[name] for found in reader.deliveries} == {name}


@pytest.mark.parametrize("kind", [Whitelist, Blacklist])
def test_filters(cluster: LocalCluster, make: Make, unique: str, kind: type) -> None:
    """A filter includes existing topics and topics that are created later."""
    first, second = f"{unique}-f1", f"{unique}-f2"
    cluster.create_topic(first, 1)
    cluster.create_topic(f"{unique}-x", 1)
    raw = f"{unique}-f.*"
    chosen = kind(raw) if kind is Whitelist else kind(f"(?!{raw}).*")
    reader = Reader(make().create_message_streams_by_filter(chosen, 1))
    cluster.create_topic(second, 1)
    for name in (first, second):
        with Producer(cluster.bootstrap, name, (0,)) as producer:
            producer.send(3)
    reader.wait(6)
    assert {found.topic for found in reader.deliveries} == {first, second}


def test_members_share_and_take_over(cluster: LocalCluster, make: Make, topic: str) -> None:
    """A second member takes its share and gives it back when it leaves. Nothing is lost or
    repeated."""
    cluster.create_topic(topic, 4)
    with Producer(cluster.bootstrap, topic, range(4), interval=0.002) as producer:
        first, second = make(), make()
        readers = [Reader(first.create_message_streams({topic: 1})[topic])]
        readers.append(Reader(second.create_message_streams({topic: 1})[topic]))
        for member in (first, second):
            wait_until(lambda m=member: m.metrics().owned_partitions == 2, 15, "equal shares")
        readers[1].wait(50)
        second.shutdown()
        wait_until(
            lambda: first.metrics().owned_partitions == 4, 15, "the first member owns everything"
        )
        delivered_once(producer, readers)


def test_commits_by_hand(cluster: LocalCluster, make: Make, topic: str) -> None:
    """Without automatic commits the next owner starts at the offset given to ``commit_offsets`` or
    ``commit_offsets_async``. A partition that is not owned and an invalid offset are refused."""
    cluster.create_topic(topic, 1)
    with Producer(cluster.bootstrap, topic, (0,)) as producer:
        producer.send(10)
    settings = {"auto_commit_enable": "false", "consumer_timeout_ms": 8000}
    member = make(**settings)
    with pytest.raises(UsageError):
        member.commit_offsets()
    iterator = iter(member.create_message_streams({topic: 1})[topic][0])
    assert [next(iterator).offset for _ in range(4)] == [0, 1, 2, 3]
    member.commit_offsets()
    with pytest.raises(CommitFailedError, match="nowhere-3"):
        member.commit_offsets({TopicPartition("nowhere", 3): 1})
    with pytest.raises(ConfigError):
        member.commit_offsets({TopicPartition(topic, 0): -1})
    member.shutdown()
    member = make(**settings)
    iterator = iter(member.create_message_streams({topic: 1})[topic][0])
    assert next(iterator).offset == 3
    member.commit_offsets({TopicPartition(topic, 0): 5})
    told: list[CommitFailedError | None] = []
    member.commit_offsets_async({TopicPartition(topic, 0): 7}, told.append)
    wait_until(lambda: told == [None], 10, "the callback is called")
    member.shutdown()
    member = make(**settings)
    assert next(iter(member.create_message_streams({topic: 1})[topic][0])).offset == 7


def test_the_iterator_times_out_and_goes_on(cluster: LocalCluster, make: Make, topic: str) -> None:
    """``consumer.timeout.ms`` raises an error, and the stream can be used afterwards."""
    cluster.create_topic(topic, 1)
    iterator = iter(make(consumer_timeout_ms=200).create_message_streams({topic: 1})[topic][0])
    begun = time.monotonic()
    with pytest.raises(ConsumerTimeoutError):
        next(iterator)
    assert 0.15 < time.monotonic() - begun < 20
    with Producer(cluster.bootstrap, topic, (0,)) as producer:
        producer.send(1)

    def got() -> bool:
        try:
            return next(iterator).offset == 0
        except ConsumerTimeoutError:
            return False

    wait_until(got, 10, "the message arrives")


def test_listener(cluster: LocalCluster, make: Make, topic: str) -> None:
    """The listener is called with the owners before fetching starts. It is called before partitions
    are released, and may commit then. Shutting the member down is not a release."""
    cluster.create_topic(topic, 4)
    released: list[dict[str, frozenset[int]]] = []
    started: list[dict[int, int]] = []
    member = make(auto_commit_enable="false")

    class Listener:
        def before_releasing_partitions(self, partitions: dict[str, frozenset[int]]) -> None:
            if partitions:
                released.append(partitions)
                for number in partitions[topic]:
                    member.commit_offsets({TopicPartition(topic, number): 2})

        def before_starting_fetchers(
            self, consumer_id: str, assignment: dict[str, dict[int, ConsumerThreadId]]
        ) -> None:
            mine = assignment.get(topic, {}).items()
            started.append({number: of.stream for number, of in mine if of.consumer == consumer_id})

    member.set_consumer_rebalance_listener(Listener())
    member.create_message_streams({topic: 2})
    assert started == [{0: 0, 1: 0, 2: 1, 3: 1}]
    with Producer(cluster.bootstrap, topic, range(4)) as producer:
        producer.send(20)
    second = make(consumer_timeout_ms=10_000)
    streams = second.create_message_streams({topic: 2})[topic]
    for each in (member, second):
        wait_until(lambda m=each: m.metrics().owned_partitions == 2, 15, "equal shares")
    assert len(released[0][topic]) >= 2
    reader = Reader(streams)
    assert reader.wait(2)[0].offset == 2, "the listener's commit counts"
    count = len(released)
    member.shutdown()
    assert len(released) == count


def test_decoders(cluster: LocalCluster, make: Make, topic: str) -> None:
    """Keys and values that are not null go through the given decoders."""
    cluster.create_topic(topic, 1)
    with Producer(cluster.bootstrap, topic, (0,)) as producer:
        (sent,) = producer.send(1)
    streams = make().create_message_streams({topic: 1}, bytes.decode, bytes.decode)
    message = next(iter(streams[topic][0]))
    assert (message.key, message.value) == (None, sent.decode())


def test_metrics(cluster: LocalCluster, make: Make, topic: str) -> None:
    """Both connectors count the same things under the same metric names."""
    cluster.create_topic(topic, 2)
    with Producer(cluster.bootstrap, topic, range(2)) as producer:
        producer.send(10)
    member = make()
    reader = Reader(member.create_message_streams({topic: 1})[topic])
    reader.wait(10)
    metrics = member.metrics()
    assert (metrics.messages, metrics.owned_partitions, metrics.rebalances) == (10, 2, 1)
    wait_until(lambda: member.metrics().lag == dict.fromkeys(metrics.lag, 0), 10, "lag is 0")
    member.shutdown()
    assert member.metrics().state == "CLOSED"


def test_wrong_use(cluster: LocalCluster, make: Make, topic: str) -> None:
    """Streams can be created only once, a connector cannot be used after its shutdown, and invalid
    counts are refused."""
    cluster.create_topic(topic, 1)
    member = make()
    with pytest.raises(ConfigError):
        member.create_message_streams({topic: 0})
    stream = member.create_message_streams({topic: 1})[topic][0]
    with pytest.raises(StreamsAlreadyCreatedError):
        member.create_message_streams({topic: 1})
    ended = threading.Event()
    threading.Thread(target=lambda: (list(stream), ended.set()), daemon=True).start()
    member.shutdown()
    member.shutdown()
    assert ended.wait(20), "iteration ends at shutdown"
    with pytest.raises(ConnectorClosedError):
        member.commit_offsets()
