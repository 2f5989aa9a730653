"""The input of the fold of ``history.batches``: its columns, and the required operations.

``history.staging`` makes the input in Spark, ``local.groups`` in memory. Both use ``selected`` to
choose the rows, and the columns of the same names. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Protocol

from zkaudit.group import ACTS
from zkaudit.schema import CREATES, DELETES, NODE_EXISTS, Column, Kind

SHOWN: Final = 0
"""The part of a group's rows with its znodes in snapshots."""
LATER: Final = 1
"""The part of a group's rows that ``LaterEvents`` reads."""
EVENTS: Final = 2
"""The part of a group's rows with all its events."""


def columns_of(**names: Kind) -> tuple[Column, ...]:
    """Return nullable columns with these names and types."""
    return tuple(Column(name, kind, True, "") for name, kind in names.items())


INPUT: Final = columns_of(
    key=Kind.LONG, part=Kind.INT, zxid=Kind.LONG, idx=Kind.INT, time=Kind.TIMESTAMP,
    session=Kind.LONG, type=Kind.STRING, path=Kind.STRING, data=Kind.BINARY,
    ephemeral=Kind.BOOLEAN, cxid=Kind.INT, deleted=Kind.STRINGS, version=Kind.INT,
    czxid=Kind.LONG, ctime=Kind.TIMESTAMP, mzxid=Kind.LONG, mtime=Kind.TIMESTAMP,
)  # fmt: skip
"""``key``: the group's key. The other columns are those of ``schema.TXNLOG`` or
``schema.SNAPSHOT``, and null in rows of the other one. A close has only the ``deleted`` znodes of
the group."""
RENAMED: Final = {"ephemeral_owner": "session"}
"""Columns of ``schema.SNAPSHOT`` that have another name in ``INPUT``."""


class Operations(Protocol):
    """Conditions for rows of ``schema.TXNLOG``, for Spark or Arrow.

    Each method returns a condition. ``&``, ``|`` and ``~`` combine conditions. A null matches
    nothing.
    """

    def type_in(self, types: Iterable[str]) -> Any:
        """Match operations of these types."""

    def path_has(self, text: str) -> Any:
        """Match paths that contain a text."""

    def path_ends(self, text: str) -> Any:
        """Match paths that end with a text."""

    def is_offset(self) -> Any:
        """Match paths of offsets (``znodes.OFFSET_PATH``)."""

    def is_ephemeral(self) -> Any:
        """Match creates of ephemeral znodes."""

    def failed_with(self, error: int) -> Any:
        """Match operations with this error."""


class Selected(NamedTuple):
    """The rows that ``Fold`` needs, as conditions from ``Operations``. Rows of all groups match."""

    acts: Any
    """Operations on znodes. Each is an event of the group in its path."""
    held: Any
    """The acts that show that their session uses the group."""
    closes: Any
    """Ends of sessions. Each is an event of all groups that the session uses."""
    refused: Any
    """Refused creates. Each is an event of all groups that the session uses, because the log has
    no path."""
    later: Any
    """The events that ``LaterEvents`` also reads: all except writes of offsets if there are log
    gaps, otherwise those that identify a session."""


def selected(rows: Operations, log_gaps: bool) -> Selected:
    """Return which rows ``Fold`` needs. ``log_gaps``: the history has log gaps."""
    created, closes, offset = (
        rows.type_in(CREATES),
        rows.type_in(("closeSession",)),
        rows.is_offset(),
    )
    acts = rows.type_in(ACTS)
    held = created & rows.is_ephemeral() & ~offset | acts & rows.path_ends("/live/mode")
    later = created & rows.path_has("/ids/") | rows.path_ends("/migration")
    if log_gaps:
        later |= (created | rows.type_in(DELETES)) & ~offset | closes
    refused = rows.type_in(("error",)) & rows.failed_with(NODE_EXISTS)
    return Selected(acts, held, closes, refused, later)
