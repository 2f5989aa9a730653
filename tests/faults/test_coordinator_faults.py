"""Members on the coordinator under fire: processes killed and paused, and the coordinator's end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.testing import LocalCluster, wait_until
from zkconsumer.testing.groups import Producer, Reader

SCRIPT = Path(__file__).with_name("coordinator_member.py")
SESSION = 6.0
"""Seconds; the least that brokers accept."""
HEAL = SESSION + 5
"""Seconds after a fault within which each partition has one deliverer again."""
PARTITIONS = 4


@pytest.fixture(scope="module")
def pair() -> Iterator[LocalCluster]:
    """Two brokers that both hold the groups' offsets."""
    properties = {
        "offsets.topic.replication.factor": "2",
        "offsets.topic.num.partitions": "4",
        "zookeeper.session.timeout.ms": "6000",
    }
    with LocalCluster("3.9", brokers=2, properties=properties) as running:
        yield running


class Outside:
    """A member in its own process."""

    def __init__(self, config: dict[str, object], topic: str, log: Path) -> None:
        self.log = log
        log.touch()
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), json.dumps(config), topic, str(log)]
        )

    def lines(self) -> list[tuple[float, int, int]]:
        found = [line.split() for line in self.log.read_text().splitlines()]
        return [(float(at), int(partition), int(offset)) for at, partition, offset in found]

    def close(self) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGCONT)
            self.process.kill()
            self.process.wait(10)


def config(cluster: LocalCluster, group: str, **more: object) -> dict[str, object]:
    """Settings of a member that commits often."""
    added = {key.replace("_", "."): value for key, value in more.items()}
    return {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": group,
        "session.timeout.ms": int(SESSION * 1000),
        "heartbeat.interval.ms": 500,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 200,
        "refresh.leader.backoff.ms": 50,
        "socket.timeout.ms": 5000,
    } | added


def held(member: CoordinatorConsumerConnector) -> int:
    """How many partitions a member owns."""
    assert member._loop is not None
    return len(member._loop.machine.held)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("fault", ["SIGKILL", "SIGSTOP", "SIGTERM"])
def test_a_member_ends_or_pauses(
    pair: LocalCluster, group: str, topic: str, tmp_path: Path, fault: str, strategy: str
) -> None:
    """The others deliver the partitions of a member that is killed, paused beyond the session
    timeout or leaves, within session timeout + 5 s. A member that was paused delivers at most the
    message in hand when it wakes, and comes back. Nothing is lost."""
    pair.create_topic(topic, PARTITIONS, replication=2)
    settings = config(pair, group, partition_assignment_strategy=strategy)
    slow = tmp_path / "other.log.slow"
    with (
        Producer(pair.bootstrap, topic, range(PARTITIONS), interval=0.01) as producer,
        CoordinatorConsumerConnector(settings) as member,
    ):
        reader = Reader(member.create_message_streams({topic: 1})[topic])
        other = Outside(settings, topic, tmp_path / "other.log")
        try:
            wait_until(lambda: held(member) == 2, 20, "half is the other's")
            wait_until(lambda: len(other.lines()) > 20, 20, "the other one reads")
            if fault == "SIGSTOP":  # struck with a message in hand and more behind it
                slow.touch()
                count = len(other.lines())
                wait_until(lambda: len(other.lines()) > count + 3, 20, "it is slow")
            struck = time.monotonic()
            other.process.send_signal(getattr(signal, fault))
            wait_until(lambda: held(member) == PARTITIONS, HEAL, "all is ours")
            wait_until(
                lambda: len({d.partition for d in reader.deliveries if d.at > struck}) == 4,
                HEAL - (time.monotonic() - struck),
                "all is delivered here within session timeout + 5 s",
            )
            took = time.monotonic() - struck
            if fault == "SIGSTOP":
                before = len(other.lines())
                woken = time.monotonic()
                other.process.send_signal(signal.SIGCONT)
                wait_until(lambda: held(member) == 2, HEAL, "the other one is back")
                slow.unlink()
                wait_until(lambda: len(other.lines()) > before + 20, HEAL, "it reads again")
                taken_over = {
                    (d.partition, d.offset) for d in reader.deliveries if struck < d.at < woken
                }
                stale = [line for line in other.lines()[before:] if line[1:] in taken_over]
                assert not stale, "the message in hand is in the log already, this is more"
            elif fault == "SIGTERM":
                assert other.process.wait(10) == 0
                assert took < 3, "who leaves is not waited for"
            sent = set(producer.stop())

            def got() -> set[tuple[int, int]]:
                ours = {(d.partition, d.offset) for d in reader.deliveries}
                return ours | {(p, o) for _, p, o in other.lines()}

            wait_until(lambda: got() >= sent, 15, "nothing is lost")
            assert not reader.errors
        finally:
            other.close()


def test_the_coordinator_dies(pair: LocalCluster, group: str, topic: str) -> None:
    """When the coordinator's broker is killed the members find the next one and go on with their
    partitions; when it is back nothing is lost. Delivery stands still while nobody confirms
    heartbeats, and no longer than session timeout + 5 s after a coordinator is there again."""
    pair.create_topic(topic, PARTITIONS, replication=2)
    members = [CoordinatorConsumerConnector(config(pair, group)) for _ in range(2)]
    with Producer(pair.bootstrap, topic, range(PARTITIONS), interval=0.01) as producer:
        try:
            readers = [
                Reader(member.create_message_streams({topic: 1})[topic]) for member in members
            ]
            wait_until(lambda: [held(m) for m in members] == [2, 2], 20, "shared")
            for reader in readers:
                reader.wait(20)
            loop = members[0]._loop
            assert loop is not None
            coordinator = loop._client.coordinator
            assert coordinator is not None
            server = pair.broker_servers[coordinator.broker_id]
            server.kill()
            wait_until(
                lambda: all(
                    m._loop is not None and m._loop._client.coordinator not in (None, coordinator)
                    for m in members
                ),
                40,
                "the other broker coordinates",
            )
            wait_until(
                lambda: (
                    [held(m) for m in members] == [2, 2]
                    and all(m.metrics().state == "STABLE" and m._gate.is_open for m in members)
                ),
                HEAL,
                "both go on",
            )
            counts = [len(reader.deliveries) for reader in readers]
            wait_until(
                lambda: all(len(r.deliveries) > n for r, n in zip(readers, counts, strict=True)),
                30,
                "both deliver",
            )
        finally:
            for down in pair.broker_servers:
                if not down.running:
                    down.start()
                    down.wait_ready()
        sent = set(producer.stop())
        wait_until(
            lambda: {(d.partition, d.offset) for r in readers for d in r.deliveries} >= sent,
            30,
            "nothing is lost",
        )
        for member in members:
            member.shutdown()
        assert not [reader.errors for reader in readers if reader.errors]
