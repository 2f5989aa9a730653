"""KafkaOffsets: offsets in Kafka for members in ZooKeeper and migratable members.

Owns the search for the coordinator, and the retries. It runs on the host's thread in steps, reads
no clock and never waits; a ``RequestLine`` carries the requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

from zkconsumer.core.common.error_codes import AWAY, ErrorCode
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.groups import commands, events
from zkconsumer.core.groups.reactions import UNREACHABLE, codes_of, name_of
from zkconsumer.core.zookeeper.ops import (
    Code,
    Failed,
    FetchOffsets,
    OffsetOp,
    Ok,
    Permission,
    Permit,
    Reply,
    StoreOffsets,
)
from zkconsumer.core.zookeeper.scripts.kafka_storage import MEMBERSHIP_ENDED
from zkconsumer.runtime.membership.classic import RequestLine
from zkconsumer.runtime.membership.loop import Host

BATCH: Final = 2000
"""Partitions in one commit. The coordinator stores a commit as one batch of limited size."""
_LOOK: Final = 0.05
"""Shortest time in seconds until a refused permission is checked again, because the configured
backoff may be 0."""
_NEXT_GENERATION: Final = frozenset(
    {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID}
)
"""Error codes of commits that may succeed in the next generation."""
_NOT_YET: Final = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.UNSTABLE_OFFSET_COMMIT}
)
_STAYS: Final = _NEXT_GENERATION | _NOT_YET
"""Error codes after which the coordinator is not searched again."""


class Committer(NamedTuple):
    """The identity with which offsets are committed. By default, a client that is not a member."""

    member_id: str = ""
    generation: int = -1
    """-1: not a member."""
    departures: int = 0
    """How often the member has left the coordinator's group. Positions from before are not
    stored, because other members may have owned the partitions in between."""


@dataclass(slots=True)
class _Job:
    """An operation. ``until``: latest time for an attempt, on the host's clock."""

    op: OffsetOp
    on_reply: Callable[[Reply], object]
    permission: Permission
    until: float
    departures: int
    left: dict[TopicPartition, int]
    """Positions that are neither stored nor refused."""
    faults: dict[TopicPartition, str] = field(default_factory=dict)


