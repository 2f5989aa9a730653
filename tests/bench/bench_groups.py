"""Measure the commands that read all groups: 20,000 groups of seven znodes, on real servers.

Each command is its own process, so the start of Python counts. *requests* are those that the
ZooKeeper server received. Each ratio is a target divided by the measured value, so 1 or more means
that the target is reached. ``BENCH_GROUPS=1000`` chooses another number of groups.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, NamedTuple

from kazoo.client import KazooClient

from tests.support.processes import measured, program
from zkconsumer.servers import LocalCluster, fetch_jars, java
from zkconsumer.servers.servers import four_letters

GROUPS: Final = int(os.environ.get("BENCH_GROUPS", "20000"))
TOPICS: Final = 50
PARTITIONS: Final = 2
MIB: Final = 60


class Case(NamedTuple):
    """A command of a program, the seconds that it may take, and the lines that it prints."""

    command: str
    program: str
    seconds: float
    lines: int


ROWS: Final = GROUPS * PARTITIONS + 1
CASES: Final = (
    Case("groups list", "zkconsumer", 0.5, GROUPS + 1),
    Case("groups list --counts", "zkconsumer", 4, GROUPS + 1),
    Case("groups describe --all", "zkconsumer", 12, ROWS),
    Case("plan --all", "zkmigrate", 20, GROUPS + 1),
)


def run(rounds: int) -> Iterator[tuple[str, str, list[float]]]:
    """Yield case, figure and the value of each round."""
    os.environ["_JAVA_OPTIONS"] = "-Xmx1g"
    with LocalCluster("3.9") as cluster:
        for topic in range(TOPICS):
            cluster.create_topic(f"topic-{topic}", partitions=PARTITIONS)
        client = KazooClient(cluster.zookeeper, timeout=60.0)
        client.start(timeout=30)
        fill(client)
        client.stop()
        words = ("plan", "--group", "group-00000", "--zookeeper", cluster.zookeeper)
        measured(program("zkmigrate", *words))  # the broker creates the topic of offsets
        port = int(cluster.zookeeper.partition(",")[0].rpartition(":")[2])
        for case in CASES:
            results, requests = [], []
            for _ in range(rounds):
                before = received(port)
                words = (*case.command.split(), "--zookeeper", cluster.zookeeper)
                result = measured(program(case.program, *words))
                requests.append(float(received(port) - before))
                assert result.status == 0, result.errors
                assert result.output.count(b"\n") == case.lines, result.output[:1000]
                results.append(result)
            name = f"{case.command}, {GROUPS:,}"
            yield name, "s", [one.seconds for one in results]
            yield name, "s to first line", [one.first for one in results]
            yield name, "CPU s", [one.cpu for one in results]
            yield name, "MiB", [one.mib for one in results]
            yield name, "requests", requests
            yield (
                f"{name}: {case.seconds:g} s",
                "ratio",
                [case.seconds / one.seconds for one in results],
            )
            yield f"{name}: {MIB} MiB", "ratio", [MIB / one.mib for one in results]
        words = ("-cp", f"{fetch_jars('1.1')}/*", "kafka.admin.ConsumerGroupCommand", "--list")
        jvm = [measured([java(), *words, "--zookeeper", cluster.zookeeper]) for _ in range(rounds)]
        assert {one.output.count(b"\n") for one in jvm} == {GROUPS}, jvm[0].output[:1000]
        yield f"the JVM's --list, {GROUPS:,}", "s", [one.seconds for one in jvm]


def fill(client: KazooClient) -> None:
    """Create the groups, which have no members."""
    client.ensure_path("/consumers")
    for first in range(0, GROUPS, 500):
        many = client.transaction()
        for number in range(first, min(first + 500, GROUPS)):
            root, topic = f"/consumers/group-{number:05}", f"topic-{number % TOPICS}"
            for path in ("", "/ids", "/owners", "/offsets", f"/offsets/{topic}"):
                many.create(root + path)
            for partition in range(PARTITIONS):
                many.create(f"{root}/offsets/{topic}/{partition}", b"0")
        for result in many.commit():
            if isinstance(result, Exception):
                raise result


def received(port: int) -> int:
    """Return how many requests the ZooKeeper server has received."""
    (line,) = (one for one in four_letters(port, "srvr").splitlines() if "Received:" in one)
    return int(line.split()[1])
