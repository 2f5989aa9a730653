"""kafka-node's high-level consumer in one group with our members, and its move to Kafka."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.peers.clients import Start, command, filled
from tests.support.groups import Reader
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.servers import LocalCluster, wait_until
from zkconsumer.servers.produce import send

PARTITIONS, EACH = 6, 500


def _config(cluster: LocalCluster, group: str) -> dict[str, object]:
    return {
        "zookeeper.connect": cluster.zookeeper,
        "group.id": group,
        "auto.offset.reset": "smallest",
        "auto.commit.interval.ms": 200,
        "zookeeper.session.timeout.ms": 6000,
    }


def test_both_share_a_topic(cluster: LocalCluster, start: Start, group: str, topic: str) -> None:
    """Each takes half of the partitions, every message is delivered once, and the group is right
    for `groups verify` as well."""
    expected = filled(cluster, topic, PARTITIONS, EACH)
    other = start("highLevelConsumer", topic)
    wait_until(lambda: len(other.got) == len(expected), 60, f"all is read: {other.errors[-3:]}")
    with ZookeeperConsumerConnector(_config(cluster, group)) as ours:
        reader = Reader(ours.create_message_streams({topic: 1})[topic])
        wait_until(lambda: ours.health().owned == PARTITIONS // 2, 60, "half is ours")
        wait_until(lambda: ours.health(5.0).ok, 60, f"healthy: {ours.health().reasons}")
        for partition in range(PARTITIONS):
            send(cluster.bootstrap, topic, [(None, b"new")] * EACH, partition=partition)
        wait_until(
            lambda: len(reader.deliveries) + len(other.got) == 2 * len(expected),
            60,
            "all new messages are delivered",
        )
        seen = other.got + Counter((topic, d.partition, d.offset) for d in reader.deliveries)
        assert set(seen.values()) == {1}
        verified = command(
            "zkconsumer", "groups", "verify", group, "--zookeeper", cluster.zookeeper
        )
        assert verified.returncode == 0, verified.stdout + verified.stderr
    for partition in range(PARTITIONS):
        send(cluster.bootstrap, topic, [(None, b"last")], partition=partition)
    wait_until(
        lambda: all((topic, partition, 2 * EACH) in other.got for partition in range(PARTITIONS)),
        60,
        "the partitions are taken over",
    )


def test_a_registration_of_two_topics(
    cluster: LocalCluster,
    start: Start,
    group: str,
    topic: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """kafka-node writes several names into one white list. A JVM member reads the first one only,
    and no JVM member writes such a list: the log says so."""
    second = f"{topic}-b"
    expected = filled(cluster, topic, 4, 10) | filled(cluster, second, 4, 10)
    other = start("highLevelConsumer", topic, second)
    wait_until(lambda: len(other.got) == len(expected), 60, f"all is read: {other.errors[-3:]}")
    with (
        caplog.at_level("INFO", "zkconsumer"),
        ZookeeperConsumerConnector(_config(cluster, group)) as ours,
    ):
        ours.create_message_streams({topic: 1, second: 1})
        wait_until(
            lambda: [
                text
                for record in caplog.records
                if (text := record.getMessage())
                and "a topic filter with 2 names" in text
                and f"/consumers/{group}/ids/" in text
            ],
            30,
            "the log names the registration",
        )


def test_a_stopped_group_moves(
    cluster: LocalCluster, start: Start, group: str, topic: str, tmp_path: Path
) -> None:
    """The group moves to Kafka: kafka-node's newer consumer starts at the moved offsets, and the
    old one can no longer register."""
    expected = filled(cluster, topic, PARTITIONS, EACH)
    old = start("highLevelConsumer", topic)
    wait_until(lambda: len(old.got) == len(expected), 60, f"all is read: {old.errors[-3:]}")
    old.leave()
    plan = str(tmp_path / "group.plan")
    servers = ("--zookeeper", cluster.zookeeper)
    for words in (
        ("plan", "--group", group, "--out", plan, *servers),
        ("apply", plan, "--wait", "30", "--execute", *servers),
        ("status", plan, *servers),
    ):
        done = command("zkmigrate", *words)
        assert done.returncode == 0, (words[0], done.stdout, done.stderr)
    for partition in range(PARTITIONS):
        send(cluster.bootstrap, topic, [(None, b"new")], partition=partition)
    late = start("highLevelConsumer", topic)
    new = start("consumerGroup", topic)
    wait_until(lambda: len(new.got) == PARTITIONS, 60, f"new is read: {new.errors[-3:]}")
    assert set(new.got) == {(topic, partition, EACH) for partition in range(PARTITIONS)}
    wait_until(
        lambda: any("NO_AUTH" in line for line in late.errors), 30, "the old one is kept out"
    )
    assert not late.got
