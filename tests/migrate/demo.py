"""``python -m tests.migrate.demo``: legacy groups moved to Kafka and back on real servers.

One thread. It runs the commands that an operator would run, each in its own process. The consumers
are the old connector and a coordinator-based one. They record every message that they deliver, and
the table at the end shows how often each group got each message.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kafka import KafkaConsumer
from kafka.structs import OffsetAndMetadata, TopicPartition

from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.errors import ZkConsumerError
from zkconsumer.servers import LocalCluster
from zkconsumer.servers.produce import send

TOPIC: Final = "orders"
PARTITIONS: Final = 6
MESSAGES: Final = 3_000
GROUPS: Final = ("audit", "billing", "mail", "search", "stock")
THIRD: Final = MESSAGES // 3
_SECONDS: Final = 60.0

Ledger = dict[str, Counter[tuple[int, int]]]
"""Group to partition and offset, and the number of times that the group got that message."""


def main() -> int:
    """Run the demo; return 0 when no message was lost or repeated and every status was right."""
    try:
        with LocalCluster("3.9") as cluster, tempfile.TemporaryDirectory() as folder:
            return _Demo(cluster, Path(folder)).run()
    except ZkConsumerError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code


class _Demo:
    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.ledger: Ledger = {group: Counter() for group in GROUPS}
        self.stored: Mapping[int, int] = {}
        self.wrong: list[str] = []

    def run(self) -> int:
        """The whole story."""
        cluster = self.cluster
        cluster.create_topic(TOPIC, PARTITIONS)
        pairs = [(str(number).encode(), b"order %d" % number) for number in range(MESSAGES)]
        self.stored = send(cluster.bootstrap, TOPIC, pairs)
        _say(f"{len(GROUPS)} legacy groups read a third of {MESSAGES} messages and stop")
        for group in GROUPS:
            self.read_legacy(group, THIRD)

        _say("What are these groups? Then a plan to review")
        self.command(0, "plan", "--all")
        self.command(0, "plan", "--all", "--out", self.file("forth"), show=False)
        for line in Path(self.file("forth")).read_text().splitlines()[1:4]:
            sys.stdout.write(f"  {line[:96]}...\n")
        _say("Apply it, and kill it in the middle (SIGKILL)")
        self.apply_killed("forth", GROUPS[2])
        self.command(3, "status", self.file("forth"), show=False)
        _say("The same command again resumes where it was; every offset is read back")
        self.command(0, "apply", self.file("forth"), "--execute")
        self.command(0, "status", self.file("forth"))

        _say("Coordinator-based consumers read the second third")
        for group in GROUPS:
            self.read_modern(group, THIRD)
        _say("A rollback would lose what they did, so undo would copy the offsets back")
        self.command(0, "undo", self.file("forth"))
        _say("The same as a plan, from what Kafka holds now")
        back = ("--direction", "kafka-to-zk")
        self.command(0, "plan", "--groups-regex", "|".join(GROUPS), *back, "--out",
                     self.file("back"), show=False)  # fmt: skip
        self.command(0, "apply", self.file("back"), "--execute")
        self.command(0, "status", self.file("back"))
        _say("Rolled back at once, and moved again: both stores are as if nothing had happened")
        self.command(0, "undo", self.file("back"), "--execute", show=False)
        self.command(0, "plan", "--groups-regex", "|".join(GROUPS), *back, "--out",
                     self.file("again"), show=False)  # fmt: skip
        self.command(0, "apply", self.file("again"), "--execute", show=False)

        _say("The legacy connector reads the rest")
        for group in GROUPS:
            self.read_legacy(group, MESSAGES - 2 * THIRD)
        return self.verdict()

    def file(self, name: str) -> str:
        """Path of a plan."""
        return str(self.folder / f"{name}.plan")

    def command(self, expected: int, *arguments: str, show: bool = True) -> None:
        """Run ``zkmigrate`` and print its output; note an unexpected exit status."""
        shown = " ".join(arguments).replace(f"{self.folder}/", "")
        sys.stdout.write(f"$ zkmigrate {shown}\n")
        sys.stdout.flush()
        done = subprocess.run(self._words(*arguments), check=False, capture_output=True, text=True)
        if show or done.returncode != expected:
            for line in (done.stdout + done.stderr).splitlines():
                sys.stdout.write(f"  {line[:150]}\n")
        sys.stdout.write(f"  (exit status {done.returncode})\n")
        if done.returncode != expected:
            self.wrong.append(f"{shown}: status {done.returncode}, not {expected}")

    def _words(self, *arguments: str) -> list[str]:
        code = "from zkmigrate.cli import main; main()"
        servers = ("--zookeeper", self.cluster.zookeeper, "--timeout", "6")
        return [sys.executable, "-c", code, *arguments, *servers]

    def apply_killed(self, name: str, group: str) -> None:
        """Start an apply and kill it as soon as the journal names ``group``."""
        sys.stdout.write(f"$ zkmigrate apply {name}.plan --execute\n")
        sys.stdout.flush()
        words = self._words("apply", self.file(name), "--execute")
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        journal = Path(f"{self.file(name)}.journal")
        wanted = f'"group":"{group}"'

        def reached() -> bool:
            if process.poll() is not None:
                return True
            return journal.exists() and wanted in journal.read_text()

        deadline = time.monotonic() + _SECONDS
        while not reached() and time.monotonic() < deadline:
            time.sleep(0.0005)
        process.kill()
        status = process.wait()
        lines = journal.read_text().splitlines()
        sys.stdout.write(
            f"  killed; the journal's last record: {lines[-1].split(chr(9))[0][:110]}\n"
        )
        if status != -signal.SIGKILL:
            self.wrong.append(f"apply ended with status {status} before it was killed")

    # -- consumers -----------------------------------------------------------------------------

    def read_legacy(self, group: str, count: int) -> None:
        """Read ``count`` messages with the old connector, commit, leave."""
        config = {
            "zookeeper.connect": self.cluster.zookeeper,
            "group.id": group,
            "auto.commit.enable": "false",
            "auto.offset.reset": "smallest",
            "consumer.timeout.ms": str(int(_SECONDS * 1000)),
        }
        seen = self.ledger[group]
        with ZookeeperConsumerConnector(config) as connector:
            (stream,) = connector.create_message_streams({TOPIC: 1})[TOPIC]
            for message in stream:
                seen[(message.partition, message.offset)] += 1
                stream.mark_consumed()
                count -= 1
                if not count:
                    break
            connector.commit_offsets()

    def read_modern(self, group: str, count: int) -> None:
        """Read ``count`` messages with a consumer that joins at the coordinator, commit, leave."""
        seen = self.ledger[group]
        consumer = KafkaConsumer(
            TOPIC,
            bootstrap_servers=self.cluster.bootstrap,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            consumer_timeout_ms=int(_SECONDS * 1000),
        )
        positions: dict[TopicPartition, OffsetAndMetadata] = {}
        try:
            for message in consumer:
                seen[(message.partition, message.offset)] += 1
                tp = TopicPartition(message.topic, message.partition)
                positions[tp] = OffsetAndMetadata(message.offset + 1, "", -1)
                count -= 1
                if not count:
                    break
            consumer.commit(positions)
        finally:
            consumer.close()

    def verdict(self) -> int:
        """Print the ledger; return the exit status."""
        _say("The ledger")
        sys.stdout.write(f"{'group':10} {'messages':>8} {'lost':>5} {'repeated':>9}\n")
        every = {(p, offset) for p, count in self.stored.items() for offset in range(count)}
        good = not self.wrong
        for group, seen in self.ledger.items():
            lost = len(every - seen.keys())
            repeated = seen.total() - len(seen)
            good = good and not lost and not repeated
            sys.stdout.write(f"{group:10} {len(every):>8} {lost:>5} {repeated:>9}\n")
        for text in self.wrong:
            sys.stdout.write(f"wrong: {text}\n")
        sys.stdout.write("0 lost, 0 repeated\n" if good else "NOT as promised\n")
        return 0 if good else 1


def _say(text: str) -> None:
    sys.stdout.write(f"\n== {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
