"""Options with the servers' addresses, and sessions with the servers.

Each session begins with a line on standard error about the cluster, because ``--zookeeper`` may be
set in the environment, and several clusters may use one ensemble.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from zkconsumer.admin import reads
from zkconsumer.admin.printable import printable
from zkconsumer.admin.snapshot import list_groups
from zkconsumer.config.tool_security import SecurityConfig
from zkconsumer.console.collector import no_collector
from zkconsumer.console.tables import bootstrap_option, print_notes, zookeeper_options
from zkconsumer.console.times import duration_option
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.errors import ZooKeeperError
from zkconsumer.zk.blocking import BlockingZk, or_refusal
from zkmigrate.commands.output.progress import Progress
from zkmigrate.stores import cluster
from zkmigrate.stores.cluster import Servers
from zkmigrate.stores.pace import Pace
from zkmigrate.text import shown

if TYPE_CHECKING:
    from zkconsumer.zk.blocking import BlockingZk
    from zkmigrate.stores.sessions import Stores

F = TypeVar("F", bound=Callable[..., Any])
_SAID: Final = f"{__name__}.said"
"""Key in the command's context: whether the line about the cluster was printed."""


def server_options(command: F) -> F:
    """Add the options with the servers' addresses and timeouts. The command receives them as
    ``servers``."""

    @wraps(command)
    def bundled(
        zookeeper: str,
        timeout: float,
        coordinator_timeout: float,
        security: SecurityConfig,
        bootstrap: str | None,
        expect_cluster: str | None,
        max_requests_per_second: float | None,
        **others: Any,
    ) -> Any:
        waits = (timeout, coordinator_timeout)
        pace = Pace(max_requests_per_second)
        servers = Servers(zookeeper, *waits, security, bootstrap, expect_cluster, pace)
        return command(servers=servers, **others)

    waiting = duration_option(
        "--coordinator-timeout",
        least=0.1,
        default=60.0,
        help="How long to wait for each group coordinator.",
    )
    expecting = click.option(
        "--expect-cluster",
        metavar="ID",
        help="Fail if the cluster has another id.",
    )
    bounding = click.option(
        "--max-requests-per-second",
        type=click.FloatRange(min=0.1),
        metavar="N",
        help="Maximum requests per second to all servers together.  [default: no limit]",
    )
    return zookeeper_options(bootstrap_option(waiting(expecting(bounding(bundled)))))  # type: ignore[return-value]


def print_not_looked_at(zk: BlockingZk, servers: Servers) -> None:
    """Print the places in ZooKeeper in which zkmigrate does not look for offsets."""
    from zkmigrate.stores.surroundings import not_looked_at

    print_notes(f"not looked at: {line}" for line in not_looked_at(zk, servers))


@contextmanager
def open_stores(servers: Servers, progress: Progress) -> Iterator[Stores]:
    """Connect to ZooKeeper and the brokers, and print which brokers cannot be used."""
    # Not above: loading kafka-python takes longer than an export or a map of configurations.
    from zkmigrate.stores.sessions import Stores

    with Stores(servers, progress.waiting) as stores:
        announce(servers, stores.zk, stores.brokers)
        print_notes(stores.faults)
        yield stores


@contextmanager
def reading(
    servers: Servers, verb: str, bad: str, total: int | None = None
) -> Iterator[tuple[Progress, Stores]]:
    """Connect to the servers for a command that only reads, and show its progress. For the
    arguments, see ``Progress``."""
    with (
        no_collector(),
        Progress(verb, total, bad) as progress,
        open_stores(servers, progress) as stores,
    ):
        yield progress, stores


@contextmanager
def open_zookeeper(servers: Servers) -> Iterator[BlockingZk]:
    """Connect to ZooKeeper alone."""
    with BlockingZk(servers.zookeeper, servers.timeout, servers.security, servers.pace) as zk:
        zk.sync()
        announce(servers, zk)
        yield zk


def announce(servers: Servers, zk: BlockingZk, brokers: tuple[BrokerEndpoint, ...] = ()) -> None:
    """Print the cluster's addresses and id on standard error, once per command. With ``--json`` the
    line is an object. Raises MigrationError if it is not the cluster that the operator expects."""
    cluster_id = zk.run(reads.cluster_id())
    cluster.check_expected(servers.expect, cluster_id, servers.zookeeper)
    context = click.get_current_context()
    if context.meta.get(_SAID):
        return
    context.meta[_SAID] = True
    groups = zk.run(or_refusal(list_groups()))
    count = None if isinstance(groups, ZooKeeperError) else len(groups)
    if context.params.get("how") == "json":
        line = {
            "cluster": cluster_id,
            "brokers": {str(one.broker_id): f"{one.host}:{one.port}" for one in brokers},
            "zookeeper": servers.zookeeper,
            "groups": count,
        }
        click.echo(json.dumps(line), file=sys.stderr)
        return
    listed = shown(f"{one.broker_id} at {one.host}:{one.port}" for one in brokers)
    click.echo(
        printable(
            f"cluster {cluster_id or 'without an id'}"
            + (f" (brokers {listed})" if brokers else "")
            + f", ZooKeeper {servers.zookeeper}, {'?' if count is None else count} groups"
        ),
        file=sys.stderr,
    )
