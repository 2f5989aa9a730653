"""ZooKeeper's multi-read (opcode 22, ZooKeeper 3.6 and later), which kazoo does not have.

Many reads in one round trip; each is answered on its own. Older servers answer "unimplemented".
"""

from __future__ import annotations

from struct import Struct
from typing import ClassVar, NamedTuple

from kazoo.exceptions import NoNodeError
from kazoo.protocol.serialization import (
    GetChildren,
    GetData,
    int_struct,
    multiheader_struct,
)

from zkconsumer.core.zookeeper.ops import Node, Stat


class MultiRead(NamedTuple("MultiRead", [("paths", tuple[str, ...]), ("children", bool)])):
    """A request for the data, or the children, of ``paths`` (with chroot).

    Result: a ``Node``, or a list of names, or the number of an error, for each path.

    It has the shape of kazoo's own request classes, so kazoo's connection thread can send it.
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
                        raise ValueError(f"a name of {size} bytes")
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
_HEADER_AND_INT = Struct("!iBii")
"""The header before a result, and its length or the error's number."""

NO_NODE: int = NoNodeError.code
