"""Run the benchmark: ``python -m tests.bench.speed [--only PART,..] [--rounds N] [--record]``.

It writes ``build/bench/speed.json`` after every part and on an interrupt, so an interrupted run
keeps its figures. The exit status is 1 if a ratio is much worse than the recorded one, and 130
after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from tests.bench.speed import page
from tests.bench.speed.parts import PARTS, now, seconds
from tests.bench.speed.readers import BUILD, prepare
from tests.bench.speed.results import RECORDED, Key, judged, summary, worse
from zkconsumer.servers import LocalCluster

FILE = BUILD / "speed.json"


COMPILERS = "-XX:TieredStopAtLevel=4"
"""Servers and JVM members of the tests use the JIT's level 1, which starts fast and runs slowly.
The last option of a name counts, and those in ``_JAVA_OPTIONS`` are read last."""


@contextmanager
def java_options(options: str) -> Iterator[None]:
    """Every JVM that starts within this context also gets these options."""
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
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        help="read this part of the messages, to see whether the bench works (0.05; default 1)",
    )
    parser.add_argument("--note", default="", help="a sentence about the run, for the page")
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := set(names) - set(PARTS):
        parser.error(f"--only: no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if options.rounds < 1:
        parser.error("--rounds: at least 1")
    if not 0.01 <= options.scale <= 1:
        parser.error("--scale: 0.01 to 1")
    if options.record and options.scale != 1:
        parser.error("--record: needs all messages; leave --scale out")
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
    rounds: dict[Key, list[float]] = {}
    begun = time.monotonic()
    try:
        with java_options(COMPILERS):
            say("build the wheel and the Java readers")
            prepare()
            for name in names:
                _measure(name, options, rounds, say)
                _write(run, rounds)
    except KeyboardInterrupt:
        _write(run, rounds)
        say(f"interrupted; figures so far: {FILE}")
        return 130
    say(f"{(time.monotonic() - begun) / 60:.1f} minutes; figures: {FILE}")
    sys.stdout.write(page.tables(run))
    missed = [target.name for target, _, good in judged(run["figures"]) if not good]
    sys.stdout.write(f"\ntargets missed: {'; '.join(missed) or 'none'}\n")
    compared = RECORDED.exists() and options.scale == 1
    bad = worse(run, json.loads(RECORDED.read_text())) if compared else []
    for line in bad:
        sys.stdout.write(f"worse than recorded: {line}\n")
    if options.record:
        RECORDED.parent.mkdir(exist_ok=True)
        RECORDED.write_text(FILE.read_text())
        page.write(run)
    return int(bool(bad))


def _measure(
    name: str,
    options: argparse.Namespace,
    rounds: dict[Key, list[float]],
    say: Callable[[str], None],
) -> None:
    """Run a part on its own servers, because a topic of 5,000 partitions slows a broker down."""
    say(f"{name}: start the servers")
    cluster = LocalCluster("3.9")
    try:
        with java_options("-Xmx1g"):  # for the servers only
            cluster.start()
        part, _ = PARTS[name]
        for *key, value in part(cluster, options.rounds, say, options.scale):
            rounds.setdefault((key[0], key[1], key[2]), []).append(value)
    finally:
        cluster.close()


def _write(run: dict[str, Any], rounds: dict[Key, list[float]]) -> None:
    run["figures"] = summary(rounds)
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(json.dumps(run, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
