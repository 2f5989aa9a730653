"""Measure a move of many groups: ``python -m tests.migrate.bench_estate [GROUPS] [WORDS...]``.

By default there are 2,000 groups of 20 partitions on real servers, and 1 % of the groups are broken
in ten ways. Each command is its own process, and its times and memory are printed. Then the program
checks that every broken group was named with its fix, and that all others were moved. Words such as
``--parallel 4`` are passed to ``apply``.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from zkmigrate.apply.journal import parse

from tests.migrate.estate import FIXES, Estate
from tests.migrate.rows import rows_of
from tests.support.processes import measured, program
from zkconsumer.servers import LocalCluster

SEED = int(os.environ.get("ESTATE_SEED", "17"))


def measure(name: str, *words: str, zookeeper: str, good: tuple[int, ...]) -> tuple[float, Any]:
    """Run a command, print its times and largest memory, and return seconds and rows."""
    result = measured(program("zkmigrate", *words, "--json", "--zookeeper", zookeeper))
    said = result.errors.splitlines()
    assert result.status in good, said
    sys.stdout.write(
        f"{name:14} {result.seconds:6.2f} s  cpu {result.cpu:6.2f} s  "
        f"{result.mib:4.0f} MiB  {said[-1:]}\n"
    )
    sys.stdout.flush()
    return result.seconds, rows_of(result.output.decode())


def main() -> None:
    """Run the whole measurement."""
    words = sys.argv[1:]
    count = int(words.pop(0)) if words and words[0].isdigit() else 2000
    os.environ["_JAVA_OPTIONS"] = "-Xmx1g"
    with tempfile.TemporaryDirectory() as folder, LocalCluster("3.9") as cluster:
        started = time.monotonic()
        estate = Estate(cluster, count, SEED)
        estate.fill()
        sys.stdout.write(
            f"seed {SEED}: {count} groups, {len(estate.broken)} broken, "
            f"filled in {time.monotonic() - started:.0f} s\n"
        )
        where, plan = cluster.zookeeper, str(Path(folder) / "plan")
        measure("plan", "plan", "--all", zookeeper=where, good=(3,))
        _, rows = measure("plan", "plan", "--all", "--out", plan, zookeeper=where, good=(3,))
        named = {row["group"]: row for row in rows if row["kind"]}
        assert named.keys() == estate.broken.keys(), named.keys() ^ estate.broken.keys()
        for group, way in estate.broken.items():
            assert named[group]["kind"] == way, (way, named[group])
            assert FIXES[way] in named[group]["fix"], named[group]
        for verb in ("apply", "apply again"):
            _, rows = measure(verb, "apply", plan, "--execute", *words, zookeeper=where, good=(3,))
            done = {row["group"] for row in rows if row["outcome"] in ("done", "was done before")}
            assert done == set(estate.groups) - estate.broken.keys()
        measure("verify", "status", plan, zookeeper=where, good=(1, 3))
        measure("status", "status", "--all", zookeeper=where, good=(1, 3))
        wrong = [group for group, good in estate.moved() if not good]
        assert not wrong, wrong
        sys.stdout.write("every broken group was named with its fix, the others are moved\n")
        downtime(cluster, estate, Path(folder))
        estate.close()


def downtime(cluster: LocalCluster, estate: Estate, folder: Path) -> None:
    """Move one group of 1,000 partitions that was running when the plan was made."""
    cluster.create_topic("wide", 1000)
    transaction = estate.client.transaction()
    for path in ("", "/offsets", "/offsets/wide"):
        transaction.create(f"/consumers/wide{path}")
    for partition in range(1000):
        transaction.create(f"/consumers/wide/offsets/wide/{partition}", b"0")
    transaction.commit()
    plan = str(folder / "wide")
    words = ("plan", "--group", "wide", "--at-apply", "--out", plan)
    measure("plan wide", *words, zookeeper=cluster.zookeeper, good=(0,))
    words = ("apply", plan, "--execute")
    seconds, _ = measure("apply wide", *words, zookeeper=cluster.zookeeper, good=(0,))
    with open(f"{plan}.journal", "rb") as file:
        records, _ = parse("journal", file.read())
    at = {record.get("step"): record["at_ms"] for record in records[1:]}
    sys.stdout.write(
        f"downtime of 1,000 partitions: {seconds:.2f} s with the start of the process, of which "
        f"the group was held for {(at['done'] - at['claim']) / 1000:.2f} s\n"
    )


if __name__ == "__main__":
    main()
