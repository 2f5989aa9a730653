"""Members that store their offsets in Kafka, in ZooKeeper, or in both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from tests.integration.kafka_offsets import KafkaOffsets, kafka_offsets
from tests.support.members import keys
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.errors import CommitFailedError, ZkConsumerError
from zkconsumer.servers import LocalCluster, wait_until
from zkconsumer.servers.produce import send


@pytest.fixture
def coordinator(cluster: LocalCluster, group: str) -> Iterator[KafkaOffsets]:
    """An independent reader and writer of the group's offsets in Kafka."""
    offsets = kafka_offsets(cluster, group)
    yield offsets
    offsets.close()


def config(cluster: LocalCluster, group: str, **more: object) -> dict[str, object]:
    """A member's configuration with Kafka storage."""
    return {
        "zookeeper.connect": cluster.zookeeper,
        "group.id": group,
        "auto.offset.reset": "smallest",
        "auto.commit.interval.ms": 200,
        "consumer.timeout.ms": 20000,
        "offsets.storage": "kafka",
        "offsets.channel.backoff.ms": 100,
        **keys(**more),
    }


def fill(cluster: LocalCluster, topic: str, values: list[bytes]) -> None:
    """Send messages without keys. All are stored when this returns."""
    assert sum(send(cluster.bootstrap, topic, [(None, value) for value in values]).values()) == len(
        values
    )


def take(connector: ZookeeperConsumerConnector, topic: str, count: int) -> list[int]:
    """Read ``count`` messages of a topic with one partition, and return their offsets."""
    (stream,) = connector.create_message_streams({topic: 1})[topic]
    offsets = [message.offset for _, message in zip(range(count), stream, strict=False)]
    stream.mark_consumed()
    return offsets


def stored(zk: KazooClient, group: str, topic: str) -> int | None:
    """The offset of partition 0 in ZooKeeper."""
    path = f"/consumers/{group}/offsets/{topic}/0"
    return int(zk.get(path)[0]) if zk.exists(path) else None


@pytest.mark.parametrize("profile", ["default", "scala"])
def test_dual_commit_writes_both_and_reads_the_larger(
    cluster: LocalCluster,
    coordinator: KafkaOffsets,
    zk: KazooClient,
    group: str,
    topic: str,
    profile: str,
) -> None:
    """Scala fetchOffsets: with dual commit, reading begins at the larger of both offsets."""
    cluster.create_topic(topic, 1)
    tp = TopicPartition(topic, 0)
    fill(cluster, topic, [str(n).encode() for n in range(10)])
    settings = config(cluster, group, zkconsumer_profile=profile)
    with ZookeeperConsumerConnector(settings) as member:
        assert take(member, topic, 4) == [0, 1, 2, 3]
    assert coordinator.fetch([tp]) == {tp: 4}
    assert stored(zk, group, topic) == 4

    assert coordinator.commit({tp: 6}) == {}
    with ZookeeperConsumerConnector(settings) as member:
        assert take(member, topic, 1) == [6]
    assert coordinator.fetch([tp]) == {tp: 7}
    assert stored(zk, group, topic) == 7

    zk.set(f"/consumers/{group}/offsets/{topic}/0", b"9")
    with ZookeeperConsumerConnector(settings) as member:
        assert take(member, topic, 1) == [9]
    assert coordinator.fetch([tp]) == {tp: 10}


@pytest.mark.parametrize("profile", ["default", "scala"])
def test_kafka_alone_does_not_fall_back_to_zookeeper(
    cluster: LocalCluster,
    coordinator: KafkaOffsets,
    zk: KazooClient,
    group: str,
    topic: str,
    profile: str,
) -> None:
    """Without dual commit ZooKeeper's offset is neither read nor written."""
    cluster.create_topic(topic, 1)
    tp = TopicPartition(topic, 0)
    fill(cluster, topic, [str(n).encode() for n in range(10)])
    zk.create(f"/consumers/{group}/offsets/{topic}/0", b"8", makepath=True)
    settings = config(cluster, group, dual_commit_enabled=False, zkconsumer_profile=profile)
    with ZookeeperConsumerConnector(settings) as member:
        assert take(member, topic, 3) == [0, 1, 2]
    assert coordinator.fetch([tp]) == {tp: 3}
    assert stored(zk, group, topic) == 8


def test_kafka_alone_commits_only_what_is_owned(
    cluster: LocalCluster,
    coordinator: KafkaOffsets,
    zk: KazooClient,
    group: str,
    topic: str,
) -> None:
    """If its owner znode is gone, a member does not write to Kafka, which could not refuse it."""
    cluster.create_topic(topic, 1)
    tp = TopicPartition(topic, 0)
    fill(cluster, topic, [str(n).encode() for n in range(10)])
    settings = config(cluster, group, dual_commit_enabled=False, auto_commit_enable=False)
    with ZookeeperConsumerConnector(settings) as member:
        take(member, topic, 5)
        zk.delete(f"/consumers/{group}/owners/{topic}/0")
        zk.create(f"/consumers/{group}/owners/{topic}/0", b"somebody-else-0")
        with pytest.raises(CommitFailedError, match="owned by another member"):
            member.commit_offsets()
        assert coordinator.fetch([tp]) == {tp: None}
        zk.delete(f"/consumers/{group}/owners/{topic}/0")


def test_unchanged_offsets_are_sent_again(
    cluster: LocalCluster, coordinator: KafkaOffsets, group: str, topic: str
) -> None:
    """KAFKA-1510: all offsets go to Kafka at every commit, so that none expires there."""
    cluster.create_topic(topic, 1)
    tp = TopicPartition(topic, 0)
    fill(cluster, topic, [b"one", b"two"])
    settings = config(cluster, group, dual_commit_enabled=False)
    with ZookeeperConsumerConnector(settings) as member:
        take(member, topic, 2)
        wait_until(lambda: coordinator.fetch([tp]) == {tp: 2}, 20, "first commit")
        assert coordinator.commit({tp: 1}) == {}
        wait_until(lambda: coordinator.fetch([tp]) == {tp: 2}, 20, "sent again")


@pytest.mark.parametrize("version", ["0.8.2", "3.9"])
def test_a_coordinator_that_is_away_is_waited_for_to_a_deadline(
    topic: str, group: str, version: str
) -> None:
    """Commits fail with a reason while no broker answers, and succeed once one is back."""
    with LocalCluster(version) as own:
        own.create_topic(topic, 1)
        tp = TopicPartition(topic, 0)
        settings = config(
            own,
            group,
            auto_commit_enable=False,
            offsets_channel_socket_timeout_ms=1000,
            offsets_commit_max_retries=1,
        )
        with ZookeeperConsumerConnector(settings) as member:
            member.create_message_streams({topic: 1})
            member.commit_offsets({tp: 1})
            server = own.broker_servers[0]
            server.kill()
            with pytest.raises(CommitFailedError, match=r"did not answer within 1\.1 s"):
                member.commit_offsets({tp: 2})
            server.start()
            server.wait_ready()

            def committed() -> bool:
                try:
                    member.commit_offsets({tp: 2})
                except ZkConsumerError:
                    return False
                return True

            wait_until(committed, 60, "a commit succeeds again")
        offsets = kafka_offsets(own, group)
        assert offsets.fetch([tp]) == {tp: 2}
        offsets.close()
