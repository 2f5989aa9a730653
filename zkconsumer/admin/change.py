"""Scripts that change a group without members: they delete it, or write its offsets.

To write offsets, or to delete those of one topic, the tool takes the group over: it registers,
checks that no other member is registered, and claims the partitions. The ``ids`` znode, with its
access list, stays. To delete a whole group, each multi deletes the group's empty ``ids`` znode.
ZooKeeper refuses to delete a znode with children, so the changes are made only while no member is
registered. The JVM's tools check first and write afterwards, so a member may register in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final

from zkconsumer.admin import takeover
from zkconsumer.admin.ids_lock import Guard, look, protection
from zkconsumer.admin.offset_files import OffsetKey
from zkconsumer.admin.printable import printable, shown
from zkconsumer.admin.reads import children, children_of
from zkconsumer.admin.snapshot import list_members
from zkconsumer.admin.takeover import Hold
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import (
    Code,
    Create,
    Delete,
    Exists,
    Failed,
    Multi,
    MultiOp,
    Node,
    Ok,
    SetData,
)
from zkconsumer.core.zookeeper.scripts.common import (
    Refused,
    Script,
    attempt,
    ensure_path,
    packets,
    read,
    read_many,
)
from zkconsumer.core.zookeeper.znodes import GroupPaths, child_number, encode_offset
from zkconsumer.errors import (
    GroupActiveError,
    GroupChangedError,
    ProtectedGroupError,
    UnknownGroupError,
    ZkConsumerError,
    ZkUnavailableError,
)

_PACKET_OPS: Final = 2000
_TRIES: Final = 5
_DEEP: Final = 10**6

Progress = Callable[[int], object]
"""Called with the number of znodes just done."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """The znodes that a deletion removes. ``paths``: children before parents. ``whole``: whether
    the group itself is removed."""

    group: str
    topic: str | None
    whole: bool
    paths: tuple[str, ...]


def plan_deletion(
    group: str, topic: str | None, deep: bool = False, force: bool = False, but: str = ""
) -> Script[Deletion]:
    """Return the znodes that deleting a group, or one topic of it, would remove.

    As in Scala 1.1.1 ConsumerGroupCommand, deleting a topic removes its owners and offsets, or the
    whole group if this is its only topic. Unlike in Scala, topics that have offsets but no owner
    also count, so that their offsets are not lost. Unless ``deep``, the znodes of partitions are
    assumed to have no children. ``but``: a registration to ignore.

    Raises UnknownGroupError; GroupActiveError while members are registered; and, without ``force``,
    GroupChangedError if the group is protected (see ``ids_lock.protection``).
    """
    paths = GroupPaths(group)
    parts = yield from children(paths.root)
    if parts is None:
        raise UnknownGroupError(f"there is no group {group}")
    members = [name for name in (yield from list_members(group)) if name != but]
    if members:
        raise active(group, members)
    whole = topic is None
    if topic is not None:
        owned = (yield from children(paths.owners)) or []
        stored = (yield from children(paths.offsets)) or []
        if topic not in (*owned, *stored):
            return Deletion(group, topic, False, ())
        whole = {*owned, *stored} == {topic}
    if not force:
        yield from _unprotected(group)
    below = _DEEP if deep else 0
    if whole:
        znodes = yield from tree(paths.root, 3 + below)
    else:
        assert topic is not None
        znodes = yield from tree(paths.owners_topic(topic), 1 + below)
        znodes += yield from tree(paths.offsets_topic(topic), 1 + below)
    return Deletion(group, topic, whole, tuple(path for path in znodes if path != paths.ids))


def _unprotected(group: str) -> Script[None]:
    why = yield from protection(group)
    if why is not None:
        raise ProtectedGroupError(f"group {group}: {why}; --force changes it anyway")


def delete(
    group: str, topic: str | None, progress: Progress, force: bool = False
) -> Script[Deletion]:
    """Delete the znodes that ``plan_deletion`` finds; return what was deleted.

    Raises the errors of ``plan_deletion``, and GroupChangedError if a member registers in the
    meantime. The error then says how much was deleted and how much remains.
    """
    done: list[str] = []
    failed: Code | None = None
    for attempts in range(_TRIES):
        try:
            plan = yield from plan_deletion(group, topic, attempts > 0, force)
            if not plan.paths:
                return Deletion(group, topic, False, tuple(done))
            if plan.whole:
                failed = yield from _delete_group(group, plan, done, progress)
            else:
                failed = yield from _delete_topic(plan, done, progress, attempts > 0)
        except UnknownGroupError:
            if attempts:  # then it is this deletion whose answer got lost
                return Deletion(group, topic, True, tuple(done))
            raise
        except (GroupActiveError, GroupChangedError) as error:
            if done:
                raise GroupChangedError(_interrupted(group, len(done), str(error))) from None
            raise
        if failed is None:
            return Deletion(group, topic, plan.whole, tuple(done))
    why = f"its znodes keep changing ({failed.value if failed else 'again'})"
    raise GroupChangedError(_interrupted(group, len(done), why))


def _interrupted(group: str, count: int, why: str) -> str:
    return f"{why}; {count} znodes of group {group} are deleted, the others remain"


def _delete_group(
    group: str, plan: Deletion, done: list[str], progress: Progress
) -> Script[Code | None]:
    """Delete in guarded packets. Return ``None`` when all are gone, otherwise why one
    was refused."""
    ids = GroupPaths(group).ids
    has_ids = yield from _exists(ids)
    for packet in packets(((path, (Delete(path),)) for path in plan.paths), _PACKET_OPS):
        guard: list[MultiOp] = [Delete(ids)] if has_ids else [Create(ids), Delete(ids)]
        reply = yield from attempt(Multi((*guard, *chain.from_iterable(packet.values()))))
        if isinstance(reply, Failed):
            return reply.code
        has_ids = False
        done += packet
        progress(len(packet))
    return None


def _delete_topic(
    plan: Deletion, done: list[str], progress: Progress, deep: bool
) -> Script[Code | None]:
    """Delete one topic's owners and offsets in a group that is taken over."""
    hold, topic = _hold(plan.group), plan.topic
    assert topic is not None
    hold.locked = (yield from look(plan.group)).guard is Guard.LOCKED
    paths = hold.paths
    listed = yield from children_of([paths.offsets_topic(topic), paths.owners_topic(topic)])
    numbers = {number for name in chain(*listed) if (number := child_number(name)) is not None}
    wanted = [TopicPartition(topic, number) for number in sorted(numbers)]
    stale = {
        tp
        for tp, node in zip(wanted, (yield from read_many(map(paths.owner, wanted))), strict=True)
        if node is not None and not node.stat.ephemeral_owner  # no session can have it
    }
    claims = [tp for tp in wanted if tp not in stale]
    try:
        yield from takeover.take(hold, claims, lambda _tp, _node: None)
        failed = yield from _delete_held(hold, plan, done, progress, deep)
    except (ZkConsumerError, Refused):
        yield from takeover.release(hold)
        raise
    yield from takeover.release(hold)
    return failed


