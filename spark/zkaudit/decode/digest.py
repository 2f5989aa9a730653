"""The digest of the whole tree, recomputed from decoded operations (ZooKeeper 3.6+).

Each transaction of such a log carries the digest of the tree after it. If a replay of the decoded
operations gives the same number, then all paths, contents, versions, zxids, times and owners were
decoded correctly. Sequential and in memory: used for checks on demand, not by the audit itself.
Formulas: ZooKeeper 3.9 ``DigestCalculator`` (version 2), ``DataTree``. Any thread.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from zkaudit.decode.snapshot import open_snapshot, snapshot_zxid
from zkaudit.decode.txnlog import Operation, read_transactions
from zkaudit.errors import DigestMismatchError, LogFormatError
from zkaudit.schema import CREATES, DELETES
from zkaudit.storage import shown

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

    @classmethod
    def of_snapshot(cls, path: str | Path) -> tuple[Tree, int | None]:
        """The tree in a snapshot, and the zxid from which it is exact. All transactions after the
        zxid in its name must be applied first. ``None``: unknown (up to 3.5).

        Raises ``LogFormatError``, ``OSError``.
        """
        snapshot = open_snapshot(path)
        tree = cls()
        newest = 0  # the server updates its last zxid after it has changed the znode
        for found in snapshot.nodes():
            newest = max(newest, found.czxid, found.mzxid, found.pzxid)
            name = "" if found.path == "/" else found.path
            tree._take(name)
            node = _Node(
                found.data,
                found.czxid,
                found.mzxid,
                found.pzxid,
                found.ctime_ms,
                found.mtime_ms,
                found.version,
                found.cversion,
                found.aversion,
                found.ephemeral_owner,
            )
            tree._put(name, node)
            tree.ephemerals.setdefault(node.owner, set()).add(name)
        complete = snapshot.complete_zxid
        return tree, None if complete is None else max(complete, newest)

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
        self._take(path)  # a snapshot may contain znodes that were created while it was written
        node = _Node(op.data, op.zxid, op.zxid, op.zxid, op.time_ms, op.time_ms, owner=owner)
        self._put(path, node)

    def _delete(self, path: str, zxid: int) -> None:
        if path in self.nodes:
            node = self._take(path)
            del self.nodes[path]
            self.ephemerals.get(node.owner, set()).discard(path)
        elif _parent(path) not in self.nodes:
            return
        # If a snapshot lacks a znode that existed, its parent may be older than the delete.
        parent = self._take(_parent(path))
        parent.pzxid = max(parent.pzxid, zxid)
        self._put(_parent(path), parent)

    def _take(self, path: str) -> _Node:
        node = self.nodes.get(path)
        if node is None:
            return _Node()  # a snapshot may lack znodes that were deleted while it was written
        if not path.startswith(_UNCOUNTED):
            self.digest = (self.digest - node.digest(path)) & _WORD
        return node

    def _put(self, path: str, node: _Node) -> None:
        self.nodes[path] = node
        if not path.startswith(_UNCOUNTED):
            self.digest = (self.digest + node.digest(path)) & _WORD


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class Verified:
    """Counts of transactions: those with the digest that the replay gives (``equal``), and those
    whose digest cannot be checked because logs and snapshots begin too late (``unknown``)."""

    equal: int = 0
    unknown: int = 0

    def __add__(self, other: Verified) -> Verified:
        """The sum of both."""
        return Verified(self.equal + other.equal, self.unknown + other.unknown)


def verify_digests(
    logs: Iterable[str | Path],
    snapshots: Iterable[str | Path] = (),
    without: Sequence[tuple[int, int]] = (),
    begin: int | None = None,
    later: Iterable[int] = (),
) -> Verified:
    """Replay one server's logs, in order of their zxids, and compare all digests.

    The replay begins with the ensemble's first transaction or with a snapshot. After a log gap it
    resumes with the next snapshot. ``without``: first and last zxid of proposals that were never
    committed. Raises ``DigestMismatchError`` at the first digest that differs, and the errors of
    the readers.

    ``begin`` and ``later`` select a section, so that several workers can share one server. The
    section begins with the snapshot of zxid ``begin`` and ends where the section of the first of
    ``later`` starts to compare. The sections of a server compare each digest once: if a snapshot
    cannot be used, the previous section continues, and the one of that snapshot compares nothing.
    """
    by_zxid = {snapshot_zxid(path) or 0: path for path in snapshots}
    replay = _Replay(by_zxid)
    if begin is not None and not replay.begin_with(begin):
        return Verified()
    ends = ((zxid + 1, _tree(by_zxid[zxid])[1]) for zxid in later)
    # A snapshot's digest (3.6+) may be older than the zxid in its name: refused writes have none.
    end = next((max(first, sure) for first, sure in ends if sure is not None), None)
    for log in logs:
        for zxid, ops in groupby(read_transactions(log), key=lambda op: op.zxid):
            if end is not None and zxid >= end:
                return Verified(replay.equal, replay.unknown)
            before = begin is not None and zxid <= begin
            if not before and not any(first <= zxid <= last for first, last in without):
                replay.apply(log, zxid, list(ops))
    return Verified(replay.equal, replay.unknown)


def _tree(path: str | Path) -> tuple[Tree | None, int | None]:
    """``Tree.of_snapshot``, or ``None`` for an incomplete file."""
    try:
        return Tree.of_snapshot(path)
    except LogFormatError:  # the server died while it wrote the file
        return None, None


class _Replay:
    def __init__(self, snapshots: dict[int, str | Path]) -> None:
        self.snapshots = snapshots
        self.ready: dict[int, tuple[Tree | None, int | None]] = {}
        self.tree: Tree | None = None
        self.sure = 0
        self.count_from = 0
        self.last = 0
        self.equal = 0
        self.unknown = 0

    def begin_with(self, at: int) -> bool:
        """Begin a section with a snapshot; return ``False`` if it cannot be used. Transactions
        before the tree is exact belong to the previous section."""
        self.last, self.ready[at] = at, _tree(self.snapshots[at])
        sure = self.ready[at][1]
        self.count_from = sure or 0
        return sure is not None

    def apply(self, log: str | Path, zxid: int, ops: list[Operation]) -> None:
        """Continue with one transaction."""
        continues = zxid == self.last + 1 or _is_first(zxid)
        begun_anew = zxid >> 32 != self.last >> 32 and self._between(zxid) is not None
        if self.tree is None or not continues or begun_anew:
            self._begin(zxid)
        self.last = zxid
        digest = next((op.digest for op in ops if op.digest is not None), None)
        if zxid < self.count_from:
            digest = None
        if self.tree is None:
            self.unknown += digest is not None
            return
        for op in ops:
            self.tree.apply(op)
        if digest is None:
            return
        if zxid < self.sure:
            self.unknown += 1
        elif digest & _WORD == self.tree.digest:
            self.equal += 1
        else:
            reason = (
                f"the log has digest {digest & _WORD:#x}, "
                f"but its replay gives {self.tree.digest:#x}"
            )
            raise DigestMismatchError(shown(log), zxid, reason)

    def _between(self, zxid: int) -> int | None:
        """The latest snapshot since the last transaction. A server that was down received one."""
        return max((at for at in self.snapshots if self.last <= at < zxid), default=None)

    def _begin(self, zxid: int) -> None:
        """Find the tree before a transaction, if it is the first one or follows a snapshot.

        If that snapshot is incomplete, the tree is known only if all transactions up to it were
        replayed. ZooKeeper does not use such a file either.
        """
        before = None if self.tree is None else (self.tree, self.sure)
        self.tree, self.sure = None, 0
        if self.last == 0 and zxid in (1, 1 << 32 | 1):
            self.tree = Tree()
            return
        at = self._between(zxid)
        if at is None or not (zxid == at + 1 or (_is_first(zxid) and at >> 32 < zxid >> 32)):
            return
        ready = self.ready.pop(at) if at in self.ready else _tree(self.snapshots[at])
        tree, sure = ready
        if tree is None:
            if at == self.last and before is not None:  # an earlier snapshot lacks the rest
                self.tree, self.sure = before
        elif sure is not None:
            self.tree, self.sure = tree, sure


def _is_first(zxid: int) -> bool:
    """Whether a transaction is its epoch's first."""
    return zxid & 0xFFFFFFFF == 1
