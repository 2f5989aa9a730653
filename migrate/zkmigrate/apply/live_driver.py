"""Carries out the steps of live moves on the stores, in the thread of ``Stores``."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import Any, NamedTuple, TypeVar

from zkconsumer.core.zookeeper.ops import ZkOp
from zkconsumer.core.zookeeper.scripts.common import Script
from zkmigrate.apply.live import (
    Begin,
    FetchOffsets,
    FindHidden,
    ListMembers,
    LiveScript,
    Request,
    Wait,
)
from zkmigrate.stores.sessions import Stores

T = TypeVar("T")


class _Ended(NamedTuple):
    result: Any


def perform(
    stores: Stores,
    script: LiveScript[T],
    stopped: Event | None = None,
    begin: Callable[[bool], object] = lambda reached: None,
) -> T:
    """Carry out a step and return its result. Raises the errors of both stores.

    Once ``stopped`` is set, a step that waits ends as if its time were over. ``begin``: called
    before the work on the group begins; see ``Begin``.
    """

    def in_zookeeper(reply: object) -> Script[Request | _Ended]:
        """Carry out its requests to ZooKeeper; return the first one that is another."""
        try:
            request = script.send(reply)
            while isinstance(request, ZkOp):
                request = script.send((yield request))
        except StopIteration as end:
            return _Ended(end.value)
        return request

    stopped = stopped or Event()
    reply: object = None
    try:
        while True:
            match stores.zk.run(in_zookeeper(reply)):
                case _Ended(result):
                    return result  # type: ignore[no-any-return]
                case FetchOffsets(group, known):
                    reply = stores.fetch(group, known)
                case ListMembers(group):
                    reply = stores.kafka.members(group)
                case FindHidden(topics):
                    reply = stores.kafka.hidden(topics)
                case Begin(reached):
                    reply = begin(reached)
                case Wait(seconds):
                    reply = stopped.wait(seconds)
    finally:
        script.close()


__all__ = ["perform"]
