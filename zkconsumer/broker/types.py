"""Requests and answers of fetching, and the methods of a connection that logins need.

No behaviour: simulated brokers use these, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.errors import BrokerError

QUICK_S: Final = 2.0
"""Seconds for opening a connection to a broker if another one can be asked instead."""


class Want(NamedTuple):
    """One partition in a fetch request. ``max_bytes`` limits its record bytes."""

    topic: str
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int = -1
    """The known epoch of the leader; -1 if brokers have none (before 2.1)."""


class EpochEnd(NamedTuple):
    """The latest leader epoch of a log up to the requested one, and the offset at which it ends in
    that log; -1 and -1 if there is none."""

    epoch: int
    offset: int


EpochEnds = Mapping[TopicPartition, EpochEnd | BrokerError | None]
AbortedTransaction = tuple[int, int]
"""Producer id, and offset of the transaction's first record, which may precede the answer."""


class Got(NamedTuple):
    """One partition in a fetch answer."""

    topic: str
    partition: int
    error: BrokerError | None
    """``OffsetOutOfRangeError``, ``LeaderUnavailableError``, or another error from the broker."""
    high_watermark: int
    data: bytes
    last_stable_offset: int | None = None
    """Where reading ends with ``read_committed``; ``None`` with ``read_uncommitted``."""
    aborted: Sequence[AbortedTransaction] = ()
    """With ``read_committed``, the aborted transactions that overlap ``data``."""


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """A broker's answer about the requested topics."""

    brokers: Mapping[int, BrokerEndpoint]
    leaders: Mapping[TopicPartition, int]
    """Broker id of each partition that has a leader."""
    errors: Mapping[str, BrokerError]
    """Topics with an error from the broker, such as topics that do not exist."""
    hidden: frozenset[str] = frozenset()
    """Topics that this client may not describe; brokers before 1.0 report them as missing."""
    absent: frozenset[str] = frozenset()
    """Topics that do not exist, according to a broker."""
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The leaders' epochs; empty if brokers have none (before 2.1)."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """The topics' ids; empty if brokers have none (before 2.8)."""


class OpenConnection(Protocol):
    """The methods of ``BrokerConnection`` that are usable while it is being opened."""

    endpoint: BrokerEndpoint

    @property
    def here(self) -> BrokerEndpoint:
        """The address of the broker's listener that this connection uses."""

    def highest(self, api_key: int) -> int:
        """Return the highest version of a request that the broker supports, or -1."""

    def exchange(self, api_key: int, version: int, body: bytes) -> memoryview:
        """Send a request and return the answer."""

    def exchange_bytes(self, data: bytes, answered: bool) -> bytes:
        """Send SASL bytes, preceded only by their length, and return the answer."""

    def decode(self, response: Any, answer: memoryview, version: int) -> Any:
        """Decode an answer with kafka-python."""


class TokenRefusedError(Exception):
    """A token or ticket is unavailable or was refused. A newer one may be accepted."""
