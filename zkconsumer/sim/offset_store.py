"""Offsets that a group stores in Kafka, on virtual time: slow, refusing, silent at times.

Kafka cannot fence a commit without membership, so it stores the last one that arrives. A request
that the member abandons was carried out before, or never is (a real broker may still carry it out
later). Runs inside kernel events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Code, Failed, FetchOffsets, OffsetOp, Ok, Reply
from zkconsumer.sim.kernel import Kernel

OnStored = Callable[[TopicPartition, int | None, int, int], object]
"""Takes a partition, the offset stored before, the new one, and the session of the writer."""


@dataclass(slots=True)
class SimOffsets:
    """The store. ``troubled``: requests are slow, lost or refused."""

    kernel: Kernel
    on_stored: OnStored
    stored: dict[TopicPartition, int]
    troubled: bool = False

    def port(self, session: Callable[[], int]) -> SimOffsetPort:
        """One member's access to the store."""
        return SimOffsetPort(self, session)

    def carry_out(self, op: OffsetOp, session: int, refuse: bool) -> Reply:
        """Carry out an operation now; ``refuse`` the first partition of a commit."""
        if isinstance(op, FetchOffsets):
            return Ok(tuple(self.stored.get(tp) for tp in op.partitions))
        faults: list[str | None] = []
        for tp, position in op.positions:
            if refuse and not faults:
                faults.append(f"{tp}: refused")
                continue
            before = self.stored.get(tp)
            self.stored[tp] = position
            self.on_stored(tp, before, position, session)
            faults.append(None)
        return Ok(tuple(faults))


class SimOffsetPort:
    """The ``OffsetPort`` of a simulated member: one operation at a time."""

    def __init__(self, store: SimOffsets, session: Callable[[], int]) -> None:
        self._store = store
        self._session = session
        self._waiting: deque[tuple[OffsetOp, int, Callable[[Reply], object]]] = deque()
        self._busy = False
        self._closed = False

    def submit(self, op: OffsetOp, on_reply: Callable[[Reply], object]) -> None:
        """See ``OffsetPort``."""
        self._waiting.append((op, self._session(), on_reply))
        self._next()

    def close(self) -> None:
        """See ``OffsetPort``."""
        self._closed = True
        self._waiting.clear()

    def _next(self) -> None:
        if self._busy or not self._waiting:
            return
        op, session, on_reply = self._waiting.popleft()
        self._busy = True
        store, rng = self._store, self._store.kernel.rng
        wait = 0.001 + 0.004 * rng.random()
        lost: float | None = None
        refuse = False
        if store.troubled:
            what = rng.random()
            if what < 0.2:
                wait += 3.0 * rng.random()
            elif what < 0.4:
                lost = wait + 1.0
            refuse = rng.random() < 0.1
        if lost is not None:
            if rng.random() < 0.5:  # only the answer is lost
                store.kernel.schedule(wait, partial(store.carry_out, op, session, False))
            failed = Failed(Code.OTHER, detail="no answer from the offset coordinator")
            store.kernel.schedule(lost, partial(self._answer, on_reply, failed))
            return

        def arrive() -> None:
            self._answer(on_reply, store.carry_out(op, session, refuse))

        store.kernel.schedule(wait, arrive)

    def _answer(self, on_reply: Callable[[Reply], object], reply: Reply) -> None:
        self._busy = False
        if not self._closed:
            on_reply(reply)
            self._next()


__all__ = ["SimOffsetPort", "SimOffsets"]
