"""What else ZooKeeper holds, where zkmigrate does not look for groups. Scripts; any thread."""

from __future__ import annotations

from typing import Final

from zkconsumer.admin.reads import children, children_of
from zkconsumer.admin.snapshot import LIVE, MISPLACED
from zkconsumer.config.values import split_connect
from zkconsumer.core.migration.znodes import LivePaths
from zkconsumer.core.zookeeper.scripts.common import Script
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.errors import ZooKeeperError
from zkconsumer.zk.blocking import BlockingZk, or_refusal
from zkmigrate.stores import migration_marker, record
from zkmigrate.stores.cluster import Servers
from zkmigrate.stores.offset_znodes import partitions_at

_KAFKA: Final = frozenset(
    {
        "admin", "brokers", "cluster", "config", "consumers", "controller", "controller_epoch",
        "delegation_token", "feature", "isr_change_notification", "kafka-acl", "kafka-acl-changes",
        "kafka-acl-extended", "kafka-acl-extended-changes", "latest_producer_id_block",
        "log_dir_event_notification", "migration",
    }
)  # fmt: skip
"""What Kafka keeps at its root in addition to the groups; none of it belongs to a consumer."""
_ZOOKEEPER: Final = "zookeeper"
_CLUSTERS: Final = ("consumers", "brokers")


def not_looked_at(zk: BlockingZk, servers: Servers) -> list[str]:
    """Return one line for each place where other clients may keep offsets.

    That is each znode at the cluster's root that Kafka does not make, and each other znode above
    the chroot. Such places are named, and not read. ``zk``: a session, opened.
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


def below_leaves(group: str) -> Script[tuple[str, ...]]:
    """Return the znodes below offsets, owners, registrations and zkmigrate's own znodes, where
    neither Kafka's clients nor ours have any."""
    where, live = GroupPaths(group), LivePaths.of(group)
    leaves = [migration_marker.path(group), record.before_path(group), live.mode]
    for root in (where.offsets, f"{where.root}/{MISPLACED}", where.owners):
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
