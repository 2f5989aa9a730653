"""``zkaudit log``."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from zkaudit.commands.question import (
    ArgumentsFirst,
    Clock,
    check_order,
    csv_line,
    iso,
    narrow,
    question_options,
    say,
)
from zkaudit.text import hex_of, printable
from zkconsumer.console.collector import no_collector
from zkconsumer.console.exclusive import at_most_one

if TYPE_CHECKING:
    from zkaudit.local.log import Entry

_LINES = 2_000
_TIMELINE = (
    "datetime", "timestamp_desc", "message", "zxid", "topic", "partition", "member", "session",
)  # fmt: skip
_UNSURE = " [may never have been committed]"


@click.command("log", cls=ArgumentsFirst)
@click.argument("group")
@question_options
@click.option("--from", "start", metavar="TIME", help="Only changes at this time or later.")
@click.option("--to", "end", metavar="TIME", help="Only changes before this time.")
@click.option(
    "--topic", "topics", metavar="TOPIC", multiple=True,
    help="Leave out changes to other topics; may be repeated.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.option(
    "--timeline",
    is_flag=True,
    help="Print CSV with the columns datetime, timestamp_desc and message, which Timesketch and "
    "Plaso read.",
)
def log_command(
    group: str,
    logs: tuple[str, ...],
    servers: int | None,
    allow_damage: bool,
    clock: Clock,
    start: str | None,
    end: str | None,
    topics: tuple[str, ...],
    as_json: bool,
    timeline: bool,
) -> None:
    """Print every change in GROUP in plain words.

    The command shows members that register or leave, owners that claim, release or lose
    partitions, offsets with their previous value and writer, live moves, and topics, in the order
    of their transactions. Log gaps and znodes of unknown formats are listed, too. Neither Spark
    nor Java is needed.
    """
    from zkaudit.local.history import Question, read
    from zkaudit.local.log import entries

    start = start and clock.parse(start, "--from")
    end = end and clock.parse(end, "--to")
    check_order(start, end)
    if as_json and timeline:
        at_most_one(("--json", "--timeline"))
    with no_collector():
        history = read(Question(logs, group, start, end, servers, allow_damage))
        chosen = _between(entries(history, group), _us(start), _us(end))
        if topics:
            chosen = (entry for entry in chosen if entry.topic is None or entry.topic in topics)
        say(history, clock, start, end, as_json or timeline)
        if as_json:
            summary = {"kind": "coverage", "from": start, "to": end}
            head = [json.dumps(summary | history.coverage.summary())]
            _print(head, (json.dumps(_plain(entry)) for entry in chosen))
            return
        if timeline:
            _print([",".join(_TIMELINE)], _timeline(chosen))
            return
        chroots = history.chroots if len(history.chroots) > 1 or history.chroots[0] else ()
        count = _print([], _lines(chosen, clock, bool(chroots)))
    if not count:
        click.echo("no changes of the group in this time")


def _us(time: str | None) -> int | None:
    from zkaudit.sources.selection import milliseconds

    return None if time is None else milliseconds(time) * 1000


def _between(entries: Iterable[Entry], start: int | None, end: int | None) -> Iterator[Entry]:
    """Yield the entries of a period. An entry without a time is included if its neighbours allow
    it."""
    waiting: list[Entry] = []
    before: int | None = None
    for entry in entries:
        us = entry.time_us
        if us is None:
            waiting.append(entry)
            continue
        if (end is None or before is None or before < end) and (start is None or us >= start):
            yield from waiting
        waiting.clear()
        before = us
        if (start is None or us >= start) and (end is None or us < end):
            yield entry
    if end is None or before is None or before < end:
        yield from waiting


def _lines(entries: Iterable[Entry], clock: Clock, chroots: bool) -> Iterator[str]:
    width = narrow()
    for entry in entries:
        text = f"[{printable(entry.chroot) or '/'}] {entry.text}" if chroots else entry.text
        if not entry.confirmed:
            text += _UNSURE
        line = f"{clock.shown(entry.time_us)}  {entry.zxid:#x}  {text}"
        if width is not None and len(line) > width:
            line = textwrap.fill(line, width, subsequent_indent="    ", break_on_hyphens=False)
        yield line


def _timeline(entries: Iterable[Entry]) -> Iterator[str]:
    """Return the entries as lines of CSV, without those that have no time."""
    for entry in entries:
        if entry.time_us is None:
            continue
        row = _plain(entry) | {
            "datetime": iso(entry.time_us),
            "timestamp_desc": entry.kind,
            "message": entry.text + ("" if entry.confirmed else _UNSURE),
        }
        yield csv_line(row[name] for name in _TIMELINE)


def _plain(entry: Entry) -> dict[str, Any]:
    """Return an entry for JSON: zxids and sessions in hexadecimal, times as ISO in UTC."""
    session = entry.session
    plain = entry._asdict() | {
        "zxid": f"{entry.zxid:#x}",
        "session": None if session is None else hex_of(session),
        "time": iso(entry.time_us),
    }
    del plain["time_us"]
    return plain


def _print(head: list[str], lines: Iterator[str]) -> int:
    """Print lines, many at a time. Return their number without the heading."""
    count = 0
    while batch := list(islice(lines, _LINES)):
        click.echo("\n".join([*head, *batch]))
        head = []
        count += len(batch)
    if head:
        click.echo("\n".join(head))
    return count
