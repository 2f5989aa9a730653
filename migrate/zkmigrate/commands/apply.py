"""``zkmigrate apply``."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from zkconsumer.console.exclusive import no_effect
from zkconsumer.console.tables import print_notes, read_security
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
from zkmigrate.formats.plan_file import PlanFile, To

if TYPE_CHECKING:
    from zkmigrate.apply.parallel import Run
    from zkmigrate.stores.contents import OtherCluster
    from zkmigrate.stores.sessions import Stores


@click.command(epilog=HELP)
@click.argument("plan")
@work_options(
    "After all other groups, wait this long for groups with live members, and move each as soon as "
    "its members have stopped.",
    0.0,
    "PLAN.journal",
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
    help="Move only the first N groups that are ready and not moved yet.",
)
@click.option(
    "--sha256",
    metavar="HEX",
    help="Do nothing unless PLAN has this SHA-256, which zkmigrate plan printed and the reviewers "
    "approved.",
)
@click.option(
    "--to-config",
    metavar="FILE",
    help="The --command-config of the other cluster in PLAN.",
)
def apply(
    plan: str,
    work: Work,
    lock: bool,
    limit: int | None,
    sha256: str | None,
    to_config: str | None,
) -> None:
    """Carry out PLAN.

    Groups that are not ready are skipped. Before the command writes anything, it claims each
    group's partitions, as a member would. After a crash, run the same command again, and it
    resumes. A dry run shows the remaining groups.

    A plan for another cluster is carried out there; this cluster is not changed. To be
    moved back from another cluster, groups must have stopped there, with unchanged offsets.
    """
    where = journal_path(plan, work.journal)
    loaded = load(plan, work.which, limit, where, sha256, elsewhere=True)
    options: dict[str, object] = {"lock": lock, "limit": limit, "sha256": sha256}
    if loaded.to is not None:
        no_effect("a plan for another cluster", "lock", "wait")
        del options["lock"]
        options["to"] = loaded.to.servers
    elif loaded.origin is None:
        no_effect("a plan for this cluster", "to_config")
    with ExitStack() as stack:
        verb = "moving" if loaded.to is None else "storing"
        outcomes = stack.enter_context(Outcomes(verb, work))
        stores = stack.enter_context(open_stores(work.servers, outcomes.progress))
        outcomes.progress.total = len(loaded.groups)
        check_cluster(loaded, stores)
        other: OtherCluster | None = None
        if (there := loaded.to or loaded.origin) is not None:
            from zkmigrate.elsewhere import unchecked

            other = stack.enter_context(_open_other(work, there, to_config))
            print_notes(unchecked(loaded, there, other))
        of_plan = (loaded.direction, plan, loaded.digest)
        with open_run(work, stores.cluster_id(), options, *of_plan, idle=True) as run:
            if loaded.to is not None and other is not None:
                from zkmigrate.elsewhere import store_elsewhere

                for result in store_elsewhere(loaded, stores, other, run):
                    outcomes.add(result)
                names = [group.group for group in loaded.groups]
            else:
                names = _move(loaded, stores, other, run, work, lock, outcomes)
    outcomes.finish(names)


def _open_other(work: Work, cluster: To, config: str | None) -> OtherCluster:
    from zkmigrate.stores.contents import OtherCluster  # loads kafka-python, which takes long

    where = work.servers._replace(bootstrap=cluster.servers, security=read_security(config))
    return OtherCluster(where, cluster.cluster)


def _move(
    loaded: PlanFile,
    stores: Stores,
    origin: OtherCluster | None,
    run: Run,
    work: Work,
    lock: bool,
    outcomes: Outcomes,
) -> list[str]:
    """Move groups in this cluster, and return their names. ``origin``: the other cluster from which
    offsets come."""
    from zkmigrate.apply.migrator import Migrator  # loads kafka-python, which takes long

    more: dict[str, Any] = {}
    if origin is not None:
        from zkmigrate.elsewhere import check_origin

        more["check"] = partial(check_origin, other=origin)
        more["stop_waiting"] = origin.kafka.stop_waiting
    migrator = Migrator(stores, lock=lock, parallel=work.parallel, **more)
    results = migrator.apply(loaded, run, outcomes.add, work.wait if work.execute else 0.0)
    return [one.group for one in results]
