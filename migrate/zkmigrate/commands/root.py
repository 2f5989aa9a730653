"""The command ``zkmigrate``. Each subcommand is a module that is imported when it is used."""

from __future__ import annotations

from typing import Final

import click

from zkconsumer.console.lazy import LazyGroup

COMMANDS: Final = {
    "plan": "zkmigrate.commands.plan:plan",
    "apply": "zkmigrate.commands.apply:apply",
    "undo": "zkmigrate.commands.undo:undo",
    "status": "zkmigrate.commands.status:status",
    "lock": "zkmigrate.commands.lock:lock",
    "unlock": "zkmigrate.commands.lock:unlock",
    "gate": "zkmigrate.commands.gate:gate",
    "reset": "zkmigrate.commands.reset:reset",
    "report": "zkmigrate.commands.report:report",
    "mirror": "zkmigrate.commands.mirror:mirror",
    "cut-over": "zkmigrate.commands.mirror:cut_over",
    "complete": "zkmigrate.commands.mirror:complete",
    "live": "zkmigrate.commands.live:live",
}
"""Each subcommand's name, with the module and attribute that contain it."""


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="zkconsumer", message="%(prog)s %(version)s")
def cli() -> None:
    """Move the offsets of consumer groups between ZooKeeper and Kafka, safely."""
