"""Offsets for another cluster, judged by the records that follow them there.

A mirror copies the committed records of a topic from a 1.1 cluster to a 3.9 cluster, and sometimes
repeats some, as MirrorMaker does after a restart.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition as Place
from confluent_kafka.admin import AdminClient
from zkmigrate.stores.contents import Contents

from tests.integration.group_members import Java, Join, Jvm, KafkaPython, Librdkafka, Ours
from tests.migrate.rows import run
from tests.support.compaction import SETTINGS, compact
from tests.support.endpoints import endpoints
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.fetching.one_log import OneLog
from zkconsumer.broker.fetching.records import Record
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.servers import LocalCluster, LocalZooKeeper, wait_until

if TYPE_CHECKING:
    from conftest import Bench, Shell  # type: ignore[import-not-found]

PARTITIONS = 3
RECORDS = 1000
Copy = tuple[int, bytes]
"""An offset, and the record's header, which no other record has."""


class Clusters(NamedTuple):
    """The groups' cluster and the other one, and the migrator's commands on the groups' cluster."""

    here: Bench
    there: Bench
    shell: Shell


@pytest.fixture
def clusters(
    bench: Bench,
    bench_of: Callable[[str, Path], Bench],
    shell_on: Callable[[LocalCluster], Shell],
    tmp_path: Path,
) -> Iterator[Clusters]:
    """Kafka 1.1, and Kafka 3.9."""
    here = bench_of("1.1", tmp_path)
    yield Clusters(here, bench, shell_on(here.cluster))
    here.close()


