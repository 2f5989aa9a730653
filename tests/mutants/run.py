# ruff: noqa: T201 - a command
"""Plants known bugs one at a time, and reports those that the tests named for them do not find.

``make mutants``, or ``.venv/bin/python -m tests.mutants.run [--only NAME] [--json]``. Each
``*.toml`` beside this file lists mutants: ``name``, ``file``, the exact text ``old`` (once in the
file) and what it becomes, ``new``, and ``tests``, of which at least one must fail.

The tests run in a copy of the tree. First they all run without a mutant: a test that fails then
finds nothing. Exit status: 0 when every mutant is found, 1 when one survives or is not as listed,
130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 180
"""Of one run of tests with a mutant; without one they all have ten times as long."""
_END_S = 20
"""Seconds in which interrupted tests may stop their servers."""


@dataclass(frozen=True)
class Mutant:
    """A planted bug and the tests that must find it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Result:
    """``outcome``: found, survived, timeout, or why the mutant is not as listed."""

    name: str
    file: str
    outcome: str
    seconds: float
    tests: tuple[str, ...]

    @property
    def good(self) -> bool:
        """Whether the tests noticed the mutant."""
        return self.outcome in ("found", "timeout")


def load() -> list[Mutant]:
    """All mutants, in the order of the files. Raises ValueError for a name that occurs twice."""
    mutants = [
        Mutant(**{**entry, "tests": tuple(entry["tests"])})
        for path in sorted(Path(__file__).parent.glob("*.toml"))
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    ]
    names = [mutant.name for mutant in mutants]
    if len(set(names)) < len(names):
        raise ValueError(
            f"named twice: {sorted({name for name in names if names.count(name) > 1})}"
        )
    return mutants


def copy_tree(to: Path) -> None:
    """Copy the files that git knows or would add."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, names.decode().split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def run_tests(tree: Path, tests: Iterable[str], timeout: float) -> int | None:
    """Pytest's exit status; ``None`` after a timeout."""
    path = os.pathsep.join(str(tree / folder) for folder in ("", "migrate", "spark"))
    arguments = ["-q", "-x", "-p", "no:cacheprovider", *tests]
    process = subprocess.Popen(
        [sys.executable, "-B", "-m", "pytest", *arguments],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)  # tests stop their servers
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def try_mutant(tree: Path, mutant: Mutant) -> str:
    """Plant the mutant, run its tests, take it out again; the outcome."""
    path = tree / mutant.file
    before = path.read_text(encoding="utf-8") if path.is_file() else ""
    if before.count(mutant.old) != 1:
        return f"stale: the old text is {before.count(mutant.old)} times in {mutant.file}"
    after = before.replace(mutant.old, mutant.new)
    try:
        compile(after, mutant.file, "exec")
    except SyntaxError as error:
        return f"invalid: {error}"
    try:
        path.write_text(after, encoding="utf-8")
        status = run_tests(tree, mutant.tests, TIMEOUT_S)
    finally:
        path.write_text(before, encoding="utf-8")
    outcomes = {None: "timeout", 0: "survived", 1: "found"}
    return outcomes.get(status, f"invalid: pytest ends with status {status}")


def main(arguments: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="may be repeated")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    options = parser.parse_args(arguments)
    mutants = load()
    unknown = set(options.only or ()) - {mutant.name for mutant in mutants}
    if unknown:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    chosen = [mutant for mutant in mutants if not options.only or mutant.name in options.only]
    if options.list:
        print("\n".join(mutant.name for mutant in chosen))
        return 0
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        every = sorted({test for mutant in chosen for test in mutant.tests})
        status = run_tests(tree, every, 10 * TIMEOUT_S)
        if status != 0:
            print(f"error: without a mutant pytest ends with status {status}", file=sys.stderr)
            return 1
        for number, mutant in enumerate(chosen, 1):
            began = time.monotonic()
            outcome = try_mutant(tree, mutant)
            seconds = round(time.monotonic() - began, 1)
            results.append(Result(mutant.name, mutant.file, outcome, seconds, mutant.tests))
            line = f"{number:3}/{len(chosen)} {seconds:6.1f} s  {mutant.name}: {outcome}"
            print(line, file=sys.stderr, flush=True)
    bad = [result for result in results if not result.good]
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
    else:
        print(f"{len(results) - len(bad)} of {len(results)} mutants were found")
        for result in bad:
            print(f"{result.name} ({result.file}): {result.outcome}")
    return 1 if bad else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
