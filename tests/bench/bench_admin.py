"""Measure ``groups describe --all`` and ``offsets export`` in seconds, each as a whole command.

``describe`` reads 200 groups with 1,000 partitions each, with offsets, owners and lag. A real
broker has the topic. ``export`` reads 20,000 offsets and runs in the same round as the JVM's
``ExportZkOffsets`` (Kafka 1.1.1). ``ratio`` is the target divided by the measured time. The target
is 5 s for ``describe``, and a tenth of the JVM's time for ``export``.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kazoo.client import KazooClient

from tests.support.processes import measured, program
from zkconsumer.servers import LocalCluster, fetch_jars, java

TOPIC = "wide"
PARTITIONS = 1_000
GROUPS = 200
EXPORT_GROUPS = 20
DESCRIBE_TARGET = 5.0
EXPORT_TARGET = 0.1
HEAP = "-Xmx1g"  # 400,000 znodes do not fit into the embedded ZooKeeper's usual heap


def run(rounds: int) -> Iterator[tuple[str, str, list[float]]]:
    """Yield case, figure and the value of each round."""
    before = os.environ.get("_JAVA_OPTIONS")
    os.environ["_JAVA_OPTIONS"] = f"{before or ''} {HEAP}".strip()
    try:
        cluster = LocalCluster("3.9")
        cluster.start()
    finally:
        del os.environ["_JAVA_OPTIONS"]
        if before is not None:
            os.environ["_JAVA_OPTIONS"] = before
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # the servers stop first
    client = KazooClient(cluster.zookeeper, timeout=60.0)
    try:
        cluster.create_topic(TOPIC, partitions=PARTITIONS)
        client.start(timeout=30)
        fill(client, "", GROUPS, members=True)
        fill(client, "/export", EXPORT_GROUPS, members=False)
        yield from measure(cluster.zookeeper, rounds)
    finally:
        cluster.close()
        client.stop()
        client.close()


def measure(zookeeper: str, rounds: int) -> Iterator[tuple[str, str, list[float]]]:
    """Run the commands and return their times."""
    described: list[float] = []
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds):
        words = ("groups", "describe", "--all", "--zookeeper", zookeeper)
        result = measured(program("zkconsumer", *words))
        table = result.output
        assert table.count(b"\n") == GROUPS * PARTITIONS + 1
        assert table.count(b"  0  group-") == GROUPS * PARTITIONS  # all lags are known
        described.append(result.seconds)
        words = ("offsets", "export", "--all", "--zookeeper", f"{zookeeper}/export")
        exported = measured(program("zkconsumer", *words))
        ours.append(exported.seconds)
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "offsets"
            jvm = measured(
                [
                    java(),
                    *("-cp", f"{fetch_jars('1.1')}/*", "kafka.tools.ExportZkOffsets"),
                    *("--zkconnect", f"{zookeeper}/export", "--output-file", str(file)),
                ]
            )
            theirs.append(jvm.seconds)
            assert jvm.status == 0, jvm.errors
            lines = sorted(file.read_bytes().splitlines())
            assert lines == sorted(exported.output.splitlines())
            assert len(lines) == EXPORT_GROUPS * PARTITIONS
    yield "describe-200x1000", "zkconsumer s", described
    yield "describe-200x1000", "ratio", [DESCRIBE_TARGET / seconds for seconds in described]
    yield "export-20000", "zkconsumer s", ours
    yield "export-20000", "JVM s", theirs
    ratios = [EXPORT_TARGET * b / a for a, b in zip(ours, theirs, strict=True)]
    yield "export-20000", "ratio", ratios


def fill(client: KazooClient, chroot: str, groups: int, members: bool) -> None:
    """Create groups with an offset for each partition. Groups with members also have owners."""
    for number in range(groups):
        group = f"group-{number:03}"
        root = f"{chroot}/consumers/{group}"
        client.ensure_path(f"{root}/offsets/{TOPIC}")
        client.ensure_path(f"{root}/ids")
        many = client.transaction()
        member = f"{group}_host-1795262003537-5b79a07e"
        if members:
            client.ensure_path(f"{root}/owners/{TOPIC}")
            text = f'{{"version":1,"subscription":{{"{TOPIC}":2}},"pattern":"static"}}'
            many.create(f"{root}/ids/{member}", text.encode(), ephemeral=True)
        for partition in range(PARTITIONS):
            many.create(f"{root}/offsets/{TOPIC}/{partition}", b"0")
            if members:
                owner = f"{member}-{partition * 2 // PARTITIONS}".encode()
                many.create(f"{root}/owners/{TOPIC}/{partition}", owner, ephemeral=True)
        for result in many.commit():
            if isinstance(result, Exception):
                raise result
