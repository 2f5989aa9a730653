"""``zkaudit collect``."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("collect")
@click.argument("source", type=click.Path(exists=True, file_okay=False), nargs=-1, required=True)
@click.argument("target", type=click.Path(file_okay=False))
def collect_command(source: tuple[str, ...], target: str) -> None:
    """Save a server's logs and snapshots before the server deletes them.

    SOURCE is the server's dataDir. If dataLogDir is another directory, name both. Files are
    hard-linked into TARGET if it is on the same file system, otherwise copied. The log that is
    still being written is left for the next run. Run this command more often than autopurge runs.
    """
    from zkaudit.collect import collect

    kept = collect([Path(place) for place in source], Path(target))
    click.echo(f"{kept.linked} linked, {kept.copied} copied, {kept.known} already kept")
