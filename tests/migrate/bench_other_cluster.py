"""``python -m tests.migrate.bench_other_cluster``: the same positions translated by MirrorMaker 2,
by timestamps, and by ``zkmigrate plan --to-cluster``, on two real clusters, judged by content.

MirrorMaker 2 copies topics from Kafka 3.9 to Kafka 4. A quarter of the transactions is aborted, and
the copies had records before. Keys and values are few, and a header names each record for the
judge. The groups have the same offsets in ZooKeeper and in Kafka.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka import Producer
from kazoo.client import KazooClient

from tests.migrate.rows import rows_of
from tests.migrate.test_other_cluster import Copy, read, records_of, write
from tests.support.endpoints import endpoints
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.fetching.list_offsets import NONE, list_offsets
from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.broker.groups.group_coordinators import GroupCoordinators
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.errors import BrokerError
from zkconsumer.servers import LocalCluster, wait_until
from zkconsumer.servers.jars import JVM_FILES, fetch_pinned, java
from zkconsumer.servers.supervisor import Supervisor

TOPIC: Final = "orders"
POM: Final = Path(__file__).with_name("mirror-maker.xml")
WAYS: Final = ("MirrorMaker 2", "timestamps", "zkmigrate")
Logs = Mapping[TopicPartition, Sequence[Copy]]


class Position(NamedTuple):
    """A committed offset."""

    group: str
    tp: TopicPartition
    offset: int


class Figures(NamedTuple):
    """What a way has come to. ``behind``: by how many records; ``skips``: too far."""

    exact: int
    behind: Sequence[int]
    skips: int
    untranslated: int

    def row(self, way: str) -> str:
        """A row of a table."""
        most = f" (up to {max(self.behind)} records)" if self.behind else ""
        cells = f"{self.exact} | {len(self.behind)}{most} | {self.skips} | {self.untranslated}"
        return f"| {way} | {cells} |"


def properties(here: LocalCluster, there: LocalCluster) -> str:
    """MirrorMaker 2's configuration: it copies the topic without another name, and offsets."""
    settings = {
        "clusters": "old, new",
        "old.bootstrap.servers": here.bootstrap,
        "new.bootstrap.servers": there.bootstrap,
        "old->new.enabled": "true",
        "new->old.enabled": "false",
        "topics": TOPIC,
        "groups": ".*",
        "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
        "emit.heartbeats.enabled": "false",
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "3",
        "emit.checkpoints.interval.seconds": "3",
        "refresh.groups.interval.seconds": "3",
        "offset.flush.interval.ms": "3000",
    }
    names = ["checkpoints.topic", "offset-syncs.topic", "offset.storage", "status.storage"]
    names += ["config.storage", "heartbeats.topic"]
    settings |= {f"{name}.replication.factor": "1" for name in names}
    settings["replication.factor"] = "1"
    return "".join(f"{key} = {value}\n" for key, value in settings.items())


def judged(
    positions: Sequence[Position], found: Mapping[Position, int | None], here: Logs, there: Logs
) -> Figures:
    """Judge offsets by the records that follow them."""
    exact = skips = untranslated = 0
    behind: list[int] = []
    for one in positions:
        at = found.get(one)
        if at is None:
            untranslated += 1
            continue
        place = {name: offset for offset, name in there[one.tp]}
        rest = [name for offset, name in here[one.tp] if offset >= one.offset]
        done = [name for offset, name in here[one.tp] if offset < one.offset]
        again = sum(place[name] >= at for name in done)
        if any(place[name] < at for name in rest):
            skips += 1
        elif again:
            behind.append(again)
        else:
            exact += 1
    return Figures(exact, behind, skips, untranslated)


