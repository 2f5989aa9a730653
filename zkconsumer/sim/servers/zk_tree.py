"""The server side of the simulated ZooKeeper: znodes, transactions, one-shot watches. No time.

Determines the effect of one request: the error in the answer, the changes of a transaction, and
the watches that each change fires. ``zk`` decides when that happens. The semantics are those of
ZooKeeper 3.8 (``PrepRequestProcessor`` for the checks, ``DataTree`` for the watches), kept equal
to a real server by a differential test. ACLs are checked only for creations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from zkconsumer.core.zookeeper.ops import (
    Acl,
    AclEntry,
    Check,
    Code,
    Create,
    Failed,
    Listing,
    MultiOp,
    Node,
    SetAcl,
    SetData,
    Stat,
    Value,
)

CREATE: Final = 4
"""The permission to create children."""
ANYONE: Final = ("world", "anyone")
"""The identity that every client has."""
OPEN: Final = Acl((AclEntry(31, *ANYONE),), 0)
"""The ACL of a new znode."""
Identities = Collection[tuple[str, str]]
"""Scheme and id of each identity of a client."""


class WatchKind(Enum):
    """The kinds of watch events, which are the four event types that a server sends."""

    CREATED = "created"
    DELETED = "deleted"
    CHANGED = "changed"
    CHILD = "child"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """A watch that fired. It fires once; later changes cause no event unless it is set again.

    ``zxid``: the transaction that made the change; ``None`` if the server sends no zxid.
    """

    kind: WatchKind
    path: str
    zxid: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A transaction's change of one znode. ``before`` is None for a creation, ``after`` for a
    deletion. ``acl``: its new ACL, if nothing else changes."""

    path: str
    before: Node | None
    after: Node | None
    acl: Acl | None = None


@dataclass(frozen=True, slots=True)
class Txn:
    """A committed transaction. ``session_id``: the session that requested it (0: the test itself).
    With ``closes_session`` it ends that session and deletes its ephemerals."""

    zxid: int
    session_id: int
    changes: tuple[Change, ...]
    closes_session: bool = False


class _Entry:
    """A znode in the tree. ``pzxid`` is the transaction that last created or deleted a child, and
    ``changes`` counts these transactions' creations and deletions."""

    __slots__ = ("acl", "changes", "children", "names", "node", "pzxid")

    def __init__(self, node: Node, pzxid: int) -> None:
        self.node = node
        self.acl = OPEN
        self.pzxid = pzxid
        self.changes = 0
        self.children: dict[str, None] = {}
        self.names: tuple[str, ...] | None = None  # of the children, until they change

    def copy(self) -> _Entry:
        """Return an equal entry."""
        made = _Entry(self.node, self.pzxid)
        made.acl, made.changes, made.children = self.acl, self.changes, dict(self.children)
        return made


def parent_of(path: str) -> str:
    """Return the path of the parent; ``/`` for first-level paths."""
    return path.rpartition("/")[0] or "/"


