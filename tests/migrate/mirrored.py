"""A group of the original consumer on real servers that is mirrored: its members, the new program,
a producer that never stops, the mirror in a process of its own, and a ledger of what was delivered.

The caller's thread gives the orders. The producer and each Python consumer have a thread.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from kazoo.client import KazooClient

from tests.integration.group_members import Java, Join, Jvm, KafkaPython, Librdkafka
from tests.soak.arena import Proxies
from tests.support.legacy_jvm import JvmMember, JvmMembers
from zkconsumer.servers import LocalCluster, wait_until

ROOT: Final = Path(__file__).parents[2]
COMMIT_MS: Final = 500
"""How often old members commit."""
_SECONDS: Final = 60.0

Old = list[JvmMember]
New = list[KafkaPython | Librdkafka | Java]


class Change(NamedTuple):
    """How long a change of the program took, in seconds: until all old members had left, then
    until the command had ended, then until the other program had delivered a message."""

    stopped: float
    command: float
    first: float


class Mirrored:
    """One group and its topic. Use as a context manager, which ends all processes and threads.

    Args:
        cluster: real servers.
        jvm: runs the original consumer.
        names: of the group and of its topic, which must not exist.
        partitions: of the topic.
        folder: for journals.
        say: called with each command and its output.
        rate: messages a second.
        replicas: of the topic.
        proxies: the connections of the process that mirrors.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        jvm: JvmMembers,
        names: tuple[str, str],
        partitions: int,
        folder: Path,
        say: Callable[[str], object] = lambda text: None,
        rate: int = 300,
        replicas: int = 1,
        proxies: Proxies | None = None,
    ) -> None:
        self.cluster, self.jvm, self._folder, self._say = cluster, jvm, folder, say
        self._proxies = proxies
        self.group, self.topic = names
        self.changes: list[Change] = []
        self.delivered: list[Counter[tuple[int, int]]] = []
        """How often each program that has ended delivered each partition and offset."""
        self.uncommitted = 0
        """How many messages these programs had delivered and not committed when they ended."""
        self._mirror: subprocess.Popen[bytes] | None = None
        self.mirror_log = folder / "mirror"
        """What the processes that mirror have printed."""
        self._names = 0
        self.new_members: New = []
        """Those that run."""
        self._java: Jvm | None = None
        cluster.create_topic(self.topic, partitions, replicas)
        self.zookeeper = KazooClient(cluster.zookeeper, timeout=30.0)
        """For looking at znodes."""
        self._acked = folder / "acked"
        self._acked.touch()
        self._settings = {
            "bootstrap": cluster.bootstrap,
            "topic": self.topic,
            "partitions": partitions,
            "rate": rate,
            "ledger": str(self._acked),
        }
        self._producer: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.zookeeper.start(timeout=_SECONDS)
        self._producer = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.producer", json.dumps(self._settings)],
            stdin=subprocess.PIPE, cwd=ROOT, env=os.environ | {"PYTHONPATH": _path()},
        )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_producer()
        for one in self.new_members:
            one.close()
        if self._java is not None:
            self._java.close()
        self.kill_mirror()
        self.zookeeper.stop()
        self.zookeeper.close()

    def _stop_producer(self) -> None:
        """Let it wait until every message is acknowledged."""
        assert self._producer is not None
        self._producer.terminate()
        self._producer.wait()
        assert self._producer.stdin is not None
        self._producer.stdin.close()

    # -- members ---------------------------------------------------------------------------------

    def old(self, count: int) -> Old:
        """Start members of the original consumer."""
        members = []
        for _ in range(count):
            self._names += 1
            config = {
                "zookeeper.connect": self.cluster.zookeeper,
                "group.id": self.group,
                "consumer.id": f"old{self._names}",
                "auto.commit.interval.ms": str(COMMIT_MS),
                "auto.offset.reset": "smallest",
                "rebalance.backoff.ms": "500",
                "rebalance.max.retries": "60",
                "zookeeper.session.timeout.ms": "6000",
            }
            members.append(JvmMember(self.jvm, config, {self.topic: 1}))
        for one in members:
            one.wait_joined(_SECONDS)
        return members

    def new(self, *kinds: str) -> New:
        """Start consumers of the new program: ``kafka-python``, ``librdkafka`` or ``java``."""
        join = Join(self.cluster.bootstrap, self.group, self.topic, "range")
        started: New = []
        for kind in kinds:
            if kind == "java":
                started.append(Java(join, self.java()))
            else:
                started.append((KafkaPython if kind == "kafka-python" else Librdkafka)(join))
        self.new_members += started
        return started

    def java(self) -> Jvm:
        """Start the JVM of new members, if there is none."""
        if self._java is None:
            self._java = Jvm(self._folder)
        return self._java

    def stop(self, members: Old | New) -> float:
        """Let members commit and leave, and note what they have delivered. Return when the last
        one was asked to."""
        if all(isinstance(one, JvmMember) for one in members):  # the others would rebalance
            at = time.monotonic()
            with ThreadPoolExecutor(len(members)) as threads:
                list(threads.map(_leave, members))
        else:
            for one in members:
                at = time.monotonic()
                _leave(one)
        self.new_members = [one for one in self.new_members if one not in members]
        self.delivered.append(Counter(place for one in members for place in _seen(one)))
        return at

    def kill(self, members: Old | New) -> Old | New:
        """Kill a JVM, with all old members or the new ones in Java, and note what they have
        delivered. Return the other members."""
        if isinstance(members[0], JvmMember):
            self.jvm.kill()
            gone = members
            self.jvm = JvmMembers()
        else:
            self.java().kill()
            gone = [one for one in members if isinstance(one, Java)]
            self._java = None
        self.delivered.append(Counter(place for one in gone for place in _seen(one)))
        self.new_members = [one for one in self.new_members if one not in gone]
        return [one for one in members if one not in gone]  # type: ignore[return-value]

    def change(self, members: Old | New, command: str, start: Callable[[], Any]) -> Any:
        """Change the program, and wait until the other one delivers of each partition.

        ``command`` is begun first. When it waits for the program, the program is stopped. ``start``
        returns the other program's members, as this does.
        """
        words = (command, "--execute", "--wait", "60s")
        self._say(f"$ zkmigrate {' '.join(words)} --group {self.group} &")
        errors = self._folder / "errors"
        with errors.open("wb") as out:
            running = subprocess.Popen(
                [*self._words(*words), "--json"],
                stdout=subprocess.PIPE, stderr=out, text=True, cwd=self._folder,
            )  # fmt: skip

        def waits() -> bool:
            return "waiting_for" in errors.read_text() or running.poll() is not None

        wait_until(waits, _SECONDS, f"{command} waits for the program to stop")
        times = [self.stop(members)]
        times.append(time.monotonic())
        out, _ = running.communicate(timeout=_SECONDS)
        times.append(time.monotonic())
        assert running.returncode == 0, (out, errors.read_text())
        self._note_uncommitted()
        others = start()
        self.wait_delivered(others, 1, self._settings["partitions"])
        times.append(time.monotonic())
        self.changes.append(Change(*(end - begin for begin, end in itertools.pairwise(times))))
        self._say("  stopped in {:.1f} s, command {:.1f} s, all partitions {:.1f} s".format(
            *self.changes[-1]
        ))  # fmt: skip
        return others

    def wait_delivered(self, members: Old | New, count: int, partitions: int = 1) -> None:
        """Wait until members have delivered some more messages, and of so many partitions."""

        def now() -> list[tuple[int, int]]:
            return [place for one in members for place in _seen(one)]

        wanted = len(now()) + count
        wait_until(
            lambda: len(found := now()) >= wanted and len(dict(found)) >= partitions,
            _SECONDS,
            f"{count} messages are delivered",
        )

    def finish(self, members: Old | New) -> None:
        """Wait until the last members have delivered all messages, and stop them."""
        self._stop_producer()
        left = set(self.lost())

        def done() -> bool:
            return left <= {place for member in members for place in _seen(member)}

        wait_until(done, _SECONDS, "all messages are delivered")
        self.stop(members)

    # -- commands --------------------------------------------------------------------------------

    def command(self, *words: str, status: int = 0) -> dict[str, Any]:
        """Run ``zkmigrate`` on the group; return its row."""
        self._say(f"$ zkmigrate {' '.join(words)} --group {self.group}")
        done = subprocess.run(
            [*self._words(*words), "--json"],
            check=False, capture_output=True, text=True, cwd=self._folder,
        )  # fmt: skip
        assert done.returncode == status, (words, done.returncode, done.stdout, done.stderr)
        (row,) = json.loads(done.stdout)["rows"]
        self._say("  " + ", ".join(f"{name}: {cell}" for name, cell in row.items() if cell))
        return row  # type: ignore[no-any-return]

    def _words(self, *words: str) -> list[str]:
        code = "from zkmigrate.cli import main; main()"
        servers = ("--zookeeper", self.cluster.zookeeper, "--timeout", "6")
        return [sys.executable, "-c", code, *words, "--group", self.group, *servers]

    def start_mirror(self, wait: bool = True) -> None:
        """Start the mirror if it does not run, and ``wait`` until it does."""
        if self._mirror is None or self._mirror.poll() is not None:
            words = self._words("mirror", "--execute", "--poll", "200ms")
            if self._proxies is not None:
                ports = json.dumps(self._proxies.ports)
                words[2] = f"from tests.soak.member import redirect; redirect({ports}); {words[2]}"
                words[-3] = self._proxies.zookeeper
            self._say(f"$ zkmigrate mirror --execute --poll 200ms --group {self.group} &")
            out = self.mirror_log.open("ab")
            self._mirror = subprocess.Popen(
                [*words, "--json"], stdout=out, stderr=out, cwd=self._folder,
                env=os.environ | {"PYTHONPATH": _path()},
            )  # fmt: skip
            out.close()
        if wait:
            names = ("", "none")
            wait_until(lambda: self.status()["mirror"] not in names, _SECONDS, "a mirror runs")

    def shown(self) -> str:
        """Return the state of the group that the mirror has printed last, or its error."""
        for line in reversed(self.mirror_log.read_text(errors="replace").splitlines()):
            if line.startswith("error:"):
                return line
            if line.endswith(" groups: 1 in step"):  # after an error, without a row
                return "in step"
            with contextlib.suppress(ValueError, KeyError, TypeError):
                row = json.loads(line)
                return f"{row['state']}: {row['why']}" if row["why"] else str(row["state"])
        return ""

    def suspend_mirror(self, seconds: float) -> None:
        """Stop its process for some time."""
        assert self._mirror is not None
        self._mirror.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self._mirror.send_signal(signal.SIGCONT)

    def kill_during(self, *words: str, after: float) -> None:
        """Run a command, and kill it after some time if it has not ended."""
        self._say(f"$ zkmigrate {' '.join(words)} --group {self.group}  # killed")
        null = subprocess.DEVNULL
        with subprocess.Popen(
            self._words(*words), stdout=null, stderr=null, cwd=self._folder
        ) as running:
            try:
                running.wait(after)
            except subprocess.TimeoutExpired:
                running.kill()

    def wait_in_step(self) -> None:
        """Wait until the follower has what the leader has."""
        wait_until(lambda: self.status()["mirror_lag"] == 0, _SECONDS, "both stores are in step")

    def status(self) -> dict[str, Any]:
        """Return the group's row of ``status``."""
        done = subprocess.run(
            [*self._words("status"), "--json"], check=False, capture_output=True, text=True
        )
        (row,) = json.loads(done.stdout)["rows"]
        return row  # type: ignore[no-any-return]

    def kill_mirror(self) -> None:
        """Kill it, without a last word."""
        if self._mirror is not None:
            self._mirror.send_signal(signal.SIGKILL)
            self._mirror.wait()
            self._mirror = None

    # -- the ledger ------------------------------------------------------------------------------

    def sent(self) -> set[tuple[int, int]]:
        """Return partition and offset of each message that was acknowledged so far."""
        lines = (line.split() for line in self._acked.read_text().splitlines())
        return {(int(line[1]), int(line[2])) for line in lines if len(line) == 4}

    def lost(self) -> list[tuple[int, int]]:
        """Return the messages that no member has delivered."""
        return sorted(self.sent().difference(*self.delivered))

    def repeated(self) -> int:
        """Return how many messages a program has delivered that an earlier one had delivered."""
        every = Counter(place for one in self.delivered for place in one)
        return every.total() - len(every)

    def figures(self) -> str:
        """Return the ledger's figures for people."""
        return (
            f"{len(self.sent())} messages, {len(self.lost())} lost, {self.repeated()} repeated of "
            f"{self.uncommitted} that their program had not committed"
        )

    def _note_uncommitted(self) -> None:
        """Add what the last program had delivered beyond the offsets that both stores have now."""
        agreed = self.zookeeper.get(f"/consumers/{self.group}/record/mirror")[0]
        offsets = json.loads(agreed)["offsets"][self.topic]
        ends = {partition: offset + 1 for partition, offset in sorted(self.delivered[-1])}
        self.uncommitted += sum(
            max(0, end - offsets.get(str(partition), 0)) for partition, end in ends.items()
        )


def _leave(member: JvmMember | KafkaPython | Librdkafka | Java) -> None:
    if isinstance(member, JvmMember):
        member.leave()
    else:
        member.close()


def _seen(member: JvmMember | KafkaPython | Librdkafka | Java) -> list[tuple[int, int]]:
    if isinstance(member, JvmMember):
        return [(one.partition, one.offset) for one in list(member.deliveries)]
    return member.got()


def _path() -> str:
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
