"""The lock on a group's ``ids`` znode, and what else protects a group from changes. Scripts.

A tool that moves a group takes the permission to create children from every entry of that znode's
access list, and keeps the original list in the znode's data. ``protection`` also reads the
migration marker and the mode of a live move, so that every tool makes the same checks before it
changes a group. Any thread.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from zkconsumer.admin.snapshot import MOVED
from zkconsumer.core.migration.modes import Mode
from zkconsumer.core.migration.znodes import LIVE_CREDENTIAL, LivePaths, read_mode
from zkconsumer.core.zookeeper.ops import Acl, AclEntry, Failed, GetAcl
from zkconsumer.core.zookeeper.scripts.common import Script, read, read_many
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.errors import ZnodeFormatError

FORMAT: Final = 1
CREATE: Final = 4
"""ZooKeeper's bit for the permission to create children."""
ADMIN: Final = 16
"""ZooKeeper's bit for the permission to change the access list."""
MASKED: Final = ":x"
"""The end of a digest id whose digest ZooKeeper hides."""
PROBE_END: Final = "_zkmigrate-probe"
"""The end of the consumer id under which `zkmigrate` tries to register, to check that the lock
works. It deletes that registration at once."""


def is_of(entry: str, who: str | None) -> bool:
    """Whether an ACL entry's id belongs to an identity. The identity None matches every id.

    ZooKeeper shows digests only to clients with ADMIN; otherwise only user names are compared.
    """
    if who is None or entry == who:
        return True
    user, colon, _ = who.partition(":")
    return bool(colon) and entry == user + MASKED


LIVE: Final = AclEntry(CREATE, "digest", LIVE_CREDENTIAL)
"""Lets migratable members register in a group that is locked while it moves."""


class Guard(Enum):
    """Whether old consumers of a group can start. Commands print its value."""

    OPEN = "no"
    LOCKED = "locked"
    """Locked by this tool; ``unlock`` removes the lock."""
    CLOSED = "closed"
    """No client may register, for a reason other than this tool's lock."""


@dataclass(frozen=True, slots=True)
class Found:
    """The state of a group's ``ids`` znode. ``record``: the original ACL; ``at_ms``: when it was
    locked."""

    guard: Guard
    at_ms: int | None = None
    record: tuple[AclEntry, ...] | None = None
    data: bytes = b""
    acl: Acl | None = None
    version: int = 0
    old_data: bytes = b""

    @property
    def lets_live_in(self) -> bool:
        """Whether migratable members may register although the group is locked."""
        return self.acl is not None and LIVE in self.acl.entries

    def may_register(self, identities: Collection[tuple[str, str | None]]) -> bool:
        """Whether the migrator may register once the group is unlocked.

        ``identities``: scheme and id of the migrator. An id of None matches every id.
        """
        return self._allows(CREATE, identities)

    def may_lock(self, identities: Collection[tuple[str, str | None]]) -> bool:
        """Whether the migrator may change the ACL, which is necessary to lock the group."""
        return self._allows(ADMIN, identities)

    def _allows(self, perms: int, identities: Collection[tuple[str, str | None]]) -> bool:
        entries = self.record or (self.acl.entries if self.acl else None)
        if entries is None:
            return True  # there is no such znode yet
        return any(
            entry.perms & perms and entry.scheme == scheme and is_of(entry.who, who)
            for entry in entries
            for scheme, who in identities
        )


def look(group: str) -> Script[Found]:
    """Read the state of a group's ``ids`` znode."""
    path = GroupPaths(group).ids
    (node,) = yield from read_many([path])
    if node is None:
        return Found(Guard.OPEN)
    reply = yield from read(GetAcl(path))
    if isinstance(reply, Failed):
        return Found(Guard.OPEN)
    assert isinstance(reply.value, Acl)
    acl = reply.value
    may_register = any(entry.perms & CREATE and entry != LIVE for entry in acl.entries)
    lock = Found(Guard.OPEN, data=node.data, acl=acl, version=node.stat.version)
    decoded = decode(node.data)
    if decoded is not None:
        at_ms, record, old = decoded
        lock = replace(lock, at_ms=at_ms, record=record, old_data=old)
    if may_register:
        return lock
    return replace(lock, guard=Guard.CLOSED if decoded is None else Guard.LOCKED)


def decode(data: bytes) -> tuple[int, tuple[AclEntry, ...], bytes] | None:
    """Decode the data of a locked ``ids`` znode: lock time, original ACL and original data.

    Return ``None`` if zkmigrate did not write it.
    """
    try:
        document = json.loads(data.decode())
        if document["version"] != FORMAT or "zkmigrate" not in document:
            return None
        entries = tuple(AclEntry(int(p), str(s), str(who)) for p, s, who in document["acl"])
        return int(document["at_ms"]), entries, str(document["data"]).encode("latin-1")
    except (ValueError, OverflowError, KeyError, TypeError, RecursionError):
        return None


def moved_to(data: bytes) -> str | None:
    """Return the offset store to which a group was moved, according to its migration marker;
    ``None`` if the marker is unreadable."""
    try:
        return str(json.loads(data.decode())["moved_to"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def protection(group: str) -> Script[str | None]:
    """Return why a tool must not change a group's offsets in ZooKeeper; ``None`` if it may.

    A group is protected after a move to Kafka, during a live move, and while its ``ids`` are
    locked. A group whose state cannot be read counts as protected.
    """
    paths = GroupPaths(group)
    marker = f"{paths.root}/{MOVED}"
    try:
        mode = (yield from read_mode(LivePaths.of(group)))[0]
    except ZnodeFormatError as fault:
        return str(fault)
    if mode is not Mode.ZOOKEEPER:
        return f"it is moved while it runs, and is in mode {mode.value}: see zkmigrate status"
    (node,) = yield from read_many([marker])
    if node is not None and node.data:
        store = moved_to(node.data)
        if store is None:
            return f"{marker} cannot be read: see zkmigrate status"
        if store != "zookeeper":
            return f"it was moved to {store:.20}, so these offsets no longer count"
    if (yield from look(group)).guard is Guard.LOCKED:
        return f"{paths.ids} is locked by zkmigrate"
    return None
