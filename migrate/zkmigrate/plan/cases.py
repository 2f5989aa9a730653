"""The case of a group: its history and state, from everything known about it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.migration.modes import Mode
from zkmigrate.model import STOPPED, GroupState, Store
from zkmigrate.plan.layout import reason_for
from zkmigrate.reasons import Reason


class Case(Enum):
    """The situation of a group, which decides what each command does. ``status`` prints the
    value."""

    UNTOUCHED = "untouched"
    IN_KAFKA = "in kafka"
    EMPTY = "empty"
    INTERRUPTED = "interrupted"
    WRITTEN_LATE = "written late"
    MISPLACED = "misplaced offsets"
    HIDDEN = "hidden offsets"
    MOVED = "moved"
    USED = "moved and used"
    LATE_COMMIT = "late commit"
    EXPIRED_IN_PART = "expired in part"
    EXPIRED = "expired"
    ROLLED_BACK = "rolled back"
    MOVED_BACK = "moved back"
    PREPARED = "prepared"
    LOCKED = "live: locked"
    KAFKA = "live: kafka"
    OPEN = "live: open"
    MIRROR_ZOOKEEPER = "mirrored: zookeeper leads"
    MIRROR_KAFKA = "mirrored: kafka leads"
    MIRROR_STOPPED = "mirrored: stopped"
    LEAVING = "leaving"
    HANDED_OVER = "handed over"
    OTHER_LAYOUT = "other layout"
    OTHER_ZNODES = "other znodes"
    UNREADABLE = "unreadable"


MEANING: Final[Mapping[Case, str]] = {
    Case.UNTOUCHED: "Its offsets are in ZooKeeper, and it was never moved.",
    Case.IN_KAFKA: "Its offsets are in Kafka only, as with `offsets.storage=kafka`.",
    Case.INTERRUPTED: "A command has begun to change its offsets, and has not finished.",
    Case.WRITTEN_LATE: "Like *interrupted*, and the command may have overwritten newer offsets in "
    "Kafka. Set the right ones with `reset`.",
    Case.EMPTY: "Neither store has an offset.",
    Case.MISPLACED: "Never moved; a 1.1.0 broker has stored offsets in `offset`, not `offsets`.",
    Case.HIDDEN: "Never moved; the broker's ACLs hide the offsets of a topic in Kafka.",
    Case.MOVED: "Moved to Kafka, and neither store has changed since.",
    Case.USED: "Moved to Kafka, and new consumers have committed there since.",
    Case.LATE_COMMIT: "Moved to Kafka, but an offset in ZooKeeper has changed since: an old "
    "consumer is running.",
    Case.EXPIRED_IN_PART: "Some moved offsets are gone from their store.",
    Case.EXPIRED: "All moved offsets are gone from their store.",
    Case.ROLLED_BACK: "A move was rolled back.",
    Case.MOVED_BACK: "Moved to ZooKeeper by a plan.",
    Case.PREPARED: "Prepared for a live move; ZooKeeper assigns its partitions.",
    Case.LOCKED: "In a live move, mode `locked`: ZooKeeper assigns its partitions.",
    Case.KAFKA: "In a live move, mode `kafka`: the coordinator assigns its partitions.",
    Case.OPEN: "In a live move, mode `open`: plain Kafka consumers may join.",
    Case.MIRROR_ZOOKEEPER: "Mirrored; each new offset in ZooKeeper goes to Kafka.",
    Case.MIRROR_KAFKA: "Mirrored, after its cut-over; each new offset in Kafka goes to ZooKeeper.",
    Case.MIRROR_STOPPED: "Mirrored, but nothing is copied until an operator has decided.",
    Case.LEAVING: "A `cut-over --to-cluster` has locked it, and has not finished.",
    Case.HANDED_OVER: "Handed over to another cluster by `cut-over --to-cluster`; locked here.",
    Case.OTHER_LAYOUT: "Never moved; another client keeps its offsets in the group's znode.",
    Case.OTHER_ZNODES: "Never moved; next to its offsets are znodes of an unknown kind.",
    Case.UNREADABLE: "Part of its data cannot be read.",
}
_MIRROR: Final = {
    Store.ZOOKEEPER.value: Case.MIRROR_ZOOKEEPER,
    Store.KAFKA.value: Case.MIRROR_KAFKA,
    STOPPED: Case.MIRROR_STOPPED,
}
_LIVE: Final = {Mode.LOCKED: Case.LOCKED, Mode.KAFKA: Case.KAFKA, Mode.OPEN: Case.OPEN}


def case_of(state: GroupState) -> Case:
    """Return the case of a group.

    A group with unreadable data has a case of its own. Another client's znodes are not a case if
    the group was moved or is in a live move; commands then report them in addition.
    """
    marker = state.marker
    moved_to = state.moved_to
    in_kafka = Store.KAFKA in (moved_to, state.record.mirror_leads)
    if state.faults or (not in_kafka and any(one.fault for one in state.zk.values())):
        return Case.UNREADABLE
    if state.record.interrupted:
        return Case.WRITTEN_LATE if state.record.in_doubt else Case.INTERRUPTED
    if state.record.mirror:
        return _MIRROR[state.record.mirror]
    if state.record.to_cluster:
        return Case.HANDED_OVER if state.record.handed_over else Case.LEAVING
    if state.mode in _LIVE:
        return _LIVE[state.mode]
    if marker is not None and moved_to is not None:
        if state.expired:
            whole = state.expired >= marker.in_target.keys()
            return Case.EXPIRED if whole else Case.EXPIRED_IN_PART
        if moved_to is Store.ZOOKEEPER:
            return Case.PREPARED if state.has_mode else Case.MOVED_BACK
        if changed_since(state):
            return Case.LATE_COMMIT
        now = state.offsets(Store.KAFKA)
        same = all(now.get(tp) == offset for tp, offset in marker.in_target.items())
        more = now.keys() - marker.in_target.keys() - marker.left.keys()
        return Case.MOVED if same and not more else Case.USED
    if state.has_mode:
        return Case.PREPARED
    if odd := reason_for(state):
        return Case.OTHER_LAYOUT if odd is Reason.FOREIGN_LAYOUT else Case.OTHER_ZNODES
    if marker is not None:
        return Case.ROLLED_BACK
    zk = state.offsets(Store.ZOOKEEPER)
    if any(tp.topic in state.hidden for tp in zk):
        return Case.HIDDEN
    if state.misplaced:
        return Case.MISPLACED
    if zk:
        return Case.UNTOUCHED
    return Case.IN_KAFKA if state.offsets(Store.KAFKA) else Case.EMPTY


def changed_since(state: GroupState) -> set[TopicPartition]:
    """Return the partitions whose offset in the source store has changed since the move. The result
    is empty if the offsets did not fit into the marker."""
    marker = state.marker
    if marker is None or marker.moved_to is None or not (marker.in_target or marker.misplaced):
        return set()
    source = state.offsets(marker.moved_to.other)
    then = {**marker.left, **marker.values}
    late = {tp for tp, offset in source.items() if then.get(tp) != offset}
    if marker.moved_to is Store.KAFKA:
        once = {**marker.left, **marker.misplaced}
        late |= {tp for tp, offset in state.misplaced.items() if once.get(tp) != offset}
    return late
