"""Runs the bench: ``python -m tests.bench.speed [--only PART,..] [--rounds N] [--record]``.

Writes ``build/bench/speed.json`` after every round, so that a run that is ended early leaves what
it has. Exit status 1 when a ratio is much worse than the recorded one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from tests.bench.speed import page
from tests.bench.speed.parts import PARTS, now, seconds
from tests.bench.speed.readers import BUILD, prepare
from tests.bench.speed.results import RECORDED, Key, judged, summary, worse
from zkconsumer.testing import LocalCluster

FILE = BUILD / "speed.json"


@contextmanager
def heap(options: str) -> Iterator[None]:
    """Give the servers that start inside it more memory than those of tests have."""
    before = os.environ.get("_JAVA_OPTIONS")
    os.environ["_JAVA_OPTIONS"] = f"{before or ''} {options}".strip()
    try:
        yield
    finally:
        del os.environ["_JAVA_OPTIONS"]
        if before is not None:
            os.environ["_JAVA_OPTIONS"] = before


def main() -> int:
    """Measure, print, compare."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.speed",
        description="Measure zkconsumer beside other clients, in turns, on real servers.",
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each part (default 5)")
    parser.add_argument(
        "--only", default=",".join(PARTS), help=f"parts, by default {','.join(PARTS)}"
    )
    parser.add_argument(
        "--record", action="store_true", help="keep the figures, for the page and later checks"
    )
    parser.add_argument("--note", default="", help="a sentence about the run, for the page")
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := set(names) - set(PARTS):
        parser.error(f"--only: no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if options.rounds < 1:
        parser.error("--rounds: at least 1")
    if options.record and names != list(PARTS):
        parser.error("--record: needs all parts; leave --only out")

    def say(text: str) -> None:
        sys.stderr.write(f"{now()} {text}\n")

    say(f"this takes about {seconds(names, options.rounds) / 60:.0f} minutes")
    run: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "rounds": options.rounds,
        "load": os.getloadavg()[0],
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        "note": options.note,
        "figures": [],
    }
    prepare()
    rounds: dict[Key, list[float]] = {}
    begun = time.monotonic()
    for name in names:
        # Servers of their own for each part: a topic of 5,000 partitions costs a broker something.
        cluster = LocalCluster("3.9")
        with heap("-Xmx1g"):  # of the servers alone
            cluster.start()
        try:
            for case, reader, figure, value in PARTS[name][0](cluster, options.rounds, say):
                rounds.setdefault((case, reader, figure), []).append(value)
        finally:
            cluster.close()
        run["figures"] = summary(rounds)
        FILE.write_text(json.dumps(run, indent=1) + "\n")
    say(f"{(time.monotonic() - begun) / 60:.1f} minutes; figures: {FILE}")
    sys.stdout.write(page.tables(run))
    missed = [target.name for target, _, good in judged(run["figures"]) if not good]
    sys.stdout.write(f"\ntargets missed: {'; '.join(missed) or 'none'}\n")
    bad = worse(run, json.loads(RECORDED.read_text())) if RECORDED.exists() else []
    for line in bad:
        sys.stdout.write(f"worse than recorded: {line}\n")
    if options.record:
        RECORDED.write_text(FILE.read_text())
        page.write(run)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
