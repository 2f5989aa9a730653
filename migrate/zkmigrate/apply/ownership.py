"""Takes a group over as a member would, so that no other member can start or commit.

The migrator registers under its own name, then claims every partition: a multi creates the owner
znode and checks the version of the offset znode. It does not rewrite the offset as a member's claim
does, so the offset znode keeps the time and the version of the last commit. A claim does not stop a
JVM consumer that writes without a version. Therefore the migration marker is written in a multi
that checks the version of every claimed offset znode. All changes are made in multis that check the
migrator's registration, so they happen in the session that holds the claims or not at all. Scripts;
any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from zkconsumer.admin.reads import children, children_of
from zkconsumer.admin.snapshot import CONSUMERS
from zkconsumer.core.common.types import Pattern, Subscription, TopicPartition
from zkconsumer.core.zookeeper.ops import (
    Check,
    Code,
    Create,
    Delete,
    Exists,
    Failed,
    GetMany,
    Multi,
    MultiOp,
    Node,
    Ok,
    Reply,
    SetAcl,
    SetData,
    Stat,
    ZkOp,
)
from zkconsumer.core.zookeeper.scripts.common import (
    Script,
    T,
    attempt,
    op_bytes,
    packets,
    path_of,
    read,
    read_many,
)
from zkconsumer.core.zookeeper.znodes import GroupPaths, encode_offset, encode_registration
from zkmigrate.apply.journal import Effect
from zkmigrate.errors import in_use, refused
from zkmigrate.stores import migration_marker
from zkmigrate.text import shown

_MAX_REQUEST: Final = 960 * 1024
"""Bytes of one multi; a ZooKeeper server refuses 1 MiB by default."""
_MAY_HAVE_WORKED = (Code.CONNECTION_LOSS, Code.NO_NODE)

Accept = Callable[[TopicPartition, Node | None], str | None]
"""Returns why an offset znode differs from the plan; ``None`` if it does not."""


@dataclass(slots=True)
class Hold:
    """A group that the migrator holds. ``nodes``: each claimed partition's offset znode.

    ``locked``: no member may register. The migrator's own registration is then below ``owners``, so
    that the lock stays where it is.
    """

    group: str
    name: str
    now_ms: int
    locked: bool = False
    session_id: int = 0
    nodes: dict[TopicPartition, Node | None] = field(default_factory=dict)
    complete: bool = False
    """Whether exactly ``nodes`` are claimed."""

    @property
    def paths(self) -> GroupPaths:
        """The group's paths."""
        return GroupPaths(self.group)

    @property
    def check(self) -> Check:
        """An operation that succeeds only while the migrator's session lives."""
        parent = self.paths.owners if self.locked else self.paths.ids
        return Check(f"{parent}/{self.name}", 0)


def counted(script: Script[T], effect: Effect) -> Script[T]:
    """Run a script; call ``effect`` before and after each operation that changes something."""
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


def list_members(group: str) -> Script[list[str]]:
    """Return the registered members."""
    return (yield from children(GroupPaths(group).ids)) or []


def migrators(group: str) -> Script[list[str]]:
    """Return the registered members, and the migrators that hold a locked group."""
    paths = GroupPaths(group)
    ids, owners = yield from children_of([paths.ids, paths.owners])
    return [*ids, *owners]


def take(hold: Hold, partitions: Iterable[TopicPartition], accept: Accept) -> Script[None]:
    """Register, check that there is no other member, and claim all partitions.

    Raises GroupRefusedError. Call ``release`` then, and after any other error.
    """
    wanted = sorted(partitions)
    yield from _register(hold, sorted({tp.topic for tp in wanted}))
    yield from _no_other_member(hold)
    yield from _claim(hold, wanted, accept)
    hold.complete = True


def _register(hold: Hold, topics: list[str]) -> Script[None]:
    path = hold.check.path
    data = encode_registration(Subscription(Pattern.STATIC, {}), hold.now_ms)
    parents = [hold.paths.ids, *map(hold.paths.owners_topic, topics), path.rpartition("/")[0]]
    yield from _ensure(parents)
    while True:
        reply = yield from attempt(Create(path, data, ephemeral=True))
        if isinstance(reply, Failed) and reply.code is Code.NO_NODE:
            yield from _ensure(parents)
        elif isinstance(reply, Ok) or reply.code is Code.NODE_EXISTS:
            found = yield from read(Exists(path))
            if isinstance(found, Ok) and isinstance(found.value, Stat):
                hold.session_id = found.value.ephemeral_owner
                return


