"""Where a reset sets the offsets of a group to. Pure.

The rules are those of ``kafka-consumer-groups --reset-offsets`` (Kafka 3.9 ConsumerGroupCommand):
an offset outside of the log becomes the nearest one in it, and where no message is new enough the
log's end is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from zkconsumer.core.common.types import TopicPartition
from zkmigrate.errors import refused
from zkmigrate.model import GroupState, LogRange, Store
from zkmigrate.text import shown


class To(Enum):
    """The target of a reset. The value is the name of the option."""

    EARLIEST = "--to-earliest"
    LATEST = "--to-latest"
    CURRENT = "--to-current"
    OFFSET = "--to-offset"
    TIME = "--to-datetime"
    SHIFT = "--shift-by"
    FILE = "--from-file"


@dataclass(frozen=True, slots=True)
class Target:
    """The position to which offsets are set.

    ``number``: the offset for ``OFFSET``, the number of messages for ``SHIFT``, or milliseconds
    since 1970 for ``TIME``. ``offsets``: for ``FILE``, the offsets of one group.
    """

    to: To
    number: int = 0
    offsets: Mapping[TopicPartition, int] | None = None


class Reset(NamedTuple):
    """The result for one partition. ``None``: no offset. ``why``: why it differs from the
    request."""

    tp: TopicPartition
    before: int | None
    after: int
    why: str


def store_of(state: GroupState) -> Store:
    """Return the store whose offsets count. Raises GroupRefusedError when that is not clear."""
    if state.marker is not None and state.marker.moved_to is not None:
        return state.marker.moved_to
    if any(one.offset is not None for one in state.zk.values()):
        if any(one.offset >= 0 for one in state.kafka.values()):
            raise refused(state.group, "both stores hold offsets: choose one with --store")
        return Store.ZOOKEEPER
    return Store.KAFKA


def chosen(
    state: GroupState, store: Store, topics: Mapping[str, frozenset[int]] | None, target: Target
) -> list[TopicPartition]:
    """Return the partitions to reset. ``topics``: topic to partitions; none means all of the topic.

    ``None``: all partitions with an offset in the store. Raises GroupRefusedError if one does not
    exist, or if there are none.
    """
    if target.offsets is not None:
        found = list(target.offsets)
    elif topics is None:
        held = state.zk if store is Store.ZOOKEEPER else state.kafka
        found = [tp for tp in held if tp.topic in state.topics]
    else:
        found = []
        for topic, numbers in topics.items():
            there = state.topics[topic].partitions if topic in state.topics else (0,)
            found += [TopicPartition(topic, number) for number in numbers or there]
    missing = [
        str(tp)
        for tp in found
        if tp.topic not in state.topics or tp.partition not in state.topics[tp.topic].partitions
    ]
    if missing:
        raise refused(state.group, f"{shown(missing)}: there is no such partition")
    if not found:
        raise refused(
            state.group, f"{store.value} has no offset of the group: name topics with --topic"
        )
    return sorted(found)


def reset(
    state: GroupState,
    store: Store,
    target: Target,
    partitions: Iterable[TopicPartition],
    ranges: Mapping[TopicPartition, LogRange],
    at_time: Mapping[TopicPartition, int],
) -> list[Reset]:
    """Return the result for each partition. ``at_time``: offsets by time, negative where none.

    Raises GroupRefusedError.
    """
    rows: list[Reset] = []
    for tp in partitions:
        log = ranges.get(tp)
        if log is None:
            raise refused(
                state.group, f"{tp}: the brokers returned no log range: bring its leader back"
            )
        before = held(state, store, tp)
        why = ""
        match target.to:
            case To.EARLIEST:
                after = log.earliest
            case To.LATEST:
                after = log.latest
            case To.OFFSET:
                after = target.number
            case To.FILE:
                assert target.offsets is not None
                after = target.offsets[tp]
            case To.TIME:
                after = at_time[tp]
                if after < 0:
                    after, why = log.latest, "no message is that recent: the log's end"
            case To.CURRENT | To.SHIFT:
                if before is None:
                    raise refused(
                        state.group,
                        f"{tp} has no offset to start from: choose another option for it",
                    )
                after = before + target.number
        if not log.earliest <= after <= log.latest:
            nearest = log.earliest if after < log.earliest else log.latest
            why = f"{after} is outside of the log's {log.earliest}-{log.latest}"
            after = nearest
        rows.append(Reset(tp, before, after, why))
    return rows


def held(state: GroupState, store: Store, tp: TopicPartition) -> int | None:
    """Return the offset that a store has for a partition."""
    if store is Store.ZOOKEEPER:
        znode = state.zk.get(tp)
        return znode.offset if znode else None
    committed = state.kafka.get(tp)
    return committed.offset if committed and committed.offset >= 0 else None
