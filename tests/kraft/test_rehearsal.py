"""A cluster is moved to KRaft on real servers, and no group loses or repeats a message.

At the end, new consumers of six groups continue reading. With ``KRAFT_GROUPS=all`` all 50 groups
do.
"""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from zkmigrate.cli import run

from tests.migrate.rows import rows_of
from tests.support.groups import GroupWatch, Producer, Reader
from tests.support.migrating import MigratingCluster
from zkconsumer.broker.groups.group_coordinators import GroupCoordinators
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.servers import wait_until
from zkconsumer.servers.produce import send

SEED = 16
GROUPS = 50
PARTITIONS = 3
EVENTS = "events"
STREAM = "stream"


def first_messages(bootstrap: str, group: str) -> dict[int, int]:
    """The first offset that a new consumer of a moved group reads in each partition."""
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "latest",
        "auto.commit.enable": "false",
    }
    found: dict[int, int] = {}
    with CoordinatorConsumerConnector(config) as member:
        reader = Reader(member.create_message_streams({EVENTS: 1})[EVENTS])
        wait_until(
            lambda: len({one.partition for one in reader.deliveries}) == PARTITIONS,
            60,
            f"{group} has read from every partition",
        )
        for one in list(reader.deliveries):
            found.setdefault(one.partition, one.offset)
    return found


class Estate:
    """Fifty legacy groups with offsets in ZooKeeper, and the tool that moves them."""

    def __init__(self, cluster: MigratingCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        cluster.create_topic(EVENTS, PARTITIONS)
        counts = send(cluster.bootstrap, EVENTS, ((b"%d" % n, b"v") for n in range(600)))
        chance = random.Random(SEED)
        self.offsets = {
            f"group-{number:02}": {p: chance.randrange(counts[p] - 1) for p in range(PARTITIONS)}
            for number in range(GROUPS)
        }
        client = KazooClient(cluster.zookeeper)
        client.start(timeout=15)
        for group, offsets in self.offsets.items():
            for partition, offset in offsets.items():
                path = f"/consumers/{group}/offsets/{EVENTS}/{partition}"
                client.create(path, b"%d" % offset, makepath=True)
        client.stop()
        client.close()

    def zkmigrate(self, *arguments: str, kraft: bool) -> int:
        """Run the tool. On KRaft it needs the brokers' addresses."""
        where = ["--zookeeper", self.cluster.zookeeper]
        if kraft:
            where += ["--bootstrap-server", self.cluster.bootstrap]
        return run([*arguments, *where])

    def move(self, name: str, regex: str, *, kraft: bool) -> str:
        """Plan, apply and verify, and return the plan."""
        plan = str(self.folder / name)
        chosen = ["--groups-regex", regex]
        assert self.zkmigrate("plan", *chosen, "--out", plan, kraft=kraft) == 0
        assert self.zkmigrate("apply", plan, "--execute", kraft=kraft) == 0
        assert self.zkmigrate("status", plan, kraft=kraft) == 0
        return plan

    def check(self) -> None:
        """Every group's next offset is right. New consumers of some groups, or of all, continue
        reading."""
        host, port = self.cluster.bootstrap.split(":")
        broker = BrokerEndpoint(0, host, int(port))
        with GroupCoordinators("tests", lambda: [broker], 10.0, 30.0) as kafka:
            for group, offsets in self.offsets.items():
                found = kafka.fetch(group, [])
                assert {tp.partition: one.offset for tp, one in found.items()} == offsets, group
        chosen = list(self.offsets)
        if os.environ.get("KRAFT_GROUPS") != "all":
            chance = random.Random(SEED)
            chosen = chance.sample(chosen[:25], 3) + chance.sample(chosen[25:], 3)
        with ThreadPoolExecutor(6) as pool:
            read = list(pool.map(partial(first_messages, self.cluster.bootstrap), chosen))
        expected = {group: self.offsets[group] for group in chosen}
        assert dict(zip(chosen, read, strict=True)) == expected


def test_fifty_groups_and_a_legacy_one_go_through_the_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """25 groups are moved before the change and 25 after it. One zkconsumer group stays in
    ZooKeeper all the time. Each continues at the exact next message."""
    with MigratingCluster(tmp_path / "cluster") as cluster:
        estate = Estate(cluster, tmp_path)
        cluster.create_topic(STREAM, PARTITIONS)
        config = {
            "zookeeper.connect": cluster.zookeeper,
            "group.id": "stays",
            "auto.offset.reset": "smallest",
            "auto.commit.interval.ms": 200,
            "rebalance.backoff.ms": 500,
            "refresh.leader.backoff.ms": 100,
        }
        beyond = {
            "zkconsumer.brokers": "bootstrap",
            "bootstrap.servers": cluster.bootstrap,
            "zkconsumer.reread.interval.ms": 3000,
        }
        deliveries = []
        producer = Producer(cluster.bootstrap, STREAM, range(PARTITIONS), 0.02)
        with producer, GroupWatch(cluster.zookeeper, "stays", [STREAM]) as watch:
            before = ZookeeperConsumerConnector(config)
            first = Reader(before.create_message_streams({STREAM: 1})[STREAM])
            first.wait(50)
            before_plan = estate.move("before", "group-[01].|group-2[0-4]", kraft=False)
            # The group's members are replaced, one at a time, by members that do not need the
            # brokers' znodes.
            after = ZookeeperConsumerConnector(config | beyond)
            second = Reader(after.create_message_streams({STREAM: 1})[STREAM])
            watch.wait_owners(
                STREAM, lambda owners: len(set(owners.values())) == 2, 30, "both own some"
            )
            before.shutdown()
            watch.wait_owners(
                STREAM, lambda owners: len(owners) == PARTITIONS, 30, "the new one owns all"
            )
            cluster.provision()
            cluster.migrate()
            cluster.finalize()
            sent = producer.sent
            wait_until(
                lambda: len(producer.acknowledged(sent)) == PARTITIONS,
                60,
                "the brokers accept more messages",
            )
            acked = producer.stop()
            wait_until(
                lambda: len(first.deliveries) + len(second.deliveries) >= len(acked),
                60,
                "everything was delivered",
            )
            assert not watch.client.exists("/brokers/ids") or not watch.client.get_children(
                "/brokers/ids"
            )
            after.shutdown()
            deliveries = [*first.deliveries, *second.deliveries]
            stored = watch.offsets(STREAM)
            assert not watch.lowered
        places = sorted((one.partition, one.offset) for one in deliveries)
        assert places == sorted(acked)  # each once, none lost
        assert stored == {p: max(o for q, o in acked if q == p) + 1 for p in range(PARTITIONS)}

        # The groups moved before the change are still as planned. The rest are moved now.
        assert estate.zkmigrate("status", before_plan, kraft=True) == 0
        capsys.readouterr()
        gate = ["gate", "--all", "--exclude", "stays", "--json"]
        assert estate.zkmigrate(*gate, kraft=True) == 3
        rows = rows_of(capsys.readouterr().out)
        left = {row["group"] for row in rows if row["left"]}
        assert left == {f"group-{number:02}" for number in range(25, GROUPS)}
        estate.move("after", "group-2[5-9]|group-[34].", kraft=True)
        assert estate.zkmigrate(*gate, kraft=True) == 0
        estate.check()
