"""``zkaudit report``."""

from __future__ import annotations

from contextlib import nullcontext

import click

from zkaudit.commands.inputs import group_option, group_regex


@click.command("report")
@click.argument("out", type=click.Path(exists=True, file_okay=False))
@group_option
@click.option(
    "--groups-regex",
    metavar="REGEX",
    help="Only groups whose whole name matches (a Python regex).",
)
@click.option("--page", metavar="FILE", help="Where to write the page.  [default: OUT/report.html]")
def report_command(
    out: str, groups: tuple[str, ...], groups_regex: str | None, page: str | None
) -> None:
    """Recreate OUT/report.html from the tables of an audit. Needs no Spark.

    A page shows up to 200 groups, those with the worst findings first, and up to 500 partitions.
    With --group or --groups-regex it shows the chosen groups.
    """
    from zkaudit.job.place import finished, locked
    from zkaudit.report.page import write

    group = group_regex(groups, groups_regex)
    finished(out)
    # Another page only reads the audit.
    with locked(out) if page is None else nullcontext():
        click.echo(f"report: {write(out, group, page)}")
