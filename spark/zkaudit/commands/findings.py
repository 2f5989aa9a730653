"""``zkaudit findings``."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from zkaudit.findings.limits import SEVERITIES
from zkaudit.text import no_group, printable, regex_of
from zkconsumer.console.tables import guarded

_LIKE_A_PARTITION = re.compile("-[0-9]+$")
_COLUMNS = (
    "severity", "kind", "basis", "time", "end_time", "chroot", "group", "topic", "partition",
    "member", "session", "address", "effect", "messages", "zxid", "server", "file", "position",
    "sentence", "command",
)  # fmt: skip


@click.command("findings")
@click.argument("out", type=click.Path(exists=True, file_okay=False))
@click.option(
    "--format",
    "form",
    type=click.Choice(("table", "json", "csv")),
    default="table",
    show_default=True,
    help="json: one object per line, with the evidence.",
)
@click.option("--group", metavar="NAME", help="Only findings about this group.")
@click.option(
    "--severity", type=click.Choice(SEVERITIES), help="Only findings of this severity or worse."
)
def findings_command(out: str, form: str, group: str | None, severity: str | None) -> None:
    """Print the findings of an audit, worst first, each with its place in the logs.

    OUT is the directory of the audit. Each finding has the command that prints the transactions
    around it. Spark is not needed.
    """
    rows = read(Path(out))
    if group is not None:
        if all(row["group"] != group for row in rows):
            check_group(Path(out), group)
        # Those of no group concern all groups.
        rows = [row for row in rows if row["group"] in (group, None)]
    if severity is not None:
        worst = SEVERITIES[: SEVERITIES.index(severity) + 1]
        rows = [row for row in rows if row["severity"] in worst]
    if form == "json":
        for row in rows:
            click.echo(json.dumps(row))
    elif form == "csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, _COLUMNS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows({name: guarded(row[name]) for name in _COLUMNS} for row in rows)
        click.echo(text.getvalue(), nl=False)
    else:
        for row in rows:
            _print(row)
        if not rows:
            click.echo("no findings")


def read(out: Path) -> list[dict[str, Any]]:
    """Return the findings of an audit as plain values, worst first, then by transaction. Those of
    one transaction are in a fixed order too.

    Times are ISO in UTC; sessions and zxids are hexadecimal. Raises InputMissingError if ``out``
    does not contain a finished audit.
    """
    import pyarrow.parquet as pq

    from zkaudit.errors import InputMissingError
    from zkaudit.job.place import finished
    from zkaudit.show import command

    summary, tables = finished(out)
    try:
        rows = pq.read_table(tables / "findings").to_pylist()
    except (OSError, ValueError) as error:
        raise InputMissingError(f"{out}: there is no audit in this directory: {error}") from None
    rows.sort(key=_order)
    directories = summary.get("directories", ())
    return [_plain(row) | {"command": command(row["zxid"], directories)} for row in rows]


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    names = (row[name] or "" for name in ("kind", "chroot", "group", "topic"))
    partition = -1 if row["partition"] is None else row["partition"]
    return (
        SEVERITIES.index(row["severity"]), row["zxid"] or 0, *names, partition, row["sentence"]
    )  # fmt: skip


def check_group(out: Path, group: str) -> None:
    """Raise InputMissingError if no table of the audit has a row of the group.

    Reads one column of each table, up to the first row of the group.
    """
    import pyarrow.dataset as ds

    from zkaudit.errors import InputMissingError
    from zkaudit.job.place import finished
    from zkaudit.tables.catalog import TABLES

    _, tables = finished(out)
    for table in TABLES:
        place = tables / table.name
        if not place.is_dir() or all(column.name != "group" for column in table.columns):
            continue
        try:
            found = ds.dataset(place, format="parquet").scanner(
                columns=["group"], filter=ds.field("group") == group
            )
            if any(batch.num_rows for batch in found.to_batches()):
                return
        except (OSError, ValueError) as error:
            raise InputMissingError(f"{out}: the audit is incomplete: {error}") from None
    raise InputMissingError(no_group(regex_of([group]), f"the audit in {out} has"))


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, datetime):
            moment = value if value.tzinfo else value.replace(tzinfo=UTC)
            value = moment.astimezone(UTC).isoformat(timespec="milliseconds")
        elif name in ("zxid", "end_zxid", "session") and value is not None:
            value = f"{value & (1 << 64) - 1:#x}"
        elif name == "evidence":
            value = [_plain(part) for part in value or ()]
        plain[name] = value
    return plain


def _print(row: dict[str, Any]) -> None:
    about = f"{row['time'] or '?'}  {row['severity']}, {row['basis']}: {row['kind']}"
    click.echo(printable(about))
    click.echo(f"    {printable(row['sentence'])}")
    # A sentence names neither the chroot, nor where a topic's name ends.
    if row["chroot"] or _LIKE_A_PARTITION.search(row["topic"] or ""):
        named = ("chroot", "group", "topic", "partition")
        place = ", ".join(f"{name} {row[name]}" for name in named if row[name] not in (None, ""))
        click.echo(f"    {printable(place)}")
    if row["file"]:
        click.echo(f"    {printable(row['server'])}: {row['file']}, byte {row['position']}, "
                   f"zxid {row['zxid']}")  # fmt: skip
        click.echo(f"    {printable(row['command'])}")
