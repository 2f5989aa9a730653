"""``zkaudit report``."""

from __future__ import annotations

import click

from zkaudit.commands.inputs import spark_session


@click.command("report")
@click.argument("out", type=click.Path(exists=True, file_okay=False))
@click.option(
    "--group", metavar="REGEX", help="Show only groups whose whole name matches (a Java regex)."
)
@click.option("--page", metavar="FILE", help="Write the page here.  [default: OUT/report.html]")
@click.option("--master", default="local[*]", show_default=True, help="Spark master.")
def report_command(out: str, group: str | None, page: str | None, master: str) -> None:
    """Write OUT/report.html again from the tables of an audit.

    A page has room for 200 groups, the ones with the worst findings first, and for 500 partitions.
    With --group it shows the groups that you name.
    """
    from zkaudit.report.page import write

    with spark_session(master) as spark:
        click.echo(f"report: {write(spark, out, group, page)}")
