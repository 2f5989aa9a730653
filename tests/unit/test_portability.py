"""Everything can be imported on macOS and on Windows, which lack a part of what Linux has."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import importlib, pkgutil, sys
import zkconsumer, zkmigrate, zkaudit

def everything():
    names = [
        found.name
        for package in (zkconsumer, zkmigrate, zkaudit)
        for found in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
        if not found.name.endswith("__main__") and ".servers._supervise" not in found.name
    ]
    for name in names:
        importlib.import_module(name)
    return names

assert len(everything()) > 300  # other libraries are loaded now: this is not about them
import os, select, signal, socket, time

def again():
    for name in [name for name in sys.modules if name.split(".")[0].startswith("zk")]:
        del sys.modules[name]
    global zkconsumer, zkmigrate, zkaudit
    import zkconsumer, zkmigrate, zkaudit
    everything()

# macOS
del time.CLOCK_BOOTTIME, select.epoll, socket.TCP_KEEPIDLE
again()
# Windows
del time.CLOCK_MONOTONIC, time.clock_gettime, os.fork, os.register_at_fork, os.getuid, os.killpg
del os.setsid, os.O_NOFOLLOW, os.O_CLOEXEC, os.pwrite, select.poll, socket.AF_UNIX
del signal.SIGHUP, signal.SIGKILL, signal.alarm
for name in ("fcntl", "termios", "resource", "pwd", "grp", "tty", "pty"):
    sys.modules[name] = None
again()
try:
    zkconsumer.ZookeeperConsumerConnector({"zookeeper.connect": "127.0.0.1:1", "group.id": "g"})
except zkconsumer.UsageError as error:
    print(error)
from zkconsumer.cli.main import run
from zkmigrate.cli import main
print(run(["topics", "list"]))
sys.argv = ["zkmigrate", "status"]
try:
    print(main())
except SystemExit as ended:
    print(ended.code)
"""


def test_everything_can_be_imported_on_macos_and_windows() -> None:
    """The interpreter loses what it lacks there. On Windows, members and commands say at their
    start that they do not run there."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout == "members run on Linux and macOS: on Windows use WSL\n1\n1\n", done.stderr
    assert done.stderr.count("error: commands run on Linux and macOS: on Windows use WSL") == 2
