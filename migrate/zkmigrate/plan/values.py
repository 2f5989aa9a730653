"""The parts of a plan: groups, their partitions, and their problems. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from zkconsumer.core.common.types import TopicPartition
from zkmigrate.model import Direction, KafkaOffset, number
from zkmigrate.reasons import Reason


class Verdict(Enum):
    """Whether a group is ready to be moved."""

    READY = "ready"
    MOVED = "moved"
    IGNORED = "ignored"
    DECIDE = "needs a decision"
    REFUSED = "refused"


_DECIDABLE = frozenset(
    {
        Reason.HIDDEN,
        Reason.CONFLICT,
        Reason.WOULD_LOWER,
        Reason.OUT_OF_RANGE,
        Reason.TOPIC_MISSING,
        Reason.PARTITION_MISSING,
        Reason.RECREATED,
        Reason.UNPROVEN,
        Reason.MISPLACED,
        Reason.NO_OFFSET,
        Reason.EXPIRED,
        Reason.OTHER_ZNODES,
        Reason.IDLE,
        Reason.UNREADABLE,
        Reason.NOT_PROVEN,
    }
)
"""Problems that an option of ``plan`` can solve. For others, another change is needed first."""


LIVE = frozenset({Reason.LIVE_MEMBER, Reason.OWNED, Reason.COORDINATOR_MEMBER})
"""Problems that disappear when the group's members have stopped."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a group is not ready, and what to do about it. Each text is one line.

    ``names``: the partitions or other things to which ``text`` applies. ``skips``: the values for
    ``--skip``, which follow ``advice``.
    """

    kind: Reason
    text: str
    advice: str
    names: tuple[str, ...] = ()
    skips: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        """The problem as text, with all names."""
        return self.text + ", ".join(self.names)

    @property
    def verdict(self) -> Verdict:
        """``DECIDE`` if an option of ``plan`` can solve the problem, otherwise ``REFUSED``."""
        return Verdict.DECIDE if self.kind in _DECIDABLE else Verdict.REFUSED

    @property
    def fix(self) -> str:
        """The fix as text, with all values for ``--skip``."""
        return " ".join([self.advice, *(f"--skip {skip}" for skip in self.skips)])


class There(NamedTuple):
    """An offset in another cluster, and how it was proven; see ``Translation``.

    ``topic_id``: the topic's id in the other cluster; empty if it has none. ``highest``: the
    highest offset that is possible.
    """

    topic: str
    topic_id: str
    offset: int
    highest: int
    proof: str
    compared: int
    why: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One partition in a plan: its offsets in both stores, and the offset that the target will
    have.

    ``to``: ``None`` if the target will have no offset. ``write``: whether the target must be
    changed. ``zk_version``: the offset znode's version; ``None`` if there is no znode. ``decided``:
    the kinds of problems that the operator's decisions solved for this partition.
    """

    tp: TopicPartition
    zk: int | None
    zk_version: int | None
    kafka: KafkaOffset | None
    to: int | None
    write: bool
    reason: str
    decided: frozenset[Reason] = frozenset()
    misplaced: int | None = None
    """In moves to Kafka: the offset that a 1.1.0 broker stored below ``offset``."""
    there: There | None = None
    """In a plan for another cluster: the value of ``to`` in that cluster."""

    @property
    def in_zookeeper(self) -> int | None:
        """The offset in ZooKeeper that is moved: the one in ``offsets`` or, if there is none, the
        one in ``offset``."""
        return self.misplaced if self.zk is None and self.to is not None else self.zk


class StaysBehind(NamedTuple):
    """An offset that a plan does not move from the source store. ``offset``: ``None`` if it cannot
    be read. ``why``: the kind of problem, or the option, that left it behind."""

    tp: TopicPartition
    offset: int | None
    why: str

    @property
    def document(self) -> dict[str, object]:
        """Return the offset as an object for plans and JSON."""
        return {**self.tp._asdict(), "offset": self.offset, "why": self.why}

    def __str__(self) -> str:
        return f"{self.tp} ({'unknown' if self.offset is None else self.offset}, {self.why})"


class ReadAs(NamedTuple):
    """The numbers that a plan has read in another client's layout. ``place``: a text for
    ``Place.parse``."""

    place: str
    numbers: Mapping[TopicPartition, int]


class Origin(NamedTuple):
    """A group's name and offsets in another cluster, from which a plan was made."""

    group: str
    numbers: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The plan of one group. It is only applied if it is ready.

    ``topics``: the zxid of the creation of each topic whose offsets will be written. ``skipped``:
    patterns of offsets that the plan leaves out, see ``covers``. A partition that matches no
    pattern and has no entry got its offset after the plan was made. ``stays``: the offsets that the
    plan leaves behind in the source store.
    """

    group: str
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    entries: tuple[Entry, ...] = ()
    marker: bytes | None = None
    """Content of the migration marker before the move."""
    topics: Mapping[str, int] = field(default_factory=dict)
    skipped: frozenset[str] = frozenset()
    stays: tuple[StaysBehind, ...] = ()
    made_ms: int | None = None
    """When this group was planned, if later than the whole plan."""
    moved: bool = False
    """Whether the group was moved to the target before, so that nothing is left to write."""
    kafka_group: str = ""
    """The group's name in Kafka, if different."""
    ignored: str = ""
    """Why an operator decided to leave the group as it is."""
    znodes: tuple[str, ...] = ()
    """Znodes of an unknown kind that an operator decided to leave as they are."""
    other_client: str = ""
    """The migration marker's record about the old client's numbers; see ``MigrationMarker``."""
    layout: ReadAs | None = None
    """The other client's layout whose offsets replace the group's own."""
    origin: Origin | None = None
    """The other cluster whose offsets replace the group's own."""

    @property
    def in_kafka(self) -> str:
        """The group's name in Kafka."""
        return self.kafka_group or self.group

    @property
    def verdict(self) -> Verdict:
        """The strictest verdict of the problems."""
        if self.ignored:
            return Verdict.IGNORED
        verdicts = {problem.verdict for problem in self.problems}
        if Verdict.REFUSED in verdicts:
            return Verdict.REFUSED
        if verdicts:
            return Verdict.DECIDE
        return Verdict.MOVED if self.moved else Verdict.READY

    def decisions(self) -> set[tuple[str, str]]:
        """Return the topic and kind of each problem that the operator's decisions solved."""
        solved = {(entry.tp.topic, kind.value) for entry in self.entries for kind in entry.decided}
        return solved | {(one.tp.topic, one.why) for one in self.stays}

    def source_offsets(self, direction: Direction) -> dict[TopicPartition, int]:
        """Return the source store's offsets, for the migration marker."""
        held = {
            entry.tp: entry.in_zookeeper
            if direction is Direction.ZK_TO_KAFKA
            else number(entry.kafka)
            for entry in self.entries
        }
        return {tp: offset for tp, offset in held.items() if offset is not None}

    def kept(self, direction: Direction) -> dict[TopicPartition, int]:
        """Return the target's offsets that will differ from the source's after the move, for the
        marker."""
        source = self.source_offsets(direction)
        planned = {entry.tp: entry.to for entry in self.entries}
        return {tp: to for tp, to in planned.items() if to is not None and to != source.get(tp)}

    def misplaced(self) -> dict[TopicPartition, int]:
        """Return the offsets in ``/consumers/GROUP/offset``, for the migration marker."""
        offsets = {entry.tp: entry.misplaced for entry in self.entries}
        return {tp: offset for tp, offset in offsets.items() if offset is not None}
