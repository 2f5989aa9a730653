"""The original consumer's own connector tests, ported by name, on real servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.groups import GroupWatch, Producer, Reader
from zkconsumer.broker.fetching.records import MessageAndMetadata
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.core.common.types import ConsumerThreadId, TopicPartition
from zkconsumer.errors import ConsumerTimeoutError, StreamsAlreadyCreatedError
from zkconsumer.journal.json_lines import read_journal
from zkconsumer.runtime.delivery.streams import KafkaStream
from zkconsumer.servers import LocalCluster, wait_until


@pytest.fixture(scope="module")
def pair() -> Iterator[LocalCluster]:
    """ZooKeeper and two brokers, as in the original tests."""
    with LocalCluster("3.9", brokers=2) as running:
        yield running


@pytest.fixture
def watch(pair: LocalCluster, group: str) -> Iterator[GroupWatch]:
    """The group's znodes."""
    with GroupWatch(pair.zookeeper, group) as watching:
        yield watching


def settings(cluster: LocalCluster, group: str, consumer: str | None = None, **more: object):
    """The original tests' settings. Keys are written with ``_``."""
    found: dict[str, object] = {
        "zookeeper.connect": cluster.zookeeper,
        "group.id": group,
        "consumer.id": consumer,
        "zookeeper.session.timeout.ms": 6000,
        "zookeeper.sync.time.ms": 200,
        "auto.commit.interval.ms": 1000,
        "rebalance.max.retries": 4,
        "auto.offset.reset": "smallest",
        "num.consumer.fetchers": 2,
    }
    found.update({name.replace("_", "."): value for name, value in more.items()})
    return found


def test_basic(pair: LocalCluster, watch: GroupWatch, group: str, topic: str) -> None:
    """ZookeeperConsumerConnectorTest.testBasic: an iterator can be used again after a timeout. A
    second member takes its half. A member without topics changes nothing. Streams can be created
    only once."""
    pair.create_topic(topic + "-empty", 2)
    config = settings(pair, group, "consumer0", consumer_timeout_ms=200)
    with ZookeeperConsumerConnector(config) as zero:
        stream = zero.create_message_streams({topic + "-empty": 1})[topic + "-empty"][0]
        for _ in range(2):
            with pytest.raises(ConsumerTimeoutError, match=r"consumer\.timeout\.ms = 200"):
                next(iter(stream))
    pair.create_topic(topic, 2)
    with Producer(pair.bootstrap, topic, (0, 1)) as producer:
        first = producer.send(4)
        with ZookeeperConsumerConnector(
            settings(pair, group, "consumer1", auto_commit_interval_ms=60_000)
        ) as one:
            readers = [Reader(one.create_message_streams({topic: 1})[topic])]
            readers[0].wait(4)
            assert sorted(readers[0].values()) == sorted(first)
            assert watch.owners(topic) == {0: f"{group}_consumer1-0", 1: f"{group}_consumer1-0"}
            assert watch.offsets(topic) == {}  # nothing is stored before the first commit
            one.commit_offsets()
            with ZookeeperConsumerConnector(
                settings(pair, group, "consumer2", rebalance_backoff_ms=5000)
            ) as two:
                readers.append(Reader(two.create_message_streams({topic: 1})[topic]))
                split = {0: f"{group}_consumer1-0", 1: f"{group}_consumer2-0"}
                watch.wait_owners(topic, lambda found: found == split, 10, "the owners are split")
                second = producer.send(4)
                wait_until(
                    lambda: sum(len(reader.deliveries) for reader in readers) >= 8,
                    10,
                    "the new messages are delivered",
                )
                got = [
                    set(reader.values()[skip:])
                    for reader, skip in zip(readers, (4, 0), strict=True)
                ]
                assert got == [set(second[0::2]), set(second[1::2])]

                with ZookeeperConsumerConnector(settings(pair, group, "consumer3")) as three:
                    assert three.create_message_streams({}) == {}
                    assert f"{group}_consumer3" in watch.members()
                    producer.send(4)
                    readers[0].wait(8)
                    readers[1].wait(4)
                    assert watch.owners(topic) == split
                    with pytest.raises(StreamsAlreadyCreatedError):
                        three.create_message_streams({})
        assert [len(reader.deliveries) for reader in readers] == [8, 4]
    assert watch.members() == []
    assert watch.owners(topic) == {}


def until_timeout(stream: KafkaStream) -> list[MessageAndMetadata]:
    """All messages until none arrives for ``consumer.timeout.ms``."""
    found = []
    try:
        for message in stream:
            found.append(message)
    except ConsumerTimeoutError:
        return found
    raise AssertionError("the stream has ended")


