"""How long each target of CI takes, its CPU seconds in pytest, and its slowest test file.

With ``ZKC_TIMES=FILE``, each run of pytest appends a line of JSON to FILE (``record``), and
``.ci/run`` appends the time of each target that it starts. ``python -m tests.times FILE`` prints
the table.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def record(reports: Iterable[Any], begin: float) -> None:
    """Append the time of this run of pytest, and the CPU time of its processes that have ended, to
    the file that ``ZKC_TIMES`` names.

    A run inside a test is not recorded. ``reports`` are all reports of pytest with a ``nodeid`` and
    a ``duration`` in seconds, and ``begin`` is the ``time.time()`` at which the run began.
    ``ZKC_TARGET`` names the target.
    """
    path = os.environ.get("ZKC_TIMES")
    if not path or "PYTEST_CURRENT_TEST" in os.environ:
        return
    seconds: defaultdict[str, float] = defaultdict(float)
    tests = set()
    for report in reports:
        seconds[report.nodeid.partition("::")[0]] += report.duration
        tests.add(report.nodeid)
    file, duration = max(seconds.items(), key=lambda item: item[1], default=("", 0.0))
    line = {
        "target": os.environ.get("ZKC_TARGET", "pytest"),
        "seconds": round(time.time() - begin, 1),
        "cpu": round(sum(os.times()[:4]), 1),
        "tests": len(tests),
        "slowest": file,
        "slowest_seconds": round(duration, 1),
    }
    with Path(path).open("a", encoding="utf-8") as output:
        output.write(json.dumps(line) + "\n")


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return one row for each target, in the order in which the targets began to be recorded.

    The time of a target is that of its command (a line without ``tests``) if ``.ci/run`` recorded
    it, or else the sum of its runs of pytest.
    """
    rows: dict[str, dict[str, Any]] = {}
    for line in lines:
        row = rows.setdefault(
            line["target"],
            {"runs": 0.0, "command": 0.0, "cpu": 0.0, "tests": 0, "slowest": ("", 0.0)},
        )
        if "tests" not in line:
            row["command"] += line["seconds"]
            continue
        row["runs"] += line["seconds"]
        row["cpu"] += line["cpu"]
        row["tests"] += line["tests"]
        row["slowest"] = max(
            row["slowest"], (line["slowest"], line["slowest_seconds"]), key=lambda pair: pair[1]
        )
    texts = [f"{'target':<18}{'seconds':>8}{'CPU':>6}{'tests':>7}  slowest file"]
    for target, row in rows.items():
        file, duration = row["slowest"]
        slowest = f"{file} ({duration:.0f} s)" if file else "-"
        seconds = row["command"] or row["runs"]
        texts.append(f"{target:<18}{seconds:>8.0f}{row['cpu']:>6.0f}{row['tests']:>7}  {slowest}")
    return "\n".join(texts)


if __name__ == "__main__":
    recorded = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    sys.stdout.write(table([json.loads(line) for line in recorded]) + "\n")
