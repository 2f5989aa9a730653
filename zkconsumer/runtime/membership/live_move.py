"""LiveCoordination: both coordinations of a migratable member, its delivery gate, its offsets.

Owns which of the two leases delivery needs. Runs on the host's thread; leases are extended by the
threads that hear from the servers.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.groups import commands, events
from zkconsumer.core.groups.classic import ClassicMachine
from zkconsumer.core.groups.reactions import (
    SENT_AGAIN,
    Reaction,
    Request,
    codes_of,
    name_of,
    reaction,
)
from zkconsumer.core.migration.commands import FromGroup, NeedGroup, ToGroup
from zkconsumer.core.migration.machine import LiveMachine
from zkconsumer.core.migration.member import LiveMember
from zkconsumer.core.migration.member_scripts import MEMBERSHIP_ENDED
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
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.membership.classic import BrokerCoordination, RequestLine
from zkconsumer.runtime.membership.loop import Host, MemberPort
from zkconsumer.runtime.membership.zookeeper import ZooKeeperCoordination


class DualGate(DeliveryGate):
    """Open while the ZooKeeper session lives and, if the mode needs it, the membership.

    ``zookeeper`` and ``group`` are the two leases; each is extended and closed by its coordination.
    """

    def __init__(
        self,
        *,
        now: Callable[[], float] | None = None,
        on_change: Callable[[str], object] | None = None,
    ) -> None:
        super().__init__(now=now, on_change=on_change)
        self._both = threading.RLock()
        self._needs_group = False
        self.zookeeper = Lease(self, now)
        self.group = Lease(self, now)

    def need_group(self, needed: bool) -> None:
        """Whether the group's lease counts from now on."""
        with self._both:
            self._needs_group = needed
            self.refresh()

    def refresh(self) -> None:
        """A lease has changed."""
        with self._both:
            until = self.zookeeper.valid_until
            if self._needs_group:
                until = min(until, self.group.valid_until)
            if until < self.valid_until:
                self.close()
            if until > -math.inf:
                self.extend(until)


class Lease(DeliveryGate):
    """One of the two leases of a ``DualGate``."""

    def __init__(self, gate: DualGate, now: Callable[[], float] | None) -> None:
        super().__init__(now=now)
        self._gate = gate

    def extend(self, until: float) -> None:
        """See ``DeliveryGate``."""
        super().extend(until)
        self._gate.refresh()

    def close(self) -> None:
        """See ``DeliveryGate``."""
        super().close()
        self._gate.refresh()

    def hold(self) -> None:
        """See ``DeliveryGate``."""
        super().hold()
        self._gate.refresh()


@dataclass(slots=True)
class _Job:
    op: OffsetOp
    on_reply: Callable[[Reply], object]
    until: float
    permission: Permission
    departures: int


