"""The znodes of a group, from their paths."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from zkconsumer.core.common.foreign_layout import BROKER_PARTITION

IDS: Final = "ids"
OWNERS: Final = "owners"
OFFSETS: Final = "offsets"
FOREIGN: Final = "foreign"
"""Owners whose znodes have other names than partitions, as with pykafka."""
MIGRATION: Final = "migration"
"""The marker that offsets were moved to another store."""
MODE: Final = "mode"
"""The mode of a live migration."""
MEMBERS: Final = "members"
"""A member of a live migration, with the mode that it has acknowledged."""
LOCK: Final = "lock"
"""The znode ``ids`` itself, whose data has its original ACL during a live migration."""
MIRROR: Final = "mirror"
"""The agreed state of a group's mirror. Each transaction of the mirror writes it."""
WITH_LIFETIMES: Final = frozenset({IDS, OWNERS, FOREIGN, MEMBERS})
WITH_CHANGES: Final = frozenset({MIGRATION, MODE, MEMBERS, LOCK})

ALONE: Final = {
    "migration": MIGRATION, "ids": LOCK, "live/mode": MODE, "record/mirror": MIRROR,
}  # fmt: skip
"""Trees with a single znode, by its path below the group's."""

GROUP_PATH: Final = (
    r"(?s)^(.*?/consumers/[^/]+)/"
    rf"(?:(?:ids|owners|offsets)/.+|(?:{'|'.join(ALONE)}|live/members/[^/]+)(?!.))"
)
"""Regex for the beginning of paths that the fold may follow. Its first group is the path of the
consumer group. These regexes have the same meaning in Python (``re.search``) and Java (``rlike``).
"""
OFFSET_PATH: Final = r"(?s)/consumers/[^/]+/offsets/[^/]+/[0-9]+(?!.)"
"""Regex for the end of an offset's path. No other znode of a group has such a path."""
TOPIC_PATH: Final = r"(?s)^(.*?)/brokers/topics/([^/]+)(?!.)"
BROKER_PATH: Final = r"(?s)^(.*?)/brokers/ids/([0-9]+)(?!.)"
"""Regex for a broker's path. Its groups are the chroot and the id."""
_PATH: Final = re.compile(
    r"(?s)(.*?)/consumers/([^/]+)/"
    rf"(?:(ids|owners|offsets)/(.+)|({'|'.join(ALONE)})|live/members/([^/]+))"
)
_OFFSET: Final = re.compile(r"(?s)(.*)/consumers/([^/]+)/offsets/([^/]+)/([0-9]+)")
_PARTITION: Final = re.compile(r"([^/]+)/(0|[1-9][0-9]{0,9})")
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_FOREIGN_TOPIC: Final = re.compile(r"(?s)(b(['\"]))?([^/]*?)\2?/[^/]+")
_FOREIGN_PARTITION: Final = re.compile(rf"(?s).*/{BROKER_PARTITION}")
_LAST_NUMBER: Final = re.compile(r"(?s).*-([0-9]+)")
_MOST: Final = 2**63 - 1


class Znode(NamedTuple):
    """The place of a znode in its group. ``tree``: the part of the group to which it belongs, such
    as ``ids``. ``name``: the rest of the path, such as a consumer id."""

    path: str
    chroot: str
    group: str
    tree: str
    name: str
    topic: str = ""
    partition: int | None = None


def znode_of(path: str) -> Znode | None:
    """Return the place of a znode in its group; ``None`` if the audit does not use such a path."""
    offset = _OFFSET.fullmatch(path)
    if offset is not None:  # no other znode of a group has such a path
        chroot, group, topic, number = offset.groups()
        if _NUMBER.fullmatch(number) is None:
            return None
        return Znode(path, chroot, group, OFFSETS, f"{topic}/{number}", topic, int(number))
    parts = _PATH.fullmatch(path)
    if parts is None:
        return None
    chroot, group, tree, name, alone, member = parts.groups()
    if member is not None:
        return Znode(path, chroot, group, MEMBERS, member)
    if alone is not None:
        return Znode(path, chroot, group, ALONE[alone], alone)
    if tree == IDS:
        return None if "/" in name else Znode(path, chroot, group, IDS, name)
    partition = _PARTITION.fullmatch(name)
    if partition is not None:
        return Znode(path, chroot, group, tree, name, partition[1], int(partition[2]))
    if tree == OWNERS and "/" in name:
        return Znode(path, chroot, group, FOREIGN, name, *_foreign(name))
    return None


class Znodes(dict[str, Znode | None]):
    """Caches the result of ``znode_of`` for each path."""

    def __missing__(self, path: str) -> Znode | None:
        self[path] = znode = znode_of(path)
        return znode


def _foreign(name: str) -> tuple[str, int | None]:
    """Return the topic and the partition in pykafka's name of an owner znode."""
    topic = _FOREIGN_TOPIC.fullmatch(name)
    number = None
    if _FOREIGN_PARTITION.fullmatch(name) is not None:
        digits = _LAST_NUMBER.fullmatch(name)
        if digits is not None and int(digits[1]) <= _MOST:
            number = int(digits[1])
    return (topic[3] if topic is not None else ""), number
