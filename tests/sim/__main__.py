"""Plays one simulated run and prints its verdict: ``python -m tests.sim --seed 17``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.sim.runs.result import EVENTS
from tests.sim.runs.run import COORDINATIONS, KINDS, run


def _count(text: str) -> int:
    number = int(text) if text.isdecimal() else -1
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the run; return 1 if a rule was broken. Exits with 2 for wrong arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim",
        description="Simulate a group of whole members under random troubles, and judge it.",
    )
    parser.add_argument("--coordination", choices=KINDS, default=COORDINATIONS[0])
    parser.add_argument("--seed", type=_count, required=True, help="decides all that is random")
    parser.add_argument(
        "--events", type=_count, default=EVENTS, help="number of troubles (default: %(default)s)"
    )
    parser.add_argument(
        "--legacy", action="store_true", help="one member of exact legacy behaviour (ZooKeeper)"
    )
    parser.add_argument("--history", action="store_true", help="print all that happens")
    given = parser.parse_args(arguments)
    if given.legacy and given.coordination != "zookeeper":
        parser.error("--legacy needs --coordination zookeeper")
    result = run(
        given.seed,
        coordination=given.coordination,
        events=given.events,
        legacy=given.legacy,
        record=given.history,
    )
    sys.stdout.writelines(f"{line}\n" for line in [*(result.history or ()), result])
    return 1 if result.violations else 0


if __name__ == "__main__":
    sys.exit(main())
