"""Measure how long ``zkaudit log``, ``who`` and ``findings`` take to answer, from start to exit.

The logs of three servers with 5,000 transactions, and one log of 10 MB of which each transaction is
of one group. The target is one second, but three for the findings of 10 MB. A ratio is the target
divided by the measured time, so 1 or more means that it is reached.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import audit_logs

TEN_MEGABYTES = 86_000
AT = "2023-11-14T22:20"


def run(rounds: int) -> Iterator[tuple[str, str, list[float]]]:
    """Yield the case, the figure, and its value in each round."""
    with tempfile.TemporaryDirectory() as folder:
        small = [Path(folder) / f"zk{number}" for number in (1, 2, 3)]
        small[0].mkdir()
        audit_logs.write_history(small[0], 5_000)
        for other in small[1:]:
            shutil.copytree(small[0], other)
        large = Path(folder) / "large"
        large.mkdir()
        groups, share = audit_logs.GROUPS, audit_logs.SHARE
        try:
            audit_logs.GROUPS, audit_logs.SHARE = 1, 1.0
            audit_logs.write_history(large, TEN_MEGABYTES)
        finally:
            audit_logs.GROUPS, audit_logs.SHARE = groups, share
        at = ["--at", AT]
        for case, target, words in (
            ("log: 3 servers, 5,000 each", 1.0, ["log", "group-0", *_logs(small)]),
            ("log: 10 MB of one group", 1.0, ["log", "group-0", *_logs([large])]),
            ("who: 10 MB of one group", 1.0, ["who", "group-0", "events-7", *_logs([large]), *at]),
            ("findings: 3 servers, 5,000 each", 1.0, ["findings", *map(str, small)]),
            ("findings: 10 MB of one group", 3.0, ["findings", str(large)]),
        ):
            measured = [_seconds(words) for _ in range(rounds)]
            yield case, "seconds", [wall for wall, _ in measured]
            yield case, "CPU seconds", [cpu for _, cpu in measured]
            yield case, "ratio", [target / wall for wall, _ in measured]


def _logs(places: list[Path]) -> list[str]:
    return ["--zookeeper-logs", *map(str, places)]


def _seconds(words: list[str]) -> tuple[float, float]:
    """Wall and CPU time of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "zkaudit", *words], capture_output=True, check=True
    )
    wall = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stdout
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu
