"""The embedded cluster without ZooKeeper starts, keeps its data, and works from the command
line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from zkconsumer.errors import ClusterError
from zkconsumer.servers import LocalCluster, LocalZooKeeper
from zkconsumer.servers.produce import send

COMMAND = [sys.executable, "-c", "from zkconsumer.cli import main; main()"]


def cluster(directory: Path, *arguments: str, stdin: str = "") -> Any:
    """Run ``zkconsumer cluster`` to its end."""
    command = [*COMMAND, "cluster", *arguments, "--dir", str(directory)]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=120, check=False
    )


def test_brokers_without_zookeeper_keep_their_data_and_leaders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three brokers elect controllers. A killed broker returns with its topics. The id of the
    cluster begins like an option: brokers with ZooKeeper chose such ids, and a change to KRaft
    keeps the id."""
    monkeypatch.setattr("zkconsumer.servers.local_cluster.new_cluster_id", lambda: "-" + "A" * 21)
    with LocalCluster("4", brokers=3) as running:
        assert running.zookeeper == ""
        running.create_topic("kept", partitions=3, replication=3)
        running.create_topic("gone")
        running.delete_topic("gone")
        running.add_partitions("kept", 4)
        broker = running.broker_servers[1]
        broker.kill()
        broker.start()
        broker.wait_ready()
        pairs = [(b"%d" % n, b"v") for n in range(40)]
        assert sum(send(running.bootstrap, "kept", pairs).values()) == 40
        with pytest.raises(ClusterError, match="topic kept already exists"):
            running.create_topic("kept")
        with pytest.raises(ClusterError, match="topic gone does not exist"):
            running.add_partitions("gone", 9)


def test_a_kafka_without_zookeeper_has_none_to_give() -> None:
    """Asking Kafka 4 for a ZooKeeper is an error that names the lines that have one."""
    with pytest.raises(ClusterError, match=r"Kafka 4 has no ZooKeeper: .* such as 3\.9"):
        LocalZooKeeper("4")


def test_cluster_commands_work_without_zookeeper(tmp_path: Path) -> None:
    """`cluster up --kafka 4` prints brokers only. `topic` and `send` work, and `address` explains
    why it cannot."""
    where = tmp_path / "cluster"
    started = cluster(where, "up", "--kafka", "4", "--json")
    try:
        assert started.returncode == 0, started.stderr
        assert list(json.loads(started.stdout)) == ["bootstrap"]
        assert cluster(where, "create-topic", "lines", "--partitions", "2").returncode == 0
        assert "sent 2 messages" in cluster(where, "send", "lines", stdin="a\nb\n").stderr
        asked = cluster(where, "address", "zookeeper")
        assert (asked.returncode, asked.stdout) == (1, "")
        assert "Kafka 4 has no ZooKeeper: run `zkconsumer cluster address" in asked.stderr
    finally:
        assert cluster(where, "down").returncode == 0
