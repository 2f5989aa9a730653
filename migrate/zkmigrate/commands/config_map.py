"""``zkmigrate config-map``."""

from __future__ import annotations

import click

from zkconsumer.admin.printable import printable
from zkmigrate.exits import HELP
from zkmigrate.formats.config_map import CLIENTS, map_file


@click.command("config-map", epilog=HELP)
@click.argument("file")
@click.option(
    "--client",
    type=click.Choice(CLIENTS),
    default=CLIENTS[0],
    show_default=True,
    help="Client for which to print the property names.",
)
def config_map(file: str, client: str) -> None:
    """Translate the old consumer's FILE for a new client.

    The reason is printed before each line. Keys without an equivalent are listed at the end.
    """
    for line in map_file(file, client):
        click.echo(printable(line))
