"""The content of ZooKeeper in addition to a cluster's groups. One thread uses a ``Sweep``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Set
from typing import Final, NamedTuple

from zkconsumer.admin.cluster_zk import ClusterZk
from zkconsumer.admin.reads import children, children_of
from zkconsumer.admin.snapshot import LIVE
from zkconsumer.admin.topics import list_topics
from zkconsumer.config.values import split_connect
from zkconsumer.core.migration.znodes import LivePaths
from zkconsumer.core.zookeeper.scripts.common import Script
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.errors import ZooKeeperError
from zkconsumer.zk.blocking import BlockingZk, or_refusal
from zkmigrate.plan.layout import looks_like_offsets, recognized
from zkmigrate.stores import migration_marker, record
from zkmigrate.stores.cluster import Servers
from zkmigrate.stores.offset_znodes import misplaced_root, partitions_at
from zkmigrate.stores.tree import walk

_KAFKA: Final = frozenset(
    {
        "admin", "brokers", "cluster", "config", "consumers", "controller", "controller_epoch",
        "delegation_token", "feature", "isr_change_notification", "kafka-acl", "kafka-acl-changes",
        "kafka-acl-extended", "kafka-acl-extended-changes", "latest_producer_id_block",
        "log_dir_event_notification", "migration",
    }
)  # fmt: skip
"""Kafka's znodes at its root, except the groups. None of them belongs to a consumer."""
_ZOOKEEPER: Final = "zookeeper"
_CLUSTERS: Final = ("consumers", "brokers")
"""Znodes at the root of a cluster. Groups are below the first one."""
_ROOTS: Final = (set(_CLUSTERS), {"brokers", "controller_epoch"})
"""Sets of children. A znode that has all children of one set is the root of a cluster."""
_MOST_PLACES: Final = 10_000
"""Number of places that are listed individually. Further ones are only counted."""


def not_looked_at(zk: BlockingZk, servers: Servers) -> list[str]:
    """Return one line for each place where other clients may store offsets but zkmigrate does not
    look.

    These are the znodes at the cluster's root that Kafka does not create, and other znodes above
    the chroot. ``zk``: an open session.
    """
    lines: list[str] = []
    hosts, chroot = split_connect(servers.zookeeper)
    lines += _lines(zk, "", _KAFKA | {_ZOOKEEPER})
    if not chroot:
        return lines
    try:
        with BlockingZk(hosts, servers.timeout, servers.security, servers.pace) as whole:
            above = ""
            for part in chroot[1:].split("/"):
                lines += _lines(whole, above, {part, _ZOOKEEPER})
                above += f"/{part}"
    except ZooKeeperError as error:
        lines.append(f"everything above the chroot {chroot}: {error}")
    return lines


def _lines(zk: BlockingZk, above: str, known: set[str] | frozenset[str]) -> list[str]:
    """Describe the unknown children of a path."""
    lines = zk.run(or_refusal(_others(above, known)))
    if isinstance(lines, ZooKeeperError):
        return [f"{above or '/'}: {lines}"]
    return [
        path + (f" (has {' and '.join(f'/{name}' for name in has)})" if has else "")
        for path, has in lines
    ]


def _others(above: str, known: set[str] | frozenset[str]) -> Script[list[tuple[str, list[str]]]]:
    names = [name for name in (yield from children(above or "/")) or [] if name not in known]
    paths = [f"{above}/{name}" for name in names]
    below = yield from children_of(paths)
    return [
        (path, [name for name in _CLUSTERS if name in has])
        for path, has in zip(paths, below, strict=True)
    ]


class Place(NamedTuple):
    """Znodes outside this cluster's groups that look like offsets, or cannot be read.

    ``path``: the path from the ensemble's root. ``layout``: the layout's name; empty if none
    matches. ``example``: the first of the znodes. ``fault``: why one of the znodes cannot be read.
    """

    path: str
    layout: str
    example: str
    znodes: int = 1
    newest_ms: int = 0
    fault: str = ""


