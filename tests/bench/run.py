"""Run all benchmark modules: ``python -m tests.bench.run [--rounds N] [--json] [NAME ...]``.

A benchmark module is a file ``bench_<name>.py`` in this folder. Its ``run(rounds)`` yields (case,
figure, value of each round). The exit status is 1 if the median of a ratio is below 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).parent


def load(path: Path) -> ModuleType:
    """Import a file that is not part of a package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def main() -> int:
    """Run the chosen modules and print a table, or JSON."""
    parser = argparse.ArgumentParser(description="Measure zkconsumer against real servers.")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each case (default 5)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("names", nargs="*", help="benches to run, such as throughput")
    options = parser.parse_args()
    known = {path.stem.removeprefix("bench_"): path for path in sorted(HERE.glob("bench_*.py"))}
    unknown = set(options.names) - set(known)
    if unknown or options.rounds < 1:
        parser.error(
            f"no such bench: {', '.join(sorted(unknown))}" if unknown else "--rounds: at least 1"
        )
    results = []
    slower = False
    if not options.json:
        sys.stdout.write(f"{'case':36}{'figure':20}{'min':>12}{'median':>12}{'max':>12}\n")
    for name in options.names or known:
        for case, figure, values in load(known[name]).run(options.rounds):
            low, median, high = min(values), statistics.median(values), max(values)
            slower |= figure == "ratio" and median < 1
            results.append(
                {"bench": name, "case": case, "figure": figure, "rounds": values}
                | {"min": low, "median": median, "max": high}
            )
            if not options.json:
                digits = 2 if high < 100 else 0
                numbers = "".join(f"{value:12,.{digits}f}" for value in (low, median, high))
                sys.stdout.write(f"{case:36}{figure:20}{numbers}\n")
                sys.stdout.flush()
    if options.json:
        sys.stdout.write(json.dumps(results, indent=2) + "\n")
    return int(slower)


if __name__ == "__main__":
    sys.exit(main())
