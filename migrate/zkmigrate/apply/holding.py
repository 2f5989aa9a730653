"""Holds moved groups by registration and owner znodes, where access lists cannot be used.

The process acts as a member that owns every partition. Another consumer can register, but cannot
claim a partition, and gives up after its rebalance attempts. The claims are ephemeral, so they
last as long as this process and its session. Used from one thread.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import repeat

from zkconsumer.admin import takeover
from zkconsumer.admin.ids_lock import Guard, look
from zkconsumer.admin.snapshot import list_members
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.scripts.common import Script, read_many
from zkconsumer.core.zookeeper.znodes import decode_topic, topic_path
from zkconsumer.errors import ZkConsumerError, ZkUnavailableError, ZnodeFormatError
from zkconsumer.zk.blocking import BlockingZk, or_refusal
from zkmigrate.apply import ownership
from zkmigrate.errors import MigrationError, refused
from zkmigrate.plan.table import Action, Do, decide
from zkmigrate.reasons import Reason
from zkmigrate.stores import migration_marker, record
from zkmigrate.stores.offset_znodes import offset_partitions
from zkmigrate.text import shown


class Event(Enum):
    """What happened to a group. Commands print the value, or a sentence for ``OTHER``."""

    HELD = "held"
    LOCKED = "is locked, which is enough"
    NOT_MOVED = "was not moved to Kafka"
    OTHER = ""


class Holding:
    """Groups whose partitions this process owns, so that no old consumer can read them. Groups that
    were not moved to Kafka are ignored. An event consists of the group, the kind and a sentence."""

    def __init__(self, zk: BlockingZk, groups: Iterable[str]) -> None:
        self.held: dict[str, takeover.Hold] = {}
        self._zk = zk
        self._groups = list(groups)
        self._others: dict[str, list[str]] = {}
        self._run = uuid.uuid4().hex[:8]
        self._losses = zk.losses

    def take(self, groups: Iterable[str] | None = None) -> Iterator[tuple[str, Event, str]]:
        """Claim groups, and yield the outcome of each."""
        for group in self._groups if groups is None else groups:
            hold = ownership.hold_of(group, self._run)
            try:
                event = self._zk.run(_take(hold))
            except ZkUnavailableError:
                raise
            except ZkConsumerError as error:
                yield group, Event.OTHER, str(error)
                self._zk.run(or_refusal(takeover.release(hold)))
                continue
            if event is Event.HELD:
                self.held[group] = hold
            else:  # another operator has locked it, or moved it back
                self.held.pop(group, None)
            yield group, event, event.value

    def look(self) -> Iterator[tuple[str, Event, str]]:
        """Report other members, and claim again the groups whose claims were lost with a
        session."""
        names, losses = list(self.held), self._zk.losses
        lost: list[str] = []
        owning: Iterable[bool] = repeat(True)
        if losses != self._losses:  # ZooKeeper may have been restored from a backup
            owning = self._zk.run_all(map(takeover.owns_all, self.held.values()))
        members = self._zk.run_all(map(list_members, names))
        for group, registered, owns in zip(names, members, owning, strict=False):
            hold = self.held[group]
            others = [name for name in registered if name != hold.name]
            if others != self._others.get(group, []):
                if others:
                    text = f"{shown(others)} registered in ZooKeeper and can own nothing"
                    yield group, Event.OTHER, text
                self._others[group] = others
            if hold.name not in registered or not owns:
                lost.append(group)
        for group in lost:
            text = "was briefly not held: its registration or a claim was missing"
            yield group, Event.OTHER, text
        yield from self.take(lost)
        self._losses = losses

    def release(self) -> None:
        """Release all groups."""
        for hold in self.held.values():
            self._zk.run(or_refusal(takeover.release(hold)))


def _take(hold: takeover.Hold) -> Script[Event]:
    """Claim all partitions of topics for which the group has offsets, if necessary. Return whether
    it was necessary, and whether the group may be held."""
    state = yield from migration_marker.state_of(hold.group)
    if state.faults:
        raise MigrationError("; ".join(state.faults))
    if decide(state, Action.LOCK).do is not Do.GO or state.in_live_move:
        return Event.NOT_MOVED
    if (yield from look(hold.group)).guard is Guard.LOCKED:
        return Event.LOCKED
    wanted = set((yield from offset_partitions(hold.group)))
    names = sorted({tp.topic for tp in wanted})
    paths = list(map(topic_path, names))
    for name, path, node in zip(names, paths, (yield from read_many(paths)), strict=True):
        try:
            numbers = () if node is None else decode_topic(path, node.data)
        except ZnodeFormatError:
            continue
        wanted |= {TopicPartition(name, number) for number in numbers}
    yield from ownership.take(hold, wanted, lambda _tp, _node: None)
    if (yield from record.read(hold.group)).version != state.record.version:
        raise refused(hold.group, Reason.OTHER_OPERATOR, record.MEANWHILE)
    return Event.HELD
