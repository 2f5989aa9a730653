"""Options of the commands that audit, and the Spark session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import Field, fields
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from zkaudit.limits import SEVERITIES, Limits
from zkaudit.text import regex_of
from zkconsumer.console.exclusive import at_most_one, only_with
from zkconsumer.console.times import duration_option

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from zkaudit.job.audit import Options

F = TypeVar("F", bound=Callable[..., Any])
_Option = Callable[[Any], Any]


def logs_option(text: str) -> _Option:
    """Return the option ``--zookeeper-logs`` with this help text."""
    return click.option(
        "--zookeeper-logs", "logs", metavar="DIR", multiple=True, required=True, help=text
    )


def with_options(options: Iterable[_Option], command: F) -> F:
    """Add options to a command, in the given order."""
    added: Any = command
    for option in reversed([*options]):
        added = option(added)
    return added  # type: ignore[no-any-return]


servers_option = click.option(
    "--servers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of voting servers, without observers, if you do not have all their logs. By "
    "default, it is read from /zookeeper/config in the logs and snapshots.",
)
allow_damage_option = click.option(
    "--allow-damage",
    is_flag=True,
    help="Continue even if a log is damaged and no other server has the rest of it.",
)
fail_on_option = click.option(
    "--fail-on",
    type=click.Choice(SEVERITIES),
    help="Exit with status 3 if there is a finding of this severity or worse, or a period that no "
    "log covers.",
)
server_logs_option = click.option(
    "--server-logs",
    metavar="PATH",
    multiple=True,
    help="ZooKeeper's own text logs or audit logs (a file, directory or glob). They show the "
    "client address of each session.",
)
group_option = click.option(
    "--group", "groups", metavar="GROUP", multiple=True, help="Only this group; may be repeated."
)
regex_option = click.option(
    "--groups-regex",
    metavar="REGEX",
    help="Only groups whose whole name matches (a Java regex).",
)
master_option = click.option(
    "--master",
    default="local[*]",
    show_default=True,
    help="Spark master. `submit`: use the master given to spark-submit.",
)


def _limit_option(limit: Field[Any]) -> Callable[[Any], Any]:
    name, text = "--" + limit.name.replace("_", "-"), limit.metadata["help"]
    if isinstance(limit.default, float) and name.endswith("-seconds"):
        return duration_option(name, help=text, default=limit.default)
    kind = click.IntRange(min=1) if isinstance(limit.default, int) else click.FloatRange(0)
    return click.option(
        name, type=kind, default=limit.default, show_default=True, metavar="N", help=text
    )


_OPTIONS = (
    logs_option(
        "Directory of each server, dataDir in zoo.cfg: --zookeeper-logs zk1 zk2 zk3. Name the "
        "directories of all servers. If dataLogDir is another directory, name both as one server: "
        "--zookeeper-logs zk1=/logs/zk1 zk1=/data/zk1. URLs work too: s3://BUCKET/zk1, gs:, "
        "abfss:, hdfs:."
    ),
    servers_option,
    click.option(
        "--journals",
        metavar="DIR",
        multiple=True,
        help="Members' journals: a file, a directory of *.jsonl files (zkconsumer.journal.dir), "
        "or the URL of either.",
    ),
    click.option(
        "--bootstrap-server",
        "bootstrap",
        metavar="HOST:PORT,...",
        help="Brokers from which to read offsets that are stored in Kafka.",
    ),
    click.option(
        "--command-config",
        metavar="FILE",
        help="Java .properties file for --bootstrap-server: security.protocol, sasl.*, ssl.*. "
        "Spark's workers read it at the same path.",
    ),
    click.option(
        "--out", metavar="DIR", required=True, help="Directory for the tables and the report."
    ),
    group_option,
    regex_option,
    server_logs_option,
)


def limit_names() -> tuple[str, ...]:
    """Return the names of the parameters that are thresholds of rules."""
    return tuple(limit.name for limit in fields(Limits))


def limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the rules' thresholds, which the command receives as ``limits``."""

    @wraps(command)
    def with_limits(**given: Any) -> Any:
        limits = Limits(**{name: given.pop(name) for name in limit_names()})
        return command(limits=limits, **given)

    return with_options(map(_limit_option, fields(Limits)), with_limits)


def audit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose the input of an audit. The command receives ``options``
    (job.audit.Options) and ``master``."""

    @limit_options
    @master_option
    @wraps(command)
    def audited(groups: tuple[str, ...], groups_regex: str | None, **given: Any) -> Any:
        from zkaudit.job.audit import Options

        given["group"] = group_regex(groups, groups_regex)
        if given["bootstrap"] is None:
            only_with("--bootstrap-server", "command_config")
        names = ("logs", "servers", "journals", "bootstrap", "command_config", "server_logs",
                 "out", "group", "limits")  # fmt: skip
        options = Options(**{name: given.pop(name) for name in names})
        return command(options=options, **given)

    return with_options(_OPTIONS, audited)


def group_regex(groups: tuple[str, ...], regex: str | None) -> str | None:
    """Return one Java regex for the values of ``--group`` and ``--groups-regex``; ``None`` for all
    groups."""
    if groups and regex is not None:
        at_most_one(("--group", "--groups-regex"))
    if groups:
        return regex_of(groups)
    return regex


@contextmanager
def spark_session(
    master: str, options: Options | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Start Spark on a master, or use the session of ``spark-submit`` (``submit``), and stop it at
    the end. The inputs of ``options`` are checked and its ``out`` is locked first, because Spark
    takes seconds to start. ``settings``: settings of Spark.
    """
    from zkaudit.job.place import locked
    from zkaudit.job.spark import SMALL_BYTES, session
    from zkaudit.sources import server_logs
    from zkaudit.sources.selection import find, group_begins
    from zkaudit.tables.journals import check

    small = False
    if options is not None:
        logs, snapshots = find(options.logs)
        size = sum(piece.size for piece in (*logs, *snapshots))
        check(options.journals)
        server_logs.check(options.server_logs)
        of_group = options.group is not None and bool(group_begins(options.group))
        small = master.startswith("local") and (of_group or size < SMALL_BYTES)
    with nullcontext() if options is None else locked(options.out):
        spark = session(None if master == "submit" else master, settings, small)
        try:
            yield spark
        finally:
            spark.stop()
