"""Writes the decisions for mirrored groups, in both stores.

Kafka has no versions. So each commit to Kafka is permitted shortly before it is sent, and carries
a mark, by which a late commit is detected and corrected. A write to ZooKeeper checks the versions
of the znodes that were read.

One thread uses a ``Writes``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from itertools import compress
from typing import Any, Final, NamedTuple, TypeVar

from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.scripts.common import Script, read_many
from zkconsumer.errors import LeaderUnavailableError, ZooKeeperError
from zkmigrate.apply import guard, ownership
from zkmigrate.apply.permission import MIRROR_PERMITTED_S, boottime, check_accepted
from zkmigrate.errors import GroupRefusedError
from zkmigrate.mirror.readings import Readings, Seen, or_error
from zkmigrate.model import STOPPED, Mirror, Record, Store
from zkmigrate.plan.mirror import Decision, behind, mark
from zkmigrate.reasons import Reason
from zkmigrate.stores import mirror_state, record
from zkmigrate.stores.mirror_state import InZooKeeper
from zkmigrate.stores.sessions import Stores
from zkmigrate.text import shown

T = TypeVar("T")
_READ_S: Final = 1.0
"""Seconds for which offsets in Kafka that were read before a write can be used."""
_ATTEMPTS: Final = 3
"""Number of requests for a permission until one is answered in time."""
IN_ADVANCE_S: Final = 0.1
"""Seconds, from the request on, for which a permission can be used that was requested together
with those of other groups. After that it is requested again."""


class Unwritten(NamedTuple):
    """Data still to be written to ZooKeeper: a group's new agreed state, and its offsets."""

    seen: Seen
    mirror: Mirror
    offsets: Mapping[TopicPartition, int]

    def script(self) -> Script[InZooKeeper]:
        """Write the data to ZooKeeper. Raises GroupRefusedError if the group has changed."""
        return mirror_state.write(self.seen.at, self.mirror, self.offsets)

    def after(self, at: InZooKeeper) -> Seen:
        """Return the group as it is after the write. ``at``: its data in ZooKeeper.

        Raises GroupRefusedError if another command has written the group's record since.
        """
        if at.mirror is None or at.record.version != self.seen.at.record.version:
            raise mirror_state.changed(at.group)
        return Seen(at, at.mirror, self.seen.reading)


