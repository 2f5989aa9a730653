"""A reader of an audit's directory sees one finished audit, never parts of two."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from zkaudit.cli import run as cli
from zkaudit.errors import AuditError, InputMissingError, no_file
from zkaudit.job.place import finished, locked, new_tables, prepare, publish, write_atomically
from zkaudit.tables.catalog import SCHEMA_VERSION

VERSION = {"schema_version": SCHEMA_VERSION}


def made(out: Path, number: int, keep: bool = True) -> Path:
    """Finish an audit whose only table has one number."""
    tables = new_tables(out)
    (tables / "findings").mkdir(parents=True)
    (tables / "findings" / "part").write_text(str(number))
    publish(out, tables, {"findings": [], "number": number} | VERSION, keep)
    return tables


def test_a_reader_keeps_the_audit_that_it_has_opened(tmp_path: Path) -> None:
    """Tables and summary are replaced together. An audit that a reader has opened stays for one
    more round, even if the link already points to the next one. Older audits, and files of a killed
    audit, are deleted."""
    out = prepare(str(tmp_path / "out"))
    with pytest.raises(InputMissingError, match="did not finish"):
        finished(out)
    first = made(out, 1)
    summary, opened = finished(out)
    assert (summary["number"], opened) == (1, first.resolve())
    killed = new_tables(out)
    killed.mkdir()
    assert finished(out) == (summary, opened)
    made(out, 2)
    assert (opened / "findings" / "part").read_text() == "1"
    assert not killed.exists()
    assert finished(out)[0]["number"] == 2
    assert (out / "tables" / "findings" / "part").read_text() == "2"
    assert json.loads((out / "summary.json").read_text())["number"] == 2
    made(out, 3)
    assert not first.exists()
    made(out, 4, keep=False)
    assert len(list(out.glob("tables-*"))) == 1


def test_summary_and_tables_are_of_one_audit_between_the_two_writes(tmp_path: Path) -> None:
    """A process is killed after it replaced the link but before it copied the summary. The reader
    gets the new tables and their own summary."""
    out = prepare(str(tmp_path / "out"))
    made(out, 1)
    copy = (out / "summary.json").read_text()
    second = made(out, 2)
    (out / "summary.json").write_text(copy)
    assert finished(out) == ({"findings": [], "number": 2} | VERSION, second.resolve())
    for _ in range(2):
        with locked(out):  # the next process completes it
            assert json.loads((out / "summary.json").read_text())["number"] == 2


@pytest.mark.parametrize(
    ("summary", "has"), [({"schema_version": 1}, "schema version 1"), ({}, "no schema version")]
)
def test_tables_of_another_version_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], summary: dict[str, int], has: str
) -> None:
    """Their columns may have other names. The error names the directory and both versions."""
    out = prepare(str(tmp_path / "out"))
    tables = new_tables(out)
    tables.mkdir()
    publish(out, tables, {"findings": []} | summary, keep=False)
    assert cli(["report", str(out)]) == 1
    expected = f"{out}: the audit's tables have {has}, but this zkaudit reads version "
    assert f"{expected}{SCHEMA_VERSION}: run the audit again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "fix"),
    [
        ("s3a://bucket/audit", "mount"),
        ("hdfs://name:8020/audit", "mount"),
        ("abfs://c@account.dfs.core.windows.net/audit", "mount"),
        ("gs://bucket/audit", "mount"),
        ("dbfs:/audit", "mount"),
        ("file:///tmp/audit", "without file:"),
    ],
)
def test_a_url_is_refused_and_makes_no_directory(
    place: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--out s3a://bucket/audit`` must not write to a local directory named ``s3a:``."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AuditError, match=fix) as refused:
        prepare(place)
    assert str(refused.value).startswith(f"{place} is a URL, ")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_may_have_a_colon_in_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what begins like a URL is one."""
    monkeypatch.chdir(tmp_path)
    assert prepare("audit-12:30").is_dir()
    assert prepare("./s3a:/audit").is_dir()


def test_only_one_process_writes_to_a_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second audit, stream or report of the same directory is refused: one would report what the
    other wrote. When the first has finished, or was killed, the directory is free."""
    out = tmp_path / "out"
    program = (
        "import sys; from zkaudit.job.place import locked\n"
        "with locked(sys.argv[1]):\n    print('locked', flush=True)\n    sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(out)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as other:  # fmt: skip
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        refused = rf"{out}: process {other.pid} on \S+ is writing an audit there: wait until"
        with pytest.raises(AuditError, match=refused), locked(out):
            pass
        made(out, 1)
        assert cli(["report", str(out)]) == 1
        assert "is writing an audit there" in capsys.readouterr().err
        other.kill()
    with locked(out), pytest.raises(AuditError, match="is writing"), locked(out):
        pass
    with locked(out) as place:
        assert place == out


def test_the_error_of_a_full_disk_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's error about a write has no name. Without one the command would blame standard
    output."""
    monkeypatch.setattr(Path, "open", lambda *_, **__: open("/dev/full", "w"))  # noqa: SIM115
    file = tmp_path / "report.html"
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomically(file, "x")
    line = no_file(caught.value.errno, caught.value.strerror or "", caught.value.filename)
    assert line == (
        f"{tmp_path}/.report.html: No space left on device: free disk space, then run again"
    )
