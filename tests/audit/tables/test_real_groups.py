"""Audits of real groups: clean groups have no finding, and all planted faults are found.

All groups share one cluster. One has our members, one has original consumers, and one has the
oldest original release and ours. One has both kinds and faults, and one stores its offsets in
Kafka. ZooKeeper's log is read while the server runs.
"""

from __future__ import annotations

import struct
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer as TransactionalProducer, TopicPartition as Place
from kafka import KafkaConsumer, TopicPartition
from kafka.structs import OffsetAndMetadata
from kazoo.client import KazooClient
from pyspark.sql import DataFrame, SparkSession
from zkaudit import schema
from zkaudit.decode.offsets_topic import decode
from zkaudit.job import audit as job
from zkaudit.job.output import load
from zkaudit.sources import offsets as sources_offsets
from zkaudit.tables import catalog as tables
from zkmigrate.cli import run as migrate

from tests.support.groups import Delivery, GroupWatch, Producer, Reader
from tests.support.legacy_jvm import JvmMember, JvmMembers
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.servers import LocalCluster, expire_session, wait_until

pytestmark = pytest.mark.timeout(600)
PARTITIONS = 4


@dataclass
class Audited:
    """The audit, and the messages that the members' streams delivered."""

    summary: dict[str, Any]
    tables: dict[str, DataFrame]
    delivered: dict[str, list[Delivery]]
    out: Path

    def kinds(self, group: str) -> set[str]:
        """Kinds of findings of one group."""
        rows = self.tables["findings"].where(f"group_id = '{group}'").select("kind", "sentence")
        return {row["kind"] for row in rows.collect()}


class Scene:
    """Groups on one cluster. Each has its own topic, with the group's name, and a producer."""

    def __init__(self, cluster: LocalCluster, folder: Path, jvm: JvmMembers) -> None:
        self.cluster = cluster
        self.folder = folder
        self.jvm = jvm
        self.delivered: dict[str, list[Delivery]] = {}

    def config(self, group: str, name: str, timeout: int = 15_000) -> dict[str, object]:
        return {
            "zookeeper.connect": self.cluster.zookeeper,
            "group.id": group,
            "consumer.id": name,
            "zookeeper.session.timeout.ms": timeout,
            "auto.offset.reset": "smallest",
            "rebalance.backoff.ms": 500,
            "rebalance.max.retries": 40,
        }

    @contextmanager
    def group(self, name: str) -> Iterator[GroupWatch]:
        self.cluster.create_topic(name, PARTITIONS)
        producer = Producer(self.cluster.bootstrap, name, list(range(PARTITIONS)), 0.02)
        with closing(GroupWatch(self.cluster.zookeeper, name)) as watch, closing(producer):
            yield watch

    def ours(self, group: str, name: str, **more: int) -> ZookeeperConsumerConnector:
        journals = str(self.folder / "journals" / name)
        config = self.config(group, name, **more) | {
            "auto.commit.interval.ms": 300,
            "zkconsumer.journal.dir": journals,
        }
        member = ZookeeperConsumerConnector(config)
        reader = Reader(member.create_message_streams({group: 1})[group])
        self.delivered[member.consumer_id] = reader.deliveries
        return member

    def theirs(self, group: str, name: str, jvm: JvmMembers | None = None) -> JvmMember:
        config = self.config(group, name) | {"auto.commit.interval.ms": 60_000}
        member = JvmMember(jvm or self.jvm, config, topics={group: 1})
        member.wait_joined(90)
        return member

    @staticmethod
    def settled(watch: GroupWatch, topic: str, members: int) -> None:
        def right(owners: dict[int, str]) -> bool:
            names = {text.rpartition("-")[0] for text in owners.values()}
            return len(owners) == PARTITIONS and len(names) == members == len(watch.members())

        watch.wait_owners(topic, right, 120, f"{members} members own all partitions of {topic}")

    def moved(self, watch: GroupWatch, topic: str, *members: JvmMember) -> None:
        """Wait until every partition's stored offset has grown."""
        begin = watch.offsets(topic)

        def grown() -> bool:
            for member in members:
                member.commit(60)
            now = watch.offsets(topic)
            return len(now) == PARTITIONS and all(now[p] > begin.get(p, 0) for p in now)

        wait_until(grown, 90, f"all offsets of {topic} have grown")


