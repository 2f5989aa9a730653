"""The commands of ``zkaudit``, and the one place that maps errors to a line and an exit status."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zkaudit.errors import AuditError, no_file
from zkconsumer.errors import ZkConsumerError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEVERITIES = ("critical", "high", "medium", "low", "info")
FAILED = 3
"""Exit status when there are findings of the severity of ``--fail-on`` or worse."""


def run(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit status.

    An error of ours is one line on stderr and gives its own ``exit_code``; wrong usage gives 2,
    findings of the severity asked for 3, Ctrl-C 130.
    """
    try:
        status = cli.main(args=list(arguments), prog_name="zkaudit", standalone_mode=False)
    except ZkConsumerError as error:
        click.echo(f"error: {plain(str(error))}", err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except _foreign() as error:
        click.echo(f"error: {plain(_line(error))}", err=True)
        return 1
    return status if isinstance(status, int) else 0


def _foreign() -> tuple[type[Exception], ...]:
    """Errors of the system, and of Spark if it was loaded."""
    if "pyspark" not in sys.modules:
        return (OSError,)
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return (OSError, PySparkException, Py4JError)


def _line(error: Exception) -> str:
    if isinstance(error, OSError):
        return no_file(error.errno, error.strerror or str(error), error.filename)
    text = str(error)
    if "JAVA_GATEWAY_EXITED" in text:
        return "Spark cannot start Java: install Java 17 or later, or set JAVA_HOME"
    told = next(filter(str.strip, text.splitlines()), type(error).__name__).strip()
    return f"Spark failed; --out may not be whole: see to the cause, then run again: {told}"


def plain(text: str) -> str:
    """Make foreign text fit for a terminal: whatever cannot be printed is escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Tell who owned what in ZooKeeper-based consumer groups, from ZooKeeper's own logs."""


def _iso(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    try:
        return datetime.fromisoformat(value).isoformat(" ")
    except ValueError:
        raise click.BadParameter(f"{value!r} is no ISO time such as 2026-01-31T12:00") from None


def _utc(time: str) -> datetime:
    found = datetime.fromisoformat(time)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _spark(master: str | None) -> SparkSession:
    from zkaudit.job import session

    return session(master)


def _inputs(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of the commands that audit."""
    for option in reversed(
        (
            click.option(
                "--zookeeper-logs",
                "logs",
                metavar="DIR",
                multiple=True,
                required=True,
                help="dataLogDir (and dataDir, for snapshots) of a server; give all servers' "
                "directories.",
            ),
            click.option(
                "--servers",
                type=click.IntRange(min=1),
                metavar="N",
                help="How many servers of the ensemble vote, if the logs are not of all of them.",
            ),
            click.option(
                "--journals",
                metavar="DIR",
                multiple=True,
                help="Members' journals: a file, or a directory of *.jsonl "
                "(zkconsumer.journal.dir).",
            ),
            click.option(
                "--bootstrap-server",
                "bootstrap",
                metavar="HOST:PORT,...",
                help="Brokers: read offsets that are stored in Kafka too.",
            ),
            click.option(
                "--out", metavar="DIR", required=True, help="Where tables and the report go."
            ),
            click.option(
                "--group",
                metavar="REGEX",
                help="Only groups whose whole name matches (a Java regex).",
            ),
            click.option(
                "--gap-seconds",
                type=float,
                default=30.0,
                show_default=True,
                help="From when on a partition without owner is a finding.",
            ),
            click.option(
                "--master",
                default="local[*]",
                show_default=True,
                help="Spark master; `submit`: as submitted.",
            ),
        )
    ):
        command = option(command)
    return command


@cli.command("run")
@_inputs
@click.option("--from", "start", metavar="TIME", callback=_iso, help="Only findings after (UTC).")
@click.option("--to", "end", metavar="TIME", callback=_iso, help="Only findings before (UTC).")
@click.option("--fail-on", type=click.Choice(SEVERITIES), help="Exit 3 for such findings or worse.")
@click.option(
    "--verify",
    is_flag=True,
    help="Replay the logs and compare the digest of the tree that each transaction carries "
    "(ZooKeeper 3.6+).",
)
def run_command(
    logs: tuple[str, ...],
    servers: int | None,
    journals: tuple[str, ...],
    bootstrap: str | None,
    out: str,
    group: str | None,
    gap_seconds: float,
    master: str,
    start: str | None,
    end: str | None,
    fail_on: str | None,
    verify: bool,
) -> int:
    """Audit the logs of an ensemble; write tables, summary and report to --out."""
    from zkaudit.findings import Limits
    from zkaudit.job import Options, run as audit
    from zkaudit.job_input import find
    from zkaudit.journals import check
    from zkaudit.report import write

    if start is not None and end is not None and _utc(start) >= _utc(end):
        raise click.BadParameter(f"{end} is not after --from {start}", param_hint="--to")
    find(logs)  # before Spark takes its seconds to start
    check(journals)
    limits = Limits(gap_seconds=gap_seconds)
    options = Options(logs, out, group, start, end, limits, journals, bootstrap, verify, servers)
    spark = _spark(None if master == "submit" else master)
    try:
        summary = audit(spark, options)
        page = write(spark, out)
    finally:
        spark.stop()
    tell(summary)
    click.echo(f"report: {page}")
    return status_of(summary, fail_on)


@cli.command("stream")
@_inputs
@click.option(
    "--every",
    type=click.FloatRange(min=1),
    default=60.0,
    show_default=True,
    help="Seconds between two looks at the logs.",
)
@click.option("--once", is_flag=True, help="Look once, then exit; the next run goes on from there.")
def stream_command(
    logs: tuple[str, ...],
    servers: int | None,
    journals: tuple[str, ...],
    bootstrap: str | None,
    out: str,
    group: str | None,
    gap_seconds: float,
    master: str,
    every: float,
    once: bool,
) -> int:
    """Follow the logs of an ensemble that is running, and keep tables and report up to date.

    What was read stays in --out, also when ZooKeeper deletes its logs. Stop it with Ctrl-C or
    SIGTERM: it ends what it has begun. Started again with the same --out it goes on from there.
    """
    from zkaudit.findings import Limits
    from zkaudit.job import Options
    from zkaudit.job_input import find
    from zkaudit.job_stream import stream
    from zkaudit.report import write

    find(logs)
    limits = Limits(gap_seconds=gap_seconds)
    options = Options(
        logs, out, group, limits=limits, journals=journals, bootstrap=bootstrap, servers=servers
    )
    spark = _spark(None if master == "submit" else master)
    stop = threading.Event()
    caught: list[int] = []

    def asked(number: int, _: object) -> None:
        caught.append(number)
        stop.set()
        signal.signal(number, signal.SIG_DFL)  # the second one ends it at once

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, asked)

    def told(summary: dict[str, Any]) -> None:
        tell(summary)
        click.echo(f"report: {write(spark, out)}")

    try:
        stream(spark, options, every, stop, told, once)
    finally:
        spark.stop()
    return 130 if signal.SIGINT in caught else 0


def tell(summary: dict[str, Any]) -> None:
    """Print what was found, worst first."""
    click.echo(
        f"{summary['intervals']:,} ownership intervals, {summary['commits']:,} writes of offsets, "
        f"{len(summary['holes']):,} holes in the logs"
    )
    if summary["group"] is not None and not summary["groups"]:
        click.echo(
            f"warning: --group {plain(summary['group'])!r}: the logs have no group with such a "
            "name yet: a pattern must match the whole name, as 'orders.*' does",
            err=True,
        )
    if summary["torn_snapshots"]:
        click.echo(f"left out, not whole: {plain(', '.join(summary['torn_snapshots']))}")
    if summary["journals"]:
        click.echo(
            f"{summary['journals']:,} journals, {summary['journal_lines']:,} lines, "
            f"{summary['unreadable']:,} of them unreadable"
        )
    if summary["digests"] is not None:
        click.echo(
            f"{summary['digests']['equal']:,} digests of the tree equal, "
            f"{summary['digests']['unknown']:,} with nothing to compare"
        )
    for row in summary["findings"]:
        click.echo(f"{row['severity']:9} {row['count']:6,}  {row['kind']}")
    if not summary["findings"]:
        click.echo("no findings")


def status_of(summary: dict[str, Any], fail_on: str | None) -> int:
    """Return 3 when something is as bad as ``fail_on``, else 0."""
    if fail_on is None:
        return 0
    bad = SEVERITIES[: SEVERITIES.index(fail_on) + 1]
    return FAILED if any(row["severity"] in bad for row in summary["findings"]) else 0


@cli.command("report")
@click.argument("out", type=click.Path(exists=True, file_okay=False))
@click.option(
    "--group", metavar="REGEX", help="Show only groups whose whole name matches (a Java regex)."
)
@click.option("--page", metavar="FILE", help="Write the page here.  [default: OUT/report.html]")
@click.option("--master", default="local[*]", show_default=True, help="Spark master.")
def report_command(out: str, group: str | None, page: str | None, master: str) -> None:
    """Write OUT/report.html again from the tables of an audit.

    A page has room for 200 groups, the ones with the worst findings first, and for 500 partitions.
    With --group it shows the groups that you name.
    """
    from zkaudit.report import write

    spark = _spark(master)
    try:
        click.echo(f"report: {write(spark, out, group, page)}")
    finally:
        spark.stop()


@cli.command("collect")
@click.argument("source", type=click.Path(exists=True, file_okay=False))
@click.argument("target", type=click.Path(file_okay=False))
def collect_command(source: str, target: str) -> None:
    """Keep a server's closed logs and its snapshots before it deletes them.

    SOURCE is the server's dataDir or dataLogDir. Files are hard-linked to TARGET where both are on
    one file system, else copied. The log that is being written is left for the next time. Run it
    more often than autopurge does.
    """
    from zkaudit.collect import collect

    kept = collect(Path(source), Path(target))
    click.echo(f"{kept.linked} linked, {kept.copied} copied, {kept.known} there already")


@cli.command("demo")
@click.option("--out", metavar="DIR", default="build/demo-audit", show_default=True)
@click.option("--clean", is_flag=True, help="Inject no faults.")
def demo_command(out: str, clean: bool) -> int:
    """Run members with injected faults on an embedded cluster, then audit what they left.

    That is ZooKeeper's own log, and the members' journals. Fails unless all faults are found.
    """
    from zkaudit import job_demo
    from zkaudit.job import Options, run as audit
    from zkaudit.report import write

    place = Path(out)
    if place.exists() and any(place.iterdir()):
        raise AuditError(f"{out}: is not empty: delete it or choose another --out")
    job_demo.play(place / "cluster", lambda text: click.echo(f"* {text}"), faults=not clean)
    spark = _spark("local[*]")
    try:
        cluster = place / "cluster"
        logs = [str(job_demo.data_directory(cluster))]
        journals = [str(job_demo.journal_directory(cluster))]
        summary = audit(spark, Options(logs, str(place / "audit"), journals=journals))
        page = write(spark, place / "audit")
    finally:
        spark.stop()
    tell(summary)
    click.echo(f"report: {page}")
    found = {row["kind"] for row in summary["findings"]}
    missing = set(() if clean else job_demo.PLANTED) - found
    if missing or (clean and found):
        click.echo(f"error: not as planted: {', '.join(sorted(missing or found))}", err=True)
        return 1
    return 0
