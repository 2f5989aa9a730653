"""Yelp's kafka-utils on a group of ours."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.peers.clients import PYTHON, filled
from tests.support.groups import Reader
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.servers import LocalCluster


def test_it_reads_our_groups(cluster: LocalCluster, group: str, topic: str, tmp_path: Path) -> None:
    """`list_topics` and `offset_get --storage zookeeper` show what our member has stored."""
    expected = filled(cluster, topic, 2, 50)
    config = {
        "zookeeper.connect": cluster.zookeeper,
        "group.id": group,
        "auto.offset.reset": "smallest",
    }
    with ZookeeperConsumerConnector(config) as ours:
        Reader(ours.create_message_streams({topic: 1})[topic]).wait(len(expected))
    (tmp_path / "local.yaml").write_text(
        "clusters:\n  here:\n    broker_list:\n"
        f"      - '{cluster.bootstrap}'\n    zookeeper: '{cluster.zookeeper}'\n"
        "local_config:\n  cluster: here\n"
    )

    def manager(*words: str) -> str:
        program = PYTHON.with_name("kafka-consumer-manager")
        options = ("--cluster-type", "local", "--discovery-base-path", str(tmp_path))
        done = subprocess.run(
            [program, *options, *words], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert topic in manager("list_topics", "--storage", "zookeeper", group)
    shown = manager("offset_get", "--storage", "zookeeper", group)
    assert shown.count("50") >= 2, shown