class Tree:
    """All znodes after one transaction."""

    def __init__(self) -> None:
        self._entries = {"/": _Entry(Node(b"", Stat(0, 0, 0, 0)), 0)}
        self.ephemerals: dict[int, dict[str, None]] = {}

    def copy(self) -> Tree:
        """Return an equal tree, which later transactions do not change."""
        made = Tree()
        made._entries = {path: entry.copy() for path, entry in self._entries.items()}
        made.ephemerals = {session: dict(paths) for session, paths in self.ephemerals.items()}
        return made

    def node(self, path: str) -> Node | None:
        """Return data and stat of a znode; ``None`` if it does not exist."""
        entry = self._entries.get(path)
        return None if entry is None else entry.node

    def acl(self, path: str) -> Acl | None:
        """Return the ACL of a znode; ``None`` if it does not exist."""
        entry = self._entries.get(path)
        return None if entry is None else entry.acl

    def children(self, path: str) -> tuple[str, ...] | None:
        """Return the child names in order of creation; ``None`` if the znode does not exist."""
        entry = self._entries.get(path)
        if entry is None:
            return None
        if entry.names is None:
            entry.names = tuple(entry.children)
        return entry.names

    def listing(self, path: str) -> Listing | None:
        """Return the children and the count of their changes; ``None`` if the znode does not
        exist."""
        names = self.children(path)
        if names is None:
            return None
        entry = self._entries[path]
        return Listing(names, entry.node.stat.czxid, entry.changes, entry.pzxid)

    def child_count(self, path: str) -> int:
        """Return the number of children; 0 if the znode does not exist."""
        entry = self._entries.get(path)
        return 0 if entry is None else len(entry.children)

    def pzxid(self, path: str) -> int:
        """Return the transaction of the last creation or deletion of a child (or of the znode
        itself)."""
        return self._entries[path].pzxid

    def paths(self) -> tuple[str, ...]:
        """Return all paths, sorted."""
        return tuple(sorted(self._entries))

    def apply(self, change: Change, zxid: int) -> None:
        """Apply one change that has been checked."""
        path, after = change.path, change.after
        if change.acl is not None:
            self._entries[path].acl = change.acl
            return
        if change.before is not None and after is not None:
            self._entries[path].node = after
            return
        parent = self._entries[parent_of(path)]
        parent.pzxid = zxid
        parent.changes += 1
        parent.names = None
        name = path.rpartition("/")[2]
        if after is not None:
            self._entries[path] = _Entry(after, zxid)
            parent.children[name] = None
            if after.stat.ephemeral_owner:
                self.ephemerals.setdefault(after.stat.ephemeral_owner, {})[path] = None
        else:
            assert change.before is not None
            del self._entries[path]
            del parent.children[name]
            if change.before.stat.ephemeral_owner:
                del self.ephemerals[change.before.stat.ephemeral_owner][path]


class _Draft:
    """The tree as seen by the later operations of one multi: the tree plus the earlier
    operations."""

    def __init__(
        self, tree: Tree, zxid: int, session_id: int, identities: Identities | None
    ) -> None:
        self._tree = tree
        self._zxid = zxid
        self._session_id = session_id
        self._identities = identities
        self._nodes: dict[str, Node | None] = {}
        self._child_delta: dict[str, int] = {}
        self.changes: list[Change] = []

    def _node(self, path: str) -> Node | None:
        return self._nodes[path] if path in self._nodes else self._tree.node(path)

    def _change(self, path: str, before: Node | None, after: Node | None) -> None:
        self._nodes[path] = after
        self.changes.append(Change(path, before, after))

    def _count(self, path: str, by: int) -> None:
        self._child_delta[path] = self._child_delta.get(path, 0) + by

    def add(self, op: MultiOp | SetAcl) -> Value | Code:
        """Check ``op`` and record its changes. Return its reply value, or why it fails."""
        node = self._node(op.path)
        if isinstance(op, Create):
            return self._create(op, node)
        if node is None:
            return Code.NO_NODE
        if isinstance(op, SetAcl):
            acl = self._tree.acl(op.path) or OPEN
            if op.version not in (-1, acl.version):
                return Code.BAD_VERSION
            self.changes.append(Change(op.path, node, node, Acl(op.entries, acl.version + 1)))
            return None
        if op.version not in (-1, node.stat.version):
            return Code.BAD_VERSION
        if isinstance(op, Check):
            return None
        if isinstance(op, SetData):
            old = node.stat
            stat = Stat(old.czxid, self._zxid, old.version + 1, old.ephemeral_owner)
            self._change(op.path, node, Node(op.data, stat))
            return stat
        if op.path == "/":
            return Code.OTHER  # a real server answers BadArguments
        if self._tree.child_count(op.path) + self._child_delta.get(op.path, 0):
            return Code.NOT_EMPTY
        self._change(op.path, node, None)
        self._count(parent_of(op.path), -1)
        return None

    def _create(self, op: Create, node: Node | None) -> Code | None:
        above = parent_of(op.path)
        parent = self._node(above)
        if parent is None:
            return Code.NO_NODE
        acl = OPEN if above in self._nodes else self._tree.acl(above) or OPEN
        if self._identities is not None and not any(
            entry.perms & CREATE and (entry.scheme, entry.who) in self._identities
            for entry in acl.entries
        ):
            return Code.NO_AUTH
        if node is not None:
            return Code.NODE_EXISTS
        if parent.stat.ephemeral_owner:
            return Code.NO_CHILDREN_FOR_EPHEMERALS
        owner = self._session_id if op.ephemeral else 0
        self._change(op.path, None, Node(op.data, Stat(self._zxid, self._zxid, 0, owner)))
        self._count(above, 1)
        return None


