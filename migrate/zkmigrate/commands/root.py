"""The command ``zkmigrate``: its subcommands, one module each."""

from __future__ import annotations

import click

from zkmigrate.commands.apply import apply
from zkmigrate.commands.assess import assess
from zkmigrate.commands.config_map import config_map
from zkmigrate.commands.export import export
from zkmigrate.commands.guard import guard
from zkmigrate.commands.live import live
from zkmigrate.commands.plan import plan
from zkmigrate.commands.rehearse import rehearse
from zkmigrate.commands.release import release
from zkmigrate.commands.report import report
from zkmigrate.commands.reset import reset
from zkmigrate.commands.rollback import rollback
from zkmigrate.commands.status import status
from zkmigrate.commands.verify import verify_


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="zkconsumer", message="%(prog)s %(version)s")
def cli() -> None:
    """Move the offsets of consumer groups between ZooKeeper and Kafka, safely."""


for _command in (
    assess,
    plan,
    apply,
    rollback,
    verify_,
    status,
    guard,
    release,
    reset,
    report,
    rehearse,
    live,
    export,
    config_map,
):
    cli.add_command(_command)
