"""Members on real servers: filters, several streams, mixed subscriptions, commits, listeners."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.support.groups import GroupWatch, Producer, Reader
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.core.common.assign import RoundRobinHash
from zkconsumer.core.common.topic_filter import Blacklist, Whitelist
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.view import Assignor, GroupView, decide
from zkconsumer.errors import (
    CommitFailedError,
    ConfigError,
    ConnectorClosedError,
    UsageError,
)
from zkconsumer.servers import LocalCluster, wait_until

# -- filters ------------------------------------------------------------------------------------


def test_filter_follows_topics(
    cluster: LocalCluster, watch: GroupWatch, config: dict[str, object], unique: str
) -> None:
    """A filter's streams deliver existing topics and topics created later, and release deleted
    ones. Each stream has its share of every topic."""
    first, second, other = f"{unique}-f1", f"{unique}-f2", f"{unique}-x"
    cluster.create_topic(first, 2)
    cluster.create_topic(other, 1)
    with ZookeeperConsumerConnector(config) as member:
        streams = member.create_message_streams_by_filter(Whitelist(f"{unique}-f.*"), 2)
        readers = [Reader([stream]) for stream in streams]
        with Producer(cluster.bootstrap, first, (0, 1)) as producer:
            producer.send(4)
        for reader in readers:
            reader.wait(2)
        cluster.create_topic(second, 2)
        watch.wait_owners(second, lambda found: len(found) == 2, 10, "the new topic is owned")
        with Producer(cluster.bootstrap, second, (0, 1)) as producer:
            producer.send(4)
        for index, reader in enumerate(readers):
            reader.wait(4)
            got = [(found.topic, found.partition) for found in reader.deliveries]
            assert got == [(first, index)] * 2 + [(second, index)] * 2
        cluster.delete_topic(first)
        watch.wait_owners(first, lambda found: not found, 10, "the deleted topic is let go")
        assert watch.owners(other) == {}
        with Producer(cluster.bootstrap, second, (0, 1)) as producer:
            producer.send(2)
        for reader in readers:
            reader.wait(5)
            assert not reader.errors


@pytest.fixture
def borrowed(cluster: LocalCluster, chroot: str, group: str) -> Iterator[GroupWatch]:
    """An empty chroot into which a test copies the registrations of the run's broker and topics
    with ``borrow``."""
    with GroupWatch(chroot, group) as watching:
        for path in ("/brokers/ids", "/brokers/topics"):
            watching.client.ensure_path(path)
        yield watching


def borrow(cluster: LocalCluster, watch: GroupWatch, path: str, to: str = "") -> None:
    """Copy a znode of the run's cluster into the chroot."""
    with GroupWatch(cluster.zookeeper, "any") as real:
        watch.client.create(to or path, real.client.get(path)[0])


def test_filters_leave_internal_topics_out(
    cluster: LocalCluster,
    borrowed: GroupWatch,
    chroot: str,
    config: dict[str, object],
    topic: str,
) -> None:
    """Neither kind of filter includes ``__consumer_offsets`` unless ``exclude.internal.topics`` is
    false."""
    cluster.create_topic(topic, 1)
    internal, path = "__consumer_offsets", f"/brokers/topics/{topic}"
    borrow(cluster, borrowed, "/brokers/ids/0")
    borrow(cluster, borrowed, path)
    borrow(cluster, borrowed, path, f"/brokers/topics/{internal}")
    settings = config | {"zookeeper.connect": chroot}
    for topic_filter in (Whitelist(".*"), Blacklist("nothing")):
        for exclude in ("true", "false"):
            changed = settings | {"exclude.internal.topics": exclude}
            with ZookeeperConsumerConnector(changed) as member:
                member.create_message_streams_by_filter(topic_filter)
                assert len(borrowed.owners(topic)) == 1
                assert len(borrowed.owners(internal)) == (exclude == "false")


# -- who owns what ------------------------------------------------------------------------------


def expected_owners(
    watch: GroupWatch,
    members: dict[str, dict[str, int]],
    topics: dict[str, int],
    assignor: Assignor,
) -> dict[str, dict[int, str]]:
    """The assignor's result for each topic, from plain input."""
    partitions = {topic: tuple(range(count)) for topic, count in topics.items()}
    view = GroupView(True, (), members, {}, partitions)
    owners: dict[str, dict[int, str]] = {topic: {} for topic in topics}
    for member in members:
        for tp, thread in decide(view, member, assignor).mine.items():
            assert tp.partition not in owners[tp.topic]
            owners[tp.topic][tp.partition] = str(thread)
    return {topic: dict(sorted(found.items())) for topic, found in owners.items()}


