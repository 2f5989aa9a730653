"""Writes what was decided for mirrored groups, in both stores.

Kafka has no versions. So each commit there is permitted right before it is sent, and carries a
mark: a late one is recognized and put right. A write to ZooKeeper names the versions of what was
read.

One thread uses a ``Writes``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.scripts.common import Script
from zkmigrate.apply import guard
from zkmigrate.apply.permission import check_accepted
from zkmigrate.mirror.readings import Readings, Seen
from zkmigrate.model import STOPPED, Store
from zkmigrate.plan.mirror import Decision, behind, decide, mark
from zkmigrate.reasons import Reason
from zkmigrate.stores import mirror_state, record
from zkmigrate.stores.mirror_state import InZooKeeper
from zkmigrate.stores.sessions import Stores
from zkmigrate.text import shown

T = TypeVar("T")
_PERMITTED_S: Final = 1.0
"""Seconds that a permission may take. This process was perhaps suspended if it took longer."""
_ATTEMPTS: Final = 3
"""How often it is asked for until it comes in time."""


class Writes:
    """Writes to both stores.

    Args:
        stores: both, opened.
        readings: gets what was written.
        say: called with remarks for people.
    """

    def __init__(self, stores: Stores, readings: Readings, say: Callable[[str], object]) -> None:
        self._stores, self._readings, self._say = stores, readings, say
        self._settled: dict[str, tuple[Store, bool]] = {}
        """Groups whose lock was looked at: which store led, and whether the record was locked."""

    def copied(self, seen: Seen, refresh: bool = False, session: int = 0) -> tuple[Seen, Decision]:
        """Decide and carry it out. Raises as ``carry_out``."""
        decision = decide(seen.reading, seen.mirror, refresh)
        return self.carry_out(seen, decision, session), decision

    def carry_out(self, seen: Seen, decision: Decision, session: int = 0) -> Seen:
        """Write what was decided; return the group as it is then.

        Raises GroupRefusedError with ``OTHER_OPERATOR``, and GroupActiveError, if it has changed.
        """
        at, group = seen.at, seen.at.group
        if decision.stop is not None:
            return self._stop(seen, decision.stop)

        def permit(new: Mapping[TopicPartition, StoredOffset | None]) -> None:
            names = {tp.topic for tp in new} if self._stores.zk.live else ()
            topics = {name: seen.reading.topics[name].czxid for name in names}
            for _ in range(_ATTEMPTS):
                began = time.monotonic()
                there = self._readings.is_still_in_kafka(group, seen.reading.kafka, new)
                if not (there and self._zk(mirror_state.permit(at, session, topics))):
                    break
                if time.monotonic() - began < _PERMITTED_S:
                    return
            raise mirror_state.changed(group)

        new = {tp: StoredOffset(one, -1, mark(one)) for tp, one in decision.to_kafka.items()}
        gone = dict.fromkeys(sorted(decision.forget))
        if new:
            failed = self._stores.kafka.commit(group, new, partial(permit, new))
            check_accepted(group, failed, len(new))
        if gone:
            failed = self._stores.kafka.delete(group, gone, partial(permit, gone))
            check_accepted(group, failed, len(gone))
        known = {tp.topic for tp in decision.values}  # also topics that do not exist at present
        now = {name: one.czxid for name, one in seen.reading.topics.items()}
        topics = {name: at for name, at in {**seen.mirror.topics, **now}.items() if name in known}
        mirror = replace(seen.mirror, values=decision.values, topics=topics)
        if decision.leader is not seen.mirror.leader:
            return self._change_leader(seen._replace(mirror=mirror), decision)
        if mirror != seen.mirror or decision.to_zookeeper:
            at = self._zk(mirror_state.write(at, mirror, decision.to_zookeeper))
        if at.mirror is None or at.record.version != seen.at.record.version:
            raise mirror_state.changed(group)  # right after it was written
        return Seen(at, at.mirror, seen.reading)

    def _stop(self, seen: Seen, why: tuple[Reason, str]) -> Seen:
        at, now_ms = seen.at, int(time.time() * 1000)
        stopped = replace(seen.mirror, stopped=(why[0].value, why[1]))
        written = record.written(at.record, now_ms, command="mirror", mirror=STOPPED)
        self._zk(record.write(at.group, written, [mirror_state.written_op(at, stopped)]))
        return seen._replace(mirror=stopped)

    def _change_leader(self, seen: Seen, decision: Decision) -> Seen:
        """Let the other store lead, whose members have come; keep old consumers out of Kafka."""
        to = decision.leader
        at = self.lead(seen, to, decision.to_zookeeper, locked=to is Store.KAFKA)
        if to is Store.KAFKA:
            self._say(f"group {at.group}: kafka leads, as {shown(seen.reading.new)} joined")
        if at.mirror is None:
            raise mirror_state.changed(at.group)  # right after it was written
        self.settle_lock(at)
        return Seen(at, at.mirror, seen.reading)

    def settle_lock(self, at: InZooKeeper) -> None:
        """Let the lock follow the record: the process that wrote that may have been killed."""
        assert at.mirror is not None
        as_read = leader, locked = at.mirror.leader, at.record.locked
        if self._settled.get(at.group) == as_read:
            return
        now_ms, in_kafka = int(time.time() * 1000), leader is Store.KAFKA
        fault = self._zk(guard.follow_record(at.group, in_kafka, locked, now_ms))
        if fault:
            self._say(f"group {at.group}: old consumers are not locked out: {fault}")
        self._settled[at.group] = as_read

    def lead(
        self, seen: Seen, to: Store, offsets: Mapping[TopicPartition, int], **fields: Any
    ) -> InZooKeeper:
        """Let a store lead from now on, if no offset has changed in the other since the reading.

        The other store is read again: a member that had left when members were read may have
        committed right before, after the offsets were read. So is Kafka before it leads: a mirror
        with an older reading may have committed what it had read. ``offsets``: written to ZooKeeper
        first. ``fields``: more of the group's record; only these change if ``to`` leads already.
        """
        at, now_ms = seen.at, int(time.time() * 1000)
        if offsets:
            at = self._zk(mirror_state.write(at, seen.mirror, offsets))
            if any(at.offsets[tp].offset != one for tp, one in offsets.items() if tp in at.offsets):
                raise mirror_state.changed(at.group)
        again = self._readings.read(at.group).reading
        back = again.of_clients != seen.reading.of_clients
        moved = again.zk != at.offsets if to is Store.KAFKA else back
        late = to is Store.KAFKA and not again.new and behind(again, Store.ZOOKEEPER)
        if moved or late:
            raise mirror_state.changed(at.group)
        mirror, checks = seen.mirror, mirror_state.checks(at)
        if to is mirror.leader:
            checks = ()  # old members may run
        else:
            mirror = replace(mirror, leader=to, since_ms=now_ms)
        written = record.written(at.record, now_ms, mirror=to.value, **fields)
        ops = [mirror_state.written_op(at, mirror)]
        self._zk(record.write(at.group, written, ops, checks=checks))
        return self._zk(mirror_state.look(at.group))

    def _zk(self, script: Script[T]) -> T:
        return self._stores.zk.run(script)
