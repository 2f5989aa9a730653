"""``zkaudit stream``."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from zkaudit.commands.expected import count_expected, expected_option
from zkaudit.commands.inputs import audit_options, spark_session
from zkaudit.commands.summary import FAILED, print_summary, status_of
from zkaudit.limits import SEVERITIES
from zkconsumer.console.exclusive import no_effect, only_with
from zkconsumer.console.signals import Stop
from zkconsumer.console.times import duration_option

if TYPE_CHECKING:
    from zkaudit.findings.expected import Expected
    from zkaudit.job.audit import Options

SHARE: Final = 10
"""Largest share of the time that writing the report may take. In a long history the report takes
longer than the audit of new transactions."""


class Report:
    """Keeps the report in a directory up to date.

    Args:
        out: the directory of the audit.
        write: writes the report and returns its path.
        clock: returns seconds.
    """

    def __init__(
        self, out: Path, write: Callable[[], Path], clock: Callable[[], float] = time.monotonic
    ) -> None:
        page, summary = out / "report.html", out / "summary.json"
        # An earlier process may have been killed before it wrote the report.
        self.behind = summary.exists() and not (
            page.exists() and page.stat().st_mtime_ns >= summary.stat().st_mtime_ns
        )
        self._write = write
        self._clock = clock
        self._next = clock()

    def update(self, now: bool = False) -> None:
        """Write the report if something has changed, unless the last write was too recent. ``now``:
        write it even then."""
        begin = self._clock()
        if not self.behind or (begin < self._next and not now):
            return
        place = self._write()
        end = self._clock()
        self.behind = False
        self._next = end + (end - begin) * (SHARE - 1)
        click.echo(f"report: {place}")


@click.command("stream")
@audit_options
@duration_option("--every", least=1.0, default=60.0, help="How often to read the logs.")
@click.option(
    "--once",
    is_flag=True,
    help="Read the logs once, then exit.",
)
@duration_option(
    "--retention",
    least=60.0,
    help="How much history to keep. Older history is deleted. By default, all of it is kept.",
)
@click.option(
    "--fail-on",
    type=click.Choice(SEVERITIES),
    help="Exit with status 3 after the first round that has a finding of this severity or "
    "worse, or a period that no log covers.",
)
@expected_option
def stream_command(
    options: Options,
    master: str,
    every: float,
    once: bool,
    retention: float | None,
    fail_on: str | None,
    expected: Mapping[str, Expected],
) -> int:
    """Follow a running ensemble, and keep the report up to date.

    Each round audits only the groups that changed. The report is written after each round, or less
    often if writing it takes more than a tenth of the time, and before the command exits. Ctrl-C or
    SIGTERM ends the command after the current round. To resume where it stopped, run it again with
    the same --out.
    """
    if once:
        no_effect("--once", "every")
    if fail_on is None:
        only_with("--fail-on", "expected")
    from zkaudit.errors import InputMissingError
    from zkaudit.job.place import finished
    from zkaudit.job.stream import stream
    from zkaudit.report.page import write

    stop = Stop()
    with spark_session(master, options) as spark:
        stop.listen()
        report = Report(Path(options.out), lambda: write(options.out))

        status = 0

        def on_summary(summary: dict[str, Any]) -> None:
            print_summary(summary)
            report.behind = True

        def after_round() -> None:
            nonlocal status
            is_new = report.behind
            report.update()
            if fail_on is not None:  # also if this round had nothing new
                with suppress(InputMissingError):  # nothing was logged yet
                    summary = finished(options.out)[0]
                    status = status_of(
                        summary, fail_on, count_expected(options.out, expected, is_new)
                    )
            if status == FAILED:
                stop.set()

        kept = replace(options, retention=retention)
        stream(spark, kept, every, stop, on_summary, once, after_round)
        report.update(now=True)
    return 130 if stop.number == signal.SIGINT else status
