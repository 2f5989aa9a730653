"""Functions that the tools' scripts share: children, and size-limited JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NoReturn

from zkconsumer.core.zookeeper.cluster_view import CLUSTER_ID
from zkconsumer.core.zookeeper.ops import GetChildren, GetMany, Node, Ok
from zkconsumer.core.zookeeper.scripts.common import LISTS, Script, read, read_many
from zkconsumer.core.zookeeper.znodes import MAX_TOPIC_ZNODE_BYTES
from zkconsumer.errors import ZnodeFormatError


def children(path: str, watch: bool = False) -> Script[list[str] | None]:
    """Return the sorted names of a znode's children, or ``None`` if the znode does not exist.

    ``watch``: set a watch on the children of a znode that exists.
    """
    names = yield from listing(path, watch)
    return None if names is None else sorted(names)


def listing(path: str, watch: bool = False) -> Script[list[str] | None]:
    """Return the names of a znode's children like `children`, but in ZooKeeper's order.

    The roundrobin strategy may depend on that order.
    """
    reply = yield from read(GetChildren(path, watch=watch))
    if not isinstance(reply, Ok):
        return None
    assert isinstance(reply.value, tuple)
    return [str(name) for name in reply.value]


def children_of(paths: Iterable[str]) -> Script[list[list[str]]]:
    """Return the sorted names of the children of many znodes; an empty list for a znode that does
    not exist."""
    wanted = list(paths)
    children: list[list[str]] = []
    for start in range(0, len(wanted), LISTS):
        reply = yield from read(GetMany(tuple(wanted[start : start + LISTS]), children=True))
        assert isinstance(reply, Ok)
        assert isinstance(reply.value, tuple)
        children += [
            sorted(map(str, names)) if isinstance(names, tuple) else [] for names in reply.value
        ]
    return children


def read_tree(root: str) -> Script[dict[str, Node]]:
    """Return every znode at and below ``root`` by its path, except those deleted during
    the read."""
    below: dict[str, Node] = {}
    level = [root]
    while level:
        nodes = yield from read_many(level)
        there = [path for path, node in zip(level, nodes, strict=True) if node is not None]
        below |= {path: node for path, node in zip(level, nodes, strict=True) if node is not None}
        lists = yield from children_of(there)
        level = [
            f"{path}/{name}" for path, names in zip(there, lists, strict=True) for name in names
        ]
    return dict(sorted(below.items()))


def cluster_id() -> Script[str | None]:
    """Return the id of the Kafka cluster; ``None`` if unknown, as before Kafka 0.10.1."""
    (node,) = yield from read_many([CLUSTER_ID])
    try:
        return None if node is None else str(json_object(CLUSTER_ID, node.data)["id"])
    except (ZnodeFormatError, KeyError):
        return None


def json_object(path: str, data: bytes) -> dict[str, Any]:
    """Return the JSON object in a broker's znode. Raises ZnodeFormatError."""
    if len(data) > MAX_TOPIC_ZNODE_BYTES:
        raise ZnodeFormatError(path, f"holds {len(data)} bytes, more than {MAX_TOPIC_ZNODE_BYTES}")
    try:
        value = json.loads(data.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise ZnodeFormatError(path, "is not JSON") from None
    if not isinstance(value, dict):
        raise ZnodeFormatError(path, "is not a JSON object")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)
