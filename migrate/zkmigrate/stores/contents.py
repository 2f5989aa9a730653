"""Reads records around offsets, of any cluster. One thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Final, Self, TypeVar

from zkconsumer.broker.cluster_reader import ClusterReader
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.fetching.list_offsets import NONE, list_offsets
from zkconsumer.broker.fetching.one_log import OneLog
from zkconsumer.broker.fetching.records import Record, TimestampType
from zkconsumer.broker.groups.group_coordinators import GroupCoordinators
from zkconsumer.broker.metadata import ask_metadata, fetch_metadata
from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.core.zookeeper.cluster_view import TopicView
from zkconsumer.errors import (
    BrokerError,
    BrokerUnavailableError,
    LeaderUnavailableError,
    OffsetOutOfRangeError,
    UnsupportedBrokerError,
)
from zkmigrate.errors import MigrationError
from zkmigrate.plan.translation import NO_TIME, Excerpt, Seen
from zkmigrate.stores.cluster import Servers
from zkmigrate.stores.logs import CLIENT_ID
from zkmigrate.stores.pace import Pace

_BYTES: Final = 64 * 1024
_MOST_BYTES: Final = 32 * 1024 * 1024
"""A larger part of a log is not read."""
_TRIES: Final = 25
_PAUSE: Final = 0.2
_FRESH: Final = 5.0
"""For so many seconds, a log's beginning and end are remembered."""
T = TypeVar("T")


