"""Findings that one process makes from logs equal those of the pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from zkaudit.job.audit import Options, run
from zkaudit.limits import Limits
from zkaudit.local.found import findings
from zkaudit.local.history import Question, read as read_logs
from zkaudit.report.found import plain, read

from tests.audit.corpus.incidents import Corpus
from tests.audit.corpus.judge import JUDGED, directories

pytestmark = pytest.mark.timeout(1200)


@pytest.mark.parametrize(
    ("corpus", "variant"),
    [(corpus, variant) for corpus, variants in JUDGED for variant in variants],
    ids=lambda value: getattr(value, "name", value),
)
def test_every_finding_is_the_same(
    spark: SparkSession, tmp_path: Path, corpus: Corpus, variant: str
) -> None:
    """In all columns, and in their order."""
    logs = str(directories(tmp_path, corpus)[variant])
    limits = Limits(**corpus.limits)
    run(spark, Options([logs], str(tmp_path / "out"), limits=limits))
    ours = plain(findings(read_logs(Question([logs], None)), limits), [logs])
    assert list(map(_comparable, ours)) == list(map(_comparable, read(tmp_path / "out")))


def _comparable(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "address"}
