"""``/consumers/GROUP/migration``: records that a group's offsets were moved. Pure.

Content: JSON with the store that the group was moved to, the moment of the plan, the offsets that
the source store held then, and the group's name in Kafka if it differs. A later plan compares these
offsets with what the store holds now. After a rollback of the first move the znode is empty: its
own time is the moment when offsets were restored, which gave them new times.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from zkconsumer.admin.snapshot import MOVED
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Node
from zkconsumer.core.zookeeper.scripts.common import Script, read_many
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.errors import ZnodeFormatError
from zkmigrate.model import MigrationMarker, Store

FORMAT: Final = 1
MAX_BYTES: Final = 900 * 1024
"""ZooKeeper takes 1 MiB in one request; a longer list of offsets is left out."""
ROLLED_BACK: Final = b""
"""Content after a rollback of the group's first move."""
_INT64: Final = 2**63 - 1


def path(group: str) -> str:
    """Return the marker's path. Raises ConfigError when the name cannot be a group's."""
    return f"{GroupPaths(group).root}/{MOVED}"


def encode(
    moved_to: Store, at_ms: int, values: Mapping[TopicPartition, int], kafka_group: str = ""
) -> bytes:
    """Return a marker's content. ``kafka_group``: the group's name in Kafka, if it differs."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), value in sorted(values.items()):
        topics.setdefault(topic, {})[str(partition)] = value
    document: dict[str, object] = {
        "version": FORMAT,
        "moved_to": moved_to.value,
        "at_ms": at_ms,
        "offsets": topics,
    }
    if kafka_group:
        document["kafka_group"] = kafka_group
    data = json.dumps(document, separators=(",", ":")).encode()
    if len(data) > MAX_BYTES:
        document["offsets"] = {}
        data = json.dumps(document, separators=(",", ":")).encode()
    return data


def decode(where: str, node: Node) -> MigrationMarker:
    """Return what a marker says. Raises ZnodeFormatError."""
    data = node.data
    if data == ROLLED_BACK:
        return MigrationMarker(None, node.stat.mtime_ms, {}, data)
    try:
        found = json.loads(data.decode())
        if found["version"] != FORMAT or type(found["at_ms"]) is not int or found["at_ms"] < 0:
            raise ValueError
        values: dict[TopicPartition, int] = {}
        for topic, partitions in found["offsets"].items():
            for number, value in partitions.items():
                if type(value) is not int or not 0 <= value <= _INT64:
                    raise ValueError
                values[TopicPartition(topic, int(number))] = value
        renamed = found.get("kafka_group", "")
        if not isinstance(renamed, str):
            raise ValueError
        return MigrationMarker(Store(found["moved_to"]), found["at_ms"], values, data, renamed)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ZnodeFormatError(
            where, "is not a migration marker of zkmigrate; delete it if nothing else needs it"
        ) from None


def read(group: str) -> Script[MigrationMarker | None]:
    """Return a group's migration marker, if there is one. Raises ZnodeFormatError."""
    where = path(group)
    (node,) = yield from read_many([where])
    return None if node is None else decode(where, node)
