"""A group's registrations, owners and offsets as they are in ZooKeeper.

Any client can write below ``/consumers``, so names and contents are kept unchecked; ``describe``
and ``verify`` check them. Scripts and pure functions; any thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from zkconsumer.admin.reads import children, children_of, listing
from zkconsumer.core.common.expansion import expand
from zkconsumer.core.common.types import INTERNAL_TOPICS, Pattern, Subscription
from zkconsumer.core.migration.znodes import LivePaths
from zkconsumer.core.zookeeper.ops import Node
from zkconsumer.core.zookeeper.scripts.common import Script, read_many
from zkconsumer.core.zookeeper.znodes import (
    GroupPaths,
    child_number,
    decode_registration,
    is_legal_topic,
)
from zkconsumer.errors import ZnodeFormatError

CONSUMERS: Final = "/consumers"
MISPLACED: Final = "offset"
"""The znode in which brokers of 1.1.0 store offsets by mistake, instead of ``offsets``."""

MOVED: Final = "migration"
"""The znode in which ``zkmigrate`` records that it moved the group's offsets."""

RECORD: Final = "record"
"""The znode in which ``zkmigrate`` records which operator works on the group."""

LIVE: Final = "live"
"""The znode that holds mode and members of a group in a live move."""

CHILDREN: Final = frozenset({"ids", "owners", "offsets", MISPLACED, MOVED, RECORD, LIVE})
"""All children of a group's znode that Kafka's and this project's programs create."""

_BATCH: Final = 10_000

T = TypeVar("T")

Nodes = Mapping[str, Mapping[str, Node]]
"""By topic, then by child name (usually a partition number), the znode."""


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """The znodes of a group, from one pass of reads.

    ``moved`` is the marker of ``zkmigrate``, and ``record`` its record. ``mode`` is the mode of a
    live move, and ``migratable`` are the members that take part in it. ``strange`` are children of
    the group's znode that neither ``zkmigrate`` nor any JVM version creates. ``filled`` are the
    paths of znodes that contain data although every JVM version leaves them empty: the group's own
    znode, or parents of offset znodes. ``exists``: whether the group's znode exists.
    """

    group: str
    members: Mapping[str, Node] = field(default_factory=dict)
    owners: Nodes = field(default_factory=dict)
    offsets: Nodes = field(default_factory=dict)
    misplaced: Nodes = field(default_factory=dict)
    moved: Node | None = None
    strange: tuple[str, ...] = ()
    filled: tuple[str, ...] = ()
    mode: Node | None = None
    migratable: Mapping[str, Node] = field(default_factory=dict)
    exists: bool = True
    record: Node | None = None

    @property
    def paths(self) -> GroupPaths:
        """The group's paths."""
        return GroupPaths(self.group)

    @property
    def znodes(self) -> int:
        """Approximate number of znodes read."""
        trees = (*self.owners.values(), *self.offsets.values(), *self.misplaced.values())
        return 10 + len(self.members) + sum(map(len, trees))

    def consumer_of(self, owner: Node) -> str:
        """Return the consumer id in the text of an owner znode: ``<consumer id>-<number>``, or the
        id alone, as kafka-node and Go ports write it."""
        text = owner.data.decode(errors="replace")
        return text if text in self.members else text.rpartition("-")[0]


def in_batches(groups: Iterable[tuple[str, T]]) -> Iterator[dict[str, T]]:
    """Yield the groups in batches of about ``_BATCH`` znodes, each batch as a dictionary by name.

    A value that is not a ``GroupSnapshot`` counts as one znode.
    """
    some: dict[str, T] = {}
    znodes = 0
    for name, one in groups:
        some[name] = one
        znodes += one.znodes if isinstance(one, GroupSnapshot) else 1
        if znodes >= _BATCH:
            yield some
            some, znodes = {}, 0
    if some:
        yield some


@dataclass(frozen=True, slots=True)
class Registrations:
    """The decoded registrations.

    ``sessions``: consumer id to the session that registered it. ``topics``: consumer id to topic to
    number of streams, with filters expanded. ``quarantined``: consumer id to the reason why its
    registration cannot be used. ``by_filter``: ids of members that subscribe with a filter.
    """

    sessions: Mapping[str, int]
    topics: Mapping[str, Mapping[str, int]]
    quarantined: Mapping[str, str]
    by_filter: frozenset[str]

    @property
    def subscribed(self) -> frozenset[str]:
        """All topics to which a usable registration subscribes."""
        return frozenset(topic for topics in self.topics.values() for topic in topics)


def list_groups() -> Script[list[str]]:
    """Return the names of all groups, sorted. Other clients may have created groups with any
    name."""
    return (yield from children(CONSUMERS)) or []


def list_members(group: str) -> Script[list[str]]:
    """Return the consumer ids that are registered."""
    return (yield from children(GroupPaths(group).ids)) or []


