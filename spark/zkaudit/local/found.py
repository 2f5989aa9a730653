"""Findings computed in this process, each with the place of its transactions and its id."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from zkaudit.findings.places import NOWHERE, Place, not_covered, placed
from zkaudit.limits import Limits
from zkaudit.local.groups import folded
from zkaudit.local.history import GroupHistory


def findings(history: GroupHistory, limits: Limits) -> list[dict[str, Any]]:
    """Return the rows of the table ``findings`` for all groups in a history."""
    found = [
        row
        for batch in folded(history, limits, only_findings=True)
        for row in batch.filter(_is_finding(batch)).to_pylist()
    ]
    places = Places(history)
    rows = [placed(row, places.of) for row in found]
    return [*rows, *not_covered(history.coverage.sentences())]


def _is_finding(batch: pa.RecordBatch) -> pa.BooleanArray:
    return pa.array([table == "findings" for table in batch["table"].to_pylist()])


class Places:
    """Finds where in the logs the transactions of a history are."""

    def __init__(self, history: GroupHistory) -> None:
        self._rows = history.rows.select(["zxid", *Place._fields])
        self._zxids = self._rows["zxid"].to_numpy()

    def of(self, zxid: int | None) -> Place:
        """Return where in the logs a transaction is."""
        at = int(np.searchsorted(self._zxids, -1 if zxid is None else zxid))
        if zxid is None or at == len(self._zxids) or self._zxids[at] != zxid:
            return NOWHERE
        row = self._rows.slice(at, 1).to_pylist()[0]
        return Place(*(row[name] for name in Place._fields))