class LiveOffsets:
    """Reads and commits offsets in Kafka as the member that ``group`` is at that moment.

    Args:
        host: runs the member.
        group: the member on the coordinator.
        live: counts how often the member has left the coordinator's group. Positions from before
            are not stored: another member may have had the partitions in between.
        line: carries the requests.
        requests: the line that knows where the coordinator is.
    """

    def __init__(
        self,
        host: Host,
        group: ClassicMachine,
        live: LiveMachine,
        line: RequestLine,
        requests: RequestLine,
    ) -> None:
        self.committed = 0
        """Offsets stored. Host's thread."""
        self._host = host
        self._group = group
        self._live = live
        self._line = line
        self._requests = requests
        self._closed = False

    def submit(
        self, op: OffsetOp, on_reply: Callable[[Reply], object], permission: Permission
    ) -> None:
        """Carry out ``op``; call ``on_reply`` once, on the host's thread.

        ``permission`` is asked right before each attempt is sent.
        """
        until = self._host.now() + self._group.spec.session_timeout
        self._send(_Job(op, on_reply, until, permission, self._live.departures))

    def interrupt_ended(self) -> None:
        """End the attempt in progress if it is no longer permitted."""
        self._line.interrupt_ended()

    def close(self) -> None:
        """Abandon the request in progress."""
        self._closed = True
        self._line.close()

    def _send(self, job: _Job) -> None:
        if self._closed:
            return
        group, op, permit = self._group, job.op, job.permission()
        stores = isinstance(op, StoreOffsets)
        if permit is Permit.ENDED:
            self._fail(job, permit.value)
        elif stores and job.departures != self._live.departures:
            self._fail(job, MEMBERSHIP_ENDED)
        elif stores and permit is Permit.WAIT:
            self._again(job, permit.value)
        elif stores and group.generation < 0:
            self._fail(job, "not a member on the coordinator at the moment")
        else:
            self._line.coordinator = self._requests.coordinator
            self._line.submit(
                commands.CommitOffsets(0, group.member_id, group.generation, dict(op.positions))
                if isinstance(op, StoreOffsets)
                else commands.FetchOffsets(0, frozenset(op.partitions)),
                lambda event, *_sent: self._host.post(partial(self._take, job, event)),
                job.permission,
            )

    def _take(self, job: _Job, event: Any) -> None:
        op = job.op
        if isinstance(op, FetchOffsets):
            if isinstance(event, events.OffsetsFetched):
                job.on_reply(Ok(tuple(event.offsets.get(tp) for tp in op.partitions)))
            else:
                self._again(job, f"offsets in Kafka: {event.detail}")
            return
        codes = list(codes_of(event, (tp for tp, _ in op.positions)).values())
        if any(code and _passes(code) for code in codes):
            names = ", ".join(sorted({name_of(code) for code in codes if code}))
            self._again(job, f"offsets in Kafka: {names}")
            return
        self.committed += codes.count(0)
        faults = tuple(
            f"{tp}: {name_of(code)}" if code else None
            for (tp, _), code in zip(op.positions, codes, strict=True)
        )
        job.on_reply(Ok(faults))

    def _again(self, job: _Job, why: str) -> None:
        """Send it again later, unless its time has passed."""
        if self._host.now() > job.until:
            self._fail(job, why)
        else:
            self._host.after(self._group.spec.backoff, partial(self._send, job))

    def _fail(self, job: _Job, why: str) -> None:
        job.on_reply(Failed(Code.OTHER, detail=why))


def _passes(code: int) -> bool:
    """Whether a commit may succeed a moment later, perhaps in the next generation."""
    what = reaction(Request.COMMIT, code)
    return (
        what in SENT_AGAIN
        or what in (Reaction.LOST, Reaction.EXPELLED)
        or code == ErrorCode.REBALANCE_IN_PROGRESS
    )


class _ZooKeeperSide:
    """See ``MemberPort``: the member as the ZooKeeper side sees it."""

    def __init__(self, member: MemberPort[LiveMember]) -> None:
        self.machine = member.machine.rebalance
        self.data, self.observer = member.data, member.observer
        self.every, self.take, self.post = member.every, member.take, member.post
        self.commit_consumed = member.commit_consumed


class _GroupSide:
    """See ``MemberPort``: the member as the coordinator's side sees it."""

    def __init__(self, member: MemberPort[LiveMember]) -> None:
        self._member = member
        self.machine = member.machine.group
        self.data, self.observer = member.data, member.observer
        self.every = member.every

    def take(self, event: Any) -> None:
        self._member.take(FromGroup(event))

    def post(self, event: Any) -> None:
        self._member.post(FromGroup(event))

    def commit_consumed(self) -> None:
        """Commits of a migratable member are carried out by ZooKeeper's side."""


class LiveCoordination:
    """See ``Coordination``.

    Args:
        zookeeper, group: the two sides; their leases are those of ``gate``.
        offsets: commits as the member of the group; ``zookeeper`` uses it.
    """

    def __init__(
        self,
        zookeeper: ZooKeeperCoordination,
        group: BrokerCoordination,
        offsets: LiveOffsets,
        gate: DualGate,
    ) -> None:
        self.zookeeper = zookeeper
        self.group = group
        self._offsets = offsets
        self._gate = gate

    def begin(self, member: MemberPort[LiveMember]) -> None:
        """See ``Coordination``. Each side gets the member with its own machine."""
        self.zookeeper.begin(_ZooKeeperSide(member))
        self.group.begin(_GroupSide(member))

    def stamp(self) -> tuple[int, int]:
        """See ``Coordination``."""
        return self.zookeeper.stamp()

    def carry_out(self, command: Any) -> None:
        """See ``Coordination``."""
        match command:
            case ToGroup(inner):
                self.group.carry_out(inner)
            case NeedGroup(needed):
                self._gate.need_group(needed)
            case _:
                self.zookeeper.carry_out(command)

    def close(self, timeout: float) -> None:
        """See ``Coordination``."""
        self.group.close(timeout)
        self.zookeeper.close(timeout)
