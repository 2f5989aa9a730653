"""Real consumers of every client continue at the exact next message after a move."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import confluent_kafka
import pytest
from kafka import KafkaConsumer
from zkmigrate.apply.outcome import Outcome
from zkmigrate.model import Direction

from tests.migrate.java_reader import read_java
from tests.support.legacy_jvm import JvmMember, JvmMembers
from zkconsumer.servers import wait_until

if TYPE_CHECKING:
    from conftest import Bench  # type: ignore[import-not-found]

EACH = 20
PARTITIONS = 3


def read_original(bench: Bench, jvm: JvmMembers, group: str, topic: str, count: int) -> Counter:
    """The messages that a JVM member reads, at least ``count``, before it commits."""
    config = {
        "zookeeper.connect": bench.cluster.zookeeper,
        "group.id": group,
        "consumer.id": "original",
        "auto.commit.enable": "false",
        "auto.offset.reset": "smallest",
    }
    member = JvmMember(jvm, config, {topic: 1})
    member.wait_joined()
    wait_until(lambda: len(member.deliveries) >= count, 30, "the original consumer has read")
    member.commit()
    member.leave()
    return Counter((found.partition, found.offset) for found in member.deliveries)


def read_python(bench: Bench, group: str, topic: str, count: int) -> Counter:
    """The messages that kafka-python's consumer reads. It fails without an offset."""
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bench.cluster.bootstrap,
        group_id=group,
        auto_offset_reset="none",
        enable_auto_commit=False,
        consumer_timeout_ms=30_000,
    )
    seen: Counter = Counter()
    for message in consumer:
        seen[(message.partition, message.offset)] += 1
        if seen.total() == count:
            break
    consumer.commit()
    consumer.close()
    return seen


def read_librdkafka(bench: Bench, group: str, topic: str, count: int) -> Counter:
    """The messages that confluent-kafka's consumer reads. It fails without an offset."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bench.cluster.bootstrap,
            "group.id": group,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    seen: Counter = Counter()
    deadline = time.monotonic() + 90
    while seen.total() < count and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None:
            assert message.error() is None, message.error()
            seen[(message.partition(), message.offset())] += 1
    consumer.commit(asynchronous=False)
    consumer.close()
    return seen


@pytest.mark.parametrize("modern", ["kafka-python", "librdkafka", "java 3.9", "java 4"])
def test_original_then_coordinator_then_original(
    bench: Bench, jvm: JvmMembers, tmp_path: Path, group: str, topic: str, modern: str
) -> None:
    """The group is moved to Kafka and back. The original consumer, a coordinator consumer and the
    original consumer again read every message exactly once."""
    bench.topic(topic, PARTITIONS, EACH)
    seen = read_original(bench, jvm, group, topic, EACH * PARTITIONS)
    assert set(bench.znodes(group).values()) >= {b"%d" % EACH}
    for partition in range(PARTITIONS):
        bench.produce(topic, partition, EACH)
    plan, journal = bench.plan([group])
    assert bench.apply(plan, journal)[0].outcome is Outcome.DONE
    client, _, line = modern.partition(" ")
    if client == "java":
        address = bench.cluster.bootstrap
        seen += read_java(line, address, group, topic, EACH * PARTITIONS, tmp_path)
    elif modern == "librdkafka":
        seen += read_librdkafka(bench, group, topic, EACH * PARTITIONS)
    else:
        seen += read_python(bench, group, topic, EACH * PARTITIONS)
    for partition in range(PARTITIONS):
        bench.produce(topic, partition, EACH)
    back, second = bench.plan([group], Direction.KAFKA_TO_ZK)
    (result,) = bench.apply(back, second)
    assert result.outcome is Outcome.DONE, result.why
    seen += read_original(bench, jvm, group, topic, EACH * PARTITIONS)
    expected = {(p, offset): 1 for p in range(PARTITIONS) for offset in range(3 * EACH)}
    assert seen == expected
