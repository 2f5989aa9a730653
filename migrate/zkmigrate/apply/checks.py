"""Checks that both stores match the plan or the journal: before, during and after a change.

Each raises GroupRefusedError, which names the difference. Used from one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from zkconsumer.admin.snapshot import read_group
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Node
from zkconsumer.core.zookeeper.scripts.common import read_many
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.errors import ZnodeFormatError
from zkmigrate.apply import ownership
from zkmigrate.apply.change import Change, Held
from zkmigrate.errors import check_members, refused
from zkmigrate.model import KafkaOffset, LogRange, Store, TopicState, number
from zkmigrate.reasons import Reason
from zkmigrate.stores import migration_marker
from zkmigrate.stores.group_states import foreign_znodes
from zkmigrate.stores.offset_znodes import (
    misplaced_offsets,
    misplaced_path,
    offset_in,
    offset_partitions,
)
from zkmigrate.stores.sessions import Stores
from zkmigrate.text import show, shown

_SINCE: Final = ": it was changed since; plan again from what is there now"


class Checks:
    """Compares the stores with changes.

    Args:
        stores: both, opened.
        force: accept offsets that were committed since.
    """

    def __init__(self, stores: Stores, force: bool) -> None:
        self._stores = stores
        self._force = force

    def as_expected(self, change: Change, resumed: bool, claimed: bool = False) -> Held:
        """Check that the group has no member, and that Kafka and the marker are as expected.

        Returns Kafka's offsets.

        With ``claimed`` the group is already claimed in ZooKeeper. Offsets that the plan does not
        know are looked for before and after the claim: before it, to avoid useless changes; after
        it, because no new ones can appear then.
        """
        group = change.group
        check_members(group, joined=self._stores.kafka.members(change.kafka_group))
        held = self._kafka_as_expected(change, resumed)
        self._nothing_unplanned_in_zookeeper(change)
        self._logs_hold_offsets(change, claimed)
        if claimed:
            return held
        check_members(group, self._stores.zk.run(ownership.list_members(group)))
        self._znodes_reviewed(change)
        marker = self._marker(group)
        content = None if marker is None else marker.data
        if content != change.before and not (resumed and content in change.between):
            raise refused(
                group,
                Reason.CHANGED,
                f"{migration_marker.path(group)} changed since the plan: plan again",
            )
        return held

    def _znodes_reviewed(self, change: Change) -> None:
        """Check that all znodes of unknown kinds are those that the plan leaves as they are."""
        if change.znodes is None:
            return
        snapshot = self._stores.zk.run(read_group(change.group))
        new = set() if snapshot is None else set(foreign_znodes(snapshot)) - change.znodes
        if new:
            text = f"znodes that nobody has reviewed: {shown(sorted(new))}: plan again"
            raise refused(change.group, Reason.NOT_REVIEWED, text)

    def znodes_as_expected(self, change: Change, resumed: bool) -> None:
        """Check that ZooKeeper's offsets are as expected. Claims are checked separately."""
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
        _nothing_unplanned(change, Store.KAFKA, {tp: number(stored) for tp, stored in held.items()})
        return held

    def _nothing_unplanned_in_zookeeper(self, change: Change) -> None:
        """Check that ZooKeeper holds no offset that is not planned; a claim checks the others."""
        if self._force or change.source is not Store.ZOOKEEPER:
            return
        held = self._in_zookeeper(change, lambda tp: not change.knows(tp))
        _nothing_unplanned(change, Store.ZOOKEEPER, held)
        for tp, current, planned in self._misplaced_since(change):
            text = f"{tp}: zookeeper holds {current} below offset, not {show(planned)}"
            raise refused(change.group, Reason.CHANGED, f"{text}{_SINCE}")

    def _logs_hold_offsets(self, change: Change, again: bool) -> None:
        """Check that topics are still those of the plan and that their logs hold its offsets.

        ``again``: by what the brokers show now. Otherwise what is remembered is enough to accept a
        group, but never to refuse one.
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

    def acceptor(self, change: Change, resumed: bool) -> ownership.Accept:
        """Return a function that finds differences between an offset znode and the expected
        state."""

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
        """Check that the target stores the offsets that were written."""
        if change.target is Store.KAFKA:
            held = {tp: number(stored) for tp, stored in self.kafka(change).items()}
        else:
            held = {tp: offset_in(node) for tp, node in self._znodes(change).items()}
        for tp, to in change.to.items():
            if held.get(tp) != number(to):
                raise refused(
                    change.group,
                    Reason.OTHER_WRITER,
                    f"{tp} was written as {show(number(to))} but {change.target.value} holds "
                    f"{show(held.get(tp))}: another client writes; nothing was marked as moved",
                )
        if change.target is Store.ZOOKEEPER:
            check_members(change.group, joined=self._stores.kafka.members(change.kafka_group))
            self._kafka_as_expected(change, False)

    def still_moved(self, change: Change, planned: Mapping[TopicPartition, int]) -> None:
        """Check that a move is the group's last one, and that the target has what was moved.

        ``planned``: the target's offsets after the move. It may be ahead of them. The journal alone
        does not show that: another operator may have undone the move, and offsets expire.
        """
        group, target = change.group, change.target
        node = self._marker(group)
        if node is None or node.data != change.after:
            raise refused(
                group,
                Reason.MOVED_SINCE,
                f"{_moved_since(group, node, target)} since it was moved by this plan",
            )
        self.source_unchanged(change)
        if target is Store.KAFKA:
            held = {tp: number(stored) for tp, stored in self.kafka(change).items()}
        else:
            held = self._in_zookeeper(change, lambda tp: tp in planned)
        lacking = {tp for tp, to in planned.items() if (now := held.get(tp)) is None or now < to}
        if not lacking:
            return
        topics, _ = self._stores.logs.of({tp.topic for tp in lacking})
        for tp in sorted(lacking):
            if tp.topic not in topics or tp.partition not in topics[tp.topic].partitions:
                continue  # the topic was deleted, and its offsets with it
            raise refused(
                group,
                Reason.EXPIRED,
                f"{tp}: {target.value} holds {show(held.get(tp))}, less than {planned[tp]}, which "
                "was moved: it expired, or was deleted or reset since; make a new plan, which "
                "shows what to decide",
            )

    def source_unchanged(self, change: Change) -> None:
        """Check that the source store still has the offsets that were moved.

        An offset that was deleted is not a newer offset, so nothing stays behind.
        """
        if change.source is Store.KAFKA:
            before = change.kafka
            now = {tp: number(stored) for tp, stored in self.kafka(change).items()}
        else:
            before = change.zk
            now = self._in_zookeeper(change, lambda tp: not change.leaves_out(tp))
        source = change.source.value
        found = [
            (tp, f"{source} holds {stored}", number(before.get(tp)))
            for tp, stored in sorted(now.items())
            if stored is not None and not change.leaves_out(tp)
            if stored != number(before.get(tp))
        ]
        for tp, offset, planned in self._misplaced_since(change):
            found.append((tp, f"zookeeper holds {offset} below offset", planned))
        for tp, text, moved in found[:1]:
            raise refused(
                change.group,
                Reason.SOURCE_MOVED_ON,
                f"{tp}: {text}, not {show(moved)}, since the group was moved: a consumer is or was "
                "alive; stop it, then plan again",
            )

    def _misplaced_since(self, change: Change) -> Iterator[tuple[TopicPartition, int, int | None]]:
        """Yield the offsets below ``offset`` that differ from the planned ones.

        One that was deleted does not differ, because nothing stays behind.
        """
        if change.misplaced is None:
            return
        nodes = self._stores.zk.run(misplaced_offsets(change.group))
        for tp, node in sorted(nodes.items()):
            planned = change.misplaced.get(tp)
            offset = offset_in(node, misplaced_path(change.group, tp))
            if offset not in (None, planned) and not change.leaves_out(tp):
                assert offset is not None
                yield tp, offset, planned

    def _marker(self, group: str) -> Node | None:
        (node,) = self._stores.zk.run(read_many([migration_marker.path(group)]))
        return node

    def kafka(self, change: Change) -> Held:
        """Return a group's current offsets in Kafka."""
        offsets = self._stores.fetch(change.kafka_group, change.kafka)
        return {tp: KafkaOffset(*stored) for tp, stored in offsets.items()}

    def _znodes(self, change: Change) -> dict[TopicPartition, Node | None]:
        return self._read(change, sorted({*change.zk, *change.kafka}))

    def _read(
        self, change: Change, tps: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Node | None]:
        paths = map(GroupPaths(change.group).offset, tps)
        return dict(zip(tps, self._stores.zk.run(read_many(paths)), strict=True))

    def _in_zookeeper(
        self, change: Change, wanted: Callable[[TopicPartition], bool]
    ) -> dict[TopicPartition, int | None]:
        """Return the group's wanted offsets that ZooKeeper has now. Raises ZnodeFormatError."""
        there = self._stores.zk.run(offset_partitions(change.group))
        path = GroupPaths(change.group).offset
        nodes = self._read(change, list(filter(wanted, there)))
        return {tp: offset_in(node, path(tp)) for tp, node in nodes.items()}


