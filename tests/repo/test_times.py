"""The table at the end of CI (``tests/times.py``)."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import times


def test_the_table_has_a_row_for_each_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of one target are added up, and the time of its command takes precedence."""
    path = tmp_path / "times.jsonl"
    monkeypatch.setenv("ZKC_TIMES", str(path))
    times.record([], 0.0)  # inside a test: is not recorded
    assert not path.exists()
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    for target, begin in (("test", 0.0), ("spark", 0.0), ("spark", 0.0)):
        monkeypatch.setenv("ZKC_TARGET", target)
        monkeypatch.setattr(times.time, "time", lambda: 40.0)
        monkeypatch.setattr(times.os, "times", lambda: (1.0, 2.0, 3.0, 4.0, 99.0))
        reports = [
            SimpleNamespace(nodeid="tests/a.py::test_x", duration=3.0),
            SimpleNamespace(nodeid="tests/b.py::test_y", duration=2.0),
            SimpleNamespace(nodeid="tests/b.py::test_y", duration=2.0),
        ]
        times.record(reports, begin)
    with path.open("a") as output:
        output.write(json.dumps({"target": "test", "seconds": 50}) + "\n")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line.split() for line in times.table(lines).splitlines()] == [
        ["target", "seconds", "CPU", "tests", "slowest", "file"],
        ["test", "50", "10", "2", "tests/b.py", "(4", "s)"],
        ["spark", "80", "20", "4", "tests/b.py", "(4", "s)"],
    ]
