"""Prints rows as a table, JSON or CSV, and defines options that commands share.

Any client of ZooKeeper can write names, owners and paths. In CSV everything but printable ASCII is
escaped, so that no control or bidirectional character reaches a terminal; JSON escapes them anyway.
Tables keep the letters of other scripts where the output is UTF-8, so that a name can be pasted
into the next command.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from typing import Any, Final, Literal, TypeVar

import click

from zkconsumer.admin.printable import printable
from zkconsumer.config.tool_security import SecurityConfig
from zkconsumer.console.exclusive import flags, was_typed
from zkconsumer.console.times import duration_option

How = Literal["table", "json", "csv"]
F = TypeVar("F", bound=Callable[..., Any])

_LAID_OUT: Final = 5_000
"""Number of rows that determine the width of a table's columns. A table that is longer is laid
out without rich, which needs about 0.1 ms for each row."""
_PADDED: Final = 60
"""Longest cell that is padded. A longer cell shifts the rest of its own row only."""
_WORD: Final = 16
"""Longest word that a column on a terminal has room for. A longer one, such as a member's id, is
broken."""
_DANGEROUS: Final = ("=", "+", "-", "@", "\t", "\r")


def command_config(command: F) -> F:
    """Add ``--command-config``, which the command receives as ``security``."""
    return click.option(
        "--command-config",
        "security",
        metavar="FILE",
        envvar="ZKCONSUMER_COMMAND_CONFIG",
        show_envvar=True,
        callback=lambda _context, _option, path: (
            SecurityConfig.parse({}) if path is None else read_security(path)
        ),
        help="Java .properties file of a client: security.protocol, sasl.*, ssl.*, and the keys "
        "for ZooKeeper.",
    )(command)


def read_security(path: str | None) -> SecurityConfig:
    """Return the configuration in a file, and print its warnings; without a file, no security.

    Raises ConfigError.
    """
    if path is None:
        return SecurityConfig.parse({})
    security = SecurityConfig.parse(path)
    for warning in security.warnings:
        click.echo(f"warning: {warning}", err=True)
    return security


def execute_option(command: F) -> F:
    """Add ``--execute``: without it, the command is a dry run."""
    return click.option(
        "--execute", is_flag=True, help="Make the changes. Without it, this is a dry run."
    )(command)


def zookeeper_options(command: F) -> F:
    """Add ``--zookeeper``, ``--timeout`` and ``--command-config`` (received as ``security``)."""
    command = command_config(command)
    return _zookeeper_option(required=True)(timeout_option(command))


def timeout_option(command: F) -> F:
    """Add ``--timeout``, which the command receives in seconds."""
    return duration_option(
        "--timeout",
        least=0.1,
        default=30.0,
        help="How long to wait for ZooKeeper, and for each broker.",
    )(command)


def _zookeeper_option(required: bool) -> Callable[[F], F]:
    return click.option(
        "--zookeeper",
        required=required,
        envvar="ZKCONSUMER_ZOOKEEPER",
        show_envvar=True,
        metavar="HOST:PORT[,..][/CHROOT]",
        help="ZooKeeper servers, and the chroot if any.",
    )


def count_option(
    *names: str,
    help: str,
    default: int | None = None,
    least: int = 1,
    most: int | None = None,
    metavar: str = "N",
    required: bool = False,
) -> Callable[[F], F]:
    """Return a click option that takes an integer and shows its default, if any."""
    return click.option(
        *names,
        type=click.IntRange(least, most),
        default=default,
        show_default=True,
        metavar=metavar,
        required=required,
        help=help,
    )


def format_options(command: F) -> F:
    """Add ``--json`` and ``--csv``, which the command receives as ``how``."""
    forms = {"json": "Print JSON on stdout.", "csv": "Print CSV with a header line."}
    return flags("how", "table", forms)(command)


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[object]], how: How) -> None:
    """Print rows on standard output as they arrive. ``None`` is printed as ``-``, ``null`` or an
    empty cell. The first rows determine the width of a table's columns."""
    rows = iter(rows)
    rows = chain(list(islice(rows, 1)), rows)  # an error before the first row prints nothing
    if how == "json":
        encode = json.JSONEncoder().encode
        begin = "[\n"
        for row in rows:
            sys.stdout.write(begin + encode(dict(zip(columns, row, strict=True))))
            begin = ",\n"
        sys.stdout.write("[]\n" if begin == "[\n" else "\n]\n")
    elif how == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([guarded(cell) for cell in row] for row in rows)
    else:
        blocks = iter(lambda: list(islice(rows, _LAID_OUT)), [])
        first = next(blocks, [])
        if sys.stdout.isatty() and len(first) < _LAID_OUT:
            _print_rich(columns, first)
        else:
            _print_plain(columns, first, blocks)


def guarded(cell: object) -> object:
    """Return a cell whose text no spreadsheet reads as a formula. Numbers stay as they are."""
    if not isinstance(cell, str):
        return cell
    text = printable(cell)
    return f"'{text}" if cell.startswith(_DANGEROUS) else text


