"""The kinds of groups in a run: their members, and their configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from zkconsumer.servers.jars import KRAFT_LINES


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of group."""

    member: str
    """The connector of our members: ``zookeeper`` or ``coordinator``."""
    config: Callable[[Any, str], dict[str, object]]
    """The configuration of a named member in an arena."""
    jvm_members: Callable[[int], int] = lambda _: 0
    """The number of original consumers among this number of members."""
    kafka: str = "3.9"
    """The brokers' release line. Kafka 4 has no ZooKeeper."""
    brokers: int = 1
    """The smallest number of brokers. In Kafka 4, three are also controllers, and two must be
    alive."""

    @property
    def zookeeper(self) -> bool:
        """Whether there is a ZooKeeper ensemble."""
        return self.kafka not in KRAFT_LINES


def _zookeeper(arena: Any, name: str) -> dict[str, object]:
    from tests.soak.arena import COMMIT_INTERVAL, GROUP, SESSION

    return {
        "group.id": GROUP,
        "consumer.id": name,
        "zookeeper.session.timeout.ms": int(SESSION * 1000),
        "auto.offset.reset": "smallest",
        "auto.commit.interval.ms": int(COMMIT_INTERVAL * 1000),
        "rebalance.backoff.ms": 500,
        "rebalance.max.retries": 40,
        "refresh.leader.backoff.ms": 50,
        "socket.timeout.ms": 5000,
        "fetch.min.bytes": 8192,
        "fetch.wait.max.ms": 100,
    }


def _coordinator(arena: Any, name: str) -> dict[str, object]:
    from tests.soak.arena import COMMIT_INTERVAL, GROUP, SESSION

    return {
        "bootstrap.servers": arena.cluster.bootstrap,
        "group.id": GROUP,
        "consumer.id": name,
        "client.id": name,
        "session.timeout.ms": int(SESSION * 1000),
        "heartbeat.interval.ms": 500,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": int(COMMIT_INTERVAL * 1000),
        "max.poll.interval.ms": 20_000,
        "refresh.leader.backoff.ms": 50,
        "socket.timeout.ms": 5000,
        "fetch.min.bytes": 8192,
        "fetch.wait.max.ms": 100,
    }


def _consumer(arena: Any, name: str) -> dict[str, object]:
    own = {"heartbeat.interval.ms"}  # the broker sets the interval
    classic = _coordinator(arena, name)
    return {key: value for key, value in classic.items() if key not in own} | {
        "group.protocol": "consumer"
    }


KINDS = {
    "zookeeper": Kind("zookeeper", _zookeeper),
    "coordinator": Kind("coordinator", _coordinator),
    "mixed": Kind("zookeeper", _zookeeper, jvm_members=lambda members: max(1, members // 4)),
    "consumer": Kind("coordinator", _consumer, kafka="4", brokers=3),
}
