"""Servers, sessions and settings that several modules share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from kazoo.client import KazooClient

from tests.support.groups import GroupWatch
from zkconsumer.servers import LocalCluster


@pytest.fixture(scope="session")
def middle() -> Iterator[LocalCluster]:
    """ZooKeeper and one broker of 1.1 for a whole worker. Tests leave both running."""
    with LocalCluster("1.1") as running:
        yield running


CONSUME = [sys.executable, "-c", "from zkconsumer.cli import main; main()", "consume"]


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts ``zkconsumer consume`` and returns its process. A process that is still running is
    killed at the end."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [*CONSUME, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def zk(zookeeper: str) -> Iterator[KazooClient]:
    """A separate session to inspect znodes."""
    client = KazooClient(zookeeper)
    client.start(timeout=15)
    yield client
    client.stop()
    client.close()


@pytest.fixture
def watch(cluster: LocalCluster, group: str) -> Iterator[GroupWatch]:
    """The group's znodes."""
    with GroupWatch(cluster.zookeeper, group) as watching:
        yield watching


@pytest.fixture
def config(cluster: LocalCluster, group: str) -> dict[str, object]:
    """Settings of a ZooKeeper member that reads from the beginning and reacts quickly."""
    return {
        "zookeeper.connect": cluster.zookeeper,
        "group.id": group,
        "zookeeper.session.timeout.ms": 4000,
        "auto.offset.reset": "smallest",
        "auto.commit.interval.ms": 200,
        "rebalance.backoff.ms": 500,
        "rebalance.max.retries": 20,
        "refresh.leader.backoff.ms": 50,
    }
