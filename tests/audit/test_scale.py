"""A small version of the benchmarks: the files of a busy ensemble, in little memory and many
tasks."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from zkaudit.decode.txnlog import read_transactions
from zkaudit.history import committed
from zkaudit.job import audit as job, inputs
from zkaudit.job.output import load
from zkaudit.schema import PATH, RUN

pytestmark = pytest.mark.timeout(600)  # Spark compiles long on a busy machine
BENCH = Path(__file__).parents[1] / "bench"
GENERATOR = BENCH / "audit_logs.py"


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


def test_the_logs_of_several_servers_are_read_once(spark: SparkSession, tmp_path: Path) -> None:
    """Three servers have the same logs, but each lacks one, and two have purged their first ones.
    The audit reads every log from one server only, and has the same rows as from all logs."""
    given = ["--groups", "8", "--partitions", "4", "--transactions", "6000", "--per-file", "400"]
    subprocess.run([sys.executable, BENCH / "audit_estate.py", tmp_path, *given], check=True)
    servers = sorted(tmp_path.glob("zk*"))
    for number, server in enumerate(servers):
        logs = sorted(server.glob("log.*"), key=lambda log: int(log.name[4:], 16))
        logs[5 + number].unlink()
    found, _ = inputs.find(servers)
    end = sorted({log.zxid for log in found})[-3] + 7
    runs = inputs.runs(spark, servers, end=end)
    chosen = inputs.needed(runs, found)
    names = [Path(log.path).name for log in found if log.zxid <= end]
    assert sorted(Path(log.path).name for log in chosen) == sorted(set(names))
    assert len({log.server for log in chosen}) == 2 < len(names) / len(chosen)

    every = inputs.transactions(spark, servers, end=end).collect()
    once = inputs.transactions(spark, servers, end=end, files=chosen, found=runs).collect()

    def runs_in(rows: list[Row]) -> list[tuple[Any, ...]]:
        return sorted(
            (r.server, r.file, r.zxid, r.last_zxid, r.time) for r in rows if r.type == RUN
        )

    assert runs_in(once) == runs_in(every)
    take = committed.plan([committed.Run(r[0], r[2], r[3]) for r in runs_in(once)]).take

    def history(rows: list[Row]) -> list[str]:
        return sorted(
            repr(row)
            for row in rows
            if any(first <= row.zxid <= last for first, last in take.get(row.server, ()))
            and row.type not in (RUN, PATH)
        )

    assert history(once) == history(every)
    assert len(once) < 0.5 * len(every)
    assert {r.path for r in once if r.type == PATH} == {r.path for r in every if r.type == PATH}

    def of_group(rows: list[Row]) -> list[str]:
        wanted = (row for row in rows if row.path is None or "/group-000003/" in row.path)
        return sorted(repr(row) for row in wanted if row.type != RUN)

    group = inputs.transactions(spark, servers, "group-000003", end=end).collect()
    assert runs_in(group) == runs_in(every)
    assert of_group(group) == of_group(every)
    assert len(group) < 0.3 * len(every)
