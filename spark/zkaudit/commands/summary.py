"""Prints an audit's summary, and derives the exit status from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import click

from zkaudit.limits import NOT_COVERED, SEVERITIES
from zkaudit.report.verdict import (
    CUT_OFF,
    NOT_SHOWN,
    TOO_LARGE,
    coverage,
    doubt,
    moves,
    rolled_back,
)
from zkaudit.text import no_group, printable

FAILED = 3
"""Exit status if there are findings as severe as ``--fail-on`` or worse."""


def print_summary(summary: dict[str, Any]) -> None:
    """Print the time that the logs cover, and the number of findings of each kind, the worst
    first."""
    for line in coverage(summary):
        click.echo(printable(line))
    click.echo(
        f"{summary['intervals']:,} ownership intervals, {summary['commits']:,} writes of offsets, "
        f"{len(summary['log_gaps']):,} log gaps"
    )
    if summary["group"] is not None and not summary["groups"]:
        click.echo(
            f"warning: {no_group(summary['group'], 'up to now the logs have')}",
            err=True,
        )
    if text := rolled_back(summary):
        click.echo(text)
    for text in summary.get("damaged", ()):
        click.echo(f"warning: {printable(text)}: this log is read only up to there", err=True)
    for text in summary.get("large", ()):
        click.echo(f"warning: {printable(text)}: {TOO_LARGE}", err=True)
    for text in summary.get("cut", ()):
        click.echo(f"{printable(text)}: {CUT_OFF}")
    if text := doubt(summary["unconfirmed"]):
        click.echo(f"warning: {text}", err=True)
    if left_out := summary.get("left_out"):
        click.echo(f"left out, not read: {printable(', '.join(left_out))}")
    if summary["torn_snapshots"]:
        click.echo(f"left out, incomplete: {printable(', '.join(summary['torn_snapshots']))}")
    if summary["journals"]:
        click.echo(
            f"{summary['journals']:,} journals, {summary['journal_lines']:,} lines, "
            f"{summary['unreadable']:,} of them unreadable"
        )
    for line in moves(summary):
        click.echo(printable(line))
    for row in summary["findings"]:
        click.echo(f"{row['severity']:9} {row['count']:6,}  {row['kind']}")
    if not summary["findings"]:
        click.echo(f"no findings. {NOT_SHOWN}")


def status_of(
    summary: dict[str, Any],
    fail_on: str | None,
    expected: Mapping[tuple[str, str], int] = MappingProxyType({}),
) -> int:
    """Return the exit status for an audit; see ``status_of_counts``. ``expected``: number of
    findings to ignore, by severity and kind."""
    counts = {(row["severity"], row["kind"]): row["count"] for row in summary["findings"]}
    return status_of_counts(Counter(counts) - Counter(expected), fail_on)


def status_of_counts(counts: Iterable[tuple[str, str]], fail_on: str | None) -> int:
    """Return 3 if there is a finding of severity ``fail_on`` or worse, otherwise 0.

    ``counts``: severity and kind of each finding. Time that no log covers also counts, because it
    may hide a finding of any severity.
    """
    if fail_on is None:
        return 0
    bad = SEVERITIES[: SEVERITIES.index(fail_on) + 1]
    failed = any(severity in bad or kind == NOT_COVERED for severity, kind in counts)
    return FAILED if failed else 0
