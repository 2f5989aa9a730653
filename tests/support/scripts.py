"""Scripts of tests: one operation at a time, and a group's mode."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from zkconsumer.core.migration.modes import Mode
from zkconsumer.core.migration.znodes import LivePaths, encode_mode
from zkconsumer.core.zookeeper.ops import Create, OffsetOp, Ok, Pipelined, Reply, SetData, ZkOp
from zkconsumer.core.zookeeper.scripts.common import MemberScript, Script, attempt, ensure_path

T = TypeVar("T")


def one_by_one(script: MemberScript[T]) -> Generator[ZkOp | OffsetOp, Reply, T]:
    """The script converted for a driver that runs a single operation at a time."""
    reply: Reply | None = None
    while True:
        try:
            op = next(script) if reply is None else script.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result
        if isinstance(op, Pipelined):
            replies: list[Reply] = []
            for part in op.ops:
                replies.append((yield part))
            reply = Ok(tuple(replies))
        else:
            reply = yield op


def write_mode(paths: LivePaths, target: Mode, version: int) -> Script[bool]:
    """Write the mode if its version is still ``version`` (-1: there is no znode); return whether it
    was written."""
    data = encode_mode(target)
    if version >= 0:
        return isinstance((yield from attempt(SetData(paths.mode, data, version))), Ok)
    yield from ensure_path(set(), paths.mode.rpartition("/")[0])
    return isinstance((yield from attempt(Create(paths.mode, data))), Ok)
