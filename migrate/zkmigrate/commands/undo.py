"""``zkmigrate undo``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from zkconsumer.admin.snapshot import list_groups
from zkconsumer.console.tables import How
from zkconsumer.console.times import duration_option
from zkconsumer.core.migration.modes import Mode
from zkconsumer.errors import ZnodeFormatError
from zkmigrate.apply.hooks import Hooks
from zkmigrate.apply.outcome import Outcome, Result, by_table, not_read
from zkmigrate.apply.records import UNDO, UNDO_JOURNAL
from zkmigrate.commands.options.running import (
    check_cluster,
    hook_options,
    journal_path,
    load,
    open_journal,
    open_migrator,
    parallel_option,
    record_options,
)
from zkmigrate.commands.options.selection import Selection, selection
from zkmigrate.commands.options.servers import Servers, open_stores, server_options
from zkmigrate.commands.output.cells import only_problems_option
from zkmigrate.commands.output.metrics import metrics_option
from zkmigrate.commands.output.outcomes import Outcomes
from zkmigrate.commands.output.rows import format_options
from zkmigrate.commands.steps import Stage, carry_out
from zkmigrate.exits import HELP
from zkmigrate.formats.plan_file import PlanFile
from zkmigrate.model import Direction, GroupState, Stage as Recorded, Store, number
from zkmigrate.plan.options import Options
from zkmigrate.plan.table import Action, Way, decide
from zkmigrate.plan.values import GroupPlan
from zkmigrate.stores.record import read_before

if TYPE_CHECKING:
    from zkmigrate.stores.sessions import Stores

_LIVE: Final = Stage(
    Action.UNDO,
    Mode.ZOOKEEPER,
    True,
    lambda move: move.undo(),
    only_check=lambda move: move.check_back(),
)


@click.command(epilog=HELP)
@click.argument("plan", required=False)
@click.option("--execute", is_flag=True, help="Take them back; without it nothing is changed.")
@click.option(
    "--force",
    is_flag=True,
    help="Roll back also where offsets were committed after the move, and overwrite them.",
)
@duration_option(
    "--wait", default=60.0, help="In a live move: how long to wait for a group's members."
)
@hook_options
@parallel_option
@selection
@click.option(
    "--journal",
    metavar="FILE",
    help="The journal's file.  [default: PLAN.journal; without PLAN zkmigrate-undo.journal]",
)
@record_options
@metrics_option
@server_options
@only_problems_option
@format_options
def undo(
    plan: str | None,
    execute: bool,
    force: bool,
    wait: float,
    parallel: int,
    hooks: Hooks,
    which: Selection,
    journal: str | None,
    servers: Servers,
    only_problems: bool,
    how: How,
) -> None:
    """Take groups back to ZooKeeper, or to what was before. A dry run unless --execute is given.

    The way depends on the group's case, and is shown before anything is changed:

    roll back: both stores get what they had before the last change, by the group's record in
    ZooKeeper. This also ends a change that was interrupted.

    copy back: new consumers have committed to Kafka since the move, so ZooKeeper gets these
    offsets, as by plan --direction kafka-to-zk. Stop these consumers first.

    live back: the modes of a live move, back to zookeeper, while the members run. Then unlock.

    unlock: a group that was not moved, but is locked.

    It needs neither plan nor journal of the move, so another operator can run it on another
    machine. With PLAN, only groups that this plan has changed. With --all or a pattern, other
    groups are left out.
    """
    loaded = None if plan is None else load(plan, which)
    where = journal_path(plan, journal) if plan is not None else Path(journal or UNDO_JOURNAL)
    named = None if plan is not None else which.groups
    with (
        Outcomes("undoing", execute, how, only_problems, named) as outcomes,
        open_stores(servers, outcomes.progress) as stores,
    ):
        if loaded is not None:
            check_cluster(loaded, stores)
            names = [group.group for group in loaded.groups]
        else:
            names = which.of_store(lambda: stores.zk.run(list_groups()), Store.ZOOKEEPER)
        outcomes.progress.total = len(names)
        digest = "" if loaded is None else loaded.digest
        ways: dict[Way, list[GroupState]] = {}
        for found in _ways(stores, names, digest, force):
            if isinstance(found, Result):
                outcomes.add(found)
            else:
                ways.setdefault(found[1], []).append(found[0])
        _announce(ways, execute)

        def on_group(way: Way, kafka: dict[str, str], result: Result) -> None:
            outcomes.add(replace(result, way=way, kafka_group=kafka[result.group]))

        options = {"force": force, "parallel": parallel, "wait": wait, **hooks.commands}
        for way, states in ways.items():
            groups = [state.group for state in states]
            say = partial(on_group, way, {state.group: state.kafka_group for state in states})
            if way is Way.UNLOCK:
                from zkmigrate.apply import guard

                for name in groups:
                    say(stores.zk.run(guard.release(name, execute)))
            elif way is Way.LIVE_BACK:
                every = frozenset(groups)
                for result in carry_out(_LIVE, stores, groups, every, execute, wait, parallel):
                    say(result)
            else:
                back = way is Way.COPY_BACK
                direction = Direction.KAFKA_TO_ZK if back else Direction.ZK_TO_KAFKA
                chosen = [GroupPlan(one.group, kafka_group=one.kafka_group) for one in states]
                # A plan's journal has the records of the plan, so a new plan gets another one.
                own = back and plan is not None
                path, of = (Path(UNDO_JOURNAL), "") if own else (where, digest)
                at_apply = Options() if back else None
                made = PlanFile(direction, 0, chosen, "" if back else digest, at_apply)
                with open_journal(path, of or UNDO, execute, stores, options, which) as opened:
                    migrator = open_migrator(stores, plan or "", direction, parallel, hooks, force)
                    if back:
                        migrator.apply(made, opened, say, fresh=True)
                    else:
                        migrator.rollback(made, opened, say)
    outcomes.finish(names)


def _ways(
    stores: Stores, names: Sequence[str], digest: str, force: bool
) -> Iterator[Result | tuple[GroupState, Way]]:
    """Yield how each group is taken back, or why it is not."""
    from zkmigrate.stores.group_states import read_states  # loads kafka-python, which takes long

    for state in read_states(stores, names, {}, False):
        if not isinstance(state, GroupState):
            yield not_read(*state)
            continue
        record = state.record
        way = decide(state, Action.UNDO).way or Way.ROLL_BACK
        refused = by_table(state, Action.UNDO)
        if digest and record.plan != digest:
            yield state, Way.ROLL_BACK  # which finds out whether the plan has changed the group
        elif refused is not None and refused.outcome is not Outcome.WAS_DONE:
            yield refused
        elif way is Way.COPY_BACK and (force or _unused(stores, state)):
            yield state, Way.ROLL_BACK
        elif way is Way.ROLL_BACK and record.stage in (Recorded.NONE, Recorded.UNDONE):
            moved = state.marker is not None and state.marker.moved_to is Store.KAFKA
            if (moved and record.stage is Recorded.NONE) or (moved and not digest):
                yield state, Way.COPY_BACK
            else:
                yield state, Way.ROLL_BACK
        else:
            yield state, way


def _unused(stores: Stores, state: GroupState) -> bool:
    """Whether Kafka has exactly what the last change has written, whatever ZooKeeper had."""
    if state.record.stage is not Recorded.DONE:
        return False
    try:
        before = stores.zk.run(read_before(state.group))
    except ZnodeFormatError:
        return False
    if before is None or before.target is not Store.KAFKA:
        return False
    written = {tp: number(one) for tp, one in {**before.kafka, **before.to}.items()}
    return all(number(state.kafka.get(tp)) == offset for tp, offset in written.items())


def _announce(ways: dict[Way, list[GroupState]], execute: bool) -> None:
    """Say how each group is taken back, before anything is changed."""
    verb = "now" if execute else "would"
    for way, states in ways.items():
        names = ", ".join(state.group for state in states[:5])
        more = f" and {len(states) - 5} more" if len(states) > 5 else ""
        click.echo(f"{verb} {way.value}: {names}{more}", err=True)
