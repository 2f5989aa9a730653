"""What the tools' scripts share: children, bounded batches of reads, guarded JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, NoReturn

from zkconsumer.core.ops import GetChildren, GetMany, Node, Ok
from zkconsumer.core.scripts.common import Script, read
from zkconsumer.core.znodes import MAX_TOPIC_ZNODE_BYTES
from zkconsumer.errors import ZnodeFormatError

BATCH_PATHS: Final = 2000
BATCH_BYTES: Final = 256 * 1024
"""Of one request's paths; the server refuses requests above ``jute.maxbuffer`` (1 MiB)."""


def children(path: str) -> Script[list[str] | None]:
    """Return the sorted names of a znode's children, or ``None`` when there is no such znode."""
    reply = yield from read(GetChildren(path))
    if not isinstance(reply, Ok):
        return None
    assert isinstance(reply.value, tuple)
    return sorted(str(name) for name in reply.value)


def read_nodes(paths: Iterable[str]) -> Script[list[Node | None]]:
    """Read many znodes, ``None`` for each that does not exist, in batches bounded by size."""
    nodes: list[Node | None] = []
    batch: list[str] = []
    size = 0
    for path in paths:
        if batch and (len(batch) == BATCH_PATHS or size + len(path) > BATCH_BYTES):
            nodes += yield from _read_batch(batch)
            batch, size = [], 0
        batch.append(path)
        size += len(path)
    if batch:
        nodes += yield from _read_batch(batch)
    return nodes


def _read_batch(paths: list[str]) -> Script[list[Node | None]]:
    reply = yield from read(GetMany(tuple(paths)))
    assert isinstance(reply, Ok)
    assert isinstance(reply.value, tuple)
    return list(reply.value)  # type: ignore[arg-type]


def json_object(path: str, data: bytes) -> dict[str, Any]:
    """Return the JSON object that a broker's znode holds. Raises ZnodeFormatError."""
    if len(data) > MAX_TOPIC_ZNODE_BYTES:
        raise ZnodeFormatError(path, f"holds {len(data)} bytes, more than {MAX_TOPIC_ZNODE_BYTES}")
    try:
        found = json.loads(data.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise ZnodeFormatError(path, "is not JSON") from None
    if not isinstance(found, dict):
        raise ZnodeFormatError(path, "is not a JSON object")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)
