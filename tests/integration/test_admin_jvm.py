"""The group tools and the JVM's own tools, compared on groups of Python and JVM members."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaProducer
from kazoo.client import KazooClient

from tests.integration.kafka_offsets import kafka_offsets
from tests.support.groups import GroupWatch, Reader, exported
from zkconsumer.admin.describe import GroupRow
from zkconsumer.admin.offset_files import render
from zkconsumer.admin.tools import GroupTools
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.core.common.assign import RoundRobinHash
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.view import Assignor
from zkconsumer.errors import GroupActiveError
from zkconsumer.servers import LocalCluster, fetch_jars, java, wait_until

FLAGS = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
COMMAND = "kafka.admin.ConsumerGroupCommand"


def start(kafka: str, main: str, *arguments: str) -> subprocess.Popen[str]:
    """Start one of Kafka's own tools."""
    command = [java(), *FLAGS, "-cp", f"{fetch_jars(kafka)}/*", main, *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    )


def output(tool: subprocess.Popen[str]) -> str:
    """The standard output of a tool, after it has ended."""
    try:
        out, err = tool.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        tool.kill()
        raise
    assert "Exception in thread" not in err, err
    return out


def fields(text: str) -> set[tuple[str, ...]]:
    """The words of each line except the heading."""
    lines = [tuple(line.split()) for line in text.splitlines()]
    return {line for line in lines if line and line[0] not in ("TOPIC", "Group")}


@pytest.fixture
def messages(cluster: LocalCluster, topic: str) -> str:
    """A topic with three partitions and 10, 20 and 30 messages."""
    cluster.create_topic(topic, partitions=3)
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap)
    for partition, count in enumerate((10, 20, 30)):
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=partition)
    producer.close(timeout=20)
    return topic


@contextlib.contextmanager
def our_member(
    cluster: LocalCluster, group: str, topic: str, consumer: str | None, streams: int = 1
) -> Iterator[tuple[ZookeeperConsumerConnector, Reader]]:
    """A zkconsumer member that reads."""
    config = {
        "zookeeper.connect": cluster.zookeeper,
        "group.id": group,
        "auto.offset.reset": "smallest",
        "auto.commit.enable": "false",
        "zookeeper.session.timeout.ms": 6000,
    }
    if consumer is not None:
        config["consumer.id"] = consumer
    with ZookeeperConsumerConnector(config) as member:
        yield member, Reader(member.create_message_streams({topic: streams})[topic])


