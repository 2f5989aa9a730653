"""Run members of one group in a process, with commands from stdin: ``members.py ZOOKEEPER GROUP
TOPIC``.

Each line has one JSON object: ``join`` (number of members), ``leave`` (number of members) or
``commit`` (the offset for every partition, which returns seconds and requests). Members join at the
same time.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

from zkconsumer import TopicPartition, ZookeeperConsumerConnector


class Pack:
    """The members of this process."""

    def __init__(self, zookeeper: str, group: str, topic: str) -> None:
        self.config = {"zookeeper.connect": zookeeper, "group.id": group}
        self.topic = topic
        self.members: list[ZookeeperConsumerConnector] = []

    def join(self, count: int) -> None:
        """Let members join, all at once."""

        def one() -> None:
            member = ZookeeperConsumerConnector(
                self.config | {"rebalance.max.retries": 50, "auto.commit.enable": "false"}
            )
            member.create_message_streams({self.topic: 1})
            self.members.append(member)

        threads = [threading.Thread(target=one) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def leave(self, count: int) -> None:
        """Let members leave, one at a time."""
        for _ in range(count):
            self.members.pop().shutdown()

    def commit(self, offset: int, partitions: int) -> dict[str, float]:
        """Commit one offset for every partition."""
        member = self.members[0]
        before = member._zk.operations  # the requests to ZooKeeper
        begun = time.perf_counter()
        member.commit_offsets({TopicPartition(self.topic, n): offset for n in range(partitions)})
        seconds = time.perf_counter() - begun
        return {"seconds": seconds, "requests": member._zk.operations - before}


def main() -> None:
    """Carry out commands until stdin ends."""
    pack = Pack(*sys.argv[1:4])
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        answer: dict[str, float] = {}
        if "join" in order:
            pack.join(order["join"])
        elif "leave" in order:
            pack.leave(order["leave"])
        elif "commit" in order:
            answer = pack.commit(order["commit"], order["partitions"])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
