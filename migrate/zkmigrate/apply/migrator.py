"""Applies a plan or rolls it back, several groups at a time, with a journal from which a run can
resume.

``Migrator`` chooses what to do with each group, and ``steps.Steps`` does it. If more than one group
is moved at a time, ``Steps`` runs in its own threads. Everything else runs in the calling thread.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from functools import partial
from threading import Event
from typing import Final

from zkconsumer.admin.snapshot import list_members
from zkconsumer.errors import ZooKeeperError
from zkconsumer.zk.blocking import or_refusal
from zkmigrate.apply.change import Asked, forward
from zkmigrate.apply.journal import Effect, no_effect
from zkmigrate.apply.outcome import Outcome, Result, not_ready, result_of
from zkmigrate.apply.parallel import Parallel, Run
from zkmigrate.apply.records import begun_by, histories_of, moves_by, recorded
from zkmigrate.apply.steps import Steps, changes_of
from zkmigrate.errors import GroupInUseError, refused
from zkmigrate.formats import plan_file
from zkmigrate.formats.plan_file import PlanFile
from zkmigrate.model import numbers
from zkmigrate.plan.values import GroupPlan, Verdict
from zkmigrate.reasons import Reason
from zkmigrate.stores.group_states import case_in
from zkmigrate.stores.sessions import Stores
from zkmigrate.text import shown

_POLL: Final = 0.2

Work = Callable[[Steps, GroupPlan], Result]


class Migrator:
    """Applies plans and rolls them back.

    Args:
        stores: both stores, opened.
        effect: called before and after each change outside this process, by any thread.
        force: whether to roll back groups even if their offsets were changed after the move.
        lock: whether to lock groups that were moved to Kafka, so that old consumers cannot start.
        parallel: number of groups to work on at a time.
        check: called with each group's plan, before the group is claimed and right before its
            offsets are written, by any thread. It may raise an error to refuse the group.
        stop_waiting: called to make waits fail immediately.
    """

    def __init__(
        self,
        stores: Stores,
        effect: Effect = no_effect,
        force: bool = False,
        lock: bool = False,
        parallel: int = 1,
        check: Callable[[GroupPlan], object] = lambda _plan: None,
        stop_waiting: Callable[[], object] = lambda: None,
    ) -> None:
        self._stores = stores
        self._check = check
        self._force = force
        stopped = Event()
        run = uuid.uuid4().hex[:8]

        def stop_all() -> None:
            stores.kafka.stop_waiting()
            stop_waiting()

        self._parallel = Parallel(
            [Steps(own, effect, force, lock, run, stopped) for own in stores.each_thread(parallel)],
            stopped,
            stop_all,
        )

    # -- plans ---------------------------------------------------------------------------------

    def apply(
        self,
        plan: PlanFile,
        run: Run,
        on_group: Callable[[Result], object],
        wait: float = 0.0,
        fresh: bool = False,
    ) -> list[Result]:
        """Move every group that is ready. ``fresh``: ignore the journal's earlier records. Without
        a journal, only check. Groups with members are tried last, for ``wait`` seconds, each as
        soon as its members have left."""
        known = [] if fresh else run.records
        begun = begun_by(known)
        unfinished = {name for name, one in histories_of(known).items() if one.open}
        journal = run.journal

        def one(steps: Steps, group: GroupPlan) -> Result:
            if (idle := not_ready(group)) is not None:
                return idle
            records = begun.get(group.group, [])
            last = records[-1]["step"] if records else ""
            if last == "undo-done":
                text = "was rolled back: make a new plan"
                raise refused(group.group, Reason.ROLLED_BACK, text)
            if last.startswith("undo"):
                text = "its rollback was begun and is not finished: run undo again"
                raise refused(group.group, Reason.UNFINISHED, text)
            if last != "done" and group.verdict is Verdict.READY:
                names = (group.group, group.in_kafka)
                run.begin(names[0], lambda: case_in(steps.stores, *names), names[1])
            if plan.at_apply is not None:
                group = recorded(records) or steps.plan_now(plan, plan.at_apply, group, records)
            if group.verdict is Verdict.MOVED:
                steps.checks.still_moved(group, plan.direction, group.marker)
                return Result(group.group, Outcome.NOTHING, 0, "was moved before")
            if (idle := not_ready(group)) is not None:
                return idle
            change = forward(plan, group)
            if last == "done":
                if group.group in unfinished:
                    steps.changed = changes_of(change, numbers(change.held))
                steps.checks.still_moved(group, plan.direction, change.after)
                return Result(group.group, Outcome.WAS_DONE, 0)
            if plan.at_apply is not None and recorded(records) is None and journal is not None:
                text = plan_file.render_one(plan.direction, group)
                journal.write(group=group.group, step="plan", plan=text)
                records = [*records, {"step": "plan"}]
            change = replace(change, check=partial(self._check, group))
            result = steps.move(change, records, "", journal)
            if result.outcome is Outcome.DONE:
                steps.checks.still_moved(group, plan.direction)
            return result

        return self._each(plan.groups, one, on_group, run, wait)

    def rollback(
        self,
        plan: PlanFile,
        run: Run,
        on_group: Callable[[Result], object],
        again: bool = False,
    ) -> list[Result]:
        """Restore the offsets from before this plan, which each group's record contains. If the
        plan has no digest, undo the last change of any command; with ``again``, also an undo.
        Without a journal, only check."""
        begun = moves_by(run.records)
        asked = Asked(plan.digest, self._force, again)

        def one(steps: Steps, group: GroupPlan) -> Result:
            def first() -> None:
                names = (group.group, group.in_kafka)
                run.begin(names[0], lambda: case_in(steps.stores, *names), names[1])

            records = begun.get(group.group, [])
            return steps.roll_back(group, asked, records, run.journal, first)

        return self._each(plan.groups, one, on_group, run)

    def _each(
        self,
        groups: Iterable[GroupPlan],
        work: Work,
        on_group: Callable[[Result], object],
        run: Run,
        wait: float = 0.0,
    ) -> list[Result]:
        """Work on each group. An error of one group does not stop the others, but a damaged
        journal or an unreachable ZooKeeper does."""
        results: dict[int, Result] = {}
        waiting: list[tuple[int, GroupPlan]] = []

        def attempt(wanted: Iterable[tuple[int, GroupPlan]], over: bool) -> None:
            def one(steps: Steps, item: tuple[int, GroupPlan]) -> Result | None:
                plan = item[1]
                steps.forget()
                later = () if over else (GroupInUseError,)
                try:
                    result = result_of(plan.group, lambda: work(steps, plan), *later)
                except GroupInUseError:
                    return None
                return run.end(
                    replace(
                        result,
                        locked=steps.locked,
                        changed=steps.changed,
                        kafka_group=plan.kafka_group,
                        stays=plan.stays,
                        problem=next(iter(plan.problems), None),
                    )
                )

            with closing(self._parallel.each(wanted, one)) as ended:
                for (number, group), registered in ended:
                    if registered is None:
                        waiting.append((number, group))
                        continue
                    results[number] = registered
                    on_group(registered)

        attempt(enumerate(groups), wait <= 0)
        deadline = time.monotonic() + wait
        announced = 0
        while waiting:
            if len(waiting) != announced:
                announced = len(waiting)
                names = shown(group.group for _, group in waiting)
                self._stores.on_wait(f"the members of {announced} groups to stop: {names}")
            time.sleep(_POLL)
            over = time.monotonic() >= deadline
            tried = list(waiting)
            scripts = [or_refusal(list_members(group.group)) for _, group in tried]
            registered = list(self._stores.zk.run_all(scripts))
            stopped = [
                one
                for one, members in zip(tried, registered, strict=True)
                if over or not members or isinstance(members, ZooKeeperError)
            ]
            waiting[:] = [one for one in tried if one not in stopped]
            attempt(stopped, over)
        return [results[number] for number in sorted(results)]
