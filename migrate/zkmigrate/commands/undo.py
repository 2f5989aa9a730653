"""``zkmigrate undo``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from zkconsumer.admin.printable import printable, shown
from zkconsumer.admin.snapshot import list_groups
from zkconsumer.core.migration.modes import Mode
from zkconsumer.errors import ZnodeFormatError
from zkconsumer.zk.blocking import or_refusal
from zkmigrate.apply import guard
from zkmigrate.apply.change import Asked, way_back
from zkmigrate.apply.journal import read_records
from zkmigrate.apply.outcome import Outcome, Result, not_read
from zkmigrate.apply.parallel import Run
from zkmigrate.apply.records import moves_by
from zkmigrate.commands.options.running import (
    Work,
    check_cluster,
    journal_path,
    load,
    open_run,
    work_options,
)
from zkmigrate.commands.options.servers import open_stores
from zkmigrate.commands.output.outcomes import Outcomes
from zkmigrate.commands.steps import Stage, carry_out, carry_out_stopped
from zkmigrate.exits import HELP
from zkmigrate.formats.plan_file import PlanFile
from zkmigrate.model import Direction, GroupState, Stage as Recorded, Store, number, numbers
from zkmigrate.plan.options import Options, covers
from zkmigrate.plan.table import Action, Way
from zkmigrate.plan.values import GroupPlan
from zkmigrate.stores.record import read_before

if TYPE_CHECKING:
    from zkmigrate.stores.sessions import Stores

LIVE_BACK: Final = Stage(
    Action.UNDO,
    Mode.ZOOKEEPER,
    True,
    lambda move: move.undo(),
    only_check=lambda move: move.check_back(),
)
_RELEASE: Final = partial(guard.release, live=True)
"""Undo a group's lock, unless another operator has moved it to Kafka in the meantime."""


@click.command(epilog=HELP)
@click.argument("plan", required=False)
@work_options(journal="PLAN.journal, or zkmigrate-undo.journal without PLAN")
@click.option(
    "--force",
    is_flag=True,
    help="Also roll back groups whose offsets were committed after the move, and overwrite these "
    "offsets.",
)
@click.option(
    "--again",
    is_flag=True,
    help="If the last change was an undo: undo the change before it, or the copy that the undo "
    "made.",
)
def undo(plan: str | None, work: Work, force: bool, again: bool) -> None:
    """Undo the last change of groups, or move them back to ZooKeeper.

    The way back depends on the group's case. The dry run shows it:

    roll back: both stores get the offsets that they had before the last change, even if it was
    interrupted.

    copy back: new consumers have committed since the move, so ZooKeeper gets their offsets. Stop
    them first.

    live back: the members return to mode 'zookeeper' while they run, then the group is unlocked.

    mirror back: ZooKeeper leads again, or a pending cut-over is cancelled. The group stays
    mirrored. Stop the new consumers first.

    unlock: the group was only locked.

    The command needs neither the plan nor the journal of the move, so another operator can run it
    on another machine. With PLAN, it covers only groups that this plan was the last to change.
    With --all or a pattern, other groups are left out. To undo an undo, use --again.
    """
    loaded = None if plan is None else load(plan, work.which)
    named = None if plan is not None else work.which.groups
    with (
        Outcomes("undoing", work, named) as outcomes,
        open_stores(work.servers, outcomes.progress) as stores,
    ):
        if loaded is not None:
            check_cluster(loaded, stores)
            names = [group.group for group in loaded.groups]
        else:
            names = work.which.of_store(lambda: stores.zk.run(list_groups()), Store.ZOOKEEPER)
        outcomes.progress.total = len(names)
        planned = (
            {} if loaded is None else {one.group: _in_short(one, loaded) for one in loaded.groups}
        )
        asked = Asked("" if loaded is None else loaded.digest, force, again)
        how = _How(plan, asked, planned)
        left: Sequence[str] = names
        while left:
            left = _take_all_back(stores, left, how, work, outcomes)
    outcomes.finish(names)


class _How(NamedTuple):
    """The options of ``undo``. ``planned``: the plan's groups, with their markers and verdicts."""

    plan: str | None
    asked: Asked
    planned: Mapping[str, GroupPlan]


def _in_short(group: GroupPlan, plan: PlanFile) -> GroupPlan:
    """Return marker and verdict of a planned group. A group that is planned at apply
    may be ready."""
    short = GroupPlan(group.group, marker=group.marker, ignored=group.ignored)
    if plan.at_apply is None:
        short = replace(short, problems=group.problems, moved=group.moved)
    return short


