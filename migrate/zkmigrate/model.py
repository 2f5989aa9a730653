"""What the mover knows of a group, and what it wants to do with it. Values only, no IO.

An offset is always the next one to read, in both stores. ``None`` means that there is none; a
negative number that a store holds means the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final, NamedTuple, Self

from zkconsumer.core.common.types import TopicPartition

_SHOWN: Final = 3


class Store(Enum):
    """Where offsets are kept."""

    ZOOKEEPER = "zookeeper"
    KAFKA = "kafka"


HeldNow = Mapping[Store, Mapping[TopicPartition, int | None]]
"""What each store holds of a group; ``None``: no offset, as a negative one means."""


class Direction(Enum):
    """From which store to which."""

    ZK_TO_KAFKA = "zk-to-kafka"
    KAFKA_TO_ZK = "kafka-to-zk"

    @property
    def source(self) -> Store:
        """The store that offsets come from."""
        return Store.ZOOKEEPER if self is Direction.ZK_TO_KAFKA else Store.KAFKA

    @property
    def target(self) -> Store:
        """The store that offsets go to."""
        return Store.KAFKA if self is Direction.ZK_TO_KAFKA else Store.ZOOKEEPER


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


@dataclass(frozen=True, slots=True)
class ZkOffset:
    """An offset znode. ``fault`` says why it cannot be read; then ``offset`` is ``None``."""

    offset: int | None
    version: int
    mzxid: int
    mtime_ms: int
    fault: str = ""


@dataclass(frozen=True, slots=True)
class KafkaOffset:
    """A committed offset. ``leader_epoch`` -1: none. ``commit_ms`` only where it was looked up."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LogRange:
    """First offset that the log holds, and the one that the next message will get."""

    earliest: int
    latest: int


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic that exists: the moment it was created (a zxid) and its partitions."""

    czxid: int
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tombstone:
    """What ``/consumers/GROUP/migration`` says: where the group's offsets were moved to, and when.

    ``values``: the offsets that the store which was left held then. ``moved_to`` is ``None`` after
    a rollback, which ended ``at_ms``.
    """

    moved_to: Store | None
    at_ms: int
    values: Mapping[TopicPartition, int]
    version: int
    data: bytes


@dataclass(frozen=True, slots=True)
class GroupState:
    """One group in both stores, as one pass of reads showed it.

    ``members``: consumer ids registered in ZooKeeper. ``owners``: partition to owner. Coordinator
    members are texts that name client and host. ``foreign``: znodes of another client's layout.
    ``faults``: what could not be found out, so that nothing can be decided. ``hidden``: all topics
    whose offsets in Kafka the brokers do not show us. ``given``: offsets from a file, which take
    the place of what the source store holds.
    """

    group: str
    members: tuple[str, ...] = ()
    owners: Mapping[TopicPartition, str] = field(default_factory=dict)
    coordinator_members: tuple[str, ...] = ()
    zk: Mapping[TopicPartition, ZkOffset] = field(default_factory=dict)
    kafka: Mapping[TopicPartition, KafkaOffset] = field(default_factory=dict)
    ranges: Mapping[TopicPartition, LogRange] = field(default_factory=dict)
    topics: Mapping[str, TopicState] = field(default_factory=dict)
    slipped: Mapping[TopicPartition, int] = field(default_factory=dict)
    foreign: tuple[str, ...] = ()
    tombstone: Tombstone | None = None
    faults: tuple[str, ...] = ()
    hidden: frozenset[str] = frozenset()
    given: Mapping[TopicPartition, int] | None = None


@dataclass(frozen=True, slots=True)
class Retention:
    """For how long the broker keeps the offsets of a group without members."""

    minutes: int
    known: bool
    """Whether the broker said so; else it is the default of its generation."""


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


class Verdict(Enum):
    """What an assessment says of a group."""

    READY = "ready"
    MOVED = "moved"
    DECIDE = "needs a decision"
    REFUSED = "refused"


class Kind(Enum):
    """What can stand in a group's way. The value is what commands print."""

    LIVE_MEMBER = "live-member"
    OWNED = "owned"
    COORDINATOR_MEMBER = "coordinator-member"
    COORDINATOR_AWAY = "coordinator-away"
    FOREIGN_LAYOUT = "foreign-layout"
    UNREADABLE = "unreadable"
    UNKNOWN = "unknown"
    BAD_NAME = "bad-name"
    NOTHING = "nothing-stored"
    HIDDEN = "hidden-offsets"
    CONFLICT = "conflict"
    WOULD_LOWER = "would-lower"
    OUT_OF_RANGE = "out-of-range"
    TOPIC_MISSING = "topic-missing"
    PARTITION_MISSING = "partition-missing"
    RECREATED = "topic-recreated"
    SLIPPED = "slipped-offsets"
    IDLE = "idle"

    @property
    def verdict(self) -> Verdict:
        """Whether an option of ``plan`` can settle it, or something outside must change first."""
        return Verdict.DECIDE if self in _DECIDABLE else Verdict.REFUSED