def play(scene: Scene) -> None:
    """Run everything that the tests below look for."""
    with scene.group("ours") as watch:
        first = scene.ours("ours", "anna")
        second = scene.ours("ours", "bert")
        scene.settled(watch, "ours", 2)
        scene.moved(watch, "ours")
        first.shutdown()
        scene.settled(watch, "ours", 1)
        scene.moved(watch, "ours")
        second.shutdown()
    with scene.group("theirs") as watch:
        one, two = scene.theirs("theirs", "jane"), scene.theirs("theirs", "john")
        scene.settled(watch, "theirs", 2)
        scene.moved(watch, "theirs", one, two)
        one.leave()
        scene.settled(watch, "theirs", 1)
        scene.moved(watch, "theirs", two)
        two.leave()
    with scene.group("oldest") as watch, JvmMembers("0.8.2") as oldest:
        theirs, ours = scene.theirs("oldest", "otto", oldest), scene.ours("oldest", "olga")
        scene.settled(watch, "oldest", 2)
        scene.moved(watch, "oldest", theirs)
        theirs.leave()
        scene.settled(watch, "oldest", 1)
        scene.moved(watch, "oldest")
        ours.shutdown()
    with scene.group("mixed") as watch, ExitStack() as stack:
        stays = scene.theirs("mixed", "jane")
        ours = scene.ours("mixed", "anna")
        stack.callback(ours.shutdown)
        scene.settled(watch, "mixed", 2)
        scene.moved(watch, "mixed", stays)
        expire_session(scene.cluster.zookeeper, *ours._zk._client.client_id)
        scene.settled(watch, "mixed", 2)
        scene.moved(watch, "mixed", stays)
        with JvmMembers(scene.jvm.kafka) as other:
            scene.theirs("mixed", "killed", other)
            scene.settled(watch, "mixed", 3)
            other.kill()
        scene.settled(watch, "mixed", 2)
        scene.moved(watch, "mixed", stays)
        with closing_client(scene.cluster.zookeeper) as client:
            client.set("/consumers/mixed/offsets/mixed/0", b"1")
            scene.moved(watch, "mixed", stays)
            client.delete("/consumers/mixed/owners/mixed/1")
        scene.settled(watch, "mixed", 2)
        stays.leave()
    with scene.group("early") as watch:
        last = scene.theirs("early", "jane")
        scene.settled(watch, "early", 1)
        on_coordinator(scene, "early", 3)  # before the last legacy member has stopped
        last.leave()
    move(scene, "theirs")
    on_coordinator(scene, "theirs")
    move(scene, "theirs", "--direction", "kafka-to-zk")
    with closing_client(scene.cluster.zookeeper) as client:
        path = "/consumers/past/offsets/theirs/0"
        client.create(path, b"1", makepath=True)
        move(scene, "past")
        client.set(path, b"2")
    store(scene.cluster)
    undo(scene.cluster)


def move(scene: Scene, group: str, *options: str) -> None:
    """Move a stopped group's offsets to Kafka, or back."""
    plan = str(scene.folder / f"plan{len(list(scene.folder.iterdir()))}")
    zookeeper = ("--zookeeper", scene.cluster.zookeeper)
    assert migrate(["plan", "--group", group, "--out", plan, *options, *zookeeper]) == 0
    assert migrate(["apply", plan, "--execute", *zookeeper]) == 0


def on_coordinator(scene: Scene, group: str, seconds: float = 0) -> None:
    """A member joins the group on the coordinator, commits, stays for some time and leaves."""
    settings: dict[str, object] = {
        "bootstrap.servers": scene.cluster.bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
    }
    with CoordinatorConsumerConnector(settings) as member:
        Reader(member.create_message_streams({group: 1})[group])
        wait_until(lambda: member.metrics().owned_partitions == PARTITIONS, 60, "it owns all")
        member.commit_offsets()
        end = time.monotonic() + seconds
        wait_until(lambda: time.monotonic() > end, seconds + 60, "it stays")