def _no_other_member(hold: Hold) -> Script[None]:
    others = [name for name in (yield from list_members(hold.group)) if name != hold.name]
    if others:
        raise in_use(
            hold.group, f"{shown(others)} registered in ZooKeeper: stop these members first"
        )


def _claim(hold: Hold, wanted: list[TopicPartition], accept: Accept) -> Script[None]:
    paths = hold.paths
    first: dict[TopicPartition, Node | None] = {}
    todo = wanted
    while todo:
        nodes = yield from read_many(
            path for tp in todo for path in (paths.offset(tp), paths.owner(tp))
        )
        prepared: list[tuple[TopicPartition, tuple[MultiOp, ...]]] = []
        seen: dict[TopicPartition, Node | None] = {}
        for index, tp in enumerate(todo):
            offset, owner = nodes[2 * index], nodes[2 * index + 1]
            if owner is not None and owner.stat.ephemeral_owner != hold.session_id:
                who = owner.data.decode(errors="replace")
                raise in_use(hold.group, f"{tp} is owned by {who}: stop that member first")
            if tp not in first:
                fault = accept(tp, offset)
                if fault is not None:
                    raise refused(hold.group, fault)
                first[tp] = offset
            elif _data(first[tp]) != _data(offset):
                raise refused(hold.group, f"{tp} changed while it was claimed: plan again")
            if owner is not None:
                hold.nodes[tp] = offset
                continue
            ops: list[MultiOp] = [Create(paths.owner(tp), f"{hold.name}-0".encode(), True)]
            if offset is not None:
                ops.append(Check(paths.offset(tp), offset.stat.version))
            seen[tp] = offset
            prepared.append((tp, tuple(ops)))
        # What is not known to be claimed is read again, and so is a partition without an offset:
        # an earlier owner's first commit may have come in between.
        todo = []
        for packet in packets(prepared):
            reply = yield from _submit(hold, packet)
            todo += [tp for tp in packet if isinstance(reply, Failed) or seen[tp] is None]
            if isinstance(reply, Ok):
                hold.nodes |= {tp: seen[tp] for tp in packet if seen[tp] is not None}


def _submit(hold: Hold, packet: Mapping[TopicPartition, list[MultiOp]]) -> Script[Ok | Failed]:
    """Send one packet in a multi that checks the migrator's registration."""
    ops = [hold.check, *(op for several in packet.values() for op in several)]
    reply: Reply = yield from attempt(Multi(tuple(ops)))
    if isinstance(reply, Failed):
        _still_there(hold, reply)
    return reply


def _still_there(hold: Hold, reply: Failed) -> None:
    if reply.index == 0 and reply.code in (Code.NO_NODE, Code.BAD_VERSION):
        raise refused(hold.group, "the migrator's session with ZooKeeper ended: apply again")


def _data(node: Node | None) -> bytes | None:
    return None if node is None else node.data


def write_offsets(hold: Hold, offsets: Mapping[TopicPartition, int | None]) -> Script[None]:
    """Write offsets of claimed partitions; ``None`` deletes one. Raises GroupRefusedError."""
    paths = hold.paths
    topics = sorted({tp.topic for tp, new in offsets.items() if new is not None})
    yield from _ensure(map(paths.offsets_topic, topics))
    todo = sorted(offsets)
    while todo:
        prepared: list[tuple[TopicPartition, tuple[MultiOp, ...]]] = []
        for tp in todo:
            new, node = offsets[tp], hold.nodes[tp]
            data = _encoded(new)
            if _data(node) == data:
                continue
            op: MultiOp
            if data is None:
                assert node is not None
                op = Delete(paths.offset(tp), node.stat.version)
            elif node is None:
                op = Create(paths.offset(tp), data)
            else:
                op = SetData(paths.offset(tp), data, node.stat.version)
            prepared.append((tp, (op,)))
        for packet in packets(prepared):
            reply = yield from _submit(hold, packet)
            if isinstance(reply, Failed) and reply.code not in _MAY_HAVE_WORKED:
                culprit = str(list(packet)[(reply.index or 1) - 1])
                raise refused(hold.group, f"{culprit} was changed by a client that is not a member")
        todo = [tp for tp, _ in prepared]
        seen = yield from read_many([paths.offset(tp) for tp in todo])
        for tp, found in zip(todo, seen, strict=True):
            before = hold.nodes[tp]
            new = offsets[tp]
            expected = {_data(before), _encoded(new)}
            if _data(found) not in expected:
                raise refused(hold.group, f"{tp} was changed by a client that is not a member")
            hold.nodes[tp] = found


def _encoded(offset: int | None) -> bytes | None:
    """The content of a znode. -1, which a rollback may restore, means that there is no offset."""
    if offset is None:
        return None
    return b"-1" if offset < 0 else encode_offset(offset)


