"""Takes a group over as a member would, so that no other member can start or commit.

A tool registers under its own name, then claims every partition: a multi creates the owner znode
and checks the version of the offset znode. Unlike a member's claim, this does not rewrite the
offset znode, which keeps the time and version of the last commit. All changes are made in multis
that check the tool's registration, so they succeed only in the session that holds the claims.
Scripts; any thread.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from zkconsumer.admin.printable import printable, shown
from zkconsumer.admin.reads import children, children_of
from zkconsumer.admin.snapshot import CONSUMERS, list_members
from zkconsumer.core.common.types import Pattern, Subscription, TopicPartition
from zkconsumer.core.zookeeper.ops import (
    Check,
    Code,
    Create,
    Delete,
    Exists,
    Failed,
    Multi,
    MultiOp,
    Node,
    Ok,
    Reply,
    SetData,
    Stat,
)
from zkconsumer.core.zookeeper.scripts.common import Script, attempt, packets, read, read_many
from zkconsumer.core.zookeeper.znodes import GroupPaths, encode_offset, encode_registration
from zkconsumer.errors import GroupActiveError, GroupChangedError

TOOL_NAME_END: Final = "_zkconsumer-[0-9a-f]{8}$"
"""Regular expression, for Python and Java, for the end of every ``tool_name``. `zkaudit`
recognizes the tool's writes by it."""
_OTHERWISE: Final = (
    "the connection to ZooKeeper was lost, and the group is not as it was before: run it again"
)
_MAY_HAVE_WORKED: Final = (Code.CONNECTION_LOSS, Code.NO_NODE)

Accept = Callable[[TopicPartition, Node | None], str | None]
"""Returns why an offset znode differs from the plan; ``None`` if it is as planned."""


class SerialChangedError(GroupChangedError):
    """The znode of ``Hold.serial`` has another version: another operator is at work."""


@dataclass(slots=True)
class Hold:
    """A group that the tool holds. ``nodes``: each claimed partition's offset znode.

    ``locked``: no member may register. The tool then registers below ``owners``, so that the lock
    stays in place.
    """

    group: str
    name: str
    now_ms: int
    locked: bool = False
    session_id: int = 0
    nodes: dict[TopicPartition, Node | None] = field(default_factory=dict)
    complete: bool = False
    """Whether exactly ``nodes`` are claimed."""
    serial: Check | None = None
    """The version of a znode that must not change until the offsets are written."""

    @property
    def paths(self) -> GroupPaths:
        """The group's paths."""
        return GroupPaths(self.group)

    @property
    def check(self) -> Check:
        """Return an operation that succeeds only while the tool's session exists."""
        parent = self.paths.owners if self.locked else self.paths.ids
        return Check(f"{parent}/{self.name}", 0)


def tool_name(group: str) -> str:
    """Return a new consumer id for one run of a tool."""
    return f"{group}_zkconsumer-{uuid.uuid4().hex[:8]}"


def take(hold: Hold, partitions: Iterable[TopicPartition], accept: Accept) -> Script[None]:
    """Register, check that there is no other member, and claim all partitions.

    Raises GroupActiveError, GroupChangedError. Call ``release`` after any error.
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
            node = yield from read(Exists(path))
            if isinstance(node, Ok) and isinstance(node.value, Stat):
                hold.session_id = node.value.ephemeral_owner
                return


def _no_other_member(hold: Hold) -> Script[None]:
    others = [name for name in (yield from list_members(hold.group)) if name != hold.name]
    if others:
        raise _in_use(
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
                raise _in_use(hold.group, f"{tp} is owned by {who}: stop that member first")
            if tp not in first:
                fault = accept(tp, offset)
                if fault is not None:
                    raise _changed(hold.group, fault)
                first[tp] = offset
            elif data_of(first[tp]) != data_of(offset):
                raise _changed(
                    hold.group, f"{tp} changed while it was being claimed: run the command again"
                )
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
            reply = yield from submit(hold, packet)
            todo += [tp for tp in packet if isinstance(reply, Failed) or seen[tp] is None]
            if isinstance(reply, Ok):
                hold.nodes |= {tp: seen[tp] for tp in packet if seen[tp] is not None}


def submit(hold: Hold, packet: Mapping[TopicPartition, list[MultiOp]]) -> Script[Ok | Failed]:
    """Send these operations in one multi that also checks the tool's registration and
    ``hold.serial``."""
    ops = [hold.check, *(op for several in packet.values() for op in several)]
    if hold.serial is not None:
        ops.append(hold.serial)
    reply: Reply = yield from attempt(Multi(tuple(ops)))
    if isinstance(reply, Failed):
        still_there(hold, reply)
        if hold.serial is not None and reply.index == len(ops) - 1:
            text = f"group {hold.group}: another operator has changed it meanwhile: run it again"
            raise SerialChangedError(printable(text))
    return reply


def still_there(hold: Hold, reply: Failed) -> None:
    """Raise GroupChangedError if a multi failed because the tool's session ended."""
    if reply.index == 0 and reply.code in (Code.NO_NODE, Code.BAD_VERSION):
        raise _changed(hold.group, "the tool's session with ZooKeeper ended: run the command again")


