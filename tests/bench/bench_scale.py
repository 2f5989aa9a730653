"""Measure `zkaudit run` on three servers' logs with more and more groups and transactions.

Each case is a new process with a heap of 4 GiB and ``local[2]``. CPU seconds are those of the
driver, the JVM and all Python workers, so other programs change them less than elapsed time. They
are read from ``/proc``, because Spark's daemon does not wait for its Python workers, and the kernel
then drops their times. Programs that run for less than 0.05 s may be missing. Stages
come from Spark's event log. By default there are 1,000 groups with 1,000,000 transactions, and then
10,000 with 5,000,000. ``BENCH_LARGE=1`` adds 100,000 with 50,000,000: 30 GB of disk.

Each ratio is a target divided by the measured value, so 1 or more means that the target is reached:

- The CPU time grows at most 1.2 times as much as the transactions.
- In stages that take a tenth of the whole time, the longest task takes at most three times as long
  as the median.
- An audit of one group takes a twentieth of the whole audit. So does one of the last hour.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent))
from audit_estate import write_estate

SIZES: Final = ((1_000, 1_000_000), (10_000, 5_000_000))
LARGE: Final = (100_000, 50_000_000)
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass
class Stage:
    """Tasks of one stage of Spark, in seconds, and the bytes that they spilled to disk."""

    seconds: list[float]
    spilled: int = 0


def audit(servers: list[Path], folder: Path, *options: str) -> tuple[float, list[Stage]]:
    """Return the CPU seconds of an audit in a new process, and its stages."""
    events = folder / "events"
    events.mkdir(parents=True)
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
        "spark.local.dir": str(folder / "local"),
        "spark.ui.showConsoleProgress": "false",
    }
    conf = " ".join(f"--conf {name}={value}" for name, value in settings.items())
    submit = {"PYSPARK_SUBMIT_ARGS": f"--master local[2] --driver-memory 4g {conf} pyspark-shell"}
    command = [sys.executable, "-m", "zkaudit", "run", "--out", str(folder / "out"), *options]
    command += ["--zookeeper-logs", *map(str, servers)]
    with (folder / "output").open("w") as output:
        started = subprocess.Popen(
            command, stdout=output, stderr=output, env=os.environ | submit, start_new_session=True
        )
        used = cpu_seconds(started.pid)
        while now := cpu_seconds(started.pid):  # the JVM ends after the driver
            used |= now
            started.poll()
            time.sleep(0.05)
    status = started.wait()
    assert status in (0, 1), (folder / "output").read_text()  # 1: findings
    return sum(used.values()), stages(events)


def cpu_seconds(session: int) -> dict[tuple[str, str], float]:
    """Return the CPU seconds of all processes of a session so far, by process id and start time."""
    found = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found[place.parent.name, fields[19]] = (int(fields[11]) + int(fields[12])) / _TICKS
    return found


def stages(events: Path) -> list[Stage]:
    """Read the stages from Spark's event log."""
    found: dict[int, Stage] = defaultdict(lambda: Stage([]))
    for line in (line for file in events.rglob("events_*") for line in file.open()):
        event = json.loads(line)
        if event["Event"] == "SparkListenerTaskEnd":
            info, stage = event["Task Info"], found[event["Stage ID"]]
            stage.seconds.append((info["Finish Time"] - info["Launch Time"]) / 1000)
            stage.spilled += event["Task Metrics"]["Disk Bytes Spilled"]
    return sorted(found.values(), key=lambda stage: -sum(stage.seconds))


def run(_: int) -> Iterator[tuple[str, str, list[float]]]:
    """Yield case, figure and value. There is one round, since the larger cases take long."""
    sizes = [*SIZES, LARGE] if os.environ.get("BENCH_LARGE") else SIZES
    before: tuple[int, float] | None = None
    for groups, transactions in sizes:
        with tempfile.TemporaryDirectory(prefix="bench-scale-") as name:
            folder = Path(name)
            servers = write_estate(folder / "logs", groups, transactions)
            case = f"{groups:,} groups, {transactions:,}"
            seconds, found = audit(servers, folder / "whole")
            yield case, "CPU seconds", [seconds]
            yield case, "stages", [len(found)]
            task_time = sum(sum(stage.seconds) for stage in found)
            yield case, "task seconds", [task_time]
            for place, stage in enumerate(found[:5], 1):
                yield case, f"stage {place}, seconds", [sum(stage.seconds)]
            yield case, "spilled MiB", [sum(stage.spilled for stage in found) / (1 << 20)]
            worst = max(
                max(stage.seconds) / statistics.median(stage.seconds)
                for stage in found
                if stage is found[0] or sum(stage.seconds) >= task_time / 10
            )
            yield f"{case}, 3 x the median", "ratio", [3 / worst]
            if before is not None:
                growth = transactions / before[0]
                yield f"{case}, growth", "ratio", [1.2 * growth * before[1] / seconds]
            before = transactions, seconds
            end = json.loads((folder / "whole/out/summary.json").read_text())["last_time"]
            for what, option in (
                ("one group", ("--group", "group-000007")),
                ("one hour", ("--from", f"{end[:13]}:00:00")),
            ):
                part, _found = audit(servers, folder / what.replace(" ", "-"), *option)
                yield f"{case}, {what}", "CPU seconds", [part]
                yield f"{case}, {what} of 20", "ratio", [seconds / 20 / part]
