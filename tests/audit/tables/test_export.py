"""``zkaudit export``: the tables of an audit in a data lake or a catalog, once for each run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import zkaudit
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from zkaudit.cli import run
from zkaudit.errors import AuditError, InputMissingError, SchemaMismatchError
from zkaudit.job.export import RUNS, Target, export, jar_of
from zkaudit.job.output import kept, rows_of
from zkaudit.job.place import new_tables, prepare, publish
from zkaudit.tables import catalog

pytestmark = pytest.mark.timeout(600)  # Spark compiles long on a busy machine
TIME = datetime(2026, 1, 31, 12, 30, 0, 123456, tzinfo=UTC)


@pytest.fixture
def audit(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Path:
    """A finished audit: two findings, one session, and a table without rows. With the fixture
    ``every_table`` it has all tables."""
    if "every_table" not in request.fixturenames:
        few = (catalog.SESSIONS, catalog.VIEWS, catalog.FINDINGS)
        monkeypatch.setattr(catalog, "TABLES", few)
    out = prepare(str(tmp_path / "audit"))
    place = new_tables(out)
    rows: dict[str, list[dict[str, Any]]] = {
        "findings": [{"kind": "zombie commit", "zxid": 5, "time": TIME}, {"kind": "herd"}],
        "sessions": [{"session": 1}],
    }
    for table in catalog.TABLES:
        kept(place, table.name, rows_of(spark, table.spark_type(), rows.get(table.name, [])))
    summary = {"findings": [], "last_zxid": 9, "schema_version": catalog.SCHEMA_VERSION}
    publish(out, place, summary, keep=False)
    return out


@pytest.fixture
def every_table() -> None:
    """Asks ``audit`` for all tables."""


def count(spark: SparkSession, place: Path, table: str) -> dict[str, int]:
    """Rows of a table by run."""
    rows = spark.read.parquet(str(place / table)).groupBy("run_id").count().collect()
    return {row["run_id"]: row["count"] for row in rows}


def test_rows_are_added_once(spark: SparkSession, audit: Path, tmp_path: Path) -> None:
    """The first export creates all tables. A second one needs a mode: it adds rows with a new run
    id, or replaces everything. A run id that is there is refused, and nothing is written."""
    lake = tmp_path / "lake"
    target = Target(str(lake), None)
    begin = datetime.now(UTC)
    done = export(spark, audit, target, run_id="monday")
    assert done.rows == {"sessions": 1, "views": 0, "findings": 2}
    (found,) = spark.read.parquet(str(lake / "findings")).where("zxid = 5").collect()
    (kept,) = spark.read.parquet(str(audit / "tables" / "findings")).where("zxid = 5").collect()
    assert found.asDict() == kept.asDict() | {"run_id": "monday", "run_time": found["run_time"]}
    assert begin <= done.run_time <= datetime.now(UTC)
    micros = "unix_micros(run_time)"
    (known,) = spark.read.parquet(str(lake / RUNS)).selectExpr("*", f"{micros} as at").collect()
    assert known["at"] == round(done.run_time.timestamp() * 1_000_000)
    assert json.loads(known["summary"])["last_zxid"] == 9

    with pytest.raises(AuditError, match=r"already exists: add rows with --append.*--overwrite"):
        export(spark, audit, target)
    later = export(spark, audit, target, "append")
    assert later.run_id.startswith(f"{later.run_time:%Y%m%dT%H%M%SZ}-")
    with pytest.raises(AuditError, match=r"already has rows of run monday, so nothing was written"):
        export(spark, audit, target, "append", "monday")
    assert count(spark, lake, "findings") == {"monday": 2, later.run_id: 2}
    assert count(spark, lake, RUNS) == {"monday": 1, later.run_id: 1}
    assert zkaudit.export(spark, audit, lake, overwrite=True, run_id="new") == "new"
    assert count(spark, lake, "findings") == {"new": 2}


def test_an_export_that_failed_is_not_a_run(
    spark: SparkSession, audit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Table ``runs`` is written last. The rows that a failed export has left keep their run id, so
    it is refused, and a new one works."""
    lake = tmp_path / "lake"
    target = Target(str(lake), None)
    write = Target.write

    def fail(self: Target, frame: Any, table: str, mode: str) -> None:
        if table == "findings":
            raise AnalysisException("[DISK] full\nJVM stacktrace")
        write(self, frame, table, mode)

    with monkeypatch.context() as change:
        change.setattr(Target, "write", fail)
        with pytest.raises(AuditError) as caught:
            export(spark, audit, target, run_id="one")
    assert str(caught.value) == (
        f"{lake}/findings: Spark failed: fix the cause, then run again: [DISK] full "
        "(run one is incomplete)"
    )
    assert count(spark, lake, "sessions") == {"one": 1}
    assert not (lake / RUNS).exists()
    (lake / "findings" / "_temporary").mkdir(parents=True)  # as Spark leaves it
    with pytest.raises(AuditError, match="sessions already has rows of run one"):
        export(spark, audit, target, "append", "one")
    export(spark, audit, target, "append", "two")
    assert count(spark, lake, RUNS) == {"two": 1}
    assert count(spark, lake, "sessions") == {"one": 1, "two": 1}


def test_other_columns_are_refused(spark: SparkSession, audit: Path, tmp_path: Path) -> None:
    """A table of another release, or of another program, is left as it is."""
    lake = tmp_path / "lake"
    spark.range(1).selectExpr("id as zxid", "'x' as run_id").write.parquet(f"{lake}/findings")
    with pytest.raises(SchemaMismatchError, match=r"lake/findings has different columns.*severity"):
        export(spark, audit, Target(str(lake), None), "append")
    assert [path.name for path in lake.iterdir()] == ["findings"]


