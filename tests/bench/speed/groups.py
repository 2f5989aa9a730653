"""Rebalances and commits of our members and the JVM's, near ZooKeeper and at a distance.

A join begins when ``create_message_streams`` is called or, for the JVM, when its registration is
created. It ends when every partition has an owner and every member has its share: when ZooKeeper
created the last owner znode. ``20 ms`` is the round trip to ZooKeeper, through a proxy that delays
responses.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from tests.bench.speed.readers import BUILD
from tests.support.legacy_jvm import JvmMember, JvmMembers
from tests.support.tcp_proxy import TcpProxy
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import GetChildren, GetMany, Node, Ok, Reply, ZkOp
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.errors import ClusterError
from zkconsumer.servers import LocalCluster, wait_until
from zkconsumer.zk.driver import ZkDriver

WIDTHS = (100, 1000, 5000)
ROUND_TRIP = 0.02
TIMEOUT = 240.0
LOOK_EVERY = 0.25
Figure = tuple[str, str, str, float]


class Look:
    """Reads all owner znodes of a group at once, directly from ZooKeeper."""

    def __init__(self, zookeeper: str) -> None:
        self._driver = ZkDriver(zookeeper, "", 30.0, lambda *_: None, lambda _: None)
        self._driver.start(10.0)

    def close(self) -> None:
        """End its session."""
        self._driver.close()

    def _ask(self, op: ZkOp) -> Reply:
        replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self._driver.submit(op, self._driver.session_id, replies.put)
        return replies.get(timeout=30)

    def registered(self, group: str) -> list[float]:
        """Return when each member registered, in seconds since 1970, in ascending order."""
        paths = GroupPaths(group)
        reply = self._ask(GetChildren(paths.ids))
        names = reply.value if isinstance(reply, Ok) and isinstance(reply.value, tuple) else ()
        return sorted(map(_seconds, self._nodes(tuple(map(paths.member, names)))))

    def _nodes(self, paths: tuple[str, ...]) -> list[Node]:
        """Return the znodes that exist, without those that do not."""
        reply = self._ask(GetMany(paths))
        assert isinstance(reply, Ok)
        assert isinstance(reply.value, tuple)
        return [node for node in reply.value if node is not None]

    def settled(self, group: str, topic: str, partitions: int, members: int) -> float:
        """Return when the last owner znode was created, in seconds since 1970.

        Returns 0 unless every partition has an owner and every member has its share.
        """
        paths = GroupPaths(group)
        nodes = self._nodes(tuple(paths.owner(TopicPartition(topic, n)) for n in range(partitions)))
        shares = Counter(node.data for node in nodes).values()
        whole = (
            len(nodes) == partitions
            and len(shares) == min(members, partitions)
            and max(shares) - min(shares) <= 1
        )
        return max(map(_seconds, nodes)) if whole else 0.0


def _seconds(node: Node) -> float:
    return node.stat.mtime_ms / 1000


class Pack:
    """A process that runs our members."""

    def __init__(self, zookeeper: str, group: str, topic: str) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).with_name("members.py")),
                zookeeper,
                group,
                topic,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": str(BUILD / "compiled")},
        )
        self.ask(nothing=1)  # the start of Python is not measured

    def tell(self, **order: int) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for the response."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a process of members has ended")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, **order: int) -> dict[str, Any]:
        """Send a command and wait for the response."""
        self.tell(**order)
        return self.answer()

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class Groups:
    """The measurements of one group size."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._direct = cluster.zookeeper.partition("/")[0]
        self._proxy = TcpProxy(cluster.zookeeper_server.port)
        self._proxy.delay(ROUND_TRIP, "answers")
        for width in WIDTHS:
            name, step = f"wide-{width}", 1000
            cluster.create_topic(name, min(width, step))
            for total in range(2 * step, width + 1, step):  # a broker needs a while for each
                cluster.add_partitions(name, total)
        self._look = Look(self._direct)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._look.close()
        self._proxy.close()

    def measure(self, turn: int) -> Iterator[Figure]:
        """Measure one round. Anything that takes the JVM minutes is measured only in the first
        round."""
        for width in WIDTHS:
            case = f"join, {width:,} partitions, 2 members"
            yield case, "ours", "s", self._join(width, 2)
            if width < 5000 or not turn:
                yield case, "JVM legacy 1.1.1", "s", self._jvm_join(width)
        yield "join, 1,000 partitions, 50 members", "ours", "s", self._join(1000, 50)
        case = "leave, 5,000 partitions, 50 members"
        yield case, "ours", "s", self._leave(5000, 50)
        for width, members in ((1000, 2), (5000, 2), (1000, 50)):
            case = f"join, {width:,} partitions, {members} members, 20 ms"
            yield case, "ours", "s", self._join(width, members, far=True)
        if not turn:
            case = "join, 1,000 partitions, 2 members, 20 ms"
            yield case, "JVM legacy 1.1.1", "s", self._jvm_join(1000, far=True)
        yield from self._commit()

    def _where(self, far: bool) -> str:
        return self._proxy.address if far else self._direct

    def _join(self, width: int, members: int, far: bool = False) -> float:
        """Seconds until the last of ``members`` has its share."""
        group, topic = f"ours-{uuid.uuid4().hex[:8]}", f"wide-{width}"
        packs = [Pack(self._where(far), group, topic) for _ in range(2)]
        try:
            packs[0].ask(join=members - 1)
            self._settle(group, topic, width, members - 1)
            begun = time.time()
            packs[1].tell(join=1)
            packs[1].answer()
            return self._settle(group, topic, width, members) - begun
        finally:
            for pack in packs:
                pack.kill()

    def _leave(self, width: int, members: int) -> float:
        """Seconds from the call of ``shutdown`` until the remaining members own everything."""
        group, topic = f"ours-{uuid.uuid4().hex[:8]}", f"wide-{width}"
        packs = [Pack(self._direct, group, topic) for _ in range(2)]
        try:
            packs[0].ask(join=members - 1)
            packs[1].ask(join=1)
            self._settle(group, topic, width, members)
            begun = time.time()
            packs[1].tell(leave=1)
            packs[1].answer()
            return self._settle(group, topic, width, members - 1) - begun
        finally:
            for pack in packs:
                pack.kill()

    def _settle(self, group: str, topic: str, width: int, members: int) -> float:
        """Wait until the group is stable, and return since when. Each look costs CPU time."""
        deadline = time.monotonic() + TIMEOUT
        while not (at := self._look.settled(group, topic, width, members)):
            if time.monotonic() > deadline:
                raise ClusterError(f"{members} members do not share {width} partitions")
            time.sleep(LOOK_EVERY)
        return at

    def _jvm_config(self, far: bool) -> dict[str, object]:
        return {
            "zookeeper.connect": self._where(far),
            "zookeeper.session.timeout.ms": 6000,
            "group.id": f"jvm-{uuid.uuid4().hex[:8]}",
            "auto.commit.enable": "false",
            "rebalance.max.retries": 50,
        }

    def _jvm_join(self, width: int, far: bool = False) -> float:
        config, topic = self._jvm_config(far), f"wide-{width}"
        group = str(config["group.id"])
        one, two = JvmMembers(), JvmMembers()
        try:
            JvmMember(one, config | {"consumer.id": "one"}, {topic: 1}).wait_joined(TIMEOUT)
            self._settle(group, topic, width, 1)
            JvmMember(two, config | {"consumer.id": "two"}, {topic: 1})
            registered = wait_until(
                lambda: found if len(found := self._look.registered(group)) == 2 else None,
                TIMEOUT,
                "both are registered",
            )
            return self._settle(group, topic, width, 2) - registered[-1]
        finally:
            one.kill()
            two.kill()

    def _commit(self) -> Iterator[Figure]:
        """The first commit creates the znodes, and later ones change them."""
        topic = "wide-1000"
        pack = Pack(self._direct, f"ours-{uuid.uuid4().hex[:8]}", topic)
        try:
            pack.ask(join=1)
            for offset, case in ((1, "first commit"), (2, "later commit")):
                found = pack.ask(commit=offset, partitions=1000)
                yield f"{case}, 1,000 partitions", "ours", "s", found["seconds"]
                yield f"{case}, 1,000 partitions", "ours", "requests", found["requests"]
        finally:
            pack.kill()