@contextmanager
def closing_client(zookeeper: str) -> Iterator[KazooClient]:
    """A client that is not a member."""
    client = KazooClient(zookeeper, timeout=20)
    client.start(timeout=30)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def store(cluster: LocalCluster) -> None:
    """Two groups that store their offsets in Kafka. In one of them the offset goes back."""
    cluster.create_topic("stored", 2)
    for group, offsets in (("back", (10, 20, 5)), ("forth", (10, 20, 20))):
        with closing(
            KafkaConsumer(bootstrap_servers=cluster.bootstrap, group_id=group)
        ) as consumer:
            consumer.assign([TopicPartition("stored", 0), TopicPartition("stored", 1)])
            for offset in offsets:
                meta = OffsetAndMetadata(offset, f"at {offset}", -1)
                consumer.commit({TopicPartition("stored", 1): meta})


def undo(cluster: LocalCluster) -> None:
    """A group whose offsets are committed in transactions. The first transaction is aborted, and
    one is open."""
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "undone"}
    member = Consumer(settings)
    try:
        for offset, end in ((10, "abort"), (20, "commit"), (30, None)):
            producer = TransactionalProducer(
                {"bootstrap.servers": cluster.bootstrap, "transactional.id": f"to {offset}"}
            )
            producer.init_transactions(30)
            producer.begin_transaction()
            place = Place("stored", 0, offset)
            producer.send_offsets_to_transaction([place], member.consumer_group_metadata(), 30)
            if end is not None:
                getattr(producer, f"{end}_transaction")(30)
    finally:
        member.close()


