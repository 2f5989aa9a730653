# ruff: noqa: T201 - a command
"""Plants known bugs one at a time, and reports those that the tests named for them do not find.

``make mutants``, or ``.venv/bin/python -m tests.mutants.run [--only NAME] [--json]``. Each
``*.toml`` in this folder lists mutants: ``name``, ``file``, the exact text ``old`` (once in the
file), its replacement ``new``, and ``tests``, of which at least one must fail.

The tests run in copies of the tree, ``--jobs`` at a time. First they all run without a mutant,
because a test that fails then proves nothing. Results are printed as they arrive, then a table by
part of the project. Exit status: 0 if every mutant is found, 1 if one survives or does not fit the
code, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
TIMEOUT_S: Final = 600
"""Seconds for the tests of one mutant. The run without a mutant has ten times as long."""
_TEST_TIMEOUT_S: Final = 120
"""Seconds for one test with a mutant. A test that hangs has found it."""
_END_S: Final = 20
"""Seconds that interrupted tests have for stopping their servers."""
_WITHOUT: Final = ("cacheprovider", "hypothesispytest", "xdist")
"""Pytest plugins that are not loaded. Hypothesis's takes a second to load."""
_PACKAGES: Final = ("zkconsumer", "migrate", "spark")
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (tests/\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Mutant:
    """A planted bug, and the tests that must find it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def part(self) -> str:
        """The part of the project that the mutant is in."""
        folders = Path(self.file).parts[:-1]
        return "/".join(folders[:2])


@dataclass(frozen=True)
class Result:
    """``outcome``: found, survived, timeout, or why the mutant does not fit the code.

    ``by`` is the test that failed.
    """

    name: str
    file: str
    outcome: str
    seconds: float
    tests: tuple[str, ...]
    by: str = ""

    @property
    def good(self) -> bool:
        """Whether a test noticed the mutant."""
        return self.outcome in ("found", "timeout")


class Run(NamedTuple):
    """Pytest's exit status (``None`` after a timeout) and output."""

    status: int | None
    output: str


def load() -> list[Mutant]:
    """Return all mutants, in the order of the files. Raises ValueError for a name that occurs
    twice."""
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


class Trees:
    """Copies of the tree, one for each job, and the tests that run in them. Any thread may use it.

    ``stop`` ends all running tests. ``compiled`` compiles the copies first, which pays off for more
    than a handful of mutants.
    """

    def __init__(self, folder: Path, jobs: int, *, compiled: bool = True) -> None:
        self.jobs = jobs
        self.stop = threading.Event()
        self._free: queue.SimpleQueue[Path] = queue.SimpleQueue()
        names = _files()
        for number in range(jobs):
            tree = folder / str(number)
            for name in names:
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name)
            # Compiled once. Hashes, not times, show which file has a mutant.
            compiling = ["compileall", "-q", "--invalidation-mode", "checked-hash", *_PACKAGES]
            if compiled:
                subprocess.run([sys.executable, "-m", *compiling], cwd=tree, check=True)
            self._free.put(tree)

    @contextmanager
    def one(self) -> Iterator[Path]:
        """Return a copy that no other thread uses."""
        tree = self._free.get()
        try:
            yield tree
        finally:
            self._free.put(tree)

    def run(self, tree: Path, tests: Iterable[str], timeout: float, *options: str) -> Run:
        """Run pytest in a copy."""
        path = os.pathsep.join(str(tree / folder) for folder in ("", "migrate", "spark"))
        without = [part for name in _WITHOUT for part in ("-p", f"no:{name}")]
        arguments = ["-q", "-x", "--tb=short", *without, *options, *tests]
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *arguments],
                cwd=tree,
                env=os.environ | {"PYTHONPATH": path},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            deadline = time.monotonic() + timeout
            status = process.poll()
            while status is None and time.monotonic() < deadline and not self.stop.is_set():
                try:
                    status = process.wait(0.2)
                except subprocess.TimeoutExpired:
                    continue
            if status is None:
                process.send_signal(signal.SIGINT)  # tests stop their servers
                try:
                    process.wait(_END_S)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            output.seek(0)
            return Run(status, output.read().decode(errors="replace"))


