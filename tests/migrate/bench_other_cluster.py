"""``python -m tests.migrate.bench_other_cluster``: the same positions translated by MirrorMaker 2,
by timestamps, and by ``zkmigrate plan --to-cluster``, on two real clusters, judged by content.

MirrorMaker 2 copies topics from Kafka 3.9 to Kafka 4. A quarter of the transactions is aborted, and
the copies had records before. Keys and values are few, and a header names each record for the
judge. The groups have the same offsets in ZooKeeper and in Kafka.

With ``--many PARTITIONS``, ``zkmigrate`` alone translates the offsets of groups in ZooKeeper, for
topics of 100 partitions. An ``offset-syncs`` topic, as MirrorMaker 2 writes it, has nine tenths of
them. In a fifth, the other cluster has many newer records of its own before the copies, so that
times do not show where these are: only the syncs do, or, for the tenth without syncs, a search. The
command runs once alone, and once more in two parts: it is killed when it has proven half of the
offsets, and repeated. Each cluster has a broker for each 10,000 partitions, which needs 20,000
memory maps and 10,000 open files.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
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
from zkconsumer.servers.servers import read_metadata
from zkconsumer.servers.supervisor import Supervisor

TOPIC: Final = "orders"
SYNCS: Final = "mm2-offset-syncs.new.internal"
WIDTH: Final = 100
"""Number of partitions of each of many topics."""
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


def planning(here: LocalCluster, there: LocalCluster, *words: str) -> list[str]:
    """The words of the command that plans all groups."""
    command = [sys.executable, "-c", "from zkmigrate.cli import main; main()", "plan", "--all"]
    command += ["--zookeeper", here.zookeeper, "--to-cluster", there.bootstrap, "--json"]
    return [*command, *words]


def by_content(
    positions: Sequence[Position], here: LocalCluster, there: LocalCluster, *words: str
) -> tuple[Mapping[Position, int | None], Counter[str], str]:
    """Offsets that are proven, the verdicts, and what the process has used."""
    began = time.monotonic()
    with subprocess.Popen(planning(here, there, *words), stdout=subprocess.PIPE) as ran:
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


def check_limits(partitions: int) -> None:
    """Exit if a broker may not have enough open files and memory maps for its partitions."""
    maps = Path("/proc/sys/vm/max_map_count")
    limits = [("open files (ulimit -n)", resource.getrlimit(resource.RLIMIT_NOFILE)[1], 1)]
    if maps.exists():
        limits.append(("memory maps (sysctl vm.max_map_count)", int(maps.read_text()), 2))
    for name, limit, each in limits:
        needed = partitions * each + 2000
        if limit < needed:
            sys.exit(f"a broker needs {needed} {name}, but the limit is {limit}: raise it")


def create_topics(cluster: LocalCluster, topics: Sequence[str]) -> None:
    """Create topics, and wait until every broker knows all leaders."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for begin in range(0, len(topics), 20):
        new = [NewTopic(name, WIDTH, 1) for name in topics[begin : begin + 20]]
        for created in admin.create_topics(new, operation_timeout=600).values():
            created.result(1200)

    def known(port: int) -> bool:
        view = read_metadata(port)
        return view is not None and all(
            sum(leader >= 0 for leader in view.leaders.get(name, {}).values()) == WIDTH
            for name in topics
        )

    for server in cluster.broker_servers:
        wait_until(partial(known, server.port), 1200, "all partitions have leaders")


def fill(
    here: LocalCluster, there: LocalCluster, topics: Sequence[str], count: int, rng: random.Random
) -> Mapping[TopicPartition, int]:
    """Write the records and MirrorMaker 2's syncs. Return where each partition's copies begin."""
    source, target = (Producer({"bootstrap.servers": one.bootstrap}) for one in (here, there))
    shifts: dict[TopicPartition, int] = {}
    failed: list[KafkaError] = []

    def told(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            failed.append(error)

    here.create_topic(SYNCS, 1)
    for topic in topics:
        for number in range(WIDTH):
            tp = TopicPartition(topic, number)
            shifts[tp] = rng.randrange(10) if number % 5 else rng.randrange(200, 400)
            for own in range(shifts[tp]):
                target.produce(topic, b"own %d" % own, partition=number, on_delivery=told)
            for at in range(count):
                value = b"%d of %d" % (at, number)
                for producer in (source, target):
                    producer.produce(
                        topic, value, partition=number, timestamp=10**12 + at, on_delivery=told
                    )
            if number % 10:
                key = struct.pack(f">h{len(topic)}si", len(topic), topic.encode(), number)
                pair = struct.pack(">qq", 0, shifts[tp])
                source.produce(SYNCS, pair, key, 0, on_delivery=told)
        for producer in (source, target):
            producer.flush()
        assert not failed, failed[0]
    return shifts


def many(partitions: int, count: int, seed: int) -> None:
    """Translate offsets in many partitions, whole and in two parts, and print."""
    brokers = -(-partitions // 10_000)
    check_limits(-(-partitions // brokers))
    rng = random.Random(seed)
    topics = [f"{TOPIC}-{number:03}" for number in range(-(-partitions // WIDTH))]
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster("3.9", brokers) as here,
        LocalCluster("4", brokers) as there,
    ):
        for cluster in (here, there):
            create_topics(cluster, topics)
        print("topics are created", flush=True)  # noqa: T201
        shifts = fill(here, there, topics, count, rng)
        print("records are written", flush=True)  # noqa: T201
        positions = [
            Position(f"group-{number // 4}", TopicPartition(topic, part), rng.randrange(count + 1))
            for number, topic in enumerate(topics)
            for part in range(WIDTH)
        ]
        client = KazooClient(here.zookeeper, timeout=30.0)
        client.start()
        for begin in range(0, len(positions), WIDTH):
            some = positions[begin : begin + WIDTH]
            path = f"/consumers/{some[0].group}/offsets/{some[0].tp.topic}"
            client.ensure_path(path)
            transaction = client.transaction()
            for one in some:
                transaction.create(f"{path}/{one.tp.partition}", b"%d" % one.offset)
            assert all(isinstance(each, str) for each in transaction.commit())
        client.stop()
        client.close()

        def report(name: str, *words: str) -> None:
            found, proofs, used = by_content(positions, here, there, *words)
            right = sum(at == one.offset + shifts[one.tp] for one, at in found.items())
            print(f"{name}: {dict(proofs)}, {right} right, {used}", flush=True)  # noqa: T201

        print(f"seed {seed}: {len(positions)} partitions", flush=True)  # noqa: T201
        report("whole")
        proofs = Path(folder, "proofs")
        proofs.touch()
        words = planning(here, there, "--proofs", str(proofs))
        began = time.monotonic()
        with subprocess.Popen(words, stdout=subprocess.DEVNULL) as ran:
            wait_until(
                lambda: proofs.read_bytes().count(b"\n") > len(positions) // 2,
                3600,
                "half of the offsets are proven",
            )
            ran.kill()
        done = proofs.read_bytes().count(b"\n") - 1
        seconds = time.monotonic() - began
        print(f"killed after {seconds:.1f} s, with {done} proofs", flush=True)  # noqa: T201
        report("resumed", "--proofs", str(proofs))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--records", type=int, help="in each partition: 4700, or 10 with --many")
    parser.add_argument("--groups", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--many", type=int, metavar="PARTITIONS", help="as described above")
    given = parser.parse_args()
    if given.many:
        many(given.many, given.records or 10, given.seed)
    else:
        run(given.partitions, given.records or 4700, given.groups, given.seed)
