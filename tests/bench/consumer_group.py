"""Compare ``group.protocol=consumer`` with ``classic`` on a broker of Kafka 4.

Wide: a topic has 1,000 partitions with one message each. The time runs from a member's first call
until all messages are delivered. A second time runs from a second member's first call until both
members have half of the partitions. zkconsumer runs with both protocols, and the Java consumer with
the new one, alternately.

Throughput: one stream reads a whole topic.

Restarts: six members under load, one of them restarted every few seconds. Members and producer
share a process, so the producer's own silence is printed too.

Broker and members have default settings, except for the broker's assignment interval and the
heartbeats of classic members (100 ms). Heartbeats of the new protocol are 5 s apart, which is the
broker's default, unless ``HEARTBEAT`` is set.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import threading
import time
import uuid
from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import median

from confluent_kafka import Producer

from tests.integration.group_members import Java, Join, Jvm
from tests.support.groups import Reader
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.servers import LocalCluster, wait_until

PARTITIONS, WIDE, LIMIT = 1000, "wide", 180.0


def config(cluster: LocalCluster, group: str, protocol: str) -> dict[str, object]:
    """Settings of a member."""
    found: dict[str, object] = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
    }
    return found | ({"heartbeat.interval.ms": 100} if protocol == "classic" else {})


def fill(cluster: LocalCluster, topic: str, partitions: int, messages: int, size: int) -> None:
    """Create a topic and send this number of messages, in rotation to its partitions."""
    cluster.create_topic(topic, partitions)
    settings = {"bootstrap.servers": cluster.bootstrap, "linger.ms": 50, "log_level": 0}
    producer = Producer(settings)
    for number in range(messages):
        while True:
            try:
                producer.produce(topic, bytes(size), partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush(120)


def fresh(name: str) -> str:
    """A name that no other group has."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


def held(member: CoordinatorConsumerConnector) -> int:
    """Number of partitions that a member owns."""
    return 0 if member._loop is None else len(member._loop.machine.held)


def wide_ours(cluster: LocalCluster, protocol: str) -> tuple[float, float]:
    """Seconds until all messages are delivered, and until a second member has half of the
    partitions."""
    settings = config(cluster, fresh(protocol), protocol)
    half = PARTITIONS // 2
    with (
        CoordinatorConsumerConnector(settings) as one,
        CoordinatorConsumerConnector(settings) as two,
    ):
        began = time.perf_counter()
        Reader(one.create_message_streams({WIDE: 1})[WIDE]).wait(PARTITIONS, LIMIT)
        all_delivered = time.perf_counter() - began
        began = time.perf_counter()
        Reader(two.create_message_streams({WIDE: 1})[WIDE])
        wait_until(lambda: held(one) == held(two) == half, LIMIT, "both have their half")
        return all_delivered, time.perf_counter() - began


def wide_java(cluster: LocalCluster, jvm: Jvm) -> tuple[float, float]:
    """The same for the Java consumer with the new protocol."""
    join = Join(cluster.bootstrap, fresh("java"), WIDE, "range", protocol="consumer")
    half = PARTITIONS // 2
    began = time.perf_counter()
    one = Java(join, jvm)
    wait_until(lambda: len(one.got()) >= PARTITIONS, LIMIT, "everything is delivered")
    all_delivered = time.perf_counter() - began
    began = time.perf_counter()
    two = Java(join, jvm)
    wait_until(
        lambda: len(one.partitions) == len(two.partitions) == half, LIMIT, "both have their half"
    )
    joined = time.perf_counter() - began
    one.close()
    two.close()
    return all_delivered, joined


def throughput(cluster: LocalCluster, topic: str, messages: int, protocol: str) -> float:
    """Messages per second of one stream, from the first message on."""
    with CoordinatorConsumerConnector(config(cluster, fresh("read"), protocol)) as member:
        (stream,) = member.create_message_streams({topic: 1})[topic]
        begun = 0.0
        for count, message in enumerate(stream, 1):
            begun = begun or time.perf_counter()
            _ = message.value
            if count == messages:
                break
        return messages / (time.perf_counter() - begun)


