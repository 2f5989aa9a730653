"""``zkaudit demo``."""

from __future__ import annotations

import click

from zkaudit.commands.inputs import spark_session
from zkaudit.commands.summary import print_summary
from zkaudit.errors import AuditError


@click.command("demo")
@click.option(
    "--out",
    metavar="DIR",
    default="build/demo-audit",
    show_default=True,
    help="New directory for the servers' files, the tables and the report.",
)
@click.option(
    "--clean", is_flag=True, help="Inject no faults, and fail if the audit has a finding."
)
def demo_command(out: str, clean: bool) -> int:
    """Run members with injected faults, then audit them.

    The audit reads ZooKeeper's log and the members' journals. The command fails unless all faults
    are found.
    """
    from zkaudit import demo
    from zkaudit.job.audit import Options, run
    from zkaudit.job.place import local, locked
    from zkaudit.report.page import write

    place = local(out)
    if place.exists() and any(place.iterdir()):
        raise AuditError(f"{out} is not empty: delete it or choose another --out")
    cluster = place / "cluster"
    demo.play(cluster, lambda text: click.echo(f"* {text}"), faults=not clean)
    logs, journals = [str(demo.data_directory(cluster))], [str(demo.journal_directory(cluster))]
    with spark_session("local[*]") as spark, locked(place / "audit"):
        summary = run(spark, Options(logs, str(place / "audit"), journals=journals))
        page = write(place / "audit")
    print_summary(summary)
    click.echo(f"report: {page}")
    found = {row["kind"] for row in summary["findings"]}
    missing = set(() if clean else demo.PLANTED) - found
    if missing or (clean and found):
        click.echo(
            f"error: findings do not match the faults: {', '.join(sorted(missing or found))}",
            err=True,
        )
        return 1
    return 0
