"""A stream over growing logs gives the same tables as one run over the whole logs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from pyspark.sql import SparkSession
from zkaudit.errors import AuditError
from zkaudit.job import audit as job, buckets, stream as job_stream
from zkaudit.job.output import load

from tests.audit.answers import same
from zkconsumer.runtime.undisturbed import Alarm
from zkconsumer.servers import LocalZooKeeper, wait_until

pytestmark = pytest.mark.timeout(1200)  # on a busy machine a stream waits long for Python
REGISTRATION = b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}'


class Writer:
    """A thread that is a member of a group and commits until it is closed.

    It writes slowly, because a server begins a new log after 50,000 transactions or more.
    """

    def __init__(self, server: LocalZooKeeper, group: str) -> None:
        self.client = self.client_of(server)
        self.group = f"/consumers/{group}"
        self.client.create(f"{self.group}/ids/m", REGISTRATION, ephemeral=True, makepath=True)
        self.client.create(f"{self.group}/owners/t/0", b"m-0", ephemeral=True, makepath=True)
        self.client.create(f"{self.group}/offsets/t/0", b"0", makepath=True)
        self.offset = 0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    @staticmethod
    def client_of(server: LocalZooKeeper) -> KazooClient:
        client = KazooClient(server.zookeeper, timeout=60)
        client.start(timeout=20)
        return client

    def run(self) -> None:
        while not self.ended.wait(0.002):
            self.offset += 1
            self.client.set(f"{self.group}/offsets/t/0", str(self.offset).encode())

    def close(self) -> None:
        self.ended.set()
        self.thread.join(30)
        self.client.stop()
        self.client.close()


@pytest.fixture(scope="module")
def grown(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, job.Options]:
    """A server's directory, and a stream that read it twice while the server wrote it.

    In between the server was restarted, which begins a new log.
    """
    folder = tmp_path_factory.mktemp("live")
    logs = folder / "data" / "zookeeper"
    options = job.Options([str(logs)], str(folder / "stream"))
    job_stream.prepare(options.out)
    news = []
    with LocalZooKeeper(dir=folder) as server, closing(Writer.client_of(server)) as stays:
        stays.create("/consumers/kept/ids/m", REGISTRATION, ephemeral=True, makepath=True)
        writer = Writer(server, "first")
        for seen in (50, 100):
            wait_until(lambda seen=seen: writer.offset > seen, 60, "the member commits")
            news.append(job_stream.record(spark, options))
        writer.close()
        news.append(job_stream.record(spark, options))
        server.zookeeper_server.stop()
        server.zookeeper_server.start()
        server.zookeeper_server.wait_ready()
        Writer(server, "second").close()
        stays.stop()
    news.append(job_stream.record(spark, options))
    assert news == [True] * 4
    assert len(list((logs / "version-2").glob("log.*"))) == 2
    return logs, options


def test_a_stream_gives_the_tables_of_a_run(
    spark: SparkSession,
    grown: tuple[Path, job.Options],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All tables equal those of one run, however the log was cut into batches or files, after
    batches are merged, and after a batch is written a second time."""
    logs, options = grown
    recorder = buckets.Recorder(Path(options.out))
    before = recorder.batches()
    assert len(before) > 3

    def operations() -> list[str]:
        rows = buckets.read(spark, recorder.batches()).where("kind is null")
        return sorted(map(str, rows.collect()))

    rows = operations()
    number = before[-1].last
    last = buckets.read(spark, before[-1:]).drop("key").localCheckpoint()
    recorder.write(last, number)
    assert operations() == rows
    monkeypatch.setattr(buckets, "MERGED", number - 1)
    for _ in range(2):  # also as after a crash
        recorder.write(last, number)
    found = [(one.first, one.last) for one in recorder.batches()]
    assert found == [(0, 0), (1, number - 1), (number, number)]
    assert operations() == rows
    summary = job_stream.refresh(spark, options)
    whole = job.run(spark, job.Options([str(logs)], str(tmp_path / "run")))
    assert summary == whole
    assert summary["commits"] > 100
    assert (summary["log_gaps"], summary["findings"]) == ([], whole["findings"])
    same(Path(options.out), tmp_path / "run")


