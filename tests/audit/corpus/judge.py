"""Audit the recorded incidents and compare the findings with the labels.

``python -m tests.audit.corpus.judge`` does so for all corpora, or for those that are named. With
``--play`` their incidents are recorded again first.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from zkaudit.decode.batches import LogReader
from zkaudit.findings.kinds import KINDS
from zkaudit.job.audit import Options, run
from zkaudit.job.spark import session
from zkaudit.limits import SEVERITIES, Limits
from zkaudit.report.found import read

from tests.audit.corpus.held_out import (
    HELD_OUT,
    HELD_OUT_LATE,
    HELD_OUT_OWNERSHIP,
    HELD_OUT_REAL,
)
from tests.audit.corpus.incidents import RECORDED, WRITTEN_WITH_THE_RULES, Corpus
from tests.audit.corpus.play import CUT, record, unpacked

VARIANTS = ("whole", "late")
IN_CI = VARIANTS if os.environ.get("CORPUS") == "all" else VARIANTS[:1]
"""The variants that tests audit with Spark; ``make test-corpus``: all."""
JUDGED = (
    (WRITTEN_WITH_THE_RULES, VARIANTS),
    (HELD_OUT, VARIANTS[:1]),
    (HELD_OUT_OWNERSHIP, VARIANTS[:1]),
    (HELD_OUT_LATE, VARIANTS),
    (HELD_OUT_REAL, VARIANTS[:1]),
)
"""Not all held-out incidents have labels for a log that begins late."""


@dataclass
class Verdict:
    """Findings that match a label, labels that were missed, and findings without a label."""

    right: int = 0
    missed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    proven: list[str] = field(default_factory=list)
    """Those findings in ``wrong`` that were stated as proven."""

    @property
    def recall(self) -> float:
        """The share of labels that were found."""
        return self.right / max(1, self.right + len(self.missed))

    @property
    def precision(self) -> float:
        """The share of findings that have a label."""
        return self.right / max(1, self.right + len(self.wrong))

    def lines(self) -> Iterator[str]:
        """The lines to print."""
        total = self.right + len(self.missed)
        yield f"recall {self.recall:.3f} ({self.right} of {total} labels)"
        yield f"precision {self.precision:.3f} ({self.right} of {self.right + len(self.wrong)})"
        yield f"stated as proven and wrong: {len(self.proven)}"
        yield from (f"missed: {text}" for text in self.missed)
        yield from (f"wrong: {text}" for text in self.wrong)


def directories(out: Path, corpus: Corpus = WRITTEN_WITH_THE_RULES) -> dict[str, Path]:
    """Create the log directory of each variant below ``out`` and return them."""
    whole, late = out / "logs-whole", out / "logs-late"
    for place in (whole, late):
        place.mkdir(parents=True)
    log = unpacked(corpus, whole)
    content = log.read_bytes()
    rows = [row for batch in LogReader(log).batches() for row in batch.to_pylist()]
    cut = next(row["zxid"] for row in rows if row["path"] == CUT)
    first = next(row for row in rows if row["zxid"] > cut)
    # A purged log has the file's header, then the records from some point on.
    name = f"log.{first['zxid']:x}"
    (late / name).write_bytes(content[:16] + content[first["position"] :])
    return {"whole": whole, "late": late}


def judge(
    spark: SparkSession,
    out: Path,
    variants: Iterable[str] = VARIANTS,
    corpus: Corpus = WRITTEN_WITH_THE_RULES,
) -> Verdict:
    """Audit the variants and compare the findings with the labels."""
    logs = directories(out, corpus)
    for variant in variants:
        limits = Limits(**corpus.limits)
        run(spark, Options([str(logs[variant])], str(out / variant), limits=limits))
    return verdict_of(out, variants, corpus)


def verdict_of(
    out: Path, variants: Iterable[str] = VARIANTS, corpus: Corpus = WRITTEN_WITH_THE_RULES
) -> Verdict:
    """Compare the findings of audits in ``out`` with the labels."""
    verdict = Verdict()
    for variant in variants:
        compare(verdict, variant, read(out / variant), corpus)
    return verdict


def compare(verdict: Verdict, variant: str, rows: list[dict[str, Any]], corpus: Corpus) -> None:
    """Add one variant's findings to a verdict."""
    for name, incident in corpus.incidents.items():
        labels = Counter(getattr(incident, "must" if variant == "whole" else variant))
        for row in (row for row in rows if row["group_id"] == name):
            label = next((label for label in labels if labels[label] and fits(label, row)), None)
            if label is not None:
                labels[label] -= 1
                verdict.right += 1
            elif row["kind"] not in incident.may:
                text = f"{variant} {name}: {label_of(row)} ({row['severity']}, {row['basis']}): "
                verdict.wrong.append(text + row["sentence"])
                if row["basis"] == "proven":
                    verdict.proven.append(text)
        verdict.missed += [f"{variant} {name}: {label}" for label in labels.elements()]
    for row in rows:
        assert is_declared(row), row
    unknown = {str(row["group_id"]) for row in rows} - corpus.incidents.keys()
    assert not unknown, unknown


def fits(label: str, row: dict[str, Any]) -> bool:
    """Return whether a finding matches a label."""
    parts = label.split("/")
    return label_of(row).split("/")[: len(parts)] == parts


def is_declared(row: dict[str, Any]) -> bool:
    """Return whether the table of kinds has a finding's kind with its severity, or with the next
    higher one, which a doubt lowers."""
    severities = KINDS[row["kind"]].severities
    doubted = SEVERITIES[max(0, SEVERITIES.index(row["severity"]) - 1)]
    return row["severity"] in severities or (row["basis"] == "inferred" and doubted in severities)


def label_of(row: dict[str, Any]) -> str:
    """The longest label that describes a finding."""
    return f"{row['kind']}/{row['effect']}/{row['messages']}"


if __name__ == "__main__":
    chosen = [judged for judged in JUDGED if judged[0].name in sys.argv[1:]] or JUDGED
    with tempfile.TemporaryDirectory() as folder:
        for corpus, variants in chosen:
            if "--play" in sys.argv[1:]:
                record(corpus, RECORDED / corpus.name)
            verdict = judge(session("local[2]"), Path(folder) / corpus.name, variants, corpus)
            lines = (corpus.name, *verdict.lines())
            sys.stdout.writelines(f"{line}\n" for line in lines)