def _delete_held(
    hold: Hold, planned: Deletion, done: list[str], progress: Progress, deep: bool
) -> Script[Code | None]:
    """Delete the znodes that the topic has now. ``planned``: those that it had before it was
    claimed."""
    plan = yield from plan_deletion(hold.group, planned.topic, deep, force=True, but=hold.name)
    there = set(planned.paths)
    owners = [path for path in plan.paths if path.startswith(f"{hold.paths.owners}/")]
    for path, node in zip(owners, (yield from read_many(owners)), strict=True):
        if node is not None and node.stat.ephemeral_owner not in (0, hold.session_id):
            raise GroupChangedError(
                f"{path} was claimed by a member in the meantime: stop that member, then run the "
                "command again"
            )
    below = hold.paths.owners_topic(planned.topic or "")
    offsets_first = sorted(plan.paths, key=lambda path: path.startswith(below))
    for packet in packets(((path, (Delete(path),)) for path in offsets_first), _PACKET_OPS):
        others = [name for name in (yield from list_members(hold.group)) if name != hold.name]
        if others:
            raise active(hold.group, others)
        reply = yield from attempt(Multi((hold.check, *chain.from_iterable(packet.values()))))
        if isinstance(reply, Failed):
            return reply.code
        deleted = [path for path in packet if path in there]
        done += deleted
        progress(len(deleted))
    return None


