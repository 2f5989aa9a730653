"""Decides what the mirror of a group does next, from one reading of both stores. Pure.

One store leads: its offsets are copied to the other, the follower. The side with live members
leads. Without members, the last leader continues to lead, since clients that commit through
OffsetCommit version 0 have no registration in ZooKeeper.

An offset that the mirror commits to Kafka carries a mark in its metadata. So a mirror's commit
that was not recorded, because the process was killed, is not mistaken for a consumer's. Offsets in
ZooKeeper need no mark, because they are written in one request with their record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from zkconsumer.core.common.types import INTERNAL_TOPICS, TopicPartition
from zkmigrate.model import (
    GroupState,
    KafkaOffset,
    Log,
    Mirror,
    Store,
    TopicState,
    ZkOffset,
    exists,
    number,
)
from zkmigrate.reasons import Reason
from zkmigrate.text import show, shown

_MARK: Final = "zkmigrate mirror "


class Reading(NamedTuple):
    """The members and offsets of one group in both stores, as they were read.

    ``old``: members in ZooKeeper. ``new``: members at the coordinator. ``topics``: the topics that
    exist. ``hidden``: topics that the brokers do not show to this user. ``unreadable``: why some
    znodes cannot be read. ``misplaced``: the offsets in ``/consumers/GROUP/offset``.
    """

    old: tuple[str, ...]
    new: tuple[str, ...]
    zk: Mapping[TopicPartition, ZkOffset]
    kafka: Mapping[TopicPartition, KafkaOffset]
    topics: Mapping[str, TopicState]
    hidden: frozenset[str] = frozenset()
    unreadable: tuple[str, ...] = ()
    misplaced: Mapping[TopicPartition, int] = {}

    def obstacle(self, leader: Store) -> tuple[Reason, str] | None:
        """Return why the offsets of the two stores cannot be compared, and what to do.

        For example, a topic that the brokers hide looks like a deleted one. ``leader``: the store
        whose offsets are copied.
        """
        hidden = self.hidden.intersection(tp.topic for tp in (*self.zk, *self.kafka))
        if hidden:
            text = "access lists hide offsets in Kafka: allow zkmigrate to describe these topics"
            return Reason.HIDDEN, f"{shown(sorted(hidden))}: {text}"
        if self.unreadable:
            return Reason.UNREADABLE, shown(self.unreadable)
        higher = [
            f"{tp}: {offset} below offset, {show(here)} below offsets"
            for tp, offset in sorted(self.misplaced.items())
            if offset > (-1 if (here := self.offset(Store.ZOOKEEPER, tp)) is None else here)
        ]
        if higher:
            text = "a 1.1.0 broker has stored higher offsets: set the right ones with zkmigrate "
            text += "reset and delete the znodes below offset"
            return Reason.MISPLACED, f"{shown(higher)}: {text}"
        unproven = {
            tp.topic
            for tp in self.zk
            if (topic := self.topics.get(tp.topic)) is not None and topic.log is Log.UNPROVEN
        }
        if unproven and leader is Store.ZOOKEEPER:
            text = "ZooKeeper has no id for the topic: end the mirror, and move the group with "
            text += "plan --unproven-topics"
            return Reason.UNPROVEN, f"{shown(sorted(unproven))}: {text}"
        return None

    def offset(self, store: Store, tp: TopicPartition) -> int | None:
        """Return a partition's offset in a store; ``None`` if there is none."""
        if store is Store.KAFKA:
            return number(self.kafka.get(tp))
        node = self.zk.get(tp)
        return None if node is None else node.offset

    @property
    def members_in(self) -> frozenset[Store]:
        """The stores in which the group has live members."""
        sides = ((Store.ZOOKEEPER, self.old), (Store.KAFKA, self.new))
        return frozenset(store for store, members in sides if members)

    @property
    def of_clients(self) -> dict[TopicPartition, int]:
        """The offsets in Kafka that clients committed, not the mirror."""
        return {tp: one.offset for tp, one in self.kafka.items() if not is_marked(one)}

    def partitions(self) -> Iterator[TopicPartition]:
        """Return the existing partitions that have an offset in either store."""
        return (tp for tp in sorted({*self.zk, *self.kafka}) if exists(self.topics, tp))

    def is_stale(self, tp: TopicPartition) -> bool:
        """Whether a partition's offset in ZooKeeper is older than its topic."""
        node, topic = self.zk.get(tp), self.topics.get(tp.topic)
        return node is not None and topic is not None and topic.is_younger_than(node)


