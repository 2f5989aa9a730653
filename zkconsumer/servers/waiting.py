"""Waiting for conditions, free ports, and the identity of processes. No state; any thread."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from zkconsumer.errors import ClusterError

T = TypeVar("T")

_LOWEST_PORT = 10_000
_EPHEMERAL_LOW = 32_768  # where Linux starts by default
_RESERVED_SECONDS = 300


def wait_until(predicate: Callable[[], T], timeout: float, message: str) -> T:
    """Call ``predicate`` until its result is true, and return that.

    Exceptions of the predicate are not caught. Raises ``ClusterError`` after ``timeout``
    seconds. ``message``: the condition; it completes "waiting until" in the error.
    """
    deadline = time.monotonic() + timeout
    pause = 0.005
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise ClusterError(f"timed out after {timeout:g} s, waiting until {message}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)


def free_port() -> int:
    """Return a free loopback port that no other call has returned within five minutes.

    The port is below the kernel's range for outgoing connections. A port in that range may be taken
    while its server restarts. A client that tries to reconnect to it may even connect to itself.
    """
    top = max(_ephemeral_low(), _LOWEST_PORT + 1_000)
    for _ in range(200):
        port = random.SystemRandom().randrange(_LOWEST_PORT, top)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if _reserved(port):
            return port
    raise ClusterError(f"found no free port between {_LOWEST_PORT} and {top} on 127.0.0.1")


def _reserved(port: int) -> bool:
    """Reserve ``port`` for a server that will start. Return false if another process has reserved
    it.

    A reservation is a file in the user's temporary directory, so that parallel processes do not
    choose the same port. It is valid for ``_RESERVED_SECONDS``.
    """
    folder = Path(tempfile.gettempdir()) / f"zkconsumer-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    file = folder / str(port)
    try:
        file.touch(exist_ok=False)
    except FileExistsError:
        if time.time() - file.stat().st_mtime < _RESERVED_SECONDS:
            return False
        file.touch()
    return True


def _ephemeral_low() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        return _EPHEMERAL_LOW


def stands_still(pid: int) -> bool:
    """Whether SIGSTOP has stopped all threads of process ``pid``.

    The signal takes effect when one of the threads runs next. Until then the other threads
    continue, on a busy machine for longer than a transaction takes. Without ``/proc`` this is
    unknown, and the result is ``True``.
    """
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        states = [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks]
    except OSError:
        return not os.path.exists("/proc/self/stat")
    return all(state in "TtZX" for state in states)


def process_started(pid: int) -> str | None:
    """Return the start time of process ``pid``, in a form that is only for comparison; ``None`` if
    it is gone.

    Together with the pid this identifies a process uniquely, because a reused pid has another
    start time. A process that has ended but was not yet waited for counts as gone.
    """
    if os.path.exists("/proc/self/stat"):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        fields = stat.rpartition(")")[2].split()  # the command's name may hold spaces
        return None if fields[0] in "ZX" else fields[19]
    shown = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.split(maxsplit=1)
    return None if not shown or shown[0].startswith("Z") else shown[1].strip()
