"""Real servers with the methods of ``Simulated`` that the table of states and commands needs.

Offsets are written as clients write them: znodes, and commits without membership. ``forget``
deletes committed offsets at the coordinator, which leaves the same tombstones as an expiry.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    KafkaAdminClient,
    ResourcePattern,
    ResourceType,
)
from kazoo.exceptions import NoNodeError
from zkmigrate.cli import run

from tests.migrate.rows import rows_of
from tests.migrate.simulated import Ran
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.servers import wait_until

if TYPE_CHECKING:
    from conftest import Bench  # type: ignore[import-not-found]

ACL_PROPERTIES: Final = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
"""A broker with these properties can hide topics."""


class RealCluster:
    """One group on a cluster that is shared by many. ``name`` is a part of all names."""

    def __init__(self, bench: Bench, folder: Path, name: str) -> None:
        self._bench = bench
        self._folder = folder
        self._hidden: list[str] = []
        self.connect: str = bench.cluster.zookeeper
        self.group = f"g-{name}"
        self.renamed = f"new-{name}"
        self.topic_name = f"t-{name}"

    def close(self) -> None:
        """Show hidden topics again, because commands on other groups list them."""
        for topic in self._hidden:
            with self._admin() as admin:
                admin.delete_acls([_deny(topic)])
            self._wait_for(topic, hidden=False)

    def topic(self, name: str, *ends: tuple[int, int]) -> None:
        """Create a topic; each pair is a partition's first and next offset."""
        self._bench.cluster.create_topic(name, len(ends))
        for partition, (first, end) in enumerate(ends):
            assert first == 0
            self._bench.produce(name, partition, end)

    def in_zookeeper(
        self, group: str, topic: str, *offsets: int | None, where: str = "offsets"
    ) -> None:
        """Store offsets of partitions 0, 1, ... in ZooKeeper."""
        for partition, offset in enumerate(offsets):
            if offset is not None:
                self.znode(f"{GroupPaths(group).root}/{where}/{topic}/{partition}", b"%d" % offset)

    def in_kafka(self, group: str, topic: str, *offsets: int | None) -> None:
        """Commit offsets of partitions 0, 1, ... to Kafka."""
        wanted = {number: one for number, one in enumerate(offsets) if one is not None}
        self._bench.set_kafka(group, topic, wanted)

    def forget(self, group: str, *gone: TopicPartition) -> None:
        """Delete committed offsets."""
        assert self._bench.kafka.delete(group, gone) == {}

    def znode(self, path: str, data: bytes = b"") -> None:
        """Write a znode, and create its parents."""
        self._bench.client.ensure_path(path)
        self._bench.client.set(path, data)

    def znodes(self, group: str) -> dict[str, object]:
        """Return data, version and access list of all znodes of a group."""
        client = self._bench.client
        found: dict[str, object] = {}
        paths = [GroupPaths(group).root]
        for path in paths:
            try:
                data, stat = client.get(path)
                found[path] = (data, stat.version, client.get_acls(path)[0])
                paths += [f"{path}/{name}" for name in client.get_children(path)]
            except NoNodeError:
                pass
        return found

    def hide(self, topic: str) -> None:
        """Do not allow zkmigrate to describe a topic."""
        self._hidden.append(topic)
        with self._admin() as admin:
            assert not admin.create_acls([_deny(topic)])["failed"]
        self._wait_for(topic, hidden=True)

    def held(self, group: str, topic: str) -> tuple[dict[int, int], dict[int, int]]:
        """Return the offsets of a topic in ZooKeeper and in Kafka, by partition."""
        zk = {}
        for number in (0, 1):
            try:
                path = GroupPaths(group).offset(TopicPartition(topic, number))
                zk[number] = int(self._bench.client.get(path)[0])
            except NoNodeError:
                pass
        kafka = self._bench.kafka.fetch(group, ())
        return zk, {tp.partition: one.offset for tp, one in kafka.items() if tp.topic == topic}

    def run(self, *words: str) -> Ran:
        """Run a command of zkmigrate with ``--json``."""
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            status = run([*words, "--zookeeper", self.connect, "--json"])
        return Ran(status, rows_of(out.getvalue()), err.getvalue())

    def file(self, name: str) -> str:
        """Return the path of a new file."""
        return str(self._folder / name)

    def _wait_for(self, topic: str, hidden: bool) -> None:
        wait_until(
            lambda: (topic in self._bench.kafka.hidden([topic])) is hidden,
            30,
            f"the broker {'hides' if hidden else 'shows'} topic {topic}",
        )

    @contextmanager
    def _admin(self) -> Iterator[KafkaAdminClient]:
        admin = KafkaAdminClient(bootstrap_servers=self._bench.cluster.bootstrap)
        try:
            yield admin
        finally:
            admin.close()


def _deny(topic: str) -> ACL:
    pattern = ResourcePattern(ResourceType.TOPIC, topic)
    return ACL("User:ANONYMOUS", "*", ACLOperation.DESCRIBE, ACLPermissionType.DENY, pattern)