def write_marker(
    hold: Hold, before: Set[bytes | None], after: bytes | None, checked: bool = True
) -> Script[None]:
    """Bring the migration marker from one of ``before`` to ``after``; it may hold that already.

    With ``checked`` the versions of all claimed offset znodes are checked, as many as one request
    takes in the multi that writes the marker, and the others in multis right before it. The caller
    reads the offsets again after it, which also covers partitions without an offset. Raises
    GroupRefusedError, and then nothing is written.
    """
    path = migration_marker.path(hold.group)
    *earlier, guards = _guards(hold, len(after or b"")) if checked else [{}]
    for packet in earlier:
        yield from _check(hold, packet)
    while True:
        (node,) = yield from read_many([path])
        if _data(node) == after:
            return
        if _data(node) not in before:
            raise refused(hold.group, f"{path} was changed since the plan was made: plan again")
        op: MultiOp
        if after is None:
            assert node is not None
            op = Delete(path, node.stat.version)
        else:
            op = Create(path, after) if node is None else SetData(path, after, node.stat.version)
        reply = yield from attempt(Multi((hold.check, *guards.values(), op)))
        if isinstance(reply, Failed):
            _still_unwritten(hold, reply, guards)


def _check(hold: Hold, guards: Mapping[TopicPartition, Check]) -> Script[None]:
    """Check that none of these offset znodes was written since the claim."""
    while True:
        reply = yield from attempt(Multi((hold.check, *guards.values())))
        if isinstance(reply, Ok):
            return
        _still_unwritten(hold, reply, guards)


def _still_unwritten(hold: Hold, reply: Failed, guards: Mapping[TopicPartition, Check]) -> None:
    _still_there(hold, reply)
    index = reply.index or 0
    if reply.code in (Code.NO_NODE, Code.BAD_VERSION) and 0 < index <= len(guards):
        tp = list(guards)[index - 1]
        raise refused(
            hold.group,
            f"{tp} was written in ZooKeeper while the group was moved: a consumer is "
            "still alive; stop it, then plan again",
        )


def _guards(hold: Hold, marker: int) -> list[dict[TopicPartition, Check]]:
    """Return the checks of claimed offset znodes in packets, each of which fits into one request.

    The last one has room for ``marker`` bytes too, and may be empty.
    """
    packets: list[dict[TopicPartition, Check]] = [{}]
    left = _MAX_REQUEST - marker
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


def release(hold: Hold) -> Script[list[str]]:
    """Release all claims and deregister; return members that have registered in the meantime."""
    paths = hold.paths
    others = [name for name in (yield from list_members(hold.group)) if name != hold.name]
    failed = False
    for packet in packets((tp, (Delete(paths.owner(tp)),)) for tp in sorted(hold.nodes)):
        ops: list[MultiOp] = [op for several in packet.values() for op in several]
        reply = yield from attempt(Multi((hold.check, *ops)))
        failed = failed or isinstance(reply, Failed)
    if failed or not hold.complete:
        yield from _release_what_is_there(hold)
    while True:
        reply = yield from attempt(Delete(hold.check.path))
        if not (isinstance(reply, Failed) and reply.code is Code.CONNECTION_LOSS):
            return others


def _release_what_is_there(hold: Hold) -> Script[None]:
    """Look for owner znodes of this session and delete them."""
    while hold.session_id:
        topics = (yield from children(hold.paths.owners)) or []
        where = [f"{hold.paths.owners}/{topic}" for topic in topics]
        lists = yield from children_of(where)
        found = [
            f"{path}/{name}" for path, names in zip(where, lists, strict=True) for name in names
        ]
        nodes = yield from read_many(found)
        mine = [
            path
            for path, node in zip(found, nodes, strict=True)
            if node is not None and node.stat.ephemeral_owner == hold.session_id
        ]
        if not mine:
            return
        for path in mine:
            yield from attempt(Delete(path))


def _ensure(paths: Iterable[str]) -> Script[None]:
    """Create znodes below ``/consumers`` and their missing parents."""
    wanted: dict[str, None] = {}
    for path in paths:
        parts = path.split("/")
        wanted |= dict.fromkeys("/".join(parts[:end]) for end in range(3, len(parts) + 1))
    while True:
        nodes = yield from read_many(wanted)
        missing = [path for path, node in zip(wanted, nodes, strict=True) if node is None]
        if not missing:
            return
        reply = yield from attempt(Multi(tuple(map(Create, missing))))
        if isinstance(reply, Ok):
            return
        if reply.code is Code.NO_NODE:
            yield from attempt(Create(CONSUMERS))
