"""Shared by ``live``, ``lock``, ``unlock`` and ``undo``: steps of live moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import closing
from dataclasses import replace
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, NamedTuple

import click

from zkconsumer.admin.printable import printable
from zkconsumer.core.migration.modes import Mode, has_reached
from zkmigrate.apply.outcome import Outcome, Result, by_table, result_of
from zkmigrate.plan.table import Action
from zkmigrate.reasons import Reason
from zkmigrate.stores.migration_marker import state_of

if TYPE_CHECKING:
    from zkconsumer.core.migration.gates import Facts
    from zkmigrate.apply.live import LiveMove, Step
    from zkmigrate.stores.sessions import Stores


class Stage(NamedTuple):
    """One stage of a live move.

    Args:
        action: for the table of cases.
        target: the mode whose gate is checked.
        back: whether it leads towards ZooKeeper.
        act: carries out the stage.
        only_check: checks whether the stage can be carried out, if that is not a gate.
    """

    action: Action
    target: Mode
    back: bool
    act: Callable[[LiveMove], Step]
    only_check: Callable[[LiveMove], Step] | None = None

    def check(self, move: LiveMove) -> Step:
        """Return whether the stage can be carried out."""
        if self.only_check is not None:
            return self.only_check(move)
        return move.check(self.target, self.back)

    def concerns(self, facts: Facts) -> bool:
        """Whether the stage is for a group that is not named individually."""
        if self.only_check is not None:
            return facts.mode is Mode.OPEN
        return bool(facts.members)


LOCK = Stage(Action.LOCK, Mode.LOCKED, False, lambda move: move.lock())
UNLOCK = Stage(Action.UNLOCK, Mode.ZOOKEEPER, True, lambda move: move.unlock())


def carry_out(
    stage: Stage,
    stores: Stores,
    groups: Sequence[str],
    named: Set[str],
    execute: bool,
    wait: float,
    parallel: int,
) -> Iterator[Result]:
    """Carry out a stage, or only check it; yield the outcome of each group, in any order.

    A group that is not ``named``, and that the stage does not concern, has nothing to do.
    """
    from zkmigrate.apply.live import LiveMove, look
    from zkmigrate.apply.parallel import Parallel

    stopped = Event()

    def work(stores: Stores, name: str) -> Result:
        def say(text: str) -> None:
            click.echo(printable(f"group {name}: {text}"), err=True)

        move = LiveMove(stores, name, wait, say, stopped)
        if name not in named and not stage.concerns(look(stores, name)):
            return Result(name, Outcome.NOTHING, 0)
        state = stores.zk.run(state_of(name))
        refused = by_table(state, stage.action)
        if refused is not None:
            return replace(refused, mode=None if state.faults else state.mode.value)
        step = stage.act(move) if execute else stage.check(move)
        reasons = tuple(Reason(one.code) for one in step.why)
        outcome = _outcome(step, execute, stage)
        return Result(name, outcome, 0, "; ".join(step.why), reasons, mode=step.mode.value)

    pool = Parallel(stores.each_thread(parallel), stopped, stores.kafka.stop_waiting)
    tried = pool.each(groups, lambda own, name: result_of(name, partial(work, own, name)))
    with closing(tried) as ended:
        yield from (result for _, result in ended)


def _outcome(step: Step, execute: bool, stage: Stage) -> Outcome:
    if step.why:
        return Outcome.REFUSED
    if step.changed:
        return Outcome.DONE
    reached = execute or has_reached(step.mode, stage.target, stage.back)
    return Outcome.WAS_DONE if reached else Outcome.WOULD
