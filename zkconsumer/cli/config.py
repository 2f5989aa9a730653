"""``zkconsumer config``: lists the configuration keys; checks or translates a properties file."""

from __future__ import annotations

import json
import sys

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from zkconsumer.admin.printable import printable
from zkconsumer.config.consumer import RENAMED, examine_consumer
from zkconsumer.config.key_table import REQUIRED, Row, nearest_key
from zkconsumer.config.keys import KEYS
from zkconsumer.config.translation import CLIENTS, translate_file
from zkconsumer.console.exclusive import no_effect, only_with
from zkconsumer.errors import ConfigError, ZkConsumerError


@click.command()
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
@click.option("--check", "file", metavar="FILE", help="Check a .properties file instead.")
@click.option("--strict", is_flag=True, help="With --check: treat unknown keys as errors.")
@click.option(
    "--translate",
    "old",
    metavar="FILE",
    help="Translate the old consumer's .properties file for a new client instead. The reason is "
    "printed before each line. Keys that are not translated are listed at the end.",
)
@click.option(
    "--client",
    type=click.Choice(CLIENTS),
    default=CLIENTS[0],
    show_default=True,
    help="With --translate: the client to translate for.",
)
def config(
    keys: tuple[str, ...],
    as_json: bool,
    file: str | None,
    strict: bool,
    old: str | None,
    client: str,
) -> None:
    """Explain all configuration keys, or the given ones.

    Prints each key's type, default and meaning, and whether it is supported. With --check, prints
    errors (exit status 2) or warnings (exit status 0) about a file.
    """
    if old is not None:
        no_effect("--translate", "keys", "as_json", "file", "strict")
        for line in translate_file(old, client):
            click.echo(printable(line))
        return
    only_with("--translate", "client")
    if file is not None:
        no_effect("--check", "keys", "as_json")
        sys.exit(_check(file, strict))
    only_with("--check", "strict")
    chosen = _choose(keys)
    if as_json:
        click.echo(json.dumps(list(map(_record, chosen)), indent=2))
    elif keys:
        for row in chosen:
            _print_one(row)
    else:
        _print_table(chosen)


def _check(file: str, strict: bool) -> int:
    try:
        examined = examine_consumer(file, strict)
    except ConfigError as error:
        click.echo(f"error: {error}", err=True)
        return ConfigError.exit_code
    for fault in examined.faults:
        click.echo(f"error: {fault}", err=True)
    for warning in examined.warnings:
        click.echo(f"warning: {warning}", err=True)
    if examined.faults:
        return ConfigError.exit_code
    click.echo(f"{file}: valid")
    return 0


def _choose(names: tuple[str, ...]) -> list[Row]:
    """Return the rows of these keys, or of all. An unknown key ends the command with a hint at the
    nearest known key."""
    known = {row.name: row for row in KEYS}
    faults = []
    for name in names:
        if name not in known:
            near = nearest_key(name, known, RENAMED)
            hint = f"did you mean {near}?" if near else "`zkconsumer config` lists all keys"
            faults.append(f"{name} is not a known key: {hint}")
    if faults:
        for fault in faults:
            click.echo(f"error: {fault}", err=True)
        sys.exit(ZkConsumerError.exit_code)
    return [known[name] for name in names] or list(KEYS)


def _record(row: Row) -> dict[str, object]:
    """Return one flat record for a key, ready for JSON."""
    return {
        "key": row.name,
        "type": row.kind,
        "default": None if row.default is REQUIRED else row.default,
        "default_from": row.default_from,
        "required": row.default is REQUIRED,
        "valid": row.check.text if row.check is not None else None,
        "importance": row.importance,
        "since": row.since,
        "status": row.status,
        "attribute": row.attr,
        "doc": row.doc,
    }


def _print_table(rows: list[Row]) -> None:
    table = Table(show_edge=False, pad_edge=False)
    for heading in ("Key", "Type", "Default", "Importance", "Support"):
        table.add_column(heading, no_wrap=heading == "Key", overflow="fold")
    for row in rows:
        support = "ignored" if row.ignored else "yes"
        cells = (row.name, row.kind, row.default_text, row.importance, support)
        table.add_row(*map(Text, cells))  # Text: a default may hold square brackets
    width = None if sys.stdout.isatty() else 120
    Console(width=width).print(table)
    click.echo("`zkconsumer config KEY` explains one key.")


def _print_one(row: Row) -> None:
    click.echo(row.name)
    click.echo(f"  {row.doc}.")
    click.echo(f"  type: {row.kind}")
    click.echo(f"  default: {row.default_text}")
    if row.check is not None:
        click.echo(f"  valid: {row.check.text}")
    click.echo(f"  importance: {row.importance}")
    click.echo(f"  since: {row.since}")
    click.echo(f"  support: {row.status}")
