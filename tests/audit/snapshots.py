"""Writes snapshots as a server does, from znodes or from the operations of a log."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from zkaudit.decode.snapshot import STAT


def snapshot_of(nodes: Iterable[tuple[bytes, bytes | None, tuple[int, ...]]]) -> bytes:
    """A plain snapshot: path, content and the nine numbers of each znode. The root is first."""
    parts = [struct.pack(">4siqii", b"ZKSN", 2, 0, 0, 0)]
    for path, data, stat in nodes:
        size = -1 if data is None else len(data)
        parts += [struct.pack(">i", len(path)), path, struct.pack(">i", size), data or b""]
        parts += [struct.pack(">q", 1), STAT.pack(*stat)]
    content = b"".join([*parts, struct.pack(">i", 1), b"/"])
    return content + struct.pack(">qi", zlib.adler32(content), 1) + b"/"


def snapshot_after(rows: Iterable[dict[str, Any]]) -> bytes:
    """The snapshot after some operations: rows of ``schema.TXNLOG``, from the first one on."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        path = row["path"]
        if row["type"].startswith("create") and path is not None:
            found[path] = {"data": row["data"], "created": row, "set": row}
        elif row["type"] == "setData":
            found[path] |= {"data": row["data"], "set": row}
        elif row["type"].startswith("delete"):
            del found[path]
        elif row["type"] == "closeSession":
            session = row["session"]
            gone = [name for name, node in found.items() if _owner(node["created"]) == session]
            for name in gone:
                del found[name]

    def ms(time: datetime) -> int:
        return round(time.timestamp() * 1000)

    nodes: list[tuple[bytes, bytes | None, tuple[int, ...]]] = [(b"", b"", (0,) * 9)]
    for path, node in found.items():
        created, last = node["created"], node["set"]
        times = (created["zxid"], last["zxid"], ms(created["time"]), ms(last["time"]))
        version = 0 if last is created else last["version"]
        stat = (*times, version, 0, 0, _owner(created), created["zxid"])
        nodes.append((path.encode(), node["data"], stat))
    return snapshot_of(nodes)


def _owner(created: dict[str, Any]) -> int:
    return int(created["session"]) if created["ephemeral"] else 0
