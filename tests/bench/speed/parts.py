"""The measurements. Each part yields (case, reader, figure, value) for every round."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.bench.speed.groups import Groups
from tests.bench.speed.readers import BY_NAME, READERS, Reader, run
from zkconsumer.servers import LocalCluster

Figure = tuple[str, str, str, float]
"""Case, reader, figure, value."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Case:
    """One topic and how it is read. ``size`` is the length of a value in bytes; without
    ``per_batch``, the producer's batches are of 64 KiB."""

    name: str
    size: int = 100
    codec: str = "none"
    partitions: int = 4
    streams: int = 1
    per_batch: int | None = None
    messages: int = 2_000_000
    readers: Sequence[str] = (
        "ours",
        "ours, batches",
        "ours, arrow",
        "JVM legacy 1.1.1",
        "Java KafkaConsumer 3.9",
        "confluent-kafka",
        "confluent-kafka, tuned",
    )

    @property
    def topic(self) -> str:
        """The topic of a case. Cases that differ only in the number of streams share one."""
        batch = "" if self.per_batch is None else f"-{self.per_batch}"
        return f"t{self.size}-{self.codec}-{self.partitions}{batch}"


CASES = (
    Case("100 B", readers=tuple(reader.name for reader in READERS)),
    Case("1 KiB", size=1024, messages=500_000),
    Case("100 B, lz4", codec="lz4"),
    Case("100 B, zstd", codec="zstd"),
    Case("100 B, 4 streams", streams=4),
    Case("100 B, 1 partition", partitions=1),
    Case("100 B, 64 partitions", partitions=64),
)
WORDS = [f"{number * 2654435761 % 2**32:08x}".encode() for number in range(4096)]


def fill(cluster: LocalCluster, case: Case) -> None:
    """Produce a topic with keys of 8 bytes and values of repeated words, as in logs and JSON."""
    from confluent_kafka import Producer

    cluster.create_topic(case.topic, case.partitions)
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "linger.ms": 50,
            "batch.size": 65536,
            "compression.type": case.codec,
            "queue.buffering.max.messages": 500_000,
            "acks": 1,
        }
        | (
            {}
            if case.per_batch is None
            else {
                "linger.ms": 2000,
                "batch.num.messages": case.per_batch,
                "batch.size": 1_048_000,
                "message.max.bytes": 1_048_000,
            }
        )
    )
    pool = b" ".join(WORDS)
    pool *= 1 + case.size // len(pool) * 2
    for number in range(case.messages):
        at = number * 31 % (len(pool) - case.size)
        value = pool[at : at + case.size]
        while True:
            try:
                producer.produce(
                    case.topic, value, b"%08d" % number, partition=number % case.partitions
                )
                break
            except BufferError:
                producer.poll(0.05)
        if number % 10_000 == 0:
            producer.poll(0)
    if producer.flush(120):
        raise RuntimeError(f"{case.topic} is not filled")


def throughput(cluster: LocalCluster, rounds: int, say: Say, scale: float) -> Iterator[Figure]:
    """Messages and CPU seconds, memory at the end, and the time from start to first message."""
    cases = [replace(case, messages=int(case.messages * scale)) for case in CASES]
    filled = set()
    for case in cases:
        if case.topic not in filled:
            say(f"fill {case.topic}")
            fill(cluster, case)
            filled.add(case.topic)
    for turn in range(rounds):
        for case in cases:
            chosen = [BY_NAME[name] for name in case.readers]
            chosen = [r for r in chosen if case.codec in r.codecs]
            shift = turn * 5 % len(chosen)
            for reader in chosen[shift:] + chosen[:shift]:
                wanted = case.messages * 9 // 10
                count = min(wanted, reader.most or wanted)
                found = run(
                    reader,
                    cluster,
                    case.topic,
                    count,
                    streams=case.streams,
                    partitions=case.partitions,
                )
                rate = found["messages"] / found["seconds"]
                say(f"round {turn + 1}: {case.name}: {reader.name}: {rate:,.0f} msg/s")
                yield case.name, reader.name, "msg/s", rate
                yield case.name, reader.name, "CPU s/M", found["cpu"] / found["messages"] * 1e6
                yield case.name, reader.name, "MiB", found["rss"] / 1024
                yield case.name, reader.name, "start s", found["start"]


LATENCY = (
    "ours",
    "ours, batches",
    "ours, pure",
    "ours, coordinator",
    "JVM legacy 1.1.1",
    "Java KafkaConsumer 3.9",
    "confluent-kafka",
    "aiokafka",
    "kafka-python",
)
LATENCY_S = 6


def latency(cluster: LocalCluster, rounds: int, say: Say, scale: float) -> Iterator[Figure]:
    """Milliseconds from sending to delivery, at 1,000 messages per second."""
    cluster.create_topic("latency", 4)
    argv = [sys.executable, str(Path(__file__).with_name("sender.py")), cluster.bootstrap]
    sender = subprocess.Popen([*argv, "latency", "1000"])
    try:
        for turn in range(rounds):
            shift = turn * 4 % len(LATENCY)
            for name in LATENCY[shift:] + LATENCY[:shift]:
                found = run(BY_NAME[name], cluster, "latency", LATENCY_S, mode="latency")
                say(f"round {turn + 1}: latency: {name}: p99 {found['p99'] / 1e6:.2f} ms")
                for which in ("p50", "p99"):
                    yield "1,000 msg/s", name, f"{which} ms", found[which] / 1e6
    finally:
        sender.kill()
        sender.wait()


def idle(cluster: LocalCluster, rounds: int, say: Say, scale: float) -> Iterator[Figure]:
    """Memory and CPU time of an idle member with 1,000 partitions."""
    cluster.create_topic("idle", 1000)
    chosen: list[Reader] = [
        BY_NAME[name]
        for name in ("ours", "ours, coordinator", "JVM legacy 1.1.1", "Java KafkaConsumer 3.9")
    ]
    for turn in range(rounds):
        for reader in chosen:
            found = run(reader, cluster, "idle", 10, mode="idle")
            percent = 100 * found["cpu"] / found["seconds"]
            say(f"round {turn + 1}: idle: {reader.name}: {percent:.2f} % of a core")
            yield "1,000 partitions", reader.name, "% of a core", percent
            yield "1,000 partitions", reader.name, "MiB", found["rss"] / 1024


def groups(cluster: LocalCluster, rounds: int, say: Say, scale: float) -> Iterator[Figure]:
    """Seconds until every partition has an owner again, and commits of 1,000 partitions."""
    with Groups(cluster) as bench:
        for turn in range(rounds):
            for case, reader, figure, value in bench.measure(turn):
                say(f"round {turn + 1}: {case}: {reader}: {value:.3f} {figure}")
                yield case, reader, figure, value


Part = Callable[[LocalCluster, int, Say, float], Iterator[Figure]]
"""Servers, rounds, how to print progress, and the share of messages that the throughput part
reads."""
PARTS: dict[str, tuple[Part, float]] = {
    "throughput": (throughput, 200.0),
    "latency": (latency, 100.0),
    "idle": (idle, 64.0),
    "groups": (groups, 90.0),
}
"""The function, and about how many seconds a round takes on two cores."""


def seconds(names: Sequence[str], rounds: int) -> float:
    """The approximate duration of a run."""
    return 120 + sum(PARTS[name][1] for name in names) * rounds


def now() -> str:
    """The time of day, for the printed lines."""
    return time.strftime("%H:%M:%S")
