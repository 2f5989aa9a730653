"""The guard: keeps old consumers of a moved group from starting. Scripts; any thread.

A legacy consumer registers below ``/consumers/GROUP/ids`` before it does anything else. The guard
takes the permission to create children from every entry of that znode's access list, so a consumer
fails with ``NoAuth`` at once. Nothing else changes: clients that may read may still read. The
original list is kept in the znode's data, which no client uses, so that ``unlock`` restores it
exactly. The data is written before the list is changed, and cleared after it is restored: each step
may find its work done.

ZooKeeper may be configured not to enforce access lists. ``lock`` notices this, because it tries to
register, and then changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from zkconsumer.admin.reads import children
from zkconsumer.core.common.types import Pattern, Subscription
from zkconsumer.core.migration.znodes import LIVE_CREDENTIAL
from zkconsumer.core.zookeeper.ops import (
    Acl,
    AclEntry,
    Code,
    Create,
    Delete,
    Failed,
    GetAcl,
    GetData,
    Node,
    Ok,
    SetAcl,
    SetData,
)
from zkconsumer.core.zookeeper.scripts.common import Refused, Script, attempt, ensure_path, read
from zkconsumer.core.zookeeper.znodes import GroupPaths, encode_registration
from zkconsumer.zk.blocking import refusal
from zkmigrate.apply.outcome import Outcome, Result
from zkmigrate.model import Store
from zkmigrate.stores import migration_marker
from zkmigrate.text import shown

FORMAT: Final = 1
CREATE: Final = 4
"""ZooKeeper's bit for the permission to create children."""


LIVE: Final = AclEntry(CREATE, "digest", LIVE_CREDENTIAL)
"""Lets migratable members register in a group that is locked while it moves."""


class Guard(Enum):
    """Whether old consumers of a group can start. Commands print its value."""

    OPEN = "no"
    LOCKED = "locked"
    """Locked by this tool; ``unlock`` removes the lock."""
    CLOSED = "closed"
    """No client may register, and this tool has not caused that."""


@dataclass(frozen=True, slots=True)
class Found:
    """The state of znode ``ids``. ``record``: the original list; ``at_ms``: when it was locked."""

    guard: Guard
    at_ms: int | None = None
    record: tuple[AclEntry, ...] | None = None
    data: bytes = b""
    acl: Acl | None = None
    version: int = 0
    old_data: bytes = b""

    def may_register(self, identities: Collection[tuple[str, str | None]]) -> bool:
        """Whether the migrator may register once the group is unlocked.

        ``identities``: scheme and id of the migrator. An id of None matches every id.
        """
        entries = self.record or (self.acl.entries if self.acl else None)
        if entries is None:
            return True  # there is no such znode yet
        may = {
            (one.scheme, who) for one in entries if one.perms & CREATE for who in (one.who, None)
        }
        return not may.isdisjoint(identities)


def look(group: str) -> Script[Found]:
    """Return whether a group is locked."""
    path = GroupPaths(group).ids
    reply = yield from read(GetData(path))
    if isinstance(reply, Failed):
        return Found(Guard.OPEN)
    assert isinstance(reply.value, Node)
    node = reply.value
    reply = yield from read(GetAcl(path))
    if isinstance(reply, Failed):
        return Found(Guard.OPEN)
    assert isinstance(reply.value, Acl)
    acl = reply.value
    may_register = any(entry.perms & CREATE and entry != LIVE for entry in acl.entries)
    found = Found(Guard.OPEN, data=node.data, acl=acl, version=node.stat.version)
    decoded = decode(node.data)
    if decoded is not None:
        at_ms, record, old = decoded
        found = replace(found, at_ms=at_ms, record=record, old_data=old)
    if may_register:
        return found
    return replace(found, guard=Guard.CLOSED if decoded is None else Guard.LOCKED)


def lock(group: str, now_ms: int, allowed: tuple[AclEntry, ...] = ()) -> Script[str | None]:
    """Keep consumers from registering. Return why that is not possible, otherwise ``None``.

    Data and list are written even if the group is locked already. An ``unlock`` that read the list
    before then fails, however late it arrives. If a lock is not possible, nothing remains changed.
    ``allowed``: identities that may still register.
    """
    path = GroupPaths(group).ids
    first: Found | None = None
    record: tuple[AclEntry, ...] | None = None
    try:
        while True:
            found = yield from look(group)
            first = first or found
            if found.acl is None:
                yield from ensure_path(set(), path)
                continue
            if found.guard is Guard.CLOSED and record is None:
                break  # nothing of ours that could be lifted
            if found.record is not None:
                record, data = found.record, _encode(found.at_ms or 0, found.record, found.old_data)
            else:  # not locked yet, or one who unlocked has just cleared what we noted
                record = record or found.acl.entries
                data = _encode(now_ms, record, found.data)
            if isinstance((yield from attempt(SetData(path, data, found.version))), Failed):
                continue
            entries = (*(_without_create(entry) for entry in record), *allowed)
            if found.guard is Guard.LOCKED and not set(allowed) - set(found.acl.entries):
                entries = found.acl.entries  # also whom an earlier lock allowed
            if isinstance((yield from attempt(SetAcl(path, entries, found.acl.version))), Failed):
                continue
            if (yield from look(group)).guard is Guard.LOCKED:
                break
        if not (yield from _can_register(group)):
            return None
    except Refused as refused:
        if first is None or first.guard is Guard.OPEN:
            yield from _clear(group)
        return str(refusal(refused))
    yield from unlock(group)
    return "ZooKeeper does not enforce access lists"


