"""The content of both stores for a group. Values only, no IO.

An offset is always the next one to read, in both stores. ``None`` means that there is none. A
negative number in a store means the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.migration.modes import Mode


class Store(Enum):
    """A place in which offsets are stored."""

    ZOOKEEPER = "zookeeper"
    KAFKA = "kafka"

    @property
    def other(self) -> Store:
        """The other store."""
        return Store.KAFKA if self is Store.ZOOKEEPER else Store.ZOOKEEPER


STOPPED: Final = "stopped"
"""Value in a group's record: the group is mirrored, but nothing is copied until an operator
decides."""


class Direction(Enum):
    """The direction of a move: from one store to the other."""

    ZK_TO_KAFKA = "zk-to-kafka"
    KAFKA_TO_ZK = "kafka-to-zk"

    @property
    def source(self) -> Store:
        """The store from which offsets are moved."""
        return Store.ZOOKEEPER if self is Direction.ZK_TO_KAFKA else Store.KAFKA

    @property
    def target(self) -> Store:
        """The store to which offsets are moved."""
        return self.source.other


@dataclass(frozen=True, slots=True)
class ZkOffset:
    """An offset znode. If it is unreadable, ``offset`` is ``None`` and ``fault`` is the reason."""

    offset: int | None
    version: int
    mzxid: int
    mtime_ms: int
    fault: str = ""


@dataclass(frozen=True, slots=True)
class KafkaOffset:
    """An offset committed to Kafka. ``leader_epoch`` is -1 if none was committed. ``commit_ms``:
    the time of the commit, if it was looked up."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LogRange:
    """The first offset in a log, and the offset of the next message that will be written."""

    earliest: int
    latest: int


class Log(Enum):
    """Whether a topic on the brokers is the topic that ZooKeeper has under the same name."""

    SAME = "same"
    OTHER = "other"
    """The brokers' topic has another id, because it was recreated."""
    UNPROVEN = "unproven"
    """ZooKeeper has no id for the topic, and the cluster no longer uses ZooKeeper."""


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic that exists, and its partitions.

    ``czxid``: the zxid of its creation; if ``log`` is not ``SAME``, a number derived from the
    topic's id.
    """

    czxid: int
    partitions: tuple[int, ...]
    log: Log = Log.SAME

    @property
    def identity(self) -> str:
        """A text that changes when the topic is recreated; empty if a recreation cannot be
        detected."""
        return "" if self.log is Log.UNPROVEN else str(self.czxid)

    def is_younger_than(self, offset: ZkOffset) -> bool:
        """Whether the topic was created after an offset in ZooKeeper was stored."""
        return self.log is Log.OTHER or (self.log is Log.SAME and offset.mzxid < self.czxid)


@dataclass(frozen=True, slots=True)
class MigrationMarker:
    """The content of ``/consumers/GROUP/migration``: to which store a group was moved, and when.

    ``moved_to``: ``None`` if the move was rolled back. ``at_ms``: when the marker was written, by
    ZooKeeper's clock. ``values``: the offsets that were moved. ``left``: offsets that the plan left
    behind in the source store. ``misplaced``: offsets that were in ``/consumers/GROUP/offset``,
    where 1.1.0 brokers store them, when the group was moved to Kafka. ``kept``: the offsets in the
    target that differed from ``values`` after the move, for example because of a decision.
    ``kafka_group``: the group's name in Kafka, if different.

    ``other_client``: set if the group's old client might not be able to use Kafka's offsets in
    ``/consumers/GROUP/offsets``. ``last``: the client stores the last record read, not the next
    one. ``file``: the offsets were moved from a file, and the group had none in ZooKeeper.
    Otherwise the name of the client's znode layout.
    """

    moved_to: Store | None
    at_ms: int
    values: Mapping[TopicPartition, int]
    data: bytes
    kafka_group: str = ""
    left: Mapping[TopicPartition, int] = field(default_factory=dict)
    misplaced: Mapping[TopicPartition, int] = field(default_factory=dict)
    kept: Mapping[TopicPartition, int] = field(default_factory=dict)
    other_client: str = ""

    @property
    def in_target(self) -> Mapping[TopicPartition, int]:
        """The offsets in the target store after the move."""
        return {**self.values, **self.kept}


class Stage(Enum):
    """The progress of a group's last change."""

    NONE = ""
    BEGUN = "begun"
    UNDOING = "undoing"
    DONE = "done"
    UNDONE = "undone"


