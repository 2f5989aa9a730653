"""``zkmigrate live``: a running group moves to the coordinator and back, together with JVM
members."""

from __future__ import annotations

import time

import pytest

from tests.migrate.conftest import Bench, Shell
from tests.migrate.rows import step_words
from tests.support.groups import Producer, Reader
from tests.support.legacy_jvm import JvmMember, JvmMembers
from tests.support.members import QUICK
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.errors import BrokerError, ClusterError
from zkconsumer.migratable import MigratableConsumerConnector
from zkconsumer.servers import wait_until

PARTITIONS = 6


def original(jvm: JvmMembers, zookeeper: str, group: str, topic: str, name: str) -> JvmMember:
    """A JVM member."""
    config = {
        "zookeeper.connect": zookeeper,
        "group.id": group,
        "consumer.id": name,
        "auto.offset.reset": "smallest",
        "auto.commit.interval.ms": "200",
        "rebalance.max.retries": "20",
        "rebalance.backoff.ms": "500",
    }
    return JvmMember(jvm, config, topics={topic: 1})


def act(shell: Shell, stage: str, group: str, outcome: str = "done") -> str:
    """Run a stage, and return the reason if it was refused."""
    status, rows = shell.rows(*step_words(stage), "--group", group, "--execute", "--wait", "20")
    assert [row["outcome"] for row in rows] == [outcome], rows
    assert status == (3 if outcome == "refused" else 0)
    return str(rows[0]["why"])


def test_the_whole_road(
    bench: Bench, shell: Shell, jvm: JvmMembers, group: str, topic: str
) -> None:
    """The group has JVM members, then both kinds, then it is locked, in Kafka, and shared with
    plain consumers, which the coordinator refuses until then. Then it goes all the way back.

    Each gate names the members in the way. Nothing is lost or repeated.
    """
    zookeeper = bench.cluster.zookeeper
    bench.topic(topic, PARTITIONS, 0)
    config: dict[str, object] = {
        "zookeeper.connect": zookeeper,
        "bootstrap.servers": bench.cluster.bootstrap,
        "group.id": group,
        "zkconsumer.live.strategies": "cooperative-sticky,range",
        **QUICK,
    }
    plain = {k: v for k, v in config.items() if not k.startswith("z")}
    plain["partition.assignment.strategy"] = "cooperative-sticky"
    mine: list[MigratableConsumerConnector] = []
    readers: list[Reader] = []

    def join(name: str) -> None:
        mine.append(MigratableConsumerConnector(config | {"consumer.id": name}))
        readers.append(Reader(mine[-1].create_message_streams({topic: 1})[topic]))

    def owned() -> list[int]:
        return [member.metrics().owned_partitions for member in mine]

    def no_plain_consumer() -> None:
        with (
            CoordinatorConsumerConnector(plain) as refused,
            pytest.raises(BrokerError, match="INCONSISTENT_GROUP_PROTOCOL"),
        ):
            refused.create_message_streams({topic: 1})

    with Producer(bench.cluster.bootstrap, topic, range(PARTITIONS), interval=0.01) as producer:
        old = original(jvm, zookeeper, group, topic, "old")
        old.wait_joined()
        join("m1")
        join("m2")
        wait_until(lambda: owned() == [2, 2], 30, "three members share")
        why = act(shell, "prepare", group, "refused")
        assert f"{group}_old (id old, JVM consumer)" in why
        assert "not migratable" in act(shell, "lock", group, "refused")
        old.leave()
        wait_until(lambda: owned() == [3, 3], 30, "our members own everything")
        act(shell, "prepare", group, "was done before")
        no_plain_consumer()
        act(shell, "lock", group)
        no_plain_consumer()
        act(shell, "lock", group, "was done before")
        with pytest.raises(ClusterError, match="NoAuth"):
            original(jvm, zookeeper, group, topic, "late").wait_joined()
        join("m3")  # a migratable member may register in a locked group
        wait_until(lambda: owned() == [2, 2, 2], 30, "the new member has its share")
        assert "cannot follow" in act(shell, "finalize", group, "refused")
        act(shell, "to-kafka", group)
        no_plain_consumer()
        act(shell, "finalize", group)
        with CoordinatorConsumerConnector(plain) as newer:
            readers.append(Reader(newer.create_message_streams({topic: 1})[topic]))
            wait_until(
                lambda: newer.metrics().owned_partitions >= 1, 30, "the plain consumer joins"
            )
            wait_until(lambda: len(readers[-1].deliveries) > 10, 30, "the plain consumer reads")
            assert "plain members" in act(shell, "to-zookeeper", group, "refused")
        wait_until(lambda: sum(owned()) == PARTITIONS, 30, "our members own everything again")
        act(shell, "to-zookeeper", group)
        act(shell, "unlock", group)
        last = original(jvm, zookeeper, group, topic, "last")
        last.wait_joined()
        wait_until(lambda: len(last.deliveries) > 10, 30, "the JVM reads again")
        status, rows = shell.rows("status", "--group", group)
        assert (status, rows[0]["mode"], rows[0]["zookeeper_members"]) == (0, "zookeeper", 4), rows
        sent = producer.stop()

        def got() -> list[tuple[int, int]]:
            each = [old.deliveries, last.deliveries, *(one.deliveries for one in readers)]
            return [(found.partition, found.offset) for some in each for found in some]

        wait_until(lambda: set(got()) >= set(sent), 30, "everything is read")
        last.leave()
        for member in mine:
            member.shutdown()
    twice = len(got()) - len(set(got()))
    # The JVM delivers the fetched messages while it releases its partitions.
    assert twice <= 60, "the original consumer alone repeats messages, at a rebalance"
    by_ours = [(one.partition, one.offset) for some in readers for one in some.deliveries]
    assert len(by_ours) == len(set(by_ours)), "our members delivered a message twice"


