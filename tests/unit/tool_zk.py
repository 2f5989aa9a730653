"""A tool's session with a simulated ZooKeeper, where others come in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from zkconsumer.core.zookeeper.ops import GetMany, Ok, Reply, ZkOp
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.zk import FakeZk


class ToolZk:
    """Carries out scripts as ``BlockingZk`` does, one at a time.

    ``before`` and ``after`` are called with each operation; ``after`` also with its reply, and
    returns the one that the script gets.
    """

    def __init__(self) -> None:
        self.zk = FakeZk(Kernel(1))
        self.before: Callable[[ZkOp], object] = lambda op: None
        self.after: Callable[[ZkOp, Reply], Reply] = lambda op, reply: reply
        self._client = self.zk.connect(6.0, lambda event: None, lambda state, session: None)
        self._pass(1.0)

    def run(self, script: Any) -> Any:
        """What the script returns."""
        reply: Reply | None = None
        while True:
            try:
                op = next(script) if reply is None else script.send(reply)
            except StopIteration as end:
                return end.value
            self.before(op)
            reply = self.after(op, self._send(op))

    def run_all(self, scripts: Iterable[Any]) -> Iterator[Any]:
        """The same for several scripts."""
        return map(self.run, scripts)

    def text(self, path: str) -> bytes | None:
        """What a znode holds; ``None``: there is no such znode."""
        node = self.zk.get(path)
        return None if node is None else node.data

    def _send(self, op: ZkOp) -> Reply:
        if isinstance(op, GetMany) and op.children:  # which members do not ask for
            nodes = map(self.zk.get, op.paths)
            found = zip(op.paths, nodes, strict=True)
            return Ok(tuple(node and self.zk.children(path) for path, node in found))  # type: ignore[misc]
        replies: list[Reply] = []
        self._client.submit(op, replies.append)
        self._pass(0.1)
        return replies[0]

    def _pass(self, seconds: float) -> None:
        self.zk.kernel.run(until=self.zk.kernel.now + seconds)
