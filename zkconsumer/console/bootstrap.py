"""``--zookeeper`` and ``--bootstrap-server``: chooses the one that a command uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from zkconsumer.console.exclusive import was_typed
from zkconsumer.console.tables import zookeeper_option

F = TypeVar("F", bound=Callable[..., Any])

WHAT: Final = (
    "Brokers to use instead of those that ZooKeeper lists. Needed if it lists no usable broker, "
    "as after the change to KRaft."
)
EITHER: Final = (
    "Without --zookeeper: the groups on these brokers' coordinators. With it: brokers to use "
    "instead of those that ZooKeeper lists."
)


def bootstrap_option(command: F) -> F:
    """Add ``--bootstrap-server``, given to the command as ``bootstrap``."""
    return _option(WHAT)(command)


def either_option(command: F) -> F:
    """Add ``--zookeeper`` and ``--bootstrap-server`` to a command for groups of either kind;
    `chosen` returns which one to use."""
    without = " Without it, the groups are those on the brokers of --bootstrap-server."
    return zookeeper_option(required=False, more=without)(_option(EITHER)(command))


def chosen(zookeeper: str | None, bootstrap: str | None) -> tuple[str | None, str | None]:
    """Return the two addresses to use.

    A server on the command line takes precedence: the other address then counts only if it is on
    the command line too.
    """
    if was_typed("zookeeper") or was_typed("bootstrap"):
        zookeeper = zookeeper if was_typed("zookeeper") else None
        bootstrap = bootstrap if was_typed("bootstrap") else None
    return zookeeper, bootstrap


def _option(what: str) -> Callable[[F], F]:
    return click.option(
        "--bootstrap-server",
        "bootstrap",
        metavar="HOST:PORT[,..]",
        envvar="ZKCONSUMER_BOOTSTRAP_SERVER",
        show_envvar=True,
        help=what,
    )
