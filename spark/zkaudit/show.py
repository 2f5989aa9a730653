"""Prints raw transactions around one zxid as text. Runs in the caller's thread; no Spark."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from typing import Any, Final

from zkaudit.decode.batches import LogReader
from zkaudit.decode.columns import Filters
from zkaudit.errors import InputMissingError, LogFormatError
from zkaudit.sources.files import distinct, find, parse_servers, within
from zkaudit.storage import shown
from zkaudit.text import hex_of, printable

MOST_DATA: Final = 200
"""Largest number of characters shown of a znode's content."""


def command(zxid: int | None, directories: Sequence[str]) -> str:
    """Return the ``zkaudit show`` command for the transactions around ``zxid``; empty if that is
    ``None``."""
    if zxid is None:
        return ""
    places = " ".join(map(shlex.quote, directories))
    return f"zkaudit show {zxid:#x} --zookeeper-logs {places}"


def transactions_around(zxid: int, directories: Sequence[str], around: int) -> Iterator[str]:
    """Yield the lines for transaction ``zxid`` and the ``around`` transactions before and after it.

    There is one line for each operation in each server's log. ``>`` marks ``zxid`` itself. If a log
    is damaged, a line says so, and the other logs are still shown. Raises LogFormatError if a log
    is damaged and no other log contains ``zxid``, and InputMissingError if no log contains it.
    """
    filters = Filters("", max(1, zxid - around), zxid + around)
    there, damage = False, None
    places = json.dumps([str(directory) for directory in directories])
    for server, pieces in find(parse_servers("", places)).items():
        yield f"{printable(server)}:"
        for piece in within(distinct(pieces)[0], filters):
            try:
                for batch in LogReader(piece.path, server, filters=filters).batches():
                    for row in batch.to_pylist():
                        there = there or row["zxid"] == zxid
                        yield line_of(row, ">" if row["zxid"] == zxid else " ")
            except LogFormatError as error:
                damage = damage or error
                yield f"  damaged, not read further: {printable(str(error))}"
    if not there and damage is not None:
        raise damage
    if not there:
        raise InputMissingError(
            f"{zxid:#x}: no log below {', '.join(map(shown, directories))} has this transaction: "
            "name the directories of the other servers, or those with older logs"
        )


def line_of(row: dict[str, Any], mark: str) -> str:
    """Return one operation (columns of ``schema.TXNLOG``) as a line of text."""
    time = row["time"].strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] if row["time"] else "?"
    parts = [
        f"{mark} {row['file']}:{row['position']}",
        f"zxid={row['zxid']:#x}" + (f"[{row['idx']}]" if row["size"] else ""),
        f"{time}Z",
        f"session={hex_of(row['session'])}",
        f"cxid={row['cxid']}",
        row["type"],
    ]
    if row["tried"]:
        parts.append(f"tried={row['tried']}")
    if row["path"] is not None:
        parts.append(printable(row["path"]))
    if row["data"] is not None:
        content = row["data"].decode("utf-8", "replace")
        more = "..." if len(content) > MOST_DATA else ""
        parts.append(f"data='{printable(content[:MOST_DATA])}'{more}")
    for name in ("version", "error", "timeout", "deleted"):
        if row[name] is not None:
            parts.append(f"{name}={printable(str(row[name]))}")
    if row["ephemeral"]:
        parts.append("ephemeral")
    return " ".join(parts)