def test_tables_of_a_catalog(spark: SparkSession, audit: Path) -> None:
    """Tables of a database are created, added to, and read with SQL."""
    target = Target(None, "audits")
    with pytest.raises(AuditError, match=r"^audits: no such database.*CREATE DATABASE audits"):
        export(spark, audit, target)
    spark.sql("create database audits")
    try:
        export(spark, audit, target, "append", "a")
        with pytest.raises(AuditError, match=r"^audits\.\w+ already exists"):
            export(spark, audit, target)
        zkaudit.export(spark, audit, catalog="audits", append=True, run_id="b")
        with pytest.raises(AuditError, match="already has rows of run a"):
            export(spark, audit, target, "append", "a")
        rows = spark.sql(
            "select run_id, count(*) as n from audits.runs join audits.findings using (run_id) "
            "group by run_id order by run_id"
        ).collect()
        assert [tuple(row) for row in rows] == [("a", 2), ("b", 2)]
        export(spark, audit, target, "overwrite", "c")
        assert [row["run_id"] for row in spark.table("audits.runs").collect()] == ["c"]
    finally:
        spark.sql("drop database audits cascade")


def test_a_format_or_file_system_that_the_session_lacks(
    spark: SparkSession, audit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the jar, also if there is one for another Spark. Nothing was written."""
    for form, jar in (("delta", "io.delta:delta-spark_"), ("iceberg", "iceberg-spark-runtime-")):
        with pytest.raises(AuditError, match=rf"lacks the format {form}: add its jar.*{jar}"):
            export(spark, audit, Target(str(tmp_path / "lake"), None, form))
    assert not (tmp_path / "lake").exists()
    with pytest.raises(
        AuditError, match=r"^s3a://b/lake: .*=org\.apache\.hadoop:hadoop-aws:\d"
    ) as e:
        export(spark, audit, Target("s3a://b/lake", None))
    assert "\n" not in str(e.value)

    def misfit(*_: object) -> None:
        raise AnalysisException("java.lang.NoSuchMethodError: 'void LogicalRDD.<init>()'")

    monkeypatch.setattr(Target, "write", misfit)
    line = ".".join(spark.version.split(".")[:2])
    with pytest.raises(AuditError, match=rf"not for Spark {line}.*io\.delta:delta-spark_{line}_2"):
        export(spark, audit, Target(str(tmp_path / "lake"), None, "delta"))


def test_the_jar_for_each_spark() -> None:
    """Delta's jar for Spark 4.0 has no line of Spark in its name."""
    assert jar_of("delta", "4.0.1") == "io.delta:delta-spark_2.13"
    assert jar_of("delta", "4.1.0") == "io.delta:delta-spark_4.1_2.13"
    assert jar_of("iceberg", "4.0.0") == "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13"


def test_the_command(
    every_table: None,
    spark: SparkSession,
    audit: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It exports every table. It prints the rows of each and the run id, or one JSON object."""
    given: dict[str, str] = {}

    @contextmanager
    def running(_: str, settings: dict[str, str]) -> Iterator[SparkSession]:
        given.update(settings)
        yield spark

    monkeypatch.setattr("zkaudit.commands.export.spark_session", running)
    lake = tmp_path / "lake"
    arguments = ["export", str(audit), "--to", f"{lake}/", "--run-id", "r1", "--conf", "a.b=c=d"]
    assert run(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"           2  {lake}/findings" in lines
    assert lines[-1].startswith("run r1 at 20")
    names = {table.name for table in catalog.TABLES}
    assert len(names) > 15
    assert {path.name for path in lake.iterdir()} == {*names, RUNS}
    assert given == {"a.b": "c=d"}
    monkeypatch.setattr(catalog, "TABLES", (catalog.SESSIONS, catalog.FINDINGS))
    assert run(["export", str(audit), "--to", str(lake), "--append", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["tables"] == {"sessions": 1, "findings": 2}
    assert count(spark, lake, "findings") == {"r1": 2, said["run_id"]: 2}
    assert run(["export", str(audit), "--to", str(lake)]) == 1
    assert "--append" in capsys.readouterr().err
    assert run(["export", str(audit), "--catalog", "default"]) == 1
    assert "the session's catalog is lost when the command ends" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "name the target with --to or --catalog"),
        (["--to", "a", "--catalog", "b"], "--to and --catalog cannot be used together"),
        (
            ["--to", "a", "--append", "--overwrite"],
            "--append and --overwrite cannot be used together",
        ),
        (["--to", "a", "--conf", "x"], "'x' is not KEY=VALUE"),
        (["--to", "a", "--run-id", " "], "is empty"),
        (["--to", "a", "--format", "csv"], "'csv' is not one of"),
        (["--to", "a", "--conf", "a=b", "--master", "submit"], "no effect with --master submit"),
        (["--to", "a"], "there is no audit in this directory"),
    ],
)
def test_wrong_use(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every fault is named before Spark starts, with status 2."""
    assert run(["export", str(tmp_path), *arguments]) == 2
    assert told in capsys.readouterr().err


def test_wrong_arguments(tmp_path: Path) -> None:
    """The function refuses what the command refuses."""
    nothing: Any = None
    with pytest.raises(ValueError, match="exactly one of to= and catalog="):
        zkaudit.export(nothing, tmp_path)
    with pytest.raises(ValueError, match="append=True and overwrite=True cannot be used together"):
        zkaudit.export(nothing, tmp_path, "x", append=True, overwrite=True)
    with pytest.raises(ValueError, match="'csv' is not one of parquet, delta, iceberg"):
        zkaudit.export(nothing, tmp_path, "x", format="csv")
    with pytest.raises(InputMissingError):
        zkaudit.export(nothing, tmp_path, "x")
