"""``zkconsumer topics``: shows topics, leaders and replicas from ZooKeeper or from the brokers."""

from __future__ import annotations

import click

from zkconsumer.admin.tools import GroupTools
from zkconsumer.admin.topics import PartitionRow, TopicRow
from zkconsumer.config.tool_security import SecurityConfig
from zkconsumer.console.tables import (
    How,
    bootstrap_option,
    format_options,
    print_notes,
    print_rows,
    zookeeper_options,
)


@click.group()
def topics() -> None:
    """List and describe topics. Brokers are asked only with --bootstrap-server."""


@topics.command("list")
@zookeeper_options
@bootstrap_option
@format_options
def list_(
    zookeeper: str, timeout: float, security: SecurityConfig, bootstrap: str | None, how: How
) -> None:
    """List topics with their leaderless and under-replicated partitions."""
    with GroupTools(zookeeper, timeout, security, bootstrap) as tools:
        rows = tools.list_topics()
    print_notes(tools.notes)
    print_rows(TopicRow._fields, rows, how)


@topics.command()
@click.argument("names", nargs=-1, metavar="[TOPIC]...")
@zookeeper_options
@bootstrap_option
@format_options
def describe(
    names: tuple[str, ...],
    zookeeper: str,
    timeout: float,
    security: SecurityConfig,
    bootstrap: str | None,
    how: How,
) -> None:
    """Show each partition's leader, leader epoch and replicas.

    The state is ok, under-replicated (a replica is not in sync) or leaderless (no leader, or one
    that is not registered).
    """
    with GroupTools(zookeeper, timeout, security, bootstrap) as tools:
        rows = tools.describe_topics(names or None)
    print_notes(tools.notes)
    print_rows(PartitionRow._fields, rows, how)
