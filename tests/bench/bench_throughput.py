"""Messages per second of one stream, and of kafka-python's ``poll()`` on the same topic.

Each round reads the whole topic once with each, in turn, and touches key and value of every
message. What counts is the ratio within a round: both had the same machine at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from kafka import KafkaConsumer, KafkaProducer, TopicPartition as KafkaTopicPartition

from zkconsumer.config.consumer import ConsumerConfig
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.runtime.fetch.threads import ConsumerFetcherManager
from zkconsumer.runtime.gate import CLOCK, DeliveryGate
from zkconsumer.runtime.partition_info import PartitionTopicInfo
from zkconsumer.runtime.streams import KafkaStream
from zkconsumer.testing import LocalCluster


@dataclass(frozen=True)
class Case:
    """One topic. ``size`` is the length of a value in bytes."""

    partitions: int
    size: int
    messages: int

    @property
    def name(self) -> str:
        """How the case is called in the output, and its topic."""
        return f"{self.size}-bytes-{self.partitions}-partitions"


CASES = (
    Case(1, 100, 200_000),
    Case(12, 100, 200_000),
    Case(1, 1024, 100_000),
    Case(12, 1024, 100_000),
)


def run(rounds: int) -> Iterator[tuple[str, str, list[float]]]:
    """Yield case, figure and its value in each round; ``ratio`` is ours / kafka-python."""
    with LocalCluster("3.9") as cluster:
        for case in CASES:
            _fill(cluster, case)
            ours: list[float] = []
            theirs: list[float] = []
            for turn in range(rounds):
                order = [(ours, read_ours), (theirs, read_theirs)]
                for rates, read in order if turn % 2 else reversed(order):
                    rates.append(case.messages / read(cluster, case))
            yield case.name, "zkconsumer msg/s", ours
            yield case.name, "kafka-python msg/s", theirs
            yield case.name, "ratio", [a / b for a, b in zip(ours, theirs, strict=True)]


def _fill(cluster: LocalCluster, case: Case) -> None:
    cluster.create_topic(case.name, case.partitions)
    producer = KafkaProducer(
        bootstrap_servers=cluster.bootstrap,
        linger_ms=20,
        batch_size=65536,
        max_request_size=1 << 22,
    )
    value = bytes(i % 251 for i in range(case.size))
    for i in range(case.messages):
        producer.send(case.name, value, b"%08d" % i, partition=i % case.partitions)
    producer.flush(120)
    producer.close(30)


def read_ours(cluster: LocalCluster, case: Case) -> float:
    """Seconds from the start of fetching to the last message."""
    config = ConsumerConfig.from_mapping(
        {"zookeeper.connect": "127.0.0.1:1", "group.id": "g", "auto.offset.reset": "smallest"}
    )
    gate = DeliveryGate()
    gate.extend(time.clock_gettime(CLOCK) + 3600)
    stream = KafkaStream("bench", gate, queue_capacity=config.queued_max_message_chunks)
    manager = ConsumerFetcherManager(config, "bench")
    manager.set_brokers([BrokerEndpoint(0, "127.0.0.1", cluster.broker_servers[0].port)])
    begun = time.perf_counter()
    manager.start({PartitionTopicInfo(case.name, p, 0): stream for p in range(case.partitions)})
    for count, message in enumerate(stream, 1):
        _ = message.key
        _ = message.value
        if count == case.messages:
            break
    seconds = time.perf_counter() - begun
    manager.shutdown()
    stream.shutdown()
    return seconds


def read_theirs(cluster: LocalCluster, case: Case) -> float:
    """The same for kafka-python; connecting is not counted."""
    consumer = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
    )
    partitions = [KafkaTopicPartition(case.name, p) for p in range(case.partitions)]
    consumer.assign(partitions)
    for partition in partitions:
        consumer.seek(partition, 0)
    begun = time.perf_counter()
    count = 0
    while count < case.messages:
        for records in consumer.poll(1000).values():
            for record in records:
                _ = record.key
                _ = record.value
                count += 1
    seconds = time.perf_counter() - begun
    consumer.close()
    return seconds