@dataclass(frozen=True, slots=True)
class Record:
    """The record of a group's last change, which is stored in ZooKeeper.

    ``version``: the znode's version; -1 if there is no record. ``id``: identifies the last write.
    ``by``: the operator, as ``user@host``. ``plan``: the plan's digest. ``mode``: the mode of a
    live move. ``locked``: whether old consumers must be kept out. ``claim``: the name under which
    the change claimed the group. ``late``: partitions in Kafka where a command may have overwritten
    newer offsets. ``late_more``: number of such partitions that did not fit. ``by_undo``: whether
    ``undo`` made the change. ``undoes``: the digest of the plan that ``undo`` reversed.
    ``commits``: the end of the coordinator's log when a change to Kafka began; -1 if unknown.
    ``mirror``: the store that leads in a mirrored group, or ``STOPPED``. ``kafka_group``: the
    group's name in Kafka, if different. ``to_cluster``: the id of another cluster for which a
    cut-over has locked the group. ``handed_over``: whether that cut-over is complete.
    """

    version: int = -1
    id: str = ""
    by: str = ""
    command: str = ""
    plan: str = ""
    at_ms: int = 0
    mode: str = ""
    locked: bool = False
    moved_to: str | None = None
    stage: Stage = Stage.NONE
    claim: str = ""
    late: tuple[TopicPartition, ...] = ()
    late_more: int = 0
    by_undo: bool = False
    undoes: str = ""
    commits: int = -1
    mirror: str = ""
    kafka_group: str = ""
    to_cluster: str = ""
    handed_over: bool = False

    @property
    def interrupted(self) -> bool:
        """Whether a change has begun and is not finished."""
        return self.stage in (Stage.BEGUN, Stage.UNDOING)

    @property
    def of_plan(self) -> str:
        """Digest of the plan that made the last change, or that ``undo`` reversed by copying
        back."""
        return self.plan or self.undoes

    @property
    def mirror_leads(self) -> Store | None:
        """The store from which the mirror copies offsets; ``None`` if it copies none."""
        return None if self.mirror in ("", STOPPED) else Store(self.mirror)

    @property
    def cut_over_waits(self) -> bool:
        """Whether a cut-over has locked old members out, but ZooKeeper still leads."""
        return self.locked and self.mirror_leads is Store.ZOOKEEPER

    @property
    def taken_back(self) -> bool:
        """Whether ``undo`` has reversed a change of the group, which has not been moved since."""
        return self.by_undo and self.stage in (Stage.DONE, Stage.UNDONE)

    @property
    def copies_back(self) -> bool:
        """Whether ``undo`` has begun to copy offsets back to ZooKeeper and has not finished."""
        return self.stage is Stage.BEGUN and not self.plan

    @property
    def in_doubt(self) -> bool:
        """Whether a command may have overwritten newer offsets in Kafka."""
        return bool(self.late or self.late_more)


@dataclass(frozen=True, slots=True)
class Mirror:
    """The state that both stores of a mirrored group agreed on. It is stored in the mirror's znode.

    ``leader``: the store whose offsets are copied to the other. ``since_ms``: when it became the
    leader. ``values``: the offsets that both stores had when they were last compared. ``topics``:
    the zxid at which each topic was created. ``stopped``: why nothing is copied, as a reason's
    value and a sentence. ``version``: the znode's version; -1 if there is none.
    """

    leader: Store
    since_ms: int = 0
    values: Mapping[TopicPartition, int] = field(default_factory=dict)
    topics: Mapping[str, int] = field(default_factory=dict)
    stopped: tuple[str, str] | None = None
    version: int = -1


@dataclass(frozen=True, slots=True)
class Before:
    """The state of a group before a change, and the offsets that the change writes.

    ``target``: the store that the change writes to. ``to``: the offsets written. ``zk`` and
    ``kafka``: the offsets in each store before the change. ``marker``: the migration marker before
    the change. ``skipped``: patterns of offsets that the change does not touch. ``locked``: whether
    the group was locked. ``earlier``: the encoded state before the previous change.
    ``earlier_plan``: the plan of that change.
    """

    target: Store
    kafka_group: str
    marker: bytes | None
    locked: bool
    skipped: frozenset[str]
    zk: Mapping[TopicPartition, KafkaOffset | None]
    kafka: Mapping[TopicPartition, KafkaOffset | None]
    to: Mapping[TopicPartition, KafkaOffset | None]
    earlier: bytes = b""
    earlier_plan: str = ""


