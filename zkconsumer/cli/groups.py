"""``zkconsumer groups``: list, describe, verify and delete groups.

``list`` and ``describe`` also read groups in Kafka, with ``--bootstrap-server`` and without
``--zookeeper``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from zkconsumer.admin.printable import printable
from zkconsumer.admin.tools import GroupTools
from zkconsumer.admin.verifier import Finding
from zkconsumer.cli.watch import watch
from zkconsumer.config.tool_security import SecurityConfig
from zkconsumer.console.collector import no_collector
from zkconsumer.console.exclusive import at_most_one, flags, no_effect, only_with
from zkconsumer.console.tables import (
    How,
    bootstrap_option,
    chosen,
    command_config,
    either_option,
    execute_option,
    format_options,
    print_new_notes,
    print_notes,
    print_rows,
    timeout_option,
    zookeeper_options,
)
from zkconsumer.console.times import duration_option
from zkconsumer.core.common.assign import RoundRobinHash
from zkconsumer.core.zookeeper.view import Assignor
from zkconsumer.errors import GroupActiveError, GroupError, ProtectedGroupError

if TYPE_CHECKING:
    from zkconsumer.admin.coordinator_groups import CoordinatorGroups

F = TypeVar("F", bound=Callable[..., Any])
_NO_SERVER = "give --zookeeper for groups in ZooKeeper, or --bootstrap-server for those on brokers"


@click.group()
def groups() -> None:
    """List, describe, verify and delete groups."""


def names_options(command: F) -> F:
    """Add groups as arguments and as ``--group``, given to the command as ``names``."""

    def join(context: click.Context, _option: click.Parameter, more: tuple[str, ...]) -> None:
        context.params["names"] = (*context.params.get("names", ()), *more)

    argument = click.argument("names", nargs=-1, metavar="[GROUP]...", is_eager=True)
    option = click.option(
        "--group",
        "more_names",
        metavar="GROUP",
        multiple=True,
        expose_value=False,
        callback=join,
        help="The same as the argument GROUP. May be repeated.",
    )
    return argument(option(command))


def servers_options(command: F) -> F:
    """Add the options of a command that reads groups of either kind."""
    return either_option(timeout_option(command_config(command)))


def either_tools(
    zookeeper: str | None, bootstrap: str | None, timeout: float, security: SecurityConfig
) -> GroupTools | CoordinatorGroups:
    """Return the tools for groups in ZooKeeper or, without ``--zookeeper``, for groups in Kafka."""
    zookeeper, bootstrap = chosen(zookeeper, bootstrap)
    if zookeeper is not None:
        return GroupTools(zookeeper, timeout, security, bootstrap)
    if bootstrap is None:
        raise click.UsageError(_NO_SERVER)
    # Not above: loading kafka-python takes longer than most of the other commands.
    from zkconsumer.admin.coordinator_groups import CoordinatorGroups

    return CoordinatorGroups(bootstrap, timeout, security)


@groups.command("list")
@flags(
    "what",
    "names",
    {
        "counts": "Also show the numbers of members and topics of each group in ZooKeeper.",
        "state": "Also show the state and the number of members.",
    },
)
@servers_options
@format_options
def list_(
    what: str,
    zookeeper: str | None,
    bootstrap: str | None,
    timeout: float,
    security: SecurityConfig,
    how: How,
) -> None:
    """List all groups.

    Without --zookeeper, list the groups in Kafka, on the brokers of --bootstrap-server.
    """
    rows: Iterable[tuple[object, ...]]
    with no_collector(), either_tools(zookeeper, bootstrap, timeout, security) as tools:
        names = tools.group_names()
        if what == "state":
            rows = tools.states(names)
        elif what == "names":
            rows = ((name,) for name in names)
        elif isinstance(tools, GroupTools):
            rows = tools.counts(names)
        else:
            raise click.UsageError("--counts works only for groups in ZooKeeper: add --zookeeper")
        print_rows(tools.columns[what], rows, how)
    print_notes(tools.notes)


def _check_choice(names: tuple[str, ...], everything: bool) -> None:
    if names and everything:
        at_most_one(("GROUP", "--all"))
    if not names and not everything:
        raise click.UsageError("name groups, or use --all")


def choose(tools: GroupTools | CoordinatorGroups, names: tuple[str, ...]) -> list[str]:
    """Return the named groups without duplicates; without names, all groups."""
    return list(dict.fromkeys(names)) or tools.group_names()


@groups.command()
@names_options
@click.option("--all", "--all-groups", "everything", is_flag=True, help="Describe every group.")
@flags(
    "what",
    "offsets",
    {
        "offsets": "Show offsets and lag (the default).",
        "members": "Show the members instead.",
        "state": "Show the groups' states instead.",
    },
)
@click.option(
    "--verbose", is_flag=True, help="With --members: also show the partitions of each member."
)
@click.option(
    "--no-lag", is_flag=True, help="Do not ask the brokers for log ends, and show no lag."
)
@click.option(
    "--kafka-offsets",
    is_flag=True,
    help="For a group in ZooKeeper, show its offsets in Kafka, as kafka-consumer-groups does.",
)
@servers_options
@format_options
def describe(
    names: tuple[str, ...],
    everything: bool,
    what: str,
    verbose: bool,
    no_lag: bool,
    kafka_offsets: bool,
    zookeeper: str | None,
    bootstrap: str | None,
    timeout: float,
    security: SecurityConfig,
    how: How,
) -> None:
    """Show each partition's committed offset, log end, lag and owner.

    Without --zookeeper, show groups in Kafka, on the brokers of --bootstrap-server. The command
    shows topics that are owned, have offsets or are subscribed to. A member without partitions
    has its own row. In a group in ZooKeeper, the host is taken from consumer ids in the JVM's
    format, and CONSUMER-ID is the stream that owns the partition. An unknown value is "-". If a
    broker did not answer, a note is printed on standard error.
    """
    _check_choice(names, everything)
    if what != "members":
        only_with("--members", "verbose")
    if what != "offsets":
        no_effect(f"--{what}", "no_lag", "kafka_offsets")
    rows: Iterable[tuple[object, ...]]
    with no_collector(), either_tools(zookeeper, bootstrap, timeout, security) as tools:
        wanted = choose(tools, names)
        if what == "members":
            rows = tools.members(wanted)
        elif what == "state":
            rows = tools.states(wanted)
        elif isinstance(tools, GroupTools):
            rows = tools.describe(wanted, lag=not no_lag, kafka_offsets=kafka_offsets)
        elif kafka_offsets:
            raise click.UsageError(
                "--kafka-offsets works only for groups in ZooKeeper: add --zookeeper"
            )
        else:
            rows = tools.describe(wanted, lag=not no_lag)
        columns = tools.columns[what]
        if what == "members" and not verbose:
            columns = columns[:-1]  # as Kafka's tool, which shows the assignment with --verbose
        print_rows(columns, (row[: len(columns)] for row in rows), how)
    print_notes(tools.notes)


@groups.command()
@names_options
@click.option("--all", "--all-groups", "everything", is_flag=True, help="Verify every group.")
@click.option("--no-lag", is_flag=True, help="Do not ask the brokers, and do not check log ends.")
@click.option(
    "--strategy",
    type=click.Choice(["range", "roundrobin"]),
    help="Also compare the owners with what partition.assignment.strategy would choose.",
)
@click.option(
    "--hash",
    "hash_form",
    type=click.Choice([form.value for form in RoundRobinHash]),
    default=RoundRobinHash.DASH.value,
    show_default=True,
    help="With --strategy roundrobin: zkconsumer.roundrobin.hash of the members.",
)
@click.option(
    "--watch",
    "watching",
    is_flag=True,
    help="Keep verifying and print changes. Also look for idle members.",
)
@duration_option("--every", default=5.0, least=0.1, help="With --watch: how often to verify.")
@duration_option(
    "--grace",
    default=15.0,
    help="With --watch: how long a problem must last before it is printed.",
)
@duration_option("--seconds", help="With --watch: stop after this time.")
@zookeeper_options
@bootstrap_option
@format_options
def verify(
    names: tuple[str, ...],
    everything: bool,
    no_lag: bool,
    strategy: str | None,
    hash_form: str,
    watching: bool,
    every: float,
    grace: float,
    seconds: float | None,
    zookeeper: str,
    timeout: float,
    security: SecurityConfig,
    bootstrap: str | None,
    how: How,
) -> None:
    """Check that each partition is owned by one live member.

    Also reports unusable registrations, impossible offsets, and znodes that other clients wrote.
    The exit status is 1 if there is a problem.

    With --watch it also reports members that own nothing although they should. It prints a line
    when a problem has lasted for the grace time ("found"), when the problem is gone ("cleared"),
    when the groups cannot be read ("away") and when they can be read again ("back"). With --json
    each line is an object. Ctrl-C and SIGTERM end it, with status 1 if there is a problem at that
    time.
    """
    _check_choice(names, everything)
    if not watching:
        only_with("--watch", "every", "grace", "seconds")
    if strategy != "roundrobin":
        only_with("--strategy roundrobin", "hash_form")
    assignor = Assignor(strategy, RoundRobinHash(hash_form)) if strategy else None
    if watching:
        no_effect("--watch", "csv")
        noted: list[str] = []

        def look() -> list[Finding]:
            with no_collector(), GroupTools(zookeeper, timeout, security, bootstrap) as tools:
                wanted = choose(tools, names)
                checked = tools.verify(wanted, lag=not no_lag, assignor=assignor, idle=True)
                problems = list(checked)
            print_new_notes(tools.notes, noted)
            return problems

        status = watch(look, grace, every, seconds, how == "json")
        click.get_current_context().exit(status)
    with no_collector(), GroupTools(zookeeper, timeout, security, bootstrap) as tools:
        wanted = choose(tools, names)
        findings = list(tools.verify(wanted, lag=not no_lag, assignor=assignor))
    print_notes(tools.notes)
    wrong = sum(finding.wrong for finding in findings)
    if findings or how != "table":
        columns = ("group", "level", "kind", "where", "what")
        rows = [
            (f.group, "error" if f.wrong else "warning", f.kind.value, f.where, f.what)
            for f in findings
        ]
        print_rows(columns, rows, how)
    click.echo(f"groups verified: {len(wanted)}; errors: {wrong}", err=True)
    click.get_current_context().exit(1 if wrong else 0)


@groups.command()
@names_options
@click.option("--topic", help="Delete only this topic's owners and offsets.")
@click.option(
    "--all",
    "--all-groups",
    "everything",
    is_flag=True,
    help="With --topic: delete its owners and offsets in every group.",
)
@execute_option
@click.option(
    "--force",
    is_flag=True,
    help="Also delete groups that were moved to Kafka, are locked by zkmigrate, or are in a live "
    "move. The record of the move and the lock are deleted too.",
)
@zookeeper_options
def delete(
    names: tuple[str, ...],
    topic: str | None,
    everything: bool,
    execute: bool,
    force: bool,
    zookeeper: str,
    timeout: float,
    security: SecurityConfig,
) -> None:
    """Delete groups without members, or their data for one topic.

    It deletes groups in ZooKeeper only. This is a dry run unless --execute is given. The command
    refuses (exit status 1) while a member is registered, and stops if one registers in the
    meantime. If the topic is the group's only one, the whole group is deleted.
    """
    if everything and topic is None:
        raise click.UsageError("--all requires --topic")
    _check_choice(names, everything)
    refused = 0
    with GroupTools(zookeeper, timeout, security) as tools:
        for group in choose(tools, names):
            try:
                if execute:
                    deletion = tools.delete(group, topic, force=force)
                else:
                    deletion = tools.plan_delete(group, topic, force)
            except (GroupActiveError, ProtectedGroupError) as error:
                click.echo(f"error: {error}", err=True)
                refused += 1
                continue
            if not deletion.paths and not everything:
                raise GroupError(f"group {group} has neither owners nor offsets of topic {topic}")
            if deletion.paths:
                what = f"group {group}" if deletion.whole else f"topic {topic} of group {group}"
                verb = "deleted" if execute else "would delete"
                click.echo(printable(f"{verb} {what}: {len(deletion.paths)} znodes"))
    print_notes(tools.notes)
    if not execute:
        click.echo("dry run: nothing was changed; give --execute to delete", err=True)
    click.get_current_context().exit(GroupActiveError.exit_code if refused else 0)
