"""``zkmigrate apply``."""

from __future__ import annotations

from typing import Any

import click

from zkconsumer.console.tables import How
from zkconsumer.console.times import duration_option
from zkmigrate.apply.hooks import Hooks
from zkmigrate.apply.journal import check_writable, read_records
from zkmigrate.commands.options.running import (
    check_cluster,
    hook_options,
    journal_option,
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
from zkmigrate.exits import HELP


@click.command(epilog=HELP)
@click.argument("plan")
@click.option("--execute", is_flag=True, help="Move the offsets; without it nothing is changed.")
@click.option(
    "--lock/--no-lock",
    default=True,
    show_default=True,
    help="Lock groups that are moved to Kafka, so that their old consumers cannot start; see "
    "zkmigrate lock.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Only the first N of the groups that are ready and not moved yet.",
)
@click.option(
    "--sha256",
    metavar="HEX",
    help="Do nothing unless this is the SHA-256 of PLAN. plan prints it; reviewers approve it.",
)
@duration_option(
    "--wait",
    default=0.0,
    help="After all other groups, wait this long for groups with live members, and move each "
    "as soon as its members have stopped.",
)
@hook_options
@parallel_option
@selection
@journal_option
@record_options
@metrics_option
@server_options
@only_problems_option
@format_options
def apply(
    plan: str,
    execute: bool,
    lock: bool,
    limit: int | None,
    sha256: str | None,
    wait: float,
    parallel: int,
    hooks: Hooks,
    which: Selection,
    journal: str | None,
    servers: Servers,
    only_problems: bool,
    how: How,
) -> None:
    """Carry out PLAN. A dry run unless --execute is given.

    Before anything is written, each group's partitions are claimed, as a member would do it. After
    a crash, run the same command again, and it resumes. A dry run shows the remaining groups.
    """
    where = journal_path(plan, journal)
    loaded = load(plan, which, limit, where, sha256)
    with (
        Outcomes("moving", execute, how, only_problems) as outcomes,
        open_stores(servers, outcomes.progress) as stores,
    ):
        outcomes.progress.total = len(loaded.groups)
        check_cluster(loaded, stores)
        migrator = open_migrator(stores, plan, loaded.direction, parallel, hooks, lock=lock)
        earlier: list[dict[str, Any]] = []
        if not execute:
            check_writable(where)
            earlier = read_records(where, loaded.digest)
        options = {
            "lock": lock,
            "limit": limit,
            "sha256": sha256,
            "wait": wait,
            "parallel": parallel,
        }
        with open_journal(where, loaded.digest, execute, stores, options, which) as opened:
            patience = wait if execute else 0.0
            results = migrator.apply(loaded, opened, outcomes.add, earlier, patience)
    outcomes.finish([one.group for one in results])
