"""What happened: inputs of a member's machine, in ZooKeeper's groups and the brokers' alike.

Data, never subclassed. An event that answers a command repeats its ``token``; the machine drops
answers it no longer waits for. Offsets are always the next offset to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zkconsumer.core.common.types import TopicPartition


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer set by ``SetTimer`` ran out."""

    token: int
    name: str


@dataclass(frozen=True, slots=True)
class FetchingStopped:
    """Fetchers and streams have released the partitions; ``positions`` are their final offsets."""

    token: int
    positions: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Dropped:
    """Answer to ``Drop``: where the partitions stood when they were taken away."""

    positions: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class ListenerDone:
    """The user's rebalance listener returned, or raised (``error`` is its text)."""

    token: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class FetchingStarted:
    """Fetchers run for the partitions of the order."""

    token: int


@dataclass(frozen=True, slots=True)
class CommitRequested:
    """Commit ``positions``; the answer goes to ``request``. ``None``: an automatic commit.

    ``strict``: partitions that are not held are an error; otherwise they are passed over.
    """

    request: int | None
    positions: Mapping[TopicPartition, int]
    strict: bool = False


@dataclass(frozen=True, slots=True)
class CloseRequested:
    """The user wants the member to leave the group.

    ``in_listener``: the user's listener asks for it and waits until the member has left, so the
    member neither waits for the call under way nor calls the listener again.
    """

    in_listener: bool = False


CommonEvent = (
    TimerFired
    | FetchingStopped
    | Dropped
    | ListenerDone
    | FetchingStarted
    | CommitRequested
    | CloseRequested
)
