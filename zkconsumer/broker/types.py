"""Requests and answers of fetching. Data only: simulated brokers use them too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.errors import BrokerError


class Want(NamedTuple):
    """One partition in a fetch request. ``max_bytes`` limits its record bytes."""

    topic: str
    partition: int
    offset: int
    max_bytes: int


class Got(NamedTuple):
    """One partition in a fetch answer."""

    topic: str
    partition: int
    error: BrokerError | None
    """``OffsetOutOfRangeError``, ``LeaderUnavailableError``, or another error from the broker."""
    high_watermark: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """A broker's answer about the requested topics."""

    brokers: Mapping[int, BrokerEndpoint]
    leaders: Mapping[TopicPartition, int]
    """Broker id of each partition that has a leader."""
    errors: Mapping[str, BrokerError]
    """Topics with an error from the broker, such as topics that do not exist."""
    hidden: frozenset[str] = frozenset()
    """The topics that may not be described. Brokers before 1.0 answer that they do not exist."""
    absent: frozenset[str] = frozenset()
    """The topics of which a broker answered that there is no topic of that name."""
