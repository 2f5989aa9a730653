"""``zkmigrate verify``."""

from __future__ import annotations

import click

from zkconsumer.cli.tables import How, format_options, print_rows
from zkconsumer.errors import ZnodeFormatError
from zkmigrate import verify
from zkmigrate.commands.progress import Progress
from zkmigrate.commands.servers import Servers, open_stores, server_options
from zkmigrate.formats import plan_file
from zkmigrate.plan.values import Problem
from zkmigrate.stores import migration_marker


@click.command("verify")
@click.argument("plan")
@server_options
@format_options
def verify_(plan: str, servers: Servers, how: How) -> None:
    """Read both stores back and compare them with PLAN.

    Differences: the target lacks an offset or is behind, or the source store has changed since the
    move. Where the target is further than planned, its consumers have made progress. Exit status 0
    only when all groups of the plan are moved and there is no difference.
    """
    from zkmigrate.stores.group_states import read_offsets  # loads kafka-python, which takes long

    loaded = plan_file.load(plan)
    differences: list[verify.Difference] = []
    stays: list[verify.Difference] = []
    unread: list[verify.Difference] = []
    groups = compared = 0
    with (
        Progress("comparing", len(loaded.groups), "differ") as progress,
        open_stores(servers, progress) as stores,
    ):
        planned = (group for group in loaded.groups if not group.problems)
        for group, held in read_offsets(stores, planned):
            found: list[verify.Difference] = []
            if isinstance(held, Problem):
                unread.append(verify.unreadable(group, f"{held.kind.value}: {held.what}"))
                progress.group(group.group, good=False)
                continue
            try:
                marker = stores.zk.run(migration_marker.read(group.group))
            except ZnodeFormatError as fault:
                found.append(verify.unreadable(group, str(fault)))
                marker = None
            found += verify.compare(group, loaded.direction, held, marker)
            stays += verify.stays_behind(group, loaded.direction, held)
            differences += found
            groups += 1
            compared += len(group.entries)
            progress.group(group.group, all(one.kind == verify.PROGRESS for one in found))
    print_rows(verify.Difference._fields, [*unread, *differences, *stays], how)
    skipped = len(loaded.groups) - groups - len(unread)
    further = sum(one.kind == verify.PROGRESS for one in differences)
    differ = len(differences) - further
    click.echo(
        f"{compared} partitions of {groups} groups compared, {differ} differ"
        + (f", {further} are further than planned" if further else "")
        + (f"; {len(unread)} groups could not be read" if unread else "")
        + (f"; {len(stays)} offsets stay behind" if stays else "")
        + (f"; {skipped} groups of the plan were not ready and are not moved" if skipped else ""),
        err=True,
    )
    click.get_current_context().exit(1 if differ or unread or skipped else 0)
