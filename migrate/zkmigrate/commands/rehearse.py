"""``zkmigrate rehearse``."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

import click

from zkconsumer.console.collector import no_collector
from zkconsumer.console.tables import How, format_options
from zkmigrate.apply.outcome import status_of_outcomes
from zkmigrate.commands.cells import only_problems_option
from zkmigrate.commands.progress import Progress
from zkmigrate.commands.rows import print_table
from zkmigrate.commands.running import check_cluster, counted, load, parallel_option
from zkmigrate.commands.selection import Selection, plan_selection
from zkmigrate.commands.servers import Servers, open_stores, server_options
from zkmigrate.exits import FAILED, HELP


@click.command(epilog=HELP)
@click.argument("plan")
@parallel_option
@plan_selection
@server_options
@only_problems_option
@format_options
def rehearse(
    plan: str, parallel: int, which: Selection, servers: Servers, only_problems: bool, how: How
) -> None:
    """Try PLAN on copies of its groups, on servers that are started on this machine.

    The groups that are ready are copied with their offsets and the range of each log, but without
    messages and members. The copies are moved, verified and rolled back. The command only reads
    from the real servers. It needs Java.
    """
    from zkmigrate.rehearsal import Rehearsal, copy_groups, ready  # loads kafka-python

    loaded, _ = load(plan, which)
    groups = ready(loaded)
    loaded = replace(loaded, groups=tuple(groups))
    newest = loaded.at_apply is not None and loaded.at_apply.needs_commit_times
    with (
        no_collector(),
        tempfile.TemporaryDirectory(prefix="zkmigrate-") as folder,
        Progress("rehearsing", len(groups)) as progress,
    ):
        with open_stores(servers, progress) as stores:
            check_cluster(loaded, stores)
            progress.waiting("the offsets and logs of the groups")
            copy = copy_groups(stores, groups)
        with Rehearsal(copy, Path(folder), progress.waiting) as rehearsal:
            started = time.monotonic()
            results = list(rehearsal.run(loaded, parallel, True, counted(progress)))
            seconds = time.monotonic() - started
    rows = [
        (
            one.result.group,
            one.result.outcome.value,
            one.result.offsets,
            "; ".join(filter(None, (one.result.why, one.verified, one.way_back))),
        )
        for one in results
        if not (only_problems and one.good)
    ]
    print_table("rehearse", ("group", "outcome", "offsets", "why"), rows, how)
    good = sum(one.good for one in results)
    if newest:
        click.echo(
            "note: copies have new times, so --on-conflict newest may decide otherwise", err=True
        )
    click.echo(
        f"{good} of {len(results)} groups were moved and moved back in {seconds:.0f} s; nothing "
        "was changed on the real servers",
        err=True,
    )
    broken = any(one.result.outcome.good and not one.good for one in results)
    status = FAILED if broken else status_of_outcomes(one.result.outcome for one in results)
    click.get_current_context().exit(status)