def test_the_jvm_tools_accept_a_group_of_ours(
    cluster: LocalCluster, messages: str, group: str, tmp_path: Path
) -> None:
    """The JVM tools see two zkconsumer members, one of them without a partition. The rebalance
    verifies. Describe, the 0.8.2 checker, list, export and delete agree with our commands. The
    JVM's export equals ours byte for byte, and each tool imports the other's file."""
    topic = messages
    zookeeper = cluster.zookeeper
    theirs = tmp_path / "theirs"
    with (
        our_member(cluster, group, topic, None, streams=3) as (first, reader),
        our_member(cluster, group, topic, "z") as (second, _),
        GroupWatch(zookeeper, group) as watch,
        GroupTools(zookeeper) as tools,
    ):
        watch.wait_owners(
            topic,
            lambda owners: len(owners) == 3 and second.consumer_id not in str(owners),
            20,
            "the first member's three threads own all",
        )
        reader.wait(60)
        first.commit_offsets()
        watch.client.set(f"{watch.paths.offsets_topic(topic)}/1", b"15")
        stored = TopicPartition(topic, 2)
        assert kafka_offsets(cluster, group).commit({stored: 13}) == {}
        running = [
            start("1.1", COMMAND, "--zookeeper", zookeeper, "--describe", "--group", group),
            start("1.1", COMMAND, "--zookeeper", zookeeper, "--list"),
        ]
        rows = list(tools.describe([group], kafka_offsets=True))
        shown = fields(output(running[0]))
        ours = {
            (
                row.topic or "-",
                *("-" if cell is None else str(cell) for cell in row[2:6]),
                (row.consumer_id or "-")
                if row.partition is None
                else row.consumer_id.rpartition("-")[0],  # type: ignore[union-attr]
            )
            for row in rows
        }
        assert shown == ours
        assert {row.host for row in rows if row.partition is not None} == {os.uname().nodename}
        assert [row.lag for row in rows] == [0, 5, 17, None]
        assert [row.lag for row in tools.describe([group])] == [0, 5, 0, None]
        listed = set(output(running[1]).split())
        assert set(tools.group_names()) == listed >= {group}

        running = [
            start(
                "1.1",
                "kafka.tools.VerifyConsumerRebalance",
                *("--zookeeper.connect", zookeeper, "--group", group),
            ),
            start(
                "0.8.2",
                "kafka.tools.ConsumerOffsetChecker",
                *("--zookeeper", zookeeper, "--group", group),
            ),
        ]
        assert "Rebalance operation successful !" in output(running[0])
        assert list(tools.verify([group], assignor=Assignor("range"))) == []
        checked = {line for line in fields(output(running[1])) if line[0] == group[: len(line[0])]}
        assert checked == {
            (group, topic, *map(str, row[2:6]), row.consumer_id)
            for row in rows
            if row.partition is not None
        }

        running = [
            start("1.1", COMMAND, "--zookeeper", zookeeper, "--delete", "--group", group),
            start(
                "1.1",
                "kafka.tools.ExportZkOffsets",
                *("--zkconnect", zookeeper, "--group", group, "--output-file", str(theirs)),
            ),
        ]
        assert "still active" in output(running[0])
        output(running[1])
        with pytest.raises(GroupActiveError, match=re.escape(first.consumer_id)):
            tools.delete(group)
        ours = exported(zookeeper, group)
        text = render(ours)
        assert [ours[key] for key in sorted(ours)] == [10, 15, 30]
        assert sorted(theirs.read_text().splitlines(keepends=True)) == text.splitlines(
            keepends=True
        )

    mine = tmp_path / "mine"
    mine.write_text(text.replace("/2:30\n", "/2:29\n"))
    output(
        start(
            "1.1",
            "kafka.tools.ImportZkOffsets",
            *("--zkconnect", zookeeper, "--input-file", str(mine)),
        )
    )
    with GroupTools(zookeeper) as tools:
        assert sorted(exported(zookeeper, group).values()) == [10, 15, 29]
        deleted = tools.delete(group)
        assert deleted.whole
        assert group not in tools.group_names()


def test_our_tools_read_a_group_of_the_jvm(
    cluster: LocalCluster, messages: str, group: str
) -> None:
    """Two console consumers of Kafka 1.1 use roundrobin. Our verify recomputes the assignment and
    finds nothing wrong. Describe shows host, owner and lag. After SIGKILL and the end of the
    session no partition has an owner, and our delete removes the group."""
    topic = messages
    consumers = [
        start(
            "1.1",
            "kafka.tools.ConsoleConsumer",
            *("--zookeeper", cluster.zookeeper, "--topic", topic, "--from-beginning"),
            *("--consumer-property", f"group.id={group}"),
            *("--consumer-property", "auto.commit.interval.ms=200"),
            *("--consumer-property", "zookeeper.session.timeout.ms=4000"),
            *("--consumer-property", "partition.assignment.strategy=roundrobin"),
            *("--consumer-property", "rebalance.backoff.ms=500"),
            *("--consumer-property", "rebalance.max.retries=20"),
        )
        for _ in range(2)
    ]
    assignor = Assignor("roundrobin", RoundRobinHash.DASH)
    try:
        with GroupTools(cluster.zookeeper) as tools:

            def settled() -> bool:
                if [row.members for row in tools.counts([group])] != [2]:
                    return False
                return not list(tools.verify([group], assignor=assignor))

            wait_until(settled, 40, "both console consumers own their share")
            rows: list[GroupRow] = []

            def consumed() -> bool:  # an original member briefly releases everything at a change
                rows[:] = tools.describe([group])
                return [row.lag for row in rows] == [0, 0, 0] and all(
                    row.consumer_id for row in rows
                )

            wait_until(consumed, 30, "all messages are consumed and committed")
            assert {row.host for row in rows} == {os.uname().nodename}
            assert len({row.consumer_id for row in rows}) == 2
            assert [row.current_offset for row in rows] == [10, 20, 30]
            assert list(tools.verify([group], assignor=Assignor("range"))) != []
            for consumer in consumers:
                consumer.kill()
            wait_until(
                lambda: {row.consumer_id for row in tools.describe([group])} == {None},
                30,
                "the sessions of the killed members have ended",
            )
            assert list(tools.verify([group])) == []
            assert tools.delete(group).whole
    finally:
        for consumer in consumers:
            consumer.kill()
            consumer.communicate(timeout=20)