def restarts(cluster: LocalCluster, protocol: str, seconds: float, rate: int, seed: int) -> str:
    """Six members under load, one restarted every four seconds. Counts lost and repeated messages,
    and pauses."""
    chance, topic, group = random.Random(seed), fresh("load"), fresh("load")
    cluster.create_topic(topic, 24)
    acked: dict[tuple[int, int], float] = {}
    end = threading.Event()

    def delivered(error: object, message: object) -> None:
        if error is None:
            acked[message.partition(), message.offset()] = time.monotonic()  # type: ignore[attr-defined]

    def produce() -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5})
        began, sent = time.monotonic(), 0
        while not end.wait(0.01):
            for _ in range(int((time.monotonic() - began) * rate) - sent):
                producer.produce(topic, b"x" * 100, partition=sent % 24, callback=delivered)
                sent += 1
            producer.poll(0)
        producer.flush(60)

    readers: list[Reader] = []

    def start() -> CoordinatorConsumerConnector:
        member = CoordinatorConsumerConnector(config(cluster, group, protocol))
        readers.append(Reader(member.create_message_streams({topic: 1})[topic]))
        return member

    members = [start() for _ in range(6)]
    wait_until(lambda: sum(map(held, members)) == 24, LIMIT, "all partitions are shared")
    thread = threading.Thread(target=produce)
    thread.start()
    began, count = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        time.sleep(4)
        place = chance.randrange(6)
        members[place].shutdown()
        members[place] = start()
        count += 1
    end.set()
    thread.join()
    times = Counter((one.partition, one.offset) for r in readers for one in r.deliveries)
    deadline = time.monotonic() + 60
    while not times.keys() >= acked.keys() and time.monotonic() < deadline:
        time.sleep(0.5)
        times = Counter((one.partition, one.offset) for r in readers for one in r.deliveries)
    for member in members:
        member.shutdown()
    at = sorted(one.at for r in readers for one in r.deliveries)
    silent = max(b - a for a, b in pairwise(at))
    unsent = max(b - a for a, b in pairwise(sorted(acked.values())))
    each: dict[int, list[float]] = {}
    for reader in readers:
        for one in reader.deliveries:
            each.setdefault(one.partition, []).append(one.at)
    longest = max(b - a for found in each.values() for a, b in pairwise(sorted(found)))
    repeats, lost = sum(n - 1 for n in times.values()), len(acked.keys() - times.keys())
    return (
        f"{protocol}: {len(acked)} sent, {count} restarts, lost {lost}, "
        f"repeated {repeats}, longest silence of the group {silent:.2f} s, "
        f"of the producer {unsent:.2f} s, of a partition {longest:.2f} s, seed {seed}"
    )


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=600_000)
    parser.add_argument("--seconds", type=float, default=180.0, help="of restarts, each protocol")
    parser.add_argument("--rate", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--heartbeat", type=int, default=5000, help="of the new protocol, ms")
    parser.add_argument("--parts", default="wide,throughput,restarts")
    options = parser.parse_args()
    parts = options.parts.split(",")
    broker = {
        "group.consumer.assignment.interval.ms": "0",
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.heartbeat.interval.ms": str(options.heartbeat),
    }
    with LocalCluster("4", properties=broker) as cluster, tempfile.TemporaryDirectory() as folder:
        if "wide" in parts:
            fill(cluster, WIDE, PARTITIONS, PARTITIONS, 10)
            jvm = Jvm(Path(folder), "4")
            wide: dict[str, list[tuple[float, float]]] = {"consumer": [], "classic": [], "java": []}
            for turn in range(options.rounds):
                for name in wide if turn % 2 else reversed(wide):
                    java = name == "java"
                    wide[name].append(wide_java(cluster, jvm) if java else wide_ours(cluster, name))
                    print(json.dumps([name, wide[name][-1]]), flush=True)  # noqa: T201
            for name, values in wide.items():
                first, second = (median(one) for one in zip(*values, strict=True))
                print(f"wide, {name}: all delivered {first:.2f} s, one added {second:.2f} s")  # noqa: T201
            jvm.close()
        if "throughput" in parts:
            fill(cluster, "fast", 12, options.messages, 100)
            rates: dict[str, list[float]] = {"consumer": [], "classic": []}
            throughput(cluster, "fast", options.messages, "classic")  # into the page cache
            for turn in range(options.rounds):
                for name in rates if turn % 2 else reversed(rates):
                    rates[name].append(throughput(cluster, "fast", options.messages, name))
            for name, found in rates.items():
                each = ", ".join(f"{value:,.0f}" for value in found)
                print(f"throughput, {name}: median {median(found):,.0f} of {each}", flush=True)  # noqa: T201
        if "restarts" in parts:
            for protocol in ("consumer", "classic"):
                text = restarts(cluster, protocol, options.seconds, options.rate, options.seed)
                print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
