"""Findings in this process, each with the place of its transactions and its id."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from zkaudit.findings.ids import id_of
from zkaudit.history.committed import within
from zkaudit.limits import NOT_COVERED, SEVERITIES, Limits
from zkaudit.local.groups import folded
from zkaudit.local.history import GroupHistory
from zkaudit.tables.catalog import FINDINGS

UNCONFIRMED: Final = (
    " These transactions may never have been committed: not all of them are in the logs of a "
    "majority of the servers."
)
_PLACE: Final = ("server", "file", "position")
_LOWER: Final = dict(pairwise(SEVERITIES))
_NAMES: Final = [column.name for column in FINDINGS.columns]


def findings(history: GroupHistory, limits: Limits) -> list[dict[str, Any]]:
    """Return rows of the table ``findings``, of all groups."""
    found = [
        row
        for batch in folded(history, limits, only_findings=True)
        for row in batch.filter(_is_finding(batch)).to_pylist()
    ]
    places = Places(history)
    rows = [_located(row, places) for row in found]
    return [*rows, *_not_covered(history)]


def _is_finding(batch: pa.RecordBatch) -> pa.BooleanArray:
    return pa.array([table == "findings" for table in batch["table"].to_pylist()])


class Places:
    """Where the operations of a history are in the logs."""

    def __init__(self, history: GroupHistory) -> None:
        self._rows = history.rows.select(["zxid", *_PLACE])
        self._zxids = self._rows["zxid"].to_numpy()
        self._unconfirmed = history.plan.unconfirmed

    def of(self, zxid: int | None) -> dict[str, Any]:
        """Return server, file and position of a transaction's record; each ``None`` if it is not
        in the logs."""
        at = int(np.searchsorted(self._zxids, -1 if zxid is None else zxid))
        if zxid is None or at == len(self._zxids) or self._zxids[at] != zxid:
            return dict.fromkeys(_PLACE)
        row = self._rows.slice(at, 1).to_pylist()[0]
        return {name: row[name] for name in _PLACE}

    def is_sure(self, zxid: int | None) -> bool:
        """Whether a transaction was certainly committed, or is not in the logs."""
        return zxid is None or not within(zxid, self._unconfirmed)


def _located(row: dict[str, Any], places: Places) -> dict[str, Any]:
    row = {name: row.get(name) for name in _NAMES}
    row |= {"id": id_of(row), **places.of(row["zxid"])}
    row["evidence"] = [part | places.of(part["zxid"]) for part in row["evidence"]]
    if not all(map(places.is_sure, [row["zxid"], *(part["zxid"] for part in row["evidence"])])):
        row["severity"] = _LOWER.get(row["severity"], row["severity"])
        row["basis"] = "inferred" if row["basis"] == "proven" else row["basis"]
        row["sentence"] += UNCONFIRMED
    return row


def _not_covered(history: GroupHistory) -> Iterator[dict[str, Any]]:
    for begin, end, sentence in history.coverage.sentences():
        begin_time, end_time = (
            None if ms is None else datetime.fromtimestamp(ms / 1000, UTC) for ms in (begin, end)
        )
        row = dict.fromkeys(_NAMES) | {
            "severity": "high", "kind": NOT_COVERED, "basis": "proven", "evidence": [],
            "time": begin_time, "end_time": end_time, "sentence": sentence,
        }  # fmt: skip
        yield row | {"id": id_of(row)}
