"""Places of findings' transactions in the logs, and whether these were certainly committed.

A reader can find the file and the byte for each sentence. ``placed`` handles one finding, and
``located`` applies it to a data frame. The driver only builds DataFrames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from zkaudit.findings.ids import id_of
from zkaudit.limits import NOT_COVERED, SEVERITIES
from zkaudit.tables.catalog import FINDINGS
from zkaudit.text import hex_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

UNCONFIRMED: Final = (
    " These transactions may never have been committed: not all of them are in the logs of a "
    "majority of the servers."
)
_LOWER: Final = dict(pairwise(SEVERITIES))
_NAMES: Final = [column.name for column in FINDINGS.columns]


class Place(NamedTuple):
    """Where in the logs a transaction is."""

    server: str | None = None
    file: str | None = None
    position: int | None = None
    confirmed: bool = True
    """Whether the transaction was certainly committed."""


NOWHERE: Final = Place()
"""The place of a transaction that is not in the logs."""


def placed(
    finding: Mapping[str, Any], place_of: Callable[[int | None], Place], address: str | None = None
) -> dict[str, Any]:
    """Return a finding as a row of table ``findings``, with its id and places.

    The row has ``server``, ``file`` and ``position`` for the finding and for its evidence.
    ``address``: the address of the session's client. If a transaction may never have been
    committed, a finding that depends on it becomes ``inferred``, gets the next lower severity, and
    its sentence says so.
    """
    row: dict[str, Any] = {name: finding.get(name) for name in _NAMES}
    place = place_of(row["zxid"])
    parts = [(part, place_of(part["zxid"])) for part in finding["evidence"]]
    row |= {"id": id_of(row), "address": address, **_stored(place)}
    row["evidence"] = [part | _stored(its) for part, its in parts]
    if address is not None:
        how = "was resumed: it came from" if ", " in address else "came from"
        row["sentence"] += f" Session {hex_of(row['session'])} {how} {address}."
    if not all(its.confirmed for its in (place, *(its for _, its in parts))):
        row["severity"] = _LOWER.get(row["severity"], row["severity"])
        row["basis"] = "inferred" if row["basis"] == "proven" else row["basis"]
        row["sentence"] += UNCONFIRMED
    return row


def _stored(place: Place) -> dict[str, Any]:
    return {"server": place.server, "file": place.file, "position": place.position}


def not_covered(
    times: Iterable[tuple[datetime | None, datetime | None, str]],
) -> Iterator[dict[str, Any]]:
    """Yield a finding, without a group, for each period that no log covers. ``times``: begin, end
    and a sentence for each."""
    for begin, end, sentence in times:
        row = dict.fromkeys(_NAMES) | {
            "severity": "high", "kind": NOT_COVERED, "basis": "proven", "evidence": [],
            "time": begin, "end_time": end, "sentence": sentence,
        }  # fmt: skip
        yield row | {"id": id_of(row)}


def located(found: DataFrame, transactions: DataFrame, addresses: Mapping[int, str]) -> DataFrame:
    """Return the table ``findings``, with rows from ``placed``.

    ``found``: the findings. It should be stored, because it is read twice, the first time for the
    zxids to look up. ``transactions``: rows with server, file, position, zxid and confirmed.
    ``addresses``: addresses of clients by session.
    """
    from pyspark.sql import functions as F

    zxids = F.concat(F.array("zxid"), F.transform("evidence", lambda part: part["zxid"]))
    wanted = found.select(F.explode(zxids).alias("zxid"))
    rows = transactions.join(wanted, "zxid", "left_semi").select("zxid", *Place._fields).toArrow()
    places: dict[int, Place] = {}
    for row in sorted(zip(*(column.to_pylist() for column in rows.columns), strict=True)):
        zxid, *place, confirmed = row
        first = places.setdefault(zxid, Place(*place))
        places[zxid] = first._replace(confirmed=first.confirmed and confirmed)
    columns = FINDINGS.spark_type()
    return found.mapInArrow(partial(_placed, FINDINGS.arrow_schema(), places, addresses), columns)


def _placed(
    schema: pa.Schema,
    places: Mapping[int, Place],
    addresses: Mapping[int, str],
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Add the places. Runs in Spark's Python workers."""
    import pyarrow as pa

    def of(row: dict[str, Any]) -> dict[str, Any]:
        return placed(
            row, lambda zxid: places.get(zxid or 0, NOWHERE), addresses.get(row["session"])
        )

    for batch in batches:
        yield pa.RecordBatch.from_pylist(list(map(of, batch.to_pylist())), schema=schema)
