"""A small version of the benchmarks: the files of a busy ensemble, in little memory and many
tasks."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from zkaudit.decode.txnlog import read_transactions
from zkaudit.history import committed
from zkaudit.job import audit as job, inputs
from zkaudit.job.output import kept, load
from zkaudit.schema import RUN
from zkaudit.sources import selection
from zkaudit.tables.catalog import TABLES

from tests.audit.answers import table

pytestmark = pytest.mark.timeout(600)  # Spark compiles long on a busy machine
BENCH = Path(__file__).parents[1] / "bench"
GENERATOR = BENCH / "audit_logs.py"


@pytest.fixture(scope="module")
def busy(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``logs`` of one server, and their audit ``out``. There are 20,000 transactions in 20 logs, a
    fifth of them in one group."""
    place = tmp_path_factory.mktemp("busy")
    logs, out = place / "logs", place / "out"
    subprocess.run([sys.executable, GENERATOR, logs, "20000", "1000"], check=True)
    job.run(spark, job.Options([str(logs)], str(out)))
    return place


def test_nothing_is_lost_in_many_tasks(spark: SparkSession, busy: Path) -> None:
    """Claims, ends, writes, sessions and refused claims in the tables equal a plain count of the
    records."""
    logs = busy / "logs"
    count: Counter[str] = Counter()
    for log in logs.iterdir():
        for op in read_transactions(log):
            place = (op.path or "").split("/")
            count[f"{op.type} {place[3] if op.path else ''}"] += 1
    rows = inputs.transactions(spark, [logs])
    assert rows.rdd.getNumPartitions() == 1  # small files share a task
    summary, tables = load(spark, busy / "out")
    assert summary["intervals"] == count["create owners"] > 1_000
    assert summary["commits"] == count["setData offsets"] + count["create offsets"]
    assert summary["log_gaps"] == []
    assert tables["sessions"].count() == count["createSession "]
    assert tables["failed_claims"].count() == count["error "] > 0
    ends = tables["ownership"].groupBy("ended").count().collect()
    ended = {row["ended"]: row["count"] for row in ends}
    assert ended["released"] == count["delete owners"]
    assert sum(ended.get(how, 0) for how in ("expired", "closed")) > 0
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
    found, _ = selection.find(servers)

    def keep(name: str, frame: DataFrame) -> DataFrame:
        return kept(tmp_path, name, frame)

    def once(group: str | None) -> list[Row]:
        rows, read = inputs.once(spark, servers, found, keep, group)
        assert len(read.runs) == rows.where(inputs.is_run()).count()
        return rows.collect()

    def runs_in(rows: list[Row]) -> list[tuple[Any, ...]]:
        return sorted(
            (r.server, r.file, r.first_zxid, r.last_zxid, r.last_time)
            for r in rows
            if r.kind == RUN
        )

    every = inputs.transactions(spark, servers).collect()
    rows = once(None)
    assert runs_in(rows) == runs_in(every)
    take = committed.plan([committed.Run(r[0], r[2], r[3]) for r in runs_in(rows)]).take

    def history(rows: list[Row]) -> list[str]:
        return sorted(
            repr(row)
            for row in rows
            if row.kind is None
            and any(first <= row.zxid <= last for first, last in take.get(row.server, ()))
        )

    assert history(rows) == history(every)
    read = {(r.server, r.file) for r in rows if r.kind is None}
    names = [Path(log.path).name for log in found]
    assert sorted(name for _, name in read) == sorted(set(names))
    assert len({server for server, _ in read}) == 2 < len(names) / len(read)
    assert len(rows) < 0.5 * len(every)

    def of_group(rows: list[Row]) -> list[str]:
        wanted = (row for row in rows if row.path is None or "/group-000003/" in row.path)
        return sorted(repr(row) for row in wanted if row.kind != RUN)

    group = inputs.transactions(spark, servers, "group-000003").collect()
    assert runs_in(group) == runs_in(every)
    assert of_group(group) == of_group(every)
    assert len(group) < 0.3 * len(every)
    rows = once("group-000003")
    assert runs_in(rows) == runs_in(every)
    assert history(rows) == history(group)
    assert len(rows) < 0.5 * len(group)


