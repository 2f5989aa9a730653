"""Starts members of other clients in the group of a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.peers.clients import BUILD, PYTHON, Peer, Start
from zkconsumer.servers import LocalCluster


@pytest.fixture(scope="session", autouse=True)
def _installed() -> None:
    if not (PYTHON.exists() and (BUILD / "node_modules").exists()):
        pytest.fail(f"{BUILD} has no clients: run `make test-peers`, which installs them")


@pytest.fixture
def start(cluster: LocalCluster, group: str) -> Iterator[Start]:
    """Starts a member of ``group``: ``start("highLevelConsumer", "topic")``."""
    members: list[Peer] = []

    def started(client: str, *topics: str) -> Peer:
        options = {
            "zookeeper": cluster.zookeeper,
            "bootstrap": cluster.bootstrap,
            "group": group,
            "topics": topics,
        }
        members.append(Peer(client, options))
        return members[-1]

    yield started
    for member in members:
        member.leave()
