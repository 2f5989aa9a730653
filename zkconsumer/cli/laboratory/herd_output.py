"""The output of ``simulate`` and ``herd``: the comparison, JSON, the report."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import click

from zkconsumer.console.tables import print_rows
from zkconsumer.errors import ConfigError
from zkconsumer.herd.measures import Measures

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
    "consumed_twice": "twice",
}


def command_line() -> str:
    """The command as it was given."""
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
    """Runs with the same mode, profile and size."""
    groups: dict[tuple[str, str, int], list[Measures]] = {}
    for run in runs:
        groups.setdefault((run.mode, run.profile, run.members), []).append(run)
    return groups


def middles(runs: Sequence[Measures]) -> list[Measures]:
    """The median run of a set of equal runs, by operations and requests."""
    medians = []
    for some in by_group(runs).values():
        ranked = sorted(some, key=lambda run: (run.operations, run.requests))
        medians.append(ranked[len(ranked) // 2])
    return medians


def values(runs: Sequence[Measures], name: str) -> list[float]:
    """One figure from all runs that have it, ascending."""
    return sorted(value for run in runs if (value := getattr(run, name)) is not None)


def spread(numbers: Sequence[float]) -> tuple[float, str]:
    """Mean, and range as text, of sorted figures. The range of equal figures is empty."""
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
