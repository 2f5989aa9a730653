"""``zkaudit findings`` on logs. Spark does not run; ``tables/test_local_findings.py`` compares."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from zkaudit.cli import run
from zkaudit.local import history

from tests.audit.corpus.incidents import WRITTEN_WITH_THE_RULES
from tests.audit.corpus.judge import directories, fits
from tests.audit.histories import History
from tests.audit.snapshots import snapshot_after
from tests.audit.written import write_log

EPOCH = 1 << 32


def incident() -> History:
    """A tool writes an offset of a stopped group; a member starts from it."""
    h = History()
    h.topic("t", 1)
    for session in (5, 6):
        h.join("g", "a", session)
        h.claim("g", 0, "a", session)
        if session == 5:
            h.add("create", 5, "/consumers/g/offsets/t/0", data=b"10", ephemeral=False)
            h.commit("g", 0, 20, 5, version=1)
        h.release("g", 0, session)
        h.leave("g", "a", session)
        h.commit("g", 0, 500 * session, 9, version=2)
    return h


def found(capsys: pytest.CaptureFixture[str], *words: object) -> list[dict[str, object]]:
    """The findings as JSON."""
    assert run(["findings", *map(str, words), "--format", "json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_times_may_be_the_first_and_the_last_that_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They mean no limit, except that the logs end earlier. Reading an hour more is no error."""
    write_log(tmp_path, incident().rows)
    words = [str(tmp_path), "--servers", "1"]
    times = ["--from", "0001-01-01", "--to", "9999-12-31T23:59:59.999999"]
    kinds = [row["kind"] for row in found(capsys, *words, *times)]
    assert kinds == ["lost messages", "not covered", "tool write"]
    at = ["--zookeeper-logs", *words, "--at"]
    assert run(["who", "g", "t-0", *at, "9999-12-31T23:59:59.999999"]) == 2
    assert "the logs end before that" in capsys.readouterr().err
    assert run(["who", "g", "t-0", *at, "0001-01-01"]) == 2
    assert "the logs begin after that" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("at", "zone"),
    [("9999-12-31T23:59:59", "Asia/Tokyo"), ("0001-01-01T00:00:00", "America/New_York")],
)
def test_times_that_a_zone_does_not_have(
    tmp_path: Path, at: str, zone: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A damaged clock may write the first or the last time that there is. It is shown in UTC."""
    h = incident()
    h.rows[-1]["time"] = datetime.fromisoformat(f"{at}+00:00")
    write_log(tmp_path, h.rows)
    words = ["--servers", "1", "--timezone", zone]
    assert run(["findings", str(tmp_path), *words]) == 0
    assert run(["log", "g", "--zookeeper-logs", str(tmp_path), *words]) == 0
    assert f"{at.lstrip('0').replace('T', ' ')}.000  0xd" in capsys.readouterr().out


def test_an_effect_that_shows_after_the_chosen_time_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A member starts from a tool's offset hours after ``--to``, in a later log. ``--to`` chooses
    findings, and does not make them milder."""
    h = History()
    h.join("g", "a", 5)
    h.claim("g", 0, "a", 5)
    h.add("create", 5, "/consumers/g/offsets/t/0", data=b"10", ephemeral=False)
    h.add("closeSession", 5)
    h.commit("g", 0, 500, 9, version=1)
    end = h.now + timedelta(minutes=1)
    first = len(h.rows)
    h.join("g", "a", 6, seconds=4 * 3600)
    h.claim("g", 0, "a", 6)
    h.commit("g", 0, 510, 6, version=2)
    write_log(tmp_path, h.rows[:first])
    write_log(tmp_path, h.rows[first:])
    words = [str(tmp_path), "--servers", "1", "--kind", "lost messages"]
    (whole,) = found(capsys, *words)
    assert (whole["severity"], whole["messages"]) == ("critical", 490)
    assert found(capsys, *words, "--to", end.isoformat()) == [whole]


def test_a_log_that_is_cut_off_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It may have been copied while the server wrote it. If a program reads the output, what is
    missing is on standard error."""
    log = write_log(tmp_path, incident().rows)
    log.write_bytes(log.read_bytes()[:-20])
    told = "bytes exist: the server is writing this log, or it was copied incompletely.\n"
    logs = ["--zookeeper-logs", str(tmp_path), "--servers", "1"]
    who = ["who", "g", "t-0", "--at", "2026-11-21T00:00:06"]
    for words, by_program in (
        (["findings", str(tmp_path), "--servers", "1"], ["--format", "json"]),
        (["log", "g", *logs], ["--timeline"]),
        (["log", "g", *logs], ["--json"]),
        ([*who, *logs], ["--json"]),
    ):
        assert run(words) == 0
        assert told in capsys.readouterr().out
        assert run([*words, *by_program]) == 0
        shown = capsys.readouterr()
        assert told not in shown.out
        assert shown.err.endswith(told)
        assert "Covered: " not in shown.err


def test_logs_are_audited_without_an_audit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the logs cover is printed first, then each finding with its id and its place."""
    write_log(tmp_path, incident().rows)
    words = [str(tmp_path), "--servers", "1"]
    assert run(["findings", *words, "--fail-on", "critical"]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Covered: 2026-11-21 00:00:01 to ")
    assert lines[1].startswith("Not looked for, as they need zkaudit run with --journals or ")
    (row,) = (row for row in found(capsys, *words) if row["kind"] == "lost messages")
    at = next(number for number, line in enumerate(lines) if f"[{row['id']}]" in line)
    assert "critical, inferred: lost messages" in lines[at]
    assert lines[at + 1] == f"    {row['sentence']}"
    assert row["messages"] == 2480
    assert (row["server"], row["file"]) == (str(tmp_path), "log.1")
    assert row["command"] == f"zkaudit show {row['zxid']} --zookeeper-logs {tmp_path}"
    expected = tmp_path.parent / "expected"
    expected.write_text(f"{row['id']} critical known\n")
    quiet = ["--kind", "lost messages", "--expected", str(expected), "--fail-on", "high"]
    assert run(["findings", *words, *quiet]) == 0
    capsys.readouterr()


def test_longer_logs_and_other_servers_give_the_same_ids(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also behind a snapshot."""
    h = incident()
    for name in ("zk1", "zk2"):
        write_log(tmp_path / name, h.rows)
    ids = [row["id"] for row in found(capsys, tmp_path / "zk1", "--servers", 1)]
    both = found(capsys, tmp_path / "zk1", tmp_path / "zk2")
    assert [row["id"] for row in both] == ids
    h.join("g", "b", 7)
    write_log(tmp_path / "zk1", h.rows)
    assert [row["id"] for row in found(capsys, tmp_path / "zk1", "--servers", 1)] == ids
    late = tmp_path / "late"
    write_log(late, h.rows[3:])
    snapshot = late / f"snapshot.{h.rows[2]['zxid']:x}"
    snapshot.write_bytes(snapshot_after(h.rows[:3]))
    kinds = ("--kind", "lost messages", "--servers", 1)
    (one,), (other,) = (found(capsys, place, *kinds) for place in (tmp_path / "zk1", late))
    assert one["id"] == other["id"]


def test_what_needs_the_pipeline_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kinds that are not looked for, too many logs, a group that is not in the logs."""
    write_log(tmp_path, incident().rows)
    for words, error in (
        (["--kind", "two owners"], "--kind two owners needs zkaudit run with --journals"),
        (["--group", "h"], "h: the logs have no group of this name: they have g"),
    ):
        assert run(["findings", str(tmp_path), *words]) == 2
        assert error in capsys.readouterr().err
    assert run(["findings", str(tmp_path / "absent")]) == 2
    assert "no such directory" in capsys.readouterr().err
    monkeypatch.setattr(history, "MOST_BYTES", 1_000)
    assert run(["findings", str(tmp_path)]) == 2
    assert "reads at most 0 MiB: use zkaudit run" in capsys.readouterr().err


def test_incidents_of_a_corpus_are_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the thresholds as options, as in the pipeline."""
    corpus = WRITTEN_WITH_THE_RULES
    logs = directories(tmp_path, corpus)["whole"]
    limits = [word for name, value in corpus.limits.items()
              for word in (f"--{name.replace('_', '-')}", str(value))]  # fmt: skip
    rows = found(capsys, logs, *limits)
    for name, one in corpus.incidents.items():
        mine = [row for row in rows if row["group_id"] == name]
        for label in one.must:
            assert any(fits(label, row) for row in mine), (name, label)