def write(
    cluster: LocalCluster, topic: str, rng: random.Random, partitions: int, count: int, keys: int
) -> int:
    """Write about so many records into each partition, in transactions, a quarter of which is
    aborted, with few keys and values. Return the number of committed ones."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    number = committed = 0
    while number < count * partitions:
        begun = number
        producer.begin_transaction()
        for _ in range(rng.randrange(1, 40 * partitions)):
            producer.produce(
                topic, b"value %d" % rng.randrange(3), b"key %d" % rng.randrange(keys),
                rng.randrange(partitions), headers=[("id", b"%d" % number)],
            )  # fmt: skip
            number += 1
        if rng.random() < 0.25:
            producer.flush()
            producer.abort_transaction()
        else:
            producer.commit_transaction()
            committed += number - begun
    return committed


def mirror(here: LocalCluster, topic: str, there: LocalCluster, to: str, rng: random.Random) -> int:
    """Copy the committed records, in transactions; repeat some twice in each partition. Return the
    number of copies."""
    producer = Producer({"bootstrap.servers": there.bootstrap, "transactional.id": to})
    producer.init_transactions()
    copied = 0
    for partition in range(PARTITIONS):
        records = read(here, TopicPartition(topic, partition))
        at, repeats = 0, 2
        while at < len(records):
            producer.begin_transaction()
            some = records[at : at + rng.randrange(1, 60)]
            for record in some:
                producer.produce(
                    to, record[4], record[3], partition,
                    timestamp=record[5], headers=list(record[7]),
                )  # fmt: skip
            producer.commit_transaction()
            at += len(some)
            copied += len(some)
            if repeats and at > len(records) * (3 - repeats) // 4:
                at -= min(at, 20)
                repeats -= 1
    return copied


def read(cluster: LocalCluster, tp: TopicPartition) -> list[Record]:
    """Return what consumers see of a partition."""
    (endpoint,) = endpoints(cluster)
    connection = BrokerConnection(endpoint, "tests", 30, 0)
    log = OneLog(connection, tp, 1 << 20, committed=True)
    found: list[Record] = []
    position, end = log.start, log.readable_end
    while position < end:
        records, position = log.read(position, 500)
        found += records
    connection.close()
    return found


def records_of(cluster: LocalCluster, tp: TopicPartition) -> list[Copy]:
    """The records of a partition by their headers; those without are not copies."""
    return [(one[2], one[7][0][1] or b"") for one in read(cluster, tp) if one[7]]


def count_of(cluster: LocalCluster, topic: str) -> int:
    """The number of records that consumers see of a topic."""
    return sum(len(read(cluster, TopicPartition(topic, number))) for number in range(PARTITIONS))


def is_right(offset: int, there: int, here: Sequence[Copy], copies: Sequence[Copy]) -> bool:
    """Whether a consumer that continues there sees everything that remains, and of what was
    consumed only what the mirror has repeated."""
    first: dict[bytes, int] = {}
    last: dict[bytes, int] = {}
    for at, name in copies:
        first.setdefault(name, at)
        last[name] = at
    rest = [name for at, name in here if at >= offset and name in first]
    done = [name for at, name in here if at < offset and name in first]
    return all(last[name] >= there for name in rest) and all(first[name] < there for name in done)


@pytest.mark.parametrize("compacted", [False, True])
def test_each_position_is_proven_and_right(
    clusters: Clusters, unique: str, topic: str, tmp_path: Path, compacted: bool
) -> None:
    """Aborted transactions, markers in both logs, records before the mirror's, retention in both
    clusters, few keys and values, compaction of both topics: every position whose next record is
    there once is proven, and none that is proven is wrong. The file has the offsets of the groups
    that are ready."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201
    rng = random.Random(seed)
    here, there, shell = clusters
    other = f"old.{topic}"
    config = SETTINGS if compacted else {}
    here.cluster.create_topic(topic, PARTITIONS, config=config)
    there.cluster.create_topic(other, PARTITIONS, config=config)
    own = Producer({"bootstrap.servers": there.cluster.bootstrap})
    for partition, number in itertools.product(range(PARTITIONS), range(7)):
        own.produce(other, b"own", b"own %d" % number, partition)
    own.flush()
    written = write(here.cluster, topic, rng, PARTITIONS, RECORDS, 200 if compacted else 5)
    copied = mirror(here.cluster, topic, there.cluster, other, rng)
    if compacted:
        compact(here.cluster, topic, partial(count_of, here.cluster, topic), written, 120)
        copied += 7 * PARTITIONS
        compact(there.cluster, other, partial(count_of, there.cluster, other), copied, 120)
    for cluster, name, before in ((here.cluster, topic, 40), (there.cluster, other, 20)):
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        for deleted in admin.delete_records([Place(name, 0, before)]).values():
            deleted.result(30)
    tps = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    logs = {tp: records_of(here.cluster, tp) for tp in tps}
    copies = {tp: records_of(there.cluster, TopicPartition(other, tp.partition)) for tp in tps}
    groups = [f"{unique[-8:]}-{number}" for number in range(12)]
    for number, group in enumerate(groups):
        ends = {tp.partition: logs[tp][-1][0] + 1 for tp in tps}
        positions = {part: rng.randrange(40, end) for part, end in ends.items()}
        here.set_zk(group, topic, ends if number == 0 else positions)

    words = ("--to-cluster", there.cluster.bootstrap, "--topic-map", f"{topic}=old.{topic}")
    chosen = [word for group in groups for word in ("--group", group)]
    file = tmp_path / "offsets.csv"
    status, rows = shell.rows("plan", *chosen, *words, "--offsets-out", str(file))
    assert len(rows) == len(groups) * PARTITIONS
    for row in rows:
        tp = TopicPartition(row["topic"], row["partition"])
        following = next((name for at, name in logs[tp] if at >= row["offset"]), None)
        count = Counter(name for _, name in copies[tp])[following] if following else 1  # type: ignore[index]
        assert row["to_topic"] == other
        if row["proof"] == "proven":
            assert is_right(row["offset"], row["to_offset"], logs[tp], copies[tp]), row
        if count == 1:
            assert row["proof"] == "proven", row
            assert row["compared"] >= 3
    ready = {row["group"] for row in rows} - {row["group"] for row in rows if row["kind"]}
    assert groups[0] in ready
    assert status == (0 if len(ready) == len(groups) else 3)
    in_file = {
        (row["group"], str(row["partition"])): str(row["to_offset"])
        for row in rows
        if row["group"] in ready
    }
    assert {(one, part): to for one, _, part, to in csv.reader(file.open())} == in_file

    status, rows = shell.rows("plan", *chosen, *words, "--not-proven", "lower")
    for row in rows:
        tp = TopicPartition(row["topic"], row["partition"])
        last = {name: at for at, name in copies[tp]}
        rest = [name for at, name in logs[tp] if at >= row["offset"]]
        assert row["proof"] == "unknown" or all(
            last.get(name, 2**62) >= row["to_offset"] for name in rest
        )