@pytest.fixture(scope="module")
def audited(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Audited:
    """All groups have run and are audited."""
    folder = tmp_path_factory.mktemp("groups")
    with LocalCluster("1.1", dir=folder / "cluster") as cluster, JvmMembers("1.1") as jvm:
        scene = Scene(cluster, folder, jvm)
        play(scene)
        logs = folder / "cluster" / "data" / "zookeeper"
        options = job.Options(
            [str(logs)],
            str(folder / "out"),
            journals=[str(folder / "journals")],
            bootstrap=cluster.bootstrap,
        )
        summary = job.run(spark, options)
        narrow = sources_offsets.read(spark, cluster.bootstrap, "f.*th")
        assert {row["group_id"] for row in narrow.collect()} == {"forth"}
    return Audited(summary, load(spark, folder / "out")[1], scene.delivered, folder / "out")


def test_clean_groups_give_no_finding(audited: Audited) -> None:
    """Members of both kinds that join, work, hand over and leave give no finding."""
    assert audited.kinds("ours") == set()
    assert audited.kinds("theirs") == set()
    assert audited.kinds("oldest") == set()
    assert audited.kinds("forth") == set()


def test_planted_faults_are_found(audited: Audited) -> None:
    """The audit finds a tool's write and a deleted owner znode, next to an expiry and a kill.

    The expiry and the kill may have effects. Uncommitted messages are delivered again after the
    expiry, which only journals show. The member that lost its owner znode may commit before it
    notices.
    """
    found = audited.kinds("mixed")
    planted = {"tool write", "foreign release"}
    assert planted <= found <= planted | {"delivered twice", "orphan commit"}
    owned = audited.tables["ownership"].where("group_id = 'mixed'")
    ends = {row["ended"] for row in owned.select("ended").distinct().collect()}
    assert {"released", "expired", "foreign delete"} <= ends
    killed = owned.where("member = 'mixed_killed'").select("ended").distinct().collect()
    assert [row["ended"] for row in killed] == ["expired"]


def test_a_move_is_no_fault_and_a_commit_behind_it_is(audited: Audited) -> None:
    """Moving a group to Kafka and back gives no finding. A member or tool that writes to ZooKeeper
    after a move is found."""
    moves = audited.tables["moves"].orderBy("zxid").collect()
    told = [(row["group_id"], row["moved_to"]) for row in moves]
    assert told == [("theirs", "kafka"), ("theirs", "zookeeper"), ("past", "kafka")]
    assert audited.kinds("theirs") == set()
    # A tool made both writes. The first one is where the group began.
    assert audited.kinds("past") == {"commit past the end of a move"}


def test_a_stopped_and_moved_group_has_one_timeline(audited: Audited) -> None:
    """The owners of each partition in ZooKeeper, then on the coordinator, in one table. So are the
    claims of ``zkmigrate`` at each move. Groups that the coordinator never had are not in it."""
    owned = audited.tables["group_ownership"].orderBy("start_time").collect()
    assert {row["group_id"] for row in owned} == {"theirs", "early"}
    for partition in range(PARTITIONS):
        mine = [
            row for row in owned if (row["group_id"], row["partition"]) == ("theirs", partition)
        ]
        assert all(one["end_time"] <= two["start_time"] for one, two in pairwise(mine))
        *legacy, there, newer, back = mine
        assert {row["member"] for row in legacy} <= {"theirs_jane", "theirs_john"}
        assert {row["member"][:16] for row in (there, back)} == {"theirs_zkmigrate"}
        assert {row["coordination"] for row in (*legacy, there, back)} == {"zookeeper"}
        assert (newer["coordination"], newer["source"]) == ("coordinator", "generation")
        assert newer["ended"] == "reassigned"


def test_a_consumer_that_starts_too_early_is_found(audited: Audited) -> None:
    """A consumer on the coordinator that starts while a legacy member runs: two owners of each
    partition."""
    found = audited.tables["findings"].where("group_id = 'early'").orderBy("partition").collect()
    assert [(row["kind"], row["partition"]) for row in found] == [
        ("two owners", partition) for partition in range(PARTITIONS)
    ]
    assert {(row["severity"], row["basis"], row["member"]) for row in found} == {
        ("high", "inferred", "early_jane")
    }
    assert all(row["file"].startswith("log.") for row in found)


def test_deliveries_of_journals_are_those_of_the_streams(audited: Audited) -> None:
    """For each Python member, the ranges in its journal equal the messages that its streams
    delivered."""
    assert (audited.summary["journals"], audited.summary["unreadable"]) == (4, 0)
    ranges: dict[tuple[str, int], set[int]] = defaultdict(set)
    times: Counter[tuple[str, int]] = Counter()
    for row in audited.tables["deliveries"].collect():
        assert row["ended"] in ("stopped", "dropped"), row
        times[row["member"], row["partition"]] += 1
        if row["start_offset"] is not None and row["end_offset"] is not None:
            ranges[row["member"], row["partition"]] |= set(
                range(row["start_offset"], row["end_offset"])
            )
    told = {key: offsets for key, offsets in ranges.items() if offsets}
    seen: dict[tuple[str, int], set[int]] = defaultdict(set)
    for member, deliveries in audited.delivered.items():
        for found in deliveries:
            seen[member, found.partition].add(found.offset)
    # What a member read without a stored offset is known only from its first commit.
    commits = audited.tables["commits"].where("store = 'zookeeper' and previous is null")
    first = {
        (row["owner_member"], row["partition"]): row["committed_offset"]
        for row in commits.collect()
    }
    assert len(told) >= 2 * PARTITIONS
    for key, offsets in told.items():
        assert offsets <= seen[key], key
        # An unacknowledged message counts as not consumed when the session is lost.
        untold = {offset for offset in seen[key] - offsets if offset >= first.get(key, 0)}
        assert len(untold) <= times[key], (key, sorted(untold))


def test_herds_are_measured_where_members_kept_journals(audited: Audited) -> None:
    """For our members the herd is measured, and at least one member was notified. For the original
    consumer there is an upper bound. A mixed group is measured in part."""
    rows = audited.tables["herds"].collect()
    by: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        by[row["group_id"]].add(row["basis"])
    assert by["ours"] == {"measured"}
    assert by["theirs"] == {"modelled"}
    assert "measured in part" in by["mixed"]
    (left,) = [
        row
        for row in rows
        if row["group_id"] == "ours" and row["change"] == "leave" and row["members"] == 1
    ]
    assert left["notified"] == 1
    assert left["rebalances"] >= 1
    assert left["reads"] > 0


def test_offsets_in_kafka_are_commits_too(audited: Audited) -> None:
    """Each commit has its place, its text and the previous offset, and a commit that went back is
    marked. Of the commits in transactions, only those of committed transactions count."""
    rows = audited.tables["commits"].where("store = 'kafka'").orderBy("log_offset").collect()
    told = [
        (r["committed_offset"], r["previous"], r["kind"], r["metadata"])
        for r in rows
        if r["group_id"] == "back"
    ]
    assert told == [(10, None, "commit", "at 10"), (20, 10, "commit", "at 20"),
                    (5, 20, "commit", "at 5")]  # fmt: skip
    kinds = [r["kind"] for r in rows if r["group_id"] == "forth"]
    assert kinds == ["commit", "commit", "same"]
    assert all(r["time"] and r["log_partition"] is not None and r["zxid"] is None for r in rows)
    assert audited.kinds("back") == {"offset regression"}
    assert [r["committed_offset"] for r in rows if r["group_id"] == "undone"] == [20]
    assert audited.tables["commits"].where("store = 'zookeeper'").count() > 100


def text(value: str) -> bytes:
    """A string as Kafka writes it."""
    return struct.pack(">h", len(value.encode())) + value.encode()


KEY = struct.pack(">h", 1) + text("g") + text("t") + struct.pack(">i", 7)
GROUP = struct.pack(">h", 2) + text("g")
MEMBER = text("m") + text("client") + text("host")


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (KEY, struct.pack(">hq", 0, 5) + text("x") + struct.pack(">q", 9),
         {"committed": 5, "metadata": "x", "commit_ms": 9}),
        (KEY, struct.pack(">hq", 1, 5) + text("") + struct.pack(">qq", 9, 10),
         {"committed": 5, "commit_ms": 9, "expire_ms": 10}),
        (KEY, struct.pack(">hqi", 3, 5, 2) + text("x") + struct.pack(">q", 9),
         {"committed": 5, "leader_epoch": 2, "commit_ms": 9}),
        (KEY, struct.pack(">hqi", 4, 5, 2) + b"\x02x" + struct.pack(">q", 9) + b"\0",
         {"committed": 5, "metadata": "x", "commit_ms": 9}),
        (KEY, None, {"kind": "offset", "deleted": True, "topic": "t", "partition": 7}),
        (GROUP, struct.pack(">h", 1) + text("consumer") + struct.pack(">i", 3) + text("range")
         + text("m") + struct.pack(">i", 1) + MEMBER + struct.pack(">iii", 1, 2, 0)
         + struct.pack(">i", 0), {"kind": "group", "generation": 3, "members": ["m"]}),
        (GROUP, None, {"kind": "group", "deleted": True}),
        (struct.pack(">h", 9), b"", {"kind": "other", "fault": "key version 9"}),
        (None, b"", {"kind": "damaged"}),
        (KEY, struct.pack(">hq", 9, 5), {"kind": "damaged"}),
        (struct.pack(">hh", 1, 32767) + b"g", b"", {"kind": "damaged"}),
    ],
)  # fmt: skip
def test_every_version_of_a_record(
    key: bytes | None, value: bytes | None, expected: dict[str, Any]
) -> None:
    """The decoder reads offsets of all versions, groups and tombstones. A record that cannot be
    read gives a row that says so."""
    assert decode(key, value).items() >= expected.items()


