"""The command ``zkaudit``. Each subcommand is a module that is imported when it is used."""

from __future__ import annotations

from typing import Final

import click

from zkconsumer.console.lazy import LazyGroup

COMMANDS: Final = {
    name: f"zkaudit.commands.{module}:{name}_command"
    for name, module in (
        ("collect", "collect"),
        ("demo", "demo"),
        ("export", "export"),
        ("findings", "findings"),
        ("log", "log"),
        ("report", "report"),
        ("run", "audit"),
        ("show", "show"),
        ("stream", "stream"),
        ("who", "who"),
    )
}
"""Each subcommand's name, with the module and attribute that contain it."""


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="zkconsumer", message="%(prog)s %(version)s")
def cli() -> None:
    """Show who owned what in ZooKeeper-based consumer groups, from ZooKeeper's own logs."""
