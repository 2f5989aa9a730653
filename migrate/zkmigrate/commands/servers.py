"""Where the servers are, and how the commands open sessions with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from zkconsumer.cli.bootstrap import bootstrap_option
from zkconsumer.cli.tables import print_notes, zookeeper_options
from zkconsumer.cli.times import duration_option
from zkconsumer.config.security import SecurityConfig
from zkmigrate.commands.progress import Progress

if TYPE_CHECKING:
    from zkconsumer.zk.blocking import BlockingZk
    from zkmigrate.stores.sessions import Stores

F = TypeVar("F", bound=Callable[..., Any])


class Servers(NamedTuple):
    """Where the servers are, and for how many seconds to wait for them."""

    zookeeper: str
    timeout: float
    coordinator_timeout: float
    security: SecurityConfig
    bootstrap: str | None = None


def server_options(command: F) -> F:
    """Add the options that find and wait for servers, given to the command as ``servers``."""

    @wraps(command)
    def bundled(
        zookeeper: str,
        timeout: float,
        coordinator_timeout: float,
        security: SecurityConfig,
        bootstrap: str | None,
        **others: Any,
    ) -> Any:
        servers = Servers(zookeeper, timeout, coordinator_timeout, security, bootstrap)
        return command(servers=servers, **others)

    waiting = duration_option(
        "--coordinator-timeout",
        least=0.1,
        default=60.0,
        help="How long to wait for a group coordinator that does not answer, once for all of "
        "its groups.",
    )
    return zookeeper_options(bootstrap_option(waiting(bundled)))  # type: ignore[return-value]


def print_not_looked_at(zk: BlockingZk, servers: Servers) -> None:
    """Print the places in ZooKeeper where zkmigrate does not look for offsets."""
    from zkmigrate.stores.surroundings import not_looked_at

    lines = not_looked_at(zk, servers.zookeeper, servers.timeout, servers.security)
    print_notes(f"not looked at: {line}" for line in lines)


@contextmanager
def open_stores(servers: Servers, progress: Progress) -> Iterator[Stores]:
    """Open sessions with ZooKeeper and the brokers; print which brokers cannot be used."""
    # Not above: loading kafka-python takes longer than an export or a map of configurations.
    from zkmigrate.stores.sessions import Stores

    where, timeout, coordinator_timeout, security, bootstrap = servers
    with Stores(
        where, timeout, coordinator_timeout, security, progress.waiting, bootstrap
    ) as stores:
        print_notes(stores.faults)
        yield stores
