"""A small version of the benchmarks: the files of a busy ensemble, in little memory and many
tasks."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from zkaudit.decode.txnlog import read_transactions
from zkaudit.job import audit as job, inputs
from zkaudit.job.output import load

pytestmark = pytest.mark.timeout(600)  # Spark compiles long on a busy machine
GENERATOR = Path(__file__).parents[1] / "bench" / "audit_logs.py"


def test_nothing_is_lost_in_many_tasks(spark: SparkSession, tmp_path: Path) -> None:
    """There are 60,000 transactions in 30 logs, a fifth of them in one group. Claims, ends, writes,
    sessions and refused claims in the tables equal a plain count of the records."""
    logs = tmp_path / "logs"
    subprocess.run([sys.executable, GENERATOR, logs, "60000", "2000"], check=True)
    count: Counter[str] = Counter()
    for log in logs.iterdir():
        for op in read_transactions(log):
            place = (op.path or "").split("/")
            count[f"{op.type} {place[3] if op.path else ''}"] += 1
    rows = inputs.transactions(spark, [logs])
    assert rows.rdd.getNumPartitions() == 1  # small files share a task
    summary = job.run(spark, job.Options([str(logs)], str(tmp_path / "out")))
    _, tables = load(spark, tmp_path / "out")
    assert summary["intervals"] == count["create owners"] > 3_000
    assert summary["commits"] == count["setData offsets"] + count["create offsets"]
    assert summary["log_gaps"] == []
    assert tables["sessions"].count() == count["createSession "]
    assert tables["failed_claims"].count() == count["error "] > 0
    ends = tables["ownership"].groupBy("ended").count().collect()
    ended = {row["ended"]: row["count"] for row in ends}
    assert ended["released"] == count["delete owners"]
    assert ended["expired"] + ended["closed"] > 0
    assert "unknown" not in ended
