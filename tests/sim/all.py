"""Plays many simulated runs of whole members on all cores: ``python -m tests.sim.all 0:10000``.

The names after the seeds are kinds of groups. The default is all of
``zkconsumer.sim.runs.COORDINATIONS`` except ``live``. Each seed is played with each kind. Prints
each violation with the command that replays it; the exit status is then 1.
"""

from __future__ import annotations

import os
import sys
import time
from multiprocessing import Pool

from zkconsumer.sim.result import EVENTS
from zkconsumer.sim.runs import COORDINATIONS, run

_CHUNK = 10


def play(which: tuple[int, str]) -> tuple[int, str]:
    """Play one run. Return the number of delivered records, and the verdict if a rule was
    broken."""
    seed, coordination = which
    result = run(seed, coordination=coordination)
    return result.deliveries, str(result) if result.violations else ""


def main(arguments: list[str]) -> int:
    """Play all runs."""
    first, count = map(int, (arguments or ["0:10000"])[0].split(":"))
    kinds = arguments[1:] or [kind for kind in COORDINATIONS if kind != "live"]
    seeds = range(first, first + -(-count // len(kinds)))
    runs = [(seed, kind) for seed in seeds for kind in kinds][:count]
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
                    f"{done} runs of {EVENTS} troubles in {seconds:.0f} s: {broken} broke a rule, "
                    f"{records} records were delivered\n"
                )
                sys.stdout.flush()
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