def test_records_cut_or_flipped_anywhere() -> None:
    """A record that is cut at any byte, or has any bit flipped, gives a row and never an
    exception."""
    value = struct.pack(">hqi", 3, 5, 2) + text("meta") + struct.pack(">q", 9)
    for whole, other in ((KEY, value), (value, KEY)):
        for at in range(len(whole)):
            for damaged in (whole[:at], *[
                whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :] for bit in range(8)
            ]):  # fmt: skip
                key, content = (damaged, other) if whole is KEY else (other, damaged)
                assert decode(key, content)["kind"] in ("offset", "group", "other", "damaged")
    assert decode(KEY, value[:-1])["kind"] == "damaged"


def test_numbers_that_are_no_times(spark: SparkSession) -> None:
    """The table is written for any number in a record's time or offset. An impossible time becomes
    null."""
    names = [column.name for column in schema.OFFSETS]
    rows: list[dict[str, Any]] = [
        {"log_partition": 0, "log_offset": number, "kind": "offset", "group_id": "g", "topic": "t",
         "partition": 0, "deleted": False, "committed": value, "commit_ms": value}
        for number, value in enumerate((2**63 - 1, -(2**63), 0, 1_700_000_000_000))
    ]  # fmt: skip
    frame = spark.createDataFrame(
        [tuple(row.get(name) for name in names) for row in rows],
        schema.spark_type(schema.OFFSETS),
    )
    made = tables.COMMITS.shape(sources_offsets.commits(frame)).orderBy("log_offset").collect()
    assert [row["committed_offset"] for row in made] == [row["committed"] for row in rows]
    assert [row["time"] is None for row in made] == [True, True, False, False]
