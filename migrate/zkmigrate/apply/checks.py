"""Checks that both stores match the plan or the journal, before, during and after a change.

Each check raises GroupRefusedError, which names the difference. Used from one thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from zkconsumer.admin import takeover
from zkconsumer.admin.snapshot import GroupSnapshot, read_group
from zkconsumer.admin.takeover import data_of
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Node
from zkconsumer.core.zookeeper.scripts.common import read_many
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.errors import ZnodeFormatError
from zkmigrate import verify
from zkmigrate.apply.change import Change, Held
from zkmigrate.apply.outcome import unreadable
from zkmigrate.errors import check_members, refused
from zkmigrate.model import (
    Direction,
    KafkaOffset,
    LogRange,
    MigrationMarker,
    Store,
    TopicState,
    number,
    numbers,
)
from zkmigrate.plan.layout import Place
from zkmigrate.plan.table import UNFINISHED
from zkmigrate.plan.values import GroupPlan, Problem, ReadAs
from zkmigrate.reasons import Reason
from zkmigrate.stores import migration_marker
from zkmigrate.stores.group_states import foreign_znodes, read_offsets
from zkmigrate.stores.offset_znodes import misplaced_root, numbered, offset_in, offsets_at
from zkmigrate.stores.sessions import Stores
from zkmigrate.stores.tree import read_place
from zkmigrate.text import show, shown

_SINCE: Final = ": it has changed since; plan again"


def check_layout(group: str, planned: ReadAs, stores: Stores) -> None:
    """Check that the group's other client has not changed its offsets since the plan was made.
    Raises GroupRefusedError, ZooKeeperError."""
    place = Place.parse(planned.place)
    try:
        found = read_place(stores.zk, place)
    except (ValueError, ZnodeFormatError) as error:
        raise refused(group, Reason.CHANGED, f"{error}{_SINCE}") from None
    now = {tp: one.offset for tp, one in found.items()}
    changed = [
        tp for tp in sorted({*now, *planned.numbers}) if now.get(tp) != planned.numbers.get(tp)
    ]
    if changed:
        text = f"{place.path}: offsets of {shown(map(str, changed))} have changed since the plan"
        raise refused(
            group, Reason.CHANGED, f"{text}: stop the client that commits, then plan again"
        )


class Checks:
    """Checks that the stores are as planned before and after a change. ``force``: accept offsets
    that were committed since the move."""

    def __init__(self, stores: Stores, force: bool) -> None:
        self._stores = stores
        self._force = force

    def as_expected(self, change: Change, resumed: bool, claimed: bool = False) -> Held:
        """Check that the group has no member, and that Kafka and the marker are as expected.

        Returns Kafka's offsets. Also checks that there are no offsets that are not in the plan.
        Call it before the group is claimed, so that a group that will be refused is not changed,
        and again with ``claimed`` after that, when old consumers can no longer add offsets. Raises
        GroupInUseError, GroupRefusedError.
        """
        group = change.group
        check_members(group, joined=self._stores.kafka.members(change.kafka_group))
        change.check()
        held = self._kafka_as_expected(change, resumed)
        found = self._stores.zk.run(read_group(group)) or GroupSnapshot(group)
        if not claimed:
            check_members(group, sorted(found.members))
            content = data_of(found.moved)
            if content != change.before and not (resumed and content in change.between):
                raise refused(
                    group,
                    Reason.CHANGED,
                    f"{migration_marker.path(group)} has changed since the plan was made: plan "
                    "again",
                )
        self._nothing_unplanned_in_zookeeper(change, found)
        if change.layout is not None and not self._force:
            check_layout(change.group, change.layout, self._stores)
        self._logs_hold_offsets(change, claimed)
        return held

    def znodes_as_expected(self, change: Change, resumed: bool) -> None:
        """Check that ZooKeeper's offsets are as expected. Does not check owners."""
        accept = self.acceptor(change, resumed)
        for tp, node in self._znodes(change).items():
            fault = accept(tp, node)
            if fault is not None:
                raise refused(change.group, Reason.CHANGED, fault)

    def _kafka_as_expected(self, change: Change, resumed: bool) -> Held:
        held = self.kafka(change)
        if self._force:
            return held
        anything = change.any_source and change.target is Store.ZOOKEEPER
        for tp in () if anything else sorted(change.kafka):
            allowed = change.expected(Store.KAFKA, tp, resumed)
            if number(held.get(tp)) not in allowed:
                text = _moved_on(Store.KAFKA, tp, number(held.get(tp)), allowed)
                raise refused(change.group, Reason.CHANGED, text)
        _nothing_unplanned(change, Store.KAFKA, numbers(held))
        return held

    def _nothing_unplanned_in_zookeeper(self, change: Change, found: GroupSnapshot) -> None:
        """Check that ZooKeeper holds nothing that is not planned; a claim checks known offsets.

        A deleted offset below ``offset`` is accepted, because nothing is left behind.
        """
        if change.znodes is not None:
            place = None if change.layout is None else Place.parse(change.layout.place)
            new = {
                one
                for one in set(foreign_znodes(found)) - change.znodes
                if place is None or not place.covers(one)
            }
            if new:
                text = f"znodes that were not reviewed: {shown(sorted(new))}: plan again"
                raise refused(change.group, Reason.NOT_REVIEWED, text)
        if self._force or change.source is not Store.ZOOKEEPER:
            return
        new_ones = (one for one in numbered(found.offsets) if not change.knows(one[0]))
        _nothing_unplanned(change, Store.ZOOKEEPER, offsets_at(found.paths.offsets, new_ones))
        if change.misplaced is None:
            return
        below = offsets_at(misplaced_root(change.group), numbered(found.misplaced))
        for tp, offset in sorted(below.items()):
            planned = change.misplaced.get(tp)
            if offset != planned and not change.leaves_out(tp):
                text = f"{tp}: zookeeper has {offset} below 'offset', not {show(planned)}"
                raise refused(change.group, Reason.CHANGED, f"{text}{_SINCE}")

    def _logs_hold_offsets(self, change: Change, again: bool) -> None:
        """Check that topics are still those of the plan and that their logs hold its offsets.

        ``again``: ask the brokers again. Otherwise cached answers are enough to accept a group,
        but never to refuse one.
        """
        if not change.topics:
            return
        timeout = self._stores.coordinator_timeout
        topics, ranges = self._stores.logs.covering(change.to, timeout, again)
        fault = _misfit(change, topics, ranges)
        if fault is not None and not again:
            fault = _misfit(change, *self._stores.logs.covering(change.to, timeout, True))
        if fault is not None:
            raise refused(change.group, Reason.CHANGED, fault)

    def acceptor(self, change: Change, resumed: bool) -> takeover.Accept:
        """Return a function that checks an offset znode and returns what is wrong, if anything."""

        def accept(tp: TopicPartition, node: Node | None) -> str | None:
            if self._force or (change.any_source and change.target is Store.KAFKA):
                return None
            try:
                offset = offset_in(node)
            except ZnodeFormatError as fault:
                return str(fault)
            allowed = change.expected(Store.ZOOKEEPER, tp, resumed)
            version = None if node is None else node.stat.version
            if offset not in allowed:
                return _moved_on(Store.ZOOKEEPER, tp, offset, allowed)
            if not resumed and change.versions is not None and change.versions.get(tp) != version:
                return f"{tp} was written in ZooKeeper since the plan was made: plan again"
            return None

        return accept

    def read_back(self, change: Change) -> None:
        """Check that the target store has the offsets that were written."""
        if change.target is Store.KAFKA:
            held = numbers(self.kafka(change))
        else:
            held = {tp: offset_in(node) for tp, node in self._znodes(change).items()}
        for tp, to in change.to.items():
            if held.get(tp) != number(to):
                raise refused(
                    change.group,
                    Reason.OTHER_WRITER,
                    f"{tp} was written as {show(number(to))}, but {change.target.value} now holds "
                    f"{show(held.get(tp))}: another client is writing; the group was not marked "
                    "as moved; stop that client, then plan again",
                )
        if change.target is Store.ZOOKEEPER:
            check_members(change.group, joined=self._stores.kafka.members(change.kafka_group))
            self._kafka_as_expected(change, False)

    def still_moved(
        self, group: GroupPlan, direction: Direction, after: bytes | None = None
    ) -> None:
        """Check that both stores still have the moved offsets, or newer commits in the target.

        ``after``: the marker of the move, which must still be the group's marker. The journal does
        not show this, because another operator may have undone the move, and offsets expire.
        ``None``: the move has just ended, and only the source store is compared.
        """
        ((_, state),) = read_offsets(self._stores, [group])
        if isinstance(state, Problem):
            raise unreadable(group.group, state)
        if after is not None and (state.marker is None or state.marker.data != after):
            text = f"{_moved_since(state.marker, direction.target)} since it was moved by this plan"
            raise refused(group.group, Reason.MOVED_SINCE, text)
        if state.record.interrupted:
            raise refused(group.group, Reason.UNFINISHED, UNFINISHED.why)
        for one in verify.compare(group, direction, state):
            where = f"{one.topic}-{one.partition}"
            if one.kind == verify.SOURCE:
                held_now = f"{direction.source.value} holds {show(one.found)}"
                text = f"{where}: {held_now}, not {show(one.planned)}: {one.what}, then plan again"
                raise refused(group.group, Reason.SOURCE_MOVED_ON, text)
            if one.kind == verify.BEHIND and after is not None:
                text = (
                    f"{where}: {direction.target.value} holds {show(one.found)}, less than "
                    f"{show(one.planned)}, which was moved: it expired, or was deleted or reset "
                    "since; make a new plan, which shows what to decide"
                )
                raise refused(group.group, Reason.EXPIRED, text)

    def kafka(self, change: Change) -> Held:
        """Return a group's current offsets in Kafka."""
        offsets = self._stores.fetch(change.kafka_group, change.kafka)
        return {tp: KafkaOffset(*stored) for tp, stored in offsets.items()}

    def _znodes(self, change: Change) -> dict[TopicPartition, Node | None]:
        tps = sorted({*change.zk, *change.kafka})
        paths = map(GroupPaths(change.group).offset, tps)
        return dict(zip(tps, self._stores.zk.run(read_many(paths)), strict=True))


