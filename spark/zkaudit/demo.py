"""A group of real members on an embedded cluster, with faults injected, for ``zkaudit demo``.

Leaves ZooKeeper's data directory and the members' journals behind for an audit. Runs in the
caller's thread; servers, members and the producer have their own processes and threads.
"""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from kafka import KafkaProducer
from kazoo.client import KazooClient

from zkconsumer.admin.tools import GroupTools
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.runtime.delivery.streams import KafkaStream
from zkconsumer.servers import LocalCluster, expire_session, wait_until

GROUP = "orders"
TOPIC = "clicks"
PARTITIONS = 4
PLANTED = ("foreign release", "overlapping delivery", "tool write")
"""Kinds of findings that the faults cause. A run without faults has no findings."""

OVERLAP_SECONDS = 3.0
"""Seconds for which other members have owned a frozen member's partitions when it resumes."""

Say = Callable[[str], object]


def data_directory(folder: Path) -> Path:
    """Return ZooKeeper's data directory below the directory of ``play``."""
    return folder / "data" / "zookeeper"


def journal_directory(folder: Path) -> Path:
    """Return the directory of the members' journals below the directory of ``play``."""
    return folder / "journals"


def play(folder: Path, say: Say, *, faults: bool = True) -> None:
    """Run members for a while. With ``faults``, expire, freeze and kill members, and change
    offsets and owner znodes.

    Raises ClusterError if the servers do not start or the group does not settle.
    """
    with LocalCluster("3.9", dir=folder) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        with _Messages(cluster.bootstrap), GroupTools(cluster.zookeeper) as tools:
            _Play(cluster, tools, journal_directory(folder), say).run(faults)


class _Messages(threading.Thread):
    """Sends 50 messages per second, to each partition in rotation."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="messages", daemon=True)
        self._producer = KafkaProducer(bootstrap_servers=bootstrap.split(","))
        self._ended = threading.Event()

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self.join()
        self._producer.close(timeout=5.0)

    def run(self) -> None:
        for number in itertools.count():
            if self._ended.wait(0.02):
                return
            self._producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS)


def _read(streams: list[KafkaStream]) -> None:
    """Read each stream in its own thread until the member shuts down."""
    for stream in streams:
        threading.Thread(target=deque, args=(stream, 0), name="reader", daemon=True).start()


class _Play:
    def __init__(self, cluster: LocalCluster, tools: GroupTools, journals: Path, say: Say) -> None:
        self.cluster = cluster
        self.tools = tools
        self.journals = journals
        self.say = say

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
        members: list[ZookeeperConsumerConnector] = []
        process: subprocess.Popen[bytes] | None = None
        try:
            for name in ("anna", "bert"):
                member = ZookeeperConsumerConnector(self.config(name))
                members.append(member)
                _read(member.create_message_streams({TOPIC: 1})[TOPIC])
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
            wait_until(lambda: time.monotonic() > begin + OVERLAP_SECONDS, 30.0, "time has passed")
        finally:
            process.send_signal(signal.SIGCONT)
        self.say("resumed the third member: it delivers messages of partitions that others own now")
        self.settled(3)
        self.progress()
        client = KazooClient(self.cluster.zookeeper)
        client.start(timeout=15)
        paths = GroupPaths(GROUP)
        try:
            path = paths.offset(TopicPartition(TOPIC, 0))
            client.set(path, b"1")
            self.say(f"wrote 1 to {path} by hand: a tool write")
            self.progress()
            path = paths.owner(TopicPartition(TOPIC, 1))
            client.delete(path)
            self.say(f"deleted {path} by hand: a foreign release")
            self.settled(3)
        finally:
            client.stop()
            client.close()

    def settled(self, members: int) -> None:
        """Wait until this many members own all partitions."""

        def settled() -> bool:
            names = {row.consumer_id for row in self.tools.members([GROUP])}
            rows = self.tools.describe([GROUP], lag=False)
            threads = [row.consumer_id or "" for row in rows if row.partition is not None]
            owners = {thread.rpartition("-")[0] for thread in threads}
            return len(threads) == PARTITIONS and len(names) == members and owners == names

        wait_until(settled, 40.0, f"{members} members own all partitions")

    def progress(self) -> None:
        """Wait until every partition's offset has grown."""
        begin = self.offsets()

        def grown() -> bool:
            now = self.offsets()
            return len(now) == PARTITIONS and all(now[p] > begin.get(p, 0) for p in now)

        wait_until(grown, 30.0, "all offsets have grown")

    def offsets(self) -> dict[int, int]:
        """Return the stored offset of each partition that has one."""
        rows = self.tools.describe([GROUP], lag=False)
        return {
            row.partition: row.current_offset
            for row in rows
            if row.partition is not None and row.current_offset is not None
        }


def _member(settings: str) -> None:
    """Run a member in its own process. SIGTERM makes it leave the group."""
    member = ZookeeperConsumerConnector(json.loads(settings))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        _read(member.create_message_streams({TOPIC: 1})[TOPIC])
        while True:
            signal.pause()
    finally:
        member.shutdown()


if __name__ == "__main__":
    _member(sys.argv[1])