def prepare(
    tree: Tree,
    ops: Sequence[MultiOp | SetAcl],
    zxid: int,
    session_id: int,
    identities: Identities | None = None,
) -> tuple[tuple[Value, ...], tuple[Change, ...]] | Failed:
    """Check all of ``ops`` in order, each after the effects of the previous ones.

    ``identities``: the client's identities; ``None``: a super user, for whom ACLs are not checked.
    Returns the reply values and the changes to commit as transaction ``zxid``, or ``Failed`` with
    the index of the first operation that fails; the tree itself is not touched.
    """
    draft = _Draft(tree, zxid, session_id, identities)
    values: list[Value] = []
    for index, op in enumerate(ops):
        value = draft.add(op)
        if isinstance(value, Code):
            return Failed(value, index)
        values.append(value)
    return tuple(values), tuple(draft.changes)


Watcher = Hashable
Deliver = Callable[[Watcher, WatchEvent], None]


class Replica:
    """One server: a tree at transaction ``zxid`` and the watches set on this server.

    ``deliver(watcher, event)`` is called for each watch at the moment it fires; the watcher (a
    connection) is any hashable object. ``names_causes``: events name the transaction.
    """

    def __init__(self, deliver: Deliver, names_causes: bool = False) -> None:
        self.tree = Tree()
        self.zxid = 0
        self.free_us = 0
        """When it has served all requests that have arrived (simulated service time)."""
        self._deliver = deliver
        self._names_causes = names_causes
        self._data: dict[str, dict[Watcher, None]] = {}
        self._child: dict[str, dict[Watcher, None]] = {}

    def watch_data(self, path: str, watcher: Watcher) -> None:
        """Set the watch that ``exists`` and ``getData`` request."""
        self._data.setdefault(path, {})[watcher] = None

    def watch_children(self, path: str, watcher: Watcher) -> None:
        """Set the watch that ``getChildren`` requests."""
        self._child.setdefault(path, {})[watcher] = None

    def forget(self, watcher: Watcher) -> None:
        """Drop all watches of ``watcher``, whose connection is closed."""
        for table in (self._data, self._child):
            for path in [p for p, watchers in table.items() if watcher in watchers]:
                del table[path][watcher]
                if not table[path]:
                    del table[path]

    def watch_count(self) -> int:
        """Number of watches set, for tests of leaks."""
        return sum(len(w) for table in (self._data, self._child) for w in table.values())

    def apply(self, txn: Txn) -> None:
        """Apply a committed transaction, and fire the watches on its changes in order."""
        self.zxid = txn.zxid
        for change in txn.changes:
            self.tree.apply(change, txn.zxid)
            if change.acl is None:
                self._fire(change)

    def _fire(self, change: Change) -> None:
        path = change.path
        if change.after is not None and change.before is not None:
            self._trigger(self._data, path, WatchKind.CHANGED)
            return
        if change.after is not None:
            self._trigger(self._data, path, WatchKind.CREATED)
        else:
            # A connection with both kinds of watch on the path hears of the deletion once.
            told = self._trigger(self._data, path, WatchKind.DELETED)
            self._trigger(self._child, path, WatchKind.DELETED, told)
        self._trigger(self._child, parent_of(path), WatchKind.CHILD)

    def _trigger(
        self,
        table: dict[str, dict[Watcher, None]],
        path: str,
        kind: WatchKind,
        already_told: Iterable[Watcher] = (),
    ) -> Iterable[Watcher]:
        watchers = table.pop(path, {})
        zxid = self.zxid if self._names_causes else None
        for watcher in watchers:
            if watcher not in already_told:
                self._deliver(watcher, WatchEvent(kind, path, zxid))
        return watchers
