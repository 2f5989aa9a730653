"""Functions for ``live``, ``complete``, ``lock``, ``unlock`` and ``undo``: steps of live moves,
and locks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from zkconsumer.admin.printable import printable
from zkconsumer.admin.snapshot import list_groups
from zkconsumer.core.migration.modes import Mode, has_reached
from zkconsumer.core.zookeeper.ops import Code, Failed, Multi, ZkOp
from zkconsumer.core.zookeeper.scripts.common import Script
from zkconsumer.core.zookeeper.znodes import is_legal_group
from zkconsumer.zk.blocking import BlockingZk, or_refusal
from zkmigrate.apply.outcome import Outcome, Result, by_table, not_read
from zkmigrate.apply.parallel import Run
from zkmigrate.commands.options.running import Work
from zkmigrate.commands.options.selection import Selection
from zkmigrate.errors import GroupInUseError
from zkmigrate.model import Direction, GroupState, Store
from zkmigrate.plan.findings import bad_name
from zkmigrate.plan.table import Action
from zkmigrate.reasons import Reason
from zkmigrate.stores.migration_marker import state_of

if TYPE_CHECKING:
    from zkmigrate.apply.live import LiveMove, LiveScript, Request, Step
    from zkmigrate.plan.gates import Facts
    from zkmigrate.stores.sessions import Stores

T = TypeVar("T")


class Stage(NamedTuple):
    """A command that moves a group to another stage of a live move.

    Args:
        action: the command's action in the table of cases.
        target: the mode whose gate is checked.
        back: whether the command moves the group towards ZooKeeper.
        act: carries out the command.
        only_check: the check for a dry run; ``None``: the check of the gate.
    """

    action: Action
    target: Mode
    back: bool
    act: Callable[[LiveMove], LiveScript[Step]]
    only_check: Callable[[LiveMove], LiveScript[Step]] | None = None

    @property
    def direction(self) -> Direction:
        """The direction in which the stage moves a group."""
        return Direction.KAFKA_TO_ZK if self.back else Direction.ZK_TO_KAFKA

    def on_group(self, move: LiveMove, named: bool, execute: bool) -> LiveScript[Result]:
        """Carry out the stage on one group, if its case allows that. Without ``execute``, only
        check.

        ``named``: the group was chosen by name. Other groups are ignored if the stage does not
        concern them.
        """
        from zkmigrate.apply.live import Begin, look

        name = move.group
        if not named and not self.concerns((yield from look(name))):
            return Result(name, Outcome.NOTHING, 0)
        state = yield from state_of(name)
        refused = by_table(state, self.action)
        if refused is None:
            yield Begin(has_reached(state.mode, self.target, self.back))
            state = yield from state_of(name)  # the first hook may have taken long
            refused = by_table(state, self.action)
        if refused is not None:
            return replace(refused, mode=None if state.faults else state.mode.value)
        check = self.only_check or (lambda move: move.check(self.target, self.back))
        step = yield from (self.act if execute else check)(move)
        reasons = tuple(one.reason for one in step.why)
        outcome = _outcome(step, execute, self)
        return Result(name, outcome, 0, "; ".join(step.why), reasons, mode=step.mode.value)

    def concerns(self, facts: Facts) -> bool:
        """Whether the stage applies to a group that was not chosen by name."""
        if self.only_check is not None:
            return facts.mode is Mode.OPEN
        return bool(facts.members)


LOCK = Stage(Action.LOCK, Mode.LOCKED, False, lambda move: move.lock())
UNLOCK = Stage(Action.UNLOCK, Mode.ZOOKEEPER, True, lambda move: move.unlock())
COMPLETE = Stage(
    Action.COMPLETE,
    Mode.ZOOKEEPER,
    True,
    lambda move: move.complete(),
    only_check=lambda move: move.complete(execute=False),
)


class _Ended(NamedTuple):
    result: Any


def perform(
    stores: Stores,
    script: LiveScript[T],
    stopped: Event | None = None,
    begin: Callable[[bool], object] = lambda reached: None,
) -> T:
    """Run a script of a live move on both stores, and return its result. Raises the errors of both
    stores.

    Once ``stopped`` is set, a waiting step ends as after a timeout. ``begin``: called before the
    work on the group begins; see ``Begin``. A ``Multi`` is not sent if the connection was lost
    after the reads on which it depends; see ``BlockingZk.run_all``.
    """

    from zkmigrate.apply.live import (
        Afresh,
        Begin,
        EndMirror,
        FetchOffsets,
        FindHidden,
        ListMembers,
        Wait,
    )
    from zkmigrate.mirror.mirroring import Mirroring
    from zkmigrate.plan.gates import Obstacle

    losses = stores.zk.losses

    def in_zookeeper(reply: object) -> Script[Request | _Ended]:
        """Carry out the script's requests to ZooKeeper. Return its first other request."""
        nonlocal losses
        try:
            request = script.send(reply)
            while isinstance(request, ZkOp):
                lost = isinstance(request, Multi) and losses != stores.zk.losses
                losses = stores.zk.losses if lost else losses
                request = script.send(Failed(Code.CONNECTION_LOSS) if lost else (yield request))
        except StopIteration as end:
            return _Ended(end.value)
        return request

    stopped = stopped or Event()
    reply: object = None
    try:
        while True:
            match stores.zk.run(in_zookeeper(reply)):
                case _Ended(result):
                    return result  # type: ignore[no-any-return]
                case FetchOffsets(group, known):
                    reply = stores.fetch(group, known)
                case ListMembers(group):
                    reply = stores.kafka.members(group)
                case FindHidden(topics):
                    reply = stores.kafka.hidden(topics)
                case EndMirror(group):
                    ended = Mirroring(stores).end(group, True)
                    good = ended.outcome in (Outcome.DONE, Outcome.NOTHING)
                    kind = next(iter(ended.reasons), Reason.UNREADABLE)
                    reply = None if good else Obstacle(kind, ended.why)
                case Begin(reached):
                    reply = begin(reached)
                case Wait(seconds):
                    reply = stopped.wait(seconds)
                case Afresh():
                    reply, losses = None, stores.zk.losses
    finally:
        script.close()