class Sweep:
    """Searches all znodes of an ensemble for offsets of other clients.

    ``places``: the places found. ``looked_at``: number of znodes read below each top-level name.
    ``left_out``: paths that were not searched, and why. ``ignored``: returns why an operator
    excludes a path and everything below it, otherwise an empty text.
    """

    def __init__(self, ignored: Callable[[str], str]) -> None:
        self.places: dict[tuple[str, str], Place] = {}
        self.looked_at: Counter[str] = Counter()
        self.left_out: dict[str, str] = {}
        self._ignored = ignored
        self._topics: frozenset[str] = frozenset()

    def look(self, zk: ClusterZk, servers: Servers) -> None:
        """Search the chroot, and everything outside of it. ``zk``: an open session."""
        hosts, chroot = split_connect(servers.zookeeper)
        # In KRaft, brokers list only topics that this user may describe.
        self._topics = frozenset(zk.run(list_topics()) + zk.run_in_zookeeper(list_topics()))
        self._walk(zk, chroot, {f"{chroot}/{name}" for name in _KAFKA})
        if not chroot:
            return
        try:
            with BlockingZk(hosts, servers.timeout, servers.security, servers.pace) as whole:
                self._walk(whole, "", {chroot})
        except ZooKeeperError as error:
            self._add(Place("/", "", "/", fault=str(error)))

    def said(self) -> list[str]:
        """Return lines that say what was searched and what was not."""
        names = ", ".join(sorted(_KAFKA - {_CLUSTERS[0]}))
        looked = [f"{top}: {count} znodes" for top, count in sorted(self.looked_at.items())]
        return [
            *(f"looked at {one}" for one in looked if not one.endswith("/: 1 znodes")),
            f"not looked at: /{_ZOOKEEPER}, and what Kafka itself keeps in ZooKeeper: {names}",
        ]

    def _walk(self, zk: BlockingZk, chroot: str, known: Set[str]) -> None:
        """Search everything that a session shows. ``known``: paths that are checked elsewhere."""
        known = {*known, f"/{_ZOOKEEPER}"}

        def descend(path: str, names: list[str]) -> list[str]:
            here = chroot + path.rstrip("/")
            other_cluster = any(one.issubset(names) for one in _ROOTS)
            own = _KAFKA.difference(_CLUSTERS[:1]) if other_cluster else ()
            return [
                name for name in names if name not in own and self._wanted(f"{here}/{name}", known)
            ]

        for path, node in walk(zk, "/", descend):
            whole = chroot + path.rstrip("/") or "/"
            self.looked_at[f"{chroot}/{path.split('/', 2)[1]}"] += 1
            if isinstance(node, ZooKeeperError):
                self._add(Place(whole, "", whole, fault=str(node)))
            elif looks_like_offsets(whole, node.data, self._topics):
                layout, root = recognized(whole, node.data)
                self._add(Place(root, layout, whole, 1, node.stat.mtime_ms))

    def _wanted(self, path: str, known: Set[str]) -> bool:
        why = self._ignored(path)
        if why:
            self.left_out[path] = why
        return not why and path not in known

    def _add(self, place: Place) -> None:
        key = (place.path, place.layout)
        if key not in self.places and len(self.places) >= _MOST_PLACES:
            key, place = ("/", ""), place._replace(path="/", layout="")
        known = self.places.get(key)
        if known is not None:
            newest = max(known.newest_ms, place.newest_ms)
            fault = known.fault or place.fault
            place = known._replace(znodes=known.znodes + 1, newest_ms=newest, fault=fault)
        self.places[key] = place


def below_leaves(group: str) -> Script[tuple[str, ...]]:
    """Return a group's znodes in unexpected places: below znodes to which neither Kafka's clients
    nor this project add children, such as offsets and owners."""
    where, live = GroupPaths(group), LivePaths.of(group)
    leaves = [migration_marker.path(group), record.before_path(group), live.mode]
    for root in (where.offsets, misplaced_root(group), where.owners):
        leaves += [f"{root}/{tp.topic}/{tp.partition}" for tp in (yield from partitions_at(root))]
    for parent in (where.ids, live.members):
        leaves += [f"{parent}/{name}" for name in (yield from children(parent)) or []]
    inner = {
        record.path(group): {"before", "mirror", "lease"},
        f"{where.root}/{LIVE}": {"mode", "members"},
    }
    paths = [*leaves, *inner]
    lists = yield from children_of(paths)
    return tuple(
        f"{path}/{name}"
        for path, names in zip(paths, lists, strict=True)
        for name in names
        if name not in inner.get(path, ())
    )
