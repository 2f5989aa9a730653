"""When ``zkaudit stream`` writes the report."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from zkaudit.cli import run
from zkaudit.commands.stream import Report
from zkaudit.tables.catalog import SCHEMA_VERSION


class Clock:
    """Seconds, which pass while the report is written."""

    def __init__(self, out: Path) -> None:
        self.now = 0.0
        self.takes = 6.0
        self.page = out / "report.html"
        self.written: list[float] = []

    def write(self) -> Path:
        """Write the report."""
        self.written.append(self.now)
        self.now += self.takes
        self.page.touch()
        return self.page


def test_the_report_takes_at_most_a_tenth_of_the_time(tmp_path: Path) -> None:
    """A changed report is written as soon as nine times as long as the last one took has passed,
    also after a round without anything new. An unchanged one is not written, even at the end."""
    clock = Clock(tmp_path)
    report = Report(tmp_path, clock.write, lambda: clock.now)
    report.update()
    assert clock.written == []
    for clock.now in range(100, 391, 10):
        report.behind = report.behind or clock.now <= 320
        report.update()
    assert clock.written == [100, 160, 220, 280, 340]
    report.update(now=True)
    assert clock.written[5:] == []
    report.behind = True
    report.update()
    assert clock.written[5:] == []
    report.update(now=True)
    assert clock.written[5:] == [clock.now - clock.takes]


def test_a_report_that_an_earlier_process_left_behind_is_written(tmp_path: Path) -> None:
    """Its summary is newer than the report, or the report is missing."""
    summary, page = tmp_path / "summary.json", tmp_path / "report.html"
    summary.touch()
    clock = Clock(tmp_path)
    for older, behind in ((None, True), (1, True), (0, False)):
        if older is not None:
            page.touch()
            at = summary.stat().st_mtime_ns - older * 1_000_000_000
            os.utime(page, ns=(at, at))
        clock.written.clear()
        Report(tmp_path, clock.write, lambda: clock.now).update()
        assert bool(clock.written) is behind


@pytest.mark.parametrize(
    ("fail_on", "kinds", "rounds", "status"),
    [
        (None, ["high"], 3, 0),
        ("high", ["low", "high"], 2, 3),
        ("critical", ["high"], 3, 0),
        ("critical", ["not covered"], 1, 3),
    ],
)
def test_the_stream_ends_with_the_first_bad_round(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fail_on: str | None,
    kinds: list[str],
    rounds: int,
    status: int,
) -> None:
    """``--fail-on`` is for cron and for alerts. A round without anything new counts as well."""
    done = []

    def stream(_: object, options: Any, every: float, stop: Any, *more: Any) -> None:
        after_round = more[-1]
        for number in range(3):
            kind = kinds[min(number, len(kinds) - 1)]
            severity = "high" if kind == "not covered" else kind
            row = {"severity": severity, "kind": kind, "count": 1}
            summary = {"findings": [row], "schema_version": SCHEMA_VERSION}
            (Path(options.out) / "summary.json").write_text(json.dumps(summary))
            done.append(number)
            after_round()
            if stop.wait(0):
                return

    monkeypatch.setattr("zkaudit.commands.stream.spark_session", lambda *_: nullcontext())
    monkeypatch.setattr("zkaudit.job.stream.stream", stream)
    monkeypatch.setattr("zkaudit.report.page.write", lambda *_: tmp_path / "report.html")
    monkeypatch.setattr("signal.signal", lambda *_: None)
    given = ["--zookeeper-logs", "zk1", "--out", str(tmp_path)]
    chosen = [] if fail_on is None else ["--fail-on", fail_on]
    assert run(["stream", *given, *chosen]) == status
    assert len(done) == rounds
