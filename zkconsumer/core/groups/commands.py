"""Every output of the machine of a coordinator's member: requests, and the common commands.

Each command with a ``token`` is answered by one event that repeats it, or by ``RequestFailed``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zkconsumer.core.common.commands import CommonCommand
from zkconsumer.core.common.types import TopicPartition


@dataclass(frozen=True, slots=True)
class FindCoordinator:
    """Ask any broker for the coordinator, and close connections to the previous one.

    Answer: ``CoordinatorFound``.
    """

    token: int


@dataclass(frozen=True, slots=True)
class LoadTopics:
    """Read the number of partitions of ``topics``; ``None`` means all topics. Answer:
    ``TopicsLoaded``."""

    token: int
    topics: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class JoinGroup:
    """Request membership. ``protocols`` are strategies in order of preference, with metadata.

    Answer: ``Joined``, when all members have joined.
    """

    token: int
    member_id: str
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class SyncGroup:
    """Request the assignment. The leader's request contains the assignments of all members. Answer:
    ``Synced``."""

    token: int
    member_id: str
    generation: int
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Send a heartbeat. Answer: ``HeartbeatAnswered``."""

    token: int
    member_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    """Leave the group, so that others need not wait for the session timeout. Answer: ``Left``."""

    token: int
    member_id: str


@dataclass(frozen=True, slots=True)
class FetchOffsets:
    """Read committed offsets. Answer: ``OffsetsFetched``."""

    token: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """Store ``positions`` as a member of ``generation``. Answer: ``OffsetsCommitted``."""

    token: int
    member_id: str
    generation: int
    positions: Mapping[TopicPartition, int]


Command = (
    FindCoordinator
    | LoadTopics
    | JoinGroup
    | SyncGroup
    | Heartbeat
    | LeaveGroup
    | FetchOffsets
    | CommitOffsets
    | CommonCommand
)
