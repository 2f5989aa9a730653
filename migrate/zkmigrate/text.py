"""Formats lists of names, offsets and days for messages. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, Self

from zkconsumer.admin.printable import shown

__all__ = [
    "DAY_MS",
    "SOON_DAYS",
    "Note",
    "day",
    "late_text",
    "moment",
    "show",
    "shown",
    "unlisted_note",
]


DAY_MS: Final = 86_400_000
SOON_DAYS: Final = 3
"""Offsets that the broker deletes in fewer days need attention."""


class Note(str):
    """A remark that ends with a list of names. ``short``: the same with only the first names."""

    __slots__ = ("short",)
    short: str

    def __new__(cls, head: str, names: Iterable[str]) -> Self:
        """Create a remark from its beginning and all names."""
        every = list(names)
        note = super().__new__(cls, head + ", ".join(every))
        note.short = head + shown(every)
        return note


def day(at_ms: int) -> str:
    """Return the UTC day of a time, as ``2024-05-31``."""
    return moment(at_ms)[:10]


def moment(at_ms: int) -> str:
    """Return a time in UTC, as ``2024-05-31T07:00:00Z``."""
    at = datetime.fromtimestamp(min(at_ms, 253_402_300_799_000) / 1000, UTC)
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")


def show(offset: int | None) -> str:
    """Return an offset as text for messages."""
    return "none" if offset is None else str(offset)


def late_text(partitions: Sequence[object], more: int = 0) -> str:
    """Return the message that newer offsets of these partitions may have been overwritten.

    ``more``: the number of further partitions, whose names are unknown.
    """
    others = f", and {more} that only the journal of that run names" if more else ""
    return (
        f"{shown(map(str, partitions))}{others}: newer offsets may have been overwritten in Kafka, "
        "as the session with ZooKeeper had ended, or another client has committed meanwhile: "
        "compare them with their consumers, and set the right ones with zkmigrate reset"
    )


def unlisted_note(partitions: Sequence[str]) -> str:
    """Return the message that Kafka could not list the groups on these partitions."""
    return f"groups may be missing, because these partitions have no leader: {shown(partitions)}"
