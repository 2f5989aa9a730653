"""Many stopped groups on real servers, one in a hundred broken in one of ten ways.

The sample in CI uses it, and the measurement ``python -m tests.migrate.bench_estate``.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Final

from kazoo.client import KazooClient
from kazoo.security import ACL, Id

from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.broker.groups.group_coordinators import GroupCoordinators
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.servers import LocalCluster

TOPICS: Final = 10
PARTITIONS: Final = 10
MESSAGES: Final = 50
"""Messages of each partition. Valid offsets are from 0 to this number."""
FIXES: Final = {
    "conflict": "--on-conflict",
    "out-of-range": "--out-of-range clamp",
    "topic-missing": "--missing-topics skip",
    "partition-missing": "--missing-topics",
    "topic-recreated": "--recreated-topics",
    "unreadable": "--skip",
    "live-member": "stop these members",
    "foreign-layout": "own client's tools",
    "misplaced-offsets": "--misplaced use",
    "unknown": "make it available again",
}
"""The ten faults: the kind of problem that must be reported for each, and a part of its fix."""


class Estate:
    """The groups that were created.

    Args:
        cluster: the servers.
        count: the number of groups.
        seed: chooses offsets and which groups are broken.

    ``offsets`` has the committed offsets of each good group. ``broken`` maps a group to its fault.
    """

    def __init__(self, cluster: LocalCluster, count: int, seed: int, name: str = "estate") -> None:
        self._cluster = cluster
        self._random = random.Random(seed)
        self._name = name
        self.topics = [f"{name}-t{number}" for number in range(TOPICS)]
        self.groups = [f"{name}-{number:05}" for number in range(count)]
        ways = list(FIXES)
        sick = max(len(ways), count // 100)
        chosen = self._random.sample(self.groups, sick)
        self.broken = {group: ways[at % len(ways)] for at, group in enumerate(sorted(chosen))}
        self.offsets: dict[str, dict[TopicPartition, int]] = {}
        self.client = KazooClient(cluster.zookeeper, timeout=60.0)
        self.client.start(timeout=15)
        host, _, port = cluster.broker_servers[0].address.rpartition(":")
        self.broker = BrokerEndpoint(0, host, int(port))
        self.kafka = GroupCoordinators("estate", lambda: [self.broker], 10.0, 30.0)

    def close(self) -> None:
        """Close the sessions, and with them the live members."""
        self.kafka.close()
        self.client.stop()
        self.client.close()

    def fill(self) -> None:
        """Create topics and groups."""
        self.client.ensure_path("/consumers")
        for group, way in self.broken.items():
            if way == "topic-recreated":  # the offset is older than its topic
                self.client.ensure_path(f"/consumers/{group}/offsets/{self._name}-again")
                self.client.create(f"/consumers/{group}/offsets/{self._name}-again/0", b"1")
        for topic in [*self.topics, f"{self._name}-again"]:
            self._cluster.create_topic(topic, PARTITIONS)
            self._produce(topic)
        pending = []
        for at, group in enumerate(self.groups):
            transaction = self.client.transaction()
            root = f"/consumers/{group}"
            if self.broken.get(group) != "topic-recreated":
                transaction.create(root)
                transaction.create(f"{root}/offsets")
            mine: dict[TopicPartition, int] = {}
            for topic in (self.topics[at % TOPICS], self.topics[(at + 1) % TOPICS]):
                transaction.create(f"{root}/offsets/{topic}")
                for partition in range(PARTITIONS):
                    offset = self._random.randint(0, MESSAGES)
                    mine[TopicPartition(topic, partition)] = offset
                    where = f"{root}/offsets/{topic}/{partition}"
                    transaction.create(where, b"%d" % offset)
            self.offsets[group] = mine
            pending.append(transaction.commit_async())
            if len(pending) == 200:
                _settle(pending)
        _settle(pending)
        for group, way in self.broken.items():
            self._break(group, way)

    def _break(self, group: str, way: str) -> None:
        client, root = self.client, f"/consumers/{group}"
        tp, offset = min(self.offsets[group].items())
        where = f"{root}/offsets/{tp.topic}"

        def make(path: str, data: bytes) -> None:
            client.create(path, data, makepath=True)

        ways: dict[str, Callable[[], object]] = {
            "conflict": lambda: self.kafka.commit(group, {tp: StoredOffset((offset + 1) % 50)}),
            "out-of-range": lambda: client.set(f"{where}/0", b"%d" % (MESSAGES + 7)),
            "topic-missing": lambda: make(f"{root}/offsets/{self._name}-gone/0", b"3"),
            "partition-missing": lambda: make(f"{where}/{PARTITIONS + 3}", b"3"),
            "topic-recreated": lambda: None,
            "unreadable": lambda: client.set(f"{where}/0", b"0x1F"),
            "live-member": lambda: client.create(
                f"{root}/ids/{group}_old-host-1",
                b'{"version":1,"subscription":{},"pattern":"static","timestamp":"1"}',
                ephemeral=True,
                makepath=True,
            ),
            "foreign-layout": lambda: make(f"{where}/shard-7", b"3"),
            "misplaced-offsets": lambda: make(f"{root}/offset/{tp.topic}/0", b"9"),
            "unknown": lambda: make(f"{root}/migration", b"not ours"),
        }
        ways[way]()

    def deny(self, group: str) -> None:
        """Remove all read permissions from a group's offset znode."""
        tp = min(self.offsets[group])
        where = f"/consumers/{group}/offsets/{tp.topic}/{tp.partition}"
        self.client.set_acls(where, [ACL(16 | 2, Id("world", "anyone"))])

    def moved(self) -> Iterator[tuple[str, bool]]:
        """Yield each good group, and whether Kafka has exactly its offsets."""
        for group in self.groups:
            if group not in self.broken:
                found = self.kafka.fetch(group, ())
                yield group, {tp: one.offset for tp, one in found.items()} == self.offsets[group]

    def _produce(self, topic: str) -> None:
        """Append messages in the format of 0.8, which every line accepts (produce version 0)."""
        body = b"\0\0" + struct.pack(">ii", -1, 1) + b"x"
        message = struct.pack(">I", zlib.crc32(body)) + body
        entries = b"".join(struct.pack(">qi", 0, len(message)) + message for _ in range(MESSAGES))
        name = struct.pack(">h", len(topic)) + topic.encode()
        connection = BrokerConnection(self.broker, "estate", 15.0, 0)
        for partition in range(PARTITIONS):
            head = struct.pack(">hii", -1, 10_000, 1) + name
            request = head + struct.pack(">iii", 1, partition, len(entries)) + entries
            answer = connection.exchange(0, 0, request)
            (code,) = struct.unpack_from(">h", answer, 4 + len(name) + 8)
            assert code == 0
        connection.close()


def _settle(pending: list[object]) -> None:
    for one in pending:
        for done in one.get(timeout=60):  # type: ignore[attr-defined]
            assert not isinstance(done, Exception), done
    pending.clear()