def _moved_since(marker: MigrationMarker | None, target: Store) -> str:
    """Return what happened to a group whose marker differs from the expected one."""
    if marker is None or marker.moved_to is None:
        return "the group was rolled back"
    return "the group was moved again" if marker.moved_to is target else "the group was moved back"


def _misfit(
    change: Change,
    topics: Mapping[str, TopicState],
    ranges: Mapping[TopicPartition, LogRange],
) -> str | None:
    """Return why topics and logs do not match a change, or nothing."""
    for topic, created in change.topics.items():
        if topic not in topics or topics[topic].czxid != created:
            return f"topic {topic} was deleted since the plan was made: plan again"
    for tp, to in change.to.items():
        if tp.topic not in topics or to is None:
            continue
        log = ranges.get(tp)
        if log is None:
            return (
                f"{tp}: the brokers returned no log range: make sure that the partition has a "
                f"leader, "
                "then apply again"
            )
        if not log.earliest <= to.offset <= log.latest:
            return (
                f"{tp}: the log is {log.earliest}-{log.latest} now, which does not include "
                f"{to.offset}: plan again"
            )
    return None


def _nothing_unplanned(
    change: Change, store: Store, held: Mapping[TopicPartition, int | None]
) -> None:
    """Check that the source store has no offset that would be left behind."""
    unknown = (tp for tp, offset in held.items() if offset is not None and not change.knows(tp))
    tp = min(unknown, default=None) if store is change.source else None
    if tp is not None:
        text = f"{tp}: {store.value} holds {show(held[tp])}, which is not in the plan{_SINCE}"
        raise refused(change.group, Reason.CHANGED, text)


def _moved_on(store: Store, tp: TopicPartition, found: int | None, allowed: set[int | None]) -> str:
    expected = " or ".join(sorted(map(show, allowed)))
    return f"{tp}: {store.value} holds {show(found)}, not {expected}{_SINCE}"
