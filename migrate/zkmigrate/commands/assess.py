"""``zkmigrate assess``."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import click

from zkconsumer.console.collector import no_collector
from zkconsumer.console.exclusive import no_effect
from zkconsumer.console.tables import How, format_options, print_notes
from zkconsumer.core.zookeeper.znodes import is_legal_group
from zkconsumer.errors import ZooKeeperError
from zkconsumer.zk.blocking import or_refusal
from zkmigrate.commands.cells import only_problems_option
from zkmigrate.commands.decisions import DECISIONS, decisions
from zkmigrate.commands.files import write_out
from zkmigrate.commands.planning import Summary, plan_groups
from zkmigrate.commands.progress import Progress
from zkmigrate.commands.renaming import Rename, choose, rename_option
from zkmigrate.commands.rows import print_table
from zkmigrate.commands.selection import Selection, selection
from zkmigrate.commands.servers import (
    Servers,
    open_stores,
    print_not_looked_at,
    server_options,
)
from zkmigrate.exits import HELP, exit_status
from zkmigrate.formats import decisions_file
from zkmigrate.model import Direction, GroupState, Store
from zkmigrate.plan.left import IGNORED, Left, what_is_left
from zkmigrate.plan.options import Options


@click.command(epilog=HELP)
@selection
@decisions
@click.option(
    "--running",
    is_flag=True,
    help="Do not report live members as a problem, because you will stop them later.",
)
@click.option(
    "--decisions-out",
    metavar="FILE",
    help="A new file for plan --decisions, with a rule for each group that needs a decision.",
)
@click.option(
    "--left",
    is_flag=True,
    help="Show instead what would be lost if ZooKeeper were switched off now.",
)
@click.option(
    "--fail-if-left",
    is_flag=True,
    help="Like --left, but it needs attention if any offset or member is only in ZooKeeper, or if "
    "a znode of a group is not understood.",
)
@rename_option
@server_options
@only_problems_option
@format_options
def assess(
    which: Selection,
    direction: Direction,
    options: Options,
    running: bool,
    decisions_out: str | None,
    left: bool,
    fail_if_left: bool,
    renames: tuple[Rename, ...],
    servers: Servers,
    only_problems: bool,
    how: How,
) -> None:
    """Show for each group whether it can be moved, and if not, why and what to do.

    It changes nothing in the stores.

    With --left each row shows which offsets Kafka does not have, which znodes are not understood,
    how many members are live, when the group last stored an offset, and how Kafka's offsets
    compare. Only /consumers in this chroot is judged; other places where clients may keep offsets
    are named. Groups that --decisions ignores do not count.
    """
    if left or fail_if_left:
        flag = "--left" if left else "--fail-if-left"
        if direction is not Direction.ZK_TO_KAFKA:
            no_effect(flag, "direction")
        others = (name for name in DECISIONS if name != "decisions")
        no_effect(flag, "decisions_out", "running", "renames", *others)
        _show_left(which, servers, how, only_problems, fail_if_left, options)
    summary = Summary(how, only_problems, options.skips)
    with (
        no_collector(),
        Progress("assessing", bad="not ready") as progress,
        open_stores(servers, progress) as stores,
    ):
        own, renamed = choose(stores, direction, which, renames)
        chosen = list(own.values())
        plans = summary.watch(
            plan_groups(stores, direction, options, chosen, progress, None, running, renamed)
        )
        if decisions_out is not None:
            write_out(decisions_out, decisions_file.template(plans), "--decisions-out")
        for _ in plans:
            pass
        summary.unlisted = stores.unlisted
    summary.print_all()
    click.get_current_context().exit(summary.status)


def _show_left(
    which: Selection,
    servers: Servers,
    how: How,
    only_problems: bool,
    fail: bool,
    options: Options,
) -> None:
    from zkmigrate.stores.group_states import read_states  # loads kafka-python, which takes long
    from zkmigrate.stores.surroundings import below_offsets

    rows: list[Left] = []
    with (
        no_collector(),
        Progress("looking", bad="left") as progress,
        open_stores(servers, progress) as stores,
    ):
        names = which.of_store(partial(stores.group_names, Store.ZOOKEEPER), Store.ZOOKEEPER)
        progress.total = len(names)
        legal = [name for name in names if is_legal_group(name)]
        deeper = stores.zk.run_all(or_refusal(below_offsets(name)) for name in legal)
        odd = {
            name: paths
            for name, paths in zip(legal, deeper, strict=True)
            if paths and not isinstance(paths, ZooKeeperError)  # read_states reports that
        }
        for state in read_states(stores, names, {}, False):
            if isinstance(state, GroupState):
                foreign = (*state.foreign, *odd.get(state.group, ()))
                one = what_is_left(replace(state, foreign=foreign))
            else:
                one = Left.unknown(state[0], f"{state[1].kind.value}: {state[1].what}")
            reason = options.ignored(one.group)
            rows.append(one.ignored(reason) if one.left and reason else one)
            progress.group(one.group, not rows[-1].left)
        print_not_looked_at(stores.zk, servers)
    left = [one for one in rows if one.left]
    print_table("gate", Left._fields, left if only_problems else rows, how)
    live = sum(one.members > 0 for one in left)
    click.echo(
        f"{len(left)} of {len(rows)} groups would lose something without ZooKeeper: "
        f"{sum(one.lost for one in left)} offsets; {live} groups have live members",
        err=True,
    )
    ignored = [one for one in rows if one.why.startswith(IGNORED)]
    print_notes(f"group {one.group} is {one.why}" for one in ignored)
    decided = sum(one.decided for one in rows)
    if decided:
        print_notes([f"{decided} offsets stay in ZooKeeper because a plan skipped them"])
    click.get_current_context().exit(exit_status(attention=bool(left) and fail))
