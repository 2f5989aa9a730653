"""Measure the migrator on real servers: ``python -m tests.migrate.bench_migrate [GROUPS...]``.

First it runs the JVM's ExportZkOffsets and ImportZkOffsets and our commands on 20,000 offsets, in
three rounds. It prints how many times faster ours are. Then, for each number of groups of 100
partitions, it runs plan, apply, verify and rollback. The default number is 1,000, and 0
skips this part. Each command is its own process, and its times and memory are printed. Every JVM
has its normal JIT settings, in spite of the environment and the test servers' options.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from statistics import median

from kazoo.client import KazooClient

from tests.support.processes import measured, program
from zkconsumer.servers import LocalCluster, fetch_jars, java

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


def measure(name: str, words: list[str], offsets: int) -> float:
    """Run a process, print its times, largest memory and last word, and return the seconds."""
    result = measured(words)
    said = result.errors.splitlines()
    sys.stdout.write(
        f"{name:28} {result.seconds:7.2f} s  cpu {result.cpu:6.2f} s  "
        f"{result.seconds / offsets * 1e6:5.0f} us/offset  {result.mib:5.0f} MiB  "
        f"status {result.status}  {said[-1:]}\n"
    )
    sys.stdout.flush()
    assert result.status == 0, said
    return result.seconds


def beside_the_jvm(zookeeper: str, folder: Path) -> None:
    """Export and import 20,000 offsets with both, and print how many times faster ours are."""
    ours = [*program("zkconsumer"), "offsets", "export", "--all"]
    imports = [*program("zkconsumer"), "offsets", "import", "--execute", "--force", "--csv"]
    jvm = [java(), "-cp", os.path.join(fetch_jars("1.1"), "*")]
    times: dict[str, list[float]] = {}
    for number in range(-1, 3):  # the first round only fills the bytecode and page caches
        theirs, mine = str(folder / f"jvm{number}"), str(folder / f"ours{number}")
        changed = folder / f"changed{number}"  # our import writes only differences: here everything
        words = {
            "JVM export": [*jvm, "kafka.tools.ExportZkOffsets", "--zkconnect", zookeeper,
                           "--output-file", theirs],
            "zkconsumer export": [*ours, "--out", mine, "--zookeeper", zookeeper],
            "zkconsumer import": [*imports, str(changed), "--zookeeper", zookeeper],
            "JVM import": [*jvm, "kafka.tools.ImportZkOffsets", "--zkconnect", zookeeper,
                           "--input-file", theirs],
        }  # fmt: skip
        for name, arguments in words.items():
            if name == "zkconsumer import":
                changed.write_text(Path(mine).read_text().replace(":0\n", f":{number + 5}\n"))
            seconds = measure(name, arguments, 20_000)
            if number >= 0:
                times.setdefault(name, []).append(seconds)
        lines = [sorted(Path(name).read_text().split()) for name in (theirs, mine)]
        assert lines[0] == lines[1], "the two exports differ"
    for verb in ("export", "import"):
        theirs_s, ours_s = (median(times[f"{who} {verb}"]) for who in ("JVM", "zkconsumer"))
        sys.stdout.write(
            f"{verb}: JVM {theirs_s:.2f} s, ours {ours_s:.2f} s: {theirs_s / ours_s:.1f} times\n"
        )


def whole_move(zookeeper: str, folder: Path, groups: int) -> None:
    """Assess, plan, apply, verify and roll back ``groups`` groups."""
    plan = str(folder / f"{groups}.plan")
    offsets = groups * TOPICS * PARTITIONS
    steps = {
        "plan, not kept": ["plan", "--all"],
        "plan": ["plan", "--all", "--out", plan],
        "apply": ["apply", plan, "--execute"],
        "verify": ["status", plan],
        "undo": ["undo", plan, "--execute"],
    }
    for name, arguments in steps.items():
        words = program("zkmigrate", *arguments, "--zookeeper", zookeeper)
        measure(f"{name} {offsets:,}", words, offsets)


def main() -> None:
    """Run the whole measurement."""
    numbers = [int(word) for word in sys.argv[1:]] or [1000]
    heap = f"-Xmx{2 if max(numbers) > 2000 else 1}g"  # a million znodes need more memory than usual
    tiers = "-XX:TieredStopAtLevel=4"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # bytecode, as in an installed package
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
        os.environ["_JAVA_OPTIONS"] = f"{heap} {tiers}"
        with LocalCluster("3.9") as cluster:
            os.environ["_JAVA_OPTIONS"] = tiers
            for topic in range(TOPICS):
                cluster.create_topic(f"t{topic}", PARTITIONS)
            client = KazooClient(cluster.zookeeper, timeout=60.0)
            client.start()
            fill(client, range(200))
            beside_the_jvm(cluster.zookeeper, folder)
            filled = 200
            for groups in sorted(filter(None, numbers)):
                fill(client, range(filled, groups))
                filled = groups
                whole_move(cluster.zookeeper, folder, groups)
            client.stop()


if __name__ == "__main__":
    main()
