"""Carries out a script one operation at a time."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from zkconsumer.core.zookeeper.ops import OffsetOp, Ok, Pipelined, Reply, ZkOp
from zkconsumer.core.zookeeper.scripts.common import MemberScript

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
