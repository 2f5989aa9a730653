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
    """A store of offsets."""

    ZOOKEEPER = "zookeeper"
    KAFKA = "kafka"

    @property
    def other(self) -> Store:
        """The other store."""
        return Store.KAFKA if self is Store.ZOOKEEPER else Store.ZOOKEEPER


STOPPED: Final = "stopped"
"""Value in a group's record: the group is mirrored, but nothing is copied until an operator
decides."""

HeldNow = Mapping[Store, Mapping[TopicPartition, int | None]]
"""A group's offset in each store. ``None``, like a negative number, means no offset."""


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
    """A committed offset. ``leader_epoch`` is -1 if there is none. ``commit_ms`` is set only if it
    was looked up."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LogRange:
    """First offset in the log, and the offset of the next message to be written."""

    earliest: int
    latest: int


class Log(Enum):
    """Whether a topic on the brokers is the one whose offsets are in ZooKeeper."""

    SAME = "same"
    OTHER = "other"
    """The brokers' topic has another id, because it was recreated."""
    UNPROVEN = "unproven"
    """ZooKeeper has no id for the topic, and the cluster no longer uses ZooKeeper."""


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic that exists, and its partitions.

    ``czxid``: the zxid of its creation, or a number derived from the topic's id if ``log`` is not
    the same.
    """

    czxid: int
    partitions: tuple[int, ...]
    log: Log = Log.SAME

    @property
    def identity(self) -> str:
        """A text that changes when the topic is recreated; empty if there is none."""
        return "" if self.log is Log.UNPROVEN else str(self.czxid)

    def is_younger_than(self, offset: ZkOffset) -> bool:
        """Whether the topic was created after an offset in ZooKeeper was stored."""
        return self.log is Log.OTHER or (self.log is Log.SAME and offset.mzxid < self.czxid)


@dataclass(frozen=True, slots=True)
class MigrationMarker:
    """The content of ``/consumers/GROUP/migration``: target and time of the group's move.

    ``at_ms``: when the marker was written, by ZooKeeper's clock. ``values``: the source store's
    offsets that were moved. ``moved_to``: ``None`` after a rollback, which ended at ``at_ms``.
    ``kafka_group``: the group's name in Kafka, if different. ``left``: offsets of the source store
    that the plan left out. ``misplaced``: offsets that a move from ZooKeeper found below
    ``offset``. ``kept``: the target's offsets after the move that differ from the source's, as
    with ``offsets.storage=kafka``, or by a decision. ``other_client``: set if Kafka's offsets are
    not what the group's old client reads in ``/consumers/GROUP/offsets``: ``last`` if a number
    there is the last record read, the layout that was read in their place, or ``file`` if offsets
    from a file were moved and there were none.
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
        """The target's offsets after the move, if they were known."""
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
    """The record of a group in ZooKeeper. ``version`` is its serial, -1 if there is no record.

    ``id``: that of the last write. ``by``: the operator, as ``user@host``. ``plan``: the plan's
    digest. ``mode``: the mode of a live move. ``locked``: whether old consumers must be kept out.
    ``claim``: the name under which the last change claimed the group. ``late``: partitions in
    Kafka where a command may have overwritten newer offsets. ``late_more``: number of such
    partitions that did not fit. ``by_undo``: whether ``undo`` made the last change. ``undoes``:
    the digest of the plan whose change it takes back. ``commits``: the end of the log of commits
    when a change to Kafka began; -1: unknown. ``mirror``: the store that leads in a mirrored
    group, or ``STOPPED``. ``kafka_group``: the group's name in Kafka during the last change; empty
    if not different. ``to_cluster``: the id of another cluster for which a cut-over has locked the
    group. ``handed_over``: whether that cut-over has ended.
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
        """Digest of the plan that made the last change, or that the last copy back undoes."""
        return self.plan or self.undoes

    @property
    def mirror_leads(self) -> Store | None:
        """The store whose offsets the mirror copies, if it copies any."""
        return None if self.mirror in ("", STOPPED) else Store(self.mirror)

    @property
    def cut_over_waits(self) -> bool:
        """Whether a cut-over has begun to lock old members out while ZooKeeper still leads."""
        return self.locked and self.mirror_leads is Store.ZOOKEEPER

    @property
    def taken_back(self) -> bool:
        """Whether ``undo`` has taken the group back and nothing has moved it since."""
        return self.by_undo and self.stage in (Stage.DONE, Stage.UNDONE)

    @property
    def copies_back(self) -> bool:
        """Whether a copy back by ``undo``, which has no plan, has begun and is not finished."""
        return self.stage is Stage.BEGUN and not self.plan

    @property
    def in_doubt(self) -> bool:
        """Whether newer offsets may be lost."""
        return bool(self.late or self.late_more)


@dataclass(frozen=True, slots=True)
class Mirror:
    """The agreed state of a group's mirror, which is the content of the mirror's znode.

    ``leader``: the store whose offsets are copied to the other. ``since_ms``: when it became the
    leader. ``values``: the offsets that both stores had when they were last compared. ``topics``:
    the transaction that created each of their topics. ``stopped``: why nothing is copied, as the
    value of a reason and a sentence. ``version``: that of the znode; -1 if there is none.
    """

    leader: Store
    since_ms: int = 0
    values: Mapping[TopicPartition, int] = field(default_factory=dict)
    topics: Mapping[str, int] = field(default_factory=dict)
    stopped: tuple[str, str] | None = None
    version: int = -1


@dataclass(frozen=True, slots=True)
class Before:
    """The offsets in both stores before a change, and those that the change writes to its target.

    ``marker``: the migration marker before the change. ``skipped``: patterns of offsets that the
    change leaves as they are. ``locked``: whether the group was locked. ``earlier``: the same for
    the previous change, as stored in its znode, and that change's plan.
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
    """One group in both stores, from one pass of reads.

    ``members``: consumer ids registered in ZooKeeper. ``owners``: partition to owner. The
    coordinator's members are texts that name client and host. ``foreign``: znodes of another
    client's layout. ``faults``: data that could not be read, so that nothing can be decided.
    ``hidden``: all topics whose offsets in Kafka the brokers do not show. ``from_file``: offsets
    from a file, which replace those of the source store.
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
        """The source of ``from_file``, for messages."""
        return f"the layout {self.layout}" if self.layout else "the file"

    def znode(self, tp: TopicPartition) -> ZkOffset | None:
        """Return a partition's offset znode, or that of the layout if one is used."""
        return self.layout_zk.get(tp) or self.zk.get(tp)

    def offsets(self, store: Store) -> dict[TopicPartition, int]:
        """Return the offsets in a store, without unreadable and negative ones."""
        if store is Store.KAFKA:
            return {tp: one.offset for tp, one in self.kafka.items() if one.offset >= 0}
        return {tp: one.offset for tp, one in self.zk.items() if one.offset is not None}

    @property
    def moved_to(self) -> Store | None:
        """The store to which the group was moved. ``None`` if it was not moved, was rolled back,
        or was moved back before the current live move or mirror."""
        to = None if self.marker is None else self.marker.moved_to
        live = self.mode is not Mode.ZOOKEEPER and to is Store.ZOOKEEPER
        return None if live or self.record.mirror else to

    @property
    def copied_back(self) -> bool:
        """Whether ``undo`` has copied the group's offsets back to ZooKeeper and nothing has moved
        the group since. The record then has no plan."""
        back = self.record.taken_back and not self.record.plan
        return back and self.moved_to is Store.ZOOKEEPER

    @property
    def in_live_move(self) -> bool:
        """Whether a live move is prepared or in progress."""
        other = self.moved_to is Store.KAFKA or self.record.mirror
        return self.mode is not Mode.ZOOKEEPER or (self.has_mode and not other)

    @property
    def expired(self) -> frozenset[TopicPartition]:
        """The partitions whose offset was in the current store after the move, and is now missing.

        Kafka deletes offsets that are not committed again for some days. In ZooKeeper another
        client has deleted them. Partitions that no longer exist are left out.
        """
        marker, moved_to = self.marker, self.moved_to
        if marker is None or moved_to is None:
            return frozenset()
        return frozenset(
            tp
            for tp in marker.in_target
            if not self.may_hold(moved_to, tp)
            and (topic := self.topics.get(tp.topic)) is not None
            and tp.partition in topic.partitions
        )

    def may_hold(self, store: Store, tp: TopicPartition) -> bool:
        """Whether a store has an offset of the group, or may have one that is unreadable."""
        if store is Store.KAFKA:
            return tp.topic in self.hidden or number(self.kafka.get(tp)) is not None
        znode = self.zk.get(tp)
        return znode is not None and (znode.offset is not None or bool(znode.fault))


@dataclass(frozen=True, slots=True)
class Retention:
    """How long the broker keeps the offsets of a group without members."""

    minutes: int
    known: bool
    """Whether the broker reported the retention. Otherwise it is the default of the broker's
    release."""


def number(stored: KafkaOffset | None) -> int | None:
    """Return the offset as a number, negative if there is none."""
    return None if stored is None or stored.offset < 0 else stored.offset


def numbers(
    stored: Mapping[TopicPartition, KafkaOffset | None],
) -> dict[TopicPartition, int | None]:
    """Return the offsets as numbers."""
    return {tp: number(one) for tp, one in stored.items()}


def by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return offsets by topic and partition, for JSON."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), value in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(partition)] = value
    return topics
