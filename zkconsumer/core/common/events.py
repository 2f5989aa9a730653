"""Events: the input of a member's machine, in ZooKeeper and in Kafka.

Data, never subclassed. An event that answers a command repeats its ``token``; the machine drops
answers that it no longer expects. Offsets are always the next offset to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zkconsumer.core.common.types import TopicPartition


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer set by ``SetTimer`` expired."""

    token: int
    name: str


@dataclass(frozen=True, slots=True)
class FetchingStopped:
    """Fetchers and streams have released the partitions; ``positions`` are their final offsets."""

    token: int
    positions: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Dropped:
    """Answer to ``Drop``: the positions of the partitions when they were dropped."""

    positions: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class ListenerDone:
    """The user's rebalance listener returned, or raised (``error`` is its text)."""

    token: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class FetchingStarted:
    """Fetchers are running for the partitions of the command."""

    token: int


@dataclass(frozen=True, slots=True)
class CommitRequested:
    """A commit of ``positions`` was requested, by caller ``request`` or automatically (``None``).

    ``strict``: treat partitions that are not held as an error; otherwise they are ignored.
    """

    request: int | None
    positions: Mapping[TopicPartition, int]
    strict: bool = False


@dataclass(frozen=True, slots=True)
class CommitAbandoned:
    """The caller of ``request`` no longer waits for its commit."""

    request: int


@dataclass(frozen=True, slots=True)
class CloseRequested:
    """The application has asked the member to leave the group.

    ``in_listener``: the user's listener requests it and waits until the member has left. So the
    member neither waits for the listener's current call nor calls it again.
    """

    in_listener: bool = False


CommonEvent = (
    TimerFired
    | FetchingStopped
    | Dropped
    | ListenerDone
    | FetchingStarted
    | CommitRequested
    | CommitAbandoned
    | CloseRequested
)
