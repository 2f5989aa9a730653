"""Scripts that change a group without members: they delete it, or write its offsets.

Each multi is guarded: it deletes the group's empty ``ids`` znode, and recreates it if it must
remain. ZooKeeper refuses to delete a znode with children. If a member has registered since, the
whole multi fails, so its changes are made only while no member is registered. The JVM's tools check
first and write afterwards, so a member may register in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final

from zkconsumer.admin.offset_files import OffsetKey
from zkconsumer.admin.reads import children
from zkconsumer.admin.snapshot import list_members
from zkconsumer.admin.text import printable
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
    Script,
    attempt,
    ensure_path,
    packets,
    read,
    read_many,
)
from zkconsumer.core.zookeeper.znodes import GroupPaths, encode_offset
from zkconsumer.errors import (
    GroupActiveError,
    GroupChangedError,
    UnknownGroupError,
    ZkUnavailableError,
)

_PACKET_OPS: Final = 2000
_TRIES: Final = 5
_DEEP: Final = 10**6

Progress = Callable[[int], object]
"""Called with the number of znodes just done."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """The extent of a deletion: ``paths`` from the leaves up. ``whole``: the group itself too."""

    group: str
    topic: str | None
    whole: bool
    paths: tuple[str, ...]


def plan_deletion(group: str, topic: str | None, deep: bool = False) -> Script[Deletion]:
    """Find out what deleting a group, or one topic of it, would delete.

    As in Scala 1.1.1 ConsumerGroupCommand a topic means its owners and offsets, and when it is the
    group's only topic the whole group. There only owned topics count as the group's; here those
    with offsets do too, so that no other topic's offsets are lost. Unless ``deep`` the znodes of
    partitions are taken to have no children.

    Raises UnknownGroupError, and GroupActiveError while members are registered.
    """
    paths = GroupPaths(group)
    parts = yield from children(paths.root)
    if parts is None:
        raise UnknownGroupError(f"there is no group {group}")
    members = yield from list_members(group)
    if members:
        raise active(group, members)
    whole = topic is None
    if topic is not None:
        owned = (yield from children(paths.owners)) or []
        stored = (yield from children(paths.offsets)) or []
        if topic not in (*owned, *stored):
            return Deletion(group, topic, False, ())
        whole = {*owned, *stored} == {topic}
    below = _DEEP if deep else 0
    if whole:
        found = yield from tree(paths.root, 3 + below)
    else:
        assert topic is not None
        found = yield from tree(paths.owners_topic(topic), 1 + below)
        found += yield from tree(paths.offsets_topic(topic), 1 + below)
    return Deletion(group, topic, whole, tuple(path for path in found if path != paths.ids))


def delete(group: str, topic: str | None, progress: Progress) -> Script[Deletion]:
    """Delete the znodes that ``plan_deletion`` finds; return what was deleted.

    Raises the errors of ``plan_deletion``, and GroupChangedError if a member registers in the
    meantime. The error then says how much was deleted and how much remains.
    """
    paths = GroupPaths(group)
    done: list[str] = []
    failed: Code | None = None
    for attempts in range(_TRIES):
        try:
            plan = yield from plan_deletion(group, topic, deep=attempts > 0)
        except UnknownGroupError:
            if attempts:  # then it is this deletion whose answer got lost
                return Deletion(group, topic, True, tuple(done))
            raise
        except GroupActiveError as error:
            if done:
                raise GroupChangedError(_interrupted(group, len(done), str(error))) from None
            raise
        if not plan.paths:
            return Deletion(group, topic, False, tuple(done))
        failed = yield from _delete_all(paths, plan, done, progress)
        if failed is None:
            return Deletion(group, topic, plan.whole, tuple(done))
    why = f"its znodes keep changing ({failed.value if failed else 'again'})"
    raise GroupChangedError(_interrupted(group, len(done), why))


def _interrupted(group: str, count: int, why: str) -> str:
    return f"{why}; {count} znodes of group {group} are deleted, the others remain"


def _delete_all(
    paths: GroupPaths, plan: Deletion, done: list[str], progress: Progress
) -> Script[Code | None]:
    """Delete in guarded packets; ``None`` when all are gone, else why one was refused."""
    has_ids = yield from _exists(paths.ids)
    for packet in packets(((path, (Delete(path),)) for path in plan.paths), _PACKET_OPS):
        guard = _guard(paths, has_ids, keep=not plan.whole)
        reply = yield from attempt(Multi((*guard, *chain.from_iterable(packet.values()))))
        if isinstance(reply, Failed):
            return reply.code
        has_ids = has_ids and not plan.whole
        done += packet
        progress(len(packet))
    return None


def _guard(paths: GroupPaths, has_ids: bool, keep: bool) -> list[MultiOp]:
    """Operations that succeed only while no member is registered."""
    if has_ids:
        return [Delete(paths.ids), *([Create(paths.ids)] if keep else [])]
    return [Create(paths.ids), Delete(paths.ids)]


def _exists(path: str) -> Script[bool]:
    reply = yield from read(Exists(path))
    return isinstance(reply, Ok) and reply.value is not None


def tree(root: str, depth: int = _DEEP) -> Script[list[str]]:
    """Return a znode and all below it, each after its children. Nothing if it does not exist.

    Znodes ``depth`` levels below are assumed to have no children.
    """
    found: list[str] = []
    waiting = [(root, depth)]
    while waiting:
        path, levels = waiting.pop()
        names = (yield from children(path)) if levels else []
        if names is not None:
            found.append(path)
            waiting += [(f"{path}/{name}", levels - 1) for name in names]
    return found[::-1]


def active(group: str, members: list[str]) -> GroupActiveError:
    """Return the refusal that names a group's members."""
    shown = ", ".join(members[:5]) + (f" and {len(members) - 5} more" if len(members) > 5 else "")
    return GroupActiveError(f"group {group} is active: stop its members first ({printable(shown)})")


