"""A tool's session with a simulated ZooKeeper, in which other clients write too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from zkconsumer.core.zookeeper.ops import Reply, ZkOp
from zkconsumer.core.zookeeper.scripts.common import Refused
from zkconsumer.errors import SessionExpiredError
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.servers.zk import FakeZk
from zkconsumer.sim.servers.zk_tree import ANYONE, Identities, WatchEvent
from zkconsumer.zk.blocking import refusal


class ToolZk:
    """Carries out scripts as ``BlockingZk`` does, one at a time.

    ``before`` and ``after`` are called with each operation. ``after`` also gets its reply, and
    returns the one that the script gets.
    """

    identities: Identities = (ANYONE,)
    """As ``BlockingZk`` without a login."""
    session_timeout = 30.0

    def __init__(self) -> None:
        self.zk = FakeZk(Kernel(1))
        self._fired: set[str] = set()
        self.losses = 0
        self.before: Callable[[ZkOp], object] = lambda op: None
        self.after: Callable[[ZkOp, Reply], Reply] = lambda op, reply: reply
        self.connect()

    def connect(self) -> None:
        """Open a new session."""
        self._client = self.zk.connect(6.0, self._watched, lambda state, session: None)
        self._pass(1.0)

    def _watched(self, event: WatchEvent) -> None:
        self._fired.add(event.path)

    def fired(self) -> set[str] | None:
        """Return the paths whose watches fired since the last call; ``None`` after an expiry."""
        self._pass(0.1)
        fired, self._fired = self._fired, set()
        return None if "" in fired else fired

    def expire(self) -> None:
        """End the session. As with kazoo, the next script then runs in a new one."""
        self._client.kill()
        self.interrupt()
        self._pass(20.0)
        self.connect()

    def interrupt(self) -> None:
        """Lose the connection, and make it again at once."""
        self._fired.add("")
        self.losses += 1

    def run(self, script: Any) -> Any:
        """Return the script's result. Raises ZooKeeperError for a refusal, as the product does, and
        SessionExpiredError if the session ends before the script does."""
        session, reply = self._client, None
        while True:
            try:
                op = next(script) if reply is None else script.send(reply)
            except StopIteration as end:
                return end.value
            except Refused as refused:
                raise refusal(refused) from None
            self.before(op)
            if self._client is not session:
                script.close()
                raise SessionExpiredError("the session with ZooKeeper ended: run it again")
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
        self._client.identities = self.identities
        replies: list[Reply] = []
        self._client.submit(op, replies.append)
        self._pass(0.1)
        return replies[0]

    def _pass(self, seconds: float) -> None:
        self.zk.kernel.run(until=self.zk.kernel.now + seconds)