@pytest.mark.parametrize(
    "assignor",
    [
        Assignor("range"),
        Assignor("roundrobin", RoundRobinHash.DASH),
        Assignor("roundrobin", RoundRobinHash.BRACKETS),
    ],
    ids=lambda found: f"{found.name}-{found.hash_form.name.lower()}",
)
@pytest.mark.parametrize("case", ["equal", "unequal", "filters", "names"])
def test_owners_are_what_the_assignor_says(
    cluster: LocalCluster,
    watch: GroupWatch,
    config: dict[str, object],
    unique: str,
    assignor: Assignor,
    case: str,
) -> None:
    """On real servers, the owner znodes, with their thread ids, equal the assignor's result, in
    whatever order members joined. Streams deliver their own partitions."""
    one, two = f"{unique}-orders", f"{unique}-clicks"
    topics = {one: 4, two: 6}
    group = str(config["group.id"])
    shapes: dict[str, dict[str, dict[str, int]]] = {
        "equal": {"a": {one: 1, two: 1}, "b": {one: 1, two: 1}},
        "unequal": {"a": {one: 1, two: 1}, "b": {two: 2}},
        "filters": {"a": {one: 1, two: 1}, "b": {one: 2, two: 2}},
        "names": {"c": {one: 2}, "c-0": {one: 1}, "c-10": {two: 1}},
    }
    for name, count in topics.items():
        cluster.create_topic(name, count)
    settings = config | {
        "partition.assignment.strategy": assignor.name,
        "zkconsumer.roundrobin.hash": assignor.hash_form.value,
    }
    members, readers = [], []
    try:
        for name, subscription in shapes[case].items():
            member = ZookeeperConsumerConnector(settings | {"consumer.id": name})
            members.append(member)
            if case == "filters":
                number = subscription[one]
                found = member.create_message_streams_by_filter(Whitelist(f"{unique}-.*"), number)
                by_thread = {(topic, i): s for topic in topics for i, s in enumerate(found)}
            else:
                streams = member.create_message_streams(subscription)
                by_thread = {(t, i): s for t, of in streams.items() for i, s in enumerate(of)}
            read_by = {stream: Reader([stream]) for stream in set(by_thread.values())}
            readers += [
                (topic, f"{member.consumer_id}-{i}", read_by[stream])
                for (topic, i), stream in by_thread.items()
            ]
        subscribed = {f"{group}_{name}": of for name, of in shapes[case].items()}
        expected = expected_owners(watch, subscribed, topics, assignor)
        for topic, owners in expected.items():
            watch.wait_owners(topic, lambda found, o=owners: found == o, 10, f"owners are {owners}")
        for topic, owners in expected.items():
            with Producer(cluster.bootstrap, topic, range(topics[topic])) as producer:
                producer.send(topics[topic])
            for of, thread, reader in readers:
                if of == topic:
                    mine = {partition for partition, owner in owners.items() if owner == thread}
                    wait_until(
                        lambda r=reader, t=topic, m=mine: (
                            {found.partition for found in r.deliveries if found.topic == t} == m
                        ),
                        10,
                        f"{thread} is given {mine} of {topic}",
                    )
    finally:
        for member in members:
            member.shutdown()


# -- commits ------------------------------------------------------------------------------------


def test_commit_offsets(
    cluster: LocalCluster, watch: GroupWatch, config: dict[str, object], topic: str
) -> None:
    """OffsetCommitTest.testUpdateOffsets for ZooKeeper: without automatic commits, only
    ``commit_offsets`` stores offsets, as decimal text. The first commit creates the znode. A
    message counts once the next one is requested. The next owner continues from there."""
    cluster.create_topic(topic, 2)
    settings = config | {"auto.commit.enable": "false", "consumer.timeout.ms": 5000}
    with Producer(cluster.bootstrap, topic, (0,)) as producer:
        producer.send(10)
    with ZookeeperConsumerConnector(settings) as member:
        (stream,) = member.create_message_streams({topic: 1})[topic]
        iterator = iter(stream)
        assert [next(iterator).offset for _ in range(3)] == [0, 1, 2]
        assert watch.client.exists(watch.paths.offsets) is None
        member.commit_offsets()
        assert watch.offsets(topic)[0] == 2
        stream.mark_consumed()
        member.commit_offsets()
        assert watch.offsets(topic)[0] == 3
        data, stat = watch.client.get(watch.paths.offset(TopicPartition(topic, 0)))
        assert (data, stat.ephemeralOwner) == (b"3", 0)
        next(iterator)
    assert watch.offsets(topic)[0] == 3, "no commit at shutdown without auto.commit.enable"
    with ZookeeperConsumerConnector(settings) as member:
        iterator = iter(member.create_message_streams({topic: 1})[topic][0])
        assert next(iterator).offset == 3