def _moved_since(group: str, node: Node | None, target: Store) -> str:
    """Return what has happened to a group that has another marker than expected."""
    marker = None
    if node is not None:
        try:
            marker = migration_marker.decode(migration_marker.path(group), node)
        except ZnodeFormatError as fault:
            return f"{fault}; it was changed"
    if marker is None or marker.moved_to is None:
        return "the group was rolled back"
    return "the group was moved again" if marker.moved_to is target else "the group was moved back"


def _misfit(
    change: Change,
    topics: Mapping[str, TopicState],
    ranges: Mapping[TopicPartition, LogRange],
) -> str | None:
    """Return why topics and logs do not suit a change, if they do not."""
    for topic, created in change.topics.items():
        if topic not in topics or topics[topic].czxid != created:
            return f"topic {topic} was deleted since the plan was made: plan again"
    for tp, to in change.to.items():
        if tp.topic not in topics or to is None:
            continue
        log = ranges.get(tp)
        if log is None:
            return (
                f"{tp}: the brokers gave no log range: make sure that the partition has a leader, "
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
    """Check that the source store has no offset that would stay behind."""
    unknown = (tp for tp, offset in held.items() if offset is not None and not change.knows(tp))
    tp = min(unknown, default=None) if store is change.source else None
    if tp is not None:
        text = f"{tp}: {store.value} holds {show(held[tp])}, which is not in the plan{_SINCE}"
        raise refused(change.group, Reason.CHANGED, text)


def _moved_on(store: Store, tp: TopicPartition, found: int | None, allowed: set[int | None]) -> str:
    expected = " or ".join(sorted(map(show, allowed)))
    return f"{tp}: {store.value} holds {show(found)}, not {expected}{_SINCE}"
