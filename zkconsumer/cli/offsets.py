"""``zkconsumer offsets``: export offsets to a file, import and reset them.

``offsets export`` and ``offsets reset`` are commands of the migrator, because they also handle
offsets in Kafka and claim groups as a move does. They are loaded on use, because the library does
not import the migrator.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from zkconsumer.admin.offset_files import MAX_FILE_BYTES, parse
from zkconsumer.admin.printable import printable
from zkconsumer.admin.tools import Change, GroupTools
from zkconsumer.config.tool_security import SecurityConfig
from zkconsumer.console.collector import no_collector
from zkconsumer.console.lazy import LazyGroup
from zkconsumer.console.tables import (
    How,
    execute_option,
    format_options,
    print_notes,
    print_rows,
    zookeeper_options,
)
from zkconsumer.errors import OffsetsFileError


@click.group(
    cls=LazyGroup,
    lazy={
        "export": "zkmigrate.commands.export:export",
        "reset": "zkmigrate.commands.reset:reset",
    },
)
def offsets() -> None:
    """Export, import and reset offsets."""


@offsets.command("import")
@click.argument("file")
@execute_option
@click.option(
    "--force",
    is_flag=True,
    help="Also write to groups with registered members, and to groups that were moved to Kafka, "
    "are locked by zkmigrate, or are in a live move.",
)
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
    """Write the offsets in FILE to ZooKeeper, and show the changes.

    This is a dry run unless --execute is given. Nothing is written unless every line is valid. Stop
    the group's members first, because they keep offsets in memory and would overwrite the new ones.
    If another client changes an offset in the meantime, that offset is not written and is reported.
    """
    with no_collector():
        wanted = parse(file, _read(file))
    with no_collector(), GroupTools(zookeeper, timeout, security) as tools:
        plan = tools.plan_import(wanted)
        print_notes(tools.notes)
        print_rows(Change._fields, plan.changes, how)
        summary = f"{len(plan.changes)} offsets to write, {plan.unchanged} are already correct"
        click.echo(summary, err=True)
        for group, members in plan.members.items():
            click.echo(
                printable(f"note: group {group} is active: {len(members)} registered members"),
                err=True,
            )
        if not execute:
            click.echo("dry run: nothing was changed; give --execute to write", err=True)
            return
        if not sys.stderr.isatty():
            tools.carry_out(plan, force, lambda _count: None)
        else:
            from rich.console import Console  # loading it takes a third of a large import's time
            from rich.progress import Progress

            with Progress(console=Console(stderr=True), transient=True) as bar:
                task = bar.add_task("writing", total=len(plan.changes))
                tools.carry_out(plan, force, lambda count: bar.advance(task, count))
    click.echo(f"{len(plan.changes)} offsets written and read back", err=True)


def _read(file: str) -> bytes:
    try:
        with Path(file).open("rb") as opened:
            return opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise OffsetsFileError([f"{file}: {error.strerror}"]) from None
