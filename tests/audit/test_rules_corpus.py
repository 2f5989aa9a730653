"""The rules find exactly the labelled incidents in the logs as they are recorded. No Spark.

``tests/audit/tables/test_corpus.py`` compares all findings of the whole pipeline.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from zkaudit.decode.batches import LogReader
from zkaudit.group import (
    ACTS,
    Act,
    Coverage,
    Event,
    Facts,
    FactsReader,
    Moment,
    audit_group,
    znode_of,
)
from zkaudit.limits import Limits
from zkaudit.schema import NODE_EXISTS

from tests.audit.corpus.incidents import Corpus
from tests.audit.corpus.judge import JUDGED, Verdict, compare, directories


def micros(time: datetime | None) -> int | None:
    """A time as the fold takes it."""
    return None if time is None else round(time.timestamp() * 1e6)


def event_of(row: dict[str, Any]) -> Event:
    """A row of the log as the fold reads it."""
    return Event(
        row["zxid"], row["idx"], micros(row["time"]), row["session"],
        Act.REFUSED if row["type"] == "error" else ACTS[row["type"]], row["path"], row["data"],
        row["ephemeral"], row["cxid"], row["deleted"], row["version"],
    )  # fmt: skip


def facts_of(rows: list[dict[str, Any]], coverage: Coverage) -> Facts:
    """Sessions, brokers and topics."""
    reader = FactsReader(coverage)
    for row in rows:
        if row["type"] == "createSession":
            reader.open(row["session"], row["zxid"])
        elif row["type"] in ACTS:
            reader.read(event_of(row))
    return reader.facts(Moment(rows[-1]["zxid"], 0, micros(rows[-1]["time"])))


def events_of(rows: list[dict[str, Any]]) -> dict[tuple[str, str], list[Event]]:
    """The events of each group: those of its znodes, and those of its sessions."""
    of: dict[tuple[str, str], list[Event]] = defaultdict(list)
    groups: dict[int, set[tuple[str, str]]] = defaultdict(set)
    for row in rows:
        kind, path, session = row["type"], row["path"], row["session"]
        refused = kind == "error" and row["error"] == NODE_EXISTS
        if kind not in ACTS and not refused:
            continue
        paths = [path] if path is not None else row["deleted"] or []
        mine = {(znode.chroot, znode.group) for znode in map(znode_of, paths) if znode is not None}
        groups[session].update(mine)
        for name in mine if path is not None else groups[session]:
            of[name].append(event_of(row))
    return of


def audited(log: Path, limits: Limits) -> list[dict[str, Any]]:
    """What the rules find in a log, as rows of table ``findings``."""
    rows = [row for batch in LogReader(log).batches() for row in batch.to_pylist()]
    begin = rows[0]["zxid"]
    coverage = Coverage() if begin == 1 else Coverage([(0, begin)], (0, None))
    facts = facts_of(rows, coverage)
    return [
        asdict(finding) | {"chroot": chroot, "group_id": group}
        for (chroot, group), events in events_of(rows).items()
        for finding in audit_group(events, facts, limits, coverage)[1]
    ]


@pytest.mark.parametrize(
    ("corpus", "variant"),
    [(corpus, variant) for corpus, variants in JUDGED for variant in variants],
    ids=lambda value: value.name if isinstance(value, Corpus) else value,
)
def test_precision_and_recall(tmp_path: Path, corpus: Corpus, variant: str) -> None:
    """All labels are found, and nothing else."""
    (log,) = directories(tmp_path, corpus)[variant].glob("log.*")
    verdict = Verdict()
    compare(verdict, variant, audited(log, Limits(**corpus.limits)), corpus)
    assert verdict.right > 0
    assert (verdict.missed, verdict.wrong) == ([], [])
