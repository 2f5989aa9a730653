"""A group under faults: members in threads and processes, a producer, and an observer of
offsets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.coordinated import written
from tests.support.groups import Delivery, GroupWatch, Producer, Reader
from tests.support.members import keys
from tests.support.tcp_proxy import TcpProxy
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.core.common.topic_filter import Whitelist
from zkconsumer.servers import LocalCluster, expire_session, wait_until
from zkconsumer.servers.waiting import stands_still

SCRIPT = Path(__file__).with_name("member.py")
SESSION = 2.0
"""Session timeout of all members in seconds, unless a test sets another one."""
HEAL = SESSION + 5
"""Every partition has exactly one owner again within this number of seconds after a fault."""
INTERVAL = 0.005
"""Seconds between two messages of the producer."""


PAIR = {
    "offsets.topic.replication.factor": "2",
    "offsets.topic.num.partitions": "4",
    "zookeeper.session.timeout.ms": "6000",
    "replica.lag.time.max.ms": "5000",
}
"""Settings for two brokers, of which one may be killed at a time."""


class Inside:
    """A member in this process with one stream, behind its own proxy."""

    def __init__(self, arena: Arena, name: str, topics: str, config: dict[str, object]) -> None:
        self.name = name
        self.consumer_id = f"{arena.group}_{name}"
        self.proxy = TcpProxy(arena.cluster.zookeeper_server.port)
        self.connector = ZookeeperConsumerConnector(
            config | {"zookeeper.connect": self.proxy.address}
        )
        if topics.startswith("/"):
            streams = self.connector.create_message_streams_by_filter(Whitelist(topics[1:]))
        else:
            streams = self.connector.create_message_streams({topics: 1})[topics]
        self.reader = Reader(streams)
        self.alive = True

    def deliveries(self) -> list[Delivery]:
        return list(self.reader.deliveries)

    def expire(self) -> None:
        """The server ends the session."""
        address = f"127.0.0.1:{self.proxy.target_port}"
        client = self.connector._zk._client
        wait_until(lambda: client.client_id is not None, 30, "a session after the last fault")
        expire_session(address, *client.client_id)

    def leave(self) -> None:
        self.alive = False
        self.proxy.resume()
        try:
            self.connector.shutdown()
        finally:
            self.proxy.close()
        self.reader.join()


class Outside:
    """A member in its own process."""

    def __init__(self, arena: Arena, name: str, topics: str, config: dict[str, object]) -> None:
        self.name = name
        self.consumer_id = f"{arena.group}_{name}"
        self.log = arena.directory / f"{name}-{time.monotonic_ns()}.log"
        self.log.touch()
        self.errors = self.log.with_suffix(".err")
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT), json.dumps(config), topics, str(self.log)],
                stderr=errors,
            )
        self.alive = True
        self.topics = topics

    def deliveries(self) -> list[Delivery]:
        return [
            Delivery(float(at), int(partition), int(offset), None, topic)
            for at, topic, partition, offset in written(self.log)
        ]

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)
        if number is signal.SIGSTOP:
            wait_until(lambda: stands_still(self.process.pid), 30, "the member stands still")

    def kill(self) -> None:
        self.alive = False
        self.process.kill()
        self.process.wait(10)

    def leave(self) -> None:
        self.alive = False
        self.signal(signal.SIGTERM)
        assert self.process.wait(30) == 0, self.errors.read_text()


class Arena:
    """One topic with a producer that writes all the time, and the group that reads it."""

    def __init__(
        self, cluster: LocalCluster, group: str, topic: str, directory: Path, partitions: int
    ) -> None:
        self.cluster = cluster
        self.group = group
        self.topic = topic
        self.directory = directory
        self.partitions = partitions
        self.members: list[Inside | Outside] = []
        cluster.create_topic(topic, partitions)
        self.watch = GroupWatch(cluster.zookeeper, group, [topic])
        self.producer = Producer(cluster.bootstrap, topic, range(partitions), interval=INTERVAL)
        self.config: dict[str, object] = {
            "zookeeper.connect": cluster.zookeeper,
            "group.id": group,
            "zookeeper.session.timeout.ms": int(SESSION * 1000),
            "auto.offset.reset": "smallest",
            "auto.commit.interval.ms": 200,
            "rebalance.backoff.ms": 500,
            "rebalance.max.retries": 20,
            "refresh.leader.backoff.ms": 50,
            "zkconsumer.reread.interval.ms": 5000,
        }

    def inside(self, name: str, topics: str | None = None, **more: object) -> Inside:
        """A new member in this process."""
        member = Inside(self, name, topics or self.topic, self._config(name, more))
        self.members.append(member)
        return member

    def outside(self, name: str, topics: str | None = None, **more: object) -> Outside:
        """A new member in its own process. It is registered when this returns."""
        member = Outside(self, name, topics or self.topic, self._config(name, more))
        self.members.append(member)
        wait_until(
            lambda: member.consumer_id in self.watch.members() or member.process.poll() is not None,
            20,
            f"{name} registers",
        )
        assert member.process.poll() is None, member.errors.read_text()
        return member

    def _config(self, name: str, more: dict[str, object]) -> dict[str, object]:
        return self.config | {"consumer.id": name} | keys(**more)

    def settle(self, timeout: float = HEAL) -> dict[int, str]:
        """Wait until every partition has the owner that range assigns among the live members."""
        threads = sorted(f"{member.consumer_id}-0" for member in self.members if member.alive)
        share, extra = divmod(self.partitions, len(threads))
        expected: dict[int, str] = {}
        for position, thread in enumerate(threads):
            for _ in range(share + (position < extra)):
                expected[len(expected)] = thread
        return self.watch.wait_owners(
            self.topic,
            lambda found: found == expected,
            timeout,
            f"owners are {expected} within {timeout:g} s of the fault",
        )

    def seen(self) -> Counter[tuple[int, int]]:
        """How often each (partition, offset) of the topic was delivered, by all members
        together."""
        return Counter(
            (found.partition, found.offset)
            for member in self.members
            for found in member.deliveries()
            if found.topic == self.topic
        )

    def wait_progress(self, member: Inside | Outside, count: int = 20) -> None:
        """Wait until ``member`` has received ``count`` more messages."""
        start = len(member.deliveries())
        wait_until(
            lambda: len(member.deliveries()) >= start + count, 30, f"{member.name} makes progress"
        )

    def finish(self) -> int:
        """Stop the producer. Check that nothing is lost and no offset went down. Return the number
        of repeated deliveries."""
        acked = self.producer.stop()
        assert len(acked) > 100

        def missing() -> set[tuple[int, int]]:
            return set(acked) - set(self.seen())

        try:
            wait_until(lambda: not missing(), 20, "every acknowledged message is delivered")
        except Exception as error:
            error.add_note(f"missing: {sorted(missing())[:20]}")
            raise
        assert self.watch.lowered == []
        for member in self.members:
            self.check_order(member)
        return sum(count - 1 for count in self.seen().values())

    def check_order(self, member: Inside | Outside) -> None:
        """A member reads each partition forwards. After a lost session it may get the
        unacknowledged message once more. It may go back further only if another member read the
        partition in between. Then the messages that this member had not committed are delivered
        again."""
        read: dict[int, list[Delivery]] = {}
        for found in member.deliveries():
            if found.topic == self.topic:
                earlier = read.setdefault(found.partition, [])
                if earlier and found.offset < earlier[-1].offset:
                    # One more message may arrive after other members have taken over.
                    since = earlier[-2].at if len(earlier) > 1 else 0.0
                    assert self.others_read(member, found.partition, since, found.at), (
                        member.name,
                        found,
                        earlier[-1],
                    )
                earlier.append(found)

    def others_read(
        self, member: Inside | Outside, partition: int, since: float, until: float
    ) -> bool:
        """Return whether another member received a message of the partition in that time."""
        return any(
            since <= found.at <= until
            for other in self.members
            if other is not member
            for found in other.deliveries()
            if (found.topic, found.partition) == (self.topic, partition)
        )

    def unstored(self, member: Inside | Outside, stored: dict[int, int]) -> int:
        """Number of messages that ``member`` received at or above the offsets ``stored``."""
        return sum(
            found.offset >= stored.get(found.partition, 0)
            for found in member.deliveries()
            if found.topic == self.topic
        )

    def close(self) -> None:
        """Stop everything."""
        self.producer.close()
        for member in self.members:
            if member.alive and isinstance(member, Outside):
                member.signal(signal.SIGCONT)
                member.kill()
            elif member.alive:
                member.leave()
        self.watch.close()


@pytest.fixture(scope="module")
def fragile() -> Iterator[LocalCluster]:
    """ZooKeeper and a broker that the tests of one module stop and start."""
    with LocalCluster("3.9") as running:
        yield running


@pytest.fixture
def make_arena(
    fragile: LocalCluster, group: str, topic: str, tmp_path: Path
) -> Iterator[Callable[..., Arena]]:
    """Creates the arena of a test: ``make_arena(partitions=6)``."""
    made: list[Arena] = []

    def make(partitions: int = 6) -> Arena:
        made.append(Arena(fragile, group, topic, tmp_path, partitions))
        return made[-1]

    yield make
    for arena in made:
        arena.close()


@pytest.fixture
def arena(make_arena: Callable[..., Arena]) -> Arena:
    """An arena with six partitions and about 200 messages per second."""
    return make_arena()


@pytest.fixture(scope="session")
def pair() -> Iterator[LocalCluster]:
    """Two brokers of 3.9 that both have the groups' offsets. Tests leave both running."""
    with LocalCluster("3.9", brokers=2, properties=PAIR) as running:
        yield running


@pytest.fixture(scope="session")
def older_pair() -> Iterator[LocalCluster]:
    """Two brokers of 1.1."""
    with LocalCluster("1.1", brokers=2, properties=PAIR) as running:
        yield running
