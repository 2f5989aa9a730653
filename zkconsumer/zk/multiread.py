"""ZooKeeper's multi-read (opcode 22, ZooKeeper 3.6 and later), which kazoo does not have.

Many reads in one round trip; each is answered on its own. Older servers answer "unimplemented".
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from kazoo.exceptions import NoNodeError
from kazoo.protocol.serialization import (
    GetData,
    MultiHeader,
    int_struct,
    multiheader_struct,
    read_buffer,
    stat_struct,
)
from kazoo.protocol.states import ZnodeStat


class MultiRead(NamedTuple("MultiRead", [("paths", tuple[str, ...])])):
    """Request for the data of ``paths`` (with chroot). Result: list of (data, stat) or an error.

    It has the shape of kazoo's own request classes, so kazoo's connection thread can send it.
    """

    __slots__ = ()
    type: ClassVar[int] = 22

    def serialize(self) -> bytes:
        """Return the request's body."""
        body = bytearray()
        for path in self.paths:
            body += multiheader_struct.pack(GetData.type, False, -1)
            body += GetData(path, None).serialize()
        return bytes(body + multiheader_struct.pack(-1, True, -1))

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> list[tuple[bytes, Any] | int]:
        """Return, for each path, its data and stat, or ZooKeeper's error number."""
        results: list[tuple[bytes, Any] | int] = []
        header, offset = MultiHeader.deserialize(data, offset)
        while not header.done:
            if header.type == GetData.type:
                content, offset = read_buffer(data, offset)
                stat = ZnodeStat._make(stat_struct.unpack_from(data, offset))
                offset += stat_struct.size
                results.append((content or b"", stat))
            else:
                results.append(int_struct.unpack_from(data, offset)[0])
                offset += int_struct.size
            header, offset = MultiHeader.deserialize(data, offset)
        return results


NO_NODE: int = NoNodeError.code
