"""A rehearsal of a live move on real servers: ``python -m tests.migrate.demo_live``.

Starts ZooKeeper, a broker, a producer and members, each in its own process. It moves the group
forward, back and forward with ``zkmigrate live``, and compares the sent messages with the delivered
ones. With ``--kill`` it kills something at a random moment of each stage.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.groups import Producer
from zkconsumer.migratable import MigratableConsumerConnector
from zkconsumer.runtime.undisturbed import Alarm
from zkconsumer.servers import LocalCluster, wait_until

GROUP, TOPIC = "demo-live", "demo-live"
STAGES: Final = (
    "lock",
    "to-kafka",
    "finalize",
    "to-zookeeper",
    "unlock",
    "lock",
    "to-kafka",
    "finalize",
)
VICTIMS: Final = ("none", "member", "tool", "zookeeper", "broker")
COMMIT_MS: Final = 1000
_STAGE_SECONDS: Final = 180.0
"""After this long a stage that is refused ends the run."""


class Delivered(NamedTuple):
    """One message as received by a member's program. ``at``: monotonic seconds of this machine.
    ``created``: milliseconds since 1970, by the producer."""

    at: float
    partition: int
    offset: int
    created: int
    member: str


def main() -> int:
    """Run the demo; the exit status is 0 if nothing was lost or delivered by two members."""
    parser = argparse.ArgumentParser(prog="tests.migrate.demo_live", description=__doc__)
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--rate", type=int, default=200, help="messages a second")
    parser.add_argument("--kill", choices=VICTIMS, default="none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--member", nargs=2, metavar=("CONFIG", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.member:
        return _member(*options.member)
    with tempfile.TemporaryDirectory() as folder, LocalCluster("3.9") as cluster:
        result = _Run(cluster, Path(folder), options).run()
    if options.json:
        sys.stdout.write(json.dumps(result) + "\n")
    else:
        for name, value in result.items():
            sys.stdout.write(f"{name:>34}  {value}\n")
    return 0 if not (result["lost"] or result["delivered by two at once"]) else 1


def _member(config: str, out: str) -> int:
    """A member's program: it records each message before it requests the next one."""
    ended = Alarm()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    member = MigratableConsumerConnector(json.loads(config))
    (stream,) = member.create_message_streams({TOPIC: 1})[TOPIC]

    def read() -> None:
        with Path(out).open("a", buffering=1) as file:
            for message in stream:
                words = f"{message.partition} {message.offset} {message.timestamp}"
                file.write(f"{time.monotonic():.4f} {words}\n")

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    ended.wait()
    member.shutdown()
    reader.join(5)
    return 0


