"""Carries out a plan, or takes it back: one group after the other, journalled, restartable.

Used from one thread. Each group goes through the same steps, and the journal names each before it
begins: ``claim`` (take the group over), ``write`` (change the target), ``mark`` (write the marker,
lock the group, release the claims), ``done``; on the way back ``undo-claim`` and so on. After
``done`` the source store is read once more, and again by each later run. A run that finds a group
begun repeats all steps: each accepts that its work was done before.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from zkconsumer.broker.coordinator_calls import StoredOffset
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.scripts.common import Script, T
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.errors import ZkConsumerError, ZkUnavailableError, ZooKeeperError
from zkconsumer.zk.blocking import or_refusal
from zkmigrate.apply import guard, ownership
from zkmigrate.apply.change import Change, back, forward, record_of
from zkmigrate.apply.checks import Checks
from zkmigrate.apply.journal import Effect, Journal, no_effect
from zkmigrate.apply.outcome import NOT_LOCKED, Outcome, Result
from zkmigrate.apply.records import begun_by, recorded, since_plan
from zkmigrate.errors import GroupInUseError, GroupRefusedError, JournalError, in_use, refused
from zkmigrate.formats import plan_file
from zkmigrate.formats.plan_file import PlanFile
from zkmigrate.model import GroupState, Store
from zkmigrate.plan.group import plan_group
from zkmigrate.plan.options import Options
from zkmigrate.plan.values import LIVE, GroupPlan, Verdict
from zkmigrate.stores.group_states import read_states
from zkmigrate.stores.sessions import Stores
from zkmigrate.text import shown

_POLL: Final = 0.2


class Migrator:
    """Applies plans and rolls them back.

    Args:
        stores: both, opened.
        effect: called before and after each change outside of this process.
        force: also roll back groups whose offsets were changed after the move.
        lock: keep old consumers of groups that were moved to Kafka from starting.
    """

    def __init__(
        self,
        stores: Stores,
        effect: Effect = no_effect,
        force: bool = False,
        lock: bool = False,
    ) -> None:
        self._stores = stores
        self._effect = effect
        self._force = force
        self._lock = lock
        self._checks = Checks(stores, force)
        self._run = uuid.uuid4().hex[:8]

    # -- plans ---------------------------------------------------------------------------------

    def apply(
        self,
        plan: PlanFile,
        journal: Journal | None,
        on_group: Callable[[Result], object],
        records: Iterable[dict[str, Any]] = (),
        wait: float = 0.0,
    ) -> list[Result]:
        """Move every group that is ready.

        Without a journal only check whether it could be done, after earlier runs left ``records``.
        Groups with members are tried again for ``wait`` seconds, each as soon as it has none.
        """
        begun = begun_by(records if journal is None else journal.records)

        def one(group: GroupPlan) -> Result:
            if group.verdict is Verdict.REFUSED or group.verdict is Verdict.DECIDE:
                return _skipped(group)
            records = begun.get(group.group, [])
            last = records[-1]["step"] if records else ""
            if last.startswith("undo"):
                raise GroupRefusedError(f"group {group.group} was rolled back: make a new plan")
            if plan.at_apply is not None:
                group = recorded(records) or self._plan_now(plan, plan.at_apply, group, records)
            if group.verdict is Verdict.MOVED:
                return Result(group.group, Outcome.NOTHING, 0, "was moved before")
            if group.verdict is not Verdict.READY:
                return _skipped(group)
            change = forward(plan, group)
            if last == "done":
                self._checks.source_unchanged_since(change)
                return Result(group.group, Outcome.WAS_DONE, 0)
            if plan.at_apply is not None and recorded(records) is None and journal is not None:
                text = plan_file.render_one(plan.direction, group)
                journal.write(group=group.group, step="plan", plan=text)
                return self._move(change, [*records, {"step": "plan"}], "", journal)
            return self._move(change, records, "", journal)

        return self._each(plan.groups, one, on_group, wait)

    def _plan_now(
        self, plan: PlanFile, options: Options, group: GroupPlan, records: list[dict[str, Any]]
    ) -> GroupPlan:
        """Plan a group from what the stores hold now. Raises GroupInUseError."""
        self._wait_for_earlier_runs(_names(records), group.group)
        times = options.needs_commit_times
        (state,) = read_states(self._stores, [group.group], {}, times)
        if not isinstance(state, GroupState):
            return replace(group, problems=(state[1],), entries=())
        now_ms = int(time.time() * 1000)
        made = plan_group(state, plan.direction, options, now_ms, None)
        live = next((one for one in made.problems if one.kind in LIVE), None)
        if live is not None:
            raise in_use(group.group, f"{live.what}: {live.fix}")
        return replace(made, made_ms=now_ms)

    def rollback(
        self, plan: PlanFile, journal: Journal, execute: bool, on_group: Callable[[Result], object]
    ) -> list[Result]:
        """Undo every group that was begun; the others were not changed."""
        begun = begun_by(journal.records)

        def one(group: GroupPlan) -> Result:
            records = begun.get(group.group, [])
            if not records:
                return Result(group.group, Outcome.NOTHING, 0, "was not begun")
            steps = [record["step"] for record in records]
            if steps[-1] == "undo-done":
                return Result(group.group, Outcome.WAS_DONE, 0)
            if set(steps) <= {"plan", "claim", "undo-claim"}:
                if execute:
                    self._wait_for_earlier_runs(_names(records), group.group)
                    if _was_locked(records):
                        self._run_guard(guard.lock(group.group, int(time.time() * 1000)))
                    journal.write(group=group.group, step="undo-done")
                return Result(group.group, Outcome.NOTHING, 0, "nothing was written")
            group = recorded(records) or group
            claim = next(one for one in since_plan(records) if one["step"] == "claim")
            change = back(forward(plan, group), claim.get("held"))
            return self._move(change, records, "undo-", journal if execute else None)

        return self._each(plan.groups, one, on_group)

    def _each(
        self,
        groups: Iterable[GroupPlan],
        one: Callable[[GroupPlan], Result],
        on_group: Callable[[Result], object],
        wait: float = 0.0,
    ) -> list[Result]:
        """One bad group does not stop the rest; a damaged journal or no ZooKeeper does."""
        results: list[Result] = []
        waiting: list[GroupPlan] = []
        deadline = time.monotonic() + wait

        def attempt(group: GroupPlan) -> None:
            try:
                result = one(group)
            except (JournalError, ZkUnavailableError):
                raise
            except GroupInUseError as error:
                if time.monotonic() < deadline:
                    waiting.append(group)
                    return
                result = Result(group.group, Outcome.FAILED, 0, str(error))
            except ZkConsumerError as error:
                result = Result(group.group, Outcome.FAILED, 0, str(error))
            results.append(result)
            on_group(result)

        for group in groups:
            attempt(group)
        announced = 0
        while waiting:
            if len(waiting) != announced:
                announced = len(waiting)
                names = shown(group.group for group in waiting)
                self._stores.on_wait(f"the members of {announced} groups to stop: {names}")
            time.sleep(_POLL)
            over = time.monotonic() >= deadline
            tried, waiting = waiting, []
            scripts = [or_refusal(ownership.list_members(group.group)) for group in tried]
            for group, members in zip(tried, self._stores.zk.run_all(scripts), strict=True):
                if over or not members or isinstance(members, ZooKeeperError):
                    attempt(group)
                else:
                    waiting.append(group)
        return results

    # -- one group -----------------------------------------------------------------------------

    def _move(
        self, change: Change, records: list[dict[str, Any]], prefix: str, journal: Journal | None
    ) -> Result:
        undo = bool(prefix)
        current = since_plan(records)
        mine = [record for record in current if record["step"].startswith("undo") is undo]
        # What was begun and then taken back partly may be anywhere between the two ends.
        resumed = bool(mine) or (undo and records[-1]["step"] != "done")
        self._wait_for_earlier_runs(_names(records), change.group)
        self._checks.as_expected(change, resumed)
        before = self._stores.zk.run(guard.look(change.group))
        if not before.may_register(self._stores.zk.identities):
            raise refused(
                change.group,
                f"{GroupPaths(change.group).ids}: the access list does not let zkmigrate register: "
                "allow its identity, as --command-config gives it, to create znodes there",
            )
        if journal is None:
            self._checks.znodes_as_expected(change, resumed)
            return Result(change.group, Outcome.WOULD, len(change.to))
        name = f"{change.group}_zkmigrate-{self._run}"
        hold = ownership.Hold(change.group, name, int(time.time() * 1000))
        zk = self._stores.zk
        locked = before.guard is guard.Guard.LOCKED
        claimed = any(record["step"] == "claim" for record in records)
        was_locked = _was_locked(records) if claimed else locked
        if undo:  # what is undone is locked again if it was before
            lock, lock_again = was_locked, locked
        else:
            lock = change.target is Store.KAFKA and (self._lock or was_locked)
            lock_again = locked or was_locked
        journal.write(
            group=change.group,
            step=f"{prefix}claim",
            name=name,
            held=record_of(change),
            locked=was_locked,
        )
        partitions = {*change.zk, *change.kafka}
        accept = self._checks.acceptor(change, resumed)
        try:
            if before.record is not None:
                self._run_guard(guard.unlock(change.group))
            zk.run(ownership.counted(ownership.take(hold, partitions, accept), self._effect))
            self._checks.as_expected(change, resumed, claimed=True)
            journal.write(group=change.group, step=f"{prefix}write")
            written = self._write(change, hold)
            self._checks.read_back(change)
            journal.write(group=change.group, step=f"{prefix}mark")
            checked = not self._force
            found = change.between | {change.before}
            mark = ownership.write_marker(hold, found, change.after, checked)
            zk.run(ownership.counted(mark, self._effect))
        except ZkUnavailableError:
            raise  # the claims end with the session
        except ZkConsumerError as error:
            self._release_after(error, hold, lock_again)
            raise
        unlocked = self._run_guard(guard.lock(change.group, hold.now_ms)) if lock else None
        others = zk.run(ownership.counted(ownership.release(hold), self._effect))
        if others and change.target is Store.KAFKA and not undo:
            raise GroupRefusedError(
                f"group {change.group} is moved, but {shown(others)} registered in ZooKeeper "
                "meanwhile and will continue from the old offsets: stop these members, then apply "
                "again"
            )
        journal.write(group=change.group, step=f"{prefix}done")
        if not undo:
            self._checks.source_unchanged(change)
        why = f"{NOT_LOCKED}: {unlocked}" if unlocked else ""
        return Result(change.group, Outcome.DONE, written, why)

    def _run_guard(self, script: Script[T]) -> T:
        return self._stores.zk.run(ownership.counted(script, self._effect))

    def _release_after(self, error: ZkConsumerError, hold: ownership.Hold, lock: bool) -> None:
        """Release the group after a failure, as far as ZooKeeper can be reached."""
        try:
            if lock:
                self._run_guard(guard.lock(hold.group, hold.now_ms))
            self._stores.zk.run(ownership.counted(ownership.release(hold), self._effect))
        except ZkConsumerError as second:
            error.add_note(str(second))  # the claims end with the session

    def _wait_for_earlier_runs(self, names: set[str], group: str) -> None:
        """Wait until the sessions of killed runs have ended."""
        deadline = time.monotonic() + self._stores.timeout * 2 + 5
        waiting = False
        while True:
            there = names.intersection(self._stores.zk.run(ownership.list_members(group)))
            if not there:
                return
            if not waiting:
                waiting = True
                self._stores.on_wait(f"the session of an earlier run to end, in group {group}")
            if time.monotonic() >= deadline:
                raise GroupRefusedError(
                    f"group {group}: the session of an earlier run ({shown(sorted(there))}) is "
                    "still alive: is that run still at work?"
                )
            time.sleep(_POLL)

    def _write(self, change: Change, hold: ownership.Hold) -> int:
        """Bring the target to what it is to hold; return how many offsets were changed."""
        if change.target is Store.ZOOKEEPER:
            values = {tp: None if new is None else new.offset for tp, new in change.to.items()}
            script = ownership.write_offsets(hold, values)
            self._stores.zk.run(ownership.counted(script, self._effect))
            return len(values)
        held = self._checks.kafka(change)
        new = {
            tp: StoredOffset(to.offset, to.leader_epoch, to.metadata)
            for tp, to in change.to.items()
            if to is not None and to != held.get(tp)
        }
        gone = [tp for tp, to in change.to.items() if to is None and held.get(tp) is not None]
        failed: Mapping[TopicPartition, ZkConsumerError] = {}
        if new:
            self._effect(f"before kafka commit of {len(new)} {change.group}")
            failed = self._stores.kafka.commit(change.group, new)
            self._effect(f"after kafka commit of {len(new)} {change.group}")
        if gone and not failed:
            self._effect(f"before kafka delete of {len(gone)} {change.group}")
            failed = self._stores.kafka.delete(change.group, gone)
            self._effect(f"after kafka delete of {len(gone)} {change.group}")
        if failed:
            tp, error = min(failed.items())
            raise refused(
                change.group,
                f"the coordinator refused {len(failed)} of {len(change.to)} offsets, such as "
                f"{tp} ({error}); apply again when that is settled",
            )
        return len(new) + len(gone)


def _skipped(group: GroupPlan) -> Result:
    problem = group.problems[0]
    return Result(group.group, Outcome.SKIPPED, 0, f"{problem.what}: {problem.fix}")


def _was_locked(records: list[dict[str, Any]]) -> bool:
    """Whether the group was locked before the first run took it over."""
    return any(record.get("locked") for record in records if record["step"] == "claim")


def _names(records: Iterable[dict[str, Any]]) -> set[str]:
    """The names under which earlier runs took a group over."""
    return {str(record["name"]) for record in records if "name" in record}