def test_what_is_no_mirror_is_refused(
    clusters: Clusters, unique: str, topic: str, tmp_path: Path
) -> None:
    """Constant records are bounded and a decision; a topic that is missing, empty, other, divided
    otherwise or in the same cluster has no offset, and the file has none of such a group."""
    here, there, shell = clusters
    group = f"group-{unique[-8:]}"
    here.topic(topic, 2, 20)
    here.set_zk(group, topic, {0: 5, 1: 20})
    for name, partitions, messages in (("constant", 2, 20), ("empty", 2, 0), ("more", 3, 20)):
        there.topic(f"{name}-{topic}", partitions, messages)
    there.topic(f"other-{topic}", 2, 0)
    producer = Producer({"bootstrap.servers": there.cluster.bootstrap})
    for number in range(20):
        producer.produce(f"other-{topic}", b"%d" % number, partition=number % 2)
    producer.flush()
    where = ("--to-cluster", there.cluster.bootstrap)

    def found(name: str, *words: str) -> tuple[int, list[tuple[object, ...]], str]:
        file = tmp_path / f"{name}-{len(words)}"
        named = ("--topic-map", f"*={name}-*", "--offsets-out", str(file))
        status, rows = shell.rows("plan", "--group", group, *where, *named, *words)
        keys = ("proof", "to_offset", "highest", "kind")
        return status, [tuple(row[key] for key in keys) for row in rows], file.read_text()

    same = ("bounded", 0, 19, "not-proven"), ("bounded", 0, 20, "not-proven")
    assert found("constant") == (3, [*same], "")
    lower = [(*one[:3], "") for one in same]
    text = f"constant-{topic},0,0\nconstant-{topic},1,0\n"
    assert found("constant", "--not-proven", "lower") == (0, lower, text)
    unknown = [("unknown", None, None, "not-proven")] * 2
    assert found("empty", "--not-proven", "lower") == (3, unknown, "")
    assert found("other", "--not-proven", "lower") == (3, unknown, "")
    assert found("more") == (3, [("", None, None, "partition-missing")] * 2, "")
    assert found("missing") == (3, [("", None, None, "topic-missing")] * 2, "")
    own = ("--to-cluster", here.cluster.bootstrap)
    status, _, err = shell("plan", "--group", group, *own)
    assert status == 2
    assert "is the cluster that the groups are already in" in err