class _Run:
    """One run: the servers, the members and the tool."""

    def __init__(self, cluster: LocalCluster, folder: Path, options: argparse.Namespace) -> None:
        self.cluster = cluster
        self.folder = folder
        self.options = options
        self.random = random.Random(options.seed)
        self.members: dict[str, subprocess.Popen[bytes]] = {}
        self.kills: list[float] = []
        """When something was killed, monotonic seconds."""
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self._numbers = 0

    def run(self) -> dict[str, object]:
        """Run the whole road; return the figures."""
        try:
            sent, begun, ended = self._move()
        finally:
            for process in self.members.values():
                process.terminate()
            for process in self.members.values():
                process.wait(30)
        return self.judge(sent, begun, ended)

    def _move(self) -> tuple[set[tuple[int, int]], float, float]:
        """Run all stages while messages are sent. Return what was sent, and the begin and end
        times."""
        options = self.options
        self.cluster.create_topic(TOPIC, options.partitions)
        partitions = range(options.partitions)
        with Producer(self.cluster.bootstrap, TOPIC, partitions, 1 / options.rate) as producer:
            for _ in range(options.members):
                self.join()
            wait_until(lambda: self.active() >= options.members, 90, "all members deliver")
            begun = time.monotonic()
            for stage in STAGES:
                self.stage(stage)
            ended = time.monotonic()
            sent = set(producer.stop())
            wait_until(lambda: sent <= self.got(), 90, "all that was sent is delivered")
        return sent, begun, ended

    def join(self) -> None:
        """Start a member in its own process."""
        self._numbers += 1
        name = f"m{self._numbers}"
        config = {
            "zookeeper.connect": self.cluster.zookeeper,
            "bootstrap.servers": self.cluster.bootstrap,
            "group.id": GROUP,
            "consumer.id": name,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": COMMIT_MS,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 500,
            "zkconsumer.live.strategies": "cooperative-sticky",
        }
        words = ["--member", json.dumps(config), str(self.folder / name)]
        self.members[name] = subprocess.Popen(
            [sys.executable, "-m", "tests.migrate.demo_live", *words]
        )

    def stage(self, name: str) -> None:
        """Run a stage of the tool until it is done, and kill a process during it."""
        words = [sys.executable, "-c", "from zkmigrate.cli import main; main()"]
        words += [name] if name in ("lock", "unlock") else ["live", name]
        words += [
            "--group",
            GROUP,
            "--execute",
            "--zookeeper",
            self.cluster.zookeeper,
            "--wait",
            "60",
        ]
        begun = time.monotonic()
        killer = threading.Timer(self.random.uniform(0, 1.5), self.kill)
        if self.options.kill not in ("none", "tool"):
            killer.start()
        if self.options.kill == "tool":
            doomed = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            time.sleep(self.random.uniform(0.5, 2.0))
            doomed.kill()
            doomed.communicate()
            self.kills.append(time.monotonic())
        while True:
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                break
            if time.monotonic() > begun + _STAGE_SECONDS:
                raise SystemExit(f"stage {name}: {done.stdout}{done.stderr}")
        if killer.ident is not None:
            killer.join()
        took = time.monotonic() - begun
        self.seconds[name].append(took)
        sys.stderr.write(f"{name}: {took:.1f} s\n")

    def kill(self) -> None:
        """Kill a member, or restart a server."""
        self.kills.append(time.monotonic())
        if self.options.kill == "member":
            name = self.random.choice(sorted(self.members))
            self.members.pop(name).kill()
            self.join()
            return
        servers = {
            "zookeeper": self.cluster.zookeeper_servers,
            "broker": self.cluster.broker_servers,
        }[self.options.kill]
        servers[0].kill()
        servers[0].start()

    def deliveries(self) -> list[Delivered]:
        """All messages that members have noted so far, in the order of time."""
        deliveries = []
        for path in self.folder.iterdir():
            for line in path.read_text().splitlines(keepends=True):
                words = line.split()
                if line.endswith("\n") and len(words) == 4:
                    at, (partition, offset, created) = float(words[0]), map(int, words[1:])
                    deliveries.append(Delivered(at, partition, offset, created, path.name))
        return sorted(deliveries)

    def got(self) -> set[tuple[int, int]]:
        """Partition and offset of each delivered message."""
        return {(one.partition, one.offset) for one in self.deliveries()}

    def active(self) -> int:
        """How many members have delivered something."""
        return len({one.member for one in self.deliveries()})

    def judge(self, sent: set[tuple[int, int]], begun: float, ended: float) -> dict[str, object]:
        """Compare the sent messages with the delivered ones."""
        every = self.deliveries()
        keys = [(one.partition, one.offset) for one in every]
        each: dict[int, list[Delivered]] = defaultdict(list)
        for one in every:
            each[one.partition].append(one)
        moving = [one.at for one in every if begun <= one.at <= ended]
        created = sorted(one.created for one in every if begun <= one.at <= ended)
        pauses = sorted(
            max((b.at - a.at for a, b in pairwise(some) if begun <= b.at <= ended), default=0.0)
            for some in each.values()
        )
        options = self.options
        return {
            "members, partitions": f"{options.members}, {options.partitions}",
            "messages a second": round(len(sent) / (ended - begun)) if ended > begun else 0,
            "kills": f"{len(self.kills)} ({options.kill}), seed {options.seed}",
            "messages": len(sent),
            "lost": len(sent - set(keys)),
            "repeated": len(keys) - len(set(keys)),
            "repeated, oldest at the kill, s": round(self._oldest(every), 3),
            "delivered by two at once": sum(_by_two(some) for some in each.values()),
            "longest pause of a partition, s": round(pauses[-1], 3),
            "median of partitions' pauses, s": round(pauses[len(pauses) // 2], 3),
            "all partitions idle, s": round(max(b - a for a, b in pairwise(moving)), 3),
            "producer idle, s": max(b - a for a, b in pairwise(created)) / 1000,
            "seconds for each stage": " ".join(
                f"{name} {'/'.join(f'{took:.1f}' for took in some)}"
                for name, some in self.seconds.items()
            ),
        }

    def _oldest(self, every: list[Delivered]) -> float:
        """How long before a kill the oldest message was delivered that was delivered again."""
        oldest, first = 0.0, dict[tuple[int, int], float]()
        for one in every:
            before = first.setdefault((one.partition, one.offset), one.at)
            if before != one.at:
                # Of several kills the one that fits best: which it was is not known.
                kills = [at - before for at in self.kills if before <= at <= one.at]
                oldest = max(oldest, min(kills, default=one.at - before))
        return oldest


def _by_two(some: list[Delivered]) -> int:
    """How often a member delivered a partition that another one was delivering meanwhile."""
    last: dict[str, float] = {one.member: one.at for one in some}
    first: dict[str, float] = {}
    count = 0
    for before, one in pairwise(some):
        first.setdefault(before.member, before.at)
        if one.member != before.member and last[before.member] > one.at:
            # It comes back later: only when it was given the partition again in between.
            count += one.offset < before.offset
    return count


if __name__ == "__main__":
    sys.exit(main())
