"""The offset znodes of a group and their content. Scripts; any thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from zkconsumer.admin.reads import children, children_of
from zkconsumer.admin.snapshot import MISPLACED, partition_number
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Node
from zkconsumer.core.zookeeper.scripts.common import Script, read_many
from zkconsumer.core.zookeeper.znodes import GroupPaths, decode_offset, is_legal_topic
from zkconsumer.errors import ZnodeFormatError
from zkmigrate.model import ZkOffset

Znodes = Iterable[tuple[TopicPartition, Node]]


def offset_partitions(group: str) -> Script[list[TopicPartition]]:
    """Return the partitions for which a group has offset znodes."""
    return (yield from partitions_at(GroupPaths(group).offsets))


def partitions_at(root: str) -> Script[list[TopicPartition]]:
    """Return the partitions that have a znode ``TOPIC/PARTITION`` below a path."""
    topics = list(filter(is_legal_topic, (yield from children(root)) or []))
    lists = yield from children_of(f"{root}/{topic}" for topic in topics)
    return [
        TopicPartition(topic, number)
        for topic, names in zip(topics, lists, strict=True)
        for number in map(partition_number, names)
        if number is not None
    ]


def misplaced_root(group: str) -> str:
    """Return ``/consumers/GROUP/offset``, where 1.1.0 brokers store offsets by mistake."""
    return f"{GroupPaths(group).root}/{MISPLACED}"


def misplaced_offsets(group: str) -> Script[dict[TopicPartition, Node]]:
    """Return a group's znodes in ``/consumers/GROUP/offset``."""
    root = misplaced_root(group)
    wanted = yield from partitions_at(root)
    nodes = yield from read_many([_path(root, tp) for tp in wanted])
    return {tp: node for tp, node in zip(wanted, nodes, strict=True) if node is not None}


def numbered(tree: Mapping[str, Mapping[str, Node]]) -> Iterator[tuple[TopicPartition, Node]]:
    """Yield the znodes whose names are partition numbers, and their partitions."""
    for topic, nodes in tree.items():
        if is_legal_topic(topic):
            for name, node in nodes.items():
                number = partition_number(name)
                if number is not None:
                    yield TopicPartition(topic, number), node


def _path(root: str, tp: TopicPartition) -> str:
    return f"{root}/{tp.topic}/{tp.partition}"


def offsets_at(
    root: str, nodes: Iterable[tuple[TopicPartition, Node]]
) -> dict[TopicPartition, int]:
    """Return the offsets in znodes below a path. Raises ZnodeFormatError."""
    found = ((tp, offset_in(node, _path(root, tp))) for tp, node in nodes)
    return {tp: offset for tp, offset in found if offset is not None}


def readable_at(root: str, nodes: Znodes) -> tuple[dict[TopicPartition, int], list[str]]:
    """Return the offsets in znodes below a path, and why other znodes cannot be read."""
    found = {tp: zk_offset(_path(root, tp), node) for tp, node in nodes}
    offsets = {tp: one.offset for tp, one in found.items() if one.offset is not None}
    return offsets, [one.fault for one in found.values() if one.fault]


def offset_in(node: Node | None, path: str = "its offset znode") -> int | None:
    """Return the offset in a znode; ``None`` if there is no znode, or no offset in it. Raises
    ZnodeFormatError."""
    if node is None:
        return None
    offset = decode_offset(path, node.data)
    return offset if offset >= 0 else None


def zk_offset(path: str, node: Node) -> ZkOffset:
    """Return the content of an offset znode, or why it cannot be read."""
    stat = node.stat
    offset, fault = None, ""
    try:
        offset = offset_in(node, path)
    except ZnodeFormatError as error:
        fault = str(error)
    return ZkOffset(offset, stat.version, stat.mzxid, stat.mtime_ms, fault)
