"""What the tools' scripts share: children and guarded JSON. Pure."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from zkconsumer.core.ops import GetChildren, Ok
from zkconsumer.core.scripts.common import Script, read
from zkconsumer.core.znodes import MAX_TOPIC_ZNODE_BYTES
from zkconsumer.errors import ZnodeFormatError


def children(path: str) -> Script[list[str] | None]:
    """Return the sorted names of a znode's children, or ``None`` when there is no such znode."""
    reply = yield from read(GetChildren(path))
    if not isinstance(reply, Ok):
        return None
    assert isinstance(reply.value, tuple)
    return sorted(str(name) for name in reply.value)


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
