"""``zkaudit show``."""

from __future__ import annotations

import click

from zkaudit.commands.question import ArgumentsFirst, servers_logs_option


def _zxid(_: click.Context, __: click.Parameter, value: str) -> int:
    try:
        zxid = int(value, 16 if value.lower().startswith("0x") else 10)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a zxid such as 0x1200000034") from None
    if not 0 < zxid < 1 << 63:
        raise click.BadParameter(f"{value!r} is not a zxid such as 0x1200000034")
    return zxid


@click.command("show", cls=ArgumentsFirst)
@click.argument("zxid", callback=_zxid)
@servers_logs_option
@click.option(
    "--around",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="Also show this many transactions before and after ZXID.",
)
def show_command(zxid: int, logs: tuple[str, ...], around: int) -> None:
    """Print the raw transactions around ZXID, with file and byte offset.

    ZXID is hexadecimal (0x1200000034) or decimal. Every server's log is read, so a transaction that
    three servers logged is printed three times. Spark is not needed.
    """
    from zkaudit.show import transactions_around

    for line in transactions_around(zxid, logs, around):
        click.echo(line)
