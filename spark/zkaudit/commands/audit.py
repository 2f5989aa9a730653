"""``zkaudit run``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC
from typing import TYPE_CHECKING

import click

from zkaudit.commands.expected import count_expected, expected_option
from zkaudit.commands.inputs import (
    allow_damage_option,
    audit_options,
    fail_on_option,
    spark_session,
)
from zkaudit.commands.question import Clock, check_order
from zkaudit.commands.summary import print_summary, status_of

if TYPE_CHECKING:
    from zkaudit.findings.expected import Expected
    from zkaudit.job.audit import Options


@click.command("run")
@audit_options
@click.option(
    "--from",
    "start",
    metavar="TIME",
    help="Only findings after this time (UTC). Logs are read from the last snapshot that is "
    "at least an hour older.",
)
@click.option("--to", "end", metavar="TIME", help="Only findings before this time (UTC).")
@fail_on_option
@expected_option
@allow_damage_option
def run_command(
    options: Options,
    master: str,
    start: str | None,
    end: str | None,
    fail_on: str | None,
    expected: Mapping[str, Expected],
    allow_damage: bool,
) -> int:
    """Audit the logs of an ensemble, and write tables and a report."""
    from zkaudit.job.audit import run
    from zkaudit.report.page import write

    clock = Clock("UTC", UTC)
    start = start and clock.parse(start, "--from")
    end = end and clock.parse(end, "--to")
    check_order(start, end)
    options = replace(options, start=start, end=end, allow_damage=allow_damage)
    with spark_session(master, options) as spark:
        summary = run(spark, options)
        page = write(options.out)
    print_summary(summary)
    click.echo(f"report: {page}")
    return status_of(summary, fail_on, count_expected(options.out, expected))
