"""``--from`` reads the logs from the snapshot before that time, and finds the same in that time."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from zkaudit.decode.batches import LogReader
from zkaudit.job import audit as job
from zkaudit.job.output import load
from zkaudit.limits import Limits
from zkaudit.report.found import Choice, read
from zkaudit.sources import selection

from tests.audit.conftest import Judged
from tests.audit.corpus.incidents import LIMITS
from tests.audit.corpus.judge import directories
from tests.audit.corpus.play import CUT
from tests.audit.snapshots import snapshot_after

pytestmark = pytest.mark.timeout(1200)  # two audits


def divided(log: Path, rows: list[dict[str, Any]], cut: int) -> dict[str, Any]:
    """Let the server begin a new log after transaction ``cut``, and write a snapshot then. Return
    the first row behind that."""
    first = next(row for row in rows if row["zxid"] > cut)
    content = log.read_bytes()
    (log.parent / f"log.{first['zxid']:x}").write_bytes(content[:16] + content[first["position"] :])
    log.write_bytes(content[: first["position"]])
    before = snapshot_after(row for row in rows if row["zxid"] <= cut)
    (log.parent / f"snapshot.{first['zxid'] - 1:x}").write_bytes(before)
    return first


@pytest.fixture
def server(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A server that began a new log in the middle of the incidents, and the first row in it."""
    (log,) = directories(tmp_path)["whole"].iterdir()
    rows = [row for batch in LogReader(log).batches() for row in batch.to_pylist()]
    cut = next(row["zxid"] for row in rows if row["path"] == CUT)
    return log.parent, divided(log, rows, cut)


def test_the_first_zxid_to_read(
    server: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It follows a whole snapshot that is an hour older than the time. Without one, all is read."""
    place, first = server
    hour = selection.BEFORE_START
    assert hour == timedelta(hours=1)
    after = first["time"] + hour

    def begin(time: datetime) -> int | None:
        asked = time.replace(tzinfo=None).isoformat()
        found = selection.begin_snapshot(*selection.find([place]), asked)
        return None if found is None else found.zxid + 1

    assert begin(after) == begin(after + hour) == first["zxid"]
    assert begin(after - timedelta(milliseconds=1)) is None
    assert selection.begin_snapshot(*selection.find([place]), None) is None
    logs, _ = selection.find([place])
    names = [Path(log.path).name for log in selection.within(logs, first["zxid"], None)]
    assert names == [f"log.{first['zxid']:x}"]
    (newest,) = place.glob("snapshot.*")
    older = place / f"snapshot.{first['zxid'] - 10:x}"
    newest.rename(older)
    assert begin(after) == first["zxid"] - 9
    newest.write_bytes(older.read_bytes()[:-1])
    assert begin(after) == first["zxid"] - 9
    older.unlink()
    assert begin(after) is None


def test_logs_before_the_snapshot_are_not_read(
    spark: SparkSession,
    tmp_path: Path,
    server: tuple[Path, dict[str, Any]],
    judged: Judged,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The findings of the second half of the incidents, from the second half of the logs."""
    logs, first = server
    start = first["time"].isoformat()
    monkeypatch.setattr(selection, "BEFORE_START", timedelta())
    out = str(tmp_path / "part")
    options = job.Options([str(logs)], out, start=start, limits=Limits(**LIMITS))
    assert job.run(spark, options)["log_gaps"] == [(0, first["zxid"])]
    found = {
        "part": read(Path(out)),
        "whole": [*Choice(start=start).of(read(judged.place / "whole"))],
    }
    commits = {}
    for name, place in (("part", out), ("whole", judged.place / "whole")):
        table = load(spark, place)[1]["commits"].where(f"zxid >= {first['zxid']}")
        columns = ("zxid", "group_id", "committed_offset", "previous", "kind", "owner_member",
                   "owner_state")  # fmt: skip
        commits[name] = sorted(map(str, table.select(*columns).collect()))
    assert commits["part"] == commits["whole"]
    assert len(commits["part"]) > 100
    whole, part = (
        {(r["group_id"], r["kind"], r["severity"], r["basis"], r["sentence"]) for r in rows}
        for rows in (found["whole"], found["part"])
    )
    begun = [row for row in found["whole"] if datetime.fromisoformat(row["time"]) >= first["time"]]
    assert len(begun) > 20
    # Who owned a partition before the snapshot is not known: a partition without an owner may
    # have had one, and a session that raised an offset may have delivered what it skipped.
    only, instead = ({key[:2]: key for key in some} for some in (whole - part, part - whole))
    never, orphan = ("never_claimed", "orphan partition"), ("orphan", "orphan commit")
    assert only.keys() == instead.keys() == {never, orphan}
    assert only[never][:4] == instead[never][:4]
    text = "t-never_claimed-1 of group never_claimed "
    assert text + "never had an owner" in only[never][4]
    assert text + "had no owner when the logs begin" in instead[never][4]
    assert "unless this session had delivered them" in instead[orphan][4]
    assert "unless this session had delivered them" not in only[orphan][4]


def test_a_snapshot_that_is_purged_in_the_meantime(
    spark: SparkSession,
    tmp_path: Path,
    server: tuple[Path, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The audit then reads only the logs after it, and says so."""
    logs, first = server
    (file,) = logs.glob("snapshot.*")
    monkeypatch.setattr(selection, "BEFORE_START", timedelta())

    def torn(*_: object) -> bool:
        file.write_bytes(file.read_bytes()[:-1])
        return True

    monkeypatch.setattr(selection, "is_whole", torn)
    options = job.Options([str(logs)], str(tmp_path / "out"), start=first["time"].isoformat())
    summary = job.run(spark, options)
    assert summary["torn_snapshots"] == [str(file)]
    assert summary["log_gaps"] == [(0, first["zxid"])]
    assert summary["groups"] > 1
