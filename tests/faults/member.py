"""One member in its own process, for faults that affect processes.

Run it as ``python member.py CONFIG TOPICS LOG``. CONFIG is JSON; with ``zookeeper.connect`` the
group is in ZooKeeper, otherwise on the coordinator. TOPICS is a topic or ``/regex``. For each
delivered message it writes a line ``<monotonic seconds> <topic> <partition> <offset>`` to LOG
before it requests the next one. A message takes 0.3 s while ``LOG.slow`` exists. On SIGTERM another
thread than the reading one leaves the group cleanly. A message in the log was consumed, or is
consumed when the next one is requested.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback

from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.core.common.topic_filter import Whitelist
from zkconsumer.errors import CommitFailedError, ConnectorClosedError


def main() -> None:
    """Read until SIGTERM."""
    config, topics, path = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # sigwait needs this
    member: ZookeeperConsumerConnector | CoordinatorConsumerConnector
    if "zookeeper.connect" in config:
        member = ZookeeperConsumerConnector(config)
    else:
        member = CoordinatorConsumerConnector(config)

    def read() -> None:
        try:
            if topics.startswith("/"):
                (stream,) = member.create_message_streams_by_filter(Whitelist(topics[1:]))
            else:
                (stream,) = member.create_message_streams({topics: 1})[topics]
            for found in stream:
                line = f"{time.monotonic():.6f} {found.topic} {found.partition} {found.offset}\n"
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
