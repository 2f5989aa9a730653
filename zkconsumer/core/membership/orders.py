"""What to do, for the coordinator's member: orders that the ZooKeeper member does not give.

Orders about streams, timers, listeners and answers to users: ``zkconsumer.core.orders``.
Each order with a ``token`` is answered by one fact that repeats it, or by ``RequestFailed``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zkconsumer.core import orders as common
from zkconsumer.core.types import TopicPartition


@dataclass(frozen=True, slots=True)
class FindCoordinator:
    """Ask any broker; connections to the former coordinator are of no use any more.

    Answer: ``CoordinatorFound``.
    """

    token: int


@dataclass(frozen=True, slots=True)
class LoadTopics:
    """Read how many partitions ``topics`` have; ``None`` means all. Answer: ``TopicsLoaded``."""

    token: int
    topics: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class JoinGroup:
    """Ask to be a member; ``protocols`` are strategies with metadata, the best liked first.

    Answer: ``Joined``, when all members have joined.
    """

    token: int
    member_id: str
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class SyncGroup:
    """Ask for the assignment; the leader brings everybody's. Answer: ``Synced``."""

    token: int
    member_id: str
    generation: int
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Show that this member lives. Answer: ``HeartbeatAnswered``."""

    token: int
    member_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    """Leave, so that the others need not wait for the session timeout. Answer: ``Left``."""

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


MembershipOrder = (
    FindCoordinator
    | LoadTopics
    | JoinGroup
    | SyncGroup
    | Heartbeat
    | LeaveGroup
    | FetchOffsets
    | CommitOffsets
    | common.Forget
    | common.NotifyLost
    | common.Fail
    | common.Close
    | common.SetBrokers
    | common.StopFetching
    | common.Drop
    | common.NotifyReleasing
    | common.NotifyStarting
    | common.StartFetching
    | common.SetTimer
    | common.AnswerCommit
    | common.AnswerStart
    | common.Report
)
