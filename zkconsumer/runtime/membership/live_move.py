"""LiveCoordination: both coordinations of a migratable member, and its delivery gate. It decides
which of the two leases delivery requires. Runs on the host's thread; leases are extended by the
threads that receive the servers' answers."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

from zkconsumer.core.migration.commands import FromGroup, NeedGroup, ToGroup
from zkconsumer.core.migration.member import LiveMember
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.membership.classic import BrokerCoordination
from zkconsumer.runtime.membership.kafka_offsets import Committer, KafkaOffsets
from zkconsumer.runtime.membership.loop import MemberPort
from zkconsumer.runtime.membership.zookeeper import ZooKeeperCoordination


class DualGate(DeliveryGate):
    """A delivery gate that is open while the required leases are valid.

    The lease of the ZooKeeper session is always required, the lease of the group membership only in
    some modes. ``zookeeper`` and ``group`` are the two leases; each is extended and closed by its
    coordination.
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
        """Set whether the group's lease is required."""
        with self._both:
            self._needs_group = needed
            self.refresh()

    def refresh(self) -> None:
        """Update the gate after a lease has changed."""
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
        """Implement ``DeliveryGate.extend``."""
        super().extend(until)
        self._gate.refresh()

    def close(self) -> None:
        """Implement ``DeliveryGate.close``."""
        super().close()
        self._gate.refresh()

    def hold(self) -> None:
        """Implement ``DeliveryGate.hold``."""
        super().hold()
        self._gate.refresh()


def committer(member: LiveMember) -> Committer:
    """Return the identity with which a migratable member commits offsets in Kafka now."""
    group = member.group
    return Committer(group.member_id, group.generation, member.live.departures)


class _ZooKeeperSide:
    """See ``MemberPort``: the view of the member for the ZooKeeper side."""

    def __init__(self, member: MemberPort[LiveMember]) -> None:
        self.machine = member.machine.rebalance
        self.data, self.observer = member.data, member.observer
        self.every, self.take, self.post = member.every, member.take, member.post
        self.commit_consumed = member.commit_consumed


class _GroupSide:
    """See ``MemberPort``: the view of the member for the coordinator's side."""

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
        """Do nothing: the ZooKeeper side commits for a migratable member."""


class LiveCoordination:
    """A ``Coordination`` with two sides: ZooKeeper and the coordinator.

    Args:
        zookeeper, group: the two sides; each keeps its lease of ``gate``.
        offsets: used by ``zookeeper``; commits with the identity of the member of ``group``.
    """

    def __init__(
        self,
        zookeeper: ZooKeeperCoordination,
        group: BrokerCoordination,
        offsets: KafkaOffsets,
        gate: DualGate,
    ) -> None:
        self.zookeeper = zookeeper
        self.group = group
        self._offsets = offsets
        self._gate = gate

    def begin(self, member: MemberPort[LiveMember]) -> None:
        """Implement ``Coordination.begin``. Each side gets the member with its own machine."""
        self.zookeeper.begin(_ZooKeeperSide(member))
        self.group.begin(_GroupSide(member))

    def stamp(self) -> tuple[int, int]:
        """Implement ``Coordination.stamp``."""
        return self.zookeeper.stamp()

    def carry_out(self, command: Any) -> None:
        """Implement ``Coordination.carry_out``."""
        match command:
            case ToGroup(inner):
                self.group.carry_out(inner)
            case NeedGroup(needed):
                self._gate.need_group(needed)
            case _:
                self.zookeeper.carry_out(command)

    def close(self, timeout: float) -> None:
        """Implement ``Coordination.close``."""
        self.group.close(timeout)
        self.zookeeper.close(timeout)