_DECIDABLE = frozenset(
    {
        Kind.HIDDEN,
        Kind.CONFLICT,
        Kind.WOULD_LOWER,
        Kind.OUT_OF_RANGE,
        Kind.TOPIC_MISSING,
        Kind.PARTITION_MISSING,
        Kind.RECREATED,
        Kind.SLIPPED,
        Kind.IDLE,
        Kind.UNREADABLE,
    }
)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a group is not ready: what was found, and what to do, one line each.

    ``names``: what ``text`` is about, such as partitions, all of them. ``skips``: what the operator
    may give to ``--skip``, as ``advice`` says at its end.
    """

    kind: Kind
    text: str
    advice: str
    names: tuple[str, ...] = ()
    skips: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        """What was found, with all names."""
        return self.text + ", ".join(self.names)

    @property
    def fix(self) -> str:
        """What to do, with all that may be given to ``--skip``."""
        return " ".join([self.advice, *(f"--skip {skip}" for skip in self.skips)])


class Note(str):
    """A remark that ends in a list of names. ``short`` names the first few of them only."""

    __slots__ = ("short",)
    short: str

    def __new__(cls, head: str, names: Iterable[str]) -> Self:
        """Make a remark of its beginning and all names."""
        every = list(names)
        note = super().__new__(cls, head + ", ".join(every))
        note.short = head + shown(every)
        return note


def shown(texts: Iterable[str]) -> str:
    """Return the first three texts and the number of the others."""
    every = list(texts)
    more = len(every) - _SHOWN
    return ", ".join(every[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True, slots=True)
class Entry:
    """One partition of a plan: what both stores hold, and what the target is to hold.

    ``to`` is ``None`` where the target is to hold no offset. ``write``: the target must be changed.
    ``zk_version`` is ``None`` when there is no znode.
    """

    tp: TopicPartition
    zk: int | None
    zk_version: int | None
    kafka: KafkaOffset | None
    to: int | None
    write: bool
    reason: str


class StaysBehind(NamedTuple):
    """An offset of the source store that a plan does not move. ``None``: it cannot be read."""

    tp: TopicPartition
    offset: int | None
    why: str

    def __str__(self) -> str:
        return f"{self.tp} ({'unknown' if self.offset is None else self.offset}, {self.why})"


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One group of a plan. Only a ready one is applied.

    ``topics``: when each topic was created (a zxid) whose offsets are to be written. ``skipped``:
    patterns of offsets that are left out, see ``covers``; offsets of any other partition without an
    entry came later. ``stays``: offsets that therefore stay behind in the source store.
    """

    group: str
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    entries: tuple[Entry, ...] = ()
    tombstone: bytes | None = None
    """Content of the tombstone before the move."""
    topics: Mapping[str, int] = field(default_factory=dict)
    skipped: frozenset[str] = frozenset()
    stays: tuple[StaysBehind, ...] = ()
    moved: bool = False
    """Whether the group was moved to the target before, and nothing is left to write."""

    @property
    def verdict(self) -> Verdict:
        """The hardest of the problems' verdicts."""
        verdicts = {problem.kind.verdict for problem in self.problems}
        if Verdict.REFUSED in verdicts:
            return Verdict.REFUSED
        if verdicts:
            return Verdict.DECIDE
        return Verdict.MOVED if self.moved else Verdict.READY
