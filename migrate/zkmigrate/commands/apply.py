"""``zkmigrate apply``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

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
    from zkmigrate.plan.values import GroupPlan
    from zkmigrate.stores.contents import OtherCluster


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
    help="Move only the first N groups that are ready and not moved yet.",
)
@click.option(
    "--sha256",
    metavar="HEX",
    help="Do nothing unless this is the SHA-256 of PLAN, which plan prints and reviewers approve.",
)
@click.option(
    "--to-config",
    metavar="FILE",
    help="Like --command-config, for the brokers of the other cluster in PLAN.",
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

    Before the command writes anything, it claims each group's partitions, as a member would. After
    a crash, run the same command again, and it resumes. A dry run shows the remaining groups.

    A plan for another cluster is carried out there; this cluster is not changed. If the plan
    is from another cluster, the group must have stopped there, and its offsets must not have
    changed since.
    """
    where = journal_path(plan, work.journal)
    loaded = load(plan, work.which, limit, where, sha256, elsewhere=True)
    if loaded.to is not None:
        no_effect("a plan for another cluster", "lock", "wait")
        _apply_elsewhere(plan, loaded, loaded.to, work, limit, sha256, to_config)
        return
    if loaded.origin is None:
        no_effect("a plan for this cluster", "to_config")
    with ExitStack() as stack:
        outcomes = stack.enter_context(Outcomes("moving", work))
        stores = stack.enter_context(open_stores(work.servers, outcomes.progress))
        from zkmigrate.apply.migrator import Migrator  # loads kafka-python, which takes long

        outcomes.progress.total = len(loaded.groups)
        check_cluster(loaded, stores)
        options = {"lock": lock, "limit": limit, "sha256": sha256}
        of_plan = (loaded.direction, plan, loaded.digest)
        check: Callable[[GroupPlan], object] = lambda _plan: None  # noqa: E731
        stop_waiting: Callable[[], object] = lambda: None  # noqa: E731
        if loaded.origin is not None:
            from zkmigrate.elsewhere import check_origin, unchecked

            other = stack.enter_context(_open_other(work, loaded.origin, to_config))
            print_notes(unchecked(loaded, loaded.origin, other))
            check, stop_waiting = partial(check_origin, other=other), other.kafka.stop_waiting
        with open_run(work, stores.cluster_id(), options, *of_plan, idle=True) as run:
            migrator = Migrator(
                stores,
                lock=lock,
                parallel=work.parallel,
                check=check,
                stop_waiting=stop_waiting,
            )
            wait = work.wait if work.execute else 0.0
            results = migrator.apply(loaded, run, outcomes.add, wait)
    outcomes.finish([one.group for one in results])


def _open_other(work: Work, cluster: To, config: str | None) -> OtherCluster:
    from zkmigrate.stores.contents import OtherCluster  # loads kafka-python, which takes long

    where = work.servers._replace(bootstrap=cluster.servers, security=read_security(config))
    return OtherCluster(where, cluster.cluster)


def _apply_elsewhere(
    plan: str,
    loaded: PlanFile,
    to: To,
    work: Work,
    limit: int | None,
    sha256: str | None,
    to_config: str | None,
) -> None:
    with (
        Outcomes("storing", work) as outcomes,
        open_stores(work.servers, outcomes.progress) as stores,
    ):
        from zkmigrate.elsewhere import store_elsewhere, unchecked

        outcomes.progress.total = len(loaded.groups)
        check_cluster(loaded, stores)
        options = {"limit": limit, "sha256": sha256, "to": to.servers}
        of_plan = (loaded.direction, plan, loaded.digest)
        with (
            _open_other(work, to, to_config) as other,
            open_run(work, stores.cluster_id(), options, *of_plan, idle=True) as run,
        ):
            print_notes(unchecked(loaded, to, other))
            for result in store_elsewhere(loaded, stores, other, run):
                outcomes.add(result)
    outcomes.finish([group.group for group in loaded.groups])
