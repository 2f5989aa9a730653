"""The modes of groups in live migrations.

Runs in the driver's thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any

from pyspark.sql import DataFrame, functions as F

from zkaudit.history.staging import Stage
from zkaudit.tables.catalog import GROUP


def migrations(stage: Stage, addresses: Mapping[int, str]) -> DataFrame:
    """Return the table ``migrations``. ``addresses``: addresses of clients by session."""
    rows = stage.rows("migrations")
    if not addresses:
        return rows.withColumn("address", F.lit(None))
    known = rows.sparkSession.createDataFrame([*addresses.items()], "session long, address string")
    return rows.join(known, "session", "left")


def summary(modes: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a summary of each group's live move: its last mode, when that was written, and the
    members that have not acknowledged it. ``modes``: rows of the table ``migrations``."""
    for place, each in groupby(sorted(modes, key=_order), itemgetter(*GROUP)):
        *earlier, last = each
        since = last["start_time"]
        yield {
            **dict(zip(GROUP, place, strict=True)),
            "mode": last["mode"],
            "since": since and since.isoformat(" ", "seconds"),
            "ended": last["ended"],
            "changes": len(earlier),
            "late": last["late"],
        }


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    numbers = (-1 if row[name] is None else row[name] for name in ("start_zxid", "version"))
    return (*(row[name] for name in GROUP), *numbers)
