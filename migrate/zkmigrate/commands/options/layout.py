"""Options for reading offsets in the layout of another client."""

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
from zkmigrate.plan.layout import LAYOUTS, Means, Place
from zkmigrate.stores.tree import read_place

F = TypeVar("F", bound=Callable[..., Any])


class FromLayout(NamedTuple):
    """Offsets that another client stored for one group. ``znodes``: the offset znodes that were
    read."""

    place: Place
    group: str
    znodes: Mapping[TopicPartition, ZkOffset] = MappingProxyType({})

    def read_next(self, zk: BlockingZk) -> dict[TopicPartition, int]:
        """Return the next offset to read in each partition. Raises the errors of ``read``."""
        last = LAYOUTS[self.place.name].means is Means.LAST
        return {tp: number + last for tp, number in self.read(zk).numbers.items()}

    @property
    def numbers(self) -> dict[TopicPartition, int]:
        """The numbers in the znodes, as the client stored them."""
        return {tp: one.offset for tp, one in self.znodes.items() if one.offset is not None}

    def read(self, zk: BlockingZk) -> FromLayout:
        """Return a copy with the client's offset znodes. Raises MigrationError if there are none,
        ZooKeeperError and ZnodeFormatError."""
        try:
            return self._replace(znodes=read_place(zk, self.place))
        except ValueError as error:
            raise MigrationError(str(error)) from None


def layout_option(command: F) -> F:
    """Add ``--layout``, which the command receives as ``layout``."""

    @wraps(command)
    def bundled(layout: str | None, which: Selection, **others: Any) -> Any:
        chosen = None if layout is None else _parse(layout, which)
        return command(layout=chosen, which=which, **others)

    return click.option(  # type: ignore[return-value]
        "--layout",
        metavar="LAYOUT:ZNODE[:TOPIC]",
        help="Read the group's offsets in another client's layout, such as storm:/kafka-storm/id.",
    )(bundled)


def _parse(text: str, which: Selection) -> FromLayout:
    try:
        place = Place.parse(text)
    except ValueError as error:
        raise click.UsageError(f"--layout {text}: {error}") from None
    if which.only is None:
        raise click.UsageError("--layout requires one --group, the name of the group in Kafka")
    return FromLayout(place, which.only)
