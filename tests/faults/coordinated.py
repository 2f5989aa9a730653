"""Settings, logs and readers for tests of members in other processes or on the coordinator."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.support.groups import Reader, places
from tests.support.members import keys
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.servers import LocalCluster

SESSION = 6.0
"""Session timeout in seconds: the lowest that brokers accept."""
HEAL = SESSION + 5
"""Each partition has one member that delivers it again within this number of seconds after a
fault."""
PARTITIONS = 4


def config(cluster: LocalCluster, group: str, **more: object) -> dict[str, object]:
    """Settings of a member that commits often."""
    return {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": group,
        "session.timeout.ms": int(SESSION * 1000),
        "heartbeat.interval.ms": 500,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 200,
        "refresh.leader.backoff.ms": 50,
        "socket.timeout.ms": 5000,
    } | keys(**more)


def written(log: Path) -> list[list[str]]:
    """The words of each line in a log that another process still writes. A line without its end is
    skipped."""
    whole, _, _ = log.read_text().rpartition("\n")
    return [line.split() for line in whole.splitlines()]


def held(member: CoordinatorConsumerConnector) -> int:
    """Number of partitions that a member owns."""
    return member.metrics().owned_partitions


def twice(*readers: Reader) -> set[tuple[int, int]]:
    """Partition and offset of messages that were delivered more than once."""
    counts = Counter(places(readers))
    return {found for found, count in counts.items() if count > 1}
