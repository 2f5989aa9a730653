"""The cost of one operation on the wire: requests, znodes, bytes. Pure.

Sizes follow ZooKeeper's jute encoding (``zookeeper.jute``, 3.4 to 3.9): a packet, a string and a
vector have a length of 4 bytes, and a stat has 68 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from zkconsumer.core.zookeeper.ops import (
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    GetMany,
    Listing,
    Multi,
    MultiOp,
    Node,
    OffsetOp,
    Ok,
    Reply,
    SetData,
    ZkOp,
)
from zkconsumer.journal.counts import counts

_REQUEST = 12  # length, xid, type
_REPLY = 20  # length, xid, zxid, error
_STAT = 68
_ACL = 27  # one entry: world:anyone
_PART = 9  # header of each operation in a multi
_WATCH_EVENT = _REPLY + 12


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of an operation.

    ``requests``: packets sent. ``reads``: znodes read. ``writes``: requested transactions.
    ``changes``: znodes that these would change. The other fields are bytes in each direction.
    """

    requests: int
    reads: int
    writes: int
    changes: int
    bytes_out: int
    bytes_in: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.requests + other.requests,
            self.reads + other.reads,
            self.writes + other.writes,
            self.changes + other.changes,
            self.bytes_out + other.bytes_out,
            self.bytes_in + other.bytes_in,
        )


def watch_event_bytes(path: str, chroot: int = 0) -> int:
    """Return the bytes of a watch event for ``path``."""
    return _WATCH_EVENT + len(path) + chroot


def _part_out(op: MultiOp, chroot: int) -> int:
    size = 4 + len(op.path) + chroot
    if isinstance(op, Create):
        return size + 4 + len(op.data) + _ACL + 4
    if isinstance(op, SetData):
        return size + 4 + len(op.data) + 4
    return size + 4


def _part_in(op: MultiOp, chroot: int) -> int:
    if isinstance(op, Create):
        return 4 + len(op.path) + chroot
    return _STAT if isinstance(op, SetData) else 0


class _Last:
    """The last measured list of names. Simulated members share long lists."""

    names: tuple[object, ...] = ()
    size = 4


def _names_in(names: tuple[object, ...]) -> int:
    if _Last.names is not names:
        _Last.names, _Last.size = names, 4 + sum(4 + len(str(name)) for name in names)
    return _Last.size


def _node_in(node: object) -> int:
    return 4 + len(node.data) + _STAT if isinstance(node, Node) else 0


def _many(op: GetMany, reply: Reply, chroot: int) -> Cost:
    count = len(op.paths)
    if not count:
        return Cost(0, 0, 0, 0, 0, 0)
    spent = counts(op, reply)
    names = sum(map(len, op.paths)) + count * (5 + chroot)
    nodes = reply.value if isinstance(reply, Ok) and isinstance(reply.value, tuple) else ()
    content = sum(map(_node_in, nodes))
    if spent.requests < count:
        missing = 4 * sum(node is None for node in nodes)
        framing = (count + 1) * _PART
        return Cost(*spent, _REQUEST + names + framing, _REPLY + content + missing + framing)
    return Cost(*spent, names + count * _REQUEST, content + count * _REPLY)


def cost(op: ZkOp | OffsetOp, reply: Reply, chroot: int = 0) -> Cost:
    """Return the cost of ``op`` and its answer. ``chroot``: number of characters that the chroot
    adds to each path."""
    if isinstance(op, GetMany):
        return _many(op, reply, chroot)
    spent = counts(op, reply)
    ok = isinstance(reply, Ok)
    value = reply.value if isinstance(reply, Ok) else None
    if isinstance(op, Exists | GetData | GetChildren):
        out = _REQUEST + 5 + len(op.path) + chroot
        size = _REPLY
        if isinstance(op, GetChildren) and isinstance(value, tuple):
            size += _names_in(value)
        elif isinstance(op, GetData):
            size += _node_in(value)
        elif isinstance(value, Listing):
            size += _names_in(value.names) + _STAT
        elif value is not None:
            size += _STAT
        return Cost(*spent, out, size)
    if isinstance(op, Multi):
        out = _REQUEST + (len(op.ops) + 1) * _PART + sum(_part_out(p, chroot) for p in op.ops)
        size = _REPLY + (len(op.ops) + 1) * _PART
        size += sum(_part_in(p, chroot) for p in op.ops) if ok else 4 * len(op.ops)
        return Cost(*spent, out, size)
    if isinstance(op, Create | SetData | Delete):
        size = _REPLY + (_part_in(op, chroot) if ok else 0)
        return Cost(*spent, _REQUEST + _part_out(op, chroot), size)
    return Cost(*spent, 0, 0)  # an operation on Kafka's offset store
