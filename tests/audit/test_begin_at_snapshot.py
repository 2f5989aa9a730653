"""Logs that begin at a snapshot: the findings after it are those of the whole logs.

The history of each incident is divided, just before the first write of a tool if there is one. All
first parts come before all second parts, so one snapshot divides all incidents.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from zkaudit.decode.batches import LogReader
from zkaudit.limits import Limits
from zkaudit.local.found import findings
from zkaudit.local.history import Question, read

from tests.audit.corpus.held_out import HELD_OUT
from tests.audit.corpus.incidents import WRITTEN_WITH_THE_RULES, Corpus
from tests.audit.corpus.judge import Verdict, compare
from tests.audit.corpus.play import unpacked
from tests.audit.snapshots import snapshot_after
from tests.audit.written import write_log

Rows = list[dict[str, Any]]
DIVIDED = [WRITTEN_WITH_THE_RULES]
if os.environ.get("CORPUS") == "all":  # make test-corpus
    DIVIDED.append(HELD_OUT)
NOT_SHOWN = {
    "orphan_unregistered": "that a session without a registration was a member's before",
    "zombie_of_itself": "the same",
    "recreated_out_of_range": "that a topic of the same name was deleted",
    "stalled": "that an owner had committed regularly",
    "storm": "how often the group had rebalanced",
    "storm_of_claims": "the same",
    "three_faults_in_one_group": "the first fault, which comes before the first write of a tool",
}
"""Incidents whose findings need what no snapshot shows."""


def group_of(path: str | None, groups: set[str]) -> str | None:
    """The incident to which a znode belongs, by the name of its group or topic."""
    for part in (path or "").split("/"):
        for name in (part, part.removeprefix("t-")):
            if name in groups:
                return name
    return None


def transactions(log: Path, groups: set[str]) -> list[tuple[str | None, Rows]]:
    """The transactions of a log, each with its incident."""
    rows = [row for batch in LogReader(log).batches() for row in batch.to_pylist()]
    of_session: dict[int, set[str]] = defaultdict(set)
    by_zxid: dict[int, Rows] = defaultdict(list)
    for row in rows:
        by_zxid[row["zxid"]].append(row)
        if group := group_of(row["path"], groups):
            of_session[row["session"]].add(group)
    made = []
    for _, parts in sorted(by_zxid.items()):
        named = {g for row in parts if (g := group_of(row["path"], groups))}
        named = named or of_session[parts[0]["session"]]
        made.append((min(named) if len(named) == 1 else None, parts))
    return made


def second_part(made: list[tuple[str | None, Rows]], group: str) -> int:
    """The transaction with which an incident's second part begins: the first write of an offset by
    a session that is not a member's, or else the middle."""
    mine = [(zxid, rows) for zxid, (name, rows) in enumerate(made, 1) if name == group]
    members = {row["session"] for _, rows in mine for row in rows if "/ids/" in (row["path"] or "")}
    begun = next((zxid for zxid, rows in mine if "/offsets/" in (rows[0]["path"] or "")), 0)
    for zxid, rows in mine:
        for row in rows:
            offset = row["type"] == "setData" and f"/{group}/offsets/" in row["path"]
            if zxid > begun and offset and row["session"] not in members:
                return zxid
    return mine[len(mine) // 2][0]


@pytest.mark.parametrize("corpus", DIVIDED, ids=lambda corpus: str(corpus.name))
def test_findings_after_a_snapshot(tmp_path: Path, corpus: Corpus) -> None:
    """The offset that a snapshot shows is where the group had come to, and who is not in it does
    not own or consume. So a loss stays a loss, and nothing is found that the whole logs do not
    have."""
    groups = set(corpus.incidents)
    made = transactions(unpacked(corpus, tmp_path), groups)
    begins = {group: second_part(made, group) for group in groups}
    late = [group is not None and zxid >= begins[group] for zxid, (group, _) in enumerate(made, 1)]
    early = [rows for is_late, (_, rows) in zip(late, made, strict=True) if not is_late]
    rest = [rows for is_late, (_, rows) in zip(late, made, strict=True) if is_late]
    rows = [row | {"zxid": zxid} for zxid, parts in enumerate([*early, *rest], 1) for row in parts]
    last, logs = len(early), tmp_path / "late"
    write_log(logs, (row for row in rows if row["zxid"] > last))
    snapshot = snapshot_after(row for row in rows if row["zxid"] <= last)
    (logs / f"snapshot.{last:x}").write_bytes(snapshot)
    history = read(Question([str(logs)], None))
    verdict = Verdict()
    names = {f"{name}:" for name in NOT_SHOWN}
    compare(verdict, "whole", findings(history, Limits(**corpus.limits)), corpus)
    wrong = [text for text in (*verdict.missed, *verdict.wrong) if text.split()[1] not in names]
    assert verdict.right > 20
    assert not wrong
