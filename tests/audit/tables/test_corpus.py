"""The audit finds exactly the labelled incidents, also the held-out ones.

By default it reads the whole log of the incidents that were written with the rules. With
``CORPUS=all`` (``make test-corpus``) it also reads the log that begins late, and the held-out
incidents, whose findings ``tests/audit/test_rules_corpus.py`` checks without Spark.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from zkaudit.cli import run
from zkaudit.job import spark as job_spark
from zkaudit.job.audit import Options, run as audit
from zkaudit.limits import Limits
from zkaudit.local.found import findings
from zkaudit.local.history import Question, read as read_logs
from zkaudit.report.found import plain, read

from tests.audit import answers, queries
from tests.audit.conftest import Judged
from tests.audit.corpus import judge
from tests.audit.corpus.incidents import INCIDENTS, WRITTEN_WITH_THE_RULES, Corpus
from tests.audit.corpus.judge import Verdict
from tests.audit.tables.test_local_findings import comparable

pytestmark = pytest.mark.timeout(1200)  # Spark compiles long on a busy machine
ALL = len(judge.IN_CI) > 1


@pytest.fixture
def place(judged: Judged) -> Path:
    """The directory of the audits."""
    return judged.place


def test_precision_and_recall(judged: Judged) -> None:
    """There are at least 40 incidents. Recall and precision are at least 0.95, and no wrong finding
    is stated as proven."""
    assert len(INCIDENTS) >= 40
    check(judged.verdict)


@pytest.mark.skipif(not ALL, reason="takes minutes: make test-corpus")
@pytest.mark.parametrize(
    ("corpus", "variants"),
    judge.JUDGED[1:],
    ids=lambda value: value.name if isinstance(value, Corpus) else "-".join(value),
)
def test_held_out_incidents(
    spark: SparkSession, tmp_path: Path, corpus: Corpus, variants: tuple[str, ...]
) -> None:
    """The same holds for the incidents that were written apart from the rules."""
    assert len(corpus.incidents) >= 18
    check(judge.judge(spark, tmp_path, variants, corpus))
    for variant in variants:
        assert answers.compare(tmp_path / f"logs-{variant}", tmp_path / variant) > 100


def test_log_and_who_agree_with_the_tables(place: Path) -> None:
    """Offsets of ``zkaudit log``, and owners of ``zkaudit who`` at random times, are those of the
    tables (``test_held_out_incidents``: also for the other corpora)."""
    for variant in judge.IN_CI:
        assert answers.compare(place / f"logs-{variant}", place / variant) > 100


def test_one_process_finds_the_same(place: Path) -> None:
    """In all columns, and in their order (``test_local_findings``: also for the other corpora)."""
    limits = Limits(**WRITTEN_WITH_THE_RULES.limits)
    for variant in judge.IN_CI:
        logs = str(place / f"logs-{variant}")
        ours = plain(findings(read_logs(Question([logs], None)), limits), [logs])
        assert list(map(comparable, ours)) == list(map(comparable, read(place / variant)))


def check(verdict: Verdict) -> None:
    """Compare a verdict with the targets."""
    report = "\n".join(verdict.lines())
    assert verdict.recall >= 0.95, report
    assert verdict.precision >= 0.95, report
    assert verdict.proven == [], report


def test_a_finding_leads_to_its_byte(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_questions_in_sql(spark: SparkSession, place: Path) -> None:
    """Spark and DuckDB answer the ten questions of the how-to page alike. Each has an answer here,
    except the one about journals (``test_causes``). The tables' keys are unique."""
    assert queries.broken(place / "whole") == {}, "keys, and columns that are never null"
    found = queries.both(spark, place / "whole")
    assert len(found) == 10
    assert {name for name, (rows, _) in found.items() if not rows} == {"triggers"}
    for name, (by_spark, by_duckdb) in found.items():
        assert by_spark == by_duckdb, name


def test_tables_do_not_depend_on_plans(
    spark: SparkSession,
    place: Path,
    tmp_path: Path,
) -> None:
    """With several shuffle partitions, adaptive execution and generated code, an audit writes the
    same rows."""
    with job_spark.settings_of(spark, LARGE):
        limits = Limits(**WRITTEN_WITH_THE_RULES.limits)
        audit(spark, Options([str(place / "logs-whole")], str(tmp_path / "out"), limits=limits))
    assert len(list((tmp_path / "out/tables/commits").glob("*.parquet"))) > 1
    answers.same(place / "whole", tmp_path / "out")


LARGE = {
    "spark.sql.shuffle.partitions": "7",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.constraintPropagation.enabled": "true",
}


@pytest.mark.parametrize("variant", judge.IN_CI)
def test_no_count_of_members_is_negative(spark: SparkSession, place: Path, variant: str) -> None:
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
