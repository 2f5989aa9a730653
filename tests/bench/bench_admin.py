"""Measure ``groups describe --all``, ``offsets export`` and ``offsets import`` as whole commands.

``describe`` reads 200 groups with 1,000 partitions each, with offsets, owners and lag. A real
broker has the topic. ``export`` and ``import`` are of 20,000 offsets, and run in the same round as
the JVM's ``ExportZkOffsets`` and ``ImportZkOffsets`` (Kafka 1.1.1). Our import also compares before
and reads back after. ``ratio`` is the target divided by the measured time. The target is 5 s for
``describe``, and a tenth of the JVM's time for ``export``. ``times`` is the JVM's time divided by
ours.
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
    times: dict[str, list[float]] = {}
    for number in range(rounds):
        words = ("groups", "describe", "--all", "--zookeeper", zookeeper)
        result = measured(program("zkconsumer", *words))
        table = result.output
        assert table.count(b"\n") == GROUPS * PARTITIONS + 1
        assert table.count(b"  0  group-") == GROUPS * PARTITIONS  # all lags are known
        described.append(result.seconds)
        with tempfile.TemporaryDirectory() as scratch:
            for name, seconds in beside_the_jvm(f"{zookeeper}/export", Path(scratch), number):
                times.setdefault(name, []).append(seconds)
    yield "describe-200x1000", "zkconsumer s", described
    yield "describe-200x1000", "ratio", [DESCRIBE_TARGET / seconds for seconds in described]
    for verb in ("export", "import"):
        ours, theirs = times[verb], times[f"JVM {verb}"]
        yield f"{verb}-20000", "zkconsumer s", ours
        yield f"{verb}-20000", "JVM s", theirs
        faster = [b / a for a, b in zip(ours, theirs, strict=True)]
        yield f"{verb}-20000", "times", faster
        if verb == "export":
            yield "export-20000", "ratio", [EXPORT_TARGET * one for one in faster]


def beside_the_jvm(zookeeper: str, folder: Path, number: int) -> Iterator[tuple[str, float]]:
    """Export with both, import with both, and compare the exports. The JVM's import comes last, so
    the offsets are 0 again."""
    theirs, changed = folder / "theirs", folder / "changed"
    exported = measured(
        program("zkconsumer", "offsets", "export", "--all", "--zookeeper", zookeeper)
    )
    yield "export", exported.seconds
    yield "JVM export", jvm("ExportZkOffsets", zookeeper, "--output-file", theirs)
    lines = sorted(theirs.read_bytes().splitlines())
    assert lines == sorted(exported.output.splitlines())
    assert len(lines) == EXPORT_GROUPS * PARTITIONS
    # Our import writes only differences: here everything.
    changed.write_bytes(exported.output.replace(b":0\n", b":%d\n" % (number + 5)))
    words = ("offsets", "import", str(changed), "--execute", "--force", "--zookeeper", zookeeper)
    imported = measured(program("zkconsumer", *words))
    assert imported.status == 0, imported.errors
    yield "import", imported.seconds
    yield "JVM import", jvm("ImportZkOffsets", zookeeper, "--input-file", theirs)


def jvm(tool: str, zookeeper: str, option: str, file: Path) -> float:
    """Run one of the JVM's tools; return its seconds."""
    words = [java(), "-cp", f"{fetch_jars('1.1')}/*", f"kafka.tools.{tool}"]
    result = measured([*words, "--zkconnect", zookeeper, option, str(file)])
    assert result.status == 0, result.errors
    return result.seconds


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
