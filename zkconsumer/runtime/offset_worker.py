"""Carries out offset operations in Kafka on its own thread, one at a time."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from zkconsumer.broker.offset_coordinator import OffsetCoordinator
from zkconsumer.core.zookeeper.ops import (
    Code,
    Failed,
    FetchOffsets,
    OffsetOp,
    Ok,
    Permission,
    Permit,
    Reply,
)
from zkconsumer.errors import BrokerError
from zkconsumer.runtime.threads import check_lives

logger = logging.getLogger("zkconsumer.member")


class OffsetWorker:
    """The loop's way to the offset coordinator. ``submit`` and ``close`` by any thread.

    Args:
        coordinator: used by the worker's thread only, and closed with it.
        patience: seconds after which an operation fails.
        name: of the thread.
    """

    def __init__(self, coordinator: OffsetCoordinator, patience: float, name: str) -> None:
        self._coordinator = coordinator
        self._patience = patience
        self._work: queue.SimpleQueue[
            tuple[OffsetOp, Callable[[Reply], object], Permission] | None
        ] = queue.SimpleQueue()
        self._permission: Permission | None = None
        """Of the operation in progress."""
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(
        self, op: OffsetOp, on_reply: Callable[[Reply], object], permission: Permission
    ) -> None:
        """Carry out ``op``; call ``on_reply`` once, on the worker's thread.

        ``permission`` is asked right before each attempt is sent.
        """
        self._work.put((op, on_reply, permission))

    def interrupt(self) -> None:
        """End the attempt in progress if it is no longer permitted."""
        permission = self._permission
        if permission is not None and permission() is Permit.ENDED:
            self._coordinator.interrupt()

    def close(self) -> None:
        """Abandon the operation in progress and end the thread."""
        self._coordinator.close()
        self._closed = True
        self._work.put(None)

    def check(self) -> None:
        """Raise RuntimeError if the thread has ended before ``close``."""
        if not self._closed:
            check_lives(self._thread)

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            op, on_reply, self._permission = item
            reply = self._carry_out(op, self._permission)
            self._permission = None
            on_reply(reply)

    def _carry_out(self, op: OffsetOp, permission: Permission) -> Reply:
        try:
            if isinstance(op, FetchOffsets):
                found = self._coordinator.fetch(op.partitions, self._patience, permission)
                return Ok(tuple(found[tp] for tp in op.partitions))
            refused = self._coordinator.commit(dict(op.positions), self._patience, permission)
            return Ok(tuple(str(refused[tp]) if tp in refused else None for tp, _ in op.positions))
        except BrokerError as error:
            return Failed(Code.OTHER, detail=str(error))
        except BaseException as error:  # without an answer the member would wait for ever
            logger.exception("an operation on offsets in Kafka has failed")
            return Failed(Code.OTHER, detail=f"offsets in Kafka: {error!r}")
