"""One member on the coordinator in a process of its own, for faults that hit processes.

Run as ``python coordinator_member.py CONFIG TOPIC LOG``; each message handed out becomes a line
``<monotonic seconds> <partition> <offset>`` in LOG, and takes 0.3 s while ``LOG.slow`` exists.
SIGTERM leaves the group cleanly.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.errors import CommitFailedError


class Leave(BaseException):
    """SIGTERM."""


def main() -> None:
    """Read until told to leave."""
    config, topic, path = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def leave(*_: object) -> None:
        raise Leave

    signal.signal(signal.SIGTERM, leave)
    member = CoordinatorConsumerConnector(config)
    try:
        (stream,) = member.create_message_streams({topic: 1})[topic]
        for found in stream:
            line = f"{time.monotonic():.6f} {found.partition} {found.offset}\n"
            os.write(log, line.encode())
            if os.path.exists(path + ".slow"):
                time.sleep(0.3)
    except Leave:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        member.shutdown()
    except CommitFailedError as error:
        sys.exit(f"last commit: {error}")


if __name__ == "__main__":
    main()
