"""Plays many simulated runs of whole members on all cores: ``python -m tests.sim.all 0:10000``.

The names after the seeds are kinds of groups. The default is all of
``tests.sim.runs.run.COORDINATIONS`` except ``live`` and ``live-restored``. Each seed is played
with each kind. Prints each violation with the command that replays it; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from multiprocessing import Pool

from tests.sim.runs.result import EVENTS
from tests.sim.runs.run import COORDINATIONS, run

_CHUNK = 10


def play(which: tuple[int, str, int]) -> tuple[int, str]:
    """Play one run. Return the number of delivered records, and the verdict if a rule was
    broken."""
    seed, coordination, events = which
    result = run(seed, coordination=coordination, events=events)
    return result.deliveries, str(result) if result.violations else ""


def main(arguments: list[str]) -> int:
    """Play all runs."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.all", description=__doc__)
    parser.add_argument("seeds", nargs="?", default="0:10000", metavar="FIRST:COUNT")
    parser.add_argument("kinds", nargs="*", metavar="KIND")
    parser.add_argument("--events", type=int, default=EVENTS, help="number of troubles of a run")
    options = parser.parse_args(arguments)
    first, count = map(int, options.seeds.split(":"))
    kinds = options.kinds or [kind for kind in COORDINATIONS if not kind.startswith("live")]
    seeds = range(first, first + -(-count // len(kinds)))
    runs = [(seed, kind, options.events) for seed in seeds for kind in kinds][:count]
    begun, broken, records = time.monotonic(), 0, 0
    with Pool(os.cpu_count()) as pool:
        for done, (deliveries, verdict) in enumerate(pool.imap_unordered(play, runs, _CHUNK), 1):
            records += deliveries
            if verdict:
                broken += 1
                sys.stdout.write(f"{verdict}\n")
            if done % 500 == 0 or done == count:
                seconds = time.monotonic() - begun
                sys.stdout.write(
                    f"{done} runs of {options.events} troubles in {seconds:.0f} s: {broken} broke "
                    f"a rule, {records} records were delivered\n"
                )
                sys.stdout.flush()
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
