"""Data and ports that the parts of fetching share: requests, waits and events.

Workers and the leader finder choose requests to brokers and waits, and report events.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from zkconsumer.broker.types import ClusterMetadata, EpochEnds, Got, Want
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.errors import BrokerError
from zkconsumer.runtime.delivery.chunks import PartitionTopicInfo
from zkconsumer.runtime.fetch.table import PartitionFetchState


class BrokerPort(Protocol):
    """Access to the brokers for one worker or the leader finder. Calls may block.

    Every call raises ``BrokerUnavailableError`` when there is no connection or it was lost, and
    ``BrokerError`` when the broker refused the request or its answer cannot be read.
    """

    def fetch(self, request: FetchRequest) -> Sequence[Got]:
        """Return records of the partitions in ``request``."""
        ...

    def list_offsets(self, request: OffsetsRequest) -> Mapping[TopicPartition, int | BrokerError]:
        """Return the start or end of the log of every partition in ``request``, or an error."""
        ...

    def epoch_ends(self, request: EpochsRequest) -> EpochEnds:
        """Return, for each partition, where the last epoch that was read ends in the leader's log;
        ``None`` if the leader does not know that epoch."""
        ...

    def metadata(self, request: LeadersRequest) -> ClusterMetadata:
        """Return the leaders of the topics in ``request``."""
        ...


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """Fetch records from one broker."""

    endpoint: BrokerEndpoint
    states: Mapping[tuple[str, int], PartitionFetchState]
    """The partitions, by topic and number."""
    wanted: Sequence[Want]
    max_wait_ms: int
    """How long the broker may wait for ``min_bytes``."""
    min_bytes: int
    max_bytes: int
    """Limit of the whole answer."""

    def ask(self, broker: BrokerPort) -> Sequence[Got]:
        """Send this request to ``broker``."""
        return broker.fetch(self)


@dataclass(frozen=True, slots=True)
class OffsetsRequest:
    """Ask one broker for the positions of ``auto.offset.reset``."""

    endpoint: BrokerEndpoint
    states: Mapping[TopicPartition, PartitionFetchState]
    earliest: bool
    """Whether to return the start of the log; otherwise its end."""

    def ask(self, broker: BrokerPort) -> Mapping[TopicPartition, int | BrokerError]:
        """Send this request to ``broker``."""
        return broker.list_offsets(self)


@dataclass(frozen=True, slots=True)
class EpochsRequest:
    """Ask a new leader whether positions are in its log."""

    endpoint: BrokerEndpoint
    states: Mapping[TopicPartition, PartitionFetchState]

    def ask(self, broker: BrokerPort) -> EpochEnds:
        """Send this request to ``broker``."""
        return broker.epoch_ends(self)


WorkerRequest = FetchRequest | OffsetsRequest | EpochsRequest


@dataclass(frozen=True, slots=True)
class LeadersRequest:
    """Ask one broker which brokers lead partitions. ``check``: these partitions are being fetched,
    perhaps from the wrong broker. ``quick``: use a short timeout, because other brokers can be
    asked."""

    endpoint: BrokerEndpoint
    infos: Collection[PartitionTopicInfo]
    check: bool = False
    quick: bool = False

    @property
    def topics(self) -> set[str]:
        """The topics of these partitions."""
        return {info.topic for info in self.infos}

    def ask(self, broker: BrokerPort) -> ClusterMetadata:
        """Send this request to ``broker``."""
        return broker.metadata(self)


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until woken, or for ``seconds``, then choose again. There is no request to send."""

    seconds: float | None
    """``None``: only when woken."""


@dataclass(frozen=True, slots=True)
class Retire:
    """End the worker, which has been idle for a long time, unless the table has work for it."""


class FetchEventKind(Enum):
    """Events of a partition or a broker."""

    LEADER_FOUND = "leader found"
    """The partition is fetched from ``broker`` from now on."""
    LEADER_LOST = "leader lost"
    """Fetching failed; the leader finder looks for the partition's leader again."""
    OFFSET_RESET = "offset reset"
    """``auto.offset.reset`` chose the position: none was committed, or it was out of range."""
    LOG_CHANGED = "log changed"
    """The position is no longer in the log: it was truncated, or the topic was recreated."""
    PARTITION_FAILED = "partition failed"
    """Its bytes are damaged or a message is too large: fetching ended, the iterator will raise."""
    BROKER_FAILED = "broker failed"
    """A request to ``broker`` failed for all partitions."""
    RECOVERED = "recovered"
    """The partition is fetched again after an error."""
    METADATA_FAILED = "metadata failed"
    """No broker returned the leader of the partition, or no broker answered. The next attempt is
    after ``refresh.leader.backoff.ms``."""


@dataclass(frozen=True, slots=True)
class FetchEvent:
    """An event of a partition or a broker. ``detail``: one line of text. ``replaced`` is the offset
    that ``OFFSET_RESET`` or ``LOG_CHANGED`` found invalid, ``chosen`` the new one."""

    kind: FetchEventKind
    partition: TopicPartition | None
    broker: int | None
    detail: str
    replaced: int | None = None
    chosen: int | None = None


OnEvent = Callable[[FetchEvent], None]
"""Called on fetch threads, without locks; must not block. Its exceptions are logged."""