def by_times(
    positions: Sequence[Position], here: LocalCluster, there: LocalCluster
) -> Mapping[Position, int | None]:
    """Offsets as ``kafka-consumer-groups.sh --to-datetime`` finds them: by the time of the next
    record."""
    (endpoint,) = endpoints(there)
    connection = BrokerConnection(endpoint, "bench", 30, 0)
    found: dict[Position, int | None] = {}
    records = {tp: read(here, tp) for tp in {one.tp for one in positions}}
    for one in positions:
        following = next((each for each in records[one.tp] if each[2] >= one.offset), None)
        at: int | BrokerError = NONE
        if following is not None:
            at = list_offsets(connection, [one.tp], following[5])[one.tp]
        found[one] = at if isinstance(at, int) and at != NONE else None
    connection.close()
    return found


def by_content(
    positions: Sequence[Position], here: LocalCluster, there: LocalCluster
) -> tuple[Mapping[Position, int | None], Counter[str], str]:
    """Offsets that are proven, the verdicts, and what the process has used."""
    words = [sys.executable, "-c", "from zkmigrate.cli import main; main()", "plan", "--all"]
    words += ["--zookeeper", here.zookeeper, "--to-cluster", there.bootstrap, "--json"]
    began = time.monotonic()
    with subprocess.Popen(words, stdout=subprocess.PIPE) as ran:
        assert ran.stdout is not None
        rows = rows_of(ran.stdout.read().decode())
        used = os.wait4(ran.pid, 0)[2]
    seconds, cpu = time.monotonic() - began, used.ru_utime + used.ru_stime
    text = f"{seconds:.1f} s, {cpu:.1f} s of CPU, {used.ru_maxrss // 1024} MiB"
    known = {(one.group, one.tp): one for one in positions}
    found = {
        known[row["group"], TopicPartition(row["topic"], row["partition"])]: row["to_offset"]
        for row in rows
        if row["proof"] == "proven"
    }
    return found, Counter(row["proof"] for row in rows), text


def commit(cluster: LocalCluster, positions: Sequence[Position], groups: GroupCoordinators) -> None:
    """Store the offsets in ZooKeeper and in Kafka."""
    client = KazooClient(cluster.zookeeper, timeout=30.0)
    client.start()
    by_group: dict[str, dict[TopicPartition, StoredOffset]] = {}
    for one in positions:
        path = f"/consumers/{one.group}/offsets/{TOPIC}/{one.tp.partition}"
        client.create(path, b"%d" % one.offset, makepath=True)
        by_group.setdefault(one.group, {})[one.tp] = StoredOffset(one.offset)
    client.stop()
    client.close()
    for group, offsets in by_group.items():
        assert not groups.commit(group, offsets)


