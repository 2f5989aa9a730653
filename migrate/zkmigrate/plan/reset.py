"""Computes the offsets that a reset of a group sets. Pure.

The rules are those of ``kafka-consumer-groups --reset-offsets`` (Kafka 3.9 ConsumerGroupCommand):
an offset outside the log is replaced by the nearest one in it, and the log's end is used if no
message is new enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.migration.modes import Mode
from zkmigrate.errors import refused
from zkmigrate.model import GroupState, LogRange, Store, exists
from zkmigrate.reasons import Reason
from zkmigrate.text import shown


class To(Enum):
    """How a reset finds the new offset. The value is the name of the option."""

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
    since 1970 for ``TIME``. ``offsets``: the offsets for ``FILE``.
    """

    to: To
    number: int = 0
    offsets: Mapping[TopicPartition, int] | None = None


class Reset(NamedTuple):
    """The reset of one partition. An offset of ``None`` means that there is none. ``why``: why the
    new offset differs from the requested one, if it does."""

    tp: TopicPartition
    before: int | None
    after: int
    why: str


BOTH: Final = "both"
"""The value of ``--store`` for both stores."""


def stores_of(state: GroupState, wanted: str | None) -> tuple[Store, ...]:
    """Return the stores in which to set offsets, Kafka first.

    ``wanted``: the value of ``--store``. The default is the store whose offsets are valid. In a
    mirrored group this is the leader. In a live move both are needed, because members begin at the
    higher of the two offsets. Raises GroupRefusedError if it is not certain which store is valid.
    """
    every = (Store.KAFKA, Store.ZOOKEEPER)
    leader = state.record.mirror_leads
    if leader is not None:
        if wanted not in (None, leader.value):
            raise refused(
                state.group,
                Reason.MIRRORED,
                f"the group is mirrored, and {leader.value} leads: remove --store; "
                "the mirror copies the offsets",
            )
        return (leader,)
    if wanted == BOTH:
        return every
    if state.mode is not Mode.ZOOKEEPER:
        if wanted is not None:
            raise refused(
                state.group,
                Reason.LIVE_MOVE,
                "the group is in a live move, and its members begin at the higher offset: use "
                f"--store {BOTH}",
            )
        return every
    if wanted is not None:
        return (Store(wanted),)
    if state.moved_to is not None:
        return (state.moved_to,)
    if state.offsets(Store.ZOOKEEPER):
        if state.offsets(Store.KAFKA):
            raise refused(
                state.group,
                Reason.CONFLICT,
                f"both stores have offsets: choose one with --store, or {BOTH}",
            )
        return (Store.ZOOKEEPER,)
    return (Store.KAFKA,)


def check_undone(state: GroupState, store: Store, rows: Iterable[Reset]) -> None:
    """Check that members would not undo a reset by starting at a higher offset in the other store.

    A member with dual commit begins at the higher of its two offsets, unless the group was moved
    and only one store is valid. Raises GroupRefusedError.
    """
    if state.moved_to is not None or state.record.mirror:
        return
    others = state.offsets(store.other)
    above = [
        f"{row.tp} ({store.other.value} holds {others[row.tp]})"
        for row in rows
        if others.get(row.tp, -1) > row.after
    ]
    if above:
        raise refused(
            state.group,
            Reason.WOULD_UNDO,
            f"{shown(above)}: a member with dual commit begins at the higher offset, which "
            f"would undo the reset: use --store {BOTH}",
        )


def chosen(
    state: GroupState,
    stores: Sequence[Store],
    topics: Mapping[str, frozenset[int]] | None,
    target: Target,
) -> list[TopicPartition]:
    """Return the partitions to reset.

    ``topics``: the chosen partitions by topic; an empty set means all. ``None``: all partitions
    with an offset in one of the stores. Raises GroupRefusedError if a chosen partition does not
    exist, or if there are no partitions.
    """
    if target.offsets is not None:
        partitions = list(target.offsets)
    elif topics is None:
        partitions = [
            tp
            for tp in {*state.zk, *state.kafka}
            if tp.topic in state.topics
            and any(tp in (state.zk if one is Store.ZOOKEEPER else state.kafka) for one in stores)
        ]
    else:
        partitions = []
        for topic, numbers in topics.items():
            there = state.topics[topic].partitions if topic in state.topics else (0,)
            partitions += [TopicPartition(topic, number) for number in numbers or there]
    missing = [str(tp) for tp in partitions if not exists(state.topics, tp)]
    if missing:
        raise refused(
            state.group, Reason.PARTITION_MISSING, f"{shown(missing)}: there is no such partition"
        )
    if not partitions:
        raise refused(
            state.group,
            Reason.NOTHING,
            f"the group has no offset in {' or '.join(one.value for one in stores)}: choose "
            "topics with --topic",
        )
    return sorted(partitions)


def reset(
    state: GroupState,
    store: Store,
    target: Target,
    partitions: Iterable[TopicPartition],
    ranges: Mapping[TopicPartition, LogRange],
    at_time: Mapping[TopicPartition, int],
    both: bool = False,
) -> list[Reset]:
    """Return the new offset of each partition.

    ``at_time``: the offset at the requested time, by partition; negative if there is none.
    ``both``: offsets are set in both stores, so the higher of the two counts as the current offset.
    Raises GroupRefusedError.
    """
    rows: list[Reset] = []
    offsets = {one: state.offsets(one) for one in Store}
    for tp in partitions:
        log = ranges.get(tp)
        if log is None:
            raise refused(
                state.group,
                Reason.UNKNOWN,
                f"{tp}: the brokers returned no log range: make sure that its leader is running",
            )
        before = offsets[store].get(tp)
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
                every = (one[tp] for one in offsets.values() if tp in one)
                current = max(every, default=None) if both else before
                if current is None:
                    raise refused(
                        state.group,
                        Reason.NO_OFFSET,
                        f"{tp} has no offset to start from: set it with another option, such as "
                        "--to-earliest",
                    )
                after = current + target.number
        if not log.earliest <= after <= log.latest:
            nearest = log.earliest if after < log.earliest else log.latest
            why = f"{after} is outside of the log's {log.earliest}-{log.latest}"
            after = nearest
        rows.append(Reset(tp, before, after, why))
    return rows
