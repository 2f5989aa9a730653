"""One member in a process of its own, for faults that hit processes.

Run as ``python member.py CONFIG TOPICS LOG``: CONFIG is JSON, TOPICS a topic or ``/regex``. Every
message handed out becomes a line ``<monotonic seconds> <topic> <partition> <offset>`` in LOG before
the next one is asked for. SIGTERM leaves the group cleanly.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.core.topic_filter import Whitelist
from zkconsumer.errors import CommitFailedError


class Leave(BaseException):
    """SIGTERM."""


def main() -> None:
    """Read until told to leave."""
    config, topics, path = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def leave(*_: object) -> None:
        raise Leave

    signal.signal(signal.SIGTERM, leave)
    member = ZookeeperConsumerConnector(config)
    try:
        if topics.startswith("/"):
            (stream,) = member.create_message_streams_by_filter(Whitelist(topics[1:]))
        else:
            (stream,) = member.create_message_streams({topics: 1})[topics]
        for found in stream:
            line = f"{time.monotonic():.6f} {found.topic} {found.partition} {found.offset}\n"
            os.write(log, line.encode())
    except Leave:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        member.shutdown()
    except CommitFailedError as error:
        sys.exit(f"last commit: {error}")


if __name__ == "__main__":
    main()
