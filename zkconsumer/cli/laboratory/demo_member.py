"""One member of the demo's group, in its own process.

Each stream has a thread that records its messages and keeps to a pace. The main thread reads
commands from stdin: ``pace N`` sets messages a second for each stream (0: as fast as it can). The
end of stdin, or SIGTERM, makes the member leave.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import NoReturn

from zkconsumer.cli.laboratory.demo_verdict import ENTRY
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.errors import ZkConsumerError
from zkconsumer.runtime.delivery.streams import KafkaStream

SESSION_MS = 3000
LEAVE_SECONDS = 2 * SESSION_MS / 1000
"""After the end of its session a member can no longer commit."""


class Pace:
    """Messages per second for each stream; 0 means no limit. The main thread sets it."""

    def __init__(self, rate: float) -> None:
        self.rate = rate


def deliver(stream: KafkaStream, record: int, pace: Pace) -> None:
    """Write the partition and offset of each message to the file descriptor ``record``."""
    due = time.monotonic()
    for message in stream:
        os.write(record, ENTRY.pack(message.partition, message.offset))
        rate = pace.rate
        if rate:
            now = time.monotonic()
            due = max(due + 1 / rate, now - 0.1)
            if due - now > 0.01:
                time.sleep(due - now)


def main(arguments: Sequence[str]) -> int:
    """Run the member until it leaves."""
    parser = argparse.ArgumentParser(prog="demo_member")
    for name in ("zookeeper", "group", "id", "topic", "record"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--streams", type=int, default=2)
    parser.add_argument("--pace", type=float, default=0.0)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the demo itself asks its members to leave
    pace = Pace(options.pace)
    record = os.open(options.record, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        with ZookeeperConsumerConnector(
            {
                "zookeeper.connect": options.zookeeper,
                "group.id": options.group,
                "consumer.id": options.id,
                "zookeeper.session.timeout.ms": SESSION_MS,
                "zookeeper.connection.timeout.ms": 15_000,
                "rebalance.backoff.ms": 500,
                "auto.commit.interval.ms": 1000,
                "auto.offset.reset": "smallest",
                "fetch.message.max.bytes": 32 * 1024,
                "zkconsumer.release.wait.ms": 5000,
            }
        ) as connector:
            streams = connector.create_message_streams({options.topic: options.streams})
            for stream in streams[options.topic]:
                threading.Thread(target=deliver, args=(stream, record, pace), daemon=True).start()
            try:
                for line in sys.stdin:
                    pace.rate = float(line.removeprefix("pace "))
            except _Leave:
                pass
            # Signals are over: leaving must not be interrupted.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            connector.shutdown(LEAVE_SECONDS)
    except ZkConsumerError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except _Leave:
        return 0
    return 0


class _Leave(BaseException):
    """SIGTERM was received."""


def _leave(_number: int, _frame: object) -> NoReturn:
    raise _Leave


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
