"""``zkconsumer offsets``: export offsets to a file and import them, in the JVM tools' format.

``offsets reset`` is the command ``zkmigrate reset`` by another name: there is one implementation,
which holds the group as a move does. It is named here and loaded when it is used, since the library
does not import the migrator.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

from zkconsumer.admin.offset_files import MAX_FILE_BYTES, parse, render
from zkconsumer.admin.text import printable
from zkconsumer.admin.tools import Change, GroupTools
from zkconsumer.cli.tables import (
    How,
    format_options,
    no_collector,
    print_notes,
    print_rows,
    zookeeper_options,
)
from zkconsumer.config.security import SecurityConfig
from zkconsumer.errors import ConfigError, OffsetsFileError

_RESET: Final = ("zkmigrate.commands.reset", "reset")


class _WithReset(click.Group):
    """Adds the migrator's command, where the migrator is installed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = super().list_commands(ctx)
        return sorted([*names, _RESET[1]]) if find_spec(_RESET[0].partition(".")[0]) else names

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == _RESET[1] and cmd_name in self.list_commands(ctx):
            command: click.Command = getattr(import_module(_RESET[0]), _RESET[1])
            return command
        return super().get_command(ctx, cmd_name)


@click.group(cls=_WithReset)
def offsets() -> None:
    """Export and import offsets in ZooKeeper; reset offsets in ZooKeeper or Kafka."""


@offsets.command("export")
@click.option("--group", "groups", multiple=True, help="Only this group; may be given repeatedly.")
@click.option("--output", metavar="FILE", help="A new file; standard output without it.")
@zookeeper_options
def export(
    groups: tuple[str, ...],
    output: str | None,
    zookeeper: str,
    timeout: float,
    security: SecurityConfig,
) -> None:
    """Write all stored offsets, one PATH:OFFSET line each, sorted.

    The format is that of kafka.tools.ExportZkOffsets. Znodes that hold no offset are left out with
    a note. An existing file is not overwritten.
    """
    if output is not None and os.path.lexists(output):
        raise ConfigError([f"--output: {output} exists: name a new file"])
    with no_collector(), GroupTools(zookeeper, timeout, security) as tools:
        found = tools.export(groups or None)
    print_notes(tools.notes)
    text = render(found)
    if output is None:
        sys.stdout.write(text)
        return
    try:
        with open(output, "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError([f"--output: {output}: {error.strerror}"]) from None
    click.echo(f"{len(found)} offsets are in {output}", err=True)


@offsets.command("import")
@click.argument("file")
@click.option("--execute", is_flag=True, help="Write; without it nothing is changed.")
@click.option("--force", is_flag=True, help="Also write to groups with registered members.")
@zookeeper_options
@format_options
def import_(
    file: str,
    execute: bool,
    force: bool,
    zookeeper: str,
    timeout: float,
    security: SecurityConfig,
    how: How,
) -> None:
    """Write the offsets in FILE to ZooKeeper; show what changes.

    A dry run unless --execute is given. Every line must be right, or nothing is written. Refused
    while members of a group are registered, as they hold offsets in memory and would overwrite
    what is written; an offset that somebody else changes meanwhile is left alone and named.
    """
    with no_collector():
        wanted = parse(file, _read(file))
    with no_collector(), GroupTools(zookeeper, timeout, security) as tools:
        plan = tools.plan_import(wanted)
        print_notes(tools.notes)
        print_rows(Change._fields, plan.changes, how)
        summary = f"{len(plan.changes)} offsets to write, {plan.unchanged} are so already"
        click.echo(summary, err=True)
        for group, members in plan.members.items():
            click.echo(
                printable(f"note: group {group} is active: {len(members)} registered members"),
                err=True,
            )
        if not execute:
            click.echo("dry run: nothing was changed; give --execute to write", err=True)
            return
        from rich.console import Console  # loaded only when there is something to write
        from rich.progress import Progress

        console = Console(stderr=True)
        with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("writing", total=len(plan.changes))
            tools.carry_out(plan, force, lambda count: bar.advance(task, count))
    click.echo(f"{len(plan.changes)} offsets written and read back", err=True)


def _read(file: str) -> bytes:
    try:
        with Path(file).open("rb") as opened:
            return opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise OffsetsFileError([f"{file}: {error.strerror}"]) from None
