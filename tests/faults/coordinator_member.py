"""One member on the coordinator in its own process, for faults that affect processes.

Run it as ``python coordinator_member.py CONFIG TOPIC LOG``. For each delivered message it writes a
line ``<monotonic seconds> <partition> <offset>`` to LOG. A message takes 0.3 s while ``LOG.slow``
exists. On SIGTERM another thread than the reading one leaves the group cleanly. A message in the
log was consumed, or is consumed when the next one is requested.
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
    """Read until SIGTERM."""
    config, topic, path = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # sigwait needs this
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
