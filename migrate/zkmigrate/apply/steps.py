"""Takes one group through its steps, forward or back.

Each group goes through the same steps, and the journal records each before it begins: ``claim``
(take the group over), ``write`` (change the target), ``mark`` (write the marker, lock or unlock
the group, release the claims), ``done``; on the way back ``undo-claim`` and so on. After ``done``
the source store is read once more, and again by each later run. If work on a group was started
before, a run repeats all steps, each of which accepts that its work is already done. Each thread
of ``Migrator`` uses one object.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Event
from typing import Any, Final

from zkconsumer.admin import ids_lock, takeover
from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Node
from zkconsumer.core.zookeeper.scripts.common import Script, T
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.errors import ZkConsumerError, ZkUnavailableError, ZnodeFormatError
from zkmigrate.apply import guard, ownership
from zkmigrate.apply.change import Asked, Change, Held, back, before as before_of, way_back
from zkmigrate.apply.checks import Checks
from zkmigrate.apply.journal import Effect, Journal
from zkmigrate.apply.outcome import NOT_LOCKED, Changed, Outcome, Result, by_table
from zkmigrate.apply.permission import InKafka, Permission, check_accepted
from zkmigrate.apply.records import last_done, late_partitions, names_in, since_plan
from zkmigrate.errors import GroupRefusedError, in_use, refused
from zkmigrate.formats.plan_file import PlanFile
from zkmigrate.model import Before, GroupState, Record, Stage, Store, number, numbers
from zkmigrate.plan.group import plan_group
from zkmigrate.plan.options import Options
from zkmigrate.plan.table import Action, Way
from zkmigrate.plan.values import LIVE, GroupPlan
from zkmigrate.reasons import Reason
from zkmigrate.stores import migration_marker, record
from zkmigrate.stores.group_states import read_states
from zkmigrate.stores.offset_znodes import offset_in
from zkmigrate.stores.sessions import Stores
from zkmigrate.text import late_text, show, shown

_POLL: Final = 0.2


class Steps:
    """The steps of a move, for one group at a time. See ``Migrator`` for the arguments. No other
    thread uses the connections of ``stores`` to brokers. ``run``: the name of this run.
    ``stopped``: set when the run ends early."""

    def __init__(
        self, stores: Stores, effect: Effect, force: bool, lock: bool, run: str, stopped: Event
    ) -> None:
        self.stores = stores
        self._effect = effect
        self._force = force
        self._lock = lock
        self.checks = Checks(stores, force)
        self._name = run
        self._stopped = stopped
        self._losses = 0
        """``losses`` of the connection when the claims were last known."""
        self.locked: bool | None = None
        """Whether the group of the last call is locked, if known."""
        self.changed: tuple[Changed, ...] = ()
        """The changed offsets of that group."""

    def forget(self) -> None:
        """Delete the results of the last group, before the next one."""
        self.locked, self.changed = None, ()

    def plan_now(
        self, plan: PlanFile, options: Options, group: GroupPlan, records: list[dict[str, Any]]
    ) -> GroupPlan:
        """Plan a group from the current content of the stores. Raises GroupInUseError."""
        self.wait_for_earlier_runs(names_in(records), group.group)
        times = options.needs_commit_times
        renamed = {group.group: group.in_kafka}
        (state,) = read_states(self.stores, [group.group], {}, times, renamed)
        if not isinstance(state, GroupState):
            return replace(group, problems=(state[1],), entries=())
        now_ms = int(time.time() * 1000)
        made = plan_group(state, plan.direction, options, now_ms, None)
        live = next((one for one in made.problems if one.kind in LIVE), None)
        if live is not None:
            raise in_use(group.group, live.kind, f"{live.what}: {live.fix}")
        _decided_before(group, made)
        return replace(made, made_ms=now_ms, znodes=group.znodes)

    def move(
        self,
        change: Change,
        records: list[dict[str, Any]],
        prefix: str,
        journal: Journal | None,
        version: int | None = None,
    ) -> Result:
        """Apply a change. Without a journal, only check. Raises GroupRefusedError.

        ``records``: the journal's records of earlier runs. ``prefix``: the prefix of the steps in
        the journal: ``undo-`` on the way back. ``version``: the version of the group's record from
        which the change was computed, if it was computed from the record.
        """
        undo = bool(prefix)
        current = since_plan(records)
        zk = self.stores.zk
        state = zk.run(migration_marker.state_of(change.group))
        forward = Action.APPLY if change.target is Store.KAFKA else Action.APPLY_BACK
        refusal = by_table(state, Action.UNDO if undo else forward, self._force)
        if refusal is not None:  # an undo may also find that another operator has done it
            return refusal
        found = state.record
        if version not in (None, found.version):
            raise refused(change.group, Reason.OTHER_OPERATOR, record.MEANWHILE)
        self._without_doubt(change.group, records, found)
        mine = [one for one in current if one["step"].startswith("undo") is undo]
        mine = mine[1 + last_done(mine) :]
        marked = found.stage is Stage.DONE and bool(mine)  # the last run was killed after that
        begun = found.plan == change.plan and (found.stage is Stage.BEGUN or marked)
        # What was begun and then taken back partly may be anywhere between the two ends.
        resumed = undo or begun or bool(mine)
        claims = {found.claim} if found.interrupted else set()
        self.wait_for_earlier_runs(names_in(records) | claims, change.group)
        self.checks.as_expected(change, resumed)
        before = self.stores.zk.run(ids_lock.look(change.group))
        if not before.may_register(self.stores.zk.identities):
            raise refused(
                change.group,
                Reason.CLOSED,
                f"{GroupPaths(change.group).ids}: the access list does not let zkmigrate register: "
                "allow the identity in --command-config to create znodes there",
            )
        if journal is None:
            self.checks.znodes_as_expected(change, resumed)
            return Result(change.group, Outcome.WOULD, len(change.to))
        hold = ownership.hold_of(change.group, self._name, before)
        first_locked = locked = self.locked = hold.locked
        earlier: Before | None = None
        if undo or begun or found.interrupted:
            earlier = zk.run(record.read_before(change.group))
        if earlier is not None and (undo or begun):
            first_locked = earlier.locked
        ended = earlier if found.interrupted and _same_target(change, earlier) else None
        if undo:  # what is undone is locked again if it was before
            lock = first_locked
        else:
            lock = change.target is Store.KAFKA and (self._lock or first_locked)
        journal.write(group=change.group, step=f"{prefix}claim", name=hold.name)
        permission = Permission(zk, hold)
        partitions = {*change.zk, *change.kafka}
        seen: dict[TopicPartition, int | None] = {}
        accept = _noting(self.checks.acceptor(change, resumed), seen)
        try:
            if before.record is not None and not locked:
                self._run(guard.unlock(change.group))
            self._losses = zk.losses
            self._run(ownership.take(hold, partitions, accept))
            end = found.commits if ended else -1
            if change.target is Store.KAFKA and end < 0:
                end = self.stores.commits_end(change.kafka_group)
            held = self.checks.as_expected(change, resumed, claimed=True)
            journal.write(group=change.group, step=f"{prefix}write")
            keep = None if undo or begun else self._before(change, first_locked, found, ended)
            lost = partial(self._overwritten, change, found, ended, end)
            found = self._begin(change, hold, replace(found, commits=end), undo, keep)
            kafka = self._in_kafka(change, permission, lost, journal, prefix)
            written = self._write(change, hold, held, kafka, None if mine or begun else seen)
            if not self._force:
                self._restore_overwritten(change, hold, found, lost(), kafka)
            self.checks.read_back(change)
            journal.write(group=change.group, step=f"{prefix}mark")
            self._mark(change, hold, found, earlier if undo else None, lock)
            unlocked = self._lock_or_unlock(hold, permission, lock)
        except ZkUnavailableError:
            raise  # the claims end with the session
        except ZkConsumerError as error:
            ownership.release_after(zk, hold, error, self._effect)
            raise
        others = self._run(takeover.release(hold))
        if others and (change.target is Store.ZOOKEEPER or not undo):
            where = "will continue from" if change.target is Store.KAFKA else "may have read"
            raise GroupRefusedError(
                f"group {change.group} is moved, but {shown(others)} registered in ZooKeeper in "
                f"the meantime and {where} the old offsets: stop these members, then apply again",
                Reason.LIVE_MEMBER,
            )
        journal.write(group=change.group, step=f"{prefix}done")
        if unlocked:
            why = f"{NOT_LOCKED}: {unlocked}"
            return Result(
                change.group, Outcome.DONE, written, why, (Reason.NOT_LOCKED,), not_locked=True
            )
        return Result(change.group, Outcome.DONE, written)

    def _settle_lock(self, state: GroupState) -> bool:
        """Lock or unlock a group whose undo was killed before that step. Return whether it was.
        The group's record says which is right, unless a later command has written it."""
        found = state.record
        if state.faults or state.in_live_move or not found.taken_back:
            return False
        if found.command not in ("undo", "apply"):
            return False  # a later command has written it
        lock = self.stores.zk.run(ids_lock.look(state.group))
        if found.locked and lock.guard is ids_lock.Guard.OPEN:
            return self._run(guard.lock(state.group)) is None
        if not found.locked and lock.record is not None:
            self._run(guard.unlock_recorded(state.group))
            return True
        return False

    def _lock_or_unlock(
        self, hold: takeover.Hold, permission: Permission, lock: bool
    ) -> str | None:
        """Lock a claimed group, or unlock it if it is locked. Return why that is not possible, if
        so."""
        permission.ask()
        fault = None
        if lock:
            fault = self._run(guard.lock(hold.group))
        # Another operator's lock may have come after the claim.
        elif hold.locked or self.stores.zk.run(ids_lock.look(hold.group)).record is not None:
            self._run(guard.unlock(hold.group, permission.still))
        else:
            return None
        self.locked = None
        try:
            permission.ask()
        except GroupRefusedError:
            if lock:  # another operator may have taken the group back
                self._run(guard.let_in(hold.group))
            raise
        self.locked = lock and fault is None
        return fault

    def _begin(
        self,
        change: Change,
        hold: takeover.Hold,
        found: Record,
        undo: bool,
        before: Before | None,
    ) -> Record:
        """Record that the change begins, and return the record. ``before``: the state to keep in
        the record."""
        by_undo = undo or not change.plan  # a copy back has no plan
        begun = record.written(
            found,
            command="undo" if undo else "apply",
            plan=change.plan,
            stage=Stage.UNDOING if undo and found.stage is not Stage.BEGUN else Stage.BEGUN,
            claim=hold.name,
            kafka_group=change.renamed,
            late=(),
            late_more=0,
            by_undo=by_undo,
            undoes=found.of_plan if by_undo else "",
        )
        return self._run(ownership.begin(hold, begun, before), hold)

    def _before(self, change: Change, locked: bool, found: Record, old: Before | None) -> Before:
        """Return the state before a change, which the record keeps.

        If a change by another plan was interrupted, the kept offsets are those before both
        changes. ``old``: the state before the interrupted change, from the record.
        """
        made = before_of(change, locked)
        if found.stage is Stage.BEGUN and old is not None:
            zk = {tp: old.zk.get(tp) for tp in old.to}
            kafka = {tp: old.kafka.get(tp) for tp in old.to}
            if made.target is Store.KAFKA:  # ZooKeeper may have changed since
                zk, kafka = {**zk, **made.zk}, {**made.kafka, **kafka}
            else:
                zk, kafka = {**made.zk, **zk}, {**kafka, **made.kafka}
            to = {**old.to, **made.to}
            return replace(old, zk=zk, kafka=kafka, to=to, skipped=made.skipped)
        if found.stage is not Stage.DONE:
            return made
        earlier = self.stores.zk.run(record.before_data(change.group))
        if earlier:
            record.decode_before(record.before_path(change.group), earlier)
        return replace(made, earlier=earlier, earlier_plan=found.plan)

    def _mark(
        self,
        change: Change,
        hold: takeover.Hold,
        found: Record,
        undone: Before | None,
        lock: bool,
    ) -> None:
        """Write the migration marker, and record that the change is done, or ``undone``."""
        done = record.written(
            found,
            stage=Stage.DONE if undone is None or undone.earlier else Stage.UNDONE,
            plan=found.plan if undone is None or not undone.earlier else undone.earlier_plan,
            locked=lock,
            moved_to=migration_marker.store_in(change.after),
            # A copy back that was interrupted is begun again after this.
            by_undo=found.by_undo and not (undone is not None and found.copies_back),
        )
        script = ownership.write_marker(
            hold,
            change.between | {change.before},
            change.after,
            done,
            not self._force,
            None if undone is None else undone.earlier,
        )
        self._run(script, hold)

    def roll_back(
        self,
        planned: GroupPlan,
        asked: Asked,
        records: list[dict[str, Any]],
        journal: Journal | None,
        first: Callable[[], object],
    ) -> Result:
        """Restore the offsets from before the group's last change, which its record contains.

        For ``planned`` and ``asked``, see ``way_back``. ``first`` is called before anything is
        changed. Without a journal, only check. Raises GroupRefusedError.
        """
        group = planned.group
        state = self.stores.zk.run(migration_marker.state_of(group))
        found = state.record
        self._without_doubt(group, records, found)
        ours = asked.digest in ("", found.of_plan, found.undoes)
        if journal is not None and ours and self._settle_lock(state):
            journal.write(group=group, step="undo-done")
            return Result(group, Outcome.DONE, 0)
        way = way_back(state, asked, planned, records)
        if isinstance(way, Result):
            return way
        if way not in (Way.ROLL_BACK, Way.COPY_BACK):  # the command has chosen between these
            raise refused(group, Reason.OTHER_OPERATOR, record.MEANWHILE)
        marker = None if state.marker is None else state.marker.data
        old = self.stores.zk.run(record.read_before(group))
        if old is None:
            text = "its record does not contain the earlier offsets: move it back with a plan"
            raise refused(group, Reason.NO_RECORD, text)
        change = back(group, old, marker, found.stage is not Stage.BEGUN)
        first()
        change = replace(change, plan=found.plan)
        return self.move(change, records, "undo-", journal, found.version)

    def _run(self, script: Script[T], hold: takeover.Hold | None = None) -> T:
        """Run a script. ``hold``: the claim on which it depends. Raises GroupRefusedError."""
        zk = self.stores.zk

        def checked() -> Script[T]:
            while hold is not None and self._losses != zk.losses:
                self._losses = zk.losses
                yield from ownership.still_held(hold)
            return (yield from script)

        return zk.run(ownership.counted(checked(), self._effect))

    def _without_doubt(self, group: str, records: list[dict[str, Any]], found: Record) -> None:
        """Refuse a group whose offsets an earlier run may have overwritten without a claim. The
        journal is checked too, since that run may not have reached ZooKeeper."""
        doubtful = late_partitions(records) or found.late
        if (doubtful or found.in_doubt) and not self._force:
            text = late_text(doubtful, found.late_more)
            again = "then make a new plan with a new journal"
            raise refused(group, Reason.WRITTEN_LATE, f"{text}, {again}")

    def _in_kafka(
        self,
        change: Change,
        permission: Permission,
        overwritten: Callable[[], Collection[TopicPartition]],
        journal: Journal,
        prefix: str,
    ) -> InKafka:
        """Return an object for changes of a group in Kafka."""

        def lost() -> Collection[TopicPartition]:
            """Return the offsets that may have been overwritten, or all if that cannot be
            determined."""
            try:
                return overwritten() or change.to
            except ZkConsumerError:
                return change.to

        def note(late: Collection[TopicPartition]) -> None:
            rows = [[*tp] for tp in late]
            journal.write(group=change.group, step=f"{prefix}late", held=rows)

        names = (change.group, change.kafka_group)
        return InKafka(self.stores, *names, permission, lost, note, self._effect)

    def _restore_overwritten(
        self,
        change: Change,
        hold: takeover.Hold,
        found: Record,
        lost: Mapping[TopicPartition, int],
        kafka: InKafka,
    ) -> None:
        """Restore offsets that another client committed between the read from Kafka and the
        commit. Such a client is not a member, or the coordinator would have refused zkmigrate's
        commit. Until the offsets are restored, the group's record ``found`` has them as in doubt.
        Raises GroupRefusedError when there was such a commit."""

        def write(written: Record) -> Record:
            return self._run(ownership.write_record(hold, written), hold)

        if lost:
            restored = {tp: StoredOffset(offset) for tp, offset in lost.items()}
            try:
                noted = write(record.with_late(found, lost))
                check_accepted(change.group, kafka.change(restored), len(restored))
                write(replace(found, version=noted.version))
            except ZkConsumerError as error:
                raise kafka.in_doubt(lost) from error
            tp, offset = min(lost.items())
            raise refused(
                change.group,
                Reason.OTHER_WRITER,
                f"{tp}: a client that is not a member committed {offset} to Kafka while the group "
                "was being moved; the group's offset was restored: stop that client, then plan "
                "again",
            )

    def _overwritten(
        self, change: Change, found: Record, ended: Before | None, end: int
    ) -> Mapping[TopicPartition, int]:
        """Return the offsets of other clients that zkmigrate's commits replaced. ``found``: the
        record before this change. ``ended``: its values from an interrupted change, whose commits
        are zkmigrate's, too. ``end``: the end of the log of commits before these."""
        if end < 0:
            return {}
        ours = {tp: {number(to)} for tp, to in change.to.items()}
        known = {tp: {number(change.kafka.get(tp))} for tp in change.to}
        if ended is not None:
            for tp, to in ended.to.items():
                first = number(ended.kafka.get(tp))
                ours.setdefault(tp, set()).add(number(to))
                known.setdefault(tp, set()).add(first)
                if found.by_undo:
                    ours[tp].add(first)
        lost: dict[TopicPartition, int] = {}
        last: dict[TopicPartition, int | None] = {}
        for tp, offset in self.stores.commits_since(change.kafka_group, end):
            before = last.get(tp)
            if offset not in ours.get(tp, ()) or offset == before:
                lost.pop(tp, None)  # a client has gone on since
            elif before is not None and before not in known[tp] | ours[tp]:
                lost[tp] = before
            last[tp] = offset
        return lost

    def wait_for_earlier_runs(self, names: set[str], group: str) -> None:
        """Wait until the sessions of earlier runs have ended. ``names``: the names under which they
        claimed the group."""
        deadline = time.monotonic() + self.stores.timeout * 2 + 5
        waiting = False
        while True:
            there = names and names.intersection(self.stores.zk.run(ownership.migrators(group)))
            if not there:
                return
            if not waiting:
                waiting = True
                self.stores.on_wait(f"the session of an earlier run to end, in group {group}")
            if time.monotonic() >= deadline:
                text = (
                    f"the session of an earlier run ({shown(sorted(there))}) is still alive: wait "
                    "until that run has ended, then apply again"
                )
                raise refused(group, Reason.EARLIER_RUN, text)
            if self._stopped.is_set():
                text = "zkmigrate was stopped while it waited: apply again"
                raise refused(group, Reason.EARLIER_RUN, text)
            time.sleep(_POLL)

    def _write(
        self,
        change: Change,
        hold: takeover.Hold,
        held: Held,
        kafka: InKafka,
        seen: Mapping[TopicPartition, int | None] | None,
    ) -> int:
        """Write the planned offsets to the target. Return how many were changed. ``held``: the
        earlier offsets in Kafka. ``seen``: those in ZooKeeper; ``None``: a killed run may have
        written some."""
        before = numbers(held) if change.target is Store.KAFKA else seen
        if before is None or seen is None:
            before = numbers(change.held)
        overwritten = changes_of(change, before)
        if change.target is Store.ZOOKEEPER:
            values = {tp: None if new is None else new.offset for tp, new in change.to.items()}
            self._run(ownership.write_offsets(hold, values), hold)
            self.changed = overwritten
            return len(values)
        new = {
            tp: StoredOffset(to.offset, to.leader_epoch, to.metadata)
            for tp, to in change.to.items()
            if to is not None and to != held.get(tp)
        }
        gone = [tp for tp, to in change.to.items() if to is None and held.get(tp) is not None]
        failed = kafka.change(new, gone)
        self.changed = tuple(
            one for one in overwritten if TopicPartition(one.topic, one.partition) not in failed
        )
        check_accepted(change.group, failed, len(change.to))
        return len(new) + len(gone)


