# ruff: noqa: T201 - a command
"""Shows a bug of the past on the build that had it, or lists these bugs.

``python -m tests.record [NAME ...]``, or ``make repro-NAME`` and ``make repro``. ``bugs.toml`` has
the bugs. The commit before the mend is unpacked into a temporary folder with the tests of the
mend. The bug is shown if each of its tests fails there for the right reason, in at most ``tries``
runs, and passes here. Exit status: 0 if all named bugs were shown, 1 if not, 2 for an unknown name,
130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "tests/record/README.md"
BEGIN, END = "<!-- record: python -m tests.record --page -->", "<!-- end of record -->"
OLD_BUILDS: Final = ROOT / "tests/repo/old_builds.py"
"""Tests that old builds get in addition to those of the mend."""
PACKAGES: Final = ROOT / "build/repro"
"""Distributions that only old builds need."""
TIMEOUT_S: Final = 300
"""Seconds for one run of a bug's tests."""
_RIGHT: Final = ("AssertionError", "assert ", "Failed: DID NOT RAISE", "Failed: Timeout")
"""How the report of a right failure begins, unless the bug names another text."""


class Found(StrEnum):
    """Who found a bug, in the words of the page."""

    SIMULATOR = "simulator"
    MODEL = "model"
    RANDOM = "random test"
    SOAK = "soak"
    REVIEW = "review"
    TRIAL = "trial on real servers"
    REPORT = "public bug report"
    UNKNOWN = "not recorded"


@dataclass(frozen=True)
class Bug:
    """A bug that was mended.

    ``mend`` is the commit, ``tests`` are pytest's ids in it, and ``now`` those of today. ``shows``
    is a text in the report of each failure, for a failure that is not an assertion. ``shown`` is
    the day on which the bug was last shown.
    """

    name: str
    saw: str
    found: Found
    mend: str
    tests: tuple[str, ...]
    shown: str
    now: tuple[str, ...] = ()
    shows: str = ""
    tries: int = 1

    @property
    def today(self) -> tuple[str, ...]:
        """The tests that find the bug now."""
        return self.now or self.tests


class NotShownError(Exception):
    """The bug was not shown, with the reason."""


def load() -> list[Bug]:
    """Return all bugs, in the order of the file."""
    text = (Path(__file__).parent / "bugs.toml").read_text(encoding="utf-8")
    return [_bug(entry) for entry in tomllib.loads(text)["bug"]]


def _bug(entry: dict[str, Any]) -> Bug:
    lists = {key: tuple(entry[key]) for key in ("tests", "now") if key in entry}
    return Bug(**{**entry, **lists, "found": Found(entry["found"]), "shown": str(entry["shown"])})


def missing(commits: Iterable[str]) -> str:
    """Return why the history lacks one of the commits or its parent; empty: it has all."""
    if not (ROOT / ".git").exists():
        return "the git history is missing here: clone the repository"
    for commit in commits:
        known = subprocess.run(
            ["git", "cat-file", "-e", f"{commit}^^{{commit}}"], cwd=ROOT, capture_output=True
        )
        if known.returncode:
            return f"{commit} or its parent is not in this clone: git fetch --unshallow"
    return ""


def show(bug: Bug) -> int:
    """Show a bug. Return how many tries it took. Raises NotShownError."""
    why = missing([bug.mend])
    if why:
        raise NotShownError(why)
    with tempfile.TemporaryDirectory(prefix=f"repro-{bug.name}-") as folder:
        old = Path(folder)
        _unpack(old, f"{bug.mend}^")
        _unpack(old, bug.mend, "tests")
        shutil.copy2(OLD_BUILDS, old / "tests/repo")
        _install(old)
        tries = 1
        while not all((failures := _run(old, bug.tests)).values()):
            if tries == bug.tries:
                raise NotShownError(f"a test passed before {bug.mend}, in {tries} tries")
            tries += 1
        check(bug, failures)
        failed = [test for test, text in _run(ROOT, bug.today).items() if text]
        if failed:
            raise NotShownError(f"these tests fail now: {', '.join(failed)}")
        return tries