class Writes:
    """Writes the mirror's decisions to both stores. ``readings``: receives the written data.
    ``say``: called with messages for the operator."""

    def __init__(self, stores: Stores, readings: Readings, say: Callable[[str], object]) -> None:
        self._stores, self._readings, self._say = stores, readings, say
        self._permitted: dict[str, tuple[Seen, Mapping[TopicPartition, StoredOffset], float]] = {}
        """Permissions that were asked for together: for which commit, and when."""
        self._committed: dict[str, tuple[Seen, Mapping[TopicPartition, StoredOffset]]] = {}
        """Commits that were sent together, and accepted."""
        self._settled: dict[str, tuple[Store, bool]] = {}
        """Groups whose lock was checked: which store led, and whether the record was locked."""

    def commit_together(self, some: Mapping[str, tuple[Seen, Decision, int]]) -> None:
        """Commit the decided offsets of several groups to Kafka, with few requests.

        Offsets that this does not commit remain for ``carry_out``. ``some``: the data of each
        group, the decision, and the session that has the group's lease.
        """
        began = boottime()
        seen = {name: one[0] for name, one in some.items()}
        new = {name: _commits(one[1]) for name, one in some.items()}
        there = self._readings.still_in_kafka(seen, new) if some else []
        asked = [self._asked(seen[name], new[name], some[name][2]) for name in there]
        permit = self._unless_lost(mirror_state.permit(asked), *(one.at for one in asked))
        granted = self.run(or_error(permit)) if asked else []
        if isinstance(granted, Exception):
            granted = []
        self._permitted = {  # the others are asked for one at a time
            name: (seen[name], new[name], began) for name in compress(there, granted)
        }
        commits = {name: one[1] for name, one in self._permitted.items()}
        stored = self._stores.kafka.commit_several(commits, partial(_in_time, began))
        self._committed = {name: self._permitted.pop(name)[:2] for name in stored}

    def _asked(
        self, seen: Seen, new: Mapping[TopicPartition, object], session: int
    ) -> mirror_state.Asked:
        names = {tp.topic for tp in new} if self._stores.zk.live else ()
        topics = {name: seen.reading.topics[name].czxid for name in names}
        return mirror_state.Asked(seen.at, session, topics)

    def _check_permitted(
        self, seen: Seen, new: Mapping[TopicPartition, StoredOffset | None], session: int
    ) -> None:
        """Raise GroupRefusedError if offsets may not be written to Kafka now. Raise BrokerError or
        ZooKeeperError if the check takes too long."""
        group = seen.at.group
        of, offsets, asked = self._permitted.pop(group, (None, None, 0.0))
        if of is seen and offsets == new and _in_time(asked):
            return
        for _ in range(_ATTEMPTS):
            began = boottime()
            there = self._readings.is_still_in_kafka(group, seen.reading.kafka, new)
            asked = boottime()
            permission = mirror_state.permit([self._asked(seen, new, session)])
            if not (there and all(self.run(permission, seen.at))):
                raise mirror_state.changed(group)
            now = boottime()
            late = now - asked >= MIRROR_PERMITTED_S
            if not late and now - began < _READ_S:
                return
        what = f"in {_ATTEMPTS} attempts, before a commit to group {group}"
        if late:
            limit = f"{MIRROR_PERMITTED_S:g} s"
            raise ZooKeeperError(f"ZooKeeper did not answer within {limit}, {what}")
        raise LeaderUnavailableError(f"the coordinator did not answer within {_READ_S:g} s, {what}")

    def write_all(self, unwritten: Collection[Unwritten]) -> list[str]:
        """Write the data of several groups. Return the groups that were not written, for example
        because another process has changed them."""
        changed: list[str] = []
        scripts = (or_error(self._unless_lost(one.script(), one.seen.at)) for one in unwritten)
        for one, at in zip(unwritten, self._stores.zk.run_all(scripts), strict=True):
            try:
                if isinstance(at, Exception):
                    raise at
                self._readings.keep(one.after(at))
            except (GroupRefusedError, ZooKeeperError):
                changed.append(one.seen.at.group)
        return changed

    def carry_out(
        self,
        seen: Seen,
        decision: Decision,
        session: int = 0,
        later: dict[str, Unwritten] | None = None,
    ) -> Seen:
        """Write a decision about a group, and return the group as it is afterwards.

        ``session``: the session that has the group's lease. ``later``: receives data for ZooKeeper
        that may be written together with other groups' data. Raises GroupActiveError, and
        GroupRefusedError with ``OTHER_OPERATOR``, if the group has changed.
        """
        group = seen.at.group
        if decision.stop is not None:
            return self._stop(seen, decision.stop)
        new = _commits(decision)
        gone = dict.fromkeys(sorted(decision.forget))
        of, committed = self._committed.pop(group, (None, None))
        if new and (of is not seen or committed != new):
            permit = partial(self._check_permitted, seen, new, session)
            check_accepted(group, self._stores.kafka.commit(group, new, permit), len(new))
        if gone:
            permit = partial(self._check_permitted, seen, gone, session)
            check_accepted(group, self._stores.kafka.delete(group, gone, permit), len(gone))
        known = {tp.topic for tp in decision.values}  # also topics that do not exist at present
        now = {name: one.czxid for name, one in seen.reading.topics.items()}
        topics = {name: at for name, at in {**seen.mirror.topics, **now}.items() if name in known}
        mirror = replace(seen.mirror, values=decision.values, topics=topics)
        if decision.leader is not seen.mirror.leader:
            return self._change_leader(seen._replace(mirror=mirror), decision)
        if mirror == seen.mirror and not decision.to_zookeeper:
            return seen
        unwritten = Unwritten(seen, mirror, decision.to_zookeeper)
        if later is not None:
            later[group] = unwritten
            return seen
        return unwritten.after(self.run(unwritten.script(), seen.at))

    def _stop(self, seen: Seen, why: tuple[Reason, str]) -> Seen:
        at = seen.at
        stopped = replace(seen.mirror, stopped=(why[0].value, why[1]))
        written = record.written(at.record, command="mirror", mirror=STOPPED)
        self.run(record.write(at.group, written, [mirror_state.written_op(at, stopped)]), at)
        return seen._replace(mirror=stopped)

    def _change_leader(self, seen: Seen, decision: Decision) -> Seen:
        """Let the other store lead, because its members have joined. Keep old consumers out if it
        is Kafka."""
        to = decision.leader
        at = self.lead(seen, to, decision.to_zookeeper, locked=to is Store.KAFKA)
        if to is Store.KAFKA:
            self._say(f"group {at.group}: kafka leads, as {shown(seen.reading.new)} joined")
        if at.mirror is None:
            raise mirror_state.changed(at.group)  # right after it was written
        self.settle_lock(at)
        return Seen(at, at.mirror, seen.reading)

    def settle_lock(self, at: InZooKeeper) -> None:
        """Lock or unlock a group as its record says. The process that wrote the record may have
        been killed before it did this."""
        assert at.mirror is not None
        as_read = leader, locked = at.mirror.leader, at.record.locked
        if self._settled.get(at.group) == as_read:
            return
        fault = self.run(guard.follow_record(at.group, leader is Store.KAFKA, locked))
        if fault:
            self._say(f"group {at.group}: old consumers are not locked out: {fault}")
        self._settled[at.group] = as_read

    def lead(
        self, seen: Seen, to: Store, offsets: Mapping[TopicPartition, int], **fields: Any
    ) -> InZooKeeper:
        """Let a store lead from now on. Return the group's data in ZooKeeper.

        Raises GroupRefusedError if an offset in the other store has changed since it was read. The
        other store is read again, because a member may have committed right before it left. Kafka
        is also read again before it leads, because another mirror process may have committed.
        ``offsets``: written to ZooKeeper first. ``fields``: more fields of the group's record. If
        ``to`` leads already, only these are written.
        """
        at, now_ms = seen.at, int(time.time() * 1000)
        if offsets:
            at = self.run(mirror_state.write(at, seen.mirror, offsets), at)
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
        written = record.written(at.record, mirror=to.value, **fields)
        ops = [mirror_state.written_op(at, mirror)]
        self.run(record.write(at.group, written, ops, checks=checks), at)
        return self.run(mirror_state.look(at.group))

    def run(self, script: Script[T], *ats: InZooKeeper) -> T:
        """Run a script that relies on the readings ``ats``, unless the connection has been lost
        since then. See ``unless_lost``."""
        return self._stores.zk.run(self._unless_lost(script, *ats))

    def _unless_lost(self, script: Script[T], *ats: InZooKeeper) -> Script[T]:
        return mirror_state.unless_lost(ats, lambda: self._stores.zk.losses, script)


def first_record(group: str, written: Record, mirror: Mirror) -> Script[None]:
    """Record in ZooKeeper that a group is mirrored, and create the agreed state. Raises
    GroupRefusedError."""
    where = mirror_state.path(group)
    (there,) = yield from read_many([where])
    op = record.put(where, mirror_state.encode(mirror), there.stat.version if there else -1)
    yield from record.write(group, written, then=[op])
    for path in (record.path(group), where):
        if written.version < 0 or there is None:
            yield from ownership.like_root(group, path)


def _in_time(asked: float) -> bool:
    return boottime() - asked < IN_ADVANCE_S


def _commits(decision: Decision) -> dict[TopicPartition, StoredOffset]:
    return {tp: StoredOffset(one, -1, mark(one)) for tp, one in decision.to_kafka.items()}
