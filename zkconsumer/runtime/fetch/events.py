"""The events of the fetch plane, and the part of the configuration that it needs. Data only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from zkconsumer.core.common.types import TopicPartition


class FetchEventKind(Enum):
    """Events of a partition or a broker."""

    LEADER_FOUND = "leader found"
    """The partition is fetched from ``broker`` from now on."""
    LEADER_LOST = "leader lost"
    """Fetching failed; the leader finder looks for the partition's leader again."""
    OFFSET_RESET = "offset reset"
    """``auto.offset.reset`` chose the position: none was committed, or it was out of range."""
    PARTITION_FAILED = "partition failed"
    """Its bytes are damaged or a message is too large: fetching ended, the iterator will raise."""
    BROKER_FAILED = "broker failed"
    """A request to ``broker`` failed as a whole."""
    RECOVERED = "recovered"
    """The partition is fetched again after an error."""
    METADATA_FAILED = "metadata failed"
    """No broker returned the leader of the partition, or of any. The next attempt is after
    ``refresh.leader.backoff.ms``."""


@dataclass(frozen=True, slots=True)
class FetchEvent:
    """One report. ``detail`` is a line for people.

    ``replaced`` is the offset that ``OFFSET_RESET`` found out of range, ``chosen`` the new one.
    """

    kind: FetchEventKind
    partition: TopicPartition | None
    broker: int | None
    detail: str
    replaced: int | None = None
    chosen: int | None = None


OnEvent = Callable[[FetchEvent], None]
"""Called on fetch threads, without locks; must not block. Its exceptions are logged."""


class FetchConfig(Protocol):
    """The keys of the configuration that fetching uses (``ConsumerConfig`` has them)."""

    @property
    def fetch_message_max_bytes(self) -> int: ...  # noqa: D102
    @property
    def fetch_max_bytes(self) -> int: ...  # noqa: D102
    @property
    def fetch_min_bytes(self) -> int: ...  # noqa: D102
    @property
    def fetch_wait_max_ms(self) -> int: ...  # noqa: D102
    @property
    def socket_timeout_ms(self) -> int: ...  # noqa: D102
    @property
    def socket_receive_buffer_bytes(self) -> int: ...  # noqa: D102
    @property
    def num_consumer_fetchers(self) -> int: ...  # noqa: D102
    @property
    def refresh_leader_backoff_ms(self) -> int: ...  # noqa: D102
    @property
    def auto_offset_reset(self) -> str: ...  # noqa: D102
    @property
    def isolation_level(self) -> str: ...  # noqa: D102
    @property
    def profile(self) -> str: ...  # noqa: D102
