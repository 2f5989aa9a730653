"""From a finding to the raw transaction: ``zkaudit show`` and options that take directories."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from zkaudit.cli import one_value_each, run
from zkaudit.decode.txnlog import read_transactions
from zkaudit.tables import catalog

from tests.audit.corpus.judge import directories


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The recorded incidents: the whole log, and a log that begins in the middle."""
    return directories(tmp_path_factory.mktemp("recorded"))


def test_show_prints_the_transaction_with_its_byte(
    logs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The line marked ``>`` is the wanted transaction, at the byte where its record begins. Each
    server is shown."""
    (log,) = logs["late"].glob("log.*")
    wanted = list(read_transactions(log))[20]
    argv = ["show", hex(wanted.zxid), "--around", "2", "--zookeeper-logs"]
    assert run([*argv, str(logs["whole"]), str(logs["late"])]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.endswith(":")] == [f"{p}:" for p in logs.values()]
    marked = [line for line in lines if line.startswith(">")]
    assert len(marked) == 2
    for line in marked:
        assert f"zxid={wanted.zxid:#x} " in line
        assert str(wanted.path) in line
    place, _, position = marked[1].split()[1].rpartition(":")
    assert place == log.name
    # The record's payload begins 12 bytes after its position: session, cxid, zxid.
    assert int.from_bytes(log.read_bytes()[int(position) + 24 :][:8], "big") == wanted.zxid
    assert len(lines) == 2 + 2 * 5


def test_show_of_a_missing_transaction_is_an_error(
    logs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """A zxid that no log has, or that is not a number, ends with status 2 and a reason."""
    assert run(["show", "0x7777777777", "--zookeeper-logs", str(logs["whole"])]) == 2
    assert "0x7777777777: no log below" in capsys.readouterr().err
    assert run(["show", "later", "--zookeeper-logs", str(logs["whole"])]) == 2
    assert "'later' is not a zxid" in capsys.readouterr().err


def test_findings_need_an_audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names a directory that has neither logs nor a finished audit."""
    assert run(["findings", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert f"error: {tmp_path}: no file log.<zxid>: " in error
    assert "; or name the directory of an audit" in error
    (tmp_path / "summary.json").write_text(json.dumps({}))
    assert run(["findings", str(tmp_path)]) == 2
    assert "the audit did not finish" in capsys.readouterr().err


def test_findings_of_a_group_that_the_audit_does_not_have_are_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A group without findings prints none. A name that no table has ends with status 2."""
    tables = tmp_path / "tables"
    findings = catalog.FINDINGS
    rows: dict[str, list[dict[str, object]]] = {
        table.name: [] for table in catalog.TABLES if table.name != findings.name
    }
    rows["registrations"] = [{"chroot": "", "group_id": "registered"}]
    rows["commits"] = [{"chroot": "/kafka", "group_id": "commits-only"}] * 3
    rows["generations"] = [{"group_id": "moved"}]
    for name, found in rows.items():
        (tables / name).mkdir(parents=True)
        empty = pa.schema([("chroot", pa.string()), ("group_id", pa.string())])
        pq.write_table(pa.Table.from_pylist(found, empty), tables / name / "part-0.parquet")
    columns = pa.schema([(column.name, pa.string()) for column in findings.columns])
    (tables / findings.name).mkdir()
    pq.write_table(pa.Table.from_pylist([], columns), tables / findings.name / "part-0.parquet")
    (tmp_path / "summary.json").write_text(
        json.dumps({"findings": [], "schema_version": catalog.SCHEMA_VERSION})
    )
    for group in ("registered", "commits-only", "moved"):
        assert run(["findings", str(tmp_path), "--group", group]) == 0
        assert capsys.readouterr().out == "no findings\n"
    assert run(["findings", str(tmp_path)]) == 0
    capsys.readouterr()
    for form in ("table", "json", "csv"):
        assert run(["findings", str(tmp_path), "--group", "nosuch", "--format", form]) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert f"--group 'nosuch': the audit in {tmp_path} has no group with such" in shown.err


def test_an_option_takes_several_directories() -> None:
    """An option takes all values up to the next option as its directories."""
    given = ["run", "--zookeeper-logs", "a", "b", "c", "--out", "o", "--journals", "j"]
    assert one_value_each(given) == [
        "run", "--zookeeper-logs", "a", "--zookeeper-logs", "b", "--zookeeper-logs", "c",
        "--out", "o", "--journals", "j",
    ]  # fmt: skip
    assert one_value_each(["report", "x", "--group", "g", "y"]) == [
        "report", "x", "--group", "g", "y",
    ]  # fmt: skip