def carry_out(
    stage: Stage, run: Run, stores: Stores, groups: Sequence[str], named: Set[str], work: Work
) -> Iterator[Result]:
    """Carry out a stage on groups, or only check. Yield the outcome of each group, in any order.

    ``named``: the groups that were chosen by name.
    """
    from zkmigrate.apply.live import LiveMove
    from zkmigrate.stores.group_states import case_in  # loads kafka-python, which takes long

    def one(stores: Stores, name: str) -> Result:
        def say(text: str) -> None:
            click.echo(printable(f"group {name}: {text}"), file=sys.stderr)

        def begin(reached: bool) -> None:
            if not reached:
                run.begin(name, lambda: case_in(stores, name))
            run.step(name, stage.action.value)

        move = LiveMove(name, work.wait, say)
        script = stage.on_group(move, name in named, work.execute)
        return perform(stores, script, run.stopped, begin)

    workers = stores.each_thread(work.parallel)
    return run.each(workers, groups, one, stores.kafka.stop_waiting)


def legal_names(
    which: Selection, zk: BlockingZk, on_bad: Callable[[Result], object] = lambda _result: None
) -> list[str]:
    """Return the chosen groups in ZooKeeper that can be moved. ``on_bad``: receives the outcome of
    each group that was chosen by name but has an invalid name."""
    names = which.of_store(lambda: zk.run(list_groups()), Store.ZOOKEEPER)
    for name in names:
        if not is_legal_group(name) and name in which.names:
            on_bad(not_read(name, bad_name(name)))
    return list(filter(is_legal_group, names))


def by_move(zk: BlockingZk, groups: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the groups that need the steps of a live move, and the others. The first list also has
    the groups whose record cannot be read."""
    live: list[str] = []
    others: list[str] = []
    found = zk.run_all(or_refusal(state_of(name)) for name in groups)
    for name, one in zip(groups, found, strict=True):
        still = isinstance(one, GroupState) and not one.in_live_move
        (others if still else live).append(name)
    return live, others


def carry_out_stopped(
    stage: Stage,
    run: Run,
    zk: BlockingZk,
    groups: Iterable[str],
    script: Callable[[str, bool], Script[Result]],
    work: Work,
) -> Iterator[Result]:
    """Lock or unlock groups that are not in a live move, without using brokers. Yield the outcomes.

    ``script``: locks or unlocks a group, or only checks.
    """

    def one(zk: BlockingZk, name: str) -> Result:
        def act(execute: bool) -> Result:
            try:
                return zk.run(script(name, execute))
            except GroupInUseError:
                if execute or not work.execute:
                    raise
                return Result(name, Outcome.WOULD, 0)  # the first hook may stop its members

        return run.carry_out(name, stage.action.value, act)

    return run.each([zk] * work.parallel, groups, one)


def _outcome(step: Step, execute: bool, stage: Stage) -> Outcome:
    if step.why:
        return Outcome.REFUSED
    if step.changed:
        return Outcome.DONE
    reached = execute or has_reached(step.mode, stage.target, stage.back)
    return Outcome.WAS_DONE if reached else Outcome.WOULD
