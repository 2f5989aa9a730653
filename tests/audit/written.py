"""Writes transaction logs as a server does, from rows of ``schema.TXNLOG`` (``histories.History``).

Rows of one multi have the same zxid.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from zkaudit.schema import TYPES

CODES = {name: code for code, name in TYPES.items()}
_ACL = struct.pack(">iii5si6s", 1, 31, 5, b"world", 6, b"anyone")


def write_log(place: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """Write one log into a server's directory. It is named after its first transaction."""
    parts = [struct.pack(">4siq", b"ZKLG", 2, 0)]
    transactions = [list(group) for _, group in groupby(rows, key=lambda row: row["zxid"])]
    for operations in transactions:
        payload = _payload(operations)
        parts += [struct.pack(">qi", zlib.adler32(payload), len(payload)), payload, b"B"]
    place.mkdir(parents=True, exist_ok=True)
    log = place / f"log.{transactions[0][0]['zxid']:x}"
    log.write_bytes(b"".join(parts))
    return log


def _payload(operations: Sequence[dict[str, Any]]) -> bytes:
    first = operations[0]
    bodies = [(CODES[row["type"]], _body(row)) for row in operations]
    if first["size"]:
        code = CODES["multi"]
        inner = (struct.pack(">ii", kind, len(body)) + body for kind, body in bodies)
        content = struct.pack(">i", len(bodies)) + b"".join(inner)
    else:
        ((code, content),) = bodies
    at = round(first["time"].timestamp() * 1000)
    return struct.pack(">qiqqi", first["session"], first["cxid"], first["zxid"], at, code) + content


def _body(row: dict[str, Any]) -> bytes:
    kind = row["type"]
    if kind == "createSession":
        return struct.pack(">i", row.get("timeout") or 6000)
    if kind == "closeSession":
        paths = row.get("deleted")
        if paths is None:
            return b""
        return struct.pack(">i", len(paths)) + b"".join(_text(path.encode()) for path in paths)
    if kind == "error":
        return struct.pack(">i", row["error"])
    body = _text(row["path"].encode())
    if kind in ("create", "setData"):
        body += _text(row.get("data"))
    if kind in ("create", "setACL"):
        body += _ACL
    if kind == "create":
        return body + struct.pack(">?i", bool(row.get("ephemeral")), 1)
    return body if kind == "delete" else body + struct.pack(">i", row.get("version") or 0)


def _text(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data
