"""Options, times and coverage of the commands that read the logs without Spark."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click

from zkaudit.commands.inputs import (
    F,
    allow_damage_option,
    logs_option,
    servers_option,
    with_options,
)
from zkaudit.text import in_zone, printable
from zkconsumer.console.tables import guarded

if TYPE_CHECKING:
    from zkaudit.local.history import GroupHistory

_US: Final = 1_000_000


@dataclass(slots=True)
class Clock:
    """Parses and formats times in one time zone.

    Args:
        name: the zone's name on the command line.
        zone: ``None``: the zone of this machine.
    """

    name: str
    zone: tzinfo | None
    _second: int | None = None
    _text: str = ""

    def parse(self, text: str, option: str) -> str:
        """Parse a time. Return it as an ISO time in UTC. Raises BadParameter. ``option``: the
        option's name."""
        try:
            moment = datetime.fromisoformat(text)
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=self.zone) if self.zone else moment.astimezone()
            return moment.astimezone(UTC).isoformat(" ")
        except (ValueError, OverflowError):
            raise click.BadParameter(
                f"{text!r} is not an ISO time such as 2026-01-31T12:00", param_hint=option
            ) from None

    def shown(self, us: int | None) -> str:
        """Return a time as text with milliseconds. Fast for successive times within one second."""
        if us is None:
            return f"{'-':23}"
        second, rest = divmod(us, _US)
        if second != self._second:
            self._second = second
            moment = in_zone(datetime.fromtimestamp(second, UTC), self.zone)
            self._text = f"{moment:%Y-%m-%d %H:%M:%S}"
        return f"{self._text}.{rest // 1000:03d}"


def check_order(start: str | None, end: str | None) -> None:
    """Raise BadParameter if ``--from`` is not before ``--to``. Both are results of
    ``Clock.parse``."""
    if start and end and datetime.fromisoformat(start) >= datetime.fromisoformat(end):
        raise click.BadParameter(f"{end} is not after --from {start}", param_hint="--to")


def iso(us: int | None) -> str | None:
    """Return a time for JSON, as an ISO time in UTC with milliseconds."""
    if us is None:
        return None
    return datetime.fromtimestamp(us / _US, UTC).isoformat(timespec="milliseconds")


def _clock(_: click.Context, __: click.Parameter, name: str) -> Clock:
    from zoneinfo import ZoneInfo

    if name.lower() in ("utc", "local"):
        return Clock(name, UTC if name.lower() == "utc" else None)
    try:
        return Clock(name, ZoneInfo(name))
    except (ValueError, OSError, KeyError):
        raise click.BadParameter(f"{name!r} is not a time zone such as Europe/Berlin") from None


class ArgumentsFirst(click.Command):
    """A command whose arguments must precede ``--zookeeper-logs``, which takes several values."""

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the usage line with the arguments before the options, because only this order
        works."""
        options, *arguments = super().collect_usage_pieces(ctx)
        return [*arguments, "--zookeeper-logs DIR...", options]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line, and explain a missing argument."""
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter as error:
            if not isinstance(error.param, click.Argument) or ctx.resilient_parsing:
                raise
            name = error.param.make_metavar(ctx)
            raise click.UsageError(
                f"{name} is missing: write it before --zookeeper-logs, which takes all words up "
                "to the next option",
                ctx,
            ) from None


timezone_option: Final = click.option(
    "--timezone",
    "clock",
    metavar="ZONE",
    default="UTC",
    show_default=True,
    callback=_clock,
    help="Time zone of the output, and of times without an offset: a name such as Europe/Berlin, "
    "or `local` for this machine's time zone.",
)
_LOGS: Final = (
    servers_option,
    allow_damage_option,
)
servers_logs_option = logs_option(
    "Directory of each server, as for `zkaudit run`: --zookeeper-logs zk1 zk2 zk3."
)
_OPTIONS: Final = (
    servers_logs_option,
    *_LOGS,
    timezone_option,
)


def question_options(command: F) -> F:
    """Add the options that choose the logs and the time zone. The command receives the zone as
    ``clock``."""
    return with_options(_OPTIONS, command)


def logs_options(command: F) -> F:
    """Add the options for incomplete logs."""
    return with_options(_LOGS, command)


def about(history: GroupHistory, clock: Clock, start: str | None, end: str | None) -> Iterator[str]:
    """Yield a sentence about the time that the logs cover, then sentences about what is missing."""
    from zkaudit.report.verdict import CUT_OFF, TOO_LARGE, coverage, doubt, rolled_back

    summary = history.coverage.summary() | {
        "from": start,
        "to": end,
        "last_time": iso(None if history.coverage.last_ms is None
                         else history.coverage.last_ms * 1000),
    }  # fmt: skip
    yield "".join(coverage(summary, clock.zone, clock.name))
    yield from (text for _, _, text in history.coverage.sentences(clock.zone, clock.name))
    if text := rolled_back({"dropped": history.plan.dropped}):
        yield text
    if text := doubt(history.plan.unconfirmed):
        yield text
    for text in history.coverage.cut:
        yield f"{text}: {CUT_OFF}."
    for damage in history.coverage.damaged:
        yield f"{damage}: this log is read only up to there."
    for text in history.coverage.large:
        yield f"{text}: {TOO_LARGE}."
    if history.left_out:
        yield f"Left out, not read: {', '.join(history.left_out)}."


def csv_line(values: Iterable[Any]) -> str:
    """Return a line of CSV that is safe to open in a spreadsheet."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(map(guarded, values))
    return text.getvalue()


def narrow() -> int | None:
    """Return the width of the terminal; ``None`` if the output is not a terminal."""
    if not sys.stdout.isatty():
        return None
    import shutil

    return shutil.get_terminal_size().columns


def say(
    history: GroupHistory,
    clock: Clock,
    start: str | None,
    end: str | None,
    by_program: bool = False,
) -> None:
    """Print what the logs cover, and what is missing. ``by_program``: a program reads the output,
    so only what is missing is printed, on standard error."""
    lines = about(history, clock, start, end)
    for line in islice(lines, int(by_program), None):
        click.echo(printable(line), err=by_program)
