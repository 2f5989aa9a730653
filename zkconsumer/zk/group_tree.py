"""A group's znodes as a tool sees them: short questions with an answer, no watches.

Used by the command line. Each call blocks the calling thread until ZooKeeper answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import (
    Code,
    Delete,
    Exists,
    Failed,
    GetChildren,
    GetMany,
    Node,
    Reply,
    SessionEvent,
    Value,
    ZkOp,
)
from zkconsumer.core.zookeeper.scripts.common import READ_BATCH
from zkconsumer.core.zookeeper.znodes import BROKER_IDS, GroupPaths
from zkconsumer.errors import ZkUnavailableError, ZooKeeperError
from zkconsumer.zk.driver import ZkDriver

_HASTY_CLOSE_SECONDS: Final = 1.0
"""How long the session's end may take after an error or an interruption."""


@dataclass(frozen=True, slots=True)
class Znode:
    """One znode: path without chroot, content, and whether it ends with its session."""

    path: str
    data: bytes
    ephemeral: bool


class GroupTree:
    """A short ZooKeeper session that reads, and deletes, what lies below ``/consumers``.

    Args:
        hosts: ``host:port,host:port``.
        chroot: ``""`` or ``/path``.
        session_timeout, connection_timeout: seconds.

    Entering the context connects. Raises ZkUnavailableError, ChrootMissingError; its methods
    ZkUnavailableError and ZooKeeperError.
    """

    def __init__(
        self, hosts: str, chroot: str, session_timeout: float, connection_timeout: float
    ) -> None:
        self._hosts = hosts
        self._connection_timeout = connection_timeout
        self._patience = session_timeout + connection_timeout
        self._opened: Future[int] = Future()
        self._driver = ZkDriver(
            hosts, chroot, session_timeout, self._session_changed, lambda path: None
        )

    def __enter__(self) -> Self:
        self._driver.start(self._connection_timeout)
        try:
            self._opened.result(self._connection_timeout)
        except FutureTimeoutError:
            self._driver.close(_HASTY_CLOSE_SECONDS)
            raise ZkUnavailableError(f"ZooKeeper at {self._hosts} gave no session") from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._driver.close()
        else:
            self._driver.close(_HASTY_CLOSE_SECONDS)

    def _session_changed(self, event: SessionEvent, session_id: int) -> None:
        """kazoo's thread: note the first session."""
        if event is SessionEvent.OPENED and not self._opened.done():
            self._opened.set_result(session_id)

    def _ask(self, op: ZkOp, path: str) -> Value | None:
        """The answer's value; ``None`` also where there is no znode."""
        answer: Future[Reply] = Future()

        def answered(reply: Reply) -> None:
            # kazoo takes a signal that interrupts its sending for a closed connection, and then
            # answers twice.
            if not answer.done():
                answer.set_result(reply)

        self._driver.submit(op, self._driver.session_id, answered)
        try:
            reply = answer.result(self._patience)
        except FutureTimeoutError:
            raise ZkUnavailableError(
                f"ZooKeeper at {self._hosts} did not answer within {self._patience:g} s"
            ) from None
        if not isinstance(reply, Failed):
            return reply.value
        if reply.code is Code.NO_NODE:
            return None
        if reply.code in (Code.CONNECTION_LOSS, Code.SESSION_EXPIRED):
            raise ZkUnavailableError(f"ZooKeeper at {self._hosts}: {reply.code.value}")
        raise ZooKeeperError(f"{path}: {reply.code.value}")

    def _exists(self, path: str) -> bool:
        return self._ask(Exists(path), path) is not None

    def _children(self, path: str) -> list[str]:
        found = self._ask(GetChildren(path), path)
        return sorted(str(name) for name in found) if isinstance(found, tuple) else []

    def has_brokers_path(self) -> bool:
        """Whether a broker was ever registered here."""
        return self._exists(BROKER_IDS)

    def has_offsets(self, group: str) -> bool:
        """Whether the group has an ``offsets`` znode."""
        return self._exists(GroupPaths(group).offsets)

    def members(self, group: str) -> list[str]:
        """Consumer ids that are registered, sorted."""
        return self._children(GroupPaths(group).ids)

    def owners(self, group: str) -> dict[TopicPartition, str]:
        """Partition to the text of its owner znode."""
        return {tp: data.decode("utf-8", "replace") for tp, data in self._leaves(group, "owners")}

    def offsets(self, group: str) -> dict[TopicPartition, int]:
        """Partition to its committed offset. Raises ValueError when one is not a number."""
        return {tp: int(data) for tp, data in self._leaves(group, "offsets")}

    def _leaves(self, group: str, kind: str) -> list[tuple[TopicPartition, bytes]]:
        root = f"{GroupPaths(group).root}/{kind}"
        partitions = [
            TopicPartition(topic, int(number))
            for topic in self._children(root)
            for number in self._children(f"{root}/{topic}")
            if number.isdecimal()
        ]
        nodes = self._nodes([f"{root}/{topic}/{number}" for topic, number in partitions])
        return sorted(
            (tp, node.data)
            for tp, node in zip(partitions, nodes, strict=True)
            if isinstance(node, Node)
        )

    def _nodes(self, paths: Sequence[str]) -> list[object]:
        found: list[object] = []
        for first in range(0, len(paths), READ_BATCH):
            part = tuple(paths[first : first + READ_BATCH])
            nodes = self._ask(GetMany(part), part[0])
            assert isinstance(nodes, tuple)
            found += nodes
        return found

    def walk(self, group: str) -> list[Znode]:
        """All znodes of the group, parents before children; numbers in numeric order."""
        paths: list[str] = []

        def visit(path: str) -> None:
            paths.append(path)
            for name in sorted(self._children(path), key=_natural):
                visit(f"{path}/{name}")

        visit(GroupPaths(group).root)
        nodes = self._nodes(paths)
        return [
            Znode(path, node.data, node.stat.ephemeral_owner != 0)
            for path, node in zip(paths, nodes, strict=True)
            if isinstance(node, Node)
        ]

    def delete_group(self, group: str) -> bool:
        """Delete all znodes of a group; false, and nothing is deleted, while it has members."""
        if self.members(group):
            return False
        for znode in reversed(self.walk(group)):
            self._ask(Delete(znode.path), znode.path)
        return True


def _natural(name: str) -> tuple[bool, int, str]:
    return (not name.isdecimal(), int(name) if name.isdecimal() else 0, name)
