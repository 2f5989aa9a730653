"""Findings that one process makes from logs equal those of the pipeline."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from zkaudit.decode.batches import LogReader
from zkaudit.job.audit import Options, run
from zkaudit.limits import Limits
from zkaudit.local.found import findings
from zkaudit.local.history import Question, read as read_logs
from zkaudit.report.found import plain, read

from tests.audit.corpus.held_out import HELD_OUT
from tests.audit.corpus.incidents import Corpus
from tests.audit.corpus.judge import JUDGED
from tests.audit.corpus.play import CUT, unpacked
from tests.audit.written import write_log

pytestmark = pytest.mark.timeout(1200)
ALL = os.environ.get("CORPUS") == "all"
"""Whether the whole logs of all corpora are audited, too. ``test_corpus`` compares one corpus."""
Transactions = list[list[dict[str, Any]]]


def halves(corpus: Corpus, folder: Path, cut_at: datetime) -> tuple[Transactions, Transactions]:
    """The transactions of a corpus before and after its cut, which becomes a given time. The corpus
    is below a chroot of its name."""
    log = unpacked(corpus, folder)
    rows = [row for batch in LogReader(log).batches() for row in batch.to_pylist()]
    cut = next(row for row in rows if row["path"] == CUT)

    def placed(paths: Iterable[str]) -> list[str]:
        return [f"/{corpus.name}{path}" for path in paths]

    for row in rows:
        row["time"] += cut_at - cut["time"]
        row["path"] = row["path"] and placed([row["path"]])[0]
        row["deleted"] = row["deleted"] and placed(row["deleted"])
    made = [list(parts) for _, parts in groupby(rows, itemgetter("zxid"))]
    first = next(n for n, parts in enumerate(made) if parts[0]["zxid"] > cut["zxid"])
    return made[:first], made[first:]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[Transactions, Transactions]:
    """All corpora as one history, because one audit costs as much as one for each."""
    folder = tmp_path_factory.mktemp("corpora")
    cut_at = datetime.fromisoformat("2026-11-25T12:00:00+00:00")
    parts = [halves(corpus, folder, cut_at) for corpus, _ in JUDGED]
    early, late = (
        sorted((one for half in side for one in half), key=lambda one: one[0]["time"])
        for side in zip(*parts, strict=True)
    )
    for zxid, parts_ in enumerate([*early, *late], 1):
        for row in parts_:
            row["zxid"] = zxid
    return early, late


@pytest.mark.parametrize("variant", ["whole", "late"] if ALL else ["late"])
def test_every_finding_is_the_same(
    spark: SparkSession,
    tmp_path: Path,
    history: tuple[Transactions, Transactions],
    variant: str,
) -> None:
    """In all columns, and in their order."""
    early, late = history
    chosen = [*early, *late] if variant == "whole" else late
    write_log(tmp_path / "logs", (row for parts in chosen for row in parts))
    logs, limits = str(tmp_path / "logs"), Limits(**HELD_OUT.limits)
    run(spark, Options([logs], str(tmp_path / "out"), limits=limits))
    ours = plain(findings(read_logs(Question([logs], None)), limits), [logs])
    chroots = {row["chroot"].split("/")[1] for row in ours}
    assert chroots == {corpus.name for corpus, _ in JUDGED}
    assert len({row["kind"] for row in ours}) > 20
    assert list(map(comparable, ours)) == list(map(comparable, read(tmp_path / "out")))


def comparable(row: dict[str, Any]) -> dict[str, Any]:
    """A finding without what only an audit with server logs has."""
    return {name: value for name, value in row.items() if name != "address"}
