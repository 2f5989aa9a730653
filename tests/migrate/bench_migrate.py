"""Measures the mover on real servers: ``python tests/migrate/bench_migrate.py [GROUPS [TIMES]]``.

Groups of 100 partitions: assess, plan, apply, verify, each a process whose memory and time are
told. Then the JVM's ExportZkOffsets and ImportZkOffsets beside ours on 20,000 offsets.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kazoo.client import KazooClient

from zkconsumer.testing import LocalCluster, fetch_jars, java

TOPICS, PARTITIONS = 4, 25


def fill(client: KazooClient, groups: range) -> None:
    """Write groups with 100 offsets each."""
    client.ensure_path("/consumers")
    for group in groups:
        root = f"/consumers/g{group}"
        transaction = client.transaction()
        for path in (root, f"{root}/offsets"):
            transaction.create(path)
        for topic in range(TOPICS):
            transaction.create(f"{root}/offsets/t{topic}")
            for partition in range(PARTITIONS):
                transaction.create(f"{root}/offsets/t{topic}/{partition}", b"0")
        transaction.commit()


def measure(name: str, words: list[str]) -> None:
    """Run a process; print its time, processor time and largest memory."""
    started = time.monotonic()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = process.stderr.read().splitlines()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - started
    sys.stdout.write(
        f"{name:28} {seconds:7.2f} s  cpu {used.ru_utime + used.ru_stime:6.2f} s  "
        f"{used.ru_maxrss / 1024:5.0f} MiB  status {process.returncode}  {said[-1:]}\n"
    )
    sys.stdout.flush()


def main() -> None:
    """Run all."""
    groups = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with LocalCluster("3.9") as cluster, tempfile.TemporaryDirectory() as folder:
        for topic in range(TOPICS):
            cluster.create_topic(f"t{topic}", PARTITIONS)
        client = KazooClient(cluster.zookeeper)
        client.start()
        fill(client, range(200))
        zookeeper = ["--zookeeper", cluster.zookeeper]
        ours = [sys.executable, "-c", "from zkmigrate.cli import main; main()"]
        jvm = [java(), "-cp", os.path.join(fetch_jars("1.1"), "*")]
        file = str(Path(folder) / "jvm")
        measure("JVM ExportZkOffsets 20,000", [*jvm, "kafka.tools.ExportZkOffsets", "--zkconnect",
                cluster.zookeeper, "--output-file", file])  # fmt: skip
        out = str(Path(folder) / "ours")
        measure("zkmigrate export 20,000", [*ours, "export", "--all", "--format", "jvm", "--out",
                out, *zookeeper])  # fmt: skip
        lines = [sorted(Path(name).read_text().split()) for name in (file, out)]
        assert lines[0] == lines[1], "the two exports differ"
        measure("JVM ImportZkOffsets 20,000", [*jvm, "kafka.tools.ImportZkOffsets", "--zkconnect",
                cluster.zookeeper, "--input-file", file])  # fmt: skip
        first = str(Path(folder) / "first")
        words = {
            "plan": ["plan", "--all", "--out", first],
            "apply": ["apply", first, "--execute"],
            "verify": ["verify", first],
        }
        for name, arguments in words.items():
            measure(f"zkmigrate {name} 20,000", [*ours, *arguments, *zookeeper])
        if groups > 200:
            fill(client, range(200, groups))
            plan = str(Path(folder) / "plan")
            size = f"{groups * TOPICS * PARTITIONS:,}"
            selected = ["--groups-regex", "g.*"]
            measure(f"assess {size}", [*ours, "assess", *selected, *zookeeper])
            measure(f"plan {size}", [*ours, "plan", *selected, "--out", plan, *zookeeper])
            measure(f"apply {size}", [*ours, "apply", plan, "--execute", *zookeeper])
            measure(f"verify {size}", [*ours, "verify", plan, *zookeeper])
            measure(f"rollback {size}", [*ours, "rollback", plan, "--execute", *zookeeper])
        client.stop()


if __name__ == "__main__":
    main()
