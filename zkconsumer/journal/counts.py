"""Costs of a member's operation: its kind, its requests, and the znodes that it reads
and writes."""

from __future__ import annotations

from typing import Final, NamedTuple

from zkconsumer.core.zookeeper.ops import (
    Check,
    Create,
    Delete,
    Exists,
    Failed,
    GetChildren,
    GetData,
    GetMany,
    Multi,
    OffsetOp,
    Ok,
    Reply,
    SetData,
    ZkOp,
)

GROUP_KINDS: Final = {
    "FindCoordinator": "find coordinator",
    "LoadTopics": "read topics",
    "JoinGroup": "join group",
    "SyncGroup": "sync group",
    "Heartbeat": "heartbeat",
    "LeaveGroup": "leave group",
    "FetchOffsets": "fetch offsets",
    "CommitOffsets": "commit offsets",
    "MemberHeartbeat": "heartbeat",
    "ReadTopicNames": "read topics",
    "FetchMemberOffsets": "fetch offsets",
    "StoreOffsets": "commit offsets",
}
"""Kinds of requests to brokers, by the name of the command or, for groups in ZooKeeper, of the
operation."""

_AREAS: Final = {"ids": "registrations", "owners": "owners", "offsets": "offsets"}


class Counts(NamedTuple):
    """The packets and znodes of an operation.

    ``requests``: packets sent. ``reads``: znodes read. ``writes``: requested transactions.
    ``changes``: znodes that these changed.
    """

    requests: int
    reads: int
    writes: int
    changes: int


REQUEST: Final = Counts(1, 0, 0, 0)
"""The counts of a request that does not involve znodes."""


def counts(op: ZkOp | OffsetOp, reply: Reply) -> Counts:
    """Return the counts of an operation. Many reads without watches are sent in one request
    (ZooKeeper 3.6)."""
    ok = isinstance(reply, Ok)
    if isinstance(op, GetMany):
        count = len(op.paths)
        together = not op.watch and count > 1
        return Counts(1 if together else count, count, 0, 0)
    if isinstance(op, Exists | GetData | GetChildren):
        return Counts(1, 1, 0, 0)
    if isinstance(op, Multi):
        changes = sum(not isinstance(part, Check) for part in op.ops) if ok else 0
        return Counts(1, 0, 1, changes)
    if isinstance(op, Create | SetData | Delete):
        return Counts(1, 0, 1, int(ok))
    return REQUEST


def kind_of(name: str, path: str) -> str:
    """Return the kind of an operation: ``read owners``, ``write registrations``, ``multi`` ..."""
    if name == "Multi":
        return "multi"
    if name in GROUP_KINDS:
        return GROUP_KINDS[name]
    verb = "write" if name in ("Create", "SetData", "Delete") else "read"
    parts = path.split("/")
    if path.startswith("/brokers/"):
        return f"{verb} {'brokers' if parts[2] == 'ids' else 'topics'}"
    area = _AREAS.get(parts[3]) if path.startswith("/consumers/") and len(parts) > 3 else None
    return f"{verb} {area or 'other'}"


def touched(op: ZkOp | OffsetOp, reply: Reply) -> tuple[list[str], list[str]]:
    """Return the registrations and owner znodes that ``op`` created and deleted."""
    if isinstance(reply, Failed):
        return [], []
    if isinstance(op, Create):
        return ([op.path] if op.ephemeral else []), []
    if isinstance(op, Delete):
        return [], [op.path]
    if isinstance(op, Multi):
        created = [p.path for p in op.ops if isinstance(p, Create) and p.ephemeral]
        return created, [p.path for p in op.ops if isinstance(p, Delete)]
    return [], []
