"""``zkmigrate report``."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import click

from zkmigrate import report as reports
from zkmigrate.apply.journal import plan_of, read_records
from zkmigrate.apply.outcome import NOT_LOCKED
from zkmigrate.apply.records import WITHOUT_PLAN, begun_by, histories_of
from zkmigrate.commands.options.files import write_out
from zkmigrate.commands.options.running import journal_option, journal_path
from zkmigrate.commands.output.rows import print_table
from zkmigrate.errors import MigrationError
from zkmigrate.exits import HELP, exit_status
from zkmigrate.formats import plan_file
from zkmigrate.plan.values import Verdict


@click.command(epilog=HELP)
@click.argument("plan", required=False)
@click.option("--out", metavar="FILE", help="Write the HTML page to this new file.")
@click.option("--json", "as_json", is_flag=True, help="Print each group's state as JSON.")
@journal_option("PLAN.journal, or zkmigrate-reset.journal without PLAN")
def report(plan: str | None, out: str | None, as_json: bool, journal: str | None) -> None:
    """Report what was moved, decided and refused, and why.

    Writes an HTML page or JSON from PLAN and its journal, and connects to no server. The exit
    status is 3 if a group was not moved. Without PLAN it reports what zkmigrate reset did. With
    --journal zkmigrate-undo.journal it reports what zkmigrate undo did; likewise for live, lock,
    unlock, cut-over and complete.
    """
    if out is None and not as_json:
        raise click.UsageError("name a file with --out, or use --json")
    loaded = None if plan is None else plan_file.load(plan)
    if loaded is None:
        where = Path(journal or "zkmigrate-reset.journal")
        digest = plan_of(where)
        if digest not in WITHOUT_PLAN:
            raise MigrationError(f"{where} is the journal of a plan: also name the plan")
    else:
        where = journal_path(plan, journal)
        digest = loaded.digest
    records = read_records(where, digest)
    histories = histories_of(records)
    groups = reports.unplanned(histories) if loaded is None else loaded.groups
    look = partial(reports.look, groups, begun_by(records), histories)
    plain: dict[str, object] = {"options": {}, "note": None, "approved_by": None}
    runs = [
        {**plain, **one["run"], "at_ms": one.get("at_ms")}
        for one in records
        if isinstance(one.get("run"), dict)
    ]
    if out is not None:
        write_out(out, [reports.page(loaded, look(), runs, digest)])
    if as_json:
        print_table("report", list(reports.group_rows(look())), "json")
    states = [(one.state, one.not_locked) for one in look()]
    counts = Counter(state for state, _ in states)
    said = ", ".join(f"{counts[state]} {state}" for state in reports.STATES if counts[state])
    unlocked = sum(not_locked for _, not_locked in states)
    said += f"; {unlocked} {NOT_LOCKED}" if unlocked else ""
    click.echo(f"groups: {said or 'none'}", err=True)
    good = {reports.MOVED, reports.BEFORE, reports.SET, *reports.DONE, Verdict.IGNORED.value}
    good |= {reports.BACK} if loaded is None else set()
    click.get_current_context().exit(exit_status(attention=not counts.keys() <= good))
