"""An audit in a session that a user started, with the user's settings and file system."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import zkaudit
from pyspark.sql import SparkSession
from zkaudit.errors import AuditError, InputMissingError
from zkaudit.job import output, spark as settings
from zkaudit.job.place import finished
from zkaudit.report.found import read
from zkaudit.schema import Kind
from zkaudit.sources import selection
from zkaudit.tables import catalog

from tests.audit.small_histories import START_MS, THRESHOLDS, History, at, write

pytestmark = pytest.mark.timeout(600)
LIMITS: dict[str, Any] = {
    "jump_rate": THRESHOLDS["jump_rate"],
    "stalled_seconds": THRESHOLDS["stalled_ms"] / 1000,
}


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A server's directory. In one group a member stopped to commit, in the others none."""
    histories = [History(f"/c{number}", number) for number in range(2)]
    histories[0].stop()
    write(histories, tmp_path / "zk")
    return tmp_path / "zk"


@contextmanager
def session_with(spark: SparkSession, **values: str) -> Iterator[None]:
    """Give the session other settings."""
    names = {name: "spark.sql." + name.replace("_", ".") for name in values}
    with settings.settings_of(spark, {names[name]: value for name, value in values.items()}):
        yield


def rows(frames: dict[str, Any]) -> dict[str, list[str]]:
    """All rows of all tables; times as microseconds, because a session would show local times."""
    found = {}
    for table in catalog.TABLES:
        times = [c.name for c in table.columns if c.kind is Kind.TIMESTAMP]
        frame = frames[table.name].selectExpr(
            *[f"unix_micros(`{c.name}`) as `{c.name}`" if c.name in times else f"`{c.name}`"
              for c in table.columns if c.name != "evidence"]
        )  # fmt: skip
        found[table.name] = sorted(map(str, frame.collect()))
    return found


@contextmanager
def default_file_system(spark: SparkSession, url: str) -> Iterator[None]:
    """Paths without a scheme belong to another file system, as on YARN."""
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[attr-defined]
    before = hadoop.get("fs.defaultFS")
    hadoop.set("fs.defaultFS", url)
    hadoop.set("fs.viewfs.mounttable.elsewhere.link./nowhere", "file:///nowhere")
    try:
        yield
    finally:
        hadoop.set("fs.defaultFS", before)


def test_the_tables_do_not_depend_on_the_users_settings(
    spark: SparkSession,
    tmp_path: Path,
    logs: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Times that Spark stores as INT96 by default, another time zone, other types and casts, and
    another default file system: the same tables, the same stalled owner, and afterwards the same
    settings. If the driver does not see what executors wrote, that is an error, and not an audit
    without rows. The earlier audit stays."""
    monkeypatch.setattr(selection, "BEFORE_START", timedelta())
    texts = tmp_path / "server.log"
    texts.write_text("session 0xa with negotiated timeout 30000 for client /10.0.0.7:51442\n")
    given: dict[str, Any] = {"start": at(START_MS), "server_logs": [str(texts)], **LIMITS}
    expected = rows(zkaudit.audit(spark, logs, tmp_path / "utc", **given))
    kinds = [row["kind"] for row in read(tmp_path / "utc")]
    assert "stalled owner" in kinds
    user = {
        "session_timeZone": "Europe/Berlin",
        "parquet_outputTimestampType": "INT96",
        "timestampType": "TIMESTAMP_NTZ",
        "ansi_enabled": "false",
    }
    out = tmp_path / "a b%20c:d"
    with session_with(spark, **user):
        with default_file_system(spark, "viewfs://elsewhere/"):
            tables = zkaudit.audit(spark, logs, out, **given)
            known = tables["sessions"].where("address is not null").collect()
            assert [row["address"] for row in known] == ["10.0.0.7:51442"]
            assert rows(tables) == expected
        assert read(out) == read(tmp_path / "utc")
        with pytest.raises(InputMissingError, match=r"end before that, at 1970-01-01 00:0\d:\d\d"):
            zkaudit.audit(spark, logs, tmp_path / "late", start="1970-02-01")
        assert spark.conf.get("spark.sql.session.timeZone") == "Europe/Berlin"
        assert spark.conf.get("spark.sql.parquet.outputTimestampType") == "INT96"
    before, count = finished(out), len(read(out))
    assert count
    url = output.local_url

    def elsewhere(place: Path) -> str:
        return url(tmp_path / "executor" / place.relative_to(tmp_path))

    monkeypatch.setattr(output, "local_url", elsewhere)
    with pytest.raises(AuditError, match=r"wrote [\d,]+ rows, but this machine sees 0 of them"):
        zkaudit.audit(spark, logs, out, **LIMITS)
    assert finished(out) == before
    assert len(read(out)) == count


def test_rows_that_the_driver_does_not_see_are_an_error(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor on the driver's machine may have written some of the files."""
    frame = spark.range(10).repartition(2)
    assert output.save(frame, tmp_path / "rows") == 10
    monkeypatch.setattr(output, "rows_in", lambda _: 7)
    with pytest.raises(AuditError, match="wrote 10 rows, but this machine sees 7 of them"):
        output.save(frame, tmp_path / "rows")


def test_logs_without_a_transaction_are_an_error(
    spark: SparkSession, tmp_path: Path, logs: Path
) -> None:
    """Empty files, or files with a header only, are no clean history. Beside other logs they are
    those of a server that has nothing."""
    for content in (b"", b"ZKLG\0\0\0\2" + bytes(8)):
        place = tmp_path / f"empty{len(content)}"
        place.mkdir()
        (place / "log.1").write_bytes(content)
        with pytest.raises(InputMissingError, match=rf"{place}: the logs have no transaction"):
            zkaudit.audit(spark, place, tmp_path / "out")
        assert not (tmp_path / "out" / "tables").exists()
        shutil.copytree(place, tmp_path / f"beside{len(content)}")
    assert zkaudit.audit(spark, [logs, tmp_path / "beside0"], tmp_path / "two")["commits"].count()
