"""A group of migratable members moves between ZooKeeper and the coordinator, on real servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

import pytest

from tests.support.groups import Producer, Reader, delivered_once
from tests.support.members import quick, started
from tests.support.scripts import write_mode
from zkconsumer.admin.reads import children
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.migration.modes import Mode
from zkconsumer.core.migration.znodes import LivePaths, decode_member, read_mode
from zkconsumer.core.zookeeper.scripts.common import read_many
from zkconsumer.migratable import MigratableConsumerConnector
from zkconsumer.prometheus import ConnectorCollector
from zkconsumer.servers import LocalCluster, wait_until
from zkconsumer.zk.blocking import BlockingZk

Make = Callable[..., MigratableConsumerConnector]


@pytest.fixture
def config(cluster: LocalCluster, group: str) -> dict[str, object]:
    """Settings of a member that reads from the beginning and reacts quickly."""
    return quick(
        cluster,
        group,
        zookeeper_connect=cluster.zookeeper,
        refresh_leader_backoff_ms=50,
        rebalance_backoff_ms=200,
    )


@pytest.fixture
def make(config: dict[str, object]) -> Iterator[Make]:
    """Creates members that are shut down after the test."""
    with started(MigratableConsumerConnector, config) as start:
        yield start


def acknowledged(zk: BlockingZk, group: str, members: int, version: int) -> None:
    """Wait until this number of members has acknowledged this version of the mode."""
    paths = LivePaths.of(group)

    def versions() -> list[int | None]:
        names = zk.run(children(paths.members)) or []
        nodes = zk.run(read_many([paths.member(name) for name in names]))
        return [decode_member("", node.data) for node in nodes if node is not None]

    wait_until(
        lambda: versions() == [version] * members,
        20,
        f"{members} members have acknowledged version {version}",
    )


def move(zk: BlockingZk, group: str, target: Mode, members: int) -> None:
    """Write a mode, and wait until all members have acknowledged it."""
    paths = LivePaths.of(group)
    version = zk.run(read_mode(paths))[1]
    assert zk.run(write_mode(paths, target, version))
    acknowledged(zk, group, members, version + 1)


def held(member: MigratableConsumerConnector) -> int:
    """Number of partitions that a member owns."""
    return member.metrics().owned_partitions


def wait_acting(members: list[MigratableConsumerConnector], mode: Mode) -> None:
    """Wait until the members' metrics show that they act on a mode, and the exporter's metrics
    too."""

    def acting() -> set[tuple[str, int]]:
        found = [member.metrics() for member in members]
        return {(metrics.mode, metrics.mode_acknowledged) for metrics in found}

    wait_until(lambda: acting() == {(mode.value, 1)}, 20, f"all act on {mode}")
    families = {one.name: one for one in ConnectorCollector(members).collect()}
    shown = {s.labels["mode"] for s in families["zkconsumer_mode"].samples if s.value}
    assert shown == {mode.value}


def check_pauses(
    members: list[MigratableConsumerConnector], before: list[Mapping[TopicPartition, float]]
) -> None:
    """Check the exported pauses of partitions that were moved, and those in the metrics."""
    pauses: dict[TopicPartition, float] = {}
    for member, had in zip(members, before, strict=True):
        now = member.metrics().pause_seconds
        pauses |= {tp: now[tp] for tp in now.keys() - had.keys()}
    assert len(pauses) >= 2
    assert all(0 <= seconds < 60 for seconds in pauses.values()), pauses
    families = {one.name: one for one in ConnectorCollector(members).collect()}
    samples = families["zkconsumer_pause_seconds"].samples
    assert {int(s.labels["partition"]) for s in samples} >= {tp.partition for tp in pauses}


def longest_pause(readers: list[Reader]) -> float:
    """The longest time in which no member delivered anything, in seconds."""
    at = sorted(one.at for reader in readers for one in reader.deliveries)
    return max(after - before for before, after in pairwise(at))


def test_forward_back_and_forward(
    cluster: LocalCluster, make: Make, topic: str, group: str
) -> None:
    """While messages are produced, nothing is lost or repeated. The group never stops, and members
    keep their partitions."""
    cluster.create_topic(topic, 6)
    with (
        Producer(cluster.bootstrap, topic, range(6), interval=0.005) as producer,
        BlockingZk(cluster.zookeeper) as zk,
    ):
        members = [make(consumer_id=f"m{n}") for n in range(3)]
        readers = [Reader(one.create_message_streams({topic: 1})[topic]) for one in members]
        wait_until(lambda: [held(m) for m in members] == [2, 2, 2], 20, "each has its share")
        acknowledged(zk, group, 3, 0)
        for there in (Mode.LOCKED, Mode.KAFKA, Mode.OPEN, Mode.KAFKA, Mode.LOCKED):
            move(zk, group, there, 3)
            assert [member.mode for member in members] == [there] * 3
            wait_acting(members, there)
        for there in (Mode.ZOOKEEPER, Mode.LOCKED, Mode.KAFKA):
            move(zk, group, there, 3)
        before = [member.metrics().pause_seconds for member in members[:2]]
        members.pop().shutdown()
        wait_until(lambda: sum(map(held, members)) == 6, 20, "the others have its partitions")
        check_pauses(members, before)
        delivered_once(producer, readers)
        assert longest_pause(readers) < 2