def test_commit_given_offsets(
    cluster: LocalCluster, watch: GroupWatch, config: dict[str, object], topic: str
) -> None:
    """OffsetCommitTest.testCommitAndFetchOffsets for ZooKeeper: given offsets are stored unchanged.
    Offsets that cannot be stored are named, and the others are still stored."""
    cluster.create_topic(topic, 2)
    settings = config | {"auto.commit.enable": "false"}
    with Producer(cluster.bootstrap, topic, (0, 1)) as producer:
        producer.send(20)
    member = ZookeeperConsumerConnector(settings)
    with member:
        with pytest.raises(UsageError, match="before streams are created"):
            member.commit_offsets()
        member.create_message_streams({topic: 1})
        zero, one, nowhere = (TopicPartition(topic, number) for number in (0, 1, 7))
        member.commit_offsets({zero: 4, one: 0})
        assert watch.offsets(topic) == {0: 4, 1: 0}
        member.commit_offsets({(topic, 0): 4})
        with pytest.raises(CommitFailedError, match="3 is below the committed offset 4"):
            member.commit_offsets({zero: 3, one: 5})
        assert watch.offsets(topic) == {0: 4, 1: 5}
        with pytest.raises(CommitFailedError, match=f"{topic}-7: not owned by this member"):
            member.commit_offsets({nowhere: 1, one: 6})
        assert watch.offsets(topic) == {0: 4, 1: 6}
        for bad in (-1, "3", True, None, 1.5):
            with pytest.raises(ConfigError, match=f"{topic}-0: an offset is"):
                member.commit_offsets({zero: bad})
        member.commit_offsets({})
    with pytest.raises(ConnectorClosedError):
        member.commit_offsets()


# -- topics and brokers -------------------------------------------------------------------------


def test_topic_deleted_and_created_again(
    cluster: LocalCluster, watch: GroupWatch, config: dict[str, object], topic: str
) -> None:
    """DeleteConsumerGroupTest.testConsumptionOnRecreatedTopicAfterTopicWideDeleteInZK, without
    restarting the group: a recreated topic is read from its start. The stored offset is lowered to
    match, so that nothing is skipped later."""
    cluster.create_topic(topic, 1)
    with ZookeeperConsumerConnector(config) as member:
        reader = Reader(member.create_message_streams({topic: 1})[topic])
        with Producer(cluster.bootstrap, topic, (0,)) as producer:
            producer.send(20)
        reader.wait(20)
        wait_until(lambda: watch.offsets(topic) == {0: 20}, 5, "the offset is stored")
        cluster.delete_topic(topic)
        watch.wait_owners(topic, lambda found: not found, 10, "the deleted topic is let go")
        cluster.create_topic(topic, 1)
        with Producer(cluster.bootstrap, topic, (0,)) as producer:
            producer.send(5)
        reader.wait(25)
        assert [found.offset for found in reader.deliveries][20:] == list(range(5))
        wait_until(lambda: watch.offsets(topic) == {0: 5}, 5, "the offset follows")


def test_no_brokers_at_the_start(
    cluster: LocalCluster,
    borrowed: GroupWatch,
    chroot: str,
    config: dict[str, object],
    topic: str,
) -> None:
    """If no broker is registered, streams are returned at once and are empty. They start when the
    first broker appears."""
    cluster.create_topic(topic, 2)
    borrow(cluster, borrowed, f"/brokers/topics/{topic}")
    with ZookeeperConsumerConnector(config | {"zookeeper.connect": chroot}) as member:
        reader = Reader(member.create_message_streams({topic: 1})[topic])
        assert borrowed.owners(topic) == {}
        with Producer(cluster.bootstrap, topic, (0, 1)) as producer:
            producer.send(2)
        borrow(cluster, borrowed, "/brokers/ids/0")
        borrowed.wait_owners(topic, lambda found: len(found) == 2, 10, "the topic is owned")
        reader.wait(2)


def test_release_waits_for_the_message_in_hand(
    cluster: LocalCluster, watch: GroupWatch, config: dict[str, object], topic: str
) -> None:
    """A partition is handed over only when the application has finished its unacknowledged message.
    That message is then committed, and the next owner does not get it again."""
    cluster.create_topic(topic, 2)
    finish = threading.Event()
    settings = config | {"zkconsumer.release.wait.ms": 20_000}
    with (
        Producer(cluster.bootstrap, topic, (1,)) as producer,
        ZookeeperConsumerConnector(settings | {"consumer.id": "a"}) as one,
    ):
        producer.send(1)
        first = Reader(
            one.create_message_streams({topic: 1})[topic], lambda _: finish.wait(timeout=20)
        )
        first.wait(1)
        with ZookeeperConsumerConnector(settings | {"consumer.id": "b"}) as two:
            second = Reader(two.create_message_streams({topic: 1})[topic])
            assert watch.owners(topic)[1] == f"{one.consumer_id}-0"
            finish.set()
            watch.wait_owners(
                topic, lambda found: found.get(1) == f"{two.consumer_id}-0", 10, "handed over"
            )
            producer.send(1)
            second.wait(1)
            assert second.offsets(1) == [1]
