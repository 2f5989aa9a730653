"""``isolation.level=read_committed`` on real servers, compared with Kafka's Java consumer.

A Java program writes two topics in transactions that overlap, commit, abort and hang. One of them
is compacted. ``ZKC_RECORDS=1000000`` writes more records than the usual number.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.compaction import SETTINGS, compact
from tests.support.groups import Reader
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.fetching.one_log import OneLog
from zkconsumer.config.consumer import ConsumerConfig
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.core.common.faults import Trouble
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.errors import ConsumerTimeoutError
from zkconsumer.migratable import MigratableConsumerConnector
from zkconsumer.runtime.delivery.chunks import PartitionTopicInfo
from zkconsumer.runtime.delivery.reader import Reader as StreamReader
from zkconsumer.runtime.delivery.streams import KafkaStream
from zkconsumer.runtime.fetch.threads import ConsumerFetcherManager
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.servers import LocalCluster, java, wait_until
from zkconsumer.servers.legacy_jvm import compiled
from zkconsumer.servers.servers import sharing

SOURCE = Path(__file__).with_name("Transactions.java")
RECORDS = int(os.environ.get("ZKC_RECORDS", "12000"))
PLAIN, COMPACTED = "plain", "compacted"
TOPICS = f"{PLAIN},{COMPACTED}"
PARTITIONS = [TopicPartition(t, n) for t in (PLAIN, COMPACTED) for n in range(4)]
COMMITTED = {"isolation.level": "read_committed"}
PATIENCE = 60 + RECORDS / 5000

Place = tuple[str, int, int]
Offsets = Mapping[TopicPartition, list[int]]
"""What was read of each partition, in order."""


def by_partition(places: Iterable[Place]) -> Offsets:
    """Sort what was read by partition."""
    offsets: dict[TopicPartition, list[int]] = {tp: [] for tp in PARTITIONS}
    for topic, partition, offset in places:
        offsets[TopicPartition(topic, partition)].append(offset)
    return offsets


def run_java(*words: object) -> list[str]:
    """Run the Java program with the client of Kafka 3.9; return the lines that it prints."""
    argv = [java(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m"]
    argv += [*sharing("3.9", SOURCE.stem), "-cp", compiled("3.9", SOURCE), SOURCE.stem]
    argv += map(str, words)
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=600 + RECORDS / 500, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


class Truth(NamedTuple):
    """What the Java consumer reads."""

    offsets: Offsets
    ends: Mapping[TopicPartition, int]
    """Last stable offsets."""

    @property
    def count(self) -> int:
        """Number of records."""
        return sum(map(len, self.offsets.values()))


def read_java(cluster: LocalCluster) -> Truth:
    """Read all from the start to the last stable offsets."""
    places: list[Place] = []
    ends: dict[TopicPartition, int] = {}
    for line in run_java("read", cluster.bootstrap, TOPICS):
        *end, topic, partition, offset = line.split()
        if end:
            ends[TopicPartition(topic, int(partition))] = int(offset)
        else:
            places.append((topic, int(partition), int(offset)))
    return Truth(by_partition(places), ends)


def count_all(cluster: LocalCluster, topic: str) -> int:
    """Number of records in the log, aborted ones included."""
    connection = BrokerConnection(broker(cluster), "count", 10, 0)
    count = 0
    try:
        for tp in PARTITIONS:
            log = OneLog(connection, tp, 1 << 20)
            position, end = log.start, log.end if tp.topic == topic else 0
            while position < end:
                records, position = log.read(position, 0)
                count += len(list(records))
    finally:
        connection.close()
    return count


def broker(cluster: LocalCluster) -> BrokerEndpoint:
    """The only broker."""
    return BrokerEndpoint(0, "127.0.0.1", cluster.broker_servers[0].port)


@dataclass
class Scene:
    """A cluster of one line of Kafka, whose topics were written."""

    line: str
    cluster: LocalCluster
    truth: Truth
    """While a transaction is open."""
    ended: Truth | None = None

    def end(self) -> Truth:
        """Abort that transaction; return what the Java consumer reads then."""
        if self.ended is None:
            run_java("end", self.cluster.bootstrap)
            self.ended = read_java(self.cluster)
        return self.ended


@pytest.fixture(scope="module", params=["1.1", "4"])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """Each line's minimum of a segment's size decides whether a small log can be compacted."""
    quick = {"log.cleaner.backoff.ms": "100", "transaction.max.timeout.ms": "3600000"}
    with LocalCluster(request.param, properties=quick) as cluster:
        settings = dict(SETTINGS)
        if request.param == "4":
            del settings["segment.bytes"]
        elif RECORDS > 100_000:  # whose batches are longer
            settings["segment.bytes"] = str(RECORDS)
        cluster.create_topic(PLAIN, 4)
        cluster.create_topic(COMPACTED, 4, config=settings)
        seed = random.SystemRandom().randrange(1 << 32)
        print(f"seed {seed}")  # noqa: T201
        printed = run_java("write", cluster.bootstrap, TOPICS, 4, RECORDS, seed)
        written = {topic: int(count) for topic, count in map(str.split, printed)}
        assert count_all(cluster, PLAIN) == written[PLAIN]
        if request.param != "4":
            count, before = partial(count_all, cluster, COMPACTED), written[COMPACTED]
            compact(cluster, COMPACTED, count, before, PATIENCE)
        truth = read_java(cluster)
        assert RECORDS // 20 < truth.count < RECORDS
        plain = sum(len(truth.offsets[tp]) for tp in PARTITIONS if tp.topic == PLAIN)
        assert written[PLAIN] > 1.2 * plain
        yield Scene(request.param, cluster, truth)


WAYS: Mapping[str, Callable[[KafkaStream], Callable[[], Iterable[Any]]]] = {
    "iterator": lambda stream: lambda: [next(iter(stream))],
    "polls": lambda stream: polled(lambda: filter(None, [stream.try_next()])),
    "lists": lambda stream: lambda: next(stream.batches(100, timeout=0.5)),
    "polled lists": lambda stream: polled_items(stream.batches(7, timeout=0)),
    "columns": lambda stream: lambda: rows(next(stream.arrow_batches(timeout=0.5))),
    "polled columns": lambda stream: polled_items(map(rows, stream.arrow_batches(timeout=0))),
}


def polled_items(items: Iterator[Iterable[Any]]) -> Callable[[], Iterable[Any]]:
    """Poll an iterator that does not wait."""
    return polled(lambda: next(items))


def polled(poll: Callable[[], Iterable[Any]]) -> Callable[[], Iterable[Any]]:
    """Poll until there is something, for half a second."""

    def take() -> Iterable[Any]:
        deadline = time.monotonic() + 0.5
        while not (found := list(poll())) and time.monotonic() < deadline:
            time.sleep(0.002)
        return found

    return take


class Row(NamedTuple):
    """A row of columns, with the names of a message."""

    topic: str
    partition: int
    offset: int


def rows(batch: Any) -> list[Row]:
    """The places in a ``RecordBatch``."""
    names = ("topic", "partition", "offset")
    columns = [batch[name].to_pylist() for name in names]
    return [Row(*row) for row in zip(*columns, strict=True)]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_read_delivers_what_java_delivers(scene: Scene, way: str) -> None:
    """The same records in the same order, up to the last stable offset, which is where the lag
    ends. Answers are small, so they begin and end in the middle of transactions."""
    keys = {"zookeeper.connect": "127.0.0.1:1", "group.id": "g", "auto.offset.reset": "smallest"}
    keys |= COMMITTED | {"fetch.message.max.bytes": 1500, "fetch.max.bytes": 20_000}
    stream = KafkaStream(StreamReader(DeliveryGate(always_open=True), timeout_ms=500))
    manager = ConsumerFetcherManager(ConsumerConfig.parse(keys), "c")
    infos = {tp: PartitionTopicInfo(*tp, None) for tp in PARTITIONS}
    places: list[Place] = []
    take = WAYS[way](stream)

    def read() -> bool:
        with suppress(ConsumerTimeoutError):
            while found := list(take()):
                places.extend((each.topic, each.partition, each.offset) for each in found)
        return {tp: info.fetched_offset for tp, info in infos.items()} == scene.truth.ends

    try:
        manager.set_brokers([broker(scene.cluster)])
        manager.start(dict.fromkeys(infos.values(), stream._reader.queue))
        wait_until(read, PATIENCE, "all is fetched")
        read()
        stream.mark_consumed()
        assert by_partition(places) == scene.truth.offsets
        assert {info.lag for info in infos.values()} == {0}
        assert {tp: info.last_stable_offset for tp, info in infos.items()} == scene.truth.ends
    finally:
        manager.shutdown()


def connector(kind: str, scene: Scene, **keys: object) -> Any:
    """A member that reads from the beginning."""
    config: dict[str, object] = {
        "group.id": kind,
        "auto.offset.reset": "smallest",
        **COMMITTED,
        **{name.replace("_", "."): value for name, value in keys.items()},
    }
    if kind == "zookeeper":
        config["zookeeper.connect"] = scene.cluster.zookeeper
        return ZookeeperConsumerConnector(config)
    config["bootstrap.servers"] = scene.cluster.bootstrap
    if kind == "coordinator":
        return CoordinatorConsumerConnector(config)
    config["zookeeper.connect"] = scene.cluster.zookeeper
    return MigratableConsumerConnector(config)


def test_members_wait_for_an_open_transaction(scene: Scene) -> None:
    """Members of every kind deliver what the Java consumer delivers. ``health`` names the
    transaction that they wait for, and the lag is 0. When it was aborted, they deliver the rest."""
    kinds = ["zookeeper", "coordinator", "migratable"] if scene.line != "4" else ["coordinator"]
    members = {kind: connector(kind, scene) for kind in kinds}
    try:
        readers = {}
        for kind, member in members.items():
            found = member.create_message_streams({PLAIN: 2, COMPACTED: 1})
            readers[kind] = Reader([each for streams in found.values() for each in streams])

        def check(truth: Truth) -> None:
            for kind, reader in readers.items():
                reader.wait(truth.count, PATIENCE)
                metrics = members[kind].metrics
                wait_until(
                    lambda m=metrics: m().lag == dict.fromkeys(PARTITIONS, 0), 30, "the lag is 0"
                )
                got = ((each.topic, each.partition, each.offset) for each in reader.deliveries)
                assert by_partition(got) == truth.offsets, kind

        check(scene.truth)
        for member in members.values():
            (reason,) = (
                each
                for each in member.health(0.0).reasons
                if each.trouble is Trouble.OPEN_TRANSACTION
            )
            assert reason.count == 4
            assert "waits at offset" in reason.text
        truth = scene.end()
        assert truth.count > scene.truth.count
        check(truth)
        for member in members.values():
            troubles = [each.trouble for each in member.health(0.0).reasons]
            assert Trouble.OPEN_TRANSACTION not in troubles
    finally:
        for member in members.values():
            member.shutdown()


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command that reads what was committed."""
    argv = [sys.executable, "-m", "zkconsumer", *words]
    argv += ["--consumer-property", "isolation.level=read_committed"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=200, check=False)


def test_commands_read_what_was_committed(scene: Scene) -> None:
    """``consume`` of one partition, and ``perf``. The transactions have ended."""
    truth = scene.end()
    where = ("--bootstrap-server", scene.cluster.bootstrap, "--topic", PLAIN)
    words = ("--partition", "2", "--offset", "earliest", "--property", "print.offset=true")
    ran = command("consume", *where, *words, "--timeout-ms", "3000")
    offsets = [int(line.split("\t")[0].split(":")[1]) for line in ran.stdout.splitlines()]
    assert offsets == truth.offsets[TopicPartition(PLAIN, 2)], ran.stderr
    count = sum(len(truth.offsets[tp]) for tp in PARTITIONS if tp.topic == PLAIN)
    ran = command("perf", *where, "--messages", str(count + 1), "--timeout", "5000", "--json")
    assert json.loads(ran.stdout)["data.consumed.in.nMsg"] == count, ran.stderr
