"""The interface of a simulated member's data plane to its process."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.membership.classic import Progress
from zkconsumer.runtime.membership.loop import DataPort
from zkconsumer.sim.judges.invariants import Observer
from zkconsumer.sim.members.host import Habits, SimHost


class Plane(DataPort, Protocol):
    """The ``DataPort`` of a simulated member's loop, and the application that reads from it.

    A ``judged`` plane checks the rules of delivery at each step of the process. Only such planes
    need the methods from ``hold_late`` on.
    """

    judged: bool = False
    failed: str
    """Why the streams have failed; empty if they have not."""
    brokers: tuple[BrokerEndpoint, ...]
    """The registered brokers, as known to the member."""

    @abstractmethod
    def begin(self) -> None:
        """Let the application request messages from now on."""

    @property
    @abstractmethod
    def progress(self) -> tuple[Progress, ...]:
        """Return the objects that show the application's progress."""

    @property
    @abstractmethod
    def fetching(self) -> frozenset[TopicPartition]:
        """The partitions that are delivered and not about to be released."""

    @property
    @abstractmethod
    def may_deliver(self) -> bool:
        """Whether the application would receive a message now."""

    @abstractmethod
    def stall(self, seconds: float) -> None:
        """Make the application process one message for this long."""

    @abstractmethod
    def close(self, timeout: float = 0.0) -> None:
        """Implement ``DataPort.close``. Ending the process has the same effect."""

    @abstractmethod
    def deliver_late(self) -> None:
        """Deliver the message that was held back when the process was suspended."""

    # -- of judged planes

    def hold_late(self) -> None:
        """Hold back a message whose lease was checked, because the process is suspended right
        now."""
        return

    def end(self) -> None:
        """Let the application poll each stream one last time before the member ends."""
        return

    def check(self) -> None:
        """Check the rules that apply whenever the process is idle."""
        return

    def resets(self) -> int:
        """Number of positions that ``auto.offset.reset`` has chosen in the group."""
        return 0

    def check_stored(self, positions: Mapping[TopicPartition, int]) -> None:
        """Check that ``positions`` are stored, because their commit was confirmed."""
        return


class PlaneOwner(Protocol):
    """The process to which a data plane belongs; see ``SimProcess``."""

    host: SimHost
    gate: DeliveryGate
    observer: Observer | None
    habits: Habits

    @property
    def session(self) -> int:
        """The observer's number for the member; 0 if it is not a member."""


class Source(Protocol):
    """The topics and their records, as members read them."""

    topics: dict[str, int]
    """Number of partitions of each existing topic."""

    def plane(self, member: Any) -> Plane:
        """Return the data plane of ``member``, a ``SimProcess``."""

    def add_partitions(self, topic: str, count: int) -> None:
        """Create a topic, or give it more partitions."""

    def delete_topic(self, topic: str) -> bool:
        """Delete a topic; return false if it does not exist."""
