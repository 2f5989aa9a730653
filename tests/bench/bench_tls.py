"""Compare reading over TLS with reading without it, and with confluent-kafka.

Each reader has its own process and reads the whole topic, from the first message to the last:
600,000 messages of 100 bytes in 4 partitions. The ratio is zkconsumer over TLS divided by
confluent-kafka's ``poll()`` over TLS. The servers run with all JIT compilers of the JVM. The
quick-starting settings that tests use encrypt only 30 MB/s.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer

from tests.support.secured import SecuredCluster
from zkconsumer.connector import ZookeeperConsumerConnector

ROOT = Path(__file__).parents[2]
MESSAGES, PARTITIONS = 600_000, 4
TOPIC = "t"
READERS = ("ours", "batches", "confluent")


def run(rounds: int) -> Iterator[tuple[str, str, list[float]]]:
    """Yield messages per second of each reader, and the ratios."""
    os.environ["_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=4"
    try:
        with SecuredCluster() as cluster:
            _fill(cluster)
            rates: dict[tuple[str, str], list[float]] = {}
            for number in range(rounds):
                for reader in READERS:
                    for protocol in ("PLAINTEXT", "SSL"):
                        rate = _measure(cluster, reader, protocol, f"{reader}-{protocol}-{number}")
                        rates.setdefault((reader, protocol), []).append(rate)
    finally:
        del os.environ["_JAVA_OPTIONS"]
    for (reader, protocol), values in rates.items():
        yield f"{reader}, {protocol}", "messages/s", values
    for reader in READERS:
        pairs = zip(rates[reader, "SSL"], rates[reader, "PLAINTEXT"], strict=True)
        yield f"{reader}, TLS to plaintext", "part", [one / other for one, other in pairs]
    pairs = zip(rates["ours", "SSL"], rates["confluent", "SSL"], strict=True)
    yield "ours to confluent-kafka, TLS", "ratio", [one / other for one, other in pairs]


def _fill(cluster: SecuredCluster) -> None:
    cluster.create_topic(TOPIC, PARTITIONS)
    producer = Producer(
        {"bootstrap.servers": cluster.at("PLAINTEXT"), "queue.buffering.max.messages": MESSAGES}
    )
    for number in range(MESSAGES):
        producer.produce(TOPIC, os.urandom(50).hex().encode(), partition=number % PARTITIONS)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()


def _measure(cluster: SecuredCluster, reader: str, protocol: str, group: str) -> float:
    task = {
        "reader": reader,
        "group": group,
        "server": cluster.at(protocol),
        "zookeeper": cluster.zookeeper,
        "ca": str(cluster.authority.ca),
        "properties": cluster.client(protocol),
    }
    command = [sys.executable, "-m", "tests.bench.bench_tls", json.dumps(task)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    return float(done.stdout)


def read(task: dict[str, Any]) -> float:
    """Read the topic in this process and return messages per second."""
    messages = confluent(task) if task["reader"] == "confluent" else ours(task)
    seen, began = next(messages), time.perf_counter()
    while seen < MESSAGES:
        seen += next(messages)
    return MESSAGES / (time.perf_counter() - began)


def ours(task: dict[str, Any]) -> Iterator[int]:
    """Yield the number of messages that arrived, each time that some arrive."""
    config = {
        "zookeeper.connect": task["zookeeper"],
        "group.id": task["group"],
        "auto.offset.reset": "smallest",
        "auto.commit.enable": "false",
    }
    with ZookeeperConsumerConnector(config | task["properties"]) as member:
        (stream,) = member.create_message_streams({TOPIC: 1})[TOPIC]
        if task["reader"] == "ours":
            for message in stream:
                assert message.value
                yield 1
        for batch in stream.batches(max_messages=1000):
            assert all(message.value for message in batch)
            yield len(batch)


def confluent(task: dict[str, Any]) -> Iterator[int]:
    """The same with ``confluent_kafka.Consumer.poll``."""
    config = {
        "bootstrap.servers": task["server"],
        "group.id": task["group"],
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    if task["properties"]["security.protocol"] == "SSL":
        config |= {"security.protocol": "SSL", "ssl.ca.location": task["ca"]}
    consumer = Consumer(config)
    consumer.subscribe([TOPIC])
    while True:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            assert message.value()
            yield 1


if __name__ == "__main__":
    sys.stdout.write(f"{read(json.loads(sys.argv[1]))}\n")
    sys.stdout.flush()
    os._exit(0)  # do not wait for a consumer in the middle of a topic