def changes_of(change: Change, before: Mapping[TopicPartition, int | None]) -> tuple[Changed, ...]:
    """Return the offsets that a change replaces. ``before``: the offsets in the target before
    it."""
    rows = (
        Changed(
            *tp, change.target.value, None if (old := before.get(tp)) == -1 else old, number(new)
        )
        for tp, new in sorted(change.to.items())
    )
    return tuple(row for row in rows if row.before != row.after)


def _noting(accept: takeover.Accept, seen: dict[TopicPartition, int | None]) -> takeover.Accept:
    """Return an ``accept`` that also records the accepted offsets."""

    def noted(tp: TopicPartition, node: Node | None) -> str | None:
        with suppress(ZnodeFormatError):  # it has no offset
            seen[tp] = offset_in(node)
        return accept(tp, node)

    return noted


def _same_target(change: Change, before: Before | None) -> bool:
    """Whether an earlier change wrote to the same store and group in Kafka."""
    return before is not None and (before.target, before.kafka_group or change.group) == (
        change.target,
        change.kafka_group,
    )


def _decided_before(preview: GroupPlan, made: GroupPlan) -> None:
    """Check that decisions that were reviewed apply only to the problems in the preview. These are
    the same kind of problem in the same topic or, for an offset outside its log, in the same
    partition. Raises GroupRefusedError."""
    if made.problems:
        return  # it is not moved
    reviewed = preview.decisions()
    clamped = {one.tp for one in preview.entries if Reason.OUT_OF_RANGE in one.decided}
    new = {
        one.tp: one.reason
        for one in made.entries
        if any((one.tp.topic, kind.value) not in reviewed for kind in one.decided)
        or (Reason.OUT_OF_RANGE in one.decided and one.tp not in clamped)
    }
    new |= {
        one.tp: f"{show(one.offset)} stays behind: {one.why}"
        for one in made.stays
        if (one.tp.topic, one.why) not in reviewed
    }
    if new:
        raise refused(
            made.group,
            Reason.NOT_REVIEWED,
            f"changed since review: {shown(f'{tp} ({why})' for tp, why in sorted(new.items()))}: "
            "plan again, and review the new plan",
        )
