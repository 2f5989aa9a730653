"""Keeps both stores of groups in step, and changes which of them leads.

Every change of a mirrored group is based on one reading, and checks the versions of all znodes
that were read: the group's record, the mirror's agreed state, and the offset znodes. So a mirror,
a cut-over and an undo may run at the same time, in any processes. A command with an outdated
reading changes nothing and reads again. Kafka has no such versions. So each commit to Kafka is
permitted shortly before it is sent, and carries a mark, by which a late commit is detected and
corrected.

One thread uses a ``Mirroring``.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from threading import Event
from typing import Final, TypeGuard, TypeVar

from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.core.migration.modes import Mode
from zkconsumer.core.zookeeper.ops import Create, Delete, SetData
from zkconsumer.errors import (
    BrokerError,
    GroupActiveError,
    ZkUnavailableError,
    ZooKeeperError,
)
from zkconsumer.zk.blocking import or_refusal
from zkmigrate.apply import guard, ownership
from zkmigrate.apply.outcome import Outcome, Result, by_table, not_read, result_of
from zkmigrate.apply.permission import MIRROR_PERMISSIONS_END_S, check_accepted
from zkmigrate.errors import GroupInUseError, GroupRefusedError, check_members, refused
from zkmigrate.mirror.readings import Look, Readings, Seen, Together
from zkmigrate.mirror.step import ENDED, IN_STEP, STANDBY, Lateness, Step
from zkmigrate.mirror.writes import Unwritten, Writes, first_record
from zkmigrate.model import STOPPED, GroupState, KafkaOffset, Mirror, Record, Store
from zkmigrate.plan.mirror import (
    Decision,
    behind,
    decide,
    expired,
    first_leader,
    is_marked,
    reading_of,
)
from zkmigrate.plan.table import Action, Do, decide as decide_by_table
from zkmigrate.reasons import Reason
from zkmigrate.stores import migration_marker, mirror_state, record
from zkmigrate.stores.group_states import read_states
from zkmigrate.stores.mirror_state import END, Asked, InZooKeeper
from zkmigrate.stores.offset_znodes import misplaced_offsets, misplaced_root, offsets_at
from zkmigrate.stores.sessions import Stores
from zkmigrate.text import moment, shown

T = TypeVar("T")
_POLL: Final = 0.2
"""Seconds between checks of a group that is waited for."""
_AGAIN: Final = 10
"""Number of times that a group is read again because it changed, before this is reported."""
REFRESH_S: Final = 6 * 3600.0
"""Longest time in seconds until offsets in Kafka are committed again. It is a quarter of the
shortest default retention, or of the brokers' retention if that is shorter than a day."""
READ_AGAIN_S: Final = 10.0
"""Seconds after which a group is read again although no watch has fired, unless there are many."""
GROUPS_PER_S: Final = 60
"""Number of groups that are read again per second, at most. So the idle load does not grow with
the number of groups."""
_ALL: Final = 10
"""Number of such intervals after which all of a group's data in ZooKeeper is read again, in case a
watch was lost."""
_TOGETHER: Final = 64
"""Number of groups that are read and copied together."""
START: Final = "the new program may start"
CUT_OVER: Final = Action.CUT_OVER.value
"""Command in the record of a locked group that waits for its old members to leave."""


_UNSURE: Final = {Reason.HIDDEN, Reason.UNREADABLE, Reason.MISPLACED, Reason.UNPROVEN}
"""Why the stores of a group cannot be compared."""
_KAFKA_LEADS: Final = (Store.KAFKA.value, IN_STEP)
_QUIET: Final = (IN_STEP, STANDBY, STOPPED, ENDED)
"""States of groups that are read again only if a watch fires, or Kafka leads and has changed."""


