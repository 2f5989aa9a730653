"""``zkaudit findings``: which it prints, and those that are expected. Spark does not run."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from zkaudit.cli import run
from zkaudit.commands.expected import count_expected
from zkaudit.commands.summary import status_of
from zkaudit.errors import InputMissingError
from zkaudit.findings.expected import Expected, parse
from zkaudit.findings.ids import id_of
from zkaudit.tables.catalog import FINDINGS, SCHEMA_VERSION

BEGIN = datetime(2026, 11, 21, tzinfo=UTC)


def finding(kind: str, minutes: float | None, **values: Any) -> dict[str, Any]:
    """A row of the table, some minutes after the begin of the logs."""
    row: dict[str, Any] = dict.fromkeys(column.name for column in FINDINGS.columns) | {
        "kind": kind, "severity": "high", "basis": "proven", "group_id": "g", "chroot": "",
        "sentence": f"{kind}.", "zxid": 7,
        "time": None if minutes is None else BEGIN + timedelta(minutes=minutes), **values,
    }  # fmt: skip
    return row | {"id": id_of(row)}


FOUND = [
    finding("lost messages", 10, topic="t", partition=0, member="g_host-1", severity="critical"),
    finding("unowned interval", 20, end_time=BEGIN + timedelta(minutes=40), topic="u"),
    finding("orphan partition", 5, topic="t", member="g_host-2", severity="medium"),
    finding("not covered", 60, group_id=None, zxid=None),
    finding("view disagreement", None, zxid=None, member="=1+1", severity="low"),
]
IDS = {row["kind"]: row["id"] for row in FOUND}


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    """The directory of a finished audit with these findings."""
    out = tmp_path / "out"
    (out / "tables" / "findings").mkdir(parents=True)
    counts = [{"severity": row["severity"], "kind": row["kind"], "count": 1} for row in FOUND]
    (out / "summary.json").write_text(
        json.dumps({"findings": counts, "schema_version": SCHEMA_VERSION})
    )
    pq.write_table(pa.Table.from_pylist(FOUND), out / "tables" / "findings" / "part-0.parquet")
    return out


@pytest.fixture
def kinds(audit: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """``kinds(*words)`` returns the kinds that the command prints."""

    def call(*words: str) -> list[str]:
        assert run(["findings", str(audit), "--format", "json", *words]) == 0
        return [json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()]

    return call


def test_an_id_is_made_of_what_does_not_change() -> None:
    """The end, the severity and the sentence of a finding may change while it lasts."""
    row = FOUND[1]
    longer = row | {"end_time": BEGIN, "end_zxid": 9, "severity": "low", "sentence": "More."}
    assert id_of(longer) == row["id"]
    assert len(row["id"]) == 10
    others = [row | {"zxid": 8}, row | {"partition": 1}, row | {"topic": None}, row | {"kind": "x"},
              row | {"group_id": "u", "topic": "g"}, row | {"session": 0}, row | {"chroot": "/k"},
              row | {"zxid": None}]  # fmt: skip
    assert len({id_of(other) for other in [row, *others]}) == 9
    naive = {"time": BEGIN.replace(tzinfo=None), "zxid": None}
    assert id_of(row | naive) == id_of(row | {"time": BEGIN, "zxid": None})


def test_findings_of_a_time_kind_topic_and_member(kinds: Any) -> None:
    """A finding that lasts counts at any time after its begin, one without a time always."""
    assert kinds("--kind", "lost messages", "--kind", "not covered") == [
        "lost messages", "not covered",
    ]  # fmt: skip
    assert kinds("--topic", "t") == ["lost messages", "not covered", "orphan partition"]
    assert kinds("--member", "host-2") == ["not covered", "orphan partition"]
    assert kinds("--severity", "critical") == ["lost messages", "not covered"]
    assert kinds("--severity", "high") == ["lost messages", "not covered", "unowned interval"]
    assert kinds("--from", "2026-11-21T00:15", "--to", "2026-11-21T01:00") == [
        "unowned interval", "orphan partition", "view disagreement",
    ]  # fmt: skip
    assert kinds("--to", "2026-11-21T00:10") == ["orphan partition", "view disagreement"]
    assert kinds("--from", "2026-11-21T01:41+01:00") == [
        "not covered", "orphan partition", "view disagreement",
    ]  # fmt: skip
    zone = ("--timezone", "Europe/Berlin")
    assert kinds("--from", "2026-11-21T01:41", *zone) == kinds("--from", "2026-11-21T00:41")


def test_a_time_that_the_audit_is_not_about_is_a_finding(
    audit: Path, kinds: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its logs end before that, or its own ``--from`` and ``--to`` choose another one. Nothing is
    missing before the first transaction."""
    known = json.loads((audit / "summary.json").read_text()) | {
        "first_time": BEGIN.isoformat(), "last_time": "2026-11-21T02:00:00+00:00", "log_gaps": [],
    }  # fmt: skip
    only = ("--kind", "not covered")

    def missing(*times: str, **more: Any) -> int:
        (audit / "summary.json").write_text(json.dumps(known | more))
        fails = run(["findings", str(audit), *only, *times, "--fail-on", "critical"])
        capsys.readouterr()
        found = len(kinds(*only, *times))
        assert fails == (3 if found else 0)
        return found

    inside = ("--from", "2026-11-21T01:10", "--to", "2026-11-21T02:00")
    assert missing(*inside) == 0
    assert missing("--from", "2026-11-21T01:10", "--to", "2026-11-21T02:01") == 1
    assert missing("--from", "2026-11-22") == 1
    assert missing("--from", "2026-11-22", "--to", "2026-11-23") == 1
    assert missing("--to", "2026-11-20") == 0
    assert missing("--from", "2026-11-20", "--to", "2026-11-21") == 0
    early = ("--from", "2026-11-20", "--to", "2026-11-20T12:00")
    assert missing(*early, log_gaps=[[0, 9]]) == 1
    part = {"from": "2026-11-21T01:20:00", "to": "2026-11-21T01:30:00"}
    assert missing(*inside, **part) == 2
    assert missing("--from", part["from"], "--to", part["to"], **part) == 0


