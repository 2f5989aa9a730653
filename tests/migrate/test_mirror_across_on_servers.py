"""A running group is mirrored to another cluster and handed over, judged by the records that both
programs deliver.

Records are written in transactions to a 1.1 cluster all the time, and a quarter of the transactions
is aborted. A mirror of the topic copies the committed ones to a 3.9 cluster, and stays behind.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import Producer
from zkmigrate.model import KafkaOffset
from zkmigrate.plan.clusters.across import Copy, copy_in

from tests.integration.group_members import Join, Librdkafka
from tests.migrate.test_other_cluster import Clusters, clusters, is_right, records_of
from tests.support.endpoints import endpoints
from tests.support.groups import Reader
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.fetching.one_log import OneLog
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.servers import LocalCluster, wait_until

__all__ = ["clusters"]
PARTITIONS = 3
OWN = 7
"""Records of each partition that are in the other cluster alone."""
BEHIND = 50
"""Number of records of each partition that the topic's mirror has not copied."""
ROOT = Path(__file__).parents[2]
Id = tuple[int, int]
"""Partition and offset of a record in its own cluster."""


class Repeated:
    """A thread that does something again and again until it is closed. ``error``: what ended it."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work, self._end = work, threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._end.wait(0.05):
                self._work()
        except BaseException as error:  # noqa: BLE001
            self.error = error

    def close(self) -> None:
        """End it after the work in progress. Raises what has ended it before."""
        self._end.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


class Writer:
    """Writes a transaction of some records that are much alike."""

    def __init__(self, cluster: LocalCluster, topic: str, rng: random.Random) -> None:
        self._producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "transactional.id": topic}
        )
        self._producer.init_transactions()
        self._topic, self._rng, self._number = topic, rng, 0

    def __call__(self) -> None:
        rng, producer = self._rng, self._producer
        producer.begin_transaction()
        for _ in range(rng.randrange(1, 30)):
            producer.produce(
                self._topic, b"value %d" % rng.randrange(3), b"key %d" % rng.randrange(5),
                rng.randrange(PARTITIONS), headers=[("id", b"%d" % self._number)],
            )  # fmt: skip
            self._number += 1
        if rng.random() < 0.25:
            producer.flush()
            producer.abort_transaction()
        else:
            producer.commit_transaction()


class TopicMirror:
    """Copies the committed records that it has not copied yet, except the last ones."""

    def __init__(self, here: LocalCluster, there: LocalCluster, topic: str, to: str) -> None:
        (endpoint,) = endpoints(here)
        self._connection = BrokerConnection(endpoint, "tests", 30, 0)
        self._producer = Producer({"bootstrap.servers": there.bootstrap})
        self._topic, self._to = topic, to
        self._next = dict.fromkeys(range(PARTITIONS), 0)
        self.behind = BEHIND

    def __call__(self) -> None:
        for partition, begin in self._next.items():
            tp = TopicPartition(self._topic, partition)
            log = OneLog(self._connection, tp, 1 << 20, committed=True)
            position, records = begin, []
            while position < log.readable_end:
                some, position = log.read(position, 500)
                records += list(some)
            for record in records[: max(0, len(records) - self.behind)]:
                self._producer.produce(
                    self._to, record[4], record[3], partition,
                    timestamp=record[5], headers=list(record[7]),
                )  # fmt: skip
                self._next[partition] = record[2] + 1
        self._producer.flush()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class Command:
    """A command of zkmigrate in a process of its own."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._out, self._err = (folder / f"{words[0]}.{name}" for name in ("out", "err"))
        code = "from zkmigrate.cli import main; main()"
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, *words, "--json"],
                stdout=out, stderr=err, cwd=folder, env=os.environ | {"PYTHONPATH": path},
            )  # fmt: skip

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows that it has printed, one a line."""
        return [json.loads(line) for line in self._out.read_text().splitlines(keepends=True)]

    def errors(self) -> str:
        """Return what it has printed on standard error."""
        return self._err.read_text()

    def result(self) -> tuple[int, dict[str, Any]]:
        """Wait until it has ended; return its status and its only row."""
        status = self._process.wait(120)
        (row,) = json.loads(self._out.read_text())["rows"]
        return status, row

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def ids_of(cluster: LocalCluster, topic: str, places: Iterable[Id] | None = None) -> Counter[bytes]:
    """The records of a topic that consumers see, or those at some places of it."""
    found: dict[Id, bytes] = {}
    for partition in range(PARTITIONS):
        for offset, name in records_of(cluster, TopicPartition(topic, partition)):
            found[partition, offset] = name
    return Counter(found[one] for one in (found if places is None else places) if one in found)


@pytest.mark.parametrize("storage", ["zookeeper", "kafka"])
def test_a_running_group_is_handed_over(
    clusters: Clusters, unique: str, topic: str, tmp_path: Path, storage: str
) -> None:
    """The mirror follows as far as records are copied. Each offset that it stores is right. After
    the cut-over the new program reads exactly the records that the old one had not read. A group
    whose offsets are in Kafka also gets another name."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201
    here, there, _ = clusters
    group, other = f"g-{unique[-8:]}", f"old.{topic}"
    for cluster, name in ((here.cluster, topic), (there.cluster, other)):
        cluster.create_topic(name, PARTITIONS)
    own = Producer({"bootstrap.servers": there.cluster.bootstrap})
    for partition in range(PARTITIONS):
        for number in range(OWN):
            own.produce(other, b"own", b"own %d" % number, partition)
    own.flush()
    words = ("--group", group, "--zookeeper", here.cluster.zookeeper, "--execute")
    words += ("--to-cluster", there.cluster.bootstrap, "--topic-map", "*=old.*")
    there_named = group if storage == "zookeeper" else f"new-{group}"
    if there_named != group:
        words += ("--rename", "g-*=new-g-*")
    tps = [TopicPartition(other, number) for number in range(PARTITIONS)]
    samples: set[tuple[int, Copy]] = set()

    def sample() -> int:
        held = there.kafka.fetch(there_named, tps)
        for tp, one in held.items():
            copy = copy_in(KafkaOffset(*one))
            assert copy is not None
            samples.add((tp.partition, copy))
        return len(samples)

    with ExitStack() as stack:
        copier = stack.enter_context(
            closing(TopicMirror(here.cluster, there.cluster, topic, other))
        )
        copying = stack.enter_context(closing(Repeated(copier)))
        writing = Repeated(Writer(here.cluster, topic, random.Random(seed)))
        stack.enter_context(closing(writing))
        old = ZookeeperConsumerConnector(
            {
                "zookeeper.connect": here.cluster.zookeeper, "group.id": group,
                "auto.offset.reset": "smallest", "auto.commit.interval.ms": 200,
                "offsets.storage": storage, "dual.commit.enabled": False,
            }
        )  # fmt: skip
        stack.callback(old.shutdown)
        reader = Reader(old.create_message_streams({topic: 1})[topic])
        mirror = stack.enter_context(Command(tmp_path, "mirror", *words))
        wait_until(lambda: sample() >= 5 * PARTITIONS, 90, "the mirror follows")
        assert mirror.rows()[-1]["state"] == "behind"
        cut_over = stack.enter_context(Command(tmp_path, "cut-over", *words, "--wait", "60s"))
        wait_until(lambda: "waiting_for" in cut_over.errors(), 60, "it waits for the old program")
        old.shutdown()
        copier.behind = 0
        status, row = cut_over.result()
        assert (status, row["outcome"]) == (0, "done"), (row, cut_over.errors())
        sample()
        final = {
            tp.partition: one.offset for tp, one in there.kafka.fetch(there_named, tps).items()
        }
        states = {"in step", "behind", "handed over"}
        wait_until(lambda: mirror.rows()[-1]["state"] == "handed over", 60, "it is handed over")
        assert {one["state"] for one in mirror.rows()} <= states
        new = Librdkafka(Join(there.cluster.bootstrap, there_named, other, "range"))
        stack.callback(new.close)
        writing.close()
        copying.close()
        copier()
        every = ids_of(here.cluster, topic)
        before = ids_of(
            here.cluster, topic, [(one.partition, one.offset) for one in list(reader.deliveries)]
        )
        wait_until(
            lambda: before + ids_of(there.cluster, other, new.got()) >= every,
            60,
            "all records are read",
        )
        assert before + ids_of(there.cluster, other, new.got()) == every
    assert before
    assert min(offset for _, offset in new.got()) >= min(final.values())
    logs = {tp.partition: records_of(here.cluster, tp._replace(topic=topic)) for tp in tps}
    copies = {tp.partition: records_of(there.cluster, tp) for tp in tps}
    for partition, copy in samples:
        assert is_right(copy.source, copy.offset, logs[partition], copies[partition]), copy
