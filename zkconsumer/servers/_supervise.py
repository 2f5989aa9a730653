"""The supervisor process: parent of every embedded server, so that none outlives its user.

Run as a script by :mod:`zkconsumer.servers.supervisor`, with the standard library alone. It owns
the JVM processes and reads commands, one JSON object per line, from standard input; each is
answered with one JSON line. When its user's process has ended (end of input, or another parent
id), or on SIGTERM, it kills all servers with SIGKILL, deletes its directory, and ends. After the
command ``detach``, only SIGTERM or the end of the last server ends it. On Linux the kernel kills
the servers if the supervisor itself is killed. One thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from typing import Any

PR_SET_PDEATHSIG = 1
PARENT_CHECK_SECONDS = 0.5


class Supervision:
    """The servers that were started for one process, by name."""

    def __init__(self) -> None:
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
        self.detached = False

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carry out one request and return its answer."""
        match order["do"]:
            case "start":
                with open(order["log"], "ab") as log:
                    child = subprocess.Popen(
                        order["argv"],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        preexec_fn=self._die_with_supervisor,
                    )
                self._children[order["name"]] = child
                return {"pid": child.pid}
            case "signal":
                self._children[order["name"]].send_signal(order["signal"])
                return {}
            case "poll":
                return {"status": self._children[order["name"]].poll()}
            case "detach":
                self.detached = True
                return {}
        return {"error": f"unknown order {order['do']}"}

    def kill_all(self) -> None:
        """Kill every server and wait until all have ended."""
        for child in self._children.values():
            child.kill()
        for child in self._children.values():
            child.wait()

    def wait_for_last(self) -> None:
        """Wait until no server is running."""
        for child in self._children.values():
            child.wait()

    def _die_with_supervisor(self) -> None:
        if self._libc is not None:
            self._libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(supervision: Supervision, parent: int) -> None:
    """Carry out the requests of process ``parent`` until it ends or detaches."""
    pending = b""
    while not supervision.detached:
        readable, _, _ = select.select([0], [], [], PARENT_CHECK_SECONDS)
        if not readable:
            if os.getppid() != parent:
                return
            continue
        received = os.read(0, 65536)
        if not received:
            return
        *lines, pending = (pending + received).split(b"\n")
        for line in lines:
            order = json.loads(line)
            try:
                answer = supervision.obey(order)
            except OSError as error:
                answer = {"error": str(error)}
            # A user killed while it waits for the answer is noticed as the end of input.
            with contextlib.suppress(BrokenPipeError):
                os.write(1, json.dumps(answer | {"id": order["id"]}).encode() + b"\n")


def main(parent: int, remove: str) -> None:
    """Supervise servers for process ``parent``. At the end, delete the directory ``remove`` (if
    any)."""
    supervision = Supervision()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        serve(supervision, parent)
        if supervision.detached:
            os.close(0)
            os.close(1)
            supervision.wait_for_last()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        supervision.kill_all()
        if remove:
            shutil.rmtree(remove, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
