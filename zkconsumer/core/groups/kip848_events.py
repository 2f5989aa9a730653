"""Every input of the machine of a KIP-848 member: answers, and the common events.

An event that answers a command repeats its ``token``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zkconsumer.core.common.events import CommonEvent
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.core.groups.events import (
    CoordinatorFound,
    Left,
    OffsetsCommitted,
    OffsetsFetched,
    PollExpired,
    PollResumed,
    RequestFailed,
    Started,
    TopicsLoaded,
)


@dataclass(frozen=True, slots=True)
class MemberHeartbeatAnswered:
    """A heartbeat was answered with ``code``; ``UNREACHABLE`` when there was no answer.

    ``epoch``: the member's epoch from now on. ``interval``: seconds until the next heartbeat.
    ``assignment``: partitions by topic id; ``None``: as before.
    """

    token: int
    code: int
    detail: str = ""
    epoch: int = -1
    interval: float = 0.0
    assignment: Mapping[str, tuple[int, ...]] | None = None


@dataclass(frozen=True, slots=True)
class TopicNamesRead:
    """A broker's answer: the name of each requested id that exists."""

    token: int
    names: Mapping[str, str]
    brokers: tuple[BrokerEndpoint, ...] = ()


Event = (
    Started
    | CoordinatorFound
    | MemberHeartbeatAnswered
    | TopicNamesRead
    | TopicsLoaded
    | OffsetsFetched
    | OffsetsCommitted
    | Left
    | RequestFailed
    | PollExpired
    | PollResumed
    | CommonEvent
)
