"""An audit of logs in a bucket: the same tables as from disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from zkaudit.errors import AuditError
from zkaudit.job import audit as job
from zkaudit.job.output import load
from zkaudit.job.spark import errors_named
from zkaudit.limits import Limits
from zkaudit.schema import SNAPSHOT_SESSIONS, spark_type
from zkaudit.tables import journals

from tests.audit.conftest import Judged
from tests.audit.corpus.incidents import LIMITS
from tests.audit.s3 import S3

pytestmark = pytest.mark.timeout(900)  # two audits on a busy machine


def text(summary: dict[str, Any], tables: dict[str, Any]) -> str:
    """Everything that an audit says, in a fixed order."""
    rows = {name: sorted(map(repr, frame.collect())) for name, frame in tables.items()}
    return json.dumps([summary, rows], indent=1)


def test_an_audit_of_a_bucket(spark: SparkSession, s3: S3, judged: Judged, tmp_path: Path) -> None:
    """Tables and summary are the same. Only the names of the servers differ, which are URLs without
    options. Journals are read."""
    s3.upload(judged.logs, "zk1")
    url, out = s3.url("zk1", "s3a"), tmp_path / "out"
    job.run(spark, job.Options([url], str(out), limits=Limits(**LIMITS)))
    ours = text(*load(spark, out)).replace(s3.options, "").replace("s3a://logs/zk1", "HOME")
    theirs = text(*load(spark, judged.place / "whole")).replace(str(judged.logs), "HOME")
    assert ours == theirs
    assert len(json.loads(ours)[1]["findings"]) > 5
    journal = tmp_path / "journals" / "a.jsonl"
    journal.parent.mkdir()
    journal.write_text('{"at": 1, "kind": "run", "schema": 1, "clock": "epoch"}\nno line\n')
    s3.upload(journal.parent, "journals")
    remote = s3.url("journals", "s3a")
    journals.check([remote])
    lines = journals.read(spark, [remote]).orderBy("line").collect()
    assert [row["fault"] is None for row in lines] == [True, False]


def test_the_sources_of_a_bucket(spark: SparkSession, s3: S3, recordings: Any) -> None:
    """Logs in many tasks, split logs, snapshots and sessions are those of the disk."""
    newest = recordings("3.9.3")
    s3.upload(newest.logs[0].parent, "newest/version-2")
    url, local = f"zk={s3.url('newest')}", f"zk={newest.logs[0].parent.parent}"
    for source, table in (
        ("zookeeper_txnlog", "transactions"),
        ("zookeeper_txnlog", "files"),
        ("zookeeper_snapshot", "nodes"),
        ("zookeeper_snapshot", "sessions"),
    ):
        load = spark.read.format(source).options(table=table, bytesPerTask="3000")
        found, expected = (sorted(map(repr, load.load(path).collect())) for path in (url, local))
        assert found == expected != []
    sessions = spark.read.format("zookeeper_snapshot").option("table", "sessions").load(url)
    assert sessions.schema == spark_type(SNAPSHOT_SESSIONS)


def test_an_error_in_a_task_is_one_line(spark: SparkSession, s3: S3, tmp_path: Path) -> None:
    """A damaged log in a bucket is named by its URL, and so is a bucket that does not exist."""
    (tmp_path / "log.1").write_bytes(b"no log")
    s3.upload(tmp_path, "damaged")
    load = spark.read.format("zookeeper_txnlog").option("table", "runs")
    with (
        pytest.raises(AuditError, match=r"^s3://logs/damaged/log\.1: byte 0: log\.1 is not a tran"),
        errors_named(),
    ):
        load.load(s3.url("damaged")).collect()
    with pytest.raises(AuditError, match="no such bucket: s3://absent"), errors_named():
        load.load(f"s3://absent/zk1{s3.options}").collect()
