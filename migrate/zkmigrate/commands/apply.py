"""``zkmigrate apply``."""

from __future__ import annotations

import click

from zkconsumer.cli.tables import How, format_options
from zkmigrate.apply.journal import Journal, read_records
from zkmigrate.commands.cells import only_problems_option
from zkmigrate.commands.progress import Progress
from zkmigrate.commands.running import (
    counted,
    journal_option,
    journal_path,
    load,
    open_migrator,
    print_results,
)
from zkmigrate.commands.servers import Servers, open_stores, server_options


@click.command()
@click.argument("plan")
@click.option("--execute", is_flag=True, help="Move the offsets; without it nothing is changed.")
@click.option(
    "--guard/--no-guard",
    default=True,
    show_default=True,
    help="Keep old consumers of groups that are moved to Kafka from starting, see guard.",
)
@journal_option
@server_options
@only_problems_option
@format_options
def apply(
    plan: str,
    execute: bool,
    guard: bool,
    journal: str | None,
    servers: Servers,
    only_problems: bool,
    how: How,
) -> None:
    """Carry out PLAN. A dry run unless --execute is given.

    Each group is taken over as a member would do it before anything is written. After a crash, run
    the same command again: it resumes where it was. A dry run shows what is left to do. Exit status
    0 only when every group of the plan is moved and read back.
    """
    loaded, passed = load(plan)
    verb = "moving" if execute else "checking"
    with Progress(verb, len(loaded.groups)) as progress, open_stores(servers, progress) as stores:
        migrator = open_migrator(stores, lock=guard)
        if execute:
            with Journal(journal_path(plan, journal), loaded.digest) as opened:
                results = migrator.apply(loaded, opened, counted(progress))
        else:
            earlier = read_records(journal_path(plan, journal), loaded.digest)
            results = migrator.apply(loaded, None, counted(progress), earlier)
    if not execute:
        click.echo("dry run: nothing was changed; give --execute to move", err=True)
    print_results(results, passed, how, only_problems)
