"""``zkaudit findings``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zkaudit.commands.expected import expected_option, print_gone
from zkaudit.commands.inputs import fail_on_option, limit_names, limit_options
from zkaudit.commands.question import (
    Clock,
    check_order,
    csv_line,
    logs_options,
    say,
    timezone_option,
)
from zkaudit.commands.summary import status_of_counts
from zkaudit.errors import NoLogsError
from zkaudit.findings.kinds import KINDS, NOT_LOOKED_FOR
from zkaudit.limits import SEVERITIES, Limits
from zkaudit.text import in_zone, printable
from zkconsumer.console.collector import no_collector
from zkconsumer.console.exclusive import no_effect

if TYPE_CHECKING:
    from zkaudit.findings.expected import Expected
    from zkaudit.local.history import Question

_LIKE_A_PARTITION = re.compile("-[0-9]+$")
_COLUMNS = (
    "id", "severity", "kind", "basis", "time", "end_time", "chroot", "group_id", "topic",
    "partition", "member", "session", "address", "effect", "messages", "zxid", "server", "file",
    "position", "sentence", "command", "expected",
)  # fmt: skip
_TIMELINE = (
    "datetime", "timestamp_desc", "message", "severity", "basis", "id", "group_id", "topic",
    "partition", "member", "zxid",
)  # fmt: skip


@click.command("findings")
@click.argument("places", metavar="PLACE...", nargs=-1, required=True)
@click.option(
    "--format",
    "form",
    type=click.Choice(("table", "json", "csv", "timeline")),
    default="table",
    show_default=True,
    help="json: one object per line, with the evidence. timeline: CSV with the columns datetime, "
    "timestamp_desc and message that Timesketch and Plaso read.",
)
@click.option("--group", metavar="NAME", help="Only findings about this group.")
@click.option(
    "--severity", type=click.Choice(SEVERITIES), help="Only findings of this severity or worse."
)
@click.option(
    "--kind", "kinds", metavar="KIND", multiple=True, type=click.Choice(tuple(KINDS)),
    help="Only findings of this kind; may be repeated.",
)  # fmt: skip
@click.option(
    "--topic", "topics", metavar="TOPIC", multiple=True,
    help="Only findings about this topic; may be repeated.",
)  # fmt: skip
@click.option(
    "--member", "members", metavar="TEXT", multiple=True,
    help="Only findings about members whose consumer id contains this text; may be repeated.",
)  # fmt: skip
@click.option(
    "--from", "start", metavar="TIME", help="Leave out findings that ended before this time."
)
@click.option("--to", "end", metavar="TIME", help="Only findings that begin before this time.")
@timezone_option
@logs_options
@expected_option
@fail_on_option
@limit_options
def findings_command(
    places: tuple[str, ...],
    form: str,
    group: str | None,
    severity: str | None,
    kinds: tuple[str, ...],
    topics: tuple[str, ...],
    members: tuple[str, ...],
    start: str | None,
    end: str | None,
    clock: Clock,
    servers: int | None,
    allow_damage: bool,
    expected: Mapping[str, Expected],
    fail_on: str | None,
    limits: Limits,
) -> int:
    """Print what went wrong, worst first, with its place in the logs.

    PLACE is the directory of an audit, or the directories of the servers' logs, as for `zkaudit
    run`. Logs are read without Spark or Java. The first lines name the kinds of findings that
    logs cannot show; these need `zkaudit run` with journals or brokers. The id in brackets is the
    same in every audit that has the finding.

    Periods that the logs or the audit do not cover are always listed, because findings may be
    missing there.
    """
    from zkaudit.findings.expected import expected_of, gone
    from zkaudit.report.found import Choice, check_group, read

    start = start and clock.parse(start, "--from")
    end = end and clock.parse(end, "--to")
    check_order(start, end)
    if len(places) == 1 and is_audit(Path(places[0])):
        no_effect("the directory of an audit", "servers", "allow_damage", *limit_names())
        every = read(Path(places[0]), start, end)
        if group is not None and all(row["group_id"] != group for row in every):
            check_group(Path(places[0]), group)
    else:
        if unknown := [kind for kind in kinds if kind in NOT_LOOKED_FOR]:
            raise click.UsageError(
                f"--kind {unknown[0]} needs zkaudit run with --journals or --bootstrap-server"
            )
        from zkaudit.local.history import Question

        question = Question(places, None, start, end, servers, allow_damage, to_end=True)
        try:
            every = _in_logs(question, group, limits, clock, by_program=form != "table")
        except NoLogsError as error:
            raise NoLogsError(f"{error}; or name the directory of an audit") from None
    rows = list(Choice(group, None, kinds, topics, members, start, end).of(every))
    for row in rows:
        one = expected_of(row, expected)
        row["expected"] = None if one is None else one.reason
    shown = list(Choice(severity=severity).of(rows))
    {"table": _print, "json": _json, "csv": _csv, "timeline": _timeline}[form](shown, clock)
    print_gone(gone(expected.values(), (row["id"] for row in every)))
    counted = ((row["severity"], row["kind"]) for row in rows if row["expected"] is None)
    return status_of_counts(counted, fail_on)


def _in_logs(
    question: Question, group: str | None, limits: Limits, clock: Clock, by_program: bool
) -> list[dict[str, Any]]:
    """Read the logs, and print what they cover (``question.say``)."""
    from zkaudit.local.found import findings
    from zkaudit.local.history import check_group, check_size, read
    from zkaudit.report.found import plain

    check_size(question.directories)
    with no_collector():
        history = read(question)
        if group is not None:
            check_group(history, group)
        found = findings(history, limits)
        say(history, clock, question.start, question.end, by_program)
        if not by_program:
            click.echo(
                "Not looked for, as they need zkaudit run with --journals or --bootstrap-server: "
                f"{', '.join(NOT_LOOKED_FOR)}."
            )
        return plain(found, question.directories)


def is_audit(place: Path) -> bool:
    """Whether a directory contains an audit, finished or not."""
    return (place / "summary.json").exists()


def _json(rows: Iterable[dict[str, Any]], _: Clock) -> None:
    for row in rows:
        click.echo(json.dumps(row))


def _csv(rows: Iterable[dict[str, Any]], _: Clock) -> None:
    _write(_COLUMNS, rows)


def _timeline(rows: list[dict[str, Any]], _: Clock) -> None:
    """Return a line for the start of each finding, and one for its end."""
    lines = [
        row
        | {
            "datetime": row[time],
            "timestamp_desc": f"{row['kind']} {what}",
            "message": row["sentence"],
        }
        for row in rows
        for time, what in (("time", "begins"), ("end_time", "ends"))
        if row[time] is not None
    ]
    _write(_TIMELINE, sorted(lines, key=lambda line: str(line["datetime"])))
    if timeless := sum(row["time"] is None for row in rows):
        click.echo(f"{timeless} findings without a time are left out", err=True)


def _write(columns: tuple[str, ...], rows: Iterable[dict[str, Any]]) -> None:
    for values in (columns, *([row[name] for name in columns] for row in rows)):
        click.echo(csv_line(values))


def _print(rows: Iterable[dict[str, Any]], clock: Clock) -> None:
    there = False
    for row in rows:
        there = True
        _print_one(row, clock)
    if not there:
        click.echo("no findings")


def _print_one(row: dict[str, Any], clock: Clock) -> None:
    time = "?"
    if row["time"] is not None:
        moment = in_zone(datetime.fromisoformat(row["time"]), clock.zone)
        time = moment.isoformat(timespec="milliseconds")
    about = f"{time}  {row['severity']}, {row['basis']}: {row['kind']} [{row['id']}]"
    click.echo(printable(about))
    if row["expected"] is not None:
        click.echo(f"    expected: {printable(row['expected']) or 'no reason is given'}")
    click.echo(f"    {printable(row['sentence'])}")
    # A sentence names neither the chroot, nor where a topic's name ends.
    if row["chroot"] or _LIKE_A_PARTITION.search(row["topic"] or ""):
        named = {
            "chroot": "chroot",
            "group": "group_id",
            "topic": "topic",
            "partition": "partition",
        }
        values = {name: row[column] for name, column in named.items()}
        place = ", ".join(f"{name} {at}" for name, at in values.items() if at not in (None, ""))
        click.echo(f"    {printable(place)}")
    if row["file"]:
        click.echo(f"    {printable(row['server'])}: {row['file']}, byte {row['position']}, "
                   f"zxid {row['zxid']}")  # fmt: skip
        click.echo(f"    {printable(row['command'])}")
