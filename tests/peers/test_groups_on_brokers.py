"""kafka-node 5 and kafkajs in one group with our members on the coordinator."""

from __future__ import annotations

from collections import Counter

from tests.peers.clients import Start, filled
from tests.support.groups import Reader
from zkconsumer import CoordinatorConsumerConnector
from zkconsumer.errors import ZkConsumerError
from zkconsumer.servers import LocalCluster, wait_until

PARTITIONS, EACH = 6, 500


def _config(cluster: LocalCluster, group: str) -> dict[str, object]:
    return {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 200,
        "partition.assignment.strategy": "range",
    }


def test_kafka_node_shares_a_topic(
    cluster: LocalCluster, start: Start, group: str, topic: str
) -> None:
    """Both use the assignor `range`: each takes half, and every message is delivered once."""
    cluster.create_topic(topic, PARTITIONS)
    other = start("consumerGroup", topic)
    with CoordinatorConsumerConnector(_config(cluster, group)) as ours:
        reader = Reader(ours.create_message_streams({topic: 1})[topic])
        wait_until(lambda: ours.health().owned == PARTITIONS // 2, 90, "half is ours")
        expected = filled(cluster, topic, PARTITIONS, EACH, create=False)
        wait_until(
            lambda: len(reader.deliveries) + len(other.got) == len(expected), 60, "all is delivered"
        )
        seen = other.got + Counter((topic, d.partition, d.offset) for d in reader.deliveries)
        assert set(seen) == expected
        assert set(seen.values()) == {1}


def test_kafkajs_uses_another_assignor(
    cluster: LocalCluster, start: Start, group: str, topic: str
) -> None:
    """kafkajs offers `RoundRobinAssigner` only, which is not Kafka's `roundrobin`. The error says
    what the group uses and what this member offers."""
    expected = filled(cluster, topic, PARTITIONS, 10)
    other = start("kafkajs", topic)
    wait_until(lambda: len(other.got) == len(expected), 60, f"all is read: {other.errors[-3:]}")
    connector = CoordinatorConsumerConnector(_config(cluster, group))
    found: list[str] = []
    try:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        reader = Reader([stream])
        wait_until(lambda: reader.errors, 60, "the member cannot join")
        found = [str(error) for error in reader.errors]
    except ZkConsumerError as error:
        found = [str(error)]
    finally:
        connector.shutdown()
    assert "RoundRobinAssigner" in found[0], found
    assert "range" in found[0], found