class Notes:
    """A rebalance listener that records its calls."""

    def __init__(self) -> None:
        self.released: list[dict[str, frozenset[int]]] = []
        self.started: list[tuple[str, dict[str, dict[int, ConsumerThreadId]]]] = []

    def before_releasing_partitions(self, partitions) -> None:
        self.released.append(dict(partitions))

    def before_starting_fetchers(self, consumer_id, assignment) -> None:
        self.started.append((consumer_id, {name: dict(of) for name, of in assignment.items()}))


@pytest.mark.parametrize("profile", ["default", "scala"])
def test_consumer_rebalance_listener(
    pair: LocalCluster, watch: GroupWatch, group: str, topic: str, profile: str
) -> None:
    """ZookeeperConsumerConnectorTest.testConsumerRebalanceListener: both callbacks are called, with
    the released partitions and with the whole group's assignment. The default profile releases only
    the partitions that it loses, and does not call the listener if there are none. The scala
    profile releases everything each time."""
    pair.create_topic(topic, 2)
    scala = profile == "scala"
    notes = Notes(), Notes()
    ids = f"{group}_consumer1", f"{group}_consumer2"
    config = settings(pair, group, "consumer1")
    config["zkconsumer.profile"] = profile
    with ZookeeperConsumerConnector(config) as one:
        one.set_consumer_rebalance_listener(notes[0])
        one.create_message_streams({topic: 1})
        assert notes[0].released == ([{}] if scala else [])
        alone = {topic: {0: ConsumerThreadId(ids[0], 0), 1: ConsumerThreadId(ids[0], 0)}}
        assert notes[0].started == [(ids[0], alone)]
        with ZookeeperConsumerConnector(config | {"consumer.id": "consumer2"}) as two:
            two.set_consumer_rebalance_listener(notes[1])
            two.create_message_streams({topic: 1})
            split = {0: f"{ids[0]}-0", 1: f"{ids[1]}-0"}
            watch.wait_owners(topic, lambda found: found == split, 10, "the owners are split")
            shared = {topic: {0: ConsumerThreadId(ids[0], 0), 1: ConsumerThreadId(ids[1], 0)}}
            wait_until(lambda: (ids[1], shared) in notes[1].started, 10, "member two starts")
            if scala:
                wait_until(lambda: (ids[0], shared) in notes[0].started, 10, "member one restarts")
            assert {topic: frozenset({0, 1} if scala else {1})} in notes[0].released


@pytest.mark.parametrize(
    ("case", "stored", "reset", "received"),
    [
        ("testResetToEarliestWhenOffsetTooHigh", 10000, "smallest", 10),
        ("testResetToEarliestWhenOffsetTooLow", -1, "smallest", 10),
        ("testResetToLatestWhenOffsetTooHigh", 10000, "largest", 0),
        ("testResetToLatestWhenOffsetTooLow", -1, "largest", 0),
    ],
)
def test_auto_offset_reset(
    pair: LocalCluster,
    watch: GroupWatch,
    group: str,
    topic: str,
    case: str,
    stored: int,
    reset: str,
    received: int,
    tmp_path: Path,
) -> None:
    """AutoOffsetResetTest: where reading begins if the stored offset is not in the log. The
    position found is then stored, even if it is lower than the invalid offset. Otherwise messages
    up to that offset would be skipped. The member's journal has both; -1 stands for none."""
    pair.create_topic(topic, 1)
    with Producer(pair.bootstrap, topic, (0,)) as producer:
        producer.send(10)
        path = watch.paths.offset(TopicPartition(topic, 0))
        watch.client.create(path, str(stored).encode(), makepath=True)
        config = settings(
            pair, group, "consumer0", auto_offset_reset=reset, consumer_timeout_ms=1000,
            zkconsumer_journal_dir=str(tmp_path),
        )  # fmt: skip
        with ZookeeperConsumerConnector(config) as member:
            stream = member.create_message_streams({topic: 1})[topic][0]
            begins = {TopicPartition(topic, 0): 10 - received}
            wait_until(lambda: member._plane.positions() == begins, 15, "it knows where to begin")
            assert len(until_timeout(stream)) == received, case
            producer.send(1)
            assert next(iter(stream)).offset == 10
        assert watch.offsets(topic) == {0: 10}, "the unacknowledged message is not committed"
    entries = [entry for file in tmp_path.rglob("*.jsonl") for entry in read_journal(file)]
    (found,) = [entry for entry in entries if entry.get("name") == "OffsetReset"]
    assert found["offsets"] == {f"{topic}-0": 10 - received}
    assert found.get("replaced") == ({f"{topic}-0": stored} if stored >= 0 else None)
