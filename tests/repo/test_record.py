"""The record of mended bugs fits the history and the tests, and one bug is shown."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from tests.record import __main__ as record

BUGS = {bug.name: bug for bug in record.load()}
FAST = "live-lowered"
"""A bug that is shown in a few seconds, and whose build needs nothing else."""


def test_every_bug_has_its_tests() -> None:
    """Names are unique and fit a target of ``make``. The tests of today exist."""
    assert len(BUGS) == len(record.load()) >= 15
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in BUGS)
    for bug in BUGS.values():
        assert date(2026, 11, 28) <= date.fromisoformat(bug.shown)
        for test in bug.today:
            path, *names = test.partition("[")[0].split("::")
            text = (record.ROOT / path).read_text(encoding="utf-8")
            assert all(f"def {name}(" in text for name in names), test


def test_every_commit_is_in_the_history() -> None:
    """The mends and their parents are commits that ``HEAD`` contains."""
    _needs_history()
    for bug in BUGS.values():
        known = ["git", "merge-base", "--is-ancestor", bug.mend, "HEAD"]
        assert subprocess.run(known, cwd=record.ROOT).returncode == 0, bug.name


def test_a_bug_is_shown() -> None:
    """On the build before the mend its tests fail, and here they pass."""
    _needs_history()
    assert record.show(BUGS[FAST]) == 1


@pytest.mark.parametrize(
    ("runs", "fault"),
    [
        ([{"old": "assert 1 == 2", "other": ""}] * 2, "a test passed before .* in 2 tries"),
        ([{"old": "assert 1 == 2"}, {"now": "assert 1 == 2"}], "these tests fail now: now"),
    ],
)
def test_a_bug_that_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, runs: list[dict[str, str]], fault: str
) -> None:
    """Its tests pass on the old build in each try, or fail today."""
    _needs_history()
    results = iter(runs)
    monkeypatch.setattr(record, "_run", lambda *_: next(results))
    with pytest.raises(record.NotShownError, match=fault):
        record.show(replace(BUGS[FAST], tries=2))


@pytest.mark.parametrize(
    ("shows", "text"), [("", "ImportError: no name"), ("lost", "assert 1 == 2")]
)
def test_a_failure_for_another_reason_shows_nothing(shows: str, text: str) -> None:
    """An error that is no assertion, and an assertion without the text that the bug names."""
    bug = replace(BUGS[FAST], shows=shows)
    record.check(bug, {"test": "assert it is lost"})
    with pytest.raises(record.NotShownError, match="failed for another reason"):
        record.check(bug, {"test": text})


def test_what_cannot_be_shown_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names that do not exist, an archive of the sources, and commits that are missing."""
    with pytest.raises(SystemExit) as ended:
        record.main(["no-such-bug"])
    assert ended.value.code == 2
    assert "no such bug: no-such-bug; make repro lists them" in capsys.readouterr().err
    _needs_history()
    assert "git fetch --unshallow" in record.missing(["0000000"])
    monkeypatch.setattr(record, "ROOT", tmp_path)
    assert record.main([FAST]) == 1
    assert "the git history is missing here: clone the repository" in capsys.readouterr().err


def test_the_page_has_the_table() -> None:
    """The table of the page is up to date."""
    page = record.PAGE.read_text(encoding="utf-8")
    assert "\n".join(record.table(list(BUGS.values()))) in page, "run python -m tests.record --page"


def _needs_history() -> None:
    why = record.missing(bug.mend for bug in BUGS.values())
    if why:
        pytest.skip(why)