def test_what_is_purged_stays_and_a_server_is_added(
    spark: SparkSession, grown: tuple[Path, job.Options], tmp_path: Path
) -> None:
    """The logs begin with a log gap. Rows from a snapshot are kept after the snapshot is purged,
    and a torn snapshot is reported. If a process is killed after it recorded something, the next
    process audits it, even if there is nothing new. Then another server is added, which has all
    logs: the tables are those of one run over both."""
    files = grown[0] / "version-2"
    place, first = tmp_path / "server", tmp_path / "first"
    place.mkdir()
    log = max(files.glob("log.*"), key=lambda p: int(p.name[4:], 16))
    content = log.read_bytes().rstrip(b"\0")
    for snapshot in files.glob("snapshot.*"):
        shutil.copy(snapshot, place)
    (place / "snapshot.1").write_bytes(b"ZKSN")
    options = job.Options([str(place)], str(tmp_path / "out"))
    told: list[dict[str, Any]] = []

    def look() -> int:
        job_stream.stream(spark, options, 1, Alarm(), told.append, once=True)
        return len(told)

    (place / log.name).write_bytes(content[: len(content) // 2])
    assert look() == 1
    assert [Path(name).name for name in told[0]["torn_snapshots"]] == ["snapshot.1"]
    (place / log.name).write_bytes(content)
    (place / "snapshot.1").unlink()
    newest = max(files.glob("snapshot.*"), key=lambda p: int(p.name[9:], 16))
    shutil.copy(newest, place / "snapshot.ffff")
    assert job_stream.record(spark, options)  # and was killed
    _, seen = job_stream.selection.find([place])
    taken = job_stream._snapshots(spark, options, seen, [(0, int(log.name[4:], 16))])
    assert taken.rows
    assert not taken.files  # the logs show what a later run does
    for snapshot in place.glob("snapshot.*"):
        snapshot.unlink()
    assert look() == 2
    assert told[1]["torn_snapshots"] == []
    assert told[1]["log_gaps"]
    found = load(spark, options.out)[1]["registrations"].where("group_id = 'kept'")
    ((begun,),) = found.select("start_zxid").collect()
    assert 0 < begun < int(log.name[4:], 16)
    assert look() == 2
    first.mkdir()
    for whole in files.glob("log.*"):
        shutil.copy(whole, first)
    options = replace(options, logs=[str(place), str(first)])
    assert look() == 3
    assert not told[2]["log_gaps"]
    run = replace(options, out=str(tmp_path / "run"))
    assert job.run(spark, run) == told[2]
    same(Path(options.out), Path(run.out))


def test_a_python_process_that_starts_late_does_not_end_the_stream(
    spark: SparkSession,
    grown: tuple[Path, job.Options],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark waits for 10 seconds for the process of a source. The second one starts in time."""
    python, late = tmp_path / "python", tmp_path / "late"
    python.write_text(
        f"""#!/bin/sh
case "$*" in *python_streaming_source_runner*) mkdir {late} && exec sleep 60;; esac
exec {sys.executable} "$@"
"""
    )
    python.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    options = job.Options([str(grown[0])], str(tmp_path / "out"))
    job_stream.prepare(options.out)
    assert job_stream.record(spark, options)
    assert late.exists()


def test_a_stream_keeps_to_its_directories(
    spark: SparkSession, grown: tuple[Path, job.Options], tmp_path: Path
) -> None:
    """A stream refuses an ``--out`` that belongs to other logs or to a run, before it writes
    anything."""
    logs, options = grown
    ended = threading.Event()
    ended.set()
    shutil.copytree(logs, tmp_path / "other")
    (Path(options.out) / "stream.json").write_text(
        json.dumps({"layout": job_stream._LAYOUT, "logs": ["/elsewhere"]})
    )
    with pytest.raises(AuditError, match="the stream also reads /elsewhere: also name these"):
        job_stream.stream(spark, options, 1, ended, print)
    (Path(options.out) / "stream.json").write_text('{"logs": []}')
    with pytest.raises(AuditError, match="is a stream of another zkaudit version"):
        job_stream.stream(spark, options, 1, ended, print)
    (Path(options.out) / "stream.json").unlink()
    out = tmp_path / "run"
    (out / "tables").mkdir(parents=True)
    (out / "summary.json").write_text("{}")
    with pytest.raises(AuditError, match="is not a stream"):
        job_stream.stream(spark, job.Options([str(logs)], str(out)), 1, ended, print)


def test_ctrl_c_ends_the_command_and_the_next_one_goes_on(
    spark: SparkSession, grown: tuple[Path, job.Options], tmp_path: Path
) -> None:
    """Ctrl-C ends the command with status 130, whole tables and no traceback. The next stream
    reads nothing twice."""
    logs, _ = grown
    options = job.Options([str(logs)], str(tmp_path / "out"))
    argv = [sys.executable, "-m", "zkaudit.cli", "stream", "--zookeeper-logs", str(logs)]
    argv += ["--out", options.out, "--master", "local[1]", "--every", "1000"]
    process = subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(b"report: "):
                break
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130, errors.decode()
    assert b"Traceback" not in errors
    assert (tmp_path / "out" / "report.html").exists()
    batches = buckets.Recorder(tmp_path / "out").batches()
    again: list[dict[str, Any]] = []
    job_stream.stream(spark, options, 1, threading.Event(), again.append, once=True)
    assert again == []
    assert buckets.Recorder(tmp_path / "out").batches() == batches