def _take_all_back(
    stores: Stores, names: Sequence[str], how: _How, work: Work, outcomes: Outcomes
) -> list[str]:
    """Take groups back, each in its way. Return those whose interrupted copy back was ended, so
    that it must begin again."""
    ways: dict[Way, list[GroupState]] = {}
    done: list[GroupState] = []
    for found in _ways(stores, names, how, journal_path(how.plan, work.journal)):
        if isinstance(found, Result):
            outcomes.add(found)
        elif found[1] is None:
            done.append(found[0])
        else:
            ways.setdefault(found[1], []).append(found[0])
    _announce(ways, work.execute)
    if done:  # a rollback finds that out, too, and settles the lock
        ways[Way.ROLL_BACK] = [*ways.get(Way.ROLL_BACK, ()), *done]
    copied = {one.group for some in ways.values() for one in some if one.record.copies_back}
    left: list[str] = []

    def on_group(way: Way, kafka: dict[str, str], result: Result) -> None:
        if work.execute and result.group in copied and result.outcome is Outcome.DONE:
            left.append(result.group)
        else:
            outcomes.add(replace(result, way=way, kafka_group=kafka[result.group]))

    for way, states in ways.items():
        say = partial(on_group, way, {state.group: state.kafka_group for state in states})
        back = way is not Way.ROLL_BACK
        direction = Direction.KAFKA_TO_ZK if back else Direction.ZK_TO_KAFKA
        # A plan's journal has the records of the plan alone.
        own = journal_path(None, None) if back and how.plan is not None else None
        options = {"force": how.asked.force, "again": how.asked.again}
        more = (options, direction, how.plan, "" if back else how.asked.digest, own)
        with open_run(work, stores.cluster_id(), *more) as run:
            _take_back(stores, run, way, states, work, how, say)
    return left


def _take_back(
    stores: Stores,
    run: Run,
    way: Way,
    states: Sequence[GroupState],
    work: Work,
    how: _How,
    on_group: Callable[[Result], object],
) -> None:
    """Take groups back in one way."""
    from zkmigrate.apply.migrator import Migrator  # loads kafka-python, which takes long
    from zkmigrate.commands.mirror import each_mirrored
    from zkmigrate.mirror.mirroring import Mirroring

    groups = [state.group for state in states]
    if way in (Way.UNLOCK, Way.LIVE_BACK):
        for result in (
            carry_out_stopped(LIVE_BACK, run, stores.zk, groups, _RELEASE, work)
            if way is Way.UNLOCK
            else carry_out(LIVE_BACK, run, stores, groups, frozenset(groups), work)
        ):
            on_group(result)
        return
    if way is Way.MIRROR_BACK:
        for result in each_mirrored(run, stores, groups, work, Mirroring.back):
            on_group(result)
        return
    migrator = Migrator(stores, force=how.asked.force, parallel=work.parallel)
    chosen = [GroupPlan(one.group, kafka_group=one.kafka_group) for one in states]
    if way is Way.COPY_BACK:
        made = PlanFile(Direction.KAFKA_TO_ZK, 0, chosen, "", Options())
        migrator.apply(made, run, on_group, fresh=True)
    else:
        plans = [
            replace(how.planned.get(one.group, one), kafka_group=one.kafka_group) for one in chosen
        ]
        made = PlanFile(Direction.ZK_TO_KAFKA, 0, plans, how.asked.digest)
        migrator.rollback(made, run, on_group, how.asked.again)


def _ways(
    stores: Stores, names: Sequence[str], how: _How, journal: Path
) -> Iterator[Result | tuple[GroupState, Way | None]]:
    """Yield how each group is taken back, or why it is not; ``None`` if it was taken
    back before."""
    from zkmigrate.stores.group_states import read_states  # loads kafka-python, which takes long

    records = moves_by(read_records(journal, how.asked.digest or "undo"))
    for state in read_states(stores, names, {}, False):
        if not isinstance(state, GroupState):
            yield not_read(*state)
            continue
        name = state.group
        planned = how.planned.get(name, GroupPlan(name))
        way = way_back(state, how.asked, planned, records.get(name, []))
        if way is Way.COPY_BACK and _unused(stores, state):
            way = Way.ROLL_BACK
        if way in (Way.UNLOCK, Way.MIRROR_BACK):
            idle = stores.zk.run(or_refusal(guard.nothing_to_unlock(state)))
            way = idle if isinstance(idle, Result) else way
        if isinstance(way, Way):
            yield state, way
        else:
            yield (state, None) if way.outcome is Outcome.WAS_DONE else way


def _unused(stores: Stores, state: GroupState) -> bool:
    """Whether Kafka has exactly the offsets that the last change wrote, even if ZooKeeper had
    others."""
    if state.record.stage is not Recorded.DONE:
        return False
    try:
        before = stores.zk.run(read_before(state.group))
    except ZnodeFormatError:
        return False
    if before is None or before.target is not Store.KAFKA:
        return False
    written = numbers({**before.kafka, **before.to})
    more = state.offsets(Store.KAFKA).keys() - written.keys()
    if any(not covers(before.skipped, tp) for tp in more):
        return False
    return all(number(state.kafka.get(tp)) == offset for tp, offset in written.items())


def _announce(ways: Mapping[Way, Sequence[GroupState]], execute: bool) -> None:
    """Print how each group will be taken back, before anything is changed."""
    verb = "now" if execute else "would"
    for way, states in ways.items():
        names = printable(shown(state.group for state in states))
        click.echo(f"{verb} {way.value}: {names}", err=True)
