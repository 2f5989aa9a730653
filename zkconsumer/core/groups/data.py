"""Data of a member on the coordinator, grouped by what changes together. No membership logic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.groups.assignors.strategies import topics_of
from zkconsumer.core.groups.events import GroupMember


class Goal(Enum):
    """The next action after the coordinator is found and the pause has ended."""

    LOAD = "join"
    SYNC = "send the same SyncGroup again"
    NAMES = "read the names of topics"
    COMMIT = "commit what is about to be released"
    OFFSETS = "read committed offsets"
    REST = "be a member"


class Purpose(Enum):
    """Why partitions are released."""

    REJOIN = "before joining again"
    SHRINK = "they are not in the new assignment"
    CLOSE = "leaving"


@dataclass(slots=True)
class Lookup:
    """Whether the coordinator is ``known``, and the search for it that is in progress, if any.

    ``token`` identifies the search; while ``paused``, no search begins. ``unproved``: since the
    last coordinator was lost, brokers have only named brokers that do not coordinate the group.
    """

    known: bool = False
    unproved: bool = False
    token: int | None = None
    paused: bool = False

    def lost(self) -> bool:
        """Record that the coordinator is unknown. Return whether that was already recorded.

        Brokers name the previous coordinator until they know that it has failed, so the second
        search waits.
        """
        self.known = False
        before, self.unproved = self.unproved, True
        return before


@dataclass(slots=True)
class Round:
    """The result of the last JoinGroup.

    ``topics`` has the number of partitions of each known topic. Only the leader has ``members``,
    and computes the ``assignments``.
    """

    leads: bool = False
    protocol: str = ""
    members: tuple[GroupMember, ...] = ()
    topics: Mapping[str, int] = field(default_factory=dict)
    assignments: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def wanted(self) -> frozenset[str]:
        """Topics to which the members subscribe."""
        return frozenset(topic for member in self.members for topic in topics_of(member))


@dataclass(slots=True)
class Release:
    """The release in progress. There is none if ``partitions`` is empty.

    ``stopped_at`` has their final positions, and ``uncommitted`` those that are not stored yet.
    ``late``: the time for the release has passed. ``fault`` is why the last commit failed.
    """

    partitions: frozenset[TopicPartition] = frozenset()
    purpose: Purpose = Purpose.REJOIN
    stopped_at: Mapping[TopicPartition, int] = field(default_factory=dict)
    uncommitted: dict[TopicPartition, int] = field(default_factory=dict)
    late: bool = False
    fault: str = ""