def settings(bench: Bench, group: str) -> dict[str, object]:
    """Settings of a migratable member."""
    addresses = {
        "zookeeper.connect": bench.cluster.zookeeper,
        "bootstrap.servers": bench.cluster.bootstrap,
    }
    return {**addresses, "group.id": group, **QUICK}


def test_a_dry_run_and_a_pattern(bench: Bench, shell: Shell, group: str, topic: str) -> None:
    """Without ``--execute`` nothing changes. A glob takes the groups that have migratable members,
    lists those that cannot be moved, and never moves a group back."""
    second = f"{group}-other"
    bench.topic(topic, 2, 5)
    bench.set_zk(f"{group}-legacy", topic, {0: 1})
    with MigratableConsumerConnector(settings(bench, group)) as member:
        reader = Reader(member.create_message_streams({topic: 1})[topic])
        reader.wait(10)
        assert shell("live", "prepare", "--group", group, "--execute", "--wait", "20")[0] == 0
        status, rows = shell.rows("lock", "--group", group)
        assert (status, rows[0]["outcome"], rows[0]["mode"]) == (0, "would be done", "zookeeper")
        assert b"zookeeper" in bench.client.get(f"/consumers/{group}/live/mode")[0]
        every: dict[str, str] = {}

        def act_on_all(stage: str, status: int = 0) -> dict[str, tuple[str, str]]:
            words = (*step_words(stage), "--group", f"{group}*", "--execute", "--wait", "20")
            ended, rows = shell.rows(*words)
            assert ended == status, rows
            mine = [row for row in rows if row["group"].startswith(group)]
            every.update({row["group"]: row["why"] for row in mine})
            return {row["group"]: (row["outcome"], row["mode"]) for row in mine}

        with MigratableConsumerConnector(settings(bench, second)) as other:
            Reader(other.create_message_streams({topic: 1})[topic]).wait(10)
            bench.client.create(f"/consumers/{second}/ids/{second}_old", b"{}", ephemeral=True)
            refused = {second: ("refused", "zookeeper")}
            skipped = {f"{group}-legacy": ("skipped", None)}
            assert act_on_all("lock", 3) == {group: ("done", "locked"), **refused, **skipped}
            assert "not migratable" in every[second]
            assert act_on_all("to-kafka", 3) == {group: ("done", "kafka"), **refused}
            bench.client.delete(f"/consumers/{second}/ids/{second}_old")
            assert act_on_all("lock") == {
                group: ("was done before", "kafka"),
                second: ("done", "locked"),
                **skipped,
            }
            rows = shell.rows("status", "--group", f"{group}*")[1]
            modes = {row["group"]: row["mode"] for row in rows if row["mode"]}
            assert modes == {group: "kafka", second: "locked"}
            assert (
                shell("status", "--group", group)[0] == shell("status", "--group", second)[0] == 0
            )
            assert act_on_all("to-zookeeper") == {
                group: ("done", "locked"),
                second: ("was done before", "locked"),
            }
        status, rows = shell.rows("live", "finalize", "--group", group)
        assert (status, rows[0]["outcome"]) == (3, "refused")
        act(shell, "unlock", group)
    assert shell("lock")[0] == 2
    status, rows = shell.rows("live", "prepare", "--group", f"{group}-legacy")
    assert (status, rows[0]["mode"]) == (0, "zookeeper"), "a group without members"


def test_a_group_without_members(bench: Bench, shell: Shell, group: str, topic: str) -> None:
    """The group's offsets are only in ZooKeeper, and no member can carry them over. Before ``open``
    the operator gets an error at once that says what to do. With one member the stage continues,
    and nothing is lost. After that member has left, the group can be opened and moved back without
    any."""
    bench.topic(topic, 2, 5)
    bench.set_zk(group, topic, {0: 2, 1: 3})
    for stage in ("prepare", "lock", "to-kafka"):
        act(shell, stage, group)
    begun = time.monotonic()
    why = act(shell, "finalize", group, "refused")
    assert time.monotonic() < begun + 15, "it does not wait for an impossible condition"
    assert f"{topic}-0, {topic}-1: no migratable member is running to copy them" in why
    with MigratableConsumerConnector(settings(bench, group)) as member:
        reader = Reader(member.create_message_streams({topic: 1})[topic])
        reader.wait(5)
        act(shell, "finalize", group)
    assert sorted((one.partition, one.offset) for one in reader.deliveries) == [
        (0, 2),
        (0, 3),
        (0, 4),
        (1, 3),
        (1, 4),
    ]
    for stage in ("to-zookeeper", "unlock"):
        act(shell, stage, group)
    in_kafka = bench.committed(group, {topic: 2})
    for number in range(2):
        assert in_kafka[TopicPartition(topic, number)].offset == 5
        assert bench.client.get(f"/consumers/{group}/offsets/{topic}/{number}")[0] == b"5"
