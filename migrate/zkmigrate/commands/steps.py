"""Shared by ``live``, ``lock`` and ``unlock``: steps of live moves, and the results of groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from threading import Event
from typing import TYPE_CHECKING, NamedTuple

import click

from zkconsumer.admin.printable import printable
from zkconsumer.console.tables import How
from zkconsumer.core.migration.modes import Mode, has_reached
from zkconsumer.errors import ZkConsumerError
from zkmigrate.apply.outcome import Outcome, Result, by_table, ended_by, status_of_outcomes
from zkmigrate.commands.cells import reasons_cell
from zkmigrate.commands.rows import print_table
from zkmigrate.plan.table import Action
from zkmigrate.reasons import Reason
from zkmigrate.stores.migration_marker import state_of

if TYPE_CHECKING:
    from zkconsumer.core.migration.gates import Facts
    from zkmigrate.apply.live import LiveMove, Step
    from zkmigrate.stores.sessions import Stores

_COLUMNS = ("group", "outcome", "mode", "why", "reasons")


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


class Stepped(NamedTuple):
    """One group's outcome, and its mode if it is known."""

    result: Result
    mode: str | None = None


def carry_out(
    stage: Stage,
    stores: Stores,
    groups: Sequence[str],
    named: Iterable[str],
    execute: bool,
    wait: float,
    parallel: int,
) -> Iterator[tuple[str, Stepped | None]]:
    """Carry out a stage, or only check it; yield each group and its outcome, in any order.

    ``None``: the group is not ``named``, and the stage does not concern it.
    """
    from zkmigrate.apply.live import LiveMove, look
    from zkmigrate.apply.parallel import Parallel

    stopped, exact = Event(), set(named)

    def work(stores: Stores, name: str) -> Stepped | None:
        def say(text: str) -> None:
            click.echo(printable(f"group {name}: {text}"), err=True)

        move = LiveMove(stores, name, wait, say, stopped)
        if name not in exact and not stage.concerns(look(stores, name)):
            return None
        state = stores.zk.run(state_of(name))
        refused = by_table(state, stage.action)
        if refused is not None:
            return Stepped(refused, None if state.faults else state.mode.value)
        step = stage.act(move) if execute else stage.check(move)
        reasons = tuple(Reason(one.code) for one in step.why)
        result = Result(name, _outcome(step, execute, stage), 0, "; ".join(step.why), reasons)
        return Stepped(result, step.mode.value)

    pool = Parallel(stores.each_thread(parallel), stopped, stores.kafka.stop_waiting)
    with closing(pool.each(groups, work)) as ended:
        for name, result in ended:
            if isinstance(result, ZkConsumerError):
                yield name, Stepped(ended_by(name, result))
            else:
                yield name, result


def _outcome(step: Step, execute: bool, stage: Stage) -> Outcome:
    if step.why:
        return Outcome.REFUSED
    if step.changed:
        return Outcome.DONE
    reached = execute or has_reached(step.mode, stage.target, stage.back)
    return Outcome.WAS_DONE if reached else Outcome.WOULD


def print_steps(
    names: Sequence[str],
    steps: Iterable[Stepped],
    how: How,
    good: Callable[[Result], bool],
    only_problems: bool = False,
) -> None:
    """Print the outcome of each group in the order of ``names``; exit with the status."""
    by_name = {one.result.group: one for one in steps}
    rows: list[tuple[object, ...]] = []
    bad: list[Outcome] = []
    counts: Counter[Outcome] = Counter()
    for name in names:
        if (step := by_name.get(name)) is None:
            continue
        counts[step.result.outcome] += 1
        if not good(step.result):
            bad.append(step.result.outcome)
        elif only_problems:
            continue
        result = step.result
        reasons = reasons_cell(result.reasons, how)
        rows.append((name, result.outcome.value, step.mode, result.why, reasons))
    width = len(_COLUMNS) - (how == "table")
    print_table("step", _COLUMNS[:width], [row[:width] for row in rows], how)
    parts = [f"{counts[one]} {one.value}" for one in Outcome if counts[one]]
    click.echo(f"groups: {', '.join(parts) or 'none'}", err=True)
    click.get_current_context().exit(status_of_outcomes(bad))