def _files() -> list[str]:
    """Return the files that git knows or would add."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout
    return [name for name in names.decode().split("\0") if name and (ROOT / name).is_file()]


def try_mutant(trees: Trees, mutant: Mutant) -> Result:
    """Plant the mutant, run its tests, and remove it again."""
    began = time.monotonic()
    with trees.one() as tree:
        outcome, by = _plant(trees, tree, mutant)
    seconds = round(time.monotonic() - began, 1)
    return Result(mutant.name, mutant.file, outcome, seconds, mutant.tests, by)


def _plant(trees: Trees, tree: Path, mutant: Mutant) -> tuple[str, str]:
    path = tree / mutant.file
    before = path.read_text(encoding="utf-8") if path.is_file() else ""
    if before.count(mutant.old) != 1:
        return f"stale: the old text is {before.count(mutant.old)} times in {mutant.file}", ""
    after = before.replace(mutant.old, mutant.new)
    try:
        compile(after, mutant.file, "exec")
    except SyntaxError as error:
        return f"invalid: {error}", ""
    try:
        path.write_text(after, encoding="utf-8")
        run = trees.run(tree, mutant.tests, TIMEOUT_S, f"--timeout={_TEST_TIMEOUT_S}")
    finally:
        path.write_text(before, encoding="utf-8")
    found = _FAILED.search(run.output)
    outcomes = {None: "timeout", 0: "survived", 1: "found"}
    outcome = outcomes.get(run.status, f"invalid: pytest ends with status {run.status}")
    if outcome == "found" and "Failed: Timeout (>" in run.output:
        outcome = "timeout"
    return outcome, found[1] if found else ""


def try_without(trees: Trees, mutants: Iterable[Mutant]) -> list[str]:
    """Run all tests without a mutant. Return pytest's output of those that did not pass."""
    every = sorted({test for mutant in mutants for test in mutant.tests})
    files = sorted({test.partition("::")[0] for test in every})
    shares = [set(files[number :: trees.jobs]) for number in range(trees.jobs)]

    def one(share: set[str]) -> str:
        tests = [test for test in every if test.partition("::")[0] in share]
        if not tests:
            return ""
        with trees.one() as tree:
            run = trees.run(tree, tests, 10 * TIMEOUT_S)
        return "" if run.status == 0 else f"{run.output}\npytest ends with status {run.status}"

    with ThreadPoolExecutor(trees.jobs) as pool, _stopping(trees):
        return list(filter(None, pool.map(one, shares)))


@contextmanager
def _stopping(trees: Trees) -> Iterator[None]:
    """End all tests if the body raises an exception, such as Ctrl-C."""
    try:
        yield
    except BaseException:
        trees.stop.set()
        raise


def try_all(
    trees: Trees, mutants: Sequence[Mutant], on_result: Callable[[Result], object]
) -> list[Result]:
    """Try each mutant. Return the results in the order of the list."""
    with ThreadPoolExecutor(trees.jobs) as pool, _stopping(trees):
        under_way: list[Future[Result]] = [
            pool.submit(try_mutant, trees, mutant) for mutant in mutants
        ]
        try:
            for future in as_completed(under_way):
                on_result(future.result())
        except BaseException:
            for future in under_way:
                future.cancel()
            raise
        return [future.result() for future in under_way]


def table(mutants: Sequence[Mutant], results: Sequence[Result]) -> str:
    """Return how many mutants of each part were found."""
    parts = [mutant.part for mutant in mutants]
    found = Counter(p for p, result in zip(parts, results, strict=True) if result.good)
    seconds: Counter[str] = Counter()
    for part, result in zip(parts, results, strict=True):
        seconds[part] += round(result.seconds)
    lines = [f"{'part':28} {'mutants':>8} {'found':>6} {'seconds':>8}"]
    for part, count in sorted(Counter(parts).items()):
        lines.append(f"{part:28} {count:8} {found[part]:6} {seconds[part]:8}")
    total = sum(seconds.values())
    lines.append(f"{'all':28} {len(parts):8} {found.total():6} {total:8}")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="may be repeated")
    parser.add_argument(
        "--file", action="append", metavar="TEXT", help="files with this in their path; repeatable"
    )
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="at a time (default: 2)")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    options = parser.parse_args(arguments)
    mutants = load()
    unknown = set(options.only or ()) - {mutant.name for mutant in mutants}
    if unknown:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    chosen = [
        mutant
        for mutant in mutants
        if (not options.only or mutant.name in options.only)
        and (not options.file or any(text in mutant.file for text in options.file))
    ]
    if options.list:
        print("\n".join(mutant.name for mutant in chosen))
        return 0
    began = time.monotonic()
    done = 0

    def show(result: Result) -> None:
        nonlocal done
        done += 1
        by = f" by {result.by}" if result.by else ""
        line = (
            f"{done:3}/{len(chosen)} {result.seconds:6.1f} s  {result.name}: {result.outcome}{by}"
        )
        print(line, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees = Trees(Path(folder), max(1, options.jobs))
        faults = try_without(trees, chosen)
        if faults:
            print(*faults, "error: these tests fail without a mutant", sep="\n", file=sys.stderr)
            return 1
        passed = f"the tests pass without a mutant, in {time.monotonic() - began:.0f} s"
        print(passed, file=sys.stderr, flush=True)
        results = try_all(trees, chosen, show)
    bad = [result for result in results if not result.good]
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
    shown = sys.stderr if options.json else sys.stdout
    print(table(chosen, results), file=shown)
    late = sum(result.outcome == "timeout" for result in results)
    summary = f"{len(results) - len(bad)} of {len(results)} mutants were found"
    took = f"in {time.monotonic() - began:.0f} s"
    print(f"{summary}, {late} of them by a test that hung, {took}", file=shown)
    for result in bad:
        print(f"{result.name} ({result.file}): {result.outcome}", file=shown)
    return 1 if bad else 0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also in the background
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
