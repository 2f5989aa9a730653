"""Move many running groups with ``zkmigrate live STAGE --all``: ``make live-estate``.

``python -m tests.migrate.live_estate 200`` starts real servers and 200 groups with one migratable
member each. Every twentieth group also has a legacy member, so that its move is refused. Each stage
is one command for all groups: forward, back, and forward again. The program prints the time of each
stage and checks that the refused groups were named, that all others moved, and that in every group
each message was delivered exactly once.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from tests.migrate.rows import rows_of, step_words
from tests.support.groups import Producer
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.migratable import MigratableConsumerConnector
from zkconsumer.servers import LocalCluster, wait_until

TOPIC: Final = "live-estate"
PARTITIONS: Final = 2
REFUSED: Final = 20
"""Every so-manieth group has a legacy member as well."""
STAGES: Final = {
    "lock": "locked",
    "to-kafka": "kafka",
    "finalize": "open",
    "to-zookeeper": "locked",
    "unlock": "zookeeper",
}
ROAD: Final = ("lock", "to-kafka", "finalize", "to-zookeeper", "unlock", "lock", "to-kafka")
COMMIT_MS: Final = 3000
_PROCESSES: Final = 8
"""How many processes hold the members."""


def _members(configs: str, out: str) -> int:
    """One process with many members. It records each message before it requests the next one."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    members = []
    with Path(out).open("a", buffering=1) as file:

        def read(group: str, stream: Any) -> None:
            for one in stream:
                file.write(f"{group} {time.monotonic():.4f} {one.partition} {one.offset}\n")

        for config in json.loads(configs):
            kind = MigratableConsumerConnector
            member = kind(config) if "bootstrap.servers" in config else _legacy(config)
            members.append(member)
            for stream in member.create_message_streams({TOPIC: 1})[TOPIC]:
                words = (config["group.id"], stream)
                threading.Thread(target=read, args=words, daemon=True).start()
        ended.wait()
        for member in members:
            member.shutdown()
    return 0


def _legacy(config: dict[str, object]) -> ZookeeperConsumerConnector:
    return ZookeeperConsumerConnector(config)


def _configs(cluster: LocalCluster, groups: list[str]) -> Iterator[dict[str, object]]:
    for number, group in enumerate(groups):
        config: dict[str, object] = {
            "zookeeper.connect": cluster.zookeeper,
            "group.id": group,
            "auto.offset.reset": "smallest",
            "auto.commit.interval.ms": COMMIT_MS,
        }
        if number % REFUSED == 0:
            yield {**config, "consumer.id": "old"}
        yield {
            **config,
            "consumer.id": "new",
            "bootstrap.servers": cluster.bootstrap,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 20000,
        }


def _deliveries(folder: Path) -> dict[str, list[tuple[float, int, int]]]:
    """Time, partition and offset of each message that a group has got, in the order of time."""
    found: dict[str, list[tuple[float, int, int]]] = defaultdict(list)
    for path in folder.iterdir():
        for line in path.read_text().splitlines(keepends=True):
            words = line.split()
            if line.endswith("\n") and len(words) == 4:
                found[words[0]].append((float(words[1]), int(words[2]), int(words[3])))
    return {group: sorted(some) for group, some in found.items()}


def _stage(stage: str, zookeeper: str, parallel: int) -> Counter[str]:
    """Run a stage for all groups; return how many groups had each outcome and mode."""
    words = [sys.executable, "-m", "zkmigrate", *step_words(stage), "--all", "--execute"]
    words += ["--json", "--parallel", str(parallel), "--zookeeper", zookeeper]
    begun = time.monotonic()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    took = time.monotonic() - begun
    progress = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    rows = rows_of(done.stdout)
    found = Counter(f"{row['outcome']}: {row['mode']}" for row in rows)
    why = {row["why"].split(":")[0] for row in rows if row["why"]}
    sys.stdout.write(
        f"{stage:13} {took:6.1f} s, exit status {done.returncode}, {len(progress)} lines of "
        f"progress, {dict(found)} {sorted(why) or ''}\n"
    )
    sys.stdout.flush()
    assert done.returncode in (0, 1), done.stderr[-2000:]  # legacy members
    return found


def _judge(
    every: dict[str, list[tuple[float, int, int]]], sent: set[tuple[int, int]], begun: float
) -> list[float]:
    """Check each group's deliveries; return the longest pause of a partition in each group."""
    pauses = []
    for group, some in every.items():
        keys = [(partition, offset) for _, partition, offset in some]
        assert set(keys) == sent, f"{group} has not got {len(sent - set(keys))} messages"
        assert len(keys) == len(sent), f"{group} got {len(keys) - len(sent)} messages twice"
        for number in range(PARTITIONS):
            times = [at for at, partition, _ in some if partition == number and at >= begun]
            pauses.append(max(b - a for a, b in pairwise(times)))
    return sorted(pauses)


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", type=int, nargs="?", default=200)
    parser.add_argument("--parallel", type=int, default=32)
    parser.add_argument("--rate", type=int, default=2, help="messages a second")
    parser.add_argument("--members", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.members:
        return _members(*options.members)
    groups = [f"group-{number:04}" for number in range(options.groups)]
    refused = len(range(0, options.groups, REFUSED))
    processes = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory() as place, LocalCluster("3.9") as cluster:
        folder = Path(place)
        cluster.create_topic(TOPIC, PARTITIONS)
        configs = list(_configs(cluster, groups))
        try:
            with Producer(
                cluster.bootstrap, TOPIC, range(PARTITIONS), 1 / options.rate
            ) as producer:
                for number in range(_PROCESSES):
                    words = [json.dumps(configs[number::_PROCESSES]), str(folder / f"{number}")]
                    line = [sys.executable, "-m", "tests.migrate.live_estate", "--members", *words]
                    processes.append(subprocess.Popen(line))
                started = time.monotonic()
                wait_until(lambda: len(_deliveries(folder)) == len(groups), 300, "all groups read")
                begun = time.monotonic()
                sys.stdout.write(f"{len(groups)} groups read after {begun - started:.0f} s\n")
                moved = len(groups) - refused
                for stage in ROAD:
                    found = _stage(stage, cluster.zookeeper, options.parallel)
                    assert found[f"done: {STAGES[stage]}"] == moved, found
                sent = set(producer.stop())
                wait_until(
                    lambda: all(len(some) >= len(sent) for some in _deliveries(folder).values()),
                    120,
                    "every group has got all messages",
                )
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(60)
        pauses = _judge(_deliveries(folder), sent, begun)
    sys.stdout.write(
        f"{moved} groups moved, {refused} were left in ZooKeeper; each of {len(groups)} groups got "
        f"{len(sent)} messages exactly once; longest time between two messages of a partition: "
        f"median {pauses[len(pauses) // 2]:.1f} s, longest {pauses[-1]:.1f} s\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
