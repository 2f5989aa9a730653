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
from typing import Any, Final

from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.groups import commands, events
from zkconsumer.core.groups.reactions import UNREACHABLE
from zkconsumer.core.zookeeper.ops import OffsetOp, Permission, Permit, Reply, always
from zkconsumer.runtime.membership.kafka_offsets import KafkaOffsets
from zkconsumer.runtime.membership.loop import Host
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

    def of_member(
        self, host: Host, session: Callable[[], int], sure: Callable[[int], bool]
    ) -> SimKafkaOffsets:
        """One member's access to the store. ``sure``: whether a session of its surely lives now."""
        return SimKafkaOffsets(self, host, session, sure)

    def carry_out(self, command: Any, session: int, sure: bool, refuse: bool) -> events.Event:
        """Carry out a request now; ``refuse`` the first partition of a commit."""
        if isinstance(command, commands.FetchOffsets):
            found = {tp: self.stored.get(tp) for tp in command.partitions}
            return events.OffsetsFetched(command.token, found)
        codes: dict[TopicPartition, int] = {}
        for tp, position in command.positions.items():
            if refuse and not codes:
                codes[tp] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                continue
            before = self.stored.get(tp)
            self.stored[tp] = position
            self.on_stored(tp, before, position, session, sure)
            codes[tp] = ErrorCode.NONE
        return events.OffsetsCommitted(command.token, codes)


@dataclass(frozen=True, slots=True)
class _InSession:
    """The permission of an operation, and the session in which the member began it."""

    permission: Permission
    session: int

    def __call__(self) -> Permit:
        return self.permission()


class SimKafkaOffsets(KafkaOffsets):
    """The offsets of a simulated member. Its line knows in which session an operation began."""

    def __init__(
        self,
        store: SimOffsets,
        host: Host,
        session: Callable[[], int],
        sure: Callable[[int], bool],
    ) -> None:
        self._session = session
        super().__init__(host, _Line(store, sure), "g", _ATTEMPTS_S, _BACKOFF_S)

    def submit(
        self, op: OffsetOp, on_reply: Callable[[Reply], object], permission: Permission
    ) -> None:
        """See ``KafkaOffsets``."""
        super().submit(op, on_reply, _InSession(permission, self._session()))


_Request = tuple[Any, Callable[[Any, float, int], object], Permission]


class _Line:
    """A member's ``RequestLine`` to the store: a request at a time, each answered once."""

    def __init__(self, store: SimOffsets, sure: Callable[[int], bool]) -> None:
        self.coordinator = 0
        self._store = store
        self._sure = sure
        self._waiting: deque[_Request] = deque()
        self._request: _Request | None = None
        """It is in flight."""
        self._late: Callable[[], object] | None = None
        """Carries out the request that the store still has."""

    def submit(
        self,
        command: Any,
        on_answer: Callable[[Any, float, int], object],
        permission: Permission = always,
    ) -> None:
        """See ``RequestLine``."""
        self._waiting.append((command, on_answer, permission))
        self._next()

    def interrupt(self) -> None:
        """See ``RequestLine``."""
        if self._request is not None:
            self._fail(self._request, UNREACHABLE)

    def interrupt_ended(self) -> None:
        """See ``RequestLine``."""
        if self._request is not None and self._request[2]() is Permit.ENDED:
            self.interrupt()

    def close(self) -> None:
        """See ``RequestLine``."""
        self._waiting.clear()
        self._request = None

    def _next(self) -> None:
        if self._request is not None or not self._waiting:
            return
        self._request = request = self._waiting.popleft()
        command, _, permission = request
        store, kernel = self._store, self._store.kernel
        if isinstance(command, commands.FindCoordinator):
            found = events.CoordinatorFound(command.token)
            kernel.schedule(0.001, partial(self._answer, request, found))
            return
        assert isinstance(permission, _InSession)
        if isinstance(command, commands.CommitOffsets) and permission() is not Permit.GRANTED:
            kernel.schedule(0.0, partial(self._fail, request, UNREACHABLE))
            return
        session, rng = permission.session, kernel.rng
        sure = self._sure(session)
        wait = 0.001 + 0.004 * rng.random()
        what = rng.random() if store.troubled else 1.0
        refuse = store.troubled and rng.random() < 0.1
        self._arrive()
        if what < 0.3:
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            kernel.schedule(wait, partial(self._fail, request, code))
            return
        if what < 0.5:
            wait += 3.0 * rng.random()
        answer: list[events.Event] = []

        def arrive() -> None:
            if not answer:
                answer.append(store.carry_out(command, session, sure, refuse))

        def answered() -> None:
            self._arrive()
            self._answer(request, answer[0])

        if what >= 0.6:  # otherwise the request is lost
            self._late = arrive
            kernel.schedule(wait, arrive)
        if what < 0.7:  # the answer is lost
            kernel.schedule(wait + 1.0, partial(self._fail, request, UNREACHABLE))
        else:
            kernel.schedule(wait, answered)

    def _arrive(self) -> None:
        """The store carries out what it still has of this member."""
        late, self._late = self._late, None
        if late is not None:
            late()

    def _fail(self, request: _Request, code: int) -> None:
        self._answer(request, events.RequestFailed(request[0].token, code))

    def _answer(self, request: _Request, event: Any) -> None:
        if request is self._request:
            self._request = None
            request[1](event, 0.0, 0)
            self._next()


__all__ = ["SimKafkaOffsets", "SimOffsets"]