def test_findings_that_are_not_shown_count_for_the_exit_status(audit: Path) -> None:
    """``--severity`` only chooses what is printed."""
    only = ("--kind", "unowned interval", "--severity", "critical")
    assert run(["findings", str(audit), *only, "--fail-on", "high"]) == 3
    assert run(["findings", str(audit), *only, "--fail-on", "critical"]) == 0


@pytest.mark.parametrize("text", ["null", "3", "[]", "{}"])
def test_a_summary_of_another_program_is_no_audit(
    audit: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is one line."""
    (audit / "summary.json").write_text(text)
    assert run(["findings", str(audit)]) == 2
    assert capsys.readouterr().err == f"error: {audit}: the audit did not finish: run it again\n"


def test_times_are_shown_in_the_chosen_zone(
    audit: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each with its offset. The id follows the kind."""
    zone = ("--timezone", "Europe/Berlin")
    only = ("--kind", "lost messages")
    assert run(["findings", str(audit), *only, *zone]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "2026-11-21T01:10:00.000+01:00  critical, proven: lost messages "
        f"[{IDS['lost messages']}]",
        "    lost messages.",
    ]  # fmt: skip


def test_a_time_that_ends_before_it_begins_is_refused(
    audit: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would look like a time without findings. Zones do not matter."""
    times = ("--from", "2026-11-21T01:00+01:00", "--to", "2026-11-21T00:00Z")
    assert run(["findings", str(audit), *times]) == 2
    assert "is not after --from" in capsys.readouterr().err


def test_expected_findings_do_not_fail(
    audit: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are shown with their reason. An id that the audit does not have is named."""
    file = tmp_path / "expected"
    words = ["findings", str(audit), "--expected", str(file), "--fail-on", "high"]
    file.write_text(
        f"# looked into by Ann\n{IDS['lost messages']}  critical 2026-11-22 a planned skip\n"
        "\n0123456789 info # an old one\n"
    )
    assert run(words) == 3
    shown = capsys.readouterr()
    assert "    expected: 2026-11-22 a planned skip\n    lost messages.\n" in shown.out
    assert shown.err == "expected, but not found: 0123456789\n"
    assert run([*words, "--kind", "lost messages"]) == 0
    assert run([*words, "--kind", "orphan partition"]) == 0
    assert run([*words, "--kind", "not covered"]) == 3
    for choice in (("--topic", "v"), ("--member", "nobody"), ("--severity", "critical")):
        assert run([*words, *choice]) == 3
    with file.open("a") as lines:
        lines.write(f"{IDS['not covered']} high the server was new\n")
        lines.write(f"{IDS['unowned interval']} high\n")
    assert run(words) == 0
    capsys.readouterr()
    file.write_text("0123456789 low a reason\nLost messages of orders\n")
    assert run(words) == 2
    assert f"{file}: line 2: 'Lost' is not the id of a finding" in capsys.readouterr().err


def test_an_audit_counts_those_that_are_expected(
    audit: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``run`` and ``stream`` fail only if there are more of a kind than those expected."""
    summary = json.loads((audit / "summary.json").read_text())
    known = [row for row in FOUND if row["severity"] in ("critical", "high")]
    ids = [f"{row['id']} {row['severity']} known" for row in known]
    for count, status in ((2, 3), (3, 0)):
        text = "\n".join([*ids[:count], "0123456789 low old"])
        counts = count_expected(str(audit), parse(text, "expected"))
        assert status_of(summary, "high", counts) == status
        shown = capsys.readouterr()
        assert shown.out == f"{count} of these findings are expected\n"
        assert shown.err == "expected, but not found: 0123456789 old\n"
    assert not count_expected(str(audit), {})
    assert status_of(summary | {"findings": [summary["findings"][0] | {"count": 2}]}, "high",
                     {("critical", "lost messages"): 1}) == 3  # fmt: skip


def test_a_line_of_the_file_of_expected_findings() -> None:
    """The id and the severity, then anything."""
    assert parse("0123456789  high\n", "f") == {"0123456789": Expected("0123456789", "high", "")}
    with pytest.raises(InputMissingError, match="f: line 1: '012345678' is not the id"):
        parse("012345678 9\n", "f")
    with pytest.raises(InputMissingError, match="f: line 1: '2026' is not a severity: write the"):
        parse("0123456789 2026 a reason\n", "f")


def test_a_finding_that_has_become_more_severe_counts_again(
    audit: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its id is the same. It was looked into when its effect had not shown yet."""
    file = tmp_path / "expected"
    words = ["findings", str(audit), "--expected", str(file), "--kind", "lost messages"]
    for severity, status in (("high", 3), ("critical", 0)):
        file.write_text(f"{IDS['lost messages']} {severity} no member started from it yet\n")
        assert run([*words, "--fail-on", "high"]) == status
        shown = capsys.readouterr()
        assert ("    expected: no member started" in shown.out) == (status == 0)
        assert not shown.err
        known = count_expected(str(audit), parse(file.read_text(), "expected"))
        assert dict(known) == ({} if status else {("critical", "lost messages"): 1})


def test_a_timeline_for_other_tools(audit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The columns that Timesketch needs, in the order of time: a line for each begin and each end.
    What has no time is counted."""
    assert run(["findings", str(audit), "--format", "timeline"]) == 0
    shown = capsys.readouterr()
    lines = list(csv.DictReader(io.StringIO(shown.out)))
    assert [(line["datetime"][11:16], line["timestamp_desc"]) for line in lines] == [
        ("00:05", "orphan partition begins"), ("00:10", "lost messages begins"),
        ("00:20", "unowned interval begins"), ("00:40", "unowned interval ends"),
        ("01:00", "not covered begins"),
    ]  # fmt: skip
    assert lines[1]["message"] == "lost messages."
    assert lines[1]["zxid"] == "0x7"
    assert shown.err == "1 findings without a time are left out\n"