def reading_of(state: GroupState) -> Reading:
    """Return the members and offsets in a group's state as a ``Reading``."""
    members = state.members, state.coordinator_members
    return Reading(*members, state.zk, state.kafka, state.topics, state.hidden, (), state.misplaced)


class Decision(NamedTuple):
    """What the mirror does with a group: the offsets to write, and the agreed state after that.

    ``values``: the offsets on which both stores then agree. ``forget``: partitions of deleted
    topics, whose offsets the mirror deletes from Kafka. ``stop``: the reason and a sentence, if the
    mirror must stop. ``notes``: messages for the operator.
    """

    leader: Store
    values: Mapping[TopicPartition, int]
    to_kafka: Mapping[TopicPartition, int] = {}
    to_zookeeper: Mapping[TopicPartition, int] = {}
    forget: frozenset[TopicPartition] = frozenset()
    stop: tuple[Reason, str] | None = None
    notes: tuple[str, ...] = ()

    @property
    def copies(self) -> int:
        """Number of offsets to write."""
        return len(self.to_kafka) + len(self.to_zookeeper)


def mark(offset: int) -> str:
    """Return the metadata with which the mirror commits an offset."""
    return f"{_MARK}{offset}"


def is_marked(stored: KafkaOffset | None) -> bool:
    """Whether the mirror has committed this offset."""
    return stored is not None and stored.metadata == mark(stored.offset)


def first_leader(
    seen: Reading,
    wanted: Store | None,
    before: Mapping[TopicPartition, int] = {},
    overwrite: bool = True,
) -> tuple[Store, dict[TopicPartition, int]] | tuple[Reason, str]:
    """Return the store that leads when the mirror of a group starts, and the agreed offsets. If it
    cannot start, return why.

    ``wanted``: the store that the operator chose. Its offsets then replace those of the other
    store, unless ``overwrite`` is false. ``before``: the agreed offsets when the mirror stopped. An
    offset that has since expired in the new leader is restored.
    """
    if len(seen.members_in) > 1:
        return Reason.BOTH_SIDES, _both_sides(seen)
    every = list(seen.partitions())
    leader = wanted or next(iter(seen.members_in), Store.ZOOKEEPER)
    if wanted is not None and seen.members_in - {wanted}:
        names = shown(seen.old or seen.new)
        text = f"members of the side of {wanted.other.value} run: stop {names} first"
        return (Reason.LIVE_MEMBER if seen.old else Reason.COORDINATOR_MEMBER), text
    if (obstacle := seen.obstacle(leader)) is not None:
        return obstacle
    agreed: dict[TopicPartition, int] = {}
    differ: list[str] = []
    for tp in every:
        there = seen.offset(leader.other, tp)
        if there is None or (leader is Store.KAFKA and seen.is_stale(tp)):
            continue
        agreed[tp] = there
        here = seen.offset(leader, tp)
        marked = leader is Store.ZOOKEEPER and is_marked(seen.kafka.get(tp))
        may_choose = wanted is not None and overwrite
        chosen = may_choose and (here is not None or before.get(tp) == there)
        if there != here and not marked and not chosen:
            differ.append(f"{tp}: {leader.value} has {show(here)}, {leader.other.value} {there}")
    if differ:
        fix = "choose the store whose offsets are right with mirror --lead"
        if wanted is not None and overwrite:
            fix = f"set it in {leader.value}, or delete it in {leader.other.value}, first"
        return Reason.CONFLICT, f"{shown(differ)}: {fix}"
    return leader, agreed