def read_group(group: str) -> Script[GroupSnapshot | None]:
    """Read a whole group; ``None`` if its znode does not exist.

    The list of members is read first and last. If it has changed, everything is read again (at most
    a few times), to avoid an inconsistent snapshot. Raises ConfigError if no group can have this
    name.
    """
    paths = GroupPaths(group)
    parts = yield from children(paths.root)
    if parts is None:
        return None
    for _ in range(3):
        ids = yield from listing(paths.ids)
        members = yield from _read_below(paths.ids, ids or [])
        offsets, full = yield from _read_tree(paths.offsets, "offsets" in parts)
        owners, _ = yield from _read_tree(paths.owners, "owners" in parts)
        misplaced, more = yield from _read_tree(f"{paths.root}/{MISPLACED}", MISPLACED in parts)
        own: list[str] = [name for name in (MOVED, RECORD) if name in parts]
        moved = yield from _read_below(paths.root, own)
        mode, migratable = yield from _read_live(group, LIVE in parts)
        if (yield from listing(paths.ids)) == ids:
            break
    (root,) = yield from read_many([paths.root])
    filled = (*((paths.root,) if root is not None and root.data else ()), *full, *more)
    strange = tuple(name for name in parts if name not in CHILDREN)
    marker, record = moved.get(MOVED), moved.get(RECORD)
    return GroupSnapshot(
        group,
        members,
        owners,
        offsets,
        misplaced,
        marker,
        strange,
        filled,
        mode,
        migratable,
        record=record,
    )


def _read_live(group: str, there: bool) -> Script[tuple[Node | None, dict[str, Node]]]:
    """Return the mode of a live move, and the members that take part in it."""
    if not there:
        return None, {}
    paths = LivePaths.of(group)
    (mode,) = yield from read_many([paths.mode])
    names = sorted((yield from children(paths.members)) or ())
    return mode, (yield from _read_below(paths.members, names))


def _read_below(parent: str, names: list[str]) -> Script[dict[str, Node]]:
    nodes = yield from read_many([f"{parent}/{name}" for name in names])
    return {name: node for name, node in zip(names, nodes, strict=True) if node is not None}


def _read_tree(root: str, there: bool) -> Script[tuple[Nodes, list[str]]]:
    """Return the znodes two levels below ``root``, and the paths above them that hold data."""
    topics = ((yield from children(root)) if there else None) or []
    lists = yield from children_of(f"{root}/{topic}" for topic in topics)
    names = [(topic, name) for topic, some in zip(topics, lists, strict=True) for name in some]
    parents = [root, *(f"{root}/{topic}" for topic in topics)] if there else []
    contents = yield from read_many(
        [*parents, *(f"{root}/{topic}/{name}" for topic, name in names)]
    )
    above, nodes = contents[: len(parents)], contents[len(parents) :]
    filled = [path for path, node in zip(parents, above, strict=True) if node and node.data]
    tree: dict[str, dict[str, Node]] = {topic: {} for topic in topics}
    for (topic, name), node in zip(names, nodes, strict=True):
        if node is not None:
            tree[topic][name] = node
    return tree, filled


def uses_filter(snapshot: GroupSnapshot) -> bool:
    """Whether any member subscribes with a filter. If so, the names of all topics are needed."""
    return bool(interpret(snapshot, ()).by_filter)


def interpret(snapshot: GroupSnapshot, all_topics: Collection[str]) -> Registrations:
    """Decode all registrations, expanding filters over ``all_topics``.

    Nothing in ZooKeeper records ``exclude.internal.topics``. Filters are assumed to include
    internal topics only if one of these has an owner in the group.
    """
    paths = snapshot.paths
    exclude_internal = not any(snapshot.owners.get(topic) for topic in INTERNAL_TOPICS)
    topics: dict[str, Mapping[str, int]] = {}
    quarantined: dict[str, str] = {}
    by_filter: set[str] = set()
    for member, node in snapshot.members.items():
        path = f"{paths.ids}/{member}"
        try:
            subscription: Subscription = decode_registration(path, node.data)
            if subscription.pattern is not Pattern.STATIC:
                by_filter.add(member)
            topics[member] = expand(path, subscription, all_topics, exclude_internal)
        except ZnodeFormatError as fault:
            quarantined[member] = fault.reason
    sessions = {name: node.stat.ephemeral_owner for name, node in snapshot.members.items()}
    return Registrations(sessions, topics, quarantined, frozenset(by_filter))


def partition_number(name: str) -> int | None:
    """Return the partition number in a znode's name, parsed like Kafka 0.8 and later; ``None`` if
    it is not a number."""
    return child_number(name)


def topics_of(snapshot: GroupSnapshot, registrations: Registrations) -> list[str]:
    """Return the topics that are owned, have offsets, or are subscribed to, sorted."""
    named = {*snapshot.owners, *snapshot.offsets, *registrations.subscribed}
    return sorted(filter(is_legal_topic, named))
