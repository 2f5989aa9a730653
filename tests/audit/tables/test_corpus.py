"""The audit finds exactly the labelled incidents, also the held-out ones.

By default it reads the whole log. With ``CORPUS=all`` (``make test-corpus``) it also reads the log
that begins late.
"""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from zkaudit.cli import run

from tests.audit.corpus.held_out import HELD_OUT
from tests.audit.corpus.incidents import INCIDENTS
from tests.audit.corpus.judge import VARIANTS, Verdict, judge

pytestmark = pytest.mark.timeout(1200)  # Spark compiles long on a busy machine
JUDGED = VARIANTS if os.environ.get("CORPUS") == "all" else VARIANTS[:1]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the audits."""
    return tmp_path_factory.mktemp("corpus") / "out"


@pytest.fixture(scope="module")
def verdict(spark: SparkSession, place: Path) -> Verdict:
    """The findings of the audit, compared with the labels."""
    return judge(spark, place, JUDGED)


def test_precision_and_recall(verdict: Verdict) -> None:
    """There are at least 40 incidents. Recall and precision are at least 0.95, and no wrong finding
    is stated as proven."""
    assert len(INCIDENTS) >= 40
    check(verdict)


def test_held_out_incidents(spark: SparkSession, tmp_path: Path) -> None:
    """The same holds for the incidents that were written apart from the rules."""
    assert len(HELD_OUT.incidents) >= 40
    check(judge(spark, tmp_path, ("whole",), HELD_OUT))


def check(verdict: Verdict) -> None:
    """Compare a verdict with the targets."""
    report = "\n".join(verdict.lines())
    assert verdict.recall >= 0.95, report
    assert verdict.precision >= 0.95, report
    assert verdict.proven == [], report


def test_a_finding_leads_to_its_byte(
    verdict: Verdict, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each finding names the file and byte of its transaction, and the command that shows it works.
    JSON, CSV and text list the same number of findings."""
    assert run(["findings", str(place / "whole"), "--format", "json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (log,) = (place / "logs-whole").glob("log.*")
    content = log.read_bytes()
    assert len(rows) > 30
    for row in rows:
        zxid = int.from_bytes(content[row["position"] + 24 :][:8], "big")
        assert (row["file"], f"{zxid:#x}") == (log.name, row["zxid"])
        for part in row["evidence"]:
            assert part["file"] == log.name, part
    assert run(rows[0]["command"].split()[1:]) == 0
    assert f"zxid={rows[0]['zxid']}" in capsys.readouterr().out
    assert run(["findings", str(place / "whole"), "--format", "csv"]) == 0
    assert len(list(csv.DictReader(io.StringIO(capsys.readouterr().out)))) == len(rows)
    assert run(["findings", str(place / "whole"), "--severity", "critical"]) == 0
    told = capsys.readouterr().out
    critical = [row for row in rows if row["severity"] == "critical"]
    assert told.count("zkaudit show 0x") == len(critical) > 0


@pytest.mark.parametrize("variant", JUDGED)
def test_no_count_of_members_is_negative(
    spark: SparkSession, verdict: Verdict, place: Path, variant: str
) -> None:
    """No count is negative, even if the logs begin late: a close that lists a member's znode makes
    that member known."""
    tables = place / variant / "tables"
    members = spark.read.parquet(str(tables / "membership"))
    assert members.count() > 0
    assert members.where("members < 0").count() == 0
    registrations = spark.read.parquet(str(tables / "registrations"))
    known = registrations.where("start_zxid is null and session is not null")
    known = known.where("ended in ('closed', 'expired')")
    assert (known.count() > 0) == (variant == "late")
