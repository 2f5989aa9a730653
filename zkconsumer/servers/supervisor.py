"""The client of the supervisor process (see ``_supervise.py``): starts it and sends it commands.

Any thread may call it; one command is in progress at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zkconsumer.errors import ClusterError

_SCRIPT = Path(__file__).with_name("_supervise.py")


class Supervisor:
    """A process that starts servers for this one and kills them when this one ends, for any reason.

    ``remove`` is a directory that it deletes after the servers have been killed.
    """

    def __init__(self, remove: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._orders = 0  # guarded by _lock
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SCRIPT), str(os.getpid()), str(remove or "")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Process id of the supervisor."""
        return self._process.pid

    def start(self, name: str, argv: Sequence[str], log: Path) -> int:
        """Start ``argv`` with its output appended to ``log``; return its process id."""
        answer = self._order(do="start", name=name, argv=list(argv), log=str(log))
        return int(answer["pid"])

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to the server ``name``; does nothing if it has ended."""
        self._order(do="signal", name=name, signal=int(number))

    def poll(self, name: str) -> int | None:
        """Return the exit status of the server ``name`` (negative: a signal); ``None`` while it is
        running."""
        status = self._order(do="poll", name=name)["status"]
        return None if status is None else int(status)

    def detach(self) -> None:
        """Let the supervisor and its servers outlive this process."""
        self._order(do="detach")
        self._close_pipes()

    def close(self) -> None:
        """Kill all servers. Return when they have ended."""
        self._close_pipes()
        self._process.wait()

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # an order that was never read
                    pipe.close()

    def _order(self, **order: Any) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None or stdin.closed:
            raise ClusterError("the cluster has been closed")
        with self._lock:
            self._orders += 1
            try:
                stdin.write(json.dumps(order | {"id": self._orders}).encode() + b"\n")
                stdin.flush()
                while True:
                    line = stdout.readline()
                    # Ctrl-C may have left an earlier order's answer unread.
                    if not line or json.loads(line)["id"] == self._orders:
                        break
            except BrokenPipeError:
                line = b""
        if not line:
            raise ClusterError(f"the cluster's supervisor (process {self.pid}) has ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ClusterError(
                f"could not {order['do']} {order.get('name', '')}: {answer['error']}"
            )
        return answer
