"""Functions that ``herd`` and ``simulate`` share: options, checks of their values, and the output.

The output is the comparison, JSON, or the report. Main thread.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final, TypeVar

import click

from zkconsumer.console.tables import count_option, print_rows
from zkconsumer.console.times import duration_option
from zkconsumer.errors import ConfigError
from zkconsumer.herd.measures import Measures
from zkconsumer.herd.parameters import EVENTS
from zkconsumer.sim.runs.herd import Herd

F = TypeVar("F", bound=Callable[..., Any])

JVM: Final = "jvm"
"""The name shown to people for profile ``scala``."""


def _profile_name(_context: click.Context, _option: click.Parameter, value: str) -> str:
    """Return the internal name of a profile."""
    return "scala" if value == JVM else value


def _numbers(_context: click.Context, _option: click.Parameter, value: str) -> tuple[int, ...]:
    """Parse one number, or several separated by commas."""
    try:
        return tuple(dict.fromkeys(int(part) for part in value.split(",")))
    except ValueError:
        raise click.BadParameter(
            f"{value!r}: write a number, or several separated by commas"
        ) from None


def herd_options(
    profiles: Sequence[str], profile_help: str, default: str, members_help: str
) -> Callable[[F], F]:
    """Add the options for the group, the change in it, and the output.

    Args:
        profiles: values of ``--profile``, in addition to ``jvm`` and ``all``.
        profile_help: the help of ``--profile``.
        default: the default of ``--members``.
        members_help: the help of ``--members``.
    """
    path = click.Path(dir_okay=False, path_type=Path)
    options = (
        click.option(
            "--members",
            callback=_numbers,
            default=default,
            show_default=True,
            metavar="N[,N..]",
            help=members_help,
        ),
        count_option("--partitions", default=100, help="How many partitions each topic has."),
        count_option("--topics", default=1, help="How many topics every member subscribes to."),
        click.option(
            "--event",
            type=click.Choice(EVENTS),
            default="join",
            show_default=True,
            help="The change to make in the group.",
        ),
        click.option(
            "--profile",
            type=click.Choice([*profiles, JVM, "all"]),
            default="all",
            show_default=True,
            callback=_profile_name,
            help=profile_help,
        ),
        duration_option(
            "--session-timeout",
            default=6.0,
            least=0.01,
            help="zookeeper.session.timeout.ms of every member.",
        ),
        duration_option("--backoff", default=2.0, help="rebalance.backoff.ms of every member."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout."),
        click.option("--journal", type=path, help="Write the group's journal to this file."),
        click.option("--html", type=path, help="Write a report with charts to this file."),
    )

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def check_herds(herds: Sequence[Herd], most: int, journal: Path | None, html: Path | None) -> None:
    """Refuse impossible group sizes, one journal for several runs, and files that cannot be
    written. Raises ConfigError.

    ``most`` is the largest number of members.
    """
    for herd in herds:
        herd.check()
        if herd.members > most:
            raise ConfigError([f"--members {herd.members}: must be 2 to {most}"])
    if journal is not None and len(herds) > 1:
        raise ConfigError(
            ["--journal: only a single run can be recorded: give one size, profile and seed"]
        )
    for option, path in (("--journal", journal), ("--html", html)):
        try:
            if path is not None:
                path.open("ab").close()
        except OSError as error:
            raise ConfigError([f"{option} {path}: {error.strerror}"]) from None


_COLUMNS = {
    "profile": "profile",
    "members": "members",
    "watches_fired": "watches",
    "reads": "reads",
    "writes": "writes",
    "requests": "requests",
    "attempts": "attempts",
    "failed_attempts": "failed",
    "conflicts": "conflicts",
    "stopped": "stopped",
    "seconds_to_stable": "stable_s",
    "unowned_seconds": "unowned_s",
    "unowned_longest": "longest_s",
}


def command_line() -> str:
    """Return the command line as it was typed."""
    return shlex.join(["zkconsumer", *sys.argv[1:]])


def write_html(path: Path, runs: Sequence[Measures], title: str) -> None:
    """Write the report. Raises ConfigError when the file cannot be written."""
    from zkconsumer.report import herd_report

    try:
        path.write_text(
            herd_report([run.as_json() for run in runs], title, command_line()), encoding="utf-8"
        )
    except OSError as error:
        raise ConfigError([f"--html {path}: {error.strerror}"]) from None


def by_group(runs: Sequence[Measures]) -> dict[tuple[str, str, int], list[Measures]]:
    """Return the runs grouped by mode, profile and size."""
    groups: dict[tuple[str, str, int], list[Measures]] = {}
    for run in runs:
        groups.setdefault((run.mode, run.profile, run.members), []).append(run)
    return groups


def middles(runs: Sequence[Measures]) -> list[Measures]:
    """Return the median run for each mode, profile and size, ranked by operations, then
    requests."""
    medians = []
    for some in by_group(runs).values():
        ranked = sorted(some, key=lambda run: (run.operations, run.requests))
        medians.append(ranked[len(ranked) // 2])
    return medians


def values(runs: Sequence[Measures], name: str) -> list[float]:
    """Return the values of one figure from all runs that have it, in ascending order."""
    return sorted(value for run in runs if (value := getattr(run, name)) is not None)


def spread(numbers: Sequence[float]) -> tuple[float, str]:
    """Return the mean of sorted figures, and their range as text (empty if all are equal)."""
    mean = round(fmean(numbers), 2)
    whole = mean == int(mean)
    return int(mean) if whole else mean, f"{numbers[0]:g}-{numbers[-1]:g}" if numbers[0] < numbers[
        -1
    ] else ""


def show(runs: Sequence[Measures], as_json: bool) -> None:
    """Print the comparison, or everything as JSON."""
    if as_json:
        click.echo(json.dumps([run.as_json() for run in runs], indent=1))
        return
    rows = []
    runs = middles(runs)
    for run in runs:
        row = {name: getattr(run, name) for name in _COLUMNS}
        if run.mode == "real":
            row["profile"] = f"{run.profile} (real)"
        rows.append(list(row.values()))
    print_rows(list(_COLUMNS.values()), rows, "table")
    for run in runs:
        if run.unowned_at_end:
            click.echo(
                f"{run.profile}, {run.members} members: {run.unowned_at_end} partitions have no "
                f"owner at the end ({run.gave_up} members gave up)"
            )
