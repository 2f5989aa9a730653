"""``zkaudit stream``."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from zkaudit.commands.inputs import audit_options, spark_session
from zkaudit.commands.summary import print_summary
from zkconsumer.cli.exclusive import no_effect
from zkconsumer.cli.times import duration_option

if TYPE_CHECKING:
    from zkaudit.job.audit import Options


@click.command("stream")
@audit_options
@duration_option("--every", least=1.0, default=60.0, help="How often to read the logs.")
@click.option(
    "--once",
    is_flag=True,
    help="Read the logs once, then exit. The next run resumes where this one stopped.",
)
@duration_option(
    "--retention",
    least=60.0,
    help="How much history to keep. Older history is deleted. By default, all of it is kept.",
)
def stream_command(
    options: Options, master: str, every: float, once: bool, retention: float | None
) -> int:
    """Follow the logs of a running ensemble, and keep tables and report up to date.

    A round audits only the groups that changed. All data that it has read stays in --out until it
    is older than --retention, even if ZooKeeper deletes its logs. Stop it with Ctrl-C or SIGTERM;
    it finishes the current round first. Started again with the same --out, it resumes where it
    stopped.
    """
    if once:
        no_effect("--once", "every")
    from zkaudit.job.stream import stream
    from zkaudit.report.page import write

    stop = threading.Event()
    caught: list[int] = []

    def on_signal(number: int, _: object) -> None:
        caught.append(number)
        stop.set()
        signal.signal(number, signal.SIG_DFL)  # a second signal ends the process at once

    with spark_session(master, options) as spark:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, on_signal)

        def on_summary(summary: dict[str, Any]) -> None:
            print_summary(summary)
            click.echo(f"report: {write(spark, options.out)}")

        stream(spark, replace(options, retention=retention), every, stop, on_summary, once)
    return 130 if signal.SIGINT in caught else 0
