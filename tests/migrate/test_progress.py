"""Progress on standard error during a long run. Standard output has only the rows."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from zkmigrate.commands.output import progress

from tests.migrate.rows import rows_of, run

if TYPE_CHECKING:
    from conftest import Bench  # type: ignore[import-not-found]


@pytest.fixture
def groups(bench: Bench, unique: str, topic: str) -> list[str]:
    """Three stopped groups. The last one has an offset beyond the log's end."""
    bench.topic(topic, 1, messages=5)
    names = [f"{unique[-8:]}-{tail}" for tail in ("a", "b", "c")]
    for name, offset in zip(names, (3, 3, 9), strict=True):
        bench.set_zk(name, topic, {0: offset})
        bench.set_kafka(name, topic, {0: offset})
    return names


def test_each_command_shows_how_far_it_is(
    bench: Bench,
    groups: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a terminal a JSON line shows the number of finished groups, the total, the rate, the
    time left and the last group. Standard output is not affected."""
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    chosen = [word for name in groups for word in ("--group", name)]
    plan = str(tmp_path / "plan")
    for verb, words in (
        ("planning", ["plan", *chosen, "--json"]),
        ("planning", ["plan", *chosen, "--out", plan, "--json"]),
        ("checking", ["apply", plan, "--json"]),
        ("moving", ["apply", plan, "--execute", "--json"]),
        ("comparing", ["status", plan, "--json"]),
        ("reading", ["offsets", "export", *chosen, "--format", "json"]),
        (
            "reading",
            ["offsets", "export", *chosen, "--store", "kafka", "--format", "json"],
        ),
    ):
        capsys.readouterr()
        run([*words, "--zookeeper", bench.cluster.zookeeper])
        printed = capsys.readouterr()
        json.loads(printed.out)
        lines = [json.loads(line) for line in printed.err.splitlines() if line.startswith("{")]
        lines = [line for line in lines if line.get("progress") == verb]
        assert (lines[0]["groups"], lines[0]["of"]) == (1, 3), printed.err
        assert lines[0]["after"] in groups
        assert lines[0]["groups_per_second"] > 0
        assert lines[-1]["seconds_left"] == (0 if len(lines) == 3 else lines[-1]["seconds_left"])
        assert len(lines) == (2 if verb == "comparing" else 3)
        bad = {"planning": "not_ready", "moving": "failed"}
        if verb in bad:
            assert lines[-1][bad[verb]] == 1


def test_a_long_group_shows_its_offsets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one group takes long, each line shows how many of its offsets are done."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.Progress("planning", 1) as shown:
        for done in range(1, 1001):
            now[0] += 0.03125
            shown.within("g\x1b", done, 1000)
    lines = list(map(json.loads, capsys.readouterr().err.splitlines()))
    found = [(line["groups"], line["offsets"], line["of_offsets"]) for line in lines]
    assert found == [(0, 160 * number, 1000) for number in range(1, 7)]
    assert lines[0]["group"] == "g\\x1b"


def test_lines_are_some_seconds_apart(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With any number of groups, a log file gets a line every five seconds. It gets a line at once
    when the run waits for something. Names of groups are made safe to print."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.Progress("moving", 1000) as shown:
        for _ in range(1000):
            now[0] += 0.03125  # 1/32
            shown.group("g\x1b[2J" + "x" * 900, offsets=5)
        shown.waiting("the session of \x1bx")
    lines = list(map(json.loads, capsys.readouterr().err.splitlines()))
    assert len(lines) == 7, "31 seconds, and a wait"
    assert {**lines[0], "after": ""} == {
        "progress": "moving",
        "groups": 160,
        "of": 1000,
        "failed": 0,
        "seconds": 5.0,
        "groups_per_second": 32.0,
        "seconds_left": 26,
        "offsets_per_second": 160,
        "after": "",
    }
    assert lines[-1]["waiting_for"].startswith("the session of ")
    assert "\x1b" not in lines[0]["after"] + lines[-1]["waiting_for"]


def test_a_terminal_shows_a_bar(bench: Bench, groups: list[str]) -> None:
    """On a terminal there is a bar with elapsed time, remaining time and a group's name. Standard
    output still has only the rows."""
    ours, theirs = pty.openpty()
    code = "from zkmigrate.cli import main; main()"
    words = [word for name in groups for word in ("--group", name)]
    server = ("--zookeeper", bench.cluster.zookeeper)
    process = subprocess.Popen(
        [sys.executable, "-c", code, "plan", *words, "--json", *server],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "220"},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    out, _ = process.communicate(timeout=60)
    os.close(ours)
    text = shown.decode()
    assert (process.returncode, len(rows_of(out))) == (3, 3)
    assert "planning" in text
    assert text.partition('{"cluster"')[0].endswith("\r\x1b[2K")  # not behind the bar
    assert "3/3" in text
    assert "0:00:0" in text
    assert "left" in text
    assert f"1 not ready after {groups[2]}" in text


def test_only_problems_are_listed_and_counted(
    bench: Bench, groups: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--only-problems`` omits rows of groups without a problem, and counts the groups by kind of
    problem below the rows."""
    bench.client.create(f"/consumers/{groups[2]}/ids/x", b"{}", ephemeral=True, makepath=True)
    chosen = [word for name in groups for word in ("--group", name)]
    server = ("--zookeeper", bench.cluster.zookeeper)
    plan = str(tmp_path / "plan")
    capsys.readouterr()
    for words in (["plan", *chosen], ["plan", *chosen, "--out", plan]):
        assert run([*words, "--only-problems", "--json", *server]) == 3
        printed = capsys.readouterr()
        assert {row["group"] for row in rows_of(printed.out)} == {groups[2]}
        assert "groups by problem: 1 " in printed.err
        assert "1 live-member" in printed.err
        assert "1 out-of-range" in printed.err
    assert run(["apply", plan, "--execute", "--only-problems", "--json", *server]) == 3
    (row,) = rows_of(capsys.readouterr().out)
    assert (row["group"], row["outcome"]) == (groups[2], "skipped")