def decide(seen: Reading, mirror: Mirror, refresh: bool = False) -> Decision:
    """Return what the mirror does with a group.

    ``refresh``: if no member commits to Kafka, commit the offsets there again, so that they do not
    expire.
    """
    agreed = {tp: offset for tp, offset in mirror.values.items() if _is_same(seen, mirror, tp)}
    if len(seen.members_in) > 1:
        return Decision(mirror.leader, agreed, stop=(Reason.BOTH_SIDES, _both_sides(seen)))
    leader = next(iter(seen.members_in), mirror.leader)
    moved = sorted(_moved(seen, agreed, leader))
    if moved:
        store = leader.other.value
        text = (
            f"{shown(_texts(seen, agreed, leader, moved))}: stop the client that commits to "
            f"{store}, then begin again with mirror --lead and the store whose offsets are right"
        )
        return Decision(mirror.leader, agreed, stop=(Reason.FOLLOWER_MOVED, text))
    notes: list[str] = []
    hidden = sorted(seen.hidden - INTERNAL_TOPICS)
    if leader is Store.KAFKA and hidden:  # none of them is known to be one of the group
        text = "access lists hide these topics: if the group consumes one, it is not copied"
        notes.append(f"{text}: {shown(hidden)}")
    values = dict(agreed)
    copies: dict[TopicPartition, int] = {}
    to_kafka: dict[TopicPartition, int] = {}
    forget: set[TopicPartition] = set()
    for tp in seen.partitions():
        here, there = seen.offset(leader, tp), seen.offset(leader.other, tp)
        if leader is Store.KAFKA and seen.is_stale(tp):
            there = None  # also if it is the same number by chance
        before = agreed.get(tp)
        if leader is Store.ZOOKEEPER:
            fault = seen.zk[tp].fault if tp in seen.zk else ""
            if fault:
                notes.append(f"{fault}: not copied")
            if seen.is_stale(tp):
                notes.append(f"{tp}: not copied, its topic is younger than {show(here)}")
                if is_marked(seen.kafka.get(tp)):
                    forget.add(tp)
                continue
        elif is_marked(seen.kafka.get(tp)) and here not in (before, there):
            if seen.new:
                continue
            if before is None:
                forget.add(tp)
            else:  # a late commit of a mirror that was suspended
                to_kafka[tp] = before
            continue
        if here is None:
            continue
        if before is not None and here < before:
            notes.append(f"{tp}: {leader.value} went back from {before} to {here}, also copied")
        values[tp] = here
        if there != here or (refresh and leader is Store.ZOOKEEPER):
            copies[tp] = here
    if leader is Store.ZOOKEEPER:
        kept = {tp: offset for tp, offset in values.items() if tp not in forget}
        return Decision(leader, kept, copies, forget=frozenset(forget), notes=tuple(notes))
    if not seen.new:
        gone = expired(seen, agreed)
        for tp, offset in agreed.items():
            old = refresh and exists(seen.topics, tp) and is_marked(seen.kafka.get(tp))
            if tp in gone or old:
                to_kafka[tp] = offset
    return Decision(leader, values, to_kafka, copies, frozenset(forget), notes=tuple(notes))


def behind(seen: Reading, leader: Store) -> dict[TopicPartition, int]:
    """Return how far each partition's offset in the other store differs from the leader's."""
    found: dict[TopicPartition, int] = {}
    for tp in seen.partitions():
        here, there = seen.offset(leader, tp), seen.offset(leader.other, tp)
        stale = leader is Store.ZOOKEEPER and seen.is_stale(tp)
        if here is not None and here != there and not stale:
            found[tp] = abs(here - (there or 0))
    return found


def expired(seen: Reading, agreed: Iterable[TopicPartition]) -> set[TopicPartition]:
    """Return the partitions in ``agreed`` whose offset has disappeared from Kafka."""
    here = (tp for tp in agreed if exists(seen.topics, tp))
    return {tp for tp in here if seen.offset(Store.KAFKA, tp) is None}


def _is_same(seen: Reading, mirror: Mirror, tp: TopicPartition) -> bool:
    """Whether an agreed offset belongs to the topic that exists now, as far as known."""
    topic = seen.topics.get(tp.topic)
    return topic is None or mirror.topics.get(tp.topic, topic.czxid) == topic.czxid


def _moved(
    seen: Reading, agreed: Mapping[TopicPartition, int], leader: Store
) -> Iterator[TopicPartition]:
    """Yield the partitions whose offset in the follower was changed by another client."""
    for tp in seen.partitions():
        there = seen.offset(leader.other, tp)
        if there is None or there in (agreed.get(tp), seen.offset(leader, tp)):
            continue
        if leader is Store.ZOOKEEPER and is_marked(seen.kafka.get(tp)):
            continue
        if leader is Store.KAFKA and seen.is_stale(tp):
            continue  # of a topic that was deleted; its members in Kafka begin again
        yield tp


def _texts(
    seen: Reading,
    agreed: Mapping[TopicPartition, int],
    leader: Store,
    moved: Iterable[TopicPartition],
) -> Iterator[str]:
    for tp in moved:
        yield (
            f"{tp}: {leader.other.value} follows, but has {show(seen.offset(leader.other, tp))} "
            f"now, not {show(agreed.get(tp))}, and {leader.value} has "
            f"{show(seen.offset(leader, tp))}"
        )


def _both_sides(seen: Reading) -> str:
    return (
        f"{shown(seen.old)} in ZooKeeper and {shown(seen.new)} at the coordinator run at the same "
        "time: stop the members of one side, then begin again with mirror --lead and the other "
        "side's store"
    )
