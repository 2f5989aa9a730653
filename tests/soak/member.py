"""One member in its own process: ``python -m tests.soak.member``.

The first line of standard input is JSON: ``kind`` (``zookeeper`` or ``coordinator``), ``config``,
``topic``, ``ledger`` (a file) and ``ports`` (the proxy of each broker's port). For each delivered
message it writes a line ``<seconds since 1970> <partition> <offset> <number>`` to the ledger before
it requests the next one. Each further line is a command, which gets one line of JSON on standard
output:

- ``session``: the ZooKeeper session's id and password;
- ``member``: the member id on the coordinator;
- ``fill``: from now on the journal's disk is full.

SIGTERM leaves the group cleanly. The end of standard input ends the process at once. The variable
``SOAK_BROKEN`` names a broken build (``tests.soak.broken``).
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Any

from zkconsumer.broker import dialing
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.errors import CommitFailedError, ConnectorClosedError


def read(member: Any, topic: str, ledger: int) -> None:
    """Record every message of the topic. If a stream fails, end the process."""
    try:
        (stream,) = member.create_message_streams({topic: 1})[topic]
        for found in stream:
            line = f"{time.time():.6f} {found.partition} {found.offset} {found.value.decode()}\n"
            os.write(ledger, line.encode())
    except ConnectorClosedError:
        pass
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def fill(member: Any) -> bool:
    """Every later write to the journal fails with ENOSPC, as on a full disk."""
    journal = member._own_journal
    if journal is None or journal._file.closed:
        return False
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, journal._file.fileno())
    os.close(full)
    return True


def answer(member: Any, order: str) -> object:
    """Carry out one command."""
    if order == "session":
        found = member._zk._client.client_id
        return None if found is None else [found[0], found[1].hex()]
    if order == "member":
        return str(member._loop.machine.member_id)
    assert order == "fill", order
    return fill(member)


def obey(member: Any) -> None:
    """Carry out commands until standard input ends. Then end the process."""
    for line in sys.stdin:
        try:
            result = answer(member, line.strip())
        except Exception as error:  # noqa: BLE001
            result = {"error": repr(error)}
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()
    os._exit(3)


def redirect(ports: dict[str, int]) -> None:
    """Connect to a broker's proxy instead of the broker's own port."""
    connect = dialing.dial

    def redirected(listeners: Sequence[tuple[str, int]], *args: Any) -> Any:
        return connect([(host, ports.get(str(port), port)) for host, port in listeners], *args)

    dialing.dial = redirected


def main() -> None:
    """Read until SIGTERM."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    task = json.loads(sys.stdin.readline())
    redirect(task["ports"])
    if os.environ.get("SOAK_BROKEN"):
        from tests.soak.broken import BUILDS

        BUILDS[os.environ["SOAK_BROKEN"]]()
    ledger = os.open(task["ledger"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # sigwait needs this
    kinds = {"zookeeper": ZookeeperConsumerConnector, "coordinator": CoordinatorConsumerConnector}
    while True:
        try:
            member = kinds[task["kind"]](task["config"])
            break
        except Exception as error:  # noqa: BLE001 - servers may be down; a supervisor would retry
            sys.stderr.write(f"not started: {error!r}\n")
            sys.stderr.flush()
            if signal.sigtimedwait({signal.SIGTERM}, 0.5):
                return
    threading.Thread(target=read, args=(member, task["topic"], ledger), daemon=True).start()
    threading.Thread(target=obey, args=(member,), daemon=True).start()
    signal.sigwait({signal.SIGTERM})
    try:
        member.shutdown()
    except CommitFailedError as error:
        sys.stderr.write(f"last commit: {error}\n")
        sys.stderr.flush()
        os._exit(4)


if __name__ == "__main__":
    main()