def test_groups_of_kafka_and_new_names(
    clusters: Clusters, unique: str, topic: str, tmp_path: Path
) -> None:
    """Offsets may be taken from a file, so also of groups that only Kafka has; groups get other
    names in the other cluster."""
    here, there, shell = clusters
    one, two = f"{unique[-8:]}-1", f"{unique[-8:]}-2"
    for bench, own in ((here, 0), (there, 9)):
        bench.topic(topic, 1, 0)
        producer = Producer({"bootstrap.servers": bench.cluster.bootstrap})
        for number in range(-own, 20):
            producer.produce(topic, b"%d" % number, partition=0, timestamp=10**12 + number)
        producer.flush()
    here.set_kafka(two, topic, {0: 12})
    before, file = tmp_path / "before.csv", tmp_path / "after.csv"
    before.write_text(f"{one},{topic},0,20\n{two},{topic},0,12\n")
    status, rows = shell.rows(
        "plan", "--all", "--from-file", str(before), "--rename", f"{one}=new-{one}",
        "--to-cluster", there.cluster.bootstrap, "--offsets-out", str(file),
    )  # fmt: skip
    keys = ("group", "kafka_group", "offset", "to_offset", "proof")
    assert (status, [tuple(row[key] for key in keys) for row in rows]) == (
        0, [(one, f"new-{one}", 20, 29, "proven"), (two, "", 12, 21, "proven")],
    )  # fmt: skip
    assert file.read_text() == f"{two},{topic},0,21\nnew-{one},{topic},0,29\n"

    made = str(tmp_path / "made.plan")
    words = ("--from-file", str(before), "--to-cluster", there.cluster.bootstrap)
    assert shell("plan", "--all", *words, "--out", made)[0] == 0
    status, rows = shell.rows("apply", made, "--execute")
    assert (status, [row["outcome"] for row in rows]) == (0, ["done", "done"])
    config = {"bootstrap.servers": there.cluster.bootstrap, "enable.auto.commit": False}
    consumer = Consumer({**config, "group.id": two})
    consumer.assign([Place(topic, 0)])  # from the committed offset on
    assert [one.value() for one in consumer.consume(8, 30.0)] == [b"%d" % n for n in range(12, 20)]
    consumer.close()

    there.set_kafka(two, topic, {0: 14})  # as MirrorMaker 2 does it
    words = ("--group", two, "--from-file", str(before), "--to-cluster", there.cluster.bootstrap)
    status, (row,) = shell.rows("plan", *words)
    assert (status, row["to_offset"], row["found"], row["kind"]) == (3, 21, 14, "group-exists")
    there.set_kafka(two, topic, {0: 21})
    status, (row,) = shell.rows("plan", *words)
    assert (status, row["to_offset"], row["found"], row["kind"]) == (0, 21, 21, "")

    there.set_kafka(two, topic, {0: 26})  # the group has read five records there, and goes back
    back = str(tmp_path / "back.plan")
    words = ("--group", two, "--from-cluster", there.cluster.bootstrap, "--out", back)
    assert shell("plan", *words, "--direction", "kafka-to-zk")[0] == 0
    status, (row,) = shell.rows("apply", back, "--execute")
    assert (status, row["outcome"]) == (0, "done")
    assert here.znodes(two)[f"/consumers/{two}/offsets/{topic}/0"] == b"17"


@pytest.mark.parametrize("client", [Ours, KafkaPython, Librdkafka, Java])
def test_consumers_of_every_client_continue_there(
    clusters: Clusters, unique: str, topic: str, tmp_path: Path, client: type[Any]
) -> None:
    """Each reads in the other cluster exactly the records that its group had not consumed here,
    judged by their contents."""
    here, there, shell = clusters
    group = f"group-{unique[-8:]}"
    positions = {0: 13, 1: 0, 2: 20}
    for bench, own in ((here, 0), (there, 7)):
        bench.topic(topic, PARTITIONS, 0)
        producer = Producer({"bootstrap.servers": bench.cluster.bootstrap})
        for number, partition in itertools.product(range(-own, 20), range(PARTITIONS)):
            value = b"%d in %d" % (number, partition)
            producer.produce(topic, value, partition=partition, timestamp=10**12 + number)
        producer.flush()
    here.set_zk(group, topic, positions)
    made = str(tmp_path / "made.plan")
    words = ("--group", group, "--to-cluster", there.cluster.bootstrap, "--out", made)
    assert shell("plan", *words)[0] == 0
    assert shell("apply", made, "--execute")[0] == 0
    join = Join(there.cluster.bootstrap, group, topic, "range")
    expected = [b"%d in %d" % (at, p) for p, first in positions.items() for at in range(first, 20)]
    values = {
        (partition, one[2]): one[4]
        for partition in positions
        for one in read(there.cluster, TopicPartition(topic, partition))
    }
    with contextlib.ExitStack() as stack:
        jvm = (stack.enter_context(contextlib.closing(Jvm(tmp_path))),) if client is Java else ()
        member = client(join, *jvm)
        stack.callback(member.close)
        wait_until(lambda: len(member.got()) >= len(expected), 60, "all records are read")
        assert Counter(values[one] for one in member.got()) == Counter(expected)


