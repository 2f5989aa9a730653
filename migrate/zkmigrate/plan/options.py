"""An operator's decisions: what a plan does where it cannot decide by itself. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import NamedTuple

from zkconsumer.core.common.types import TopicPartition


class OnConflict(Enum):
    """What counts when both stores hold different offsets of one partition."""

    REFUSE = "refuse"
    ZOOKEEPER = "zookeeper"
    KAFKA = "kafka"
    NEWEST = "newest"
    MIN = "min"
    MAX = "max"


class OutOfRange(Enum):
    """What happens to an offset outside of what the log holds."""

    REFUSE = "refuse"
    CLAMP = "clamp"


class MissingTopics(Enum):
    """What happens to offsets of topics and partitions that do not exist."""

    REFUSE = "refuse"
    SKIP = "skip"


class Slipped(Enum):
    """What happens to offsets that a 1.1.0 broker stored below ``offset`` (not ``offsets``)."""

    REFUSE = "refuse"
    IGNORE = "ignore"
    USE = "use"


class Skip(NamedTuple):
    """Offsets that are left as they are in both stores. Each part may be a glob."""

    group: str
    topic: str
    partition: str = "*"

    @property
    def pattern(self) -> str:
        """Which offsets of the group it means: ``TOPIC``, or ``TOPIC:PARTITION``."""
        return self.topic if self.partition == "*" else f"{self.topic}:{self.partition}"


def covers(patterns: frozenset[str], tp: TopicPartition) -> bool:
    """Whether one of the patterns, ``TOPIC`` or ``TOPIC:PARTITION`` with globs, means ``tp``."""
    name = f"{tp.topic}:{tp.partition}"
    if tp.topic in patterns or name in patterns:
        return True
    return any(fnmatchcase(name, glob) for glob in _globs(patterns))


@lru_cache(maxsize=1024)
def _globs(patterns: frozenset[str]) -> tuple[str, ...]:
    chosen = [pattern for pattern in patterns if any(one in pattern for one in "*?[")]
    return tuple(one if ":" in one else f"{one}:*" for one in chosen)


@dataclass(frozen=True, slots=True)
class Options:
    """An operator's decisions. Offsets that a member of ``skips`` means are not moved."""

    on_conflict: OnConflict = OnConflict.REFUSE
    out_of_range: OutOfRange = OutOfRange.REFUSE
    slipped: Slipped = Slipped.REFUSE
    skips: tuple[Skip, ...] = ()
    max_idle_days: int = 30
    missing_topics: MissingTopics = MissingTopics.REFUSE
