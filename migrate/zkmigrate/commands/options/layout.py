"""The options that read offsets in the layout of another client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import click

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.zk.blocking import BlockingZk
from zkmigrate.commands.options.selection import Selection
from zkmigrate.errors import MigrationError
from zkmigrate.model import ZkOffset
from zkmigrate.plan.layout import LAYOUTS, Means, read_offsets
from zkmigrate.stores.tree import read_below

F = TypeVar("F", bound=Callable[..., Any])


class FromLayout(NamedTuple):
    """The offsets of one group, in another client's layout. ``znodes``: what was read."""

    name: str
    path: str
    topic: str
    group: str
    znodes: Mapping[TopicPartition, ZkOffset] = MappingProxyType({})

    def covers(self, path: str) -> bool:
        """Whether a znode is read as one of the layout."""
        return path == self.path or path.startswith(f"{self.path}/")

    def read_next(self, zk: BlockingZk) -> dict[TopicPartition, int]:
        """Return the next offset of each partition. Raises as ``read``."""
        last = LAYOUTS[self.name].means is Means.LAST
        return {tp: number + last for tp, number in self.read(zk).numbers.items()}

    @property
    def numbers(self) -> dict[TopicPartition, int]:
        """The numbers that were read."""
        return {tp: one.offset for tp, one in self.znodes.items() if one.offset is not None}

    def read(self, zk: BlockingZk) -> FromLayout:
        """Return this with the numbers that are stored, at least one. Raises MigrationError,
        ZooKeeperError and ZnodeFormatError."""
        try:
            found = read_offsets(self.name, read_below(zk, self.path), self.topic)
        except ValueError as error:
            raise MigrationError(str(error)) from None
        if not found:
            raise MigrationError(f"{self.path}: has no offset in the layout {self.name}")
        return self._replace(znodes=found)


def layout_option(command: F) -> F:
    """Add ``--layout``, given to the command as ``layout``."""

    @wraps(command)
    def bundled(layout: str | None, which: Selection, **others: Any) -> Any:
        chosen = None if layout is None else _parse(layout, which)
        return command(layout=chosen, which=which, **others)

    return click.option(  # type: ignore[return-value]
        "--layout",
        metavar="LAYOUT:ZNODE[:TOPIC]",
        help="Read one --group's offsets as another client stores them, such as "
        "storm:/kafka-storm/id.",
    )(bundled)


def _parse(text: str, which: Selection) -> FromLayout:
    name, _, path = text.partition(":")
    topic = ""
    if name in ("spark-list", "brooklin"):  # whose znodes may not name it
        path, _, topic = path.partition(":")
    if name not in LAYOUTS or not path.startswith("/"):
        known = ", ".join(LAYOUTS)
        raise click.UsageError(f"--layout {text}: write LAYOUT:ZNODE; layouts are {known}")
    if which.only is None:
        raise click.UsageError("--layout requires one --group, the name of the group in Kafka")
    return FromLayout(name, path.rstrip("/") or "/", topic, which.only)