def unlock(group: str, still: Callable[[], Script[bool]] | None = None) -> Script[bool]:
    """Let consumers register again; return whether they could not. Raises Refused.

    ``still`` is asked whether that is right still, after the version was read that the list must
    have when it is changed.
    """
    path = GroupPaths(group).ids
    was = lifted = False
    while True:
        found = yield from look(group)
        if found.record is None or found.acl is None:
            return was
        if found.acl.entries == found.record:
            yield from attempt(SetData(path, found.old_data, found.version))
        elif lifted or (still is not None and not (yield from still())):
            return was  # another operator has locked it
        else:
            was = was or found.guard is Guard.LOCKED
            reply = yield from attempt(SetAcl(path, found.record, found.acl.version))
            lifted = isinstance(reply, Ok)


def lock_moved(group: str, now_ms: int, execute: bool) -> Script[Result]:
    """Lock a group that was moved to Kafka and has no members. Without ``execute`` only check."""
    marker = yield from migration_marker.read(group)
    if marker is None or marker.moved_to is not Store.KAFKA:
        return Result(group, Outcome.SKIPPED, 0, "was not moved to Kafka")
    members = (yield from children(GroupPaths(group).ids)) or []
    if members:
        why = f"{shown(members)} registered in ZooKeeper: stop these members first"
        return Result(group, Outcome.REFUSED, 0, why)
    found = yield from look(group)
    if found.guard is Guard.LOCKED:
        return Result(group, Outcome.WAS_DONE, 0)
    if not execute:
        return Result(group, Outcome.WOULD, 0)
    fault = yield from lock(group, now_ms)
    if fault is None:
        return Result(group, Outcome.DONE, 0)
    return Result(group, Outcome.FAILED, 0, f"{fault}: use zkmigrate guard --hold")


def release(group: str, execute: bool) -> Script[Result]:
    """Let a group's consumers start again. Without ``execute`` only check."""
    found = yield from look(group)
    if found.record is None:
        return Result(group, Outcome.NOTHING, 0, "is not locked by zkmigrate")
    if not execute:
        return Result(group, Outcome.WOULD, 0)
    yield from unlock(group)
    return Result(group, Outcome.DONE, 0)


def _clear(group: str) -> Script[None]:
    """Take back what ``lock`` noted before it was refused, as far as that is allowed."""
    try:
        yield from unlock(group)
    except Refused:
        return


def _without_create(entry: AclEntry) -> AclEntry:
    return replace(entry, perms=entry.perms & ~CREATE)


def _can_register(group: str) -> Script[bool]:
    """Whether a registration is accepted nevertheless; it is deleted again."""
    path = GroupPaths(group).member(f"{group}_zkmigrate-probe")
    data = encode_registration(Subscription(Pattern.STATIC, {}), 0)
    while True:
        try:
            reply = yield from attempt(Create(path, data, ephemeral=True))
        except Refused as refused:
            if refused.code is Code.NO_AUTH:
                return False
            raise
        if isinstance(reply, Ok) or reply.code is Code.NODE_EXISTS:
            reply = yield from attempt(Delete(path))
            if isinstance(reply, Ok) or reply.code is Code.NO_NODE:
                return True
        elif reply.code is Code.NO_NODE:
            return True


def _encode(at_ms: int, entries: tuple[AclEntry, ...], data: bytes) -> bytes:
    document = {
        "zkmigrate": "the group was moved to Kafka; zkmigrate release lets consumers start again",
        "version": FORMAT,
        "at_ms": at_ms,
        "acl": [[entry.perms, entry.scheme, entry.who] for entry in entries],
        "data": data.decode("latin-1"),
    }
    return json.dumps(document, separators=(",", ":")).encode()


def decode(data: bytes) -> tuple[int, tuple[AclEntry, ...], bytes] | None:
    """Return lock time, original list and data; ``None`` if zkmigrate did not write the text."""
    try:
        found = json.loads(data.decode())
        if found["version"] != FORMAT or "zkmigrate" not in found:
            return None
        entries = tuple(AclEntry(int(p), str(s), str(who)) for p, s, who in found["acl"])
        return int(found["at_ms"]), entries, str(found["data"]).encode("latin-1")
    except (ValueError, OverflowError, KeyError, TypeError, RecursionError):
        return None