def _columnwise(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterable[list[object]]:
    """Return the cells of each column: numbers unchanged, text escaped."""
    if not rows:
        return [[] for _ in columns]
    everywhere = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"

    def shown(cell: object) -> object:
        if cell is None or cell == "":
            return "-"
        return printable(cell, everywhere) if isinstance(cell, str) else cell

    return [list(map(shown, column)) for column in zip(*rows, strict=True)]


def _print_plain(
    columns: Sequence[str], rows: list[Sequence[object]], more: Iterable[list[Sequence[object]]]
) -> None:
    cells = list(_columnwise(columns, rows))
    pieces = []
    for number, (heading, column) in enumerate(zip(columns, cells, strict=True)):
        width = min(max([len(heading), *map(len, map(str, column))]), _PADDED)
        if any(isinstance(cell, int) for cell in column):
            pieces.append(f"%{width}s")
        else:
            pieces.append("%s" if number == len(columns) - 1 else f"%-{width}s")
    template = "  ".join(pieces) + "\n"
    headings = (template % tuple(heading.upper().replace("_", "-") for heading in columns)).rstrip()
    sys.stdout.write(headings + "\n")
    for block in chain([cells], (_columnwise(columns, some) for some in more)):
        sys.stdout.write("".join([template % row for row in zip(*block, strict=True)]))


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table if the terminal is wide enough for it, otherwise each row as a list."""
    from rich.console import Console  # loaded only when a terminal is there
    from rich.table import Table
    from rich.text import Text

    headings = [heading.upper().replace("_", "-") for heading in columns]
    cells = [list(map(str, column)) for column in _columnwise(columns, rows)]
    numbers = [any(isinstance(cell, int) for cell in column) for column in zip(*rows, strict=True)]
    console = Console()
    widths = _widths(headings, cells, console.width - 3 * (len(columns) - 1))
    if widths is not None:
        table = Table(show_edge=False, pad_edge=False)
        for heading, width, right in zip(headings, widths, numbers or widths, strict=True):
            if width < len(heading):
                heading = heading.replace("-", "-\n")
            justify: Literal["left", "right"] = "right" if rows and right else "left"
            table.add_column(heading, justify=justify, overflow="fold", width=width)
        for row in zip(*cells, strict=True):
            table.add_row(*map(Text, row))
        console.print(table)
        return
    for number, row in enumerate(zip(*cells, strict=True)):
        one = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        one.add_column(no_wrap=True)
        one.add_column(overflow="fold")
        for heading, cell in zip(headings, row, strict=True):
            if cell != "-":
                one.add_row(heading, Text(cell))
        console.print(*[""] if number else [], one, sep="\n")


def _widths(headings: Sequence[str], cells: list[list[str]], room: int) -> list[int] | None:
    """Return the width of each column, together at most ``room``, or ``None`` if some words would
    have to be broken. Headings may be broken after a hyphen."""
    widths = []
    needs = []
    for place, (heading, column) in enumerate(zip(headings, cells, strict=True)):
        words = max((len(word) for cell in column for word in cell.split()), default=1)
        widths.append(max(min(words, _WORD), *map(len, heading.replace("-", "- ").split())))
        needs.append((max(map(len, [heading, *column])) - widths[-1], place))
    room -= sum(widths)
    if room < 0:
        return None
    for number, (need, place) in enumerate(sorted(needs)):
        more = min(need, room // (len(needs) - number))
        widths[place] += more
        room -= more
    return widths


def print_notes(notes: Iterable[str]) -> None:
    """Print notes on standard error, one per line."""
    for note in notes:
        click.echo(f"note: {printable(note)}", file=sys.stderr)


def print_new_notes(notes: list[str], noted: list[str]) -> None:
    """Print the notes of this pass that are not in ``noted``, the notes of the previous pass.
    Afterwards ``noted`` has all notes of this pass, and ``notes`` is empty."""
    print_notes(note for note in dict.fromkeys(notes) if note not in noted)
    noted[:] = notes
    notes.clear()


def bootstrap_option(command: F) -> F:
    """Add ``--bootstrap-server``, which the command receives as ``bootstrap``."""
    return click.option(
        "--bootstrap-server",
        "bootstrap",
        metavar="HOST:PORT[,..]",
        envvar="ZKCONSUMER_BOOTSTRAP_SERVER",
        show_envvar=True,
        help="Use these brokers, not those in ZooKeeper, for example after a migration to KRaft.",
    )(command)


def either_option(command: F) -> F:
    """Add ``--zookeeper`` and ``--bootstrap-server`` to a command for groups of either kind.
    `chosen` returns which one to use."""
    return _zookeeper_option(required=False)(bootstrap_option(command))


def chosen(zookeeper: str | None, bootstrap: str | None) -> tuple[str | None, str | None]:
    """Return the two addresses to use.

    A server on the command line takes precedence. Then the other address is used only if it is on
    the command line too.
    """
    if was_typed("zookeeper") or was_typed("bootstrap"):
        zookeeper = zookeeper if was_typed("zookeeper") else None
        bootstrap = bootstrap if was_typed("bootstrap") else None
    return zookeeper, bootstrap
