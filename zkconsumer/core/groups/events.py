"""Every input of the machine of a coordinator's member: answers, and the common events.

An event that answers a command repeats its ``token``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zkconsumer.core.common.events import CommonEvent
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One member in the leader's data. ``metadata`` is its encoded subscription."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Started:
    """The member was started. It now joins its group."""


@dataclass(frozen=True, slots=True)
class CoordinatorFound:
    """A broker named the group's coordinator."""

    token: int


@dataclass(frozen=True, slots=True)
class TopicsLoaded:
    """A broker's answer: number of partitions of each requested topic that exists.

    ``errors`` has the ``ErrorCode`` of each requested topic that the broker refused to describe.
    """

    token: int
    partitions: Mapping[str, int]
    brokers: tuple[BrokerEndpoint, ...] = ()
    errors: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Joined:
    """A generation has begun. ``members`` is empty unless this member is the leader."""

    token: int
    member_id: str
    generation: int
    leader: str
    protocol: str
    members: tuple[GroupMember, ...] = ()


@dataclass(frozen=True, slots=True)
class Synced:
    """SyncGroup succeeded: the leader's assignment for this member, encoded."""

    token: int
    assignment: bytes


@dataclass(frozen=True, slots=True)
class OffsetsFetched:
    """Committed offsets; ``None`` for a partition without one."""

    token: int
    offsets: Mapping[TopicPartition, int | None]


@dataclass(frozen=True, slots=True)
class OffsetsCommitted:
    """A commit was answered: ``NONE`` if it is stored, otherwise another ``ErrorCode``."""

    token: int
    codes: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class HeartbeatAnswered:
    """A heartbeat was answered with ``code``; ``UNREACHABLE`` if there was no answer."""

    token: int
    code: int


@dataclass(frozen=True, slots=True)
class Left:
    """LeaveGroup was answered, successfully or not."""

    token: int


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A command to the brokers failed: an ``ErrorCode``, or ``UNREACHABLE``.

    ``member_id`` is the id with which to join, if the code is MEMBER_ID_REQUIRED.
    """

    token: int
    code: int
    detail: str = ""
    member_id: str = ""


@dataclass(frozen=True, slots=True)
class PollExpired:
    """The application or the listener has been busy for longer than ``max.poll.interval.ms``."""


@dataclass(frozen=True, slots=True)
class MembershipLapsed:
    """JoinGroup was answered so late that the coordinator may have removed the member in the
    meantime. In a KIP-848 group the coordinator does not refuse such a JoinGroup."""


@dataclass(frozen=True, slots=True)
class PollResumed:
    """The application, which was too slow, requests messages again."""


Event = (
    Started
    | CoordinatorFound
    | TopicsLoaded
    | Joined
    | Synced
    | OffsetsFetched
    | OffsetsCommitted
    | HeartbeatAnswered
    | Left
    | RequestFailed
    | PollExpired
    | MembershipLapsed
    | PollResumed
    | CommonEvent
)
