"""The rounds of a stream give the tables of one run, although each audits only what changed."""

from __future__ import annotations

import os
import random
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from zkaudit.decode.batches import LogReader
from zkaudit.job import audit as job, buckets, stream
from zkaudit.job.output import load
from zkaudit.limits import Limits
from zkaudit.local.found import findings
from zkaudit.local.groups import folded
from zkaudit.local.history import Question, read as read_logs
from zkaudit.report.found import plain, read

from tests.audit.answers import same
from tests.audit.conftest import Judged
from tests.audit.corpus.incidents import LIMITS
from tests.audit.corpus.judge import directories
from tests.audit.histories import History
from tests.audit.written import write_log

pytestmark = pytest.mark.timeout(1200)  # several audits


class Killed(BaseException):
    """Ends a round like a signal that cannot be caught."""

    @classmethod
    def now(cls, *_: Any, **__: Any) -> None:
        """Instead of publishing."""
        raise cls


class Growing:
    """A server's directory whose log grows, and the stream that follows it."""

    def __init__(self, log: Path, place: Path) -> None:
        self.content = log.read_bytes().rstrip(b"\0")
        rows = [row for batch in LogReader(log).batches() for row in batch.to_pylist()]
        self.positions = sorted({row["position"] for row in rows})
        self.rows = {row["position"]: row for row in rows}
        self.server, self.place = place / "server", place
        self.server.mkdir()
        self.log = self.server / log.name
        logs = [str(self.server)]
        self.options = job.Options(logs, str(place / "stream"), limits=Limits(**LIMITS))
        stream.prepare(self.options.out)

    def grow(self, share: float) -> None:
        """Let the log have this share of the whole one's transactions."""
        count = round(share * len(self.positions))
        end = (*self.positions, len(self.content))[count]
        self.log.write_bytes(self.content[:end])

    def last(self, share: float) -> dict[str, Any]:
        """The last transaction of this share."""
        return self.rows[self.positions[round(share * len(self.positions)) - 1]]

    def round(self, spark: SparkSession) -> dict[str, Any]:
        """Record what is new and audit it."""
        stream.record(spark, self.options)
        return stream.refresh(spark, self.options)

    def check(self, spark: SparkSession) -> buckets.State:
        """Do a round; compare it with a run over the same log."""
        summary = self.round(spark)
        run = self.place / "run"
        shutil.rmtree(run, ignore_errors=True)
        options = job.Options(self.options.logs, str(run), limits=self.options.limits)
        whole = job.run(spark, options)
        assert summary == whole
        same(Path(self.options.out), run)
        state = buckets.State.of((Path(self.options.out) / "tables").resolve())
        assert state is not None
        return state


