"""The audit of a time range finds the same without the quiet groups."""

from __future__ import annotations

import os
import random
import sys
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from zkaudit.decode.batches import LogReader
from zkaudit.job import audit as job
from zkaudit.job.output import load
from zkaudit.limits import Limits
from zkaudit.report.found import read
from zkaudit.sources import selection
from zkaudit.tables import catalog

from tests.audit.corpus.incidents import WRITTEN_WITH_THE_RULES, Corpus
from tests.audit.corpus.judge import JUDGED, directories
from tests.audit.quiet_histories import BUSY, QUIET, START_MS, THRESHOLDS, History, at, write
from tests.audit.tables.test_from import divided

pytestmark = pytest.mark.timeout(1200)  # two audits
EVERY = os.environ.get("CORPUS") == "all"
DAILY = (WRITTEN_WITH_THE_RULES,)
"""The other corpora are for ``make test-corpus``."""
LIMITS = Limits(
    unowned_seconds=0.01,
    jump_rate=THRESHOLDS["jump_rate"],
    stalled_seconds=THRESHOLDS["stalled_ms"] / 1000,
    contention=1,
    herd_members=1,
    storm_rebalances=2,
)
"""Low, so that more is a finding."""


def seed_of(test: str) -> random.Random:
    """Random numbers; prints how to run the test with the same ones again."""
    seed = int(os.environ.get("SEED", random.randrange(1 << 32)))
    sys.stdout.write(f"CORPUS=all SEED={seed} pytest {__file__} -k '{test}'\n")
    return random.Random(seed)


def test_each_change_alone_and_some_together(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change has a chroot of its own, and so have a hundred mixtures of changes."""
    chance = seed_of("together")
    changes = BUSY | QUIET
    mixed = [chance.sample(sorted(changes), chance.randint(2, 4)) for _ in range(100)]
    histories = []
    for number, names in enumerate([*([name] for name in changes), *mixed]):
        history = History(f"/c{number}", number)
        for name in names:
            with suppress(KeyError):  # the znode is not there any more
                changes[name](history)
        histories.append(history)
    write(histories, tmp_path / "zk")
    monkeypatch.setattr(selection, "BEFORE_START", timedelta())
    quiet = compare(spark, tmp_path / "zk", tmp_path, at(START_MS), LIMITS)
    for number, name in enumerate(changes):
        assert (f"/c{number}/g" in quiet) == (name in QUIET), name
    assert len(quiet) > 100


@pytest.mark.parametrize(
    "corpus", [corpus for corpus, _ in JUDGED if corpus in DAILY or EVERY], ids=lambda c: c.name
)
def test_quiet_groups_have_no_findings(
    spark: SparkSession, tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit of a time range finds the same without the quiet groups, and all tables have the
    same rows of the other groups. The range begins anywhere in the last third of the incidents."""
    chance = seed_of(f"{corpus.name} and findings")
    (log,) = directories(tmp_path, corpus)["whole"].iterdir()
    rows = [row for batch in LogReader(log).batches() for row in batch.to_pylist()]
    zxids = sorted({row["zxid"] for row in rows})
    cut = zxids[round(chance.uniform(0.7, 0.98) * len(zxids))]
    first = divided(log, rows, cut)
    monkeypatch.setattr(selection, "BEFORE_START", timedelta())
    names = compare(spark, log.parent, tmp_path, first["time"], Limits(**corpus.limits))
    assert names


def test_a_snapshot_that_is_purged_in_the_meantime(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit then reads the next snapshot, or only the logs, and leaves out no group."""
    write([History()], tmp_path / "zk")
    (file,) = (tmp_path / "zk").glob("snapshot.*")
    monkeypatch.setattr(selection, "BEFORE_START", timedelta())
    logs = [str(tmp_path / "zk")]
    options = job.Options(logs, str(tmp_path / "out"), start=at(START_MS).isoformat())
    assert job.run(spark, options)["quiet_groups"] == 2

    def torn(*_: object) -> bool:
        file.write_bytes(file.read_bytes()[:-1])
        return True

    monkeypatch.setattr(selection, "is_whole", torn)
    summary = job.run(spark, options)
    assert summary["quiet_groups"] == 0
    assert summary["groups"] == 2
    assert summary["torn_snapshots"] == [str(file)]


def compare(
    spark: SparkSession, logs: Path, place: Path, start: datetime, limits: Limits
) -> set[str]:
    """Audit with and without the quiet groups, and return the names of these."""
    found, frames = {}, {}
    for name in ("all", "without"):
        out = str(place / name)
        options = job.Options(
            [str(logs)], out, start=start.isoformat(), limits=limits, all_groups=name == "all"
        )
        job.run(spark, options)
        found[name] = read(Path(out))
        frames[name] = load(spark, out)[1]
    quiet = frames["without"]["quiet_groups"].toPandas()
    assert frames["all"]["quiet_groups"].isEmpty()
    names = set(quiet["chroot"] + "/" + quiet["group"])
    for row in found["all"]:
        assert f"{row['chroot']}/{row['group']}" not in names, row["sentence"]
    assert found["without"] == found["all"]
    for table in catalog.TABLES:
        if {"chroot", "group"} <= {column.name for column in table.columns}:
            if table.name == "quiet_groups":
                continue
            whole, part = (frames[name][table.name].collect() for name in ("all", "without"))
            whole = [row for row in whole if f"{row['chroot']}/{row['group']}" not in names]
            assert sorted(map(str, part)) == sorted(map(str, whole)), table.name
    owned = frames["all"]["ownership"].groupBy("chroot", "group").count().collect()
    counts = {f"{row['chroot']}/{row['group']}": row["count"] for row in owned}
    for row in quiet.itertuples():
        assert counts.get(f"{row.chroot}/{row.group}", 0) == row.partitions
    return names