def test_an_audit_of_one_group_has_what_the_whole_audit_has_of_it(
    spark: SparkSession, busy: Path, tmp_path: Path
) -> None:
    """Sessions that did nothing in the group are left out, also those that opened
    before the logs begin. Everything else is as in the audit of all groups."""
    given = ["--groups", "8", "--partitions", "4", "--transactions", "6000", "--per-file", "400"]
    subprocess.run([sys.executable, BENCH / "audit_estate.py", tmp_path / "e", *given], check=True)
    servers = sorted((tmp_path / "e").glob("zk*"))
    for server in servers:  # the first logs are purged everywhere
        for log in sorted(server.glob("log.*"), key=lambda log: int(log.name[4:], 16))[:9]:
            log.unlink()
    job.run(spark, job.Options([*map(str, servers)], str(tmp_path / "out")))
    for logs, out in ((servers, tmp_path / "out"), ([busy / "logs"], busy / "out")):
        with_gap = logs is servers
        every = tables_in(out)
        busiest = "ownership" if with_gap else "failed_claims"
        groups = Counter(row["group_id"] for row in every[busiest])
        group = groups.most_common(1)[0][0]
        options = job.Options([*map(str, logs)], str(tmp_path / f"one-{with_gap}"), group=group)
        job.run(spark, options)
        one = tables_in(Path(options.out))
        of_group = [row for row in every["ownership"] if row["group_id"] == group]
        assert of_group
        first = min(log.zxid for log in selection.find(logs)[0])
        assert with_gap == any(row["start_zxid"] < first for row in of_group)
        for name in ("ownership", "registrations", "commits", "failed_claims", "membership",
                     "rebalances", "moves", "herds"):  # fmt: skip
            mine = sorted(repr(row) for row in every[name] if row["group_id"] == group)
            assert sorted(map(repr, one[name])) == mine, name
        used = {row["session"] for row in (*one["ownership"], *one["registrations"])}
        sessions = {row["session"]: row for row in one["sessions"]}
        assert used
        assert sessions.keys() >= used
        whole = {row["session"]: row for row in every["sessions"]}
        assert all(row == whole[number] for number, row in sessions.items())
        assert len(sessions) < 0.5 * len(whole)


def tables_in(out: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of all tables of an audit."""
    return {spec.name: table(out, spec.name) for spec in TABLES}


def test_the_sessions_of_a_group(spark: SparkSession) -> None:
    """A session used the group if it changed one of its znodes, if its close lists one, or if a
    snapshot shows one that it owns."""
    ids = "/consumers/g/ids/m"
    rows = [
        {"type": "create", "path": ids, "session": 1},
        {"type": "closeSession", "session": 2, "deleted": [ids]},
        {"type": "closeSession", "session": 4, "deleted": ["/consumers/gg/ids/m"]},
        *({"type": kind, "session": n} for n in range(1, 5) for kind in ("createSession", "error")),
        *({"type": "closeSession", "session": n} for n in (1, 3)),
        {"type": None, "session": None},  # a run of zxids
        {"type": None, "session": None, "path": ids},
    ]
    shown = [
        {"path": ids + "3", "ephemeral_owner": 3},
        {"path": "/consumers/gg/ids/m", "ephemeral_owner": 4},
    ]

    columns = "type string, path string, session long, deleted array<string>"
    every = spark.createDataFrame(rows, columns)
    snapshots = spark.createDataFrame(shown, "path string, ephemeral_owner long")

    def sessions(group: str, snapshots: DataFrame | None) -> Counter[int | None]:
        return Counter(row.session for row in inputs.of_group(every, snapshots, group).collect())

    assert sessions("g", snapshots) == {None: 2, 1: 4, 2: 3, 3: 3}
    assert sessions("g", None) == {None: 2, 1: 4, 2: 3}
    assert sessions("gg?", None) == {None: 2, 1: 4, 2: 3, 4: 3}
    assert sessions("(g)|x", None) == Counter(row["session"] for row in rows)