@pytest.mark.skipif(os.environ.get("CORPUS") != "all", reason="takes minutes: make test-corpus")
@pytest.mark.parametrize("variant", ["late", "whole"])
def test_rounds_over_the_incidents(
    spark: SparkSession, tmp_path: Path, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dozens of groups, most with a mistake, whose topics are created at the begin. In between a
    process is killed after it recorded a part, and another one before it published its tables."""
    seed = random.randrange(1 << 32)
    sys.stdout.write(f"seed {seed}\n")
    chance = random.Random(seed)
    (log,) = directories(tmp_path)[variant].glob("log.*")
    growing = Growing(log, tmp_path)
    growing.grow(chance.uniform(0.4, 0.7))
    growing.round(spark)
    growing.grow(chance.uniform(0.7, 0.8))
    stream.record(spark, growing.options)  # and was killed
    with monkeypatch.context() as patched:
        patched.setattr(job, "publish", Killed.now)
        with pytest.raises(Killed):
            stream.refresh(spark, growing.options)
    tables = Path(growing.options.out) / "tables"
    assert tables.resolve().name == "tables-000001"
    unfinished = set(tables.parent.glob("tables-*")) - {tables.resolve()}
    assert any((place / "findings").is_dir() for place in unfinished)
    growing.grow(chance.uniform(0.8, 0.98))
    growing.round(spark)
    states = [buckets.State.of(tables.resolve())]
    growing.grow(1)
    states.append(growing.check(spark))
    assert any(state and state.audited for state in states), "every round audited all groups"


def test_old_history_is_deleted_and_its_owners_stay_known(
    spark: SparkSession, judged: Judged, tmp_path: Path
) -> None:
    """The first half of the history is deleted. What was there at that time or later is as in a run
    over the whole logs."""
    (log,) = judged.logs.glob("log.*")
    growing = Growing(log, tmp_path)
    half, last = growing.last(0.5), growing.last(1)
    kept = (last["time"] - half["time"]).total_seconds() - 0.001
    growing.options = replace(growing.options, retention=kept)
    growing.grow(0.5)
    stream.record(spark, growing.options)
    recorder = buckets.Recorder(Path(growing.options.out))
    (first,) = recorder.batches()
    growing.grow(1)
    summary = growing.round(spark)
    assert [one.first for one in recorder.batches()] == [1]
    assert not first.place.exists()
    begin = half["zxid"] + 1
    assert summary["log_gaps"] == [(0, begin)]
    whole, found = (load(spark, out)[1] for out in (judged.place / "whole", growing.options.out))

    def rows(tables: dict[str, Any], name: str, where: str, columns: str) -> list[str]:
        return sorted(map(str, tables[name].where(where).selectExpr(*columns.split()).collect()))

    lasting = f"(end_zxid is null or end_zxid >= {begin})"
    for name, where, columns in (
        ("ownership", lasting, "group_id topic partition start_zxid session member end_zxid ended"),
        ("registrations", lasting,
         "group_id member start_zxid session subscription end_zxid ended"),
        ("membership", f"zxid >= {begin}", "group_id member zxid change members"),
        ("partitions", "gone_zxid is null", "topic partition"),
        ("commits", f"zxid >= {begin} and owner_state = 'owner'",
         "group_id topic partition zxid committed_offset kind owner_member owner_start_zxid"),
    ):  # fmt: skip
        expected = rows(whole, name, where, columns)
        assert expected, name
        assert rows(found, name, where, columns) == expected, name
    assert not rows(found, "ownership", f"end_zxid < {begin}", "*")


def test_a_session_that_ends_in_two_groups_and_a_mirrored_group(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The session's znodes were created before the logs begin, and its end lists those of both
    groups. Each belongs to its own group, also when a later round is about only one of them. A
    third group's mirror copies offsets before and after a tool writes one: only that is found. All
    of it is so in one process, in a run and in rounds."""
    h = History()
    h.zxid = 1 << 32 | 100
    h.commit("first", 0, 10, 5)
    h.commit("second", 0, 10, 6)
    h.topic("t", 2)
    h.join("g", "a", 4)
    for partition in range(2):
        h.claim("g", partition, "a", 4)
        h.commit("g", partition, 10, 4)
    h.add("closeSession", 4)
    h.mirror("g", (20, 20), 16)
    begun = h.zxid
    h.mirror("g", (15, 15), 18)
    h.add("createSession", 17)  # so it was no member before the logs begin
    h.commit("g", 1, 99, 17)
    h.mirror("g", (30, 30), 19)
    lists = [f"/consumers/{group}/{name}" for group in ("first", "second")
             for name in ("ids/m", "owners/t/0")]  # fmt: skip
    h.add("closeSession", 5, deleted=lists)
    end = h.zxid
    h.commit("first", 0, 12, 8)
    growing = Growing(write_log(tmp_path / "whole", h.rows), tmp_path)
    first = h.rows[0]["zxid"]
    for last in (begun, end):
        growing.grow((last + 1 - first) / (h.zxid + 1 - first))
        growing.round(spark)
    growing.grow(1)
    state = growing.check(spark)
    assert len(state.audited or ()) == 1
    ended = load(spark, growing.options.out)[1]["ownership"].where(
        "group_id in ('first', 'second')"
    )
    columns = ("group_id", "topic", "partition", "session", "end_zxid")
    found = sorted(map(tuple, ended.select(*columns).collect()))
    assert found == [(group, "t", 0, 5, end) for group in ("first", "second")]
    logs = growing.options.logs
    history = read_logs(Question(logs, None, servers=1))
    batches = folded(history, growing.options.limits)
    rows = [row for batch in batches for row in batch.to_pylist() if row["table"] == "owners"]
    rows = [row for row in rows if row["group_id"] != "g"]
    assert sorted(tuple(row[name] for name in columns) for row in rows) == found
    local = findings(read_logs(Question(logs, None, servers=1)), growing.options.limits)
    for told in (plain(local, logs), read(Path(growing.options.out))):
        mine = [(one["kind"], one["session"]) for one in told if one["group_id"] == "g"]
        assert mine == [("tool write", "0x11")]
