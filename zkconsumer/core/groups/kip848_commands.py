"""Every output of the machine of a KIP-848 member: requests, and the common commands.

Each command with a ``token`` is answered by one event that repeats it, or by ``RequestFailed``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zkconsumer.core.common.commands import CommonCommand
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.groups.commands import (
    CommitOffsets,
    FindCoordinator,
    LeaveGroup,
    LoadTopics,
)


@dataclass(frozen=True, slots=True)
class MemberHeartbeat:
    """Join (``epoch`` 0), acknowledge, or remain a member. Answer: ``MemberHeartbeatAnswered``.

    ``owned``: partitions by topic id that the member has or may begin to use; ``None``: as in the
    last heartbeat that was answered. ``full``: also send the subscription, and request the whole
    assignment; always with ``owned``.
    """

    token: int
    member_id: str
    epoch: int
    full: bool
    owned: Mapping[str, tuple[int, ...]] | None


@dataclass(frozen=True, slots=True)
class ReadTopicNames:
    """Read the names of topics by id. Answer: ``TopicNamesRead``."""

    token: int
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FetchMemberOffsets:
    """Read committed offsets as a member with this ``epoch``. Answer: ``OffsetsFetched``."""

    token: int
    member_id: str
    epoch: int
    partitions: frozenset[TopicPartition]


Command = (
    FindCoordinator
    | MemberHeartbeat
    | ReadTopicNames
    | LoadTopics
    | FetchMemberOffsets
    | CommitOffsets
    | LeaveGroup
    | CommonCommand
)