def run(partitions: int, count: int, groups: int, seed: int) -> None:
    """Set up, mirror, translate and print."""
    rng = random.Random(seed)
    tps = [TopicPartition(TOPIC, number) for number in range(partitions)]
    mirror = Supervisor()
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster("3.9") as here,
        LocalCluster("4") as there,
    ):
        for cluster in (here, there):
            cluster.create_topic(TOPIC, partitions)
        before = Producer({"bootstrap.servers": there.bootstrap})
        for tp in tps:
            for number in range(rng.randrange(10, 60)):
                before.produce(TOPIC, b"before %d" % number, partition=tp.partition)
        before.flush()
        write(here, TOPIC, rng, partitions, count, 5)
        source = {tp: records_of(here, tp) for tp in tps}
        positions = [
            Position(f"group-{number}", tp, rng.randrange(source[tp][-1][0]))
            for number in range(groups)
            for tp in tps
        ]
        brokers = GroupCoordinators("bench", lambda: endpoints(here))
        commit(here, positions, brokers)
        brokers.close()
        file = Path(folder, "mirror.properties")
        file.write_text(properties(here, there))
        log = Path(os.environ.get("MIRROR_LOG") or Path(folder, "mirror.log"))
        main = "org.apache.kafka.connect.mirror.MirrorMaker"
        jars = fetch_pinned("mirror-maker-3.9.1", POM)
        words = [java(), "-Xmx512m", f"-Dlog4j.configuration=file:{JVM_FILES / 'log4j.properties'}"]
        mirror.start("mirror", [*words, "-cp", f"{jars}/*", main, str(file)], log)

        def ends() -> list[bytes]:
            return [log[-1][1] for tp in tps if (log := records_of(there, tp))]

        lasts = [source[tp][-1][1] for tp in tps]
        wait_until(lambda: ends()[-len(lasts) :] == lasts, 300, "all records are mirrored")
        other = GroupCoordinators("bench", lambda: endpoints(there))

        def synced() -> Mapping[Position, int | None]:
            names = {one.group for one in positions}
            held = {group: other.fetch(group, tps) for group in names}
            return {
                one: held[one.group][one.tp].offset if one.tp in held[one.group] else None
                for one in positions
            }

        seen: list[Mapping[Position, int | None]] = []

        def settled() -> bool:
            time.sleep(4)
            seen.append(synced())
            return any(seen[-1].values()) and seen[-4:].count(seen[-1]) == 4

        wait_until(settled, 300, "MirrorMaker 2 has translated what it can")
        other.close()
        target = {tp: records_of(there, tp) for tp in tps}
        there_ids = {tp: {name for _, name in target[tp]} for tp in tps}
        assert all(name in there_ids[tp] for tp in tps for _, name in source[tp])
        total = sum(map(len, source.values()))
        copies = sum(map(len, target.values()))
        text = f"{total} committed records, {copies} copies, {len(positions)} positions"
        print(f"seed {seed}: {text}")  # noqa: T201
        exact, proofs, used = by_content(positions, here, there)
        found = (seen[-1], by_times(positions, here, there), exact)
        print("| way | exact | behind | skips | untranslated |\n|---|---|---|---|---|")  # noqa: T201
        for way, one in zip(WAYS, found, strict=True):
            print(judged(positions, one, source, target).row(way), flush=True)  # noqa: T201
        print(f"zkmigrate: {dict(proofs)}, {used}")  # noqa: T201
    mirror.close()


def scale(partitions: int, count: int, seed: int) -> None:
    """Translate one group's offsets in many partitions; in a tenth, newer records of the other
    cluster's own are before the copies, and nothing recorded where the copies are."""
    rng = random.Random(seed)
    topics = [f"{TOPIC}-{number:03}" for number in range(-(-partitions // 200))]
    tps = [TopicPartition(topic, number) for topic in topics for number in range(200)]
    with LocalCluster("3.9") as here, LocalCluster("4") as there:
        for cluster in (here, there):
            for topic in topics:
                cluster.create_topic(topic, 200)
        producers = [Producer({"bootstrap.servers": one.bootstrap}) for one in (here, there)]
        shifts: dict[TopicPartition, int] = {}
        for number, tp in enumerate(tps):
            shifts[tp] = 3000 if number % 10 == 0 else rng.randrange(10)
            for own in range(shifts[tp]):
                producers[1].produce(tp.topic, b"own %d" % own, partition=tp.partition)
            for at in range(count):
                for producer in producers:
                    producer.produce(
                        tp.topic, b"%d" % at, partition=tp.partition, timestamp=10**12 + at
                    )
            for producer in producers:
                producer.flush()
        positions = [Position("group", tp, rng.randrange(count)) for tp in tps]
        client = KazooClient(here.zookeeper, timeout=30.0)
        client.start()
        for one in positions:
            path = f"/consumers/group/offsets/{one.tp.topic}/{one.tp.partition}"
            client.create(path, b"%d" % one.offset, makepath=True)
        client.stop()
        client.close()
        found, proofs, used = by_content(positions, here, there)
        right = sum(at == one.offset + shifts[one.tp] for one, at in found.items())
        print(f"{len(tps)} partitions: {dict(proofs)}, {right} right, {used}")  # noqa: T201


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--records", type=int, default=4700, help="in each partition")
    parser.add_argument("--groups", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--scale", action="store_true", help="many partitions, no MirrorMaker 2")
    given = parser.parse_args()
    if given.scale:
        scale(given.partitions, given.records, given.seed)
    else:
        run(given.partitions, given.records, given.groups, given.seed)
