"""Offsets that a group stores in Kafka, on virtual time: slow, refusing, silent at times.

Kafka cannot fence a commit without membership, so it stores the last one that arrives. A request
whose answer the member does not wait for may be carried out much later, as on a real broker, but
before the member's next one. Runs inside kernel events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from zkconsumer.core.common.types import TopicPartition
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
from zkconsumer.sim.kernel import Kernel

OnStored = Callable[[TopicPartition, int | None, int, int, bool], object]
"""Takes a partition, the offset stored before, the new one, the session of the writer, and whether
that session surely lived when the writer sent the request."""

_ATTEMPTS_S: Final = 6.0
"""How long a member repeats an operation for which it is asked to try again."""
_BACKOFF_S: Final = 0.5


@dataclass(slots=True)
class SimOffsets:
    """The store. ``troubled``: requests are slow, lost or refused."""

    kernel: Kernel
    on_stored: OnStored
    stored: dict[TopicPartition, int]
    troubled: bool = False

    def port(self, session: Callable[[], int], sure: Callable[[int], bool]) -> SimOffsetPort:
        """One member's access to the store. ``sure``: whether a session of its surely lives now."""
        return SimOffsetPort(self, session, sure)

    def carry_out(self, op: OffsetOp, session: int, sure: bool, refuse: bool) -> Reply:
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
            self.on_stored(tp, before, position, session, sure)
            faults.append(None)
        return Ok(tuple(faults))


@dataclass(slots=True)
class _Job:
    """An operation of a member. ``until``: when it is repeated for the last time."""

    op: OffsetOp
    session: int
    on_reply: Callable[[Reply], object]
    permission: Permission
    until: float = 0.0


class SimOffsetPort:
    """The ``OffsetPort`` of a simulated member: one operation at a time, repeated for a while."""

    def __init__(
        self, store: SimOffsets, session: Callable[[], int], sure: Callable[[int], bool]
    ) -> None:
        self._store = store
        self._session = session
        self._sure = sure
        self._waiting: deque[_Job] = deque()
        self._job: _Job | None = None
        self._late: Callable[[], object] | None = None
        """Carries out the request that the store still has."""
        self._closed = False

    def submit(
        self, op: OffsetOp, on_reply: Callable[[Reply], object], permission: Permission
    ) -> None:
        """See ``OffsetPort``."""
        self._waiting.append(_Job(op, self._session(), on_reply, permission))
        self._next()

    def interrupt_ended(self) -> None:
        """See ``OffsetPort``."""
        job = self._job
        if job is not None and job.permission() is Permit.ENDED:
            self._answer(job, Failed(Code.OTHER, detail=Permit.ENDED.value))

    def close(self) -> None:
        """See ``OffsetPort``."""
        self._closed = True
        self._waiting.clear()

    def _next(self) -> None:
        if self._job is None and self._waiting:
            self._job = job = self._waiting.popleft()
            job.until = self._store.kernel.now + _ATTEMPTS_S
            self._attempt(job)

    def _attempt(self, job: _Job) -> None:
        if self._closed or job is not self._job:
            return
        store, kernel = self._store, self._store.kernel
        permit = job.permission()
        if permit is not Permit.GRANTED:
            failed = Failed(Code.OTHER, detail=permit.value)
            if permit is Permit.ENDED or kernel.now >= job.until:
                kernel.schedule(0.0, partial(self._answer, job, failed))
            else:
                kernel.schedule(_BACKOFF_S, partial(self._attempt, job))
            return
        sure, rng = self._sure(job.session), kernel.rng
        wait = 0.001 + 0.004 * rng.random()
        what = rng.random() if store.troubled else 1.0
        refuse = store.troubled and rng.random() < 0.1
        if what < 0.3 and kernel.now < job.until:  # the coordinator loads the group
            kernel.schedule(wait + _BACKOFF_S, partial(self._attempt, job))
            return
        if what < 0.5:
            wait += 3.0 * rng.random()
        reply: list[Reply] = []

        def arrive() -> None:
            if not reply:
                reply.append(store.carry_out(job.op, job.session, sure, refuse))

        def answered() -> None:
            self._arrive()
            self._answer(job, reply[0])

        self._arrive()
        if what < 0.6:  # the request is lost
            pass
        else:
            self._late = arrive
            kernel.schedule(wait, arrive)
        if what < 0.7:
            failed = Failed(Code.OTHER, detail="no answer from the offset coordinator")
            kernel.schedule(wait + 1.0, partial(self._answer, job, failed))
        else:
            kernel.schedule(wait, answered)

    def _arrive(self) -> None:
        """The store carries out what it still has of this member."""
        late, self._late = self._late, None
        if late is not None:
            late()

    def _answer(self, job: _Job, reply: Reply) -> None:
        if job is not self._job:
            return
        self._job = None
        if not self._closed:
            job.on_reply(reply)
            self._next()


__all__ = ["SimOffsetPort", "SimOffsets"]
