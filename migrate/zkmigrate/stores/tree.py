"""Walks trees of znodes of any size with little memory. Any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from zkconsumer.admin.reads import children_of
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Node
from zkconsumer.core.zookeeper.scripts.common import Script, read_many
from zkconsumer.errors import ZooKeeperError
from zkconsumer.zk.blocking import BlockingZk, or_refusal
from zkmigrate.model import ZkOffset
from zkmigrate.plan.layout import Place, read_offsets

_TOGETHER = 100
"""Number of znodes that are read together."""


def every_znode(path: str, names: list[str]) -> list[str]:
    """Return ``names``: the default for ``walk``, which descends into all children."""
    return names


def walk(
    zk: BlockingZk,
    top: str,
    descend: Callable[[str, list[str]], list[str]] = every_znode,
) -> Iterator[tuple[str, Node | ZooKeeperError]]:
    """Yield each znode at and below a path, or why it or its children cannot be read.

    Znodes that are created or deleted during the walk may be missing. ``descend``: returns the
    children of a znode into which to descend. Memory use grows with the largest number of children
    of one znode.
    """
    stack = [top]
    while stack:
        some = [stack.pop() for _ in range(min(len(stack), _TOGETHER))]
        found = zk.run(or_refusal(_look(some)))
        if isinstance(found, ZooKeeperError) and len(some) == 1:
            yield some[0], found
            continue
        if isinstance(found, ZooKeeperError):  # of one of them, which is looked for
            for path in some:
                yield from walk(zk, path, descend)
            continue
        for path, (node, names) in zip(some, found, strict=True):
            if node is not None:
                yield path, node
                above = "" if path == "/" else path
                stack += [f"{above}/{name}" for name in descend(path, names)]


def _look(paths: list[str]) -> Script[list[tuple[Node | None, list[str]]]]:
    nodes = yield from read_many(paths)
    lists = yield from children_of(paths)
    return list(zip(nodes, lists, strict=True))


def read_below(zk: BlockingZk, top: str, most: int = 200_000) -> dict[str, Node]:
    """Return every znode at and below a path. Raises ZooKeeperError if a znode cannot be read, and
    ValueError if there is no znode, or if there are more than ``most``."""
    found: dict[str, Node] = {}
    for path, node in walk(zk, top):
        if isinstance(node, ZooKeeperError):
            raise node
        found[path] = node
        if len(found) > most:
            raise ValueError(
                f"{top} has more than {most} znodes below it: name a path further down"
            )
    if not found:
        raise ValueError(f"{top} does not exist in this chroot")
    return found


def read_place(zk: BlockingZk, place: Place) -> dict[TopicPartition, ZkOffset]:
    """Return the offsets that another client has stored at a place. Raises ValueError if there are
    none, ZooKeeperError and ZnodeFormatError."""
    found = read_offsets(place.name, read_below(zk, place.path), place.topic)
    if not found:
        raise ValueError(f"{place.path} has no offset in the layout {place.name}")
    return found
