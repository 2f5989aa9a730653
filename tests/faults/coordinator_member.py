"""One member on the coordinator in a process of its own, for faults that hit processes.

Run as ``python coordinator_member.py CONFIG TOPIC LOG``; each message handed out becomes a line
``<monotonic seconds> <partition> <offset>`` in LOG, and takes 0.3 s while ``LOG.slow`` exists.
SIGTERM leaves the group cleanly, from another thread than the one that reads: what is in the log
was consumed, or is so when the next message is asked for.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback

from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.errors import CommitFailedError, ConnectorClosedError


def main() -> None:
    """Read until told to leave."""
    config, topic, path = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # for sigwait, in all threads
    member = CoordinatorConsumerConnector(config)

    def read() -> None:
        try:
            (stream,) = member.create_message_streams({topic: 1})[topic]
            for found in stream:
                line = f"{time.monotonic():.6f} {found.partition} {found.offset}\n"
                os.write(log, line.encode())
                if os.path.exists(path + ".slow"):
                    time.sleep(0.3)
        except ConnectorClosedError:
            pass
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
            os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    signal.sigwait({signal.SIGTERM})
    try:
        member.shutdown()
    except CommitFailedError as error:
        sys.exit(f"last commit: {error}")


if __name__ == "__main__":
    main()