def test_consumption_on_a_recreated_topic(cluster: LocalCluster, topic: str, group: str) -> None:
    """DeleteConsumerGroupTest.testConsumptionOnRecreatedTopicAfterTopicWideDeleteInZK: after the
    topic and its group information were deleted, the recreated topic is consumed from its
    beginning. The group information appears again."""
    for _ in range(2):
        cluster.create_topic(topic)
        producer = KafkaProducer(bootstrap_servers=cluster.bootstrap)
        for number in range(7):
            producer.send(topic, b"%d" % number, partition=0)
        producer.close(timeout=20)
        with our_member(cluster, group, topic, "c") as (member, reader):
            reader.wait(7)
            member.commit_offsets()
        assert [delivery.offset for delivery in reader.deliveries] == list(range(7))
        with GroupTools(cluster.zookeeper) as tools:
            assert set(exported(cluster.zookeeper, group).values()) == {7}
            cluster.delete_topic(topic)
            assert tools.delete(group, topic).whole


def test_a_broker_that_is_down_costs_a_note(topic: str, group: str) -> None:
    """One of two brokers is killed. The log ends on the other broker are shown, and a note explains
    the missing ones. ``topics`` shows the partitions that lost their leader and replicas."""
    patient = {"zookeeper.session.timeout.ms": "10000"}  # it stays registered for a while
    with LocalCluster("3.9", brokers=2, properties=patient) as pair:
        pair.create_topic(topic, partitions=2)
        pair.create_topic(f"{topic}-safe", partitions=1, replication=2)
        client = KazooClient(pair.zookeeper)
        client.start(timeout=15)
        for number in range(2):
            path = f"/consumers/{group}/offsets/{topic}/{number}"
            client.create(path, b"0", makepath=True)
        client.stop()
        client.close()
        with GroupTools(pair.zookeeper, timeout=10) as tools:
            assert [row.lag for row in tools.describe([group])] == [0, 0]
            assert tools.notes == []
            pair.broker_servers[1].kill()
            rows = list(tools.describe([group]))  # the killed broker is still registered
            assert sorted((row.lag for row in rows), key=str) == [0, None]
            (note,) = tools.notes
            assert note.startswith("broker 1 at 127.0.0.1:")
            assert note.endswith("no log end of 1 partition")

            def noticed() -> bool:
                by_topic = {row.topic: row for row in tools.list_topics()}
                return (
                    by_topic[topic].leaderless == 1
                    and by_topic[f"{topic}-safe"].under_replicated == 1
                    and by_topic[f"{topic}-safe"].leaderless == 0
                )

            wait_until(noticed, 30, "the controller has noticed the loss")
            states = {row.leader: row for row in tools.describe_topics([topic])}
            assert states[0].state == "ok"
            lost = next(row for row in states.values() if row.state == "leaderless")
            assert lost.replicas == "1"
            (safe,) = tools.describe_topics([f"{topic}-safe"])
            assert (safe.leader, safe.isr) == (0, "0")
            assert sorted(safe.replicas.split(",")) == ["0", "1"]
