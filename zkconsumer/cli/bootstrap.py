"""``--bootstrap-server``, for commands that otherwise find brokers in ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

WHAT: Final = (
    "Brokers, instead of those that ZooKeeper lists; needed where it lists none that can be used, "
    "as after the change to KRaft."
)


def bootstrap_option(command: F) -> F:
    """Add ``--bootstrap-server``, given to the command as ``bootstrap``."""
    return click.option("--bootstrap-server", "bootstrap", metavar="HOST:PORT[,..]", help=WHAT)(
        command
    )
