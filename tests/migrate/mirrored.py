"""A group of the original consumer on real servers that is mirrored: its members, the new program,
a producer that never stops, the mirror in a process of its own, and a ledger of what was delivered.

The caller's thread gives the orders. The producer and each new consumer have a thread.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

import confluent_kafka
from kafka import KafkaConsumer

from tests.support.legacy_jvm import JvmMember, JvmMembers
from zkconsumer.servers import LocalCluster, wait_until
from zkconsumer.servers.produce import send

COMMIT_MS: Final = 500
"""How often members commit."""
_PAUSE: Final = 0.1
_SECONDS: Final = 60.0


class NewConsumer:
    """A consumer of the new program, in a thread. It fails where Kafka has no offset.

    ``kind``: ``kafka-python`` or ``librdkafka``.
    """

    def __init__(self, kind: str, bootstrap: str, group: str, topic: str) -> None:
        self.seen: list[tuple[float, int, int]] = []
        """Time, partition and offset of each message."""
        self.error: BaseException | None = None
        self._stop = threading.Event()
        run = self._run_python if kind == "kafka-python" else self._run_librdkafka
        self._thread = threading.Thread(target=self._work, args=(run, bootstrap, group, topic))
        self._thread.start()

    def stop(self) -> None:
        """Let it commit and leave."""
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _work(self, run: Callable[[str, str, str], None], *where: str) -> None:
        try:
            run(*where)
        except BaseException as error:  # noqa: BLE001 - ``stop`` raises it
            self.error = error

    def _run_python(self, bootstrap: str, group: str, topic: str) -> None:
        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="none",
            auto_commit_interval_ms=COMMIT_MS,
            session_timeout_ms=6000,
            heartbeat_interval_ms=500,
        )
        while not self._stop.is_set():
            for messages in consumer.poll(100).values():
                now = time.monotonic()
                self.seen += ((now, one.partition, one.offset) for one in messages)
        consumer.commit()
        consumer.close()

    def _run_librdkafka(self, bootstrap: str, group: str, topic: str) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "error",
                "auto.commit.interval.ms": COMMIT_MS,
                "session.timeout.ms": 6000,
            }
        )
        consumer.subscribe([topic])
        while not self._stop.is_set():
            message = consumer.poll(0.1)
            if message is not None:
                assert message.error() is None, message.error()
                place = (message.partition(), message.offset())
                self.seen.append((time.monotonic(), *place))  # type: ignore[arg-type]
        consumer.close()


class Mirrored:
    """One group and its topic. Use as a context manager, which ends all processes and threads.

    Args:
        cluster: real servers.
        jvm: runs the original consumer.
        names: of the group and of its topic, which must not exist.
        partitions: of the topic.
        folder: for journals.
        say: called with each command and its output.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        jvm: JvmMembers,
        names: tuple[str, str],
        partitions: int,
        folder: Path,
        say: Callable[[str], object] = lambda text: None,
    ) -> None:
        self.cluster, self._jvm, self._folder, self._say = cluster, jvm, folder, say
        self.group, self.topic = names
        self.sent: Counter[int] = Counter()
        """How many messages each partition has."""
        self.delivered: list[tuple[float, int, int]] = []
        """By members that have left."""
        self._mirror: subprocess.Popen[bytes] | None = None
        self._over = threading.Event()
        self._names = 0
        self._new: list[NewConsumer] = []
        cluster.create_topic(self.topic, partitions)
        self._producer = threading.Thread(target=self._produce)

    def __enter__(self) -> Self:
        self._producer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._producer.join()
        for one in self._new:
            one.stop()
        self.kill_mirror()

    def _produce(self) -> None:
        number = 0
        while not self._over.wait(_PAUSE):
            pairs = [(str(one).encode(), b"%d" % one) for one in range(number, number + 30)]
            number += len(pairs)
            self.sent += Counter(send(self.cluster.bootstrap, self.topic, pairs))

    # -- members ---------------------------------------------------------------------------------

    def old(self, count: int) -> list[JvmMember]:
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
                "rebalance.max.retries": "20",
                "zookeeper.session.timeout.ms": "6000",
            }
            member = JvmMember(self._jvm, config, {self.topic: 1})
            members.append(member)
            member.wait_joined(30)
        return members

    def new(self, *kinds: str) -> list[NewConsumer]:
        """Start consumers of the new program."""
        where = (self.cluster.bootstrap, self.group, self.topic)
        started = [NewConsumer(kind, *where) for kind in kinds]
        self._new += started
        return started

    def stop(self, members: list[JvmMember] | list[NewConsumer]) -> None:
        """Let members commit and leave, and note what they have delivered."""
        for one in members:
            if isinstance(one, NewConsumer):
                self._new.remove(one)
                one.stop()
                self.delivered += one.seen
            else:
                one.leave()
                self.delivered += ((m.at, m.partition, m.offset) for m in one.deliveries)

    def wait_delivered(self, members: list[JvmMember] | list[NewConsumer], count: int) -> None:
        """Wait until members have delivered some more messages."""

        def now() -> int:
            return sum(
                len(one.seen if isinstance(one, NewConsumer) else one.deliveries) for one in members
            )

        begin = now()
        wait_until(lambda: now() >= begin + count, _SECONDS, f"{count} messages are delivered")

    def finish(self, members: list[NewConsumer]) -> None:
        """Wait until the last members have delivered all messages, and stop them."""
        self._over.set()
        self._producer.join()

        def done() -> bool:
            seen = {one[1:] for member in members for one in member.seen}
            return len(seen | {one[1:] for one in self.delivered}) >= self.sent.total()

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

    def start_mirror(self) -> None:
        """Start the mirror if it does not run, and wait until it does."""
        if self._mirror is None or self._mirror.poll() is not None:
            words = self._words("mirror", "--execute", "--poll", "200ms")
            self._say(f"$ zkmigrate mirror --execute --poll 200ms --group {self.group} &")
            out = (self._folder / "mirror").open("ab")
            self._mirror = subprocess.Popen(words, stdout=out, stderr=out, cwd=self._folder)
            out.close()
        wait_until(lambda: self.status()["mirror"] not in ("", "none"), _SECONDS, "a mirror runs")

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

    def lost(self) -> list[tuple[int, int]]:
        """Return the messages that no member has delivered."""
        seen = {(partition, offset) for _, partition, offset in self.delivered}
        every = ((at, offset) for at, count in self.sent.items() for offset in range(count))
        return [one for one in every if one not in seen]

    def repeated(self) -> int:
        """Return how many deliveries were not the first of their message."""
        return len(self.delivered) - len({one[1:] for one in self.delivered})
