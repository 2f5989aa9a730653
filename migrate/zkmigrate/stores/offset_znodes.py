"""The offset znodes of a group and their content. Scripts; any thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from zkconsumer.admin.reads import children, children_of
from zkconsumer.admin.snapshot import MISPLACED, partition_number
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Node
from zkconsumer.core.zookeeper.scripts.common import Script, read_many
from zkconsumer.core.zookeeper.znodes import GroupPaths, decode_offset, is_legal_topic
from zkconsumer.errors import ZnodeFormatError
from zkmigrate.model import ZkOffset


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


def misplaced_path(group: str, tp: TopicPartition) -> str:
    """Return the path of a partition's offset in ``/consumers/GROUP/offset``."""
    return f"{GroupPaths(group).root}/{MISPLACED}/{tp.topic}/{tp.partition}"


def misplaced_offsets(group: str) -> Script[dict[TopicPartition, Node]]:
    """Return a group's znodes in ``/consumers/GROUP/offset``, where 1.1.0 brokers store offsets by
    mistake."""
    wanted = yield from partitions_at(f"{GroupPaths(group).root}/{MISPLACED}")
    nodes = yield from read_many([misplaced_path(group, tp) for tp in wanted])
    return {tp: node for tp, node in zip(wanted, nodes, strict=True) if node is not None}


def numbered(tree: Mapping[str, Mapping[str, Node]]) -> Iterator[tuple[TopicPartition, Node]]:
    """Yield the znodes whose names are partition numbers, and their partitions."""
    for topic, nodes in tree.items():
        if is_legal_topic(topic):
            for name, node in nodes.items():
                number = partition_number(name)
                if number is not None:
                    yield TopicPartition(topic, number), node


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
