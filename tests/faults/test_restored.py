"""A ZooKeeper server that starts with older data, below a group that consumes.

Transactions and versions of znodes are used again. A session that is in the older data continues if
its client connects in time, so what its member knows is from a history that no longer exists. The
transactions after the restore are read from the server's log. ``make restores`` runs 20 seeds,
``ZKC_RESTORES=7:1`` seed 7.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
from pathlib import Path

import pytest
from zkaudit.decode.txnlog import Operation, read_transactions

from tests.support.groups import GroupWatch, Producer, Reader, WatchClient, all_delivered
from tests.support.members import started
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.servers import LocalCluster, LocalZooKeeper, wait_until

FIRST, COUNT = map(int, os.environ.get("ZKC_RESTORES", "0:1").split(":"))
PARTITIONS = 6
SESSION_MS = 4000


def transactions(data: Path) -> list[Operation]:
    """All operations that a server has logged, in their order."""
    logs = sorted(data.glob("version-2/log.*"))
    every = {(op.zxid, op.idx): op for log in logs for op in read_transactions(log)}
    return [every[key] for key in sorted(every)]


class Judge:
    """Follows the owners and offsets of a group."""

    def __init__(self, paths: GroupPaths, topic: str) -> None:
        self.owners: dict[str, int] = {}
        self.offsets: dict[str, int] = {}
        self.stale: list[str] = []
        """Offsets that their owner did not write, or that became lower."""
        self._owners, self._offsets = paths.owners_topic(topic), paths.offsets_topic(topic)

    def add(self, op: Operation) -> None:
        folder, _, partition = (op.path or "").rpartition("/")
        if op.type == "closeSession":
            self.owners = {tp: who for tp, who in self.owners.items() if who != op.session}
        elif folder == self._owners and op.type == "create":
            self.owners[partition] = op.session
        elif folder == self._owners and op.type == "delete":
            self.owners.pop(partition, None)
        elif folder == self._offsets and op.type in ("create", "setData"):
            assert op.data is not None
            after, before = int(op.data), self.offsets.get(partition, 0)
            if self.owners.get(partition) != op.session or after < before:
                self.stale.append(f"{op}: owner {self.owners.get(partition)}, before {before}")
            self.offsets[partition] = after


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_no_member_commits_by_what_it_knew_before_a_restore(
    cluster: LocalCluster,
    group: str,
    topic: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    seed: int,
) -> None:
    """After the restore, only owners write offsets, and none becomes lower. All records are
    delivered, and every member warns. In even seeds the server soon knows as many transactions as
    its clients, so that sessions continue; in odd ones it refuses them until they give up.
    See ZOOKEEPER-4571."""
    rng = random.Random(seed)
    caplog.set_level(logging.WARNING)
    config = {
        "zkconsumer.brokers": "bootstrap",
        "bootstrap.servers": cluster.bootstrap,
        "group.id": group,
        "zookeeper.session.timeout.ms": SESSION_MS,
        "auto.offset.reset": "smallest",
        "auto.commit.interval.ms": 200,
        "rebalance.backoff.ms": 500,
    }
    cluster.create_topic(topic, PARTITIONS)
    data, backup = tmp_path / "zk" / "data" / "zookeeper", tmp_path / "backup"
    with (
        LocalZooKeeper(dir=tmp_path / "zk") as zookeeper,
        Producer(cluster.bootstrap, topic, range(PARTITIONS), interval=0.005) as producer,
        started(ZookeeperConsumerConnector, config) as start,
    ):
        readers: list[Reader] = []

        def join(name: str) -> None:
            member = start(zookeeper_connect=zookeeper.zookeeper, consumer_id=name)
            readers.append(Reader(member.create_message_streams({topic: 1})[topic]))

        def progress(count: int) -> None:
            goals = [(reader, len(reader.deliveries) + count) for reader in readers]
            wait_until(
                lambda: all(len(reader.deliveries) >= goal for reader, goal in goals),
                60,
                f"{count} more records for each member (seed {seed})",
            )

        for name in "ab":
            join(name)
        progress(rng.randint(20, 200))
        shutil.copytree(data, backup)
        if rng.random() < 0.5:  # then partitions move after the backup
            join(rng.choice(["0", "c"]))
        progress(rng.randint(100, 300))
        zookeeper.zookeeper_server.kill()
        lost = transactions(data)[-1].zxid
        shutil.rmtree(data)
        shutil.copytree(backup, data)
        restored = transactions(backup)[-1].zxid
        assert restored < lost
        zookeeper.zookeeper_server.start()
        zookeeper.zookeeper_server.wait_ready()
        client = WatchClient(zookeeper.zookeeper)
        client.start()
        for _ in range(0 if seed % 2 else lost - restored):
            client.create_async("/filler-", sequence=True)
        client.sync("/")
        client.stop()
        client.close()
        with GroupWatch(zookeeper.zookeeper, group) as watch:
            watch.wait_owners(
                topic,
                lambda found: len(found) == PARTITIONS and len({*found.values()}) == len(readers),
                60,
                f"each partition has an owner, each member a partition (seed {seed})",
            )
        progress(100)
        all_delivered(producer, readers)
        judge = Judge(GroupPaths(group), topic)
        for op in transactions(data):
            if op.zxid == restored + 1:
                judge.stale.clear()
            judge.add(op)
        assert judge.stale == [], f"seed {seed}"

        def said() -> bool:
            """Whether each member has warned. It does when it next reads its offsets."""
            found = [*caplog.records]
            names = {record.threadName for record in found if "went-back" in record.message}
            given_up = sum("has seen no transaction" in record.message for record in found)
            return given_up >= len(readers) or all(f"{group}_{one}_loop" in names for one in "ab")

        wait_until(said, 30, f"each member has warned (seed {seed})")
