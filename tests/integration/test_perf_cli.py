"""``zkconsumer perf`` on real servers: its columns, both kinds of coordination, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from kazoo.client import KazooClient

from zkconsumer.servers import LocalCluster
from zkconsumer.servers.produce import send

COMMAND = [sys.executable, "-c", "from zkconsumer.cli import main; main()", "perf"]
MESSAGES = 2500


@pytest.fixture(scope="module", autouse=True)
def messages(cluster: LocalCluster) -> None:
    """Create a topic of 2,500 messages of 100 bytes in two partitions."""
    cluster.create_topic("speed", 2)
    send(cluster.bootstrap, "speed", [(None, b"%0100d" % n) for n in range(MESSAGES)])


def perf(*arguments: str) -> Any:
    """Run the command to its end."""
    return subprocess.run(
        [*COMMAND, "--topic", "speed", *arguments],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


@pytest.mark.parametrize(
    ("group", "how"),
    [("zookeeper", "--threads=1"), ("zookeeper", "--batch=300"), ("brokers", "--arrow")],
)
def test_all_messages_are_counted(cluster: LocalCluster, group: str, how: str) -> None:
    """The figures are consistent for single messages, several threads, and batches."""
    where = (
        ("--zookeeper", cluster.zookeeper)
        if group == "zookeeper"
        else ("--bootstrap-server", cluster.bootstrap)
    )
    ran = perf(*where, f"--messages={MESSAGES}", "--json", how, "--timeout=15000")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["data.consumed.in.nMsg"] == MESSAGES
    assert found["data.consumed.in.MB"] == pytest.approx(MESSAGES * 100 / 1024 / 1024)
    seconds = (found["rebalance.time.ms"] + found["fetch.time.ms"]) / 1000
    assert found["nMsg.sec"] == pytest.approx(MESSAGES / seconds, rel=0.05)


def test_columns_are_those_of_kafka_s_tool(cluster: LocalCluster, zk: KazooClient) -> None:
    """The command prints the header and one line. The generated group is deleted."""
    groups = zk.get_children("/consumers")
    ran = perf("--zookeeper", cluster.zookeeper, "--messages=10", "--threads=2")
    header, line = ran.stdout.splitlines()
    assert header == (
        "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, "
        "rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
    )
    assert len(line.split(", ")) == 10
    assert sorted(zk.get_children("/consumers")) == sorted(groups)


def test_too_few_messages(cluster: LocalCluster) -> None:
    """The timeout ends the command. It reports the messages so far, without the time of the final
    wait."""
    ran = perf("--zookeeper", cluster.zookeeper, "--messages=9999", "--timeout=4000", "--json")
    assert ran.returncode == 1
    assert "7499 of 9999 are missing" in ran.stderr
    found = json.loads(ran.stdout)
    assert found["data.consumed.in.nMsg"] == MESSAGES
    assert found["fetch.time.ms"] < 3900


def test_one_kind_of_group_is_named(cluster: LocalCluster) -> None:
    """Neither address, or both, is an error."""
    assert perf("--messages=1").returncode == 2
    ran = perf("--zookeeper=a:1", "--bootstrap-server=b:1", "--messages=1")
    assert (ran.returncode, "either --zookeeper or" in ran.stderr) == (2, True)
