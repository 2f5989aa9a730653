"""A group of real members on an embedded cluster, with faults injected, for ``zkaudit demo``.

Leaves ZooKeeper's own data directory and the members' journals behind, which an audit reads. Runs
in the caller's thread; servers, members and the producer have their own processes and threads.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from kazoo.client import KazooClient

from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.servers import LocalCluster, expire_session, wait_until
from zkconsumer.servers.groups import GroupWatch, Producer, Reader

GROUP = "orders"
TOPIC = "clicks"
PARTITIONS = 4
PLANTED = ("foreign release", "overlapping delivery", "tool write")
"""Kinds of findings that the faults cause. A run without faults has no findings."""

OVERLAP_SECONDS = 3.0
"""How long other members have owned a frozen member's partitions when it resumes."""

Say = Callable[[str], object]


def data_directory(folder: Path) -> Path:
    """ZooKeeper's data directory below the folder of ``play``."""
    return folder / "data" / "zookeeper"


def journal_directory(folder: Path) -> Path:
    """The members' journals below the folder of ``play``."""
    return folder / "journals"


def play(folder: Path, say: Say, *, faults: bool = True) -> None:
    """Run members for a while. With ``faults``, expire, freeze and kill members, and change their
    offsets and owner znodes.

    Raises ClusterError if the servers do not start or the group does not settle.
    """
    with LocalCluster("3.9", dir=folder) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        _Play(cluster, journal_directory(folder), say).run(faults)


class _Play:
    def __init__(self, cluster: LocalCluster, journals: Path, say: Say) -> None:
        self.cluster = cluster
        self.journals = journals
        self.say = say
        self.watch = GroupWatch(cluster.zookeeper, GROUP)

    def config(self, name: str) -> dict[str, object]:
        return {
            "zookeeper.connect": self.cluster.zookeeper,
            "group.id": GROUP,
            "consumer.id": name,
            "zookeeper.session.timeout.ms": 4000,
            "auto.offset.reset": "smallest",
            "auto.commit.interval.ms": 300,
            "rebalance.backoff.ms": 300,
            "rebalance.max.retries": 20,
            "zkconsumer.journal.dir": str(self.journals),
        }

    def run(self, faults: bool) -> None:
        producer = Producer(self.cluster.bootstrap, TOPIC, list(range(PARTITIONS)), 0.02)
        members: list[ZookeeperConsumerConnector] = []
        process: subprocess.Popen[bytes] | None = None
        try:
            for name in ("anna", "bert"):
                member = ZookeeperConsumerConnector(self.config(name))
                members.append(member)
                Reader(member.create_message_streams({TOPIC: 1})[TOPIC])
            self.settled(2)
            self.say("two members share the topic")
            process = self.process("carl")
            self.settled(3)
            self.say("a third member, in its own process, has joined")
            self.progress()
            if faults:
                self.faults(members[1], process)
                process.kill()
                self.say("killed the third member; its session expires 4 s later")
            else:
                process.terminate()
                self.say("the third member leaves")
            process.wait(30)
            self.settled(2)
            self.progress()
        finally:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
            for member in members:
                member.shutdown()
            producer.close()
            self.watch.close()

    def process(self, name: str) -> subprocess.Popen[bytes]:
        # Like the JVM's consumer, it does not stop at once when its session may be lost.
        settings = json.dumps(self.config(name) | {"zkconsumer.profile": "scala"})
        return subprocess.Popen([sys.executable, "-m", "zkaudit.demo", settings])

    def faults(self, member: ZookeeperConsumerConnector, process: subprocess.Popen[bytes]) -> None:
        expire_session(self.cluster.zookeeper, *member._zk._client.client_id)
        self.say("ended the session of the second member, which does not know it yet")
        self.settled(3)
        self.progress()
        process.send_signal(signal.SIGSTOP)
        self.say("froze the third member; its session expires 4 s later")
        try:
            self.settled(2)
            begin = time.monotonic()
            self.progress()
            wait_until(lambda: time.monotonic() > begin + OVERLAP_SECONDS, 30.0, "waiting")
        finally:
            process.send_signal(signal.SIGCONT)
        self.say("resumed the third member: it delivers messages of partitions that others own now")
        self.settled(3)
        self.progress()
        client = KazooClient(self.cluster.zookeeper)
        client.start(timeout=15)
        try:
            path = self.watch.paths.offset(TopicPartition(TOPIC, 0))
            client.set(path, b"1")
            self.say(f"wrote 1 to {path} by hand: a tool write")
            self.progress()
            path = self.watch.paths.owner(TopicPartition(TOPIC, 1))
            client.delete(path)
            self.say(f"deleted {path} by hand: a foreign release")
            self.settled(3)
        finally:
            client.stop()
            client.close()

    def settled(self, members: int) -> None:
        """Wait until this many members own all partitions."""
        self.watch.wait_owners(
            TOPIC,
            lambda owners: (
                len(owners) == PARTITIONS
                and len({text.rpartition("-")[0] for text in owners.values()}) == members
                and len(self.watch.members()) == members
            ),
            40.0,
            f"{members} members own all partitions",
        )

    def progress(self) -> None:
        """Wait until every partition's offset has grown."""
        begin = self.watch.offsets(TOPIC)

        def grown() -> bool:
            now = self.watch.offsets(TOPIC)
            return len(now) == PARTITIONS and all(now[p] > begin.get(p, 0) for p in now)

        wait_until(grown, 30.0, "all offsets have grown")


def _member(settings: str) -> None:
    """A member in its own process; SIGTERM makes it leave the group."""
    member = ZookeeperConsumerConnector(json.loads(settings))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        Reader(member.create_message_streams({TOPIC: 1})[TOPIC])
        while True:
            signal.pause()
    finally:
        member.shutdown()


if __name__ == "__main__":
    _member(sys.argv[1])