def test_a_source_that_hides_zookeeper(
    clusters: Clusters, unique: str, topic: str, tmp_path: Path
) -> None:
    """A group that only Kafka has, in a cluster whose brokers alone can be reached: an empty
    ZooKeeper takes the place of the cluster's own. The other cluster's is never asked for."""
    here, there, _ = clusters
    group = f"group-{unique[-8:]}"
    for bench, own in ((here, 0), (there, 7)):
        bench.topic(topic, 1, 0)
        producer = Producer({"bootstrap.servers": bench.cluster.bootstrap})
        for number in range(-own, 20):
            producer.produce(topic, b"%d" % number, partition=0, timestamp=10**12 + number)
        producer.flush()
    here.set_kafka(group, topic, {0: 12})
    file, made = str(tmp_path / "old.csv"), str(tmp_path / "made.plan")
    with LocalZooKeeper() as empty:
        words = ("--zookeeper", empty.zookeeper, "--bootstrap-server", here.cluster.bootstrap)
        export = ("offsets", "export", "--group", group, "--store", "kafka", "--format", "csv")
        assert run([*export, *words, "--out", file]) == 0
        plan = ("plan", "--group", group, "--from-file", file)
        plan += ("--to-cluster", there.cluster.bootstrap)
        assert run([*plan, *words, "--out", made]) == 0
        assert run(["apply", made, *words, "--execute"]) == 0
    tp = TopicPartition(topic, 0)
    assert there.kafka.fetch(group, [tp])[tp].offset == 19


def test_parts_of_logs_are_complete(bench: Bench, topic: str) -> None:
    """Of any part that is read, no record is missing; many parts at once are the same."""
    bench.topic(topic, 2, 50)
    tps = [TopicPartition(topic, number) for number in range(2)]
    tp = tps[0]
    contents, ahead = (Contents(lambda: endpoints(bench.cluster), 10.0) for _ in range(2))
    with contextlib.closing(contents), contextlib.closing(ahead):
        for middle, span in ((0, 3), (20, 5), (49, 8), (50, 1000), (2**62, 4)):
            part = contents.around(tp, middle, span)
            several = ahead.read_ahead(dict.fromkeys(tps, middle), span)
            assert several == {one: contents.around(one, middle, span) for one in tps}
            middle = min(50, middle)
            begin, end = max(0, middle - span), min(50, middle + span)
            assert [one.offset for one in part.records] == [*range(begin, end)]
            assert (part.begin, part.end, part.earliest, part.latest) == (begin, end, 0, 50)
        last = part.records[-1]
        for time in (0, last.timestamp, 2**61):
            found = ahead.look_ahead(dict.fromkeys(tps, time))
            assert found == {one: contents.at(one, time) for one in tps}
        assert found[tp] is None
        for offset in (49, 0, 20):
            times = contents.times_at(tp, offset)
            assert times is not None
            (read,) = contents.around(tp, offset, 1).records[-1:]
            assert (read.offset, times[1]) == (offset, read.timestamp)
            assert times[0].times[times[0].offsets.index(offset)] == read.timestamp
        assert contents.times_at(tp, 50) is None


def test_what_many_at_once_cannot_give_is_read_alone(bench: Bench, topic: str) -> None:
    """Records larger than a request for many asks for, partitions that do not exist, and a broker
    that does not answer."""
    bench.topic(topic, 2, 0)
    producer = Producer({"bootstrap.servers": bench.cluster.bootstrap})
    for partition in range(2):
        producer.produce(topic, bytes(100_000), partition=partition)
    producer.flush()
    tps = [TopicPartition(topic, number) for number in range(2)]
    missing = TopicPartition(topic, 9)
    contents = Contents(lambda: endpoints(bench.cluster), 10.0)
    with contextlib.closing(contents):
        found = contents.read_ahead(dict.fromkeys([missing, *tps], 0), 8)
        assert tps[1] not in found
        assert missing not in found
        assert missing not in contents.look_ahead({missing: 0})
        assert all(len(contents.around(tp, 0, 8).records) == 1 for tp in tps)
    silent = Contents(lambda: (), 0.1)
    assert not silent.read_ahead({tps[0]: 0}, 8)
    assert not silent.look_ahead({tps[0]: 0})
