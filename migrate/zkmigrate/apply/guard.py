"""The guard: keeps old consumers of a moved group from starting. Scripts; any thread.

A legacy consumer registers below ``/consumers/GROUP/ids`` before it does anything else. The guard
takes the permission to create children from every entry of that znode's access list, so a consumer
fails with ``NoAuth`` at once. Nothing else changes, and reading is still allowed. The original
list is kept in the znode's data, which no client uses, so that ``unlock`` restores it exactly. The
data is written before the list is changed, and cleared after it is restored: each step may be
repeated.

ZooKeeper may be configured not to enforce access lists, and never enforces them for its super
user. ``lock`` detects this by a test registration, and then changes nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

from zkconsumer.admin.ids_lock import CREATE, FORMAT, PROBE_END, Found, Guard, look
from zkconsumer.admin.reads import children
from zkconsumer.core.common.types import Pattern, Subscription
from zkconsumer.core.migration.modes import Mode
from zkconsumer.core.zookeeper.ops import (
    AclEntry,
    Code,
    Create,
    Delete,
    Failed,
    Ok,
    SetAcl,
    SetData,
)
from zkconsumer.core.zookeeper.scripts.common import Refused, Script, attempt, ensure_path
from zkconsumer.core.zookeeper.znodes import GroupPaths, encode_registration, is_legal_group
from zkconsumer.errors import ZooKeeperError
from zkconsumer.zk.blocking import BlockingZk, or_refusal, refusal
from zkmigrate.apply.outcome import Outcome, Result, by_table
from zkmigrate.errors import check_members, refused
from zkmigrate.model import GroupState, Store
from zkmigrate.plan.table import Action
from zkmigrate.reasons import Reason
from zkmigrate.stores import migration_marker, record

LOCKED_MEANWHILE: Final = "another operator has locked the group meanwhile"
UNLOCKED_MEANWHILE: Final = "another operator has unlocked the group meanwhile"
NOT_ENFORCED: Final = (
    "ZooKeeper does not enforce access lists, or zkmigrate has logged in as its super user: then "
    "log in as another user"
)


def lock(group: str, allowed: tuple[AclEntry, ...] = ()) -> Script[str | None]:
    """Keep old consumers from registering. Return why that is not possible, otherwise ``None``.

    ``allowed``: see ``lock_found``.
    """
    found = yield from lock_found(group, allowed)
    return found if isinstance(found, str) else None


def lock_found(
    group: str, allowed: tuple[AclEntry, ...] = (), exactly: bool = False
) -> Script[Found | str]:
    """Keep old consumers from registering. Return the lock, or why that is not possible.

    ``allowed``: identities that may still register, in addition to those of an earlier lock unless
    ``exactly`` is set. No identity may register once a finished move to Kafka is recorded. If the
    lock does not take effect, all changes are reverted.

    The znode's data and access list are written even if the group is already locked. An ``unlock``
    that has already read the list therefore fails. As long as the data has the returned version, no
    other ``lock`` has changed the list.
    """
    path = GroupPaths(group).ids
    first: Found | None = None
    record: tuple[AclEntry, ...] | None = None
    try:
        while True:
            lock = yield from look(group)
            first = first or lock
            if lock.acl is None:
                yield from ensure_path(set(), path)
                continue
            if lock.guard is Guard.CLOSED and record is None:
                break  # nothing of ours that could be lifted
            if lock.record is not None:
                record, data = lock.record, _encode(lock.at_ms or 0, lock.record, lock.old_data)
            else:  # not locked yet, or one who unlocked has just cleared what we noted
                record = record or lock.acl.entries
                data = _encode(int(time.time() * 1000), record, lock.data)
            if isinstance((yield from attempt(SetData(path, data, lock.version))), Failed):
                continue
            # Not before: who records that finds a lock that is as it left it.
            lets_in = allowed or (lock.lets_live_in and not exactly)
            if lets_in and (yield from migration_marker.state_of(group)).moved_to is Store.KAFKA:
                allowed, exactly = (), True
            entries = (*(_without_create(entry) for entry in record), *allowed)
            as_is = not exactly and lock.guard is Guard.LOCKED
            if as_is and not set(allowed) - set(lock.acl.entries):
                entries = lock.acl.entries
            if isinstance((yield from attempt(SetAcl(path, entries, lock.acl.version))), Failed):
                continue
            ours = lock.version + 1
            lock = yield from look(group)
            if lock.guard is Guard.LOCKED and lock.version == ours:
                break
        if not (yield from _can_register(group)):
            return lock
        if lock.guard is Guard.LOCKED and (yield from look(group)).guard is Guard.OPEN:
            return UNLOCKED_MEANWHILE
    except Refused as fault:
        if first is None or first.guard is Guard.OPEN:
            yield from _clear(group)
        return str(refusal(fault))
    yield from unlock(group)
    return NOT_ENFORCED


def unlock(group: str, still: Callable[[], Script[bool]] | None = None) -> Script[bool]:
    """Let consumers register again. Return whether they were locked out. Raises Refused.

    ``still``: returns whether the group must still be unlocked. It is called after the access list
    was read. The list is only changed if its version is still the same.
    """
    path = GroupPaths(group).ids
    was = lifted = False
    while True:
        lock = yield from look(group)
        if lock.record is None or lock.acl is None:
            return was
        if lock.acl.entries == lock.record:
            yield from attempt(SetData(path, lock.old_data, lock.version))
        elif lifted or (still is not None and not (yield from still())):
            return was  # another operator has locked it
        else:
            was = was or lock.guard is Guard.LOCKED
            reply = yield from attempt(SetAcl(path, lock.record, lock.acl.version))
            lifted = isinstance(reply, Ok)


def let_in(group: str) -> Script[bool]:
    """Unlock a group if its record says that it is not locked. Return whether it was locked.
    Raises Refused."""

    def still() -> Script[bool]:
        found = yield from record.read(group)
        return not found.locked and (yield from record.is_still(group, found.version))

    return (yield from unlock(group, still))


def check_unlocked(group: str) -> Script[None]:
    """Check that no other command has locked a group since it was unlocked. Raises
    GroupRefusedError."""
    yield from record.is_still(group, -1)  # what is read after it is not older
    if (yield from look(group)).guard is Guard.LOCKED:
        raise refused(group, Reason.OTHER_OPERATOR, LOCKED_MEANWHILE)


def follow_record(group: str, in_kafka: bool, locked: bool) -> Script[str | None]:
    """Lock or unlock a mirrored group as its record requires. Return why members cannot be kept
    out, otherwise ``None``. ``locked``: whether the record required a lock when it was read.

    If Kafka leads and ``locked`` is set, the group is locked again even if it is already locked,
    because an ``undo`` may be about to unlock it. After that, or if ZooKeeper leads, the record is
    read again and the group is unlocked if the record no longer requires a lock. If Kafka leads and
    ``locked`` is not set, nothing is done.
    """
    fault = None
    if in_kafka and locked:
        fault = yield from lock(group)
    elif in_kafka:
        return None
    yield from let_in(group)
    return fault


def lock_moved(group: str, execute: bool) -> Script[Result]:
    """Lock a group that was moved to Kafka and has no members. Without ``execute``, only check.

    Raises GroupInUseError, Refused.
    """
    found = yield from migration_marker.state_of(group)
    refusal = by_table(found, Action.LOCK)
    if refusal is not None:
        return refusal
    if found.in_live_move:  # since the command has chosen how to lock it
        return Result(group, Outcome.REFUSED, 0, record.MEANWHILE, (Reason.OTHER_OPERATOR,))
    check_members(group, (yield from children(GroupPaths(group).ids)) or [])
    state = yield from look(group)
    if state.guard is Guard.LOCKED and not state.lets_live_in:
        return Result(group, Outcome.WAS_DONE, 0)
    if not execute:
        return Result(group, Outcome.WOULD, 0)
    written = record.written(found.record, command="lock", locked=True)
    yield from record.write(group, written)
    fault = yield from lock(group)
    if fault is None:
        now = yield from migration_marker.state_of(group)
        if not now.faults and by_table(now, Action.LOCK) is not None:
            yield from unlock_recorded(group)  # another operator has taken it back
            return Result(group, Outcome.REFUSED, 0, record.MEANWHILE, (Reason.OTHER_OPERATOR,))
        check_members(group, (yield from children(GroupPaths(group).ids)) or [])
        return Result(group, Outcome.DONE, 0)
    if fault == UNLOCKED_MEANWHILE:
        return Result(group, Outcome.REFUSED, 0, fault, (Reason.OTHER_OPERATOR,))
    why = f"{fault}: use zkmigrate lock --hold"
    return Result(group, Outcome.FAILED, 0, why, (Reason.CANNOT_LOCK,))


def nothing_to_unlock(state: GroupState) -> Script[Result | None]:
    """Return the outcome of a group that is not locked; ``None`` if it is locked.

    A group also counts as locked if Kafka leads its mirror or a cut-over has begun. Raises Refused.
    """
    known = state.record
    if known.mirror_leads is Store.KAFKA or known.cut_over_waits or known.to_cluster:
        return None
    if (yield from look(state.group)).record:
        return None
    return Result(state.group, Outcome.NOTHING, 0, "is not locked by zkmigrate")


def release(group: str, execute: bool, live: bool = False) -> Script[Result]:
    """Let a group's consumers start again. Without ``execute``, only check.

    Refuses a group in a live move, because its mode decides whether it is locked. ``live``: see
    ``unlock_recorded``. Raises GroupRefusedError, Refused.
    """
    state = yield from migration_marker.state_of(group)
    done = by_table(state, Action.UNLOCK) or (yield from nothing_to_unlock(state))
    if done is not None:
        return done
    if not execute:
        return Result(group, Outcome.WOULD, 0)
    yield from unlock_recorded(group, live)
    yield from check_unlocked(group)
    return Result(group, Outcome.DONE, 0)


def look_at_all(
    zk: BlockingZk, groups: Iterable[str]
) -> Iterator[tuple[str, Found | ZooKeeperError]]:
    """Yield the lock of each group whose name is valid in ZooKeeper, or why it cannot be read."""
    names = list(filter(is_legal_group, groups))
    return zip(names, zk.run_all(or_refusal(look(name)) for name in names), strict=True)


def unlock_recorded(group: str, live: bool = False) -> Script[bool]:
    """Record that the group is unlocked, and unlock it. Return whether it was locked.

    The lock is kept if another command writes the record in the meantime. ``live``: also keep the
    lock of a group that was moved to Kafka while it was stopped.
    """
    state = yield from migration_marker.state_of(group)
    of_move = live and state.moved_to is Store.KAFKA
    if of_move or state.mode is not Mode.ZOOKEEPER or by_table(state, Action.UNLOCK) is not None:
        return False
    if (yield from look(group)).record is None and not state.record.to_cluster:
        return False
    stays = {"locked": False, "to_cluster": "", "handed_over": False}
    written = record.written(state.record, command="unlock", **stays)
    serial = (yield from record.write(group, written)).version
    return (yield from unlock(group, lambda: record.is_still(group, serial)))


def _clear(group: str) -> Script[None]:
    """Remove the znodes that ``lock`` wrote before it was refused, as far as access lists allow."""
    try:
        yield from unlock(group)
    except Refused:
        return


def _without_create(entry: AclEntry) -> AclEntry:
    return replace(entry, perms=entry.perms & ~CREATE)


def _can_register(group: str) -> Script[bool]:
    """Whether a registration is accepted despite the lock. The registration is deleted again."""
    path = GroupPaths(group).member(f"{group}{PROBE_END}")
    data = encode_registration(Subscription(Pattern.STATIC, {}), 0)
    while True:
        try:
            reply = yield from attempt(Create(path, data, ephemeral=True))
        except Refused as fault:
            if fault.code is Code.NO_AUTH:
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
        "zkmigrate": "the group was moved to Kafka; zkmigrate unlock lets consumers start again",
        "version": FORMAT,
        "at_ms": at_ms,
        "acl": [[entry.perms, entry.scheme, entry.who] for entry in entries],
        "data": data.decode("latin-1"),
    }
    return json.dumps(document, separators=(",", ":")).encode()
