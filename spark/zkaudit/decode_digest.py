"""The digest of the whole tree, computed again from decoded operations (ZooKeeper 3.6+).

Each transaction of such a log carries the digest of the tree after it. When a replay of what we
decoded gives the same number, then paths, contents, versions, zxids, times and owners were all
decoded as the server meant them. Sequential and in memory: for checks on demand, not for the audit
itself. Formulas: ZooKeeper 3.9 ``DigestCalculator`` (version 2), ``DataTree``. Any thread.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from zkaudit.errors import DigestMismatchError
from zkaudit.schema import CREATES, DELETES
from zkaudit.txnlog import Operation, read_transactions

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
    """The znodes of one server, and the running digest of all of them; at first those of a new one.

    Znodes below ``/zookeeper`` are not part of the digest.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, _Node] = {}
        self.ephemerals: dict[int, set[str]] = {}
        self.digest = 0
        for path in ("", "/zookeeper"):
            self._put(path, _Node())

    def apply(self, op: Operation) -> None:
        """Do what an operation did."""
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
        if path not in self.nodes:
            return
        node = self._take(path)
        del self.nodes[path]
        self.ephemerals.get(node.owner, set()).discard(path)
        parent = self._take(_parent(path))
        parent.pzxid = max(parent.pzxid, zxid)
        self._put(_parent(path), parent)

    def _take(self, path: str) -> _Node:
        node = self.nodes.setdefault(path, _Node())
        if not path.startswith(_UNCOUNTED):
            self.digest = (self.digest - node.digest(path)) & _WORD
        return node

    def _put(self, path: str, node: _Node) -> None:
        self.nodes[path] = node
        if not path.startswith(_UNCOUNTED):
            self.digest = (self.digest + node.digest(path)) & _WORD


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def verify_digests(logs: Iterable[str | Path]) -> int:
    """Replay a server's logs from its first transaction on; return how many digests were equal.

    Logs in order of their zxids. Raises ``DigestMismatchError`` at the first other digest, and what
    reading them raises.
    """
    tree = Tree()
    equal = 0
    for log in logs:
        last: Operation | None = None
        for op in read_transactions(log):
            if last is not None and last.zxid != op.zxid:
                equal += _check(tree, last, log)
            tree.apply(op)
            last = op
        if last is not None:
            equal += _check(tree, last, log)
    return equal


def _check(tree: Tree, op: Operation, log: str | Path) -> int:
    if op.digest is None:
        return 0
    if op.digest & _WORD != tree.digest:
        reason = f"the log says digest {op.digest & _WORD:#x}, replaying it gives {tree.digest:#x}"
        raise DigestMismatchError(str(log), op.zxid, reason)
    return 1
