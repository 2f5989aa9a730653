"""Functions for all scripts: reads that survive a lost connection, creation of parents, bounded
packets."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from zkconsumer.config.security_keys import NO_SECURITY, ListenerChoice
from zkconsumer.core.common.expansion import Expansions
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import (
    Code,
    Create,
    Failed,
    GetMany,
    Multi,
    MultiOp,
    Node,
    OffsetOp,
    Ok,
    Pipelined,
    Reply,
    SetData,
    ZkOp,
)
from zkconsumer.core.zookeeper.view import MemberSpec

T = TypeVar("T")
Script = Generator[ZkOp, Reply, T]
#: A member's script, which may also send operations together, and use offsets in Kafka.
MemberScript = Generator[ZkOp | OffsetOp | Pipelined, Reply, T]

#: Bytes of one multi. The server refuses requests above ``jute.maxbuffer`` (1 MiB by default).
PACKET_BYTES = 256 * 1024
#: Partitions of one multi, so that other members' requests are not held up behind it.
PACKET_PARTITIONS = 500
#: Paths of one ``GetMany``.
READ_BATCH = 2000
#: Lists of children in one ``GetMany``: each may be long.
LISTS = 200
_REFUSALS = frozenset(
    {Code.NO_AUTH, Code.AUTH_REQUIRED, Code.NO_CHILDREN_FOR_EPHEMERALS, Code.OTHER}
)


class SessionGone(Exception):
    """The script's session has ended, so the script's result is unknown."""


class Refused(Exception):
    """ZooKeeper or Kafka refused an operation, and an immediate retry would not help."""

    def __init__(self, code: Code, path: str, detail: str = "") -> None:
        super().__init__(detail or f"{path}: {code.value}")
        self.code = code
        self.path = path
        self.detail = detail


@dataclass(slots=True)
class CommitCounts:
    """Number of offsets that a member has stored. Written by the thread that runs its scripts."""

    zookeeper: int = 0
    kafka: int = 0


@dataclass(slots=True)
class ScriptContext:
    """Data of one member that its scripts use in addition to their command.

    ``session_id`` is the scripts' session. ``known_paths`` caches existing parents, to save round
    trips; a wrong entry costs only another round trip. ``expansions`` caches the topics that
    members' filters select, ``decoded`` the partitions in topic znodes; ``stored`` counts stored
    offsets; ``pauses`` has for each partition the seconds between the last change of its offset
    and the last claim, by ZooKeeper's clock. ``listener`` selects a broker's listener.
    """

    spec: MemberSpec
    session_id: int
    now_ms: Callable[[], int]
    known_paths: set[str] = field(default_factory=set)
    expansions: Expansions = field(default_factory=Expansions)
    decoded: Mapping[str, tuple[Node, tuple[int, ...]]] = field(default_factory=dict)
    stored: CommitCounts = field(default_factory=CommitCounts)
    pauses: dict[TopicPartition, float] = field(default_factory=dict)
    listener: ListenerChoice = NO_SECURITY.listener


def path_of(op: ZkOp | MultiOp) -> str:
    """Return the path of an operation, for messages."""
    if isinstance(op, GetMany):
        return op.paths[0] if op.paths else ""
    if isinstance(op, Multi):
        return path_of(op.ops[0]) if op.ops else ""
    return op.path


def _refused(reply: Failed, path: str) -> Refused:
    shown = ascii(path)[1:-1]  # a stranger may have named the znode
    return Refused(reply.code, path, f"{shown}: {reply.detail}" if reply.detail else "")


def attempt(op: ZkOp) -> Script[Reply]:
    """Run ``op`` once. After the reply ``CONNECTION_LOSS`` the outcome is unknown.

    Raises ``SessionGone`` or ``Refused``.
    """
    reply = yield op
    _look_for_refusal(op, reply)
    return reply


def _look_for_refusal(op: ZkOp, reply: Reply) -> None:
    if isinstance(reply, Failed):
        if reply.code is Code.SESSION_EXPIRED:
            raise SessionGone(f"{path_of(op)}: {reply.code.value}")
        if reply.code in _REFUSALS:
            index = reply.index or 0
            if isinstance(op, GetMany) and index < len(op.paths):
                raise _refused(reply, op.paths[index])
            culprit = op.ops[index] if isinstance(op, Multi) and index < len(op.ops) else op
            raise _refused(reply, path_of(culprit))


def attempt_all(ops: Sequence[ZkOp]) -> MemberScript[list[Reply]]:
    """Run ``ops`` once, in this order, in one round trip. See ``attempt``."""
    if not ops:
        return []
    if len(ops) == 1:
        single = yield from attempt(ops[0])
        return [single]
    reply = yield Pipelined(tuple(ops))
    assert isinstance(reply, Ok)
    assert isinstance(reply.value, tuple)
    replies: list[Reply] = list(reply.value)  # type: ignore[arg-type]
    for op, answer in zip(ops, replies, strict=True):
        _look_for_refusal(op, answer)
    return replies


def read(op: ZkOp) -> Script[Reply]:
    """Run a read. Retry it after a lost connection; the driver waits until reconnected."""
    while True:
        reply = yield from attempt(op)
        if not (isinstance(reply, Failed) and reply.code is Code.CONNECTION_LOSS):
            return reply


def read_all(ops: Sequence[ZkOp]) -> MemberScript[list[Reply]]:
    """Run reads together. Repeat reads that got no answer because the connection was lost."""
    replies = yield from attempt_all(ops)
    for index, reply in enumerate(replies):
        if isinstance(reply, Failed) and reply.code is Code.CONNECTION_LOSS:
            replies[index] = yield from read(ops[index])
    return replies


def read_many(paths: Iterable[str], watch: bool = False) -> Script[list[Node | None]]:
    """Read many znodes in batches of limited size; ``None`` for a znode that does not exist."""
    nodes: list[Node | None] = []
    for batch in batches(paths, watch):
        nodes += nodes_of((yield from read(batch)))
    return nodes


def batches(paths: Iterable[str], watch: bool = False) -> Iterator[GetMany]:
    """Return reads of ``paths``, each of limited size."""
    batch: list[str] = []
    size = 0
    for path in paths:
        if batch and (len(batch) == READ_BATCH or size + len(path) > PACKET_BYTES):
            yield GetMany(tuple(batch), watch)
            batch, size = [], 0
        batch.append(path)
        size += len(path)
    if batch:
        yield GetMany(tuple(batch), watch)


def nodes_of(reply: Reply) -> list[Node | None]:
    """Return the znodes in the answer to a ``GetMany``."""
    assert isinstance(reply, Ok)
    assert isinstance(reply.value, tuple)
    return [node if isinstance(node, Node) else None for node in reply.value]


def ensure_path(known: set[str], path: str) -> Script[None]:
    """Create a persistent znode and its missing parents.

    ``known`` has paths that need not be checked. Existing paths are added to it.
    """
    if path in known or path == "/":
        return
    while True:
        reply = yield from attempt(Create(path))
        if isinstance(reply, Ok) or reply.code is Code.NODE_EXISTS:
            known.add(path)
            return
        if reply.code is Code.CONNECTION_LOSS:
            continue
        parent = path.rpartition("/")[0]
        if reply.code is not Code.NO_NODE or not parent:
            raise Refused(reply.code, path)
        known.discard(parent)
        yield from ensure_path(known, parent)


def op_bytes(op: MultiOp) -> int:
    """Return a slightly high estimate of an operation's size on the wire."""
    size = len(op.path) * 2 + 80
    if isinstance(op, Create | SetData):
        size += len(op.data)
    return size


def packets(
    items: Iterable[tuple[T, tuple[MultiOp, ...]]], limit: int | None = None
) -> Iterator[dict[T, list[MultiOp]]]:
    """Group items, each with its operations, into packets of at most ``limit`` items (by default
    ``PACKET_PARTITIONS``). An item's operations are never separated.
    """
    most = PACKET_PARTITIONS if limit is None else limit
    packet: dict[T, list[MultiOp]] = {}
    size = 0
    for item, ops in items:
        added = sum(op_bytes(op) for op in ops)
        if packet and (size + added > PACKET_BYTES or len(packet) >= most):
            yield packet
            packet, size = {}, 0
        packet[item] = list(ops)
        size += added
    if packet:
        yield packet
