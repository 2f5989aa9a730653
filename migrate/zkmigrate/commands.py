"""The subcommands of ``zkmigrate``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from zkconsumer.admin.text import printable
from zkconsumer.cli.tables import (
    How,
    format_options,
    no_collector,
    print_notes,
    print_rows,
)
from zkconsumer.errors import ZnodeFormatError
from zkmigrate import offset_csv, plan_file, tombstone, verify
from zkmigrate.command_files import (
    given_offsets,
    offsets_in_kafka,
    offsets_in_zookeeper,
    write_new,
)
from zkmigrate.command_options import (
    Selection,
    Servers,
    chosen_options,
    decisions,
    only_problems_option,
    selection,
    server_options,
)
from zkmigrate.command_output import PassedGroups, Summary, tell
from zkmigrate.config_map import CLIENTS, map_file
from zkmigrate.errors import MigrationError
from zkmigrate.journal import Journal, read_records
from zkmigrate.model import (
    Direction,
    GroupPlan,
    GroupState,
    OnConflict,
    Options,
    Problem,
    Store,
    Verdict,
)
from zkmigrate.outcome import Result
from zkmigrate.plan import plan_group
from zkmigrate.progress import Progress

if TYPE_CHECKING:
    from zkmigrate.mover import Mover
    from zkmigrate.snapshot import Stores

F = TypeVar("F", bound=Callable[..., Any])


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="zkconsumer", message="%(prog)s %(version)s")
def cli() -> None:
    """Move the offsets of consumer groups between ZooKeeper and Kafka, safely."""


@contextmanager
def _open(servers: Servers, progress: Progress) -> Iterator[Stores]:
    # Not above: loading kafka-python takes longer than an export or a map of configurations.
    from zkmigrate.snapshot import Stores

    with Stores(*servers, on_wait=progress.waiting) as stores:
        print_notes(stores.faults)
        yield stores


def _mover(stores: Stores, force: bool = False) -> Mover:
    from zkmigrate.mover import Mover

    return Mover(stores, force=force)


def _plans(
    stores: Stores,
    direction: Direction,
    options: Options,
    groups: Sequence[str],
    progress: Progress,
    given: dict[str, dict[Any, int]] | None = None,
) -> Iterator[GroupPlan]:
    progress.total = len(groups)
    now_ms = int(time.time() * 1000)
    retention = stores.retention() if direction is Direction.ZK_TO_KAFKA else None
    times = options.on_conflict is OnConflict.NEWEST
    for found in stores.states(groups, given or {}, times):
        if isinstance(found, GroupState):
            plan = plan_group(found, direction, options, now_ms, retention)
        else:
            name, problem = found
            plan = GroupPlan(name, (problem,))
        yield plan
        progress.group(plan.group, not plan.problems)


@cli.command()
@selection
@decisions
@server_options
@only_problems_option
@format_options
def assess(
    which: Selection,
    direction: str,
    servers: Servers,
    only_problems: bool,
    how: How,
    **raw: Any,
) -> None:
    """Say of each group whether it can be moved, and if not, why and what to do.

    Changes nothing. Exit status 1 when a group is not ready.
    """
    way = Direction(direction)
    options = chosen_options(raw)
    summary = Summary(how, only_problems, options.skips)
    with (
        no_collector(),
        Progress("assessing", bad="not ready") as progress,
        _open(servers, progress) as stores,
    ):
        chosen = which.of_store(partial(stores.group_names, way.source), way.source)
        for _ in summary.watch(_plans(stores, way, options, chosen, progress)):
            pass
        summary.unlisted = stores.unlisted
    summary.tell()
    click.get_current_context().exit(summary.status)


@cli.command()
@selection
@decisions
@click.option("--out", required=True, metavar="PLAN", help="A new file.")
@click.option(
    "--from-file",
    metavar="FILE",
    help="Take the chosen groups' offsets from a CSV, JVM export or JSON file, not from the source "
    "store.",
)
@server_options
@only_problems_option
@format_options
def plan(
    which: Selection,
    direction: str,
    out: str,
    from_file: str | None,
    servers: Servers,
    only_problems: bool,
    how: How,
    **raw: Any,
) -> None:
    """Write a plan that can be reviewed: each partition with from, to and reason.

    Changes nothing else. Groups that are not ready are in the plan with their reasons, and are not
    applied. Exit status 1 when there are such groups.
    """
    way = Direction(direction)
    options = chosen_options(raw)
    summary = Summary(how, only_problems, options.skips)
    given = given_offsets(from_file, which) if from_file else None
    with (
        no_collector(),
        Progress("planning", bad="not ready") as progress,
        _open(servers, progress) as stores,
    ):
        if given is None:
            chosen = which.of_store(partial(stores.group_names, way.source), way.source)
        else:
            chosen = list(given)
        plans = summary.watch(_plans(stores, way, options, chosen, progress, given))
        write_new("--out", out, plan_file.render(way, int(time.time() * 1000), plans))
        summary.unlisted = stores.unlisted
    summary.tell()
    ready = summary.verdicts[Verdict.READY]
    then = f"carry it out with zkmigrate apply {out} --execute" if ready else "no group is ready"
    click.echo(f"the plan is in {out}; {then}", err=True)
    click.get_current_context().exit(summary.status)


def _load(path: str) -> tuple[plan_file.PlanFile, PassedGroups]:
    loaded = plan_file.load(path)
    passed = PassedGroups(loaded.groups)
    return replace(loaded, groups=passed), passed


def _counted(progress: Progress) -> Callable[[Result], None]:
    def on_group(result: Result) -> None:
        progress.group(result.group, result.outcome.good, result.offsets)

    return on_group


def _journal_path(plan_path: str, journal: str | None) -> Path:
    return Path(journal or f"{plan_path}.journal")


def _journal_option(command: F) -> F:
    return click.option(
        "--journal", metavar="FILE", help="Where the journal is; PLAN.journal without it."
    )(command)


@cli.command()
@click.argument("plan")
@click.option("--execute", is_flag=True, help="Move; without it nothing is changed.")
@_journal_option
@server_options
@only_problems_option
@format_options
def apply(
    plan: str,
    execute: bool,
    journal: str | None,
    servers: Servers,
    only_problems: bool,
    how: How,
) -> None:
    """Carry out PLAN. A dry run unless --execute is given.

    Each group is taken over as a member would do it before anything is written. After a crash run
    the same command again: it goes on where it was; a dry run tells what is left to do. Exit status
    0 only when every group of the plan is moved and read back.
    """
    loaded, passed = _load(plan)
    verb = "moving" if execute else "checking"
    with Progress(verb, len(loaded.groups)) as progress, _open(servers, progress) as stores:
        mover = _mover(stores)
        if execute:
            with Journal(_journal_path(plan, journal), loaded.digest) as opened:
                results = mover.apply(loaded, opened, _counted(progress))
        else:
            earlier = read_records(_journal_path(plan, journal), loaded.digest)
            results = mover.apply(loaded, None, _counted(progress), earlier)
    if not execute:
        click.echo("dry run: nothing was changed; give --execute to move", err=True)
    tell(results, passed, how, only_problems)


@cli.command()
@click.argument("plan")
@click.option("--execute", is_flag=True, help="Restore; without it nothing is changed.")
@click.option("--force", is_flag=True, help="Also where somebody has moved on since.")
@_journal_option
@server_options
@only_problems_option
@format_options
def rollback(
    plan: str,
    execute: bool,
    force: bool,
    journal: str | None,
    servers: Servers,
    only_problems: bool,
    how: How,
) -> None:
    """Restore both stores to what the journal of PLAN recorded. A dry run unless --execute.

    Refuses a group whose offsets somebody has changed since, unless --force is given.
    """
    loaded, passed = _load(plan)
    where = _journal_path(plan, journal)
    if not os.path.lexists(where):
        raise MigrationError(f"{where} does not exist: the plan was never applied, or --journal")
    verb = "restoring" if execute else "checking"
    with (
        Progress(verb, len(loaded.groups)) as progress,
        _open(servers, progress) as stores,
        Journal(where, loaded.digest) as opened,
    ):
        results = _mover(stores, force).rollback(loaded, opened, execute, _counted(progress))
    if not execute:
        click.echo("dry run: nothing was changed; give --execute to restore", err=True)
    passed.stays.clear()  # after a rollback nothing was moved
    tell(results, passed, how, only_problems)


@cli.command("verify")
@click.argument("plan")
@server_options
@format_options
def verify_(plan: str, servers: Servers, how: How) -> None:
    """Read both stores back and compare them with PLAN.

    Differences: the target lacks an offset or is behind, or the source store has changed since the
    move. Where the target is further than planned, its consumers have made progress. Exit status 0
    only when all groups of the plan are moved and there is no difference.
    """
    loaded = plan_file.load(plan)
    differences: list[verify.Difference] = []
    stays: list[verify.Difference] = []
    unread: list[verify.Difference] = []
    groups = compared = 0
    with (
        Progress("comparing", len(loaded.groups), "differ") as progress,
        _open(servers, progress) as stores,
    ):
        planned = (group for group in loaded.groups if not group.problems)
        for group, held in stores.offsets(planned):
            found: list[verify.Difference] = []
            if isinstance(held, Problem):
                unread.append(verify.unreadable(group, f"{held.kind.value}: {held.what}"))
                progress.group(group.group, good=False)
                continue
            try:
                marker = stores.zk.run(tombstone.read(group.group))
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


@cli.command()
@selection
@click.option(
    "--store",
    type=click.Choice([one.value for one in Store]),
    default="zookeeper",
    show_default=True,
    help="Whose offsets.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(offset_csv.FORMATS),
    default="csv",
    show_default=True,
    help="csv: as kafka-consumer-groups --from-file reads it; jvm: as ImportZkOffsets does.",
)
@click.option("--out", metavar="FILE", help="A new file; standard output without it.")
@server_options
def export(
    which: Selection,
    store: str,
    form: str,
    out: str | None,
    servers: Servers,
) -> None:
    """Write the offsets that a store holds. With one --group the CSV has no column of groups.

    A group that cannot be read is left out and named. The exit status is then 1.
    """
    with no_collector(), Progress("reading", bad="left out") as progress:
        if store == Store.ZOOKEEPER.value:
            found, left_out = offsets_in_zookeeper(which, servers, progress)
        else:
            found, left_out = offsets_in_kafka(which, servers, progress)
    text = offset_csv.render(found, form, one_group=len(which.groups) == 1)
    if out is None:
        sys.stdout.write(text)
    else:
        write_new("--out", out, [text])
        click.echo(f"{len(found)} offsets are in {out}", err=True)
    if left_out:
        click.echo("the export is not complete: the notes name what is missing", err=True)
    click.get_current_context().exit(1 if left_out else 0)


@cli.command("config-map")
@click.argument("file")
@click.option(
    "--client",
    type=click.Choice(CLIENTS),
    default=CLIENTS[0],
    show_default=True,
    help="Whose names of properties.",
)
def config_map(file: str, client: str) -> None:
    """Print the coordinator consumer's configuration for the old consumer's FILE.

    Each line is preceded by its reason; what has no equivalent is listed at the end.
    """
    for line in map_file(file, client):
        click.echo(printable(line))
