"""``--watch``: repeats a command, and prints changes. One thread."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import click

from zkconsumer.admin.printable import printable
from zkconsumer.console.exclusive import no_effect
from zkconsumer.console.repeating import repeat
from zkconsumer.console.tables import How, print_rows
from zkconsumer.console.times import duration_option
from zkconsumer.errors import ZkConsumerError
from zkmigrate.commands.output.rows import in_form, print_json_line, print_table
from zkmigrate.exits import FAILED

F = TypeVar("F", bound=Callable[..., Any])
Row = tuple[object, ...]
_Rows = dict[Row, Row]


class Look(NamedTuple):
    """The rows and the exit status of one pass. ``keys``: number of columns that identify a row."""

    schema: str
    keys: int
    rows: Sequence[Row]
    summary: str
    status: int


def watch_option(command: F) -> F:
    """Add ``--watch``."""
    return duration_option(
        "--watch",
        least=0.1,
        help="Repeat this often, until Ctrl-C, and print only changes; with --json one object "
        "per line. It continues if a server does not answer.",
    )(command)


def look_once_or_often(look: Callable[[], Look], every: float | None, how: How) -> int:
    """Check and print, once or repeatedly until Ctrl-C. Return the exit status of the last check.
    ``every``: seconds between checks; ``None``: check once."""
    if every is None:
        rows = look()
        print_table(rows.schema, rows.rows, how)
        click.echo(rows.summary, err=True)
        return rows.status
    no_effect("--watch", "csv")
    before: _Rows = {}
    last: Look | None = None
    status = FAILED  # nothing is known
    summary = ""

    def show(rows: Look, _at: float) -> None:
        nonlocal before, last, status, summary
        if rows == last:
            return
        last = rows
        status = rows.status
        columns, cells = in_form(rows.schema, rows.rows, how)
        now = {tuple(row[: rows.keys]): row for row in cells}
        _print_changes(rows, columns, before, now, how)
        before = now
        if rows.summary != summary:
            summary = rows.summary
            click.echo(f"{_clock()} {summary}", err=True)

    def failed(error: ZkConsumerError) -> None:
        nonlocal last, status, summary
        last = None
        click.echo(f"error: {printable(str(error))}; trying again", err=True)
        status, summary = error.exit_code, ""

    repeat(look, show, failed, every, patient=True)
    return status


def _print_changes(
    found: Look,
    columns: Sequence[str],
    before: dict[tuple[object, ...], Row],
    now: dict[tuple[object, ...], Row],
    how: How,
) -> None:
    changed = [row for key, row in now.items() if before.get(key) != row]
    gone = [row for key, row in before.items() if key not in now]
    if how == "json":
        for row in changed:
            print_json_line(found.schema, columns, row)
        for row in gone:
            print_json_line(
                found.schema, [*columns[: found.keys], "gone"], [*row[: found.keys], True]
            )
    else:
        if changed:
            print_rows(("at", *columns), [(_clock(), *row) for row in changed], how)
        for row in gone:
            what = " ".join(str(cell) for cell in row[: found.keys] if cell is not None)
            click.echo(f"{_clock()} no longer: {printable(what)}")
    sys.stdout.flush()


def _clock() -> str:
    return time.strftime("%H:%M:%S")
