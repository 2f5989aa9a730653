"""``zkmigrate assess``."""

from __future__ import annotations

from functools import partial

import click

from zkconsumer.cli.tables import How, format_options, no_collector
from zkmigrate.commands.cells import only_problems_option
from zkmigrate.commands.decisions import decisions
from zkmigrate.commands.files import write_out
from zkmigrate.commands.planning import Summary, plan_groups
from zkmigrate.commands.progress import Progress
from zkmigrate.commands.selection import Selection, selection
from zkmigrate.commands.servers import Servers, open_stores, server_options
from zkmigrate.formats import decisions_file
from zkmigrate.model import Direction
from zkmigrate.plan.options import Options


@click.command()
@selection
@decisions
@click.option(
    "--running",
    is_flag=True,
    help="Members of a group are not in the way: for groups that are stopped later.",
)
@click.option(
    "--decisions-out",
    metavar="FILE",
    help="A new file for plan --decisions, with a rule for each group that needs a decision.",
)
@server_options
@only_problems_option
@format_options
def assess(
    which: Selection,
    direction: Direction,
    options: Options,
    running: bool,
    decisions_out: str | None,
    servers: Servers,
    only_problems: bool,
    how: How,
) -> None:
    """Say of each group whether it can be moved, and if not, why and what to do.

    Changes nothing in the stores. Exit status 1 when a group is not ready.
    """
    summary = Summary(how, only_problems, options.skips)
    with (
        no_collector(),
        Progress("assessing", bad="not ready") as progress,
        open_stores(servers, progress) as stores,
    ):
        chosen = which.of_store(partial(stores.group_names, direction.source), direction.source)
        plans = summary.watch(
            plan_groups(stores, direction, options, chosen, progress, None, running)
        )
        if decisions_out is not None:
            write_out(decisions_out, decisions_file.template(plans), "--decisions-out")
        for _ in plans:
            pass
        summary.unlisted = stores.unlisted
    summary.print_all()
    click.get_current_context().exit(summary.status)
