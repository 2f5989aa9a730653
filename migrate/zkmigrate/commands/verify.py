"""``zkmigrate verify``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import click

from zkconsumer.console.tables import How, format_options, print_notes
from zkmigrate import verify
from zkmigrate.apply.journal import read_records
from zkmigrate.apply.records import Records, begun_by, late_partitions, recorded
from zkmigrate.commands.cells import in_columns
from zkmigrate.commands.progress import Progress
from zkmigrate.commands.running import check_cluster, journal_option, journal_path, load
from zkmigrate.commands.selection import Selection, plan_selection
from zkmigrate.commands.servers import Servers, open_stores, server_options
from zkmigrate.commands.watch import Look, look_once_or_often, watch_option
from zkmigrate.errors import JournalError
from zkmigrate.exits import HELP
from zkmigrate.formats.plan_file import PlanFile
from zkmigrate.plan.values import GroupPlan, Problem, Verdict


@click.command("verify", epilog=HELP)
@click.argument("plan")
@click.option(
    "--strict", is_flag=True, help="Also count progress of the new consumers in the exit status."
)
@plan_selection
@journal_option
@watch_option
@server_options
@format_options
def verify_(
    plan: str,
    strict: bool,
    which: Selection,
    journal: str | None,
    watch: float | None,
    servers: Servers,
    how: How,
) -> None:
    """Read both stores back and compare them with PLAN.

    Each row has a kind: behind (the target has no offset or a lower one, or perhaps a lower one
    than consumers had committed), source-moved-on (the
    source store has changed since the move), ahead (the new consumers have made progress),
    not-moved, unreadable, stays-behind (left out by the plan), ignored (by a decision).

    The rows behind, source-moved-on and not-moved need attention, with --strict also ahead.
    """
    loaded, _ = load(plan, which)
    look = partial(_look, loaded, journal_path(plan, journal), servers, strict, how)
    click.get_current_context().exit(look_once_or_often(look, watch, how))


def _look(loaded: PlanFile, journal: Path, servers: Servers, strict: bool, how: How) -> Look:
    from zkmigrate.stores.group_states import read_offsets  # loads kafka-python, which takes long

    differing: list[verify.Difference] = []
    groups = compared = 0
    with (
        Progress("comparing", len(loaded.groups), "differ") as progress,
        open_stores(servers, progress) as stores,
    ):
        check_cluster(loaded, stores)
        begun: Mapping[str, Records] = {}
        try:
            begun = begun_by(read_records(journal, loaded.digest))
        except JournalError as error:
            if loaded.at_apply is not None:
                raise
            print_notes([str(error)])  # the plan alone says what was to be moved
        ready: list[GroupPlan] = []
        for group in loaded.groups:
            if group.ignored:
                differing.append(verify.about_group(group, verify.IGNORED, group.ignored))
                progress.group(group.group, True)
                continue
            written = recorded(begun.get(group.group, []))
            if written is not None:
                ready.append(written)
            elif loaded.at_apply is not None and group.verdict is not Verdict.MOVED:
                what = "is planned when it is applied, and was not applied"
                differing.append(verify.about_group(group, verify.NOT_MOVED, what))
            elif group.problems:
                problem = group.problems[0]
                what = f"was not ready when the plan was made: {problem.kind.value}"
                differing.append(verify.about_group(group, verify.NOT_MOVED, what))
            else:
                ready.append(group)
        for group, held in read_offsets(stores, ready):
            mine: list[verify.Difference] = []
            if isinstance(held, Problem):
                what = f"{held.kind.value}: {held.what}"
                mine.append(verify.about_group(group, verify.UNREADABLE, what))
            else:
                mine += verify.compare(
                    group, loaded.direction, held.offsets, held.marker, held.misplaced
                )
                late = late_partitions(begun.get(group.group, []))
                mine += verify.doubtful(group, loaded.direction, held.offsets, late)
                mine += verify.stays_behind(group, loaded.direction, held.offsets)
                groups += 1
                compared += len(group.entries)
            differing += (one._replace(kafka_group=group.kafka_group) for one in mine)
            good = {one.kind for one in mine} <= {verify.AHEAD, verify.STAYS}
            progress.group(group.group, good)
    order = list(verify.ORDER)
    differing.sort(key=lambda one: order.index(one.kind))
    counts = Counter(one.kind for one in differing)
    parts = [f"{counts[kind]} {kind}" for kind in order if counts[kind]]
    said = ", ".join(parts) or "all as planned"
    summary = f"{compared} partitions of {groups} groups compared: {said}"
    columns, rows = in_columns(verify.Difference._fields, differing, how)
    return Look("verify", columns, 3, rows, summary, verify.status(differing, strict))
