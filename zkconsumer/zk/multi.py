"""Requests for many znodes, as bytes: multi-reads and transactions.

kazoo lacks ZooKeeper's multi-read (opcode 22, ZooKeeper 3.6 and later), which sends many reads in
one round trip and answers each separately. Older servers answer "unimplemented". kazoo's own
transactions are too slow for a claim of thousands of partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import ClassVar, NamedTuple

from kazoo.exceptions import NoNodeError
from kazoo.protocol.serialization import (
    CheckVersion,
    Create,
    Delete,
    GetChildren,
    GetData,
    SetData,
    Transaction,
    int_struct,
    multiheader_struct,
    write_string,
)
from kazoo.security import ACL

from zkconsumer.core.zookeeper import ops
from zkconsumer.core.zookeeper.ops import MultiOp, Node, Stat


class MultiRead(NamedTuple("MultiRead", [("paths", tuple[str, ...]), ("children", bool)])):
    """A request for the data, or the children, of ``paths`` (with chroot).

    Result: for each path a ``Node``, a list of names, or an error number.

    It has the interface of kazoo's own request classes, so kazoo's connection thread can send it.
    """

    __slots__ = ()
    type: ClassVar[int] = 22

    def serialize(self) -> bytes:
        """Return the request's body."""
        kind = GetChildren.type if self.children else GetData.type
        begin = multiheader_struct.pack(kind, False, -1)
        parts: list[bytes] = []
        for path in self.paths:
            encoded = path.encode()
            parts += (begin, int_struct.pack(len(encoded)), encoded, b"\0")  # 0: no watch
        parts.append(multiheader_struct.pack(-1, True, -1))
        return b"".join(parts)

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> list[Node | list[str] | int]:
        """Return, for each path, the requested data, or ZooKeeper's error number."""
        results: list[Node | list[str] | int] = []
        data = bytes(data) + bytes(int_struct.size)  # no number follows the last header
        while True:
            kind, done, _, length = _HEADER_AND_INT.unpack_from(data, offset)
            if done:
                return results
            offset += _HEADER_AND_INT.size
            if kind == GetData.type:
                end = offset + max(length, 0)  # -1: the znode's data is null
                results.append(Node(data[offset:end], read_stat(data, end)))
                offset = end + STAT_BYTES
            elif kind == GetChildren.type:
                names = []
                for _ in range(length):
                    (size,) = int_struct.unpack_from(data, offset)
                    offset += int_struct.size
                    if not 0 <= size <= len(data) - offset:
                        raise ValueError(f"a name has an invalid length of {size} bytes")
                    names.append(data[offset : offset + size].decode())
                    offset += size
                results.append(names)
            else:
                results.append(length)


def read_stat(data: bytes, offset: int) -> Stat:
    """Decode the stat at ``offset``. Raises struct.error."""
    czxid, mzxid, mtime, version, owner = _STAT.unpack_from(data, offset)
    return Stat(czxid, mzxid, version, owner, mtime)


_STAT = Struct("!qq8xqi8xq16x")
"""czxid, mzxid, mtime, version and owner of a znode's stat."""
STAT_BYTES: int = _STAT.size
_HEADER = Struct("!iBi")
_HEADER_AND_INT = Struct("!iBii")
"""The header before a result, and the result's length or the error's number."""

NO_NODE: int = NoNodeError.code

_CREATE = multiheader_struct.pack(Create.type, False, -1)
_DELETE = multiheader_struct.pack(Delete.type, False, -1)
_SET_DATA = multiheader_struct.pack(SetData.type, False, -1)
_CHECK = multiheader_struct.pack(CheckVersion.type, False, -1)
_END = multiheader_struct.pack(-1, True, -1)
_length = int_struct.pack


def encode_acl(entries: Sequence[ACL]) -> bytes:
    """Return an ACL as ZooKeeper reads it."""
    parts = [_length(len(entries))]
    for entry in entries:
        who = write_string(entry.id.scheme) + write_string(entry.id.id)
        parts += (_length(entry.perms), who)
    return b"".join(parts)


class MultiWrite(
    NamedTuple(
        "MultiWrite",
        [("ops", Sequence[MultiOp]), ("prefix", str), ("acl", bytes), ("resumed", int | None)],
    )
):
    """A request for a transaction. ``prefix``: the chroot. ``acl``: the ACL of created znodes.

    ``resumed``: how often the session had been resumed, as known to the caller. If it was resumed
    again since, the request is not sent (``None``: always send it).

    Result: a ``Stat`` or None for each operation. If the transaction failed, an error number for
    each; 0 for the operations before the failed one.

    It has the interface of kazoo's own request classes, so kazoo's connection thread can send it.
    """

    __slots__ = ()
    type: ClassVar[int] = Transaction.type

    def outdated(self, resumed: int) -> bool:
        """Whether ``resumed``, the current count, differs from the count that the caller knows."""
        return self.resumed not in (None, resumed)

    def serialize(self) -> bytes:
        """Return the request's body."""
        parts: list[bytes] = []
        prefix = self.prefix
        for op in self.ops:
            path = (prefix + op.path).encode()
            size = _length(len(path))
            match op:
                case ops.Create(_, data, ephemeral):
                    flags = _length(int(ephemeral))
                    parts += (_CREATE, size, path, _length(len(data)), data, self.acl, flags)
                case ops.SetData(_, data, version):
                    parts += (_SET_DATA, size, path, _length(len(data)), data, _length(version))
                case ops.Delete(_, version):
                    parts += (_DELETE, size, path, _length(version))
                case ops.Check(_, version):
                    parts += (_CHECK, size, path, _length(version))
        parts.append(_END)
        return b"".join(parts)

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> list[Stat | int | None]:
        """Return the result of each operation."""
        results: list[Stat | int | None] = []
        data = bytes(data)
        while True:
            kind, done, _ = _HEADER.unpack_from(data, offset)
            if done:
                return results
            offset += _HEADER.size
            if kind == SetData.type:
                results.append(read_stat(data, offset))
                offset += STAT_BYTES
            elif kind == Create.type:
                (size,) = int_struct.unpack_from(data, offset)
                offset += int_struct.size
                if not 0 <= size <= len(data) - offset:
                    raise ValueError(f"a path has an invalid length of {size} bytes")
                offset += size
                results.append(None)
            elif kind == -1:
                results += int_struct.unpack_from(data, offset)
                offset += int_struct.size
            else:
                results.append(None)
