"""The commands ``simulate`` and ``herd``, and their report in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from zkconsumer.journal import read_journal
from zkconsumer.report import herd_report
from zkconsumer.report.herd_page import COLUMNS, figure

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("zkconsumer"), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


class _Page(HTMLParser):
    """Cells of the table of figures, the JSON, and every element of the page."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, str]] = []
        self.json = ""
        self.hidden = 0
        self.elements: list[str] = []
        self._column: str | None = None
        self._in_data = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.elements.append(tag)
        self.hidden += tag == "section" and "hidden" in given
        self._in_data = given.get("id") == "data"
        if tag == "tr" and "data-label" in given:
            self.rows.append({"label": given["data-label"] or ""})
        self._column = given.get("data-column") if tag == "td" else None

    def handle_endtag(self, tag: str) -> None:
        self._column, self._in_data = None, False

    def handle_data(self, data: str) -> None:
        if self._column is not None:
            self.rows[-1][self._column] = data
        elif self._in_data:
            self.json += data


def _in_browser(page: Path, tmp_path: Path) -> tuple[_Page, str]:
    """The document after its scripts have run, and the messages on the browser's console."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    assert browser is not None, "no Chromium: install chromium"
    shown = subprocess.run(
        [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--enable-logging=stderr",
            "--virtual-time-budget=2000",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    parsed = _Page()
    parsed.feed(shown.stdout)
    console = [line for line in shown.stderr.splitlines() if "CONSOLE" in line]
    return parsed, "\n".join(console)


def test_the_report_in_a_browser_shows_the_figures_of_the_json(tmp_path: Path) -> None:
    """The page has no script error. Each number on the page equals the JSON's. Only one size is
    shown in detail."""
    page = tmp_path / "report.html"
    done = _run(
        "simulate", "--members", "5,10", "--partitions", "20", "--json", "--html", str(page)
    )
    assert done.returncode == 0, done.stderr
    runs: list[dict[str, Any]] = json.loads(done.stdout)
    parsed, console = _in_browser(page, tmp_path)
    assert console == ""
    assert json.loads(parsed.json) == runs
    assert len(parsed.rows) == len(runs) == 8
    for row in parsed.rows:
        (run,) = [
            run
            for run in runs
            if run["profile"] == row["label"] and figure(run["members"]) == row["members"]
        ]
        run = run | {"bytes_total": run["bytes_in"] + run["bytes_out"]}
        assert {name: row[name] for name in COLUMNS} == {
            name: figure(run[name]) for name in COLUMNS
        }
    assert parsed.hidden == 4, "the slider's script did not run"


def test_a_script_error_would_be_seen(tmp_path: Path) -> None:
    """The check of the console finds a real error."""
    page = tmp_path / "bad.html"
    page.write_text("<!doctype html><title>x</title><script>nowhere.to.be.found()</script>")
    assert "ReferenceError" in _in_browser(page, tmp_path)[1]


def test_names_from_outside_stay_text(tmp_path: Path) -> None:
    """Names of members, topics and kinds cannot add elements to the page or end its script."""
    runs = json.loads(
        _run(
            "simulate", "--members", "3", "--partitions", "3", "--profile", "scala", "--json"
        ).stdout
    )
    plain = _Page()
    plain.feed(herd_report(runs, "title", "command"))
    hostile = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"
    text = json.dumps(runs).replace("g_m00000-0", json.dumps(hostile)[1:-1])
    text = text.replace("t0-0", json.dumps(hostile)[1:-1])
    page = _Page()
    page.feed(herd_report(json.loads(text), hostile, hostile))
    assert page.elements == plain.elements
    assert json.loads(page.json) == json.loads(text)


def test_simulate_writes_the_same_journal_again(tmp_path: Path) -> None:
    """The journal of a run is complete and repeatable. A page that cannot be written gives one line
    and status 2."""
    texts = []
    for name in ("a", "b"):
        path = tmp_path / name
        options = ["--members", "4", "--profile", "scala", "--event", "crash", "--seed", "9"]
        assert _run("simulate", *options, "--journal", str(path)).returncode == 0
        texts.append(path.read_bytes())
        kinds = {entry["kind"] for entry in read_journal(path)}
        assert kinds == {"run", "event", "command", "op", "action"}
    assert texts[0] == texts[1]
    nowhere = _run("simulate", "--members", "2", "--html", str(tmp_path / "no" / "such"))
    assert (nowhere.returncode, nowhere.stderr.count("\n")) == (2, 1)


def test_the_herd_command_compares_server_journal_and_simulator(tmp_path: Path) -> None:
    """``herd --simulate`` measures a real group and prints how far the simulator differs."""
    page, journal = tmp_path / "report.html", tmp_path / "journal"
    done = _run(
        *("herd", "--members", "5", "--partitions", "10", "--profile", "scala", "--simulate"),
        *("--event", "leave", "--html", str(page), "--journal", str(journal)),
    )
    assert done.returncode == 0, done.stderr
    assert "scala, 5 members: the server counted" in done.stdout
    for figure_name in ("reads", "writes", "requests"):
        assert re.search(rf"scala +5 +{figure_name} .* [+-][0-9.]+ %", done.stdout), done.stdout
    assert "scala (real)" in page.read_text(encoding="utf-8")
    assert sum(entry["kind"] == "action" for entry in read_journal(journal)) == 1