class Contents:
    """The records of a cluster's logs, as consumers see them with ``read_committed``.

    Every method raises BrokerError.

    Args:
        brokers: called for the brokers registered now.
        timeout: seconds for connecting and for each answer.
    """

    def __init__(
        self,
        brokers: Callable[[], Iterable[BrokerEndpoint]],
        timeout: float,
        security: KafkaSecurity | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._brokers = brokers
        self._timeout = timeout
        self._security = security
        self._pace = pace
        self._connections: dict[BrokerEndpoint, BrokerConnection] = {}
        self._leaders: dict[TopicPartition, BrokerConnection] = {}
        self._known: dict[TopicPartition, tuple[float, OneLog, int, int]] = {}

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()

    def around(self, tp: TopicPartition, middle: int, span: int) -> Excerpt:
        """Return the records of ``span`` offsets before and after one, or after and before the
        nearest one that the log has."""
        return self._at_leader(tp, lambda connection: self._read(connection, tp, middle, span))

    def end(self, tp: TopicPartition) -> int:
        """Return the end of the log, also beyond open transactions."""
        return self._at_leader(tp, lambda connection: OneLog(connection, tp, _BYTES).end)

    def at(self, tp: TopicPartition, timestamp: int) -> int | None:
        """Return the offset of the first record of that time or later; ``None`` if there is
        none."""

        def ask(connection: BrokerConnection) -> int | None:
            found = list_offsets(connection, [tp], timestamp)[tp]
            if isinstance(found, BrokerError):
                raise found
            return None if found == NONE else found

        return self._at_leader(tp, ask)

    def topics(self) -> list[str]:
        """Return the names of all topics."""
        failed: BrokerError | None = None
        for broker in self._brokers():
            try:
                return [one.name for one in ask_metadata(self._connection(broker), None).topics]
            except BrokerError as error:
                failed = error
        raise failed or LeaderUnavailableError("no broker is registered")

    def each(self, tp: TopicPartition, take: Callable[[bytes, bytes], object]) -> None:
        """Call a function with key and value of each record that has both, in order; from the
        beginning again if the leader changes."""

        def read(connection: BrokerConnection) -> None:
            log = OneLog(connection, tp, _BYTES * 16)
            for record in _records(log, tp, log.start, log.end):
                if record[3] is not None and record[4] is not None:
                    take(record[3], record[4])

        self._at_leader(tp, read)

    def _read(
        self, connection: BrokerConnection, tp: TopicPartition, middle: int, span: int
    ) -> Excerpt:
        log, earliest, latest = self._bounds(connection, tp)
        middle = min(max(earliest, middle), latest)
        begin, end = max(earliest, middle - span), min(latest, middle + span)
        records: list[Seen] = []
        size = 0
        for record in _records(log, tp, begin, end):
            if size > _MOST_BYTES:
                end = record[2]
                break
            records.append(_seen(record))
            size += len(record[3] or b"") + len(record[4] or b"")
        return Excerpt(records, begin, end, earliest, latest)

    def _bounds(self, connection: BrokerConnection, tp: TopicPartition) -> tuple[OneLog, int, int]:
        """Return a partition's log, and where it begins and ends, as of some seconds ago."""
        known = self._known.get(tp)
        if known is None or time.monotonic() - known[0] > _FRESH:
            log = OneLog(connection, tp, _BYTES, committed=True)
            try:
                latest = log.readable_end
            except UnsupportedBrokerError:  # without transactions
                log = OneLog(connection, tp, _BYTES)
                latest = log.readable_end
            known = self._known[tp] = time.monotonic(), log, log.start, latest
        return known[1:]

    def _at_leader(self, tp: TopicPartition, ask: Callable[[BrokerConnection], T]) -> T:
        deadline = time.monotonic() + self._timeout
        for left in reversed(range(_TRIES)):
            try:
                return ask(self._leader(tp))
            except (LeaderUnavailableError, BrokerUnavailableError, OffsetOutOfRangeError) as error:
                self._leaders.clear()
                self._known.clear()  # also if retention has deleted more
                silent = isinstance(error, BrokerUnavailableError)
                if not left or (silent and time.monotonic() >= deadline):
                    raise
                time.sleep(_PAUSE)
        raise AssertionError

    def _leader(self, tp: TopicPartition) -> BrokerConnection:
        if tp not in self._leaders:
            brokers = {one.broker_id: one for one in self._brokers()}
            failed: BrokerError | None = None
            for broker in brokers.values():
                try:
                    leaders = fetch_metadata(self._connection(broker), {tp.topic}).leaders
                except BrokerError as error:
                    failed = error
                    continue
                self._leaders |= {
                    one: self._connection(brokers[leader])
                    for one, leader in leaders.items()
                    if leader in brokers
                }
                break
            else:
                raise failed or LeaderUnavailableError("no broker is registered")
        if tp not in self._leaders:
            raise LeaderUnavailableError(f"{tp} has no leader")
        return self._leaders[tp]

    def _connection(self, endpoint: BrokerEndpoint) -> BrokerConnection:
        if endpoint not in self._connections:
            self._connections[endpoint] = BrokerConnection(
                endpoint, CLIENT_ID, self._timeout, 0, self._security, self._pace
            )
        return self._connections[endpoint]


class OtherCluster:
    """A cluster that is found through its brokers alone. Use as a context manager.

    Raises BrokerUnavailableError when no broker answers, ConfigError, and MigrationError when it is
    not the ``expected`` cluster, if both ids are known.
    """

    def __init__(self, servers: Servers, expected: str | None = None) -> None:
        assert servers.bootstrap is not None
        security = KafkaSecurity(servers.security)
        self._reader = ClusterReader(
            servers.bootstrap, CLIENT_ID, servers.timeout, security, servers.pace
        )
        try:
            self.view = self._reader.read()
        finally:
            self._reader.disconnect()
        if None not in (expected, self.view.cluster_id) and expected != self.view.cluster_id:
            raise MigrationError(
                f"{servers.bootstrap} is the cluster {self.view.cluster_id}, and the plan is for "
                f"{expected}: make a new plan"
            )
        self.kafka = GroupCoordinators(
            CLIENT_ID,
            lambda: self.view.brokers,
            min(servers.timeout, servers.coordinator_timeout),
            servers.coordinator_timeout,
            security=security,
            before_request=servers.pace,
        )
        self.contents = Contents(lambda: self.view.brokers, servers.timeout, security, servers.pace)

    def __enter__(self) -> Self:
        return self

    def partitions(self) -> Iterator[TopicPartition]:
        """Yield all partitions, as they were at the beginning."""
        for topic, view in self.view.topics.items():
            yield from (TopicPartition(topic, number) for number in view.partitions)

    def topics(self, names: Collection[str]) -> Mapping[str, TopicView]:
        """Return the existing ones of these topics as they are now. Raises
        BrokerUnavailableError."""
        return self._reader.read(names).topics

    def __exit__(self, *_error: object) -> None:
        self._reader.close()
        self.kafka.close()
        self.contents.close()


def _records(log: OneLog, tp: TopicPartition, position: int, end: int) -> Iterator[Record]:
    """Yield the records from one offset to another."""
    empty = 0
    while position < end:
        got, following = log.read(position, 0)
        yield from (record for record in got if record[2] < end)
        empty = 0 if following > position else empty + 1
        position = following
        if empty == _TRIES:
            raise BrokerError(f"{tp}: the broker sends nothing at offset {position}")
        if empty:
            time.sleep(_PAUSE)


def _seen(record: Record) -> Seen:
    _, _, offset, key, value, timestamp, kind, headers = record
    digest = blake2b(digest_size=16)
    for part in (key, value, *(part for name, data in headers for part in (name.encode(), data))):
        digest.update(b"-" if part is None else b"%d:%b" % (len(part), part))
    stamped = kind is not TimestampType.LOG_APPEND_TIME
    return Seen(offset, timestamp if stamped else NO_TIME, digest.digest())
