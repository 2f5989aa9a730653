"""Audits of logs that are damaged, or that have transactions twice."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from zkaudit.commands.findings import findings_command
from zkaudit.commands.summary import status_of
from zkaudit.decode.batches import LogReader
from zkaudit.errors import AuditError
from zkaudit.job import audit as job
from zkaudit.limits import Limits
from zkaudit.local.found import findings
from zkaudit.local.history import Question, read as read_logs
from zkaudit.report.found import plain, read
from zkaudit.report.page import write as write_page

from tests.audit import queries
from tests.audit.small_histories import TAKEN, THRESHOLDS, History, write

pytestmark = pytest.mark.timeout(600)
LIMITS = Limits(jump_rate=THRESHOLDS["jump_rate"], stalled_seconds=THRESHOLDS["stalled_ms"] / 1000)
NEWEST = f"log.{TAKEN + 1:x}"


def test_damage_and_copies_change_no_history(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One server has logged a part of its history twice, another has a damaged log: the findings
    are those of the third server alone, in one process, and no row is twice in a table. With the
    damaged log only it is an error, or a finding of its own, as is time that was asked for and not
    logged."""
    history = History()
    history.stop()
    write([history], tmp_path / "zk3")
    for name in ("zk1", "zk2"):
        shutil.copytree(tmp_path / "zk3", tmp_path / name)
    log = tmp_path / "zk3" / NEWEST
    content = log.read_bytes()
    rows = [row for batch in LogReader(log).batches() for row in batch.to_pylist()]
    place, zxid = rows[-3]["position"], rows[-3]["zxid"]
    (tmp_path / "zk1" / f"log.{zxid:x}").write_bytes(content[:16] + content[place:])
    damaged = bytearray(content)
    damaged[place + 30] ^= 1
    (tmp_path / "zk2" / NEWEST).write_bytes(damaged)

    def audited(*servers: str, **more: Any) -> dict[str, Any]:
        out = str(tmp_path / "-".join(("out", *servers)))
        options = job.Options(
            [str(tmp_path / name) for name in servers], out, limits=LIMITS, **more
        )
        return job.run(spark, options) | {"out": out}

    def reported(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
        return [(row["kind"], row["severity"], row["sentence"]) for row in rows]

    every = audited("zk1", "zk2", "zk3", servers=1)
    logs = [str(tmp_path / "zk3")]
    alone = reported(plain(findings(read_logs(Question(logs, None)), LIMITS), logs))
    assert "stalled owner" in {kind for kind, *_ in alone}
    assert reported(read(every["out"])) == alone
    assert queries.broken(Path(every["out"])) == {}
    assert every["commits"] == len(history.commits)
    (text,) = every["damaged"]
    assert text.startswith(f"{tmp_path / 'zk2'}: {NEWEST}: byte {place}: checksum")
    with pytest.raises(AuditError, match=rf"byte {place}: .* a log gap with --allow-damage"):
        audited("zk2")
    capsys.readouterr()
    part = audited("zk2", allow_damage=True, end="1970-01-02")
    reasons = [reason for *_, reason in reported(read(part["out"]))]
    assert sum(reason.startswith("What ") for reason in reasons) == 3
    assert {"severity": "high", "kind": "not covered", "count": 3} in part["findings"]
    assert status_of(part, "critical") == 3
    findings_command(["--group", "g", part["out"]], standalone_mode=False)
    shown = capsys.readouterr().out
    assert "is unknown: the logs end earlier." in shown
    assert "is unknown: no log has zxids 0x2 to 0x64." in shown
    page = write_page(part["out"], "g").read_text()
    assert "the logs end earlier" in page
    assert "No log covers 3 times that the audit is about" in page
