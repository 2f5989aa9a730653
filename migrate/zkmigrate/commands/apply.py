"""``zkmigrate apply``."""

from __future__ import annotations

import click

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
from zkmigrate.exits import HELP


@click.command(epilog=HELP)
@click.argument("plan")
@work_options(
    "After all other groups, wait this long for groups with live members, and move each as soon as "
    "its members have stopped.",
    0.0,
)
@click.option(
    "--lock/--no-lock",
    default=True,
    show_default=True,
    help="Lock groups that are moved to Kafka; see zkmigrate lock.",
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
def apply(plan: str, work: Work, lock: bool, limit: int | None, sha256: str | None) -> None:
    """Carry out PLAN.

    Before the command writes anything, it claims each group's partitions, as a member would do it.
    After a crash, run the same command again, and it resumes. A dry run shows the remaining groups.
    """
    where = journal_path(plan, work.journal)
    loaded = load(plan, work.which, limit, where, sha256)
    with (
        Outcomes("moving", work) as outcomes,
        open_stores(work.servers, outcomes.progress) as stores,
    ):
        from zkmigrate.apply.migrator import Migrator  # loads kafka-python, which takes long

        outcomes.progress.total = len(loaded.groups)
        check_cluster(loaded, stores)
        options = {"lock": lock, "limit": limit, "sha256": sha256}
        of_plan = (loaded.direction, plan, loaded.digest)
        with open_run(work, stores.cluster_id(), options, *of_plan, idle=True) as run:
            migrator = Migrator(stores, lock=lock, parallel=work.parallel)
            wait = work.wait if work.execute else 0.0
            results = migrator.apply(loaded, run, outcomes.add, wait)
    outcomes.finish([one.group for one in results])
