"""The migrator's part of taking a group over; the rest is in ``zkconsumer.admin.takeover``.

A claim does not stop a JVM consumer, which writes without checking versions. Therefore the
migration marker is written in a multi that checks the version of every claimed offset znode.
Scripts; any thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Set
from functools import partial, wraps
from typing import Final, ParamSpec

from zkconsumer.admin import takeover
from zkconsumer.admin.ids_lock import CREATE, MASKED, Found, Guard
from zkconsumer.admin.reads import children_of
from zkconsumer.admin.takeover import (
    Hold,
    SerialChangedError,
    data_of,
    release,
    still_there,
)
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import (
    Acl,
    Check,
    Code,
    Create,
    Delete,
    Failed,
    GetAcl,
    GetMany,
    Multi,
    MultiOp,
    Ok,
    Reply,
    SetAcl,
    SetData,
    ZkOp,
)
from zkconsumer.core.zookeeper.scripts.common import (
    Refused,
    Script,
    T,
    attempt,
    op_bytes,
    path_of,
    read,
    read_many,
)
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.errors import GroupActiveError, GroupChangedError, ZkConsumerError
from zkconsumer.zk.blocking import BlockingZk
from zkmigrate.apply.journal import Effect, no_effect
from zkmigrate.errors import GroupInUseError, GroupRefusedError, refused
from zkmigrate.model import Before, Record
from zkmigrate.reasons import Reason
from zkmigrate.stores import migration_marker, record

P = ParamSpec("P")
_ALL: Final = 15
"""The permissions to read, write, create and delete."""
_MAX_REQUEST: Final = 960 * 1024
"""Largest size of one multi in bytes. By default a ZooKeeper server refuses 1 MiB."""


def counted(script: Script[T], effect: Effect) -> Script[T]:
    """Run a script, and call ``effect`` before and after each operation that changes a znode."""
    reply: Reply | None = None
    while True:
        try:
            op = next(script) if reply is None else script.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result
        changes = isinstance(op, Create | SetData | Delete | Multi | SetAcl)
        if changes:
            effect(f"before zookeeper {_name(op)}")
        reply = yield op
        if changes:
            effect(f"after zookeeper {_name(op)}")


def _name(op: ZkOp) -> str:
    size = f" of {len(op.ops)}" if isinstance(op, Multi) else ""
    assert not isinstance(op, GetMany)
    return f"{type(op).__name__.lower()}{size} {path_of(op)}"


def hold_of(group: str, run: str, lock: Found | None = None) -> Hold:
    """Return the claim with which a run will take a group. ``lock``: the lock on the group's
    ``ids`` znode, if it was read."""
    locked = lock is not None and lock.guard is Guard.LOCKED
    return Hold(group, f"{group}_zkmigrate-{run}", int(time.time() * 1000), locked)


def migrators(group: str) -> Script[list[str]]:
    """Return the names of the registered members, and of migrators that hold a locked group."""
    paths = GroupPaths(group)
    ids, owners = yield from children_of([paths.ids, paths.owners])
    return [*ids, *owners]


def _refusing(script: Callable[P, Script[T]]) -> Callable[P, Script[T]]:
    """Return a script that raises the errors of a tool that changes a group as
    GroupRefusedError."""

    @wraps(script)
    def refusing(*words: P.args, **named: P.kwargs) -> Script[T]:
        try:
            return (yield from script(*words, **named))
        except GroupActiveError as error:
            raise GroupInUseError(str(error), Reason.LIVE_MEMBER) from None
        except SerialChangedError as error:
            raise GroupRefusedError(str(error), Reason.OTHER_OPERATOR) from None
        except GroupChangedError as error:
            raise GroupRefusedError(str(error), Reason.CHANGED) from None

    return refusing


take = _refusing(takeover.take)
write_offsets = _refusing(takeover.write_offsets)
still_held = _refusing(takeover.still_held)


def release_after(
    zk: BlockingZk, hold: Hold, error: BaseException, effect: Effect = no_effect
) -> None:
    """Release a group after an error. If that fails, too, add a note to the error."""
    try:
        zk.run(counted(release(hold), effect))
    except ZkConsumerError as second:
        error.add_note(str(second))  # the claims end with the session


def write_record(hold: Hold, written: Record, more: Iterable[MultiOp] = ()) -> Script[Record]:
    """Write a claimed group's record together with other operations. Return it with its new
    version. From now on, no other command may write it. Raises GroupRefusedError."""
    again = partial(still_held, hold)
    found = yield from record.write(hold.group, written, (hold.check,), more, again=again)
    hold.serial = Check(record.path(hold.group), found.version)
    return found


def begin(hold: Hold, written: Record, before: Before | None) -> Script[Record]:
    """Write to a claimed group's record that a change begins, and store the state before it. Raises
    GroupRefusedError."""
    group = hold.group
    (there,) = yield from read_many([record.before_path(group)])
    more: list[MultiOp] = []
    if before is not None:
        where, data = record.before_path(group), record.encode_before(before)
        more = [Create(where, data) if there is None else SetData(where, data)]
    begun = yield from write_record(hold, written, more)
    for path in (record.path(group), record.before_path(group)):
        if written.version < 0 or there is None:
            yield from like_root(group, path)
    return begun


@_refusing
def write_marker(
    hold: Hold,
    before: Set[bytes | None],
    after: bytes | None,
    written: Record,
    checked: bool = True,
    earlier: bytes | None = None,
) -> Script[None]:
    """Change the migration marker, and write the group's record.

    ``before``: the content that the marker may have now. It may also already have the content
    ``after``. ``earlier``: new content for the znode with the state before the last change;
    ``None``: keep the content. ``checked``: also check that no claimed offset znode has changed. As
    many checks as fit are in the multi that writes the marker; the others are sent right before it.
    The caller must then read the offsets again, which also finds new ones. Raises GroupRefusedError
    if nothing was written.
    """
    path, where = migration_marker.path(hold.group), record.path(hold.group)
    made = False
    size = sum(map(len, (after or b"", earlier or b"", record.encode(written))))
    *packets, guards = _guards(hold, size) if checked else [{}]
    for packet in packets:
        yield from _check(hold, packet)
    while True:
        node, found = yield from read_many([path, where])
        current = Record() if found is None else record.decode(where, found)
        if current.id == written.id:
            hold.serial = Check(where, current.version)
            if made:
                yield from like_root(hold.group, path)
            return
        if current.version != written.version:
            raise refused(hold.group, Reason.OTHER_OPERATOR, record.MEANWHILE)
        ops: list[MultiOp] = [record.op(hold.group, written)]
        if earlier is not None:
            ops.append(SetData(record.before_path(hold.group), earlier))
        if data_of(node) != after:
            made = made or node is None
            if data_of(node) not in before:
                raise refused(
                    hold.group,
                    Reason.CHANGED,
                    f"{path} was changed since the plan was made: plan again",
                )
            if after is None:
                assert node is not None
                ops.append(Delete(path, node.stat.version))
            else:
                ops.append(record.put(path, after, node.stat.version if node else -1))
        reply = yield from attempt(Multi((hold.check, *guards.values(), *ops)))
        if isinstance(reply, Failed):
            yield from _still_unwritten(hold, reply, guards)


def like_root(group: str, path: str) -> Script[None]:
    """Give a new znode the access list of the group's znode, if that list is readable.

    The new znode shows which store is valid, so no other user may write it. A list that would
    prevent all later changes is not used.
    """
    try:
        root = yield from read(GetAcl(GroupPaths(group).root))
        own = yield from read(GetAcl(path))
        if not (isinstance(root, Ok) and isinstance(own, Ok)):
            return
        assert isinstance(root.value, Acl)
        assert isinstance(own.value, Acl)
        entries = root.value.entries
        masked = any(one.scheme == "digest" and one.who.endswith(MASKED) for one in entries)
        writable = all(one.perms & _ALL == _ALL for one in entries if one.perms & CREATE)
        if entries != own.value.entries and writable and not masked:
            yield from attempt(SetAcl(path, entries, own.value.version))
    except Refused:
        return  # the list that a new znode has


def _check(hold: Hold, guards: Mapping[TopicPartition, Check]) -> Script[None]:
    """Check that none of these offset znodes was written since the claim."""
    while True:
        reply = yield from attempt(Multi((hold.check, *guards.values())))
        if isinstance(reply, Ok):
            return
        yield from _still_unwritten(hold, reply, guards)


def _still_unwritten(
    hold: Hold, reply: Failed, guards: Mapping[TopicPartition, Check]
) -> Script[None]:
    still_there(hold, reply)
    if reply.code is Code.CONNECTION_LOSS:
        yield from still_held(hold)
    index = reply.index or 0
    if reply.code in (Code.NO_NODE, Code.BAD_VERSION) and 0 < index <= len(guards):
        tp = list(guards)[index - 1]
        raise refused(
            hold.group,
            Reason.OTHER_WRITER,
            f"{tp} was written in ZooKeeper while the group was being moved: a consumer is still "
            "running; stop it, then plan again",
        )


def _guards(hold: Hold, written: int) -> list[dict[TopicPartition, Check]]:
    """Return the checks of claimed offset znodes in packets that each fit into one request. The
    last packet, which may be empty, has room for another ``written`` bytes."""
    packets: list[dict[TopicPartition, Check]] = [{}]
    left = _MAX_REQUEST - written
    for tp, node in sorted(hold.nodes.items()):
        if node is None:
            continue
        guard = Check(hold.paths.offset(tp), node.stat.version)
        size = op_bytes(guard)
        if size > left:
            packets.append({})
            left = _MAX_REQUEST
        left -= size
        packets[-1][tp] = guard
    return packets[::-1]
