"""OneLog: reads one partition for tools, which are not members. One thread."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.fetching.fetch import BrokerFetcher
from zkconsumer.broker.fetching.list_offsets import EARLIEST, LATEST, list_offsets
from zkconsumer.broker.fetching.records import PythonDecoder, Record, scan
from zkconsumer.broker.fetching.transactions import without_aborted
from zkconsumer.broker.types import Got, Want
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.errors import BrokerError, InvalidMessageError

_MOST: Final = 2**31 - 1
"""Largest number of bytes that can be requested."""


class OneLog:
    """The log of one partition. Every method raises BrokerError.

    Args:
        connection: to the partition's leader.
        tp: the partition.
        max_bytes: number of bytes to request; more if a message is larger.
        committed: ``isolation.level=read_committed``.
    """

    def __init__(
        self,
        connection: BrokerConnection,
        tp: TopicPartition,
        max_bytes: int,
        *,
        committed: bool = False,
    ) -> None:
        self._connection = connection
        self._fetcher = BrokerFetcher(connection, committed=committed)
        self._committed = committed
        self._tp = tp
        self._limit = max_bytes

    @property
    def start(self) -> int:
        """The offset of the first message that the broker still has."""
        return self._bound(EARLIEST)

    @property
    def end(self) -> int:
        """The offset of the next message to be written."""
        return self._bound(LATEST)

    @property
    def readable_end(self) -> int:
        """The end of the readable part: ``end``, or with ``committed`` the last stable offset."""
        return self._bound(LATEST, self._committed)

    def _bound(self, which: int, committed: bool = False) -> int:
        found = list_offsets(self._connection, [self._tp], which, committed=committed)
        offset = found[self._tp]
        if isinstance(offset, BrokerError):
            raise offset
        return offset

    def read(
        self, position: int, max_wait_ms: int, lowest: int | None = None
    ) -> tuple[Iterator[Record], int]:
        """Return the records from ``position`` on, and the position after them.

        ``lowest``: also return earlier records of the same batch, from this offset on.

        If no record arrives within ``max_wait_ms``, the returned position is ``position``. The
        iterator raises InvalidMessageError, CodecUnavailableError. The method also raises
        InvalidMessageError if the broker never sends a complete message.
        """
        while True:
            want = Want(*self._tp, position, self._limit)
            (got,) = self._fetcher.fetch([want], max_wait_ms, 1, self._limit)
            if got.error is not None:
                raise got.error
            content = scan(got.data)
            following = position if content.next_offset is None else content.next_offset
            if following > position or content.damaged or not got.data:
                return records_of(got, position if lowest is None else lowest), following
            if self._limit == _MOST:
                raise InvalidMessageError(
                    f"{self._tp}: the broker sends no complete message at offset {position}, "
                    "even if more bytes are requested: skip this offset"
                )
            self._limit = min(2 * self._limit, _MOST)


def records_of(got: Got, position: int) -> Iterator[Record]:
    """Return the records of an answer from an offset on. The iterator raises InvalidMessageError,
    CodecUnavailableError."""
    data = without_aborted(got.data, got.aborted)
    lists = PythonDecoder().decode(data, got.topic, got.partition, position)
    return chain.from_iterable(lists)
