"""Converts Arrow tables to events, znodes in snapshots, and the facts of a history. Any thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from zkaudit.group import ACTS, Coverage, Event, FactsReader, LogGap, Shown

EVENT_COLUMNS: Final = (
    "zxid", "idx", "time", "session", "type", "path", "data", "ephemeral", "cxid", "deleted",
)  # fmt: skip
NODE_COLUMNS: Final = (
    "zxid", "path", "data", "czxid", "ctime", "mzxid", "mtime", "ephemeral_owner",
)  # fmt: skip
OF_ALL_GROUPS: Final = ("/brokers/ids/", "/brokers/topics/")
"""Parts of the paths of znodes that do not belong to one group."""


def events_of(rows: pa.Table) -> list[Event]:
    """Return rows of a transaction log as events, in order. ``rows`` must have the columns
    ``EVENT_COLUMNS``."""
    rows = rows.filter(pc.is_in(rows["type"], pa.array(list(ACTS)))).select(EVENT_COLUMNS)
    columns: dict[str, Iterable[Any]] = {name: rows[name].to_pylist() for name in EVENT_COLUMNS[:2]}
    columns["time"] = rows["time"].cast(pa.int64()).to_pylist()
    for name in EVENT_COLUMNS[3:]:
        columns[name] = (
            list(_shared(rows[name])) if name in ("type", "path") else (rows[name].to_pylist())
        )
    columns["type"] = [ACTS[kind] for kind in columns["type"]]
    return list(map(Event, *columns.values()))


def _shared(column: pa.ChunkedArray) -> Iterator[Any]:
    """Return the values of a column in which most values are repeated."""
    encoded = column.combine_chunks().dictionary_encode()
    values = encoded.dictionary.to_pylist()
    return (None if place is None else values[place] for place in encoded.indices.to_pylist())


def shown_of(nodes: pa.Table) -> Iterator[Shown]:
    """Yield the znodes in rows of snapshots. ``nodes`` must have the columns ``NODE_COLUMNS``."""
    nodes = nodes.select(NODE_COLUMNS)
    for name in ("ctime", "mtime"):
        at = nodes.schema.get_field_index(name)
        nodes = nodes.set_column(at, name, nodes[name].cast(pa.int64()))
    for row in nodes.to_pylist():
        yield Shown(*row.values())


def read_facts(rows: pa.Table, nodes: pa.Table | None, log_gaps: Sequence[LogGap]) -> FactsReader:
    """Read the sessions, topics and brokers of a history. Other rows are ignored."""
    reader = FactsReader(Coverage(log_gaps))
    opened = rows.filter(pc.equal(rows["type"], "createSession"))
    for row in opened.select(["session", "zxid"]).to_pylist():
        reader.open(**row)
    for event in events_of(_of_all_groups(rows)):
        reader.read(event)
    for shown in shown_of(_of_all_groups(nodes)) if nodes is not None else ():
        reader.show(shown)
    return reader


def _of_all_groups(table: pa.Table) -> pa.Table:
    parts = [pc.match_substring(table["path"], part) for part in OF_ALL_GROUPS]
    return table.filter(pc.or_(*parts))