class Mirroring:
    """Keeps groups' offsets in ZooKeeper and Kafka in step. ``say``: called with messages for the
    operator. ``stopped``: when set, waiting ends early."""

    def __init__(
        self,
        stores: Stores,
        say: Callable[[str], object] = lambda text: None,
        stopped: Event | None = None,
    ) -> None:
        self._stores = stores
        self._say = say
        self._stopped = stopped or Event()
        self._run = uuid.uuid4().hex[:8]
        self._met: set[str] = set()
        """Groups whose lease was checked."""
        self._refreshed: dict[str, float] = {}
        """When all offsets of a group in Kafka were last committed."""
        self._period: float | None = None
        """Seconds until all offsets are committed again."""
        self._late = Lateness()
        self._had_members: set[str] = set()
        """Groups in which an old member was seen since the connection was established."""
        self._losses = 0
        """``losses`` of the connection when its watches were last set."""
        self._quiet: dict[str, tuple[Step, float]] = {}
        """Groups that need not be read again before a certain time unless a watch fires."""
        self._woken: set[str] = set()
        """Quiet groups for which a watch has fired."""
        self._decided: dict[str, tuple[Seen, Decision, bool]] = {}
        """Decisions about groups that are copied at the same time, and the readings behind them."""
        self._readings = Readings(stores)
        self._writes = Writes(stores, self._readings, say)
        self._zk = self._writes.run
        self._said: dict[str, tuple[str, ...]] = {}

    # -- begin and end -------------------------------------------------------------------------

    def begin(
        self, groups: Iterable[str], lead: Store | None, execute: bool, again: bool = False
    ) -> Iterator[Result]:
        """Start to mirror groups. Yield the outcome of each, even if it is already mirrored.

        ``lead``: the store whose offsets replace those of the other store, if they differ. ``lead``
        also restarts a stopped mirror. ``again``: the group was refused at an earlier attempt. Then
        ``lead`` is ignored, because the stores may have changed since the operator chose it.
        """
        others: list[str] = []
        names = list(groups)
        scripts = (or_refusal(migration_marker.state_of(name)) for name in names)
        for name, known in zip(names, self._stores.zk.run_all(scripts), strict=True):
            found = known.record if isinstance(known, GroupState) else Record()
            if (again and found.mirror) or (lead is None and found.mirror_leads):
                yield Result(name, Outcome.WAS_DONE, 0)  # its steps show what prevents it now
            else:
                others.append(name)
        own = {name: name for name in others}  # also if it was moved under another one before
        for state in read_states(self._stores, others, {}, False, own) if others else ():
            if isinstance(state, tuple):
                yield not_read(*state)
            else:
                work = partial(self._begin, state, lead, execute, again)
                yield result_of(state.group, work)

    def _begin(self, state: GroupState, lead: Store | None, execute: bool, late: bool) -> Result:
        """Start the mirror of one group. Raises GroupRefusedError, ZooKeeperError."""
        group = state.group
        mirrored = state.record.mirror
        again = mirrored == STOPPED or (mirrored and state.mirror is None)
        refusal = None if again and lead else by_table(state, Action.MIRROR)
        if refusal is None and state.migratable:  # the group was prepared for a live move
            text = f"migratable members run: {shown(state.migratable)}"
            return Result(group, Outcome.SKIPPED, 0, text, (Reason.LIVE_MOVE,))
        if refusal is not None:
            leads = state.record.mirror_leads
            if lead is not None and leads is lead.other:
                command = "cut-over" if leads is Store.ZOOKEEPER else "undo"
                why = f"{leads.value} leads: run zkmigrate {command} to change that"
                self._say(f"group {group}: --lead {lead.value} was ignored, as {why}")
            return refusal
        before = {} if state.mirror is None else state.mirror.values
        leader, agreed = first_leader(reading_of(state), lead, before, overwrite=not late)
        if isinstance(leader, Reason):
            return Result(group, Outcome.REFUSED, 0, str(agreed), (leader,))
        assert not isinstance(agreed, str)
        if not execute:
            return Result(group, Outcome.WOULD, 0, f"{leader.value} leads")
        now_ms = int(time.time() * 1000)
        chosen = {  # by --lead kafka. A mark would look like that of a late commit
            tp: StoredOffset(one.offset)
            for tp, one in state.kafka.items()
            if leader is Store.KAFKA and is_marked(one) and agreed.get(tp, one.offset) != one.offset
        }

        def permit() -> None:
            if not self._readings.is_still_in_kafka(group, state.kafka, chosen):
                raise mirror_state.changed(group)

        with suppress(GroupActiveError):
            check_accepted(group, self._stores.kafka.commit(group, chosen, permit), len(chosen))
            chosen = {}
        topics = {name: one.czxid for name, one in state.topics.items()}
        mirror = Mirror(leader, now_ms, agreed, topics)
        # ZooKeeper leads again, after a cut-over and a stop: its members may start.
        ends = bool(again) and state.record.locked and leader is Store.ZOOKEEPER
        locked = state.record.locked and not ends
        fields = {"command": "mirror", "mirror": leader.value, "locked": locked}
        written = record.written(state.record, **fields)
        self._zk(first_record(group, written, mirror))
        if ends:
            self._zk(guard.let_in(group))
        if chosen:  # it keeps its mark, as members run. So both stores have it from now on
            offsets = {tp: one.offset for tp, one in chosen.items()}
            self._zk(mirror_state.write(self._zk(mirror_state.look(group)), mirror, offsets))
        return Result(group, Outcome.DONE, 0, f"{leader.value} leads")

    def end(self, group: str, execute: bool) -> Result:
        """End a group's mirror. ZooKeeper must lead, or have led when the mirror stopped.

        Deletes the offsets that the mirror committed to Kafka. Old members that a cut-over has
        locked out may register again. Raises GroupRefusedError.
        """
        return self._until(group, partial(self._end, group, execute), 0.0)

    def _end(self, group: str, execute: bool) -> Result:
        state = self._zk(migration_marker.state_of(group))
        if state.faults:
            return by_table(state, Action.CUT_OVER) or Result(group, Outcome.FAILED, 0)
        found = state.record
        ended = not found.mirror
        mirror, _ = (None, "") if ended else self._zk(mirror_state.read_mirror(group))
        if mirror is not None and mirror.leader is Store.KAFKA:
            text = "kafka leads: run zkmigrate undo first, or zkmigrate complete"
            raise refused(group, Reason.MIRRORED, text)
        if execute and found.cut_over_waits:
            undone = self.back(group, True, 0.0)
            if undone.outcome is Outcome.REFUSED:
                return undone
            raise mirror_state.changed(group)  # by that
        if not ended and execute:
            written = record.written(found, command=END, mirror="", locked=False)
            gone = [] if mirror is None else [Delete(mirror_state.path(group), mirror.version)]
            found = self._zk(record.write(group, written, then=gone))
        if execute and found.command == END:
            self._zk(guard.let_in(group))
        stored = {tp: KafkaOffset(*one) for tp, one in self._stores.fetch(group, []).items()}
        ours = [tp for tp, one in sorted(stored.items()) if is_marked(one)]
        other = state.moved_to is Store.KAFKA or state.mode is not Mode.ZOOKEEPER
        if ended and (other or not ours):
            return Result(group, Outcome.NOTHING, 0, "is not mirrored", (Reason.NOT_MIRRORED,))
        if not execute:
            return Result(group, Outcome.WOULD, 0)

        def permit() -> None:
            there = self._readings.is_still_in_kafka(group, stored, dict.fromkeys(ours))
            serial = found.version
            if not there or (serial >= 0 and not self._zk(record.is_still(group, serial))):
                raise mirror_state.changed(group)

        check_accepted(group, self._stores.kafka.delete(group, ours, permit), len(ours))
        return Result(group, Outcome.DONE, len(ours))

    # -- one pass ------------------------------------------------------------------------------

    def steps(self, groups: Iterable[str], when_empty: bool = False) -> Iterator[Step]:
        """Copy groups' offsets once. Yield the result for each group, in any order.

        Where ZooKeeper leads, a group is read if one of its watches has fired, and at least every
        ``READ_AGAIN_S`` seconds; for many groups, see ``GROUPS_PER_S``. Only znodes whose watch has
        fired are read. Where Kafka leads, the group's offsets in Kafka are also read each time.

        ``when_empty``: cut a group over as soon as its last old member has left. The group must
        have had an old member since the connection to ZooKeeper was established, or another process
        must have started the cut-over.
        """
        every = list(groups)
        again_s = max(READ_AGAIN_S, len(every) / GROUPS_PER_S)
        self._readings.keep_s = _ALL * again_s
        due, moved = list[str](), set[str]()
        for start in range(0, len(every), _TOGETHER):
            self._note_fired()
            now = time.monotonic()
            some = every[start : start + _TOGETHER]
            quiet = {name: self._quiet[name] for name in some if name in self._quiet}
            # Also those that are due, so that the same groups are asked for together each time.
            asked = [name for name, (step, _) in quiet.items() if step[1:3] == _KAFKA_LEADS]
            moved |= self._readings.moved(asked, start)
            for name in some:
                step, until = quiet.get(name, (None, 0.0))
                if step is None or now >= until or name in moved or name in self._woken:
                    due.append(name)
                else:
                    yield step
            while len(due) >= _TOGETHER or (due and name == every[-1]):
                yield from self._read_and_copy(due[:_TOGETHER], moved, when_empty, again_s)
                del due[:_TOGETHER]

    def _read_and_copy(
        self, names: Sequence[str], moved: Collection[str], when_empty: bool, again_s: float
    ) -> Iterator[Step]:
        """Bring some groups into step that may have changed. ``moved``: those whose offsets in
        Kafka have. ``again_s``: seconds after which they are read again in any case."""
        # If this pass fails, the next one compares all of these groups.
        quiet = {name: self._quiet.pop(name) for name in names if name in self._quiet}
        looks = dict(zip(names, self._readings.look(names), strict=True))
        for name in (self._woken & quiet.keys() & self._readings.unchanged).difference(moved):
            if time.monotonic() < quiet[name][1]:  # it was woken by this object's own write
                self._quiet[name] = quiet[name]
                del looks[name]
                yield quiet[name][0]
        self._woken.difference_update(names)
        together = self._readings.complete_together(filter(self._is_ours, looks.values()))
        for one in self._steps(looks, together, when_empty):
            step = self._late.timed(one)
            if step.state in _QUIET:
                until = time.monotonic() + again_s * random.uniform(0.5, 1.0)
                self._quiet[step.group] = (step._replace(copied=0), until)
            yield step

    def _note_fired(self) -> None:
        """Mark groups to be read whose watches have fired."""
        self._losses = self._stores.zk.losses
        fired = self._readings.fired()
        if fired is None:
            self._quiet.clear()
            self._woken.clear()
            self._had_members.clear()  # sessions may have ended although their programs run
        self._woken |= self._quiet.keys() & (fired or ())

    def _is_ours(self, at: Look) -> TypeGuard[InZooKeeper]:
        """Whether this object is known to mirror a group."""
        if isinstance(at, Exception) or at.mirror is None or at.mirror.stopped is not None:
            return False
        return bool(mirror_state.lease_of(at.lease, self._run))

    def _steps(
        self, looks: Mapping[str, Look], together: Together, when_empty: bool
    ) -> Iterable[Step]:
        """Bring some groups into step. Their permissions are asked for together, they are committed
        together, and what was agreed on is written together, because a request takes longer than
        the work for it."""
        permissions: dict[str, tuple[Seen, Decision, int]] = {}
        self._decided.clear()
        with suppress(BrokerError):  # the step of each group reports it
            for name, seen in together.of_all(looks).items():
                decision, due = self._decide(seen)
                self._decided[name] = seen, decision, due
                # A late commit would last where Kafka leads. So it is permitted right before.
                shared = decision.leader is Store.ZOOKEEPER and decision.stop is None
                if shared and decision.to_kafka and _unsure(seen) is None:
                    session = mirror_state.lease_of(seen.at.lease, self._run)
                    permissions[name] = seen, decision, session
        self._writes.commit_together(permissions)
        later: dict[str, Unwritten] = {}
        steps = {
            name: self._step(name, at, together, when_empty, later) for name, at in looks.items()
        }
        for name in self._writes.write_all(later.values()):
            steps[name] = self._step(name, self._readings.look_afresh(name), None, when_empty)
        return steps.values()

    def _step(
        self,
        name: str,
        at: Look,
        together: Together | None,
        when_empty: bool,
        later: dict[str, Unwritten] | None = None,
    ) -> Step:
        for _ in range(_AGAIN):
            if isinstance(at, Exception):
                return Step(name, "", "failed", why=str(at), reasons=(Reason.UNREADABLE,))
            leader, since = "", ""
            if at.mirror is not None:
                leader, since = at.mirror.leader.value, moment(at.mirror.since_ms)
            try:
                if at.mirror is None:
                    if mirror_state.lease_of(at.lease, self._run):
                        self._clean_up(name)
                    return Step(name, "", ENDED)
                if at.mirror.stopped is not None:
                    code, text = at.mirror.stopped
                    return Step(name, leader, STOPPED, since, "", text, _stopped(Reason(code)))
                at = self._with_lease(at)
                session = mirror_state.lease_of(at.lease, self._run)
                if not session:
                    by = "" if at.lease is None else at.lease.data.decode(errors="replace")
                    text = f"{by.partition(' ')[0]} mirrors it"
                    return Step(name, leader, STANDBY, since, "", text)
                self._writes.settle_lock(at)
                if at.old:
                    self._had_members.add(name)
                elif when_empty and self._may_cut_over(at):
                    result = self.cut_over(name, True, 0)
                    if result.outcome is Outcome.FAILED or _UNSURE.intersection(result.reasons):
                        state, why = result.outcome.value, result.why
                        return Step(name, leader, state, since, "", why, result.reasons)
                    self._had_members.discard(name)
                    self._say(f"group {name}: {result.why or result.outcome.value}")
                    at, together = self._readings.look_afresh(name), None
                    continue
                read = together and together.of(name)
                seen = read or self._readings.complete(at)
                if unsure := _unsure(seen):
                    return Step(name, leader, "refused", since, "", unsure.why, unsure.reasons)
                decision, due = self._decide(seen)
                seen = self._writes.carry_out(seen, decision, session, later)
                if due:
                    self._refreshed[name] = time.monotonic()
                if not later or name not in later:
                    self._readings.keep(seen)
            except ZkUnavailableError:
                raise
            except (GroupActiveError, GroupRefusedError) as error:
                if not isinstance(error, GroupRefusedError) or (
                    error.reason is Reason.OTHER_OPERATOR
                ):
                    # Another process or member was faster.
                    at, together = self._readings.look_afresh(name), None
                    continue
                return Step(name, leader, "refused", since, "", str(error), (error.reason,))
            except (BrokerError, ZooKeeperError) as error:
                away = isinstance(error, BrokerError) and error.retriable
                reason = Reason.COORDINATOR_AWAY if away else Reason.UNREADABLE
                return Step(name, leader, "failed", since, "", str(error), (reason,))
            return self._after(seen, decision)
        text = "it changes faster than it is read"
        return Step(name, leader, "behind", why=text, reasons=(Reason.OTHER_OPERATOR,))

    def _after(self, seen: Seen, decision: Decision) -> Step:
        name, mirror = seen.at.group, seen.mirror
        since = moment(mirror.since_ms)
        if decision.notes != self._said.get(name, ()):
            self._said[name] = decision.notes
            for note in decision.notes:
                self._say(f"group {name}: {note}")
        if decision.stop is not None:
            reason, text = decision.stop
            return Step(name, mirror.leader.value, STOPPED, since, "", text, _stopped(reason))
        return Step(name, mirror.leader.value, IN_STEP, since, copied=decision.copies)

    def _decide(self, seen: Seen) -> tuple[Decision, bool]:
        """Return the decision about a group, which may have been made before, and whether to
        commit its offsets in Kafka again."""
        name = seen.at.group
        before = self._decided.get(name)
        if before is not None and before[0] is seen:
            return before[1:]
        if self._period is None:
            self._period = min(REFRESH_S, self._stores.retention().minutes * 60 / 4)
        due = time.monotonic() - self._refreshed.get(name, -inf) > self._period
        return decide(seen.reading, seen.mirror, due), due

    def _may_cut_over(self, at: InZooKeeper) -> bool:
        """Whether the last old member of a group has left, as seen by this or another process."""
        assert at.mirror is not None
        begun = at.record.locked and at.record.command == CUT_OVER
        connected = self._stores.zk.losses == self._losses  # else members may run without sessions
        left = connected and at.group in self._had_members
        return at.mirror.leader is Store.ZOOKEEPER and (begun or left)

    def _with_lease(self, at: InZooKeeper) -> InZooKeeper:
        """Take the lease of a group if it is free. Return the group with its lease."""
        first = at.group not in self._met
        self._met.add(at.group)
        free = at.lease is None
        if first and not mirror_state.lease_of(at.lease, self._run):
            # Also one that no answer has confirmed. A process here may just have been killed.
            free = free or self._zk(mirror_state.free_lease(at))
        if not free:
            return at
        return at._replace(lease=self._zk(mirror_state.take_lease(at.group, self._run)))

    # -- the commands --------------------------------------------------------------------------

    def cut_over(self, group: str, execute: bool, wait: float) -> Result:
        """Let Kafka lead, so that the group's new program may start.

        Locks out old members, waits up to ``wait`` seconds until they have left, and copies their
        last offsets.
        """
        state = self._zk(migration_marker.state_of(group))
        refusal = by_table(state, Action.CUT_OVER)
        if refusal is not None:
            return refusal
        if unsure := _unsure(self._readings.read(group)):  # before old members are locked out
            return unsure
        if not execute:
            return Result(group, Outcome.WOULD, 0)
        fields = {"command": CUT_OVER, "locked": True}
        begun = self._zk(record.write(group, record.written(state.record, **fields)))
        since = time.monotonic()
        fault = self._zk(guard.lock(group))
        if fault is not None and fault != guard.UNLOCKED_MEANWHILE:
            self._zk(record.write(group, record.written(begun, locked=False)))
            return Result(group, Outcome.FAILED, 0, fault, (Reason.CANNOT_LOCK,))
        copied = 0

        def once() -> Result:
            nonlocal copied
            seen = self._readings.read(group)
            if not seen.at.record.locked:
                reasons = (Reason.OTHER_OPERATOR,)
                return Result(group, Outcome.REFUSED, copied, guard.UNLOCKED_MEANWHILE, reasons)
            if unsure := _unsure(seen):
                return unsure
            check_members(group, seen.reading.old)
            nodes = map(seen.reading.zk.get, seen.reading.partitions())
            if faults := [one.fault for one in nodes if one is not None and one.fault]:
                return Result(group, Outcome.REFUSED, copied, shown(faults), (Reason.UNREADABLE,))
            seen, result = self._copied(seen, copied)
            copied = result.offsets
            if result.outcome is not Outcome.DONE:
                return result
            if seen.mirror.leader is Store.ZOOKEEPER:  # no mirror has seen the first new member
                # A mirror may still use a permission from before the group was locked.
                time.sleep(max(0.0, since + MIRROR_PERMISSIONS_END_S - time.monotonic()))
                self._writes.lead(seen, Store.KAFKA, {}, command=CUT_OVER, locked=True)
            return replace(result, why=START)

        return self._locked(group, partial(self._until, group, once, wait, Action.CUT_OVER))

    def back(self, group: str, execute: bool, wait: float) -> Result:
        """Let ZooKeeper lead again, and let old members in.

        Waits up to ``wait`` seconds until the new members have left, and copies their last offsets.
        """
        state = self._zk(migration_marker.state_of(group))
        done = by_table(state, Action.UNDO) or self._zk(guard.nothing_to_unlock(state))
        if done is not None:
            return done
        if not execute:
            return Result(group, Outcome.WOULD, 0)
        copied = 0

        def once() -> Result:
            nonlocal copied
            seen = self._readings.read(group)
            check_members(group, joined=seen.reading.new)
            waits = seen.mirror.leader is Store.ZOOKEEPER  # a cut-over, so nothing is copied
            if not waits and (unsure := _unsure(seen)):
                return unsure
            seen, result = self._copied(seen, copied, only_stop=waits)
            copied = result.offsets
            if result.outcome is Outcome.DONE:
                fields = {"command": "undo", "by_undo": False, "locked": False}
                self._writes.lead(seen, Store.ZOOKEEPER, {}, **fields)
            return result

        result = self._until(group, once, wait, Action.UNDO)
        if result.outcome is Outcome.DONE:
            self._zk(guard.let_in(group))
            self._zk(guard.check_unlocked(group))
        return result

    def _copied(self, seen: Seen, before: int, only_stop: bool = False) -> tuple[Seen, Result]:
        """Copy the offsets that differ. ``before``: number of offsets copied earlier.
        ``only_stop``: copy nothing, but stop the mirror if necessary."""
        decision, group = decide(seen.reading, seen.mirror), seen.at.group
        if decision.stop is None and only_stop:
            return seen, Result(group, Outcome.DONE, before)
        seen = self._writes.carry_out(seen, decision)
        if decision.stop is not None:
            reason, text = decision.stop
            return seen, Result(group, Outcome.REFUSED, before, text, (reason,))
        return seen, Result(group, Outcome.DONE, before + decision.copies)

    def complete(self, group: str, execute: bool, wait: float) -> Result:
        """End the mirror of a group in which Kafka leads. The group then counts as moved, as after
        ``apply``."""
        state = self._zk(migration_marker.state_of(group))
        refusal = by_table(state, Action.COMPLETE)
        if refusal is not None:
            return refusal

        def once() -> Result:
            seen = self._readings.read(group)
            if seen.mirror.leader is not Store.KAFKA:
                raise mirror_state.changed(group)
            check_members(group, seen.reading.old)
            if unsure := _unsure(seen):
                return unsure
            decision = decide(seen.reading, seen.mirror)
            if decision.stop is not None:
                if not all(self._zk(mirror_state.permit([Asked(seen.at, 0, {})]), seen.at)):
                    raise mirror_state.changed(group)
                return Result(group, Outcome.REFUSED, 0, decision.stop[1], decision.stop[:1])
            if not execute:
                return Result(group, Outcome.WOULD, 0)
            lock = self._zk(guard.lock_found(group, exactly=True))
            if lock == guard.UNLOCKED_MEANWHILE:
                raise mirror_state.changed(group)
            if isinstance(lock, str):
                return Result(group, Outcome.FAILED, 0, lock, (Reason.CANNOT_LOCK,))
            seen = self._writes.carry_out(seen, decision)
            again, agreed = self._readings.complete(seen.at).reading, seen.mirror.values
            late = behind(again, Store.KAFKA) or expired(again, agreed)
            moved = any(
                agreed.get(tp, one.offset) != one.offset for tp, one in seen.at.offsets.items()
            )
            if moved or (late and not seen.reading.new):
                raise mirror_state.changed(group)
            self._mark(seen.at)
            return Result(group, Outcome.DONE, decision.copies)

        work = partial(self._until, group, once, wait, Action.COMPLETE)
        return self._locked(group, work) if execute else work()

    def _mark(self, at: InZooKeeper) -> None:
        """Write the migration marker, and the record that the group is no longer mirrored."""
        assert at.mirror is not None
        group, where = at.group, migration_marker.path(at.group)
        now_ms = int(time.time() * 1000)
        zk = {tp: one.offset for tp, one in at.offsets.items() if one.offset is not None}
        below = self._zk(misplaced_offsets(group))
        misplaced = offsets_at(misplaced_root(group), below.items())
        after = migration_marker.encode(Store.KAFKA, now_ms, zk, misplaced=misplaced)
        there = self._zk(migration_marker.state_of(group)).marker is not None
        written = record.moved(at.record, "complete", mirror="")
        ops = (
            SetData(where, after) if there else Create(where, after),
            Delete(mirror_state.path(group), at.mirror.version),
        )
        self._zk(record.write(group, written, ops, checks=mirror_state.checks(at)), at)
        self._zk(ownership.like_root(group, where))

    def _until(
        self, group: str, once: Callable[[], Result], wait: float, action: Action | None = None
    ) -> Result:
        """Repeat an action until it succeeds, or until ``wait`` seconds have passed while members
        run. Then raises its last error. Other refusals are raised immediately.

        If another process was faster, the action is repeated immediately, unless its command can
        no longer start, or the group is no longer mirrored.
        """
        deadline = time.monotonic() + wait
        conflicts = 0
        said = False
        while True:
            try:
                return once()
            except (GroupActiveError, GroupRefusedError) as error:
                if isinstance(error, GroupRefusedError) and error.reason is Reason.OTHER_OPERATOR:
                    state = self._zk(migration_marker.state_of(group))
                    ended = not state.record.mirror
                    if action and (ended or decide_by_table(state, action).do is Do.REFUSE):
                        why = ": ".join(record.overtaken(state.record))
                        return Result(group, Outcome.REFUSED, 0, why, (Reason.OTHER_OPERATOR,))
                    conflicts += 1
                    if conflicts == _AGAIN:
                        raise
                    if conflicts > 1:
                        time.sleep(_POLL)
                    continue
                old = isinstance(error, GroupInUseError) and error.reason is Reason.LIVE_MEMBER
                over = time.monotonic() >= deadline or self._stopped.is_set()
                if over or not isinstance(error, GroupActiveError | GroupInUseError):
                    raise
            if not said:
                said = True
                whose = "old" if old else "new"
                self._stores.on_wait(f"its {whose} members to leave, in group {group}")
            time.sleep(_POLL)

    def _locked(self, group: str, work: Callable[[], Result]) -> Result:
        """Work on a group that this command locks; unlock it if another one took it back."""
        try:
            result = work()
        except GroupRefusedError:
            self._clean_up(group)
            raise
        if result.outcome is not Outcome.DONE:
            self._clean_up(group)
        return result

    def _clean_up(self, group: str) -> None:
        """Revert this object's changes after another command has ended the mirror, or taken the
        group back."""
        self._zk(guard.let_in(group))
        if not self._zk(record.read(group)).mirror:
            with suppress(GroupRefusedError, GroupActiveError, BrokerError):
                self.end(group, True)


def _unsure(seen: Seen) -> Result | None:
    """Return the outcome of a group whose stores cannot be compared, otherwise ``None``."""
    why = seen.reading.obstacle(seen.mirror.leader)
    return None if why is None else Result(seen.at.group, Outcome.REFUSED, 0, why[1], why[:1])


def _stopped(reason: Reason) -> tuple[Reason, ...]:
    return reason, Reason.MIRROR_STOPPED
