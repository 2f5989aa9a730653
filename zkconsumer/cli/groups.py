"""``zkconsumer groups``: list, describe, verify and delete the groups in a ZooKeeper."""

from __future__ import annotations

import click

from zkconsumer.admin.describe import GroupRow
from zkconsumer.admin.text import printable
from zkconsumer.admin.tools import GroupSummary, GroupTools
from zkconsumer.admin.verify import Finding
from zkconsumer.cli.bootstrap import bootstrap_option
from zkconsumer.cli.tables import (
    How,
    format_options,
    no_collector,
    print_notes,
    print_rows,
    zookeeper_options,
)
from zkconsumer.cli.watch import watch
from zkconsumer.config.security import SecurityConfig
from zkconsumer.core.common.assign import RoundRobinHash
from zkconsumer.core.zookeeper.view import Assignor
from zkconsumer.errors import GroupActiveError, GroupError


@click.group()
def groups() -> None:
    """List, describe, verify and delete groups that live in ZooKeeper."""


@groups.command("list")
@zookeeper_options
@format_options
def list_(zookeeper: str, timeout: float, security: SecurityConfig, how: How) -> None:
    """List all groups with the number of registered members and of topics."""
    with GroupTools(zookeeper, timeout, security) as tools:
        rows = tools.summaries()
    print_notes(tools.notes)
    print_rows(GroupSummary._fields, rows, how)


def _choose(tools: GroupTools, names: tuple[str, ...], everything: bool) -> list[str]:
    if bool(names) == everything:
        raise click.UsageError("name groups, or give --all")
    return list(names) or tools.group_names()


@groups.command()
@click.argument("names", nargs=-1, metavar="[GROUP]...")
@click.option("--all", "everything", is_flag=True, help="Describe every group.")
@click.option("--no-lag", is_flag=True, help="Do not ask the brokers for log ends: no lag.")
@click.option(
    "--kafka-offsets",
    is_flag=True,
    help="Show offsets stored in Kafka where there are any, as the JVM's tool does.",
)
@zookeeper_options
@bootstrap_option
@format_options
def describe(
    names: tuple[str, ...],
    everything: bool,
    no_lag: bool,
    kafka_offsets: bool,
    zookeeper: str,
    timeout: float,
    security: SecurityConfig,
    bootstrap: str | None,
    how: How,
) -> None:
    """Show each partition's committed offset, log end, lag and owner.

    The topics are those that are owned, have offsets or are subscribed to. A member without
    partitions has a row of its own. The host is known from consumer ids of the JVM's form. What
    cannot be found out is "-", with a note on standard error when a broker did not answer.
    """
    with no_collector(), GroupTools(zookeeper, timeout, security, bootstrap) as tools:
        rows = tools.describe(
            _choose(tools, names, everything), lag=not no_lag, kafka_offsets=kafka_offsets
        )
    print_notes(tools.notes)
    print_rows(GroupRow._fields, rows, how)


@groups.command()
@click.argument("names", nargs=-1, metavar="[GROUP]...")
@click.option("--all", "everything", is_flag=True, help="Verify every group.")
@click.option("--no-lag", is_flag=True, help="Leave the brokers alone: no check of log ends.")
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
    help="With --strategy roundrobin: the text that the members hash.",
)
@click.option(
    "--watch",
    "watching",
    is_flag=True,
    help="Verify again and again and print what changes; also look for idle members.",
)
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="With --watch: how often.",
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=15.0,
    show_default=True,
    metavar="SECONDS",
    help="With --watch: how long something must be wrong to be printed.",
)
@click.option("--seconds", type=click.FloatRange(min=0), help="With --watch: end after this time.")
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
    """Check that each partition is owned once, by a live member, by its session.

    Also names registrations that cannot be used, offsets that cannot be right, and znodes that
    other clients wrote. Exit status 1 when something is wrong.

    With --watch it also names members that own nothing though they should. It prints a line when
    something has been wrong for the grace time ("found"), when that is over ("cleared"), when the
    groups cannot be read ("away") and when they can be read again ("back"); with --json each line
    is an object. Ctrl-C and SIGTERM end it, with status 1 if something is wrong at that time.
    """
    assignor = Assignor(strategy, RoundRobinHash(hash_form)) if strategy else None
    if watching:
        if how == "csv":
            raise click.UsageError("--watch prints lines or, with --json, objects: no CSV")
        noted: list[str] = []

        def look() -> list[Finding]:
            with no_collector(), GroupTools(zookeeper, timeout, security, bootstrap) as tools:
                chosen = _choose(tools, names, everything)
                found = tools.verify(chosen, lag=not no_lag, assignor=assignor, idle=True)
            print_notes(note for note in tools.notes if note not in noted)
            noted[:] = tools.notes
            return found

        status = watch(look, grace, every, seconds, how == "json")
        click.get_current_context().exit(status)
    with no_collector(), GroupTools(zookeeper, timeout, security, bootstrap) as tools:
        chosen = _choose(tools, names, everything)
        findings = tools.verify(chosen, lag=not no_lag, assignor=assignor)
    print_notes(tools.notes)
    wrong = sum(finding.wrong for finding in findings)
    if findings or how != "table":
        columns = ("group", "level", "kind", "where", "what")
        rows = [
            (f.group, "error" if f.wrong else "warning", f.kind.value, f.where, f.what)
            for f in findings
        ]
        print_rows(columns, rows, how)
    click.echo(f"groups verified: {len(chosen)}; errors: {wrong}", err=True)
    click.get_current_context().exit(1 if wrong else 0)


@groups.command()
@click.argument("names", nargs=-1, metavar="[GROUP]...")
@click.option("--topic", help="Delete only this topic's owners and offsets.")
@click.option("--all", "everything", is_flag=True, help="With --topic: of every group.")
@click.option("--execute", is_flag=True, help="Delete; without it nothing is changed.")
@zookeeper_options
def delete(
    names: tuple[str, ...],
    topic: str | None,
    everything: bool,
    execute: bool,
    zookeeper: str,
    timeout: float,
    security: SecurityConfig,
) -> None:
    """Delete groups without members, or one topic of them, from ZooKeeper.

    A dry run unless --execute is given. Refused (exit status 1) while a member is registered, and
    stopped when one registers meanwhile. When the topic is the group's only one the whole group
    goes.
    """
    if everything and topic is None:
        raise click.UsageError("--all goes with --topic only")
    refused = 0
    with GroupTools(zookeeper, timeout, security) as tools:
        for group in _choose(tools, names, everything):
            try:
                work = tools.delete if execute else tools.plan_delete
                found = work(group, topic)
            except GroupActiveError as error:
                click.echo(f"error: {error}", err=True)
                refused += 1
                continue
            if not found.paths and not everything:
                raise GroupError(f"group {group} has neither owners nor offsets of topic {topic}")
            if found.paths:
                what = f"group {group}" if found.whole else f"topic {topic} of group {group}"
                verb = "deleted" if execute else "would delete"
                click.echo(printable(f"{verb} {what}: {len(found.paths)} znodes"))
    print_notes(tools.notes)
    if not execute:
        click.echo("dry run: nothing was changed; give --execute to delete", err=True)
    click.get_current_context().exit(GroupActiveError.exit_code if refused else 0)
