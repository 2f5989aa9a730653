"""``zkmigrate rollback``."""

from __future__ import annotations

import os

import click

from zkconsumer.console.tables import How
from zkmigrate.apply.hooks import Hooks
from zkmigrate.apply.journal import Journal
from zkmigrate.apply.outcome import Result
from zkmigrate.commands.cells import only_problems_option
from zkmigrate.commands.metrics import metrics_option
from zkmigrate.commands.progress import Progress
from zkmigrate.commands.rows import format_options
from zkmigrate.commands.running import (
    begin,
    check_cluster,
    counted,
    hook_options,
    journal_option,
    journal_path,
    load,
    open_migrator,
    parallel_option,
    print_results,
    record_options,
    rows_if_ended_early,
)
from zkmigrate.commands.selection import Selection, selection
from zkmigrate.commands.servers import Servers, open_stores, server_options
from zkmigrate.errors import MigrationError
from zkmigrate.exits import HELP


@click.command(epilog=HELP)
@click.argument("plan")
@click.option("--execute", is_flag=True, help="Restore the offsets; without it nothing is changed.")
@click.option("--force", is_flag=True, help="Overwrite offsets that were committed after the move.")
@hook_options
@parallel_option
@selection
@journal_option
@record_options
@metrics_option
@server_options
@only_problems_option
@format_options
def rollback(
    plan: str,
    execute: bool,
    force: bool,
    parallel: int,
    hooks: Hooks,
    which: Selection,
    journal: str | None,
    servers: Servers,
    only_problems: bool,
    how: How,
) -> None:
    """Restore both stores to what the journal of PLAN recorded. A dry run unless --execute.

    Refuses a group whose offsets were changed after the move, unless --force is given.
    """
    loaded, passed = load(plan, which)
    where = journal_path(plan, journal)
    if not os.path.lexists(where):
        raise MigrationError(f"{where} does not exist: the plan was never applied, or --journal")
    verb = "restoring" if execute else "checking"
    done: list[Result] = []
    with (
        rows_if_ended_early(done, passed, how, only_problems),
        Progress(verb, len(loaded.groups), changes=execute) as progress,
        open_stores(servers, progress) as stores,
        Journal(where, loaded.digest) as opened,
    ):
        check_cluster(loaded, stores)
        if execute:
            options = {"force": force, "parallel": parallel, **hooks.commands}
            begin(opened, loaded.cluster, options, which)
        migrator = open_migrator(stores, plan, loaded.direction, parallel, hooks, force)
        results = migrator.rollback(loaded, opened, execute, counted(progress, done))
    if not execute:
        click.echo("dry run: nothing was changed; give --execute to restore", err=True)
    passed.stays.clear()  # after a rollback nothing was moved
    print_results(results, passed, how, only_problems)