def owns_all(hold: Hold) -> Script[bool]:
    """Whether the tool's registration and the owner znodes of all its claims still belong to its
    session."""
    paths = [hold.check.path, *map(hold.paths.owner, hold.nodes)]
    nodes = yield from read_many(paths)
    return all(node and node.stat.ephemeral_owner == hold.session_id for node in nodes)


def still_held(hold: Hold) -> Script[None]:
    """Check, after the connection was lost, that all claims still exist and no offset has changed.

    Comparing versions is not enough: a server that was restored from a backup may assign the same
    versions again. Raises GroupChangedError.
    """
    yield from _still_owned(hold)
    offsets = yield from read_many(map(hold.paths.offset, hold.nodes))
    if offsets != list(hold.nodes.values()):
        raise _changed(hold.group, _OTHERWISE)


def _still_owned(hold: Hold) -> Script[None]:
    if not (yield from owns_all(hold)):
        raise _changed(hold.group, _OTHERWISE)


def data_of(node: Node | None) -> bytes | None:
    """Return a znode's data; ``None`` if there is no znode."""
    return None if node is None else node.data


def write_offsets(hold: Hold, offsets: Mapping[TopicPartition, int | None]) -> Script[None]:
    """Write offsets of claimed partitions; ``None`` deletes the znode. Raises GroupChangedError."""
    paths = hold.paths
    topics = sorted({tp.topic for tp, new in offsets.items() if new is not None})
    yield from _ensure(map(paths.offsets_topic, topics))
    todo = sorted(offsets)
    while todo:
        prepared: list[tuple[TopicPartition, tuple[MultiOp, ...]]] = []
        for tp in todo:
            new, node = offsets[tp], hold.nodes[tp]
            data = _encoded(new)
            if data_of(node) == data:
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
            reply = yield from submit(hold, packet)
            if isinstance(reply, Failed) and reply.code not in _MAY_HAVE_WORKED:
                culprit = str(list(packet)[(reply.index or 1) - 1])
                raise _changed(
                    hold.group,
                    f"{culprit} was changed by a client that is not a member: "
                    "stop that client, then run the command again",
                )
            if isinstance(reply, Failed):
                yield from _still_owned(hold)
                break  # what is left is read again first
        todo = [tp for tp, _ in prepared]
        seen = yield from read_many([paths.offset(tp) for tp in todo])
        for tp, current in zip(todo, seen, strict=True):
            before = hold.nodes[tp]
            new = offsets[tp]
            expected = {data_of(before), _encoded(new)}
            if data_of(current) not in expected:
                raise _foreign(hold, str(tp))
            hold.nodes[tp] = current


def _encoded(offset: int | None) -> bytes | None:
    """Return the data of an offset znode. -1, which a rollback may restore, means that there is no
    offset."""
    if offset is None:
        return None
    return b"-1" if offset < 0 else encode_offset(offset)


def release(hold: Hold) -> Script[list[str]]:
    """Release all claims and deregister. Return members that registered in the meantime."""
    paths = hold.paths
    others = [name for name in (yield from list_members(hold.group)) if name != hold.name]
    failed = False
    for packet in packets((tp, (Delete(paths.owner(tp)),)) for tp in sorted(hold.nodes)):
        ops: list[MultiOp] = [op for several in packet.values() for op in several]
        failed = isinstance((yield from attempt(Multi((hold.check, *ops)))), Failed)
        if failed:
            break
    if failed or not hold.complete:
        yield from _release_what_is_there(hold)
    while True:
        reply = yield from attempt(Delete(hold.check.path))
        if not (isinstance(reply, Failed) and reply.code is Code.CONNECTION_LOSS):
            return others


def _release_what_is_there(hold: Hold) -> Script[None]:
    """Find the owner znodes of this session and delete them."""
    while hold.session_id:
        topics = (yield from children(hold.paths.owners)) or []
        where = [f"{hold.paths.owners}/{topic}" for topic in topics]
        lists = yield from children_of(where)
        znodes = [
            f"{path}/{name}" for path, names in zip(where, lists, strict=True) for name in names
        ]
        nodes = yield from read_many(znodes)
        mine = [
            path
            for path, node in zip(znodes, nodes, strict=True)
            if node is not None and node.stat.ephemeral_owner == hold.session_id
        ]
        if not mine:
            return
        for path in mine:
            yield from attempt(Multi((Delete(path),)))  # it is not sent after a reconnection


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


def _in_use(group: str, why: str) -> GroupActiveError:
    return GroupActiveError(printable(f"group {group}: {why}"))


def _changed(group: str, why: str) -> GroupChangedError:
    return GroupChangedError(printable(f"group {group}: {why}"))


def _foreign(hold: Hold, what: str) -> GroupChangedError:
    return _changed(hold.group, f"{what} was changed by a client that is not a member")
