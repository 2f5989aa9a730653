"""Members of other clients, each in a process of its own, and what tests with them share."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zkconsumer.servers import LocalCluster
from zkconsumer.servers.produce import send

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build" / "peers"
PYTHON = BUILD / "python" / "bin" / "python"


class Peer:
    """A member of another client. It reads from its start on."""

    def __init__(self, client: str, options: dict[str, Any]) -> None:
        command = (
            [str(PYTHON), str(HERE / "member.py")]
            if client == "pykafka"
            else ["node", str(BUILD / "member.js"), client]
        )
        self._process = subprocess.Popen(
            [*command, json.dumps(options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=BUILD,
        )
        self.got: Counter[tuple[str, int, int]] = Counter()
        """How often each topic, partition and offset was delivered."""
        self.errors: list[str] = []
        """Lines of its standard error."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        for stream, keep in (
            (self._process.stdout, lambda line: self.got.update([tuple(json.loads(line))])),
            (self._process.stderr, self.errors.append),
        ):
            threading.Thread(target=_read, args=(stream, keep), daemon=True).start()

    @property
    def running(self) -> bool:
        """Whether its process runs."""
        return self._process.poll() is None

    def leave(self) -> None:
        """Leave the group, and end."""
        if self.running:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def _read(stream: Any, keep: Callable[[str], object]) -> None:
    for line in stream:
        keep(line.rstrip("\n"))


Start = Callable[..., Peer]


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """Run one of the project's commands. Its output and exit status are those that a user sees."""
    program = Path(sys.executable).parent / words[0]
    return subprocess.run([program, *words[1:]], capture_output=True, text=True, timeout=120)


def filled(
    cluster: LocalCluster, topic: str, partitions: int, each: int, create: bool = True
) -> set[Any]:
    """Send ``each`` messages to every partition of a topic; return what is to be delivered.

    Creates the topic first, unless it exists: ``create=False``.
    """
    if create:
        cluster.create_topic(topic, partitions)
    for partition in range(partitions):
        send(
            cluster.bootstrap, topic, [(None, b"%d" % n) for n in range(each)], partition=partition
        )
    return {(topic, number, offset) for number in range(partitions) for offset in range(each)}