def read_stored(keys: Iterable[OffsetKey]) -> Script[dict[OffsetKey, Node]]:
    """Read the offset znodes of these partitions; those that do not exist are left out."""
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

    ``force``: also while members are registered. Raises GroupActiveError, GroupChangedError (a
    znode changed meanwhile), ZkUnavailableError (the connection broke during a write).
    """
    paths, known = GroupPaths(group), set[str]()
    for topic in sorted({key.topic for key in changes if key not in stored}):
        yield from ensure_path(known, paths.offsets_topic(topic))
    guard: list[MultiOp] = []
    if not force:
        has_ids = yield from _exists(paths.ids)
        guard = _guard(paths, has_ids, keep=has_ids)
    by_path = {key.path: key for key in changes}
    written = 0
    items = (
        (path, (_write(path, changes[key], stored.get(key)),)) for path, key in by_path.items()
    )
    for packet in packets(items, _PACKET_OPS):
        reply = yield from attempt(Multi((*guard, *chain.from_iterable(packet.values()))))
        if isinstance(reply, Failed):
            so_far = f"{written} of {len(changes)} offsets of group {group} are written"
            members = yield from list_members(group)
            if members and not force:
                raise GroupChangedError(f"{active(group, members)}; {so_far}")
            if reply.code is Code.CONNECTION_LOSS:
                raise ZkUnavailableError(
                    f"the connection broke during a write: {so_far}, perhaps {len(packet)} more; "
                    "import again to see what is left"
                )
            position = (reply.index or 0) - len(guard)
            culprit = list(packet)[position] if position >= 0 else paths.ids
            raise GroupChangedError(f"{culprit} was changed by another client meanwhile; {so_far}")
        written += len(packet)
        progress(len(packet))


def _write(path: str, offset: int, node: Node | None) -> MultiOp:
    data = encode_offset(offset)
    return Create(path, data) if node is None else SetData(path, data, node.stat.version)