def _hold(group: str) -> Hold:
    return Hold(group, takeover.tool_name(group), int(time.time() * 1000))


def _exists(path: str) -> Script[bool]:
    reply = yield from read(Exists(path))
    return isinstance(reply, Ok) and reply.value is not None


def tree(root: str, depth: int = _DEEP) -> Script[list[str]]:
    """Return the paths of a znode and of all znodes below it, children first; empty if it does not
    exist.

    Znodes ``depth`` levels below it are assumed to have no children.
    """
    znodes: list[str] = []
    waiting = [(root, depth)]
    while waiting:
        path, levels = waiting.pop()
        names = (yield from children(path)) if levels else []
        if names is not None:
            znodes.append(path)
            waiting += [(f"{path}/{name}", levels - 1) for name in names]
    return znodes[::-1]


def active(group: str, members: list[str]) -> GroupActiveError:
    """Return the error for a group that has these registered members."""
    named = printable(shown(members))
    return GroupActiveError(f"group {group} is active: stop its members first ({named})")


def read_stored(keys: Iterable[OffsetKey]) -> Script[dict[OffsetKey, Node]]:
    """Read the offset znodes of these partitions. Those that do not exist are left out."""
    wanted = list(keys)
    nodes = yield from read_many([key.path for key in wanted])
    return {key: node for key, node in zip(wanted, nodes, strict=True) if node is not None}


def write_offsets(
    group: str,
    changes: Mapping[OffsetKey, int],
    stored: Mapping[OffsetKey, Node],
    force: bool,
    progress: Progress,
) -> Script[None]:
    """Write offsets of one group, each only if its znode still equals ``stored``.

    ``force``: write even while members are registered, or if the group is protected. Raises
    GroupActiveError, GroupChangedError (a znode has changed), ZkUnavailableError (the connection
    broke during a write).
    """
    if force:
        yield from _write_offsets(group, changes, stored, progress)
        return
    yield from _unprotected(group)
    hold = _hold(group)

    def accept(tp: TopicPartition, node: Node | None) -> str | None:
        key = OffsetKey(group, *tp)
        if node == stored.get(key):
            return None
        return f"{key.path} was changed by another client meanwhile; nothing is written"

    by_partition = {TopicPartition(key.topic, key.partition): new for key, new in changes.items()}
    try:
        yield from takeover.take(hold, by_partition, accept)
        yield from takeover.write_offsets(hold, by_partition)
    except (ZkConsumerError, Refused):
        yield from takeover.release(hold)
        raise
    others = yield from takeover.release(hold)
    progress(len(changes))
    if others:
        raise GroupChangedError(
            f"group {group}: {len(changes)} offsets are written, but {printable(shown(others))} "
            "registered in the meantime and may have read the old ones: stop these members, then "
            "import again"
        )


def _write_offsets(
    group: str,
    changes: Mapping[OffsetKey, int],
    stored: Mapping[OffsetKey, Node],
    progress: Progress,
) -> Script[None]:
    paths, known = GroupPaths(group), set[str]()
    for topic in sorted({key.topic for key in changes if key not in stored}):
        yield from ensure_path(known, paths.offsets_topic(topic))
    written = 0
    by_path = {key.path: key for key in changes}
    items = (
        (path, (_write(path, changes[key], stored.get(key)),)) for path, key in by_path.items()
    )
    for packet in packets(items, _PACKET_OPS):
        reply = yield from attempt(Multi(tuple(chain.from_iterable(packet.values()))))
        if isinstance(reply, Failed):
            so_far = f"{written} of {len(changes)} offsets of group {group} are written"
            if reply.code is Code.CONNECTION_LOSS:
                raise ZkUnavailableError(
                    f"the connection was lost during a write: {so_far}, perhaps {len(packet)} "
                    "more; import again to see the remaining changes"
                )
            culprit = list(packet)[reply.index or 0]
            raise GroupChangedError(
                f"{culprit} was changed by another client in the meantime; {so_far}"
            )
        written += len(packet)
        progress(len(packet))


def _write(path: str, offset: int, node: Node | None) -> MultiOp:
    data = encode_offset(offset)
    return Create(path, data) if node is None else SetData(path, data, node.stat.version)
