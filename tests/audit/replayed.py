"""The tree of a new server, made of decoded operations, and its digest.

Each transaction of a log (ZooKeeper 3.6+) has the digest of the whole tree after it. If the replay
of the decoded operations gives the same number, then all paths, contents, versions, zxids, times
and owners were decoded correctly. Formulas: ZooKeeper 3.9 ``DigestCalculator`` (version 2),
``DataTree``.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final

from zkaudit.decode.txnlog import Operation
from zkaudit.schema import CREATES, DELETES

_STAT: Final = struct.Struct(">qqqqqiiiq")
_WORD: Final = (1 << 64) - 1
_CONTAINER: Final = -(1 << 63)
_TTL: Final = -(1 << 56)
_UNCOUNTED: Final = "/zookeeper/"


@dataclass(slots=True)
class _Node:
    data: bytes | None = b""
    czxid: int = 0
    mzxid: int = 0
    pzxid: int = 0
    ctime: int = 0
    mtime: int = 0
    version: int = 0
    cversion: int = 0
    aversion: int = 0
    owner: int = 0

    def digest(self, path: str) -> int:
        stat = _STAT.pack(
            self.czxid,
            self.mzxid,
            self.pzxid,
            self.ctime,
            self.mtime,
            self.version,
            self.cversion,
            self.aversion,
            self.owner,
        )
        return zlib.crc32(stat, zlib.crc32(self.data or b"", zlib.crc32(path.encode())))


class Tree:
    """The znodes of one server and their running digest. It starts as the tree of a new server.

    Znodes below ``/zookeeper`` are not part of the digest.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, _Node] = {}
        self.ephemerals: dict[int, set[str]] = {}
        self.digest = 0
        for path in ("", "/zookeeper"):
            self._put(path, _Node())

    def apply(self, op: Operation) -> None:
        """Apply an operation to the tree."""
        path = op.path
        if op.type == "closeSession":
            for ephemeral in sorted(self.ephemerals.pop(op.session, set()) | set(op.deleted or ())):
                self._delete(ephemeral, op.zxid)
        elif path is None:
            return
        elif op.type in CREATES:
            self._create(path, op)
        elif op.type in DELETES:
            self._delete(path, op.zxid)
        elif op.type in ("setData", "reconfig"):
            node = self._take(path)
            node.data, node.mzxid, node.mtime = op.data, op.zxid, op.time_ms
            node.version = op.version or 0
            self._put(path, node)
        elif op.type == "setACL":
            node = self._take(path)
            node.aversion = op.version or 0
            self._put(path, node)

    def _create(self, path: str, op: Operation) -> None:
        owner = op.session if op.ephemeral else 0
        if op.type == "createContainer":
            owner = _CONTAINER
        elif op.type == "createTTL":
            owner = _TTL | (op.ttl or 0)
        elif op.ephemeral:
            self.ephemerals.setdefault(op.session, set()).add(path)
        parent = self._take(_parent(path))
        parent.cversion = max(parent.cversion, op.parent_cversion or 0)
        parent.pzxid = op.zxid
        self._put(_parent(path), parent)
        node = _Node(op.data, op.zxid, op.zxid, op.zxid, op.time_ms, op.time_ms, owner=owner)
        self._put(path, node)

    def _delete(self, path: str, zxid: int) -> None:
        node = self._take(path)
        del self.nodes[path]
        self.ephemerals.get(node.owner, set()).discard(path)
        parent = self._take(_parent(path))
        parent.pzxid = zxid
        self._put(_parent(path), parent)

    def _take(self, path: str) -> _Node:
        node = self.nodes[path]
        if not path.startswith(_UNCOUNTED):
            self.digest = (self.digest - node.digest(path)) & _WORD
        return node

    def _put(self, path: str, node: _Node) -> None:
        self.nodes[path] = node
        if not path.startswith(_UNCOUNTED):
            self.digest = (self.digest + node.digest(path)) & _WORD


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
