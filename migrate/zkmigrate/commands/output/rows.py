"""The rows that commands print, and the schemas of ``--json``.

A JSON document is ``{"schema": NAME, "version": NUMBER, "rows": [...]}``. The version of a schema
changes when a column is removed or its meaning changes. With ``--watch`` and ``--hold`` each line
is an object with the schema, the version, the time ``at`` and the columns.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, Final, Literal, NamedTuple, TypeVar

from zkconsumer.console.exclusive import flags
from zkconsumer.console.tables import How, print_rows
from zkmigrate.plan.values import StaysBehind
from zkmigrate.reasons import Reason

F = TypeVar("F", bound=Callable[..., Any])

Type = Literal["string", "integer", "boolean", "array"]


class InTable(Enum):
    """When a table shows a column. JSON and CSV have all columns."""

    YES = "yes"
    IF_ANY = "if a cell of it is not empty"
    NO = "no"


class Column(NamedTuple):
    """A column of the output. ``nullable``: its cells may be null."""

    name: str
    type: Type
    meaning: str
    nullable: bool = False
    table: InTable = InTable.YES


class Schema(NamedTuple):
    """The columns of one kind of rows. ``commands``: the commands that print such rows."""

    version: int
    commands: tuple[str, ...]
    row: str
    columns: tuple[Column, ...]


_GROUP: Final = Column("group", "string", "Name of the group in ZooKeeper.")
_KAFKA: Final = Column(
    "kafka_group", "string", "Name in Kafka, if it differs; else empty.", table=InTable.NO
)
_OUTCOME: Final = Column(
    "outcome",
    "string",
    "`done`, `was done before`, `nothing to do`, `would be done`, `skipped`, `refused` or "
    "`failed`.",
)
_WHY: Final = Column("why", "string", "The reason as a sentence; empty if there is none.")
_REASONS: Final = Column(
    "reasons", "array", "Codes of the reasons: see the table of reasons.", table=InTable.NO
)
_STAYS: Final = Column(
    "stays_behind",
    "array",
    "Offsets that the plan leaves out: objects with `topic`, `partition`, `offset` and `why`.",
    table=InTable.NO,
)

SCHEMAS: Final[Mapping[str, Schema]] = {
    "plan": Schema(
        1,
        ("plan",),
        "each problem of a group, or for a group without one",
        (
            _GROUP,
            Column("verdict", "string", "`ready`, `moved`, `needs a decision`, `refused` or "
                   "`ignored`."),
            Column("partitions", "integer", "Partitions in the plan."),
            Column("to_write", "integer", "Offsets that `apply` writes."),
            Column("kind", "string", "Code of the reason, such as `conflict`; empty if none."),
            Column("what", "string", "Description of the problem."),
            Column("fix", "string", "What to do."),
            Column("notes", "string", "Remarks that need no decision.", table=InTable.NO),
            _STAYS,
            _KAFKA,
        ),
    ),
    "translation": Schema(
        1,
        ("plan --to-cluster",),
        "each partition, and each problem of a group",
        (
            _GROUP,
            Column("topic", "string", "Topic. This column and the next six are null for a "
            "problem.", True),
            Column("partition", "integer", "Partition.", True),
            Column("offset", "integer", "Offset in this cluster.", True),
            Column("to_topic", "string", "Topic in the other cluster.", True),
            Column("to_offset", "integer", "Offset in the other cluster, or its lower bound if it "
                   "is not proven; null if unknown.", True),
            Column("highest", "integer", "Upper bound; null if unknown.", True),
            Column("found", "integer", "Offset that the group has there now; null if there is "
                   "none.", True, InTable.IF_ANY),
            Column("proof", "string", "`proven`, `bounded` or `unknown`; empty if nothing was "
                   "compared."),
            Column("compared", "integer", "Number of records around the offset in both logs."),
            Column("kind", "string", "Code of the reason why it is not ready; else empty."),
            _WHY,
            _KAFKA,
        ),
    ),
    "outcome": Schema(
        1,
        ("apply", "undo", "live", "lock", "unlock", "cut-over", "complete"),
        "each group",
        (
            _GROUP,
            _OUTCOME,
            Column("way", "string", "Of `undo`: `roll back`, `copy back`, `live back`, `mirror "
                   "back`, `unlock`, or empty.", table=InTable.IF_ANY),
            Column("mode", "string", "Mode of a group in a live move.", True, InTable.IF_ANY),
            Column("offsets", "integer", "Offsets that were written.", table=InTable.IF_ANY),
            _WHY,
            _REASONS,
            _STAYS,
            _KAFKA,
        ),
    ),
    "difference": Schema(
        1,
        ("status PLAN",),
        "each difference between the stores and the plan",
        (
            _GROUP,
            Column("topic", "string", "Null if the row is about the whole group.", True),
            Column("partition", "integer", "As `topic`.", True),
            Column("planned", "integer", "Offset at the move; null if there was none.", True),
            Column("found", "integer", "Offset now; null if there is none.", True),
            Column("kind", "string", "`behind`, `source-moved-on`, `ahead`, `not-moved`, "
                   "`unreadable`, `stays-behind` or `ignored`."),
            Column("what", "string", "Description of the difference."),
            _KAFKA,
        ),
    ),
    "status": Schema(
        1,
        ("status",),
        "each group",
        (
            _GROUP,
            Column("case", "string", "What has happened to the group: see the table of cases."),
            Column("truth", "string", "Store whose offsets are current: `zookeeper` or `kafka`; "
                   "or `both`, `moving`, `nothing`, `unknown`."),
            Column("zookeeper_members", "integer", "Members in ZooKeeper.", True),
            Column("kafka_members", "integer", "Members on the coordinator.", True),
            Column("zookeeper_lag", "integer", "Messages after the offsets in ZooKeeper.", True),
            Column("kafka_lag", "integer", "Messages after the offsets in Kafka.", True),
            Column("changed", "integer", "Partitions of the source store that have changed since "
                   "the move."),
            Column("locked", "string", "`locked`, `no`, `closed` or `unknown`."),
            Column("moved", "string", "Store and day of the last move, or `live: MODE`."),
            Column("days_left", "integer", "Days until the broker deletes the offsets.", True),
            Column("attention", "string", "What an operator must do; empty if nothing."),
            _REASONS,
            Column("mode", "string", "Mode of a group in a live move; else empty.",
                   table=InTable.IF_ANY),
            Column("next_modes", "string", "For each mode that may be next: `open`, or what "
                   "prevents it.", table=InTable.IF_ANY),
            Column("operator", "string", "Who wrote the group's record last, as `USER@HOST`; else "
                   "empty.", table=InTable.NO),
            Column("plan", "string", "SHA-256 of the plan of the last change; else empty.",
                   table=InTable.NO),
            Column("serial", "integer", "Version of the record.", True, InTable.NO),
            _KAFKA,
            Column("mirror", "string", "Who runs the mirror of a mirrored group, as `USER@HOST`, "
                   "or `none`; else empty.", table=InTable.IF_ANY),
            Column("mirror_lag", "integer", "Difference between the offsets of both stores, summed "
                   "over the partitions.", True, InTable.IF_ANY),
            Column("mirror_seconds", "integer", "If ZooKeeper leads: age in seconds of the oldest "
                   "offset that is not yet copied. Null if Kafka leads, as coordinators do not "
                   "return when an offset was committed.", True, InTable.IF_ANY),
            Column("mirror_since", "string", "When the store that leads began to lead, in UTC; "
                   "else empty.", table=InTable.IF_ANY),
        ),
    ),
    "gate": Schema(
        1,
        ("gate",),
        "each group, and each other place with znodes that look like offsets",
        (
            Column("group", "string", "Name of the group in ZooKeeper, or the path of the place."),
            Column("left", "boolean", "Whether anything would be lost without ZooKeeper."),
            Column("lost", "integer", "Partitions whose offset is missing or lower in Kafka."),
            Column("decided", "integer", "Offsets that a plan left behind on purpose."),
            Column("not_understood", "integer", "Znodes in another client's layout."),
            Column("members", "integer", "Members in ZooKeeper."),
            Column("last_activity", "string", "Time of the last commit, in UTC."),
            Column("kafka", "string", "Offsets in Kafka: `none`, `older`, `same`, `newer` or "
                   "`mixed`."),
            _WHY,
            _REASONS,
        ),
    ),
    "hold": Schema(
        1,
        ("lock --hold",),
        "each event of a group",
        (_GROUP, Column("what", "string", "The event as text. Do not parse it.")),
    ),
    "mirror": Schema(
        1,
        ("mirror",),
        "each group, and with `--watch` each change of a group",
        (
            _GROUP,
            Column("leader", "string", "Store whose offsets are copied to the other: `zookeeper` "
                   "or `kafka`; empty if unknown. With `--to-cluster`: `source`, or `target` after "
                   "the cut-over."),
            Column("state", "string", "`in step`, `standby` (another process mirrors it), "
                   "`behind`, `stopped`, `refused`, `skipped`, `failed`, `would be done`, "
                   "`not mirrored` or `handed over`."),
            Column("since", "string", "When this store began to lead, in UTC; empty if unknown."),
            Column("late_since", "string", "When the stores got out of step, in UTC; empty if they "
                   "are in step.", table=InTable.IF_ANY),
            _WHY,
            _REASONS,
        ),
    ),
    "reset": Schema(
        1,
        ("reset",),
        "each partition and store, and for each group that is refused",
        (
            _GROUP,
            Column("topic", "string", "Topic. This column and those below are null if the group "
            "is refused.", True),
            Column("partition", "integer", "Partition.", True),
            Column("store", "string", "`zookeeper` or `kafka`.", True),
            Column("before", "integer", "Previous offset; null if there was none.", True),
            Column("after", "integer", "New offset.", True),
            _WHY,
        ),
    ),
    "report": Schema(
        1,
        ("report",),
        "each group",
        (
            _GROUP,
            _KAFKA,
            Column("state", "string", "Outcome of the last run that worked on the group."),
            Column("offsets", "integer", "Offsets that were written."),
            Column("locked", "boolean", "Whether that run left old consumers locked out.", True),
            Column("ended", "string", "When its last step ended, in UTC.", True),
            _WHY,
            _REASONS,
            Column("changed", "array", "Offsets that were changed last: objects with `topic`, "
                   "`partition`, `store`, `before` and `after`."),
            Column("runs", "array", "The group's runs: objects with `at`, `command`, "
                   "`by`, `note`, `approved_by`, `outcome`, `mode`, `why` and `reasons`."),
        ),
    ),
}  # fmt: skip
"""The schemas by name."""


def format_options(command: F) -> F:
    """Add ``--json`` and ``--csv``, which the command receives as ``how``."""
    forms = {"json": "Print a JSON document with the rows.", "csv": "Print CSV with a header line."}
    return flags("how", "table", forms)(command)


def in_form(
    schema: str, rows: Sequence[Sequence[object]], how: How
) -> tuple[list[str], list[tuple[object, ...]]]:
    """Return the columns and cells of rows for an output format.

    Each row must have a value for every column of the schema. A table hides some columns, and shows
    a group's name in Kafka after its ZooKeeper name.
    """
    columns = SCHEMAS[schema].columns
    cells = [tuple(_cell(value, how) for value in row) for row in rows]
    if how != "table":
        return [one.name for one in columns], cells
    names = [one.name for one in columns]
    kept = [
        at
        for at, one in enumerate(columns)
        if one.table is InTable.YES
        or (one.table is InTable.IF_ANY and any(row[at] for row in cells))
    ]
    if "kafka_group" in names:
        at = names.index("kafka_group")
        cells = [(f"{row[0]} ({row[at]} in Kafka)", *row[1:]) if row[at] else row for row in cells]
    return [names[at] for at in kept], [tuple(row[at] for at in kept) for row in cells]


def _cell(value: object, how: How) -> object:
    """Return a value as a cell. In JSON, reasons and offsets that stay behind are arrays."""
    if not isinstance(value, tuple):
        return value
    parts = dict.fromkeys(one.value if isinstance(one, Reason) else one for one in value)
    if how != "json":
        return ", ".join(map(str, parts))
    return [one.document if isinstance(one, StaysBehind) else one for one in parts]


def print_table(schema: str, rows: Sequence[Sequence[object]], how: How) -> None:
    """Print rows on standard output, as a table, CSV, or a JSON document with schema and
    version."""
    columns, cells = in_form(schema, rows, how)
    if how != "json":
        print_rows(columns, cells, how)
        return
    encode = json.JSONEncoder().encode
    head = f'{{"schema": {encode(schema)}, "version": {SCHEMAS[schema].version}, "rows": ['
    between = "\n"
    sys.stdout.write(head)
    for row in cells:
        sys.stdout.write(between + encode(dict(zip(columns, row, strict=True))))
        between = ",\n"
    sys.stdout.write("\n]}\n" if rows else "]}\n")


def print_json_line(schema: str, columns: Iterable[str], cells: Iterable[object]) -> None:
    """Print one row as a JSON object on one line, with the current time."""
    at = datetime.now().astimezone().isoformat(timespec="milliseconds")
    head = {"schema": schema, "version": SCHEMAS[schema].version, "at": at}
    cells_by_name = dict(zip(columns, cells, strict=True))
    sys.stdout.write(json.dumps({**head, **cells_by_name}) + "\n")
