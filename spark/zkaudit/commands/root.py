"""The command ``zkaudit``: its subcommands, one module each."""

from __future__ import annotations

import click

from zkaudit.commands.audit import run_command
from zkaudit.commands.collect import collect_command
from zkaudit.commands.demo import demo_command
from zkaudit.commands.export import export_command
from zkaudit.commands.findings import findings_command
from zkaudit.commands.report import report_command
from zkaudit.commands.show import show_command
from zkaudit.commands.stream import stream_command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="zkconsumer", message="%(prog)s %(version)s")
def cli() -> None:
    """Show who owned what in ZooKeeper-based consumer groups, from ZooKeeper's own logs."""


for _command in (
    run_command,
    stream_command,
    findings_command,
    show_command,
    report_command,
    export_command,
    collect_command,
    demo_command,
):
    cli.add_command(_command)