def check(bug: Bug, failures: Mapping[str, str]) -> None:
    """Check that tests failed for the right reason. Raises NotShownError."""
    for test, text in failures.items():
        if bug.shows not in text if bug.shows else not text.startswith(_RIGHT):
            raise NotShownError(f"{test} failed for another reason before {bug.mend}: {text}")


def _unpack(folder: Path, commit: str, *paths: str) -> None:
    archive = subprocess.run(
        ["git", "archive", commit, *paths], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")


def _install(tree: Path) -> None:
    """Install what the old build depends on and today's environment lacks, in a folder of its
    own."""
    project = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for requirement in project["dependencies"]:
        name = re.match(r"[\w.-]+", requirement)
        assert name is not None
        try:
            distribution(name[0])
        except PackageNotFoundError:
            if list(PACKAGES.glob(f"{name[0].replace('-', '_')}-*.dist-info")):
                continue
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(PACKAGES)]
            if subprocess.run([*pip, requirement]).returncode:
                raise NotShownError(f"pip could not install {requirement}") from None


def _run(tree: Path, tests: Sequence[str]) -> dict[str, str]:
    """Run tests in a tree. Return their failures by name; empty: passed. Raises NotShownError if
    they could not run."""
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        path = os.pathsep.join(str(tree / package) for package in ("", "migrate", "spark"))
        path += os.pathsep + str(PACKAGES)
        options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--junitxml={report.name}"]
        try:
            run = subprocess.run(
                [sys.executable, "-m", "pytest", *options, *tests],
                cwd=tree,
                env=os.environ | {"PYTHONPATH": path, "ZKC_TIMES": ""},  # not a row of CI's table
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            raise NotShownError(f"the tests in {tree} ran for {TIMEOUT_S} s") from None
        if run.returncode not in (0, 1):
            raise NotShownError(f"pytest ended with status {run.returncode}: {run.stdout[-2000:]}")
        cases = list(ElementTree.parse(report.name).iter("testcase"))
    failures = {}
    for case in cases:
        if case.find("error") is not None or case.find("skipped") is not None:
            raise NotShownError(f"{case.get('name')} did not run: {run.stdout[-2000:]}")
        failure = case.find("failure")
        text = "" if failure is None else failure.get("message", "") or "a failure without text"
        failures[f"{case.get('classname')}.{case.get('name')}"] = text
    return failures


def table(bugs: Sequence[Bug]) -> list[str]:
    """Return the page's table, and how many bugs each harness found."""
    lines = ["| What a user saw | Found by | Seen now by | Name |", "|---|---|---|---|"]
    for bug in bugs:
        file = bug.today[0].partition("::")[0]
        lines.append(f"| {bug.saw} | {bug.found} | `{file}` | `{bug.name}` |")
    counts = ", ".join(
        f"{found} {n}" for found, n in Counter(bug.found for bug in bugs).most_common()
    )
    return [*lines, "", f"Found by: {counts}. Last shown: {min(bug.shown for bug in bugs)}."]


def write_page() -> None:
    """Write the table into the page, between its marks."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    body = "\n".join([BEGIN, "", *table(load()), "", END])
    PAGE.write_text(head + body + rest.partition(END)[2], encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="make repro", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which bugs (none: list all)")
    parser.add_argument("--page", action="store_true", help="write the table into the page")
    options = parser.parse_args(arguments)
    names = options.names
    if options.page:
        write_page()
        return 0
    bugs = {bug.name: bug for bug in load()}
    if not names:
        for bug in bugs.values():
            print(f"{bug.name:28} {bug.shown}  {bug.found:22} {bug.saw}")
    unknown = [name for name in names if name not in bugs]
    if unknown:
        parser.error(f"no such bug: {', '.join(unknown)}; make repro lists them")
    status = 0
    for name in names:
        began = time.monotonic()
        try:
            tries = show(bugs[name])
        except NotShownError as error:
            print(f"error: {name} was not shown: {error}", file=sys.stderr)
            status = 1
        else:
            seconds = time.monotonic() - began
            print(f"{name}: shown before {bugs[name].mend} in try {tries}, {seconds:.1f} s")
    return status


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also in the background
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