class KafkaOffsets:
    """Reads and commits offsets in Kafka. Each operation is repeated until it succeeds, is refused,
    or times out.

    Args:
        host: runs the member.
        line: carries only these requests.
        group: ``group.id``, for messages.
        timeout: seconds after which an operation is not retried.
        backoff: seconds between attempts.
        committer: returns the identity for each commit of a member of the coordinator's group.
    """

    def __init__(
        self,
        host: Host,
        line: RequestLine,
        group: str,
        timeout: float,
        backoff: float,
        committer: Callable[[], Committer] | None = None,
    ) -> None:
        self._host = host
        self._line = line
        self._group = group
        self._timeout = timeout
        self._backoff = backoff
        self._is_member = committer is not None
        self._committer = committer or Committer
        self._found = False
        """Whether the line knows the coordinator."""
        self._latest = math.inf
        """Latest time for attempts, except an operation's first, on the host's clock."""
        self._closed = False

    def submit(
        self, op: OffsetOp, on_reply: Callable[[Reply], object], permission: Permission
    ) -> None:
        """Carry out ``op``; call ``on_reply`` once, on the host's thread.

        ``permission`` is checked right before each attempt is sent.
        """
        until, departures = self._until(), self._committer().departures
        left = dict(op.positions) if isinstance(op, StoreOffsets) else {}
        self._send(_Job(op, on_reply, permission, until, departures, left))

    def leave(self) -> None:
        """Limit the operation in progress and the last commit to one common deadline, because the
        member is leaving."""
        self._latest = self._until()

    def interrupt_ended(self) -> None:
        """Make the attempt in flight fail if it is no longer permitted."""
        self._line.interrupt_ended()

    def close(self) -> None:
        """Abandon the operation in progress. Operations that are still queued are never sent."""
        self._closed = True
        self._line.interrupt()
        self._line.close()

    def _until(self) -> float:
        """Return the latest time for an attempt of an operation that begins now."""
        return min(self._host.now() + self._timeout, self._latest)

    def _send(self, job: _Job) -> None:
        """Send the next request of an operation, if it is permitted now."""
        if self._closed:
            return
        op, permit, committer = job.op, job.permission(), self._committer()
        commits = isinstance(op, StoreOffsets)
        request: Any
        if permit is Permit.ENDED:
            self._fail(job, permit.value)
        elif permit is Permit.OUTDATED:
            job.on_reply(Failed(Code.CONNECTION_LOSS))
        elif commits and committer.departures != job.departures:
            self._fail(job, MEMBERSHIP_ENDED)
        elif commits and permit is Permit.WAIT:
            self._again(job, permit.value, max(self._backoff, _LOOK))
        elif commits and self._is_member and committer.generation < 0:
            self._fail(job, "not a member on the coordinator at the moment")
        else:
            if not self._found:
                request = commands.FindCoordinator(0)
            elif isinstance(op, StoreOffsets):
                batch = dict(islice(job.left.items(), BATCH))
                request = commands.CommitOffsets(
                    0, committer.member_id, committer.generation, batch
                )
            else:
                request = commands.FetchOffsets(0, frozenset(op.partitions))
            self._line.submit(
                request,
                lambda event, *_sent: self._host.post(partial(self._take, job, request, event)),
                job.permission,
            )

    def _take(self, job: _Job, request: Any, event: Any) -> None:
        """Handle the answer to a request."""
        if self._closed:
            return
        if isinstance(event, events.CoordinatorFound):
            self._found = True
            self._send(job)
        elif isinstance(event, events.OffsetsFetched):
            assert isinstance(job.op, FetchOffsets)
            job.on_reply(Ok(tuple(event.offsets.get(tp) for tp in job.op.partitions)))
        elif isinstance(event, events.OffsetsCommitted):
            self._committed(job, codes_of(event, request.positions))
        elif self._passes(event.code):
            self._found = self._found and event.code in _STAYS
            self._again(job, event.detail or name_of(event.code), self._backoff)
        else:
            self._fail(job, event.detail or name_of(event.code))

    def _committed(self, job: _Job, codes: dict[TopicPartition, int]) -> None:
        again = ""
        for tp, code in codes.items():
            if self._passes(code):
                again = f"commit of {tp}: {name_of(code)}"
                self._found = self._found and code in _STAYS
                continue
            del job.left[tp]
            if code:
                job.faults[tp] = self._refusal(tp, code)
        if again:
            self._again(job, again, self._backoff)
        elif job.left:
            self._send(job)
        else:
            self._finish(job)

    def _passes(self, code: int) -> bool:
        """Whether a request with this error code may succeed when retried."""
        again = AWAY | _NOT_YET | {UNREACHABLE}
        return code in again or (self._is_member and code in _NEXT_GENERATION)

    def _refusal(self, tp: TopicPartition, code: int) -> str:
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            return (
                f"{tp}: the coordinator refuses commits to group {self._group} because consumers "
                "have joined it: stop them first"
            )
        return f"{tp}: {name_of(code)}"

    def _again(self, job: _Job, why: str, pause: float) -> None:
        """Retry after a pause, unless the deadline has passed."""
        # DEVIATION-28: the JVM searches and reads indefinitely, and retries only some commits.
        left = job.until - self._host.now()
        if left > 0:
            self._host.after(min(pause, left), partial(self._send, job))
        else:
            self._fail(
                job,
                f"the offset coordinator of group {self._group} did not answer within "
                f"{self._timeout:g} s: {why}",
            )

    def _fail(self, job: _Job, why: str) -> None:
        """End an operation without further attempts. Positions that are stored count."""
        if isinstance(job.op, StoreOffsets) and len(job.left) < len(job.op.positions):
            job.faults.update(dict.fromkeys(job.left, why))
            self._finish(job)
        else:
            job.on_reply(Failed(Code.OTHER, detail=why))

    def _finish(self, job: _Job) -> None:
        assert isinstance(job.op, StoreOffsets)
        job.on_reply(Ok(tuple(job.faults.get(tp) for tp, _ in job.op.positions)))
