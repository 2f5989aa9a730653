"""Run ``tests.migrate.demo_live``, kill a process in each stage, and print a table of the results.

``python -m tests.migrate.live_kills --runs 60 --out build/live-kills.jsonl`` starts a run for each
seed from ``--first`` on. Each run kills another kind of process. Each result is one line of the
file, and runs that are already in the file are skipped. ``--table`` prints the file as rows for
``docs/explanation/evidence.md``, including failed runs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

KINDS: Final = ("member", "tool", "zookeeper", "broker")
"""The processes to kill. A run's seed chooses among them in rotation."""
_LIMIT_S: Final = 900.0
"""Seconds after which a run has failed."""
_STACKS_S: Final = 5.0
"""Seconds that a hanging run may take to print its stacks."""
_COLUMNS: Final = (
    "lost",
    "repeated",
    "repeated, oldest at the kill, s",
    "delivered by two at once",
    "longest pause of a partition, s",
    "all partitions idle, s",
)
"""The figures of a run that the table shows."""


def play(seed: int, members: int, partitions: int, rate: int) -> dict[str, Any]:
    """Do one run and return its result. A failed run has ``error``."""
    kill = KINDS[seed % len(KINDS)]
    words = [sys.executable, "-m", "tests.migrate.demo_live", "--json", "--kill", kill]
    words += ["--seed", str(seed), "--members", str(members)]
    words += ["--partitions", str(partitions), "--rate", str(rate)]
    row: dict[str, Any] = {"seed": seed, "kill": kill, "at": int(time.time())}
    begun = time.monotonic()
    # The run has its own process group, so that no member outlives it. An abort prints all stacks.
    run = subprocess.Popen(
        [words[0], "-X", "faulthandler", *words[1:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = run.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        run.send_signal(signal.SIGABRT)
        time.sleep(_STACKS_S)
        os.killpg(run.pid, signal.SIGKILL)
        _, err = run.communicate()
        return {**row, "error": f"not at its end after {_LIMIT_S:.0f} s", "stacks": err[-10_000:]}
    row["seconds"] = round(time.monotonic() - begun)
    try:
        return {**row, **json.loads(out.splitlines()[-1])}
    except (ValueError, IndexError):
        last = (err or out).strip().splitlines()[-1:]
        return {**row, "error": f"exit status {run.returncode}: {' '.join(last)[:300]}"}


def rows(path: Path) -> list[dict[str, Any]]:
    """The results in a file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def good(row: Mapping[str, Any]) -> bool:
    """Return whether a run lost nothing and no partition had two members."""
    return "error" not in row and not row["lost"] and not row["delivered by two at once"]


def table(found: Iterable[Mapping[str, Any]]) -> list[str]:
    """Rows of Markdown, one for each run, sorted by the killed process."""
    lines = [
        "| killed | seed | messages | lost | repeated | oldest at the kill | by two at once "
        "| longest pause | all idle |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(found, key=lambda row: (KINDS.index(row["kill"]), row["seed"])):
        if "error" in row:
            cells = [row["kill"], row["seed"], f"failed: {row['error']}", *[""] * 6]
        else:
            figures = [row[name] for name in _COLUMNS]
            cells = [row["kill"], row["seed"], f"{row['messages']:,}", *figures]
            cells[5] = f"{cells[5]} s" if row["repeated"] else ""
            cells[7:] = [f"{cell:.1f} s" for cell in figures[4:]]
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return lines


def main() -> int:
    """Do the runs that are not in the file. The exit status is 1 if a run in the file is not
    good."""
    parser = argparse.ArgumentParser(prog="tests.migrate.live_kills", description=__doc__)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--first", type=int, default=100, help="the first seed")
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--rate", type=int, default=200, help="messages a second")
    parser.add_argument("--out", type=Path, default=Path("build/live-kills.jsonl"))
    parser.add_argument("--table", action="store_true", help="print the file, play nothing")
    options = parser.parse_args()
    if not options.table:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        known = {row["seed"] for row in rows(options.out)}
        for seed in range(options.first, options.first + options.runs):
            if seed in known:
                continue
            row = play(seed, options.members, options.partitions, options.rate)
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            sys.stderr.write(f"seed {seed}, {row['kill']}: {'good' if good(row) else row}\n")
    found = rows(options.out)
    sys.stdout.writelines(f"{line}\n" for line in table(found))
    bad = sum(not good(row) for row in found)
    sys.stdout.write(f"{len(found)} runs, {bad} of them not good\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
