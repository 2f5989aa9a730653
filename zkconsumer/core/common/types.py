"""Value types for all layers. No behaviour beyond parsing and ordering; no IO.

The order is that of Java: thread ids compare as whole strings (``String.compareTo``), so ``g_c-10``
sorts before ``g_c-2``; partitions compare as integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple


class TopicPartition(NamedTuple):
    """A topic's name and the number of one of its partitions."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class ConsumerThreadId(NamedTuple):
    """One stream of one member. The text in an owner znode is ``<consumer>-<stream>``."""

    consumer: str
    stream: int

    def __str__(self) -> str:
        return f"{self.consumer}-{self.stream}"

    @classmethod
    def parse(cls, text: str) -> ConsumerThreadId:
        """Split the text at the last ``-``. Raises ValueError if it does not have this form."""
        consumer, dash, stream = text.rpartition("-")
        if not dash or not consumer or not stream.isascii() or not stream.isdigit():
            raise ValueError(f"not a consumer thread id: {text!r}")
        return cls(consumer, int(stream))


class Pattern(Enum):
    """How a registration subscribes: by names of topics, by a whitelist or by a blacklist."""

    STATIC = "static"
    WHITE_LIST = "white_list"
    BLACK_LIST = "black_list"


@dataclass(frozen=True, slots=True)
class Subscription:
    """One member's subscription. For ``STATIC``, ``topics`` maps topics to numbers of streams. For
    a filter it has exactly one entry, the cleaned regex and the number of streams."""

    pattern: Pattern
    topics: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    """The address of a broker: ``host`` and ``port`` of the listener to use. ``others``: its other
    listeners with the same protocol, to try if connecting to this one fails."""

    broker_id: int
    host: str
    port: int
    others: tuple[tuple[str, int], ...] = ()


INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})
"""Topics that filters leave out while ``exclude.internal.topics`` is true."""


class UnusableFilterError(Exception):
    """A filter is unusable. The text gives the reason."""
