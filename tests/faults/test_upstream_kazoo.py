"""Each kazoo fault that the connection works around still exists, and has a minimal case."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CASES = sorted((Path(__file__).parents[2] / "docs" / "upstream").glob("kazoo_*.py"))


@pytest.fixture(scope="module")
def running() -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Start all cases at once, because they mostly wait."""
    started = {
        path.name: subprocess.Popen(
            [sys.executable, str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for path in CASES
    }
    yield started
    for process in started.values():
        process.kill()
        process.communicate()


@pytest.mark.timeout(150)
@pytest.mark.parametrize("name", [path.name for path in CASES])
def test_kazoo_still_has_the_fault(running: dict[str, subprocess.Popen[str]], name: str) -> None:
    """The case shows the fault. If it no longer does, kazoo was fixed. Then remove the workaround
    from ``zkconsumer/zk/connection.py``, and the case from ``docs/upstream/kazoo.md``."""
    output, _ = running[name].communicate(timeout=120)
    assert running[name].returncode == 0, output
    assert output.startswith("shown: ")


def test_every_case_is_described() -> None:
    """The page and the folder have the same cases."""
    page = CASES[0].with_name("kazoo.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(kazoo_\w+\.py)`", page, re.MULTILINE)) == {p.name for p in CASES}
