"""A tool's session with a simulated ZooKeeper, in which other clients write too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from zkconsumer.core.zookeeper.ops import (
    Acl,
    AclEntry,
    Code,
    Create,
    Delete,
    Failed,
    GetAcl,
    GetMany,
    Multi,
    Ok,
    Reply,
    SetAcl,
    ZkOp,
)
from zkconsumer.core.zookeeper.scripts.common import Refused
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.servers.zk import FakeZk
from zkconsumer.zk.blocking import refusal

OPEN = Acl((AclEntry(31, "world", "anyone"),), 0)
"""The access list of a new znode."""
CREATE = 4


class ToolZk:
    """Carries out scripts as ``BlockingZk`` does, one at a time.

    The simulated ZooKeeper has no access lists. They are kept here, and only decide about
    creations. A znode that is deleted loses its list, also if it is created again at once.

    ``before`` and ``after`` are called with each operation. ``after`` also gets its reply, and
    returns the one that the script gets.
    """

    identities = (("world", "anyone"),)
    """As ``BlockingZk`` without a login."""
    session_timeout = 30.0

    def __init__(self) -> None:
        self.zk = FakeZk(Kernel(1))
        self._acls: dict[str, Acl] = {}
        self.before: Callable[[ZkOp], object] = lambda op: None
        self.after: Callable[[ZkOp, Reply], Reply] = lambda op, reply: reply
        self._client = self.zk.connect(6.0, lambda event: None, lambda state, session: None)
        self._pass(1.0)

    def run(self, script: Any) -> Any:
        """Return the script's result. Raises ZooKeeperError for a refusal, as the product does."""
        reply: Reply | None = None
        while True:
            try:
                op = next(script) if reply is None else script.send(reply)
            except StopIteration as end:
                return end.value
            except Refused as refused:
                raise refusal(refused) from None
            self.before(op)
            reply = self.after(op, self._send(op))

    def do(self, op: ZkOp) -> Any:
        """Carry out one operation and return its reply."""
        return self._send(op)

    def run_all(self, scripts: Iterable[Any]) -> Iterator[Any]:
        """Return the results of several scripts."""
        return map(self.run, scripts)

    def text(self, path: str) -> bytes | None:
        """Return a znode's text, or ``None`` if it does not exist."""
        node = self.zk.get(path)
        return None if node is None else node.data

    def _send(self, op: ZkOp) -> Reply:
        if isinstance(op, GetMany) and op.children:  # which members do not ask for
            nodes = map(self.zk.get, op.paths)
            found = zip(op.paths, nodes, strict=True)
            return Ok(tuple(node and self.zk.children(path) for path, node in found))  # type: ignore[misc]
        if isinstance(op, GetAcl | SetAcl):
            return self._access(op)
        for part in op.ops if isinstance(op, Multi) else (op,):
            if isinstance(part, Create):
                acl = self._acls.get(part.path.rpartition("/")[0], OPEN)
                may = {(entry.scheme, entry.who) for entry in acl.entries if entry.perms & CREATE}
                if may.isdisjoint(self.identities):
                    return Failed(Code.NO_AUTH)
        replies: list[Reply] = []
        self._client.submit(op, replies.append)
        self._pass(0.1)
        if isinstance(replies[0], Ok):
            for part in op.ops if isinstance(op, Multi) else (op,):
                if isinstance(part, Delete):
                    self._acls.pop(part.path, None)
        return replies[0]

    def _access(self, op: GetAcl | SetAcl) -> Reply:
        acl = self._acls.get(op.path, OPEN)
        if self.zk.get(op.path) is None:
            return Failed(Code.NO_NODE)
        if isinstance(op, GetAcl):
            return Ok(acl)
        if op.version != acl.version:
            return Failed(Code.BAD_VERSION)
        self._acls[op.path] = Acl(op.entries, acl.version + 1)
        return Ok(None)

    def _pass(self, seconds: float) -> None:
        self.zk.kernel.run(until=self.zk.kernel.now + seconds)
