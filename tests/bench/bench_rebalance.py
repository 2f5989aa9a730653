"""What group work costs: a join, a commit, a member at rest.

How long it takes until a second member has its half of 1,000 partitions, ours and the JVM's.

Ours: from the call of ``create_message_streams`` until every partition has one owner, half of them
each, and both members have an answer from the broker for everything they own. The JVM's old
consumer (1.1.1, console consumer, default settings): from the moment the second registration is
seen until the owners are complete; starting the process and fetching are not counted.
"""

from __future__ import annotations

import queue
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Iterator

from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import GetChildren, GetMany, Ok, Reply, ZkOp
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.testing import LocalCluster, fetch_jars, java, wait_until
from zkconsumer.zk.driver import ZkDriver

PARTITIONS = 1000
TOPIC = "wide"
NARROW = "narrow"
PATIENCE = 120.0


class Look:
    """Reads a group's owner znodes, all at once."""

    def __init__(self, zookeeper: str) -> None:
        self._driver = ZkDriver(zookeeper, "", 6.0, lambda *_: None, lambda _: None)
        self._driver.start(10.0)

    def close(self) -> None:
        self._driver.close()

    def _ask(self, op: ZkOp) -> Reply:
        replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self._driver.submit(op, self._driver.session_id, replies.put)
        return replies.get(timeout=30)

    def members(self, group: str) -> int:
        """How many members are registered."""
        reply = self._ask(GetChildren(GroupPaths(group).ids))
        return len(reply.value) if isinstance(reply, Ok) and isinstance(reply.value, tuple) else 0

    def shares(self, group: str) -> list[int]:
        """How many partitions each owner has, in no order."""
        paths = GroupPaths(group)
        owners = tuple(paths.owner(TopicPartition(TOPIC, n)) for n in range(PARTITIONS))
        reply = self._ask(GetMany(owners))
        assert isinstance(reply, Ok)
        assert isinstance(reply.value, tuple)
        return sorted(Counter(node.data for node in reply.value if node is not None).values())


def ours(cluster: LocalCluster, look: Look) -> tuple[float, int, int]:
    """Seconds until both have their half, and the requests of a first and of a later commit."""
    group = f"ours-{uuid.uuid4().hex[:8]}"
    config = {"zookeeper.connect": cluster.zookeeper, "group.id": group}

    def fetches(member: ZookeeperConsumerConnector, count: int) -> bool:
        assert member._plane is not None
        infos = [info for info, _ in list(member._plane._held.values())]
        return len(infos) == count and all(info.high_watermark is not None for info in infos)

    with ZookeeperConsumerConnector(config) as one:
        one.create_message_streams({TOPIC: 1})
        wait_until(lambda: fetches(one, PARTITIONS), PATIENCE, "the first member fetches")
        requests = []
        for offset in (0, 1):
            before = one._zk.operations
            one.commit_offsets({TopicPartition(TOPIC, n): offset for n in range(PARTITIONS)})
            requests.append(one._zk.operations - before)
        with ZookeeperConsumerConnector(config) as two:
            began = time.perf_counter()
            two.create_message_streams({TOPIC: 1})
            half = PARTITIONS // 2
            wait_until(lambda: fetches(two, half) and fetches(one, half), PATIENCE, "both fetch")
            wait_until(lambda: look.shares(group) == [half, half], PATIENCE, "owners are complete")
            return time.perf_counter() - began, requests[0], requests[1]


def jvm(cluster: LocalCluster, look: Look) -> float:
    """Seconds until the JVM's second member has its half."""
    group = f"jvm-{uuid.uuid4().hex[:8]}"
    argv = [java(), "-cp", f"{fetch_jars('1.1')}/*", "kafka.tools.ConsoleConsumer"]
    argv += ["--zookeeper", cluster.zookeeper, "--topic", TOPIC]
    argv += ["--consumer-property", f"group.id={group}"]
    members: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        quiet = subprocess.DEVNULL
        members.append(subprocess.Popen(argv, stdin=quiet, stdout=quiet, stderr=quiet))

    try:
        start()
        wait_until(lambda: look.shares(group) == [PARTITIONS], PATIENCE, "the first owns all")
        start()
        wait_until(lambda: look.members(group) == 2, PATIENCE, "the second is registered")
        began = time.perf_counter()
        half = PARTITIONS // 2
        wait_until(lambda: look.shares(group) == [half, half], PATIENCE, "owners are complete")
        return time.perf_counter() - began
    finally:
        for process in members:
            process.kill()
            process.wait(10)


def at_rest(cluster: LocalCluster) -> float:
    """Percent of a core that this process uses with one member that has 100 partitions to watch
    over and nothing to read."""
    group = f"rest-{uuid.uuid4().hex[:8]}"
    config = {"zookeeper.connect": cluster.zookeeper, "group.id": group}
    with ZookeeperConsumerConnector(config) as member:
        member.create_message_streams({NARROW: 1})
        time.sleep(1)  # what is measured is time itself
        began, used = time.perf_counter(), time.process_time()
        time.sleep(5)
        return 100 * (time.process_time() - used) / (time.perf_counter() - began)


def run(rounds: int) -> Iterator[tuple[str, str, list[float]]]:
    """Yield the figures of all rounds; ``ratio`` is the JVM's time over ours."""
    with LocalCluster("3.9") as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        cluster.create_topic(NARROW, 100)
        look = Look(cluster.zookeeper)
        try:
            found = [(ours(cluster, look), jvm(cluster, look)) for _ in range(rounds)]
            resting = [at_rest(cluster) for _ in range(rounds)]
        finally:
            look.close()
    case = "join, 1,000 partitions"
    mine = [seconds for (seconds, _, _), _ in found]
    theirs = [seconds for _, seconds in found]
    yield case, "zkconsumer s", mine
    yield case, "JVM 1.1.1 s", theirs
    yield case, "ratio", [b / a for a, b in zip(mine, theirs, strict=True)]
    yield "commit, 1,000 partitions", "requests, first", [float(n) for (_, n, _), _ in found]
    yield "commit, 1,000 partitions", "requests, later", [float(n) for (_, _, n), _ in found]
    yield "member at rest, 100 partitions", "% of a core", resting
