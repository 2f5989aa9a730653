"""Streams in coroutines and forks, on real servers, and the program of ``asyncio.md``."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from kazoo.client import KazooClient

from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.servers import LocalCluster
from zkconsumer.servers.produce import send

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "asyncio.md"


def test_the_program_of_the_page(
    cluster: LocalCluster, topic: str, group: str, zk: KazooClient, tmp_path: Path
) -> None:
    """It reads two streams in one event loop. After SIGTERM it has left the group and
    committed what it has read."""
    cluster.create_topic(topic, partitions=2)
    send(cluster.bootstrap, topic, [(None, b"%d" % number) for number in range(50)])
    text = PAGE.read_text().split("```python\n")[1].split("```")[0]
    for old, new in (
        ("localhost:2181", cluster.zookeeper),
        ('"web"', f'"{group}"'),
        ('"pages"', f'"{topic}"'),
    ):
        assert old in text
        text = text.replace(old, new)
    program = tmp_path / "program.py"
    program.write_text(text)
    running = subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    try:
        seen = [int(running.stdout.readline()) for _ in range(50)]
        assert sorted(seen) == list(range(50))
        running.send_signal(signal.SIGTERM)
        assert running.wait(20) == 0
    finally:
        running.kill()
        running.communicate()
    paths = GroupPaths(group)
    assert zk.get_children(paths.ids) == []
    stored = [int(zk.get(paths.offset(TopicPartition(topic, p)))[0]) for p in range(2)]
    assert sum(stored) == 50


def test_cancelled_readers_neither_lose_nor_repeat(
    cluster: LocalCluster, topic: str, config: dict[str, object]
) -> None:
    """While messages arrive, the readers of two streams are cancelled 400 times at random moments.
    Each message is received once, in the order of its partition."""
    seed = int(os.environ.get("ZKC_SEED") or random.randrange(1 << 30))
    rng, sent = random.Random(seed), 4000
    cluster.create_topic(topic, partitions=2)
    seen: dict[int, list[int]] = {0: [], 1: []}

    async def work() -> None:
        connector = await asyncio.to_thread(ZookeeperConsumerConnector, config)
        async with connector:
            created = await asyncio.to_thread(connector.create_message_streams, {topic: 2})

            async def read(number: int) -> None:
                stream = created[topic][number]
                if rng.random() < 0.5:
                    async for message in stream:
                        seen[message.partition].append(message.offset)
                async for messages in stream.batches(5):
                    for message in messages:
                        seen[message.partition].append(message.offset)

            async def disturb(number: int) -> None:
                cancelled = 0
                while cancelled < 200 or sum(map(len, seen.values())) < sent:
                    task = asyncio.create_task(read(number))
                    await asyncio.sleep(rng.random() * 0.01)
                    task.cancel()
                    cancelled += 1

            values = [(None, b"%d" % number) for number in range(sent)]
            producing = [
                asyncio.to_thread(send, cluster.bootstrap, topic, values[at : at + 200])
                for at in range(0, sent, 200)
            ]
            disturbed = asyncio.gather(*map(disturb, range(2)))
            for each in producing:
                await each
            await asyncio.wait_for(disturbed, 60)

    asyncio.run(work())
    assert {number: sorted(set(found)) for number, found in seen.items()} == seen, (
        f"ZKC_SEED={seed}"
    )
    assert sum(map(len, seen.values())) == sent


FORKS = """
import os, sys
from zkconsumer import ConnectorClosedError, ZookeeperConsumerConnector

config, topic = eval(sys.argv[1]), sys.argv[2]
connector = ZookeeperConsumerConnector(config)
(stream,) = connector.create_message_streams({topic: 1})[topic]
messages = iter(stream)
next(messages)
session = connector._zk.session_id
for _ in range(5):
    if (child := os.fork()) == 0:
        for call in (lambda: next(messages), connector.commit_offsets, connector.shutdown):
            try:
                call()
            except ConnectorClosedError:
                continue
            os._exit(1)
        sys.exit(0)  # with all that the end of an interpreter does
    assert os.waitpid(child, 0)[1] == 0
    for _ in range(10):
        next(messages)
    connector.commit_offsets()
    assert connector.health().ok and connector._zk.session_id == session != 0
connector.shutdown()
print("undisturbed")
"""


def test_children_do_not_disturb_their_parent(
    cluster: LocalCluster, topic: str, config: dict[str, object]
) -> None:
    """Five processes are forked from a member. Each is refused, and exits as usual. The parent
    reads and commits between them, in the same session."""
    cluster.create_topic(topic)
    send(cluster.bootstrap, topic, [(None, b"%d" % number) for number in range(51)])
    command = [sys.executable, "-c", FORKS, repr(config), topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.stdout == "undisturbed\n", done.stderr