@dataclass(frozen=True, slots=True)
class GroupState:
    """The state of one group in both stores, read in one pass.

    ``members``: consumer ids registered in ZooKeeper. ``owners``: the owner of each partition.
    ``coordinator_members``: the client and host of each member in Kafka. ``foreign``: znodes in
    another client's layout. ``faults``: data that could not be read; if there is any, the group is
    not changed. ``hidden``: topics whose offsets in Kafka the brokers do not show to this user.
    ``from_file``: offsets from a file or a layout, which replace those of the source store.
    """

    group: str
    members: tuple[str, ...] = ()
    owners: Mapping[TopicPartition, str] = field(default_factory=dict)
    coordinator_members: tuple[str, ...] = ()
    zk: Mapping[TopicPartition, ZkOffset] = field(default_factory=dict)
    kafka: Mapping[TopicPartition, KafkaOffset] = field(default_factory=dict)
    ranges: Mapping[TopicPartition, LogRange] = field(default_factory=dict)
    topics: Mapping[str, TopicState] = field(default_factory=dict)
    misplaced: Mapping[TopicPartition, int] = field(default_factory=dict)
    foreign: tuple[str, ...] = ()
    marker: MigrationMarker | None = None
    faults: tuple[str, ...] = ()
    hidden: frozenset[str] = frozenset()
    from_file: Mapping[TopicPartition, int] | None = None
    layout: str = ""
    """The layout from which ``from_file`` was read, if not from a file."""
    layout_zk: Mapping[TopicPartition, ZkOffset] = field(default_factory=dict)
    """The content of the layout's znodes."""
    kafka_group: str = ""
    """The group's name in Kafka, if different."""
    exists: bool = False
    """Whether ZooKeeper has a znode of the group."""
    mode: Mode = Mode.ZOOKEEPER
    """The mode of a live move; ``ZOOKEEPER`` if there is none."""
    migratable: tuple[str, ...] = ()
    """Registered members that take part in a live move."""
    has_mode: bool = False
    """Whether the group has a mode, or migratable members."""
    record: Record = Record()
    mirror: Mirror | None = None
    """The agreed state of the group's mirror, if it is mirrored."""
    mirrored_by: str = ""
    """Who is running the group's mirror."""

    @property
    def in_kafka(self) -> str:
        """The group's name in Kafka."""
        return self.kafka_group or self.group

    @property
    def given_by(self) -> str:
        """Where the offsets in ``from_file`` were read, for messages."""
        return f"the layout {self.layout}" if self.layout else "the file"

    def znode(self, tp: TopicPartition) -> ZkOffset | None:
        """Return the znode that has a partition's offset, in the other client's layout if one was
        read."""
        return self.layout_zk.get(tp) or self.zk.get(tp)

    def offsets(self, store: Store) -> dict[TopicPartition, int]:
        """Return the valid offsets in a store."""
        if store is Store.KAFKA:
            return {tp: one.offset for tp, one in self.kafka.items() if one.offset >= 0}
        return {tp: one.offset for tp, one in self.zk.items() if one.offset is not None}

    @property
    def moved_to(self) -> Store | None:
        """The store to which the group was moved. ``None`` if it was never moved, if the move was
        rolled back, or if it was moved back to ZooKeeper before the current live move or mirror."""
        to = None if self.marker is None else self.marker.moved_to
        live = self.mode is not Mode.ZOOKEEPER and to is Store.ZOOKEEPER
        return None if live or self.record.mirror else to

    @property
    def copied_back(self) -> bool:
        """Whether ``undo`` has copied the group's offsets back to ZooKeeper and nothing has moved
        the group since."""
        back = self.record.taken_back and not self.record.plan
        return back and self.moved_to is Store.ZOOKEEPER

    @property
    def in_live_move(self) -> bool:
        """Whether a live move is prepared or in progress."""
        other = self.moved_to is Store.KAFKA or self.record.mirror
        return self.mode is not Mode.ZOOKEEPER or (self.has_mode and not other)

    @property
    def expired(self) -> frozenset[TopicPartition]:
        """The partitions whose offset has disappeared from the current store since the move.

        Kafka deletes offsets that are not committed again for some days. In ZooKeeper, another
        client must have deleted them. Partitions that no longer exist are not included.
        """
        marker, moved_to = self.marker, self.moved_to
        if marker is None or moved_to is None:
            return frozenset()
        return frozenset(
            tp
            for tp in marker.in_target
            if not self.may_hold(moved_to, tp) and exists(self.topics, tp)
        )

    def may_hold(self, store: Store, tp: TopicPartition) -> bool:
        """Whether a store has an offset of a partition, or may have one that cannot be read."""
        if store is Store.KAFKA:
            return tp.topic in self.hidden or number(self.kafka.get(tp)) is not None
        znode = self.zk.get(tp)
        return znode is not None and (znode.offset is not None or bool(znode.fault))


@dataclass(frozen=True, slots=True)
class Retention:
    """How long brokers keep the offsets of a group without members."""

    minutes: int
    known: bool
    """Whether the broker reported the retention. Otherwise it is the default of the broker's
    release."""


def exists(topics: Mapping[str, TopicState | None], tp: TopicPartition) -> bool:
    """Whether a topic has this partition."""
    topic = topics.get(tp.topic)
    return topic is not None and tp.partition in topic.partitions


def number(stored: KafkaOffset | None) -> int | None:
    """Return the offset as a number; ``None`` if it is missing or negative."""
    return None if stored is None or stored.offset < 0 else stored.offset


def numbers(
    stored: Mapping[TopicPartition, KafkaOffset | None],
) -> dict[TopicPartition, int | None]:
    """Return the offsets as numbers; ``None`` where one is missing or negative."""
    return {tp: number(one) for tp, one in stored.items()}


def by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return offsets by topic and partition, as an object for JSON."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), value in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(partition)] = value
    return topics
