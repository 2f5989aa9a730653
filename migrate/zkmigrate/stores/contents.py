"""Reads records around offsets, of any cluster. One thread."""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from itertools import takewhile
from typing import Final, NamedTuple, Self, TypeVar

from zkconsumer.broker.cluster_reader import ClusterReader
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.fetching.fetch import BrokerFetcher
from zkconsumer.broker.fetching.list_offsets import EARLIEST, LATEST, NONE, list_offsets
from zkconsumer.broker.fetching.one_log import OneLog, records_of
from zkconsumer.broker.fetching.records import Record, TimestampType, scan
from zkconsumer.broker.groups.group_coordinators import GroupCoordinators
from zkconsumer.broker.metadata import ask_metadata
from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.broker.types import Want
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
from zkmigrate.plan.clusters.translation import NO_TIME, Excerpt, Seen
from zkmigrate.stores.cluster import Servers
from zkmigrate.stores.connections import CLIENT_ID, Connections
from zkmigrate.stores.pace import Pace

_BYTES: Final = 64 * 1024
_AHEAD_BYTES: Final = 32 * 1024
"""Bytes requested from each of many partitions at once: two batches of the default size."""
_FEW_BYTES: Final = 4 * 1024
"""Bytes requested to read the time of one record. Brokers return at least one batch."""
_MOST_BYTES: Final = 32 * 1024 * 1024
"""Largest number of bytes of a log that is read."""
_TRIES: Final = 25
_PAUSE: Final = 0.2
_FRESH: Final = 5.0
"""Seconds for which answers are cached."""
_REMEMBERED: Final = 4096
"""Number of cached answers. Older ones are dropped."""
T = TypeVar("T")


class _Bounds(NamedTuple):
    """Where a log begins and ends. ``committed``: whether its broker knows transactions."""

    committed: bool
    earliest: int
    latest: int

    def part(self, middle: int, span: int) -> tuple[int, int]:
        """Return the bounds of the part around an offset, or around the nearest one."""
        middle = min(max(self.earliest, middle), self.latest)
        return max(self.earliest, middle - span), min(self.latest, middle + span)


class Times(NamedTuple):
    """The offsets and timestamps of all records in one part of a log."""

    begin: int
    end: int
    offsets: array[int]
    times: array[int]


class _Recent:
    """The bounds of logs, from answers of the last seconds."""

    def __init__(self) -> None:
        self._bounds: dict[TopicPartition, tuple[float, _Bounds]] = {}

    def put(self, tp: TopicPartition, bounds: _Bounds) -> None:
        """Cache an answer."""
        now = time.monotonic()
        if len(self._bounds) >= _REMEMBERED:
            self._bounds = {tp: one for tp, one in self._bounds.items() if now - one[0] <= _FRESH}
        self._bounds[tp] = now, bounds

    def get(self, tp: TopicPartition) -> _Bounds | None:
        """Return an answer, if there is one."""
        found = self._bounds.get(tp)
        return None if found is None or time.monotonic() - found[0] > _FRESH else found[1]

    def clear(self) -> None:
        """Empty the cache."""
        self._bounds.clear()


class Contents:
    """Reads the records of a cluster's logs, as consumers with ``read_committed`` see them.

    Every method may raise BrokerError.

    Args:
        brokers: returns the registered brokers.
        timeout: seconds for connecting and for each answer.
    """

    def __init__(
        self,
        brokers: Callable[[], Iterable[BrokerEndpoint]],
        timeout: float,
        security: KafkaSecurity | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._timeout = timeout
        self._connections = Connections(brokers, timeout, security, pace)
        self.close = self._connections.close
        self._leaders: dict[TopicPartition, BrokerConnection] = {}
        self._known = _Recent()
        self._times: tuple[TopicPartition | None, list[Times]] = None, []

    def forget(self) -> None:
        """Empty all caches."""
        self._known.clear()
        self._times = None, []

    def around(self, tp: TopicPartition, middle: int, span: int) -> Excerpt:
        """Return the records within ``span`` offsets of ``middle``, or of the nearest offset in the
        log."""
        return self._at_leader(tp, lambda connection: self._read(connection, tp, middle, span))

    def read_ahead(
        self, places: Mapping[TopicPartition, int], span: int
    ) -> Mapping[TopicPartition, Excerpt]:
        """Return what ``around`` would return for each place, with few requests.

        Raises no error: parts that cannot be read, or do not fit into one answer, are left out.
        """
        found: dict[TopicPartition, Excerpt] = {}
        for connection, tps in self._by_leader(places).items():
            with suppress(BrokerError):
                self._learn(connection, tps)
                found |= self._read_parts(connection, {tp: places[tp] for tp in tps}, span)
        return found

    def look_ahead(
        self, times: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int | None]:
        """Return what ``at`` would return for each time, with few requests. See ``read_ahead``."""
        found: dict[TopicPartition, int | None] = {}
        for connection, tps in self._by_leader(times).items():
            with suppress(BrokerError):
                offsets = list_offsets(connection, tps, {tp: times[tp] for tp in tps})
                found |= {tp: _first(one) for tp, one in offsets.items() if isinstance(one, int)}
        return found

    def times_at(self, tp: TopicPartition, offset: int) -> tuple[Times, int] | None:
        """Return the part of a log that has the first record at or after an offset, and that
        record's time. ``None`` if there is no such record.

        The records of the last partition stay cached, because many calls in a row are for one
        partition.
        """
        if self._times[0] != tp:
            self._times = tp, []
        while True:
            known = (one for one in self._times[1] if one.begin <= offset < one.end)
            part = next(known, None)
            if part is None:
                part = self._at_leader(tp, partial(self._read_times, tp, offset))
                if part is None:
                    return None
                self._times[1].append(part)
            at = bisect_left(part.offsets, offset)
            if at < len(part.offsets):
                return part, part.times[at]
            offset = part.end

    def end(self, tp: TopicPartition) -> int:
        """Return the end of the log, including records of open transactions."""
        return self._at_leader(tp, lambda connection: OneLog(connection, tp, _BYTES).end)

    def at(self, tp: TopicPartition, timestamp: int) -> int | None:
        """Return the offset of the first record at or after a time; ``None`` if there is none."""

        def ask(connection: BrokerConnection) -> int | None:
            found = list_offsets(connection, [tp], timestamp)[tp]
            if isinstance(found, BrokerError):
                raise found
            return _first(found)

        return self._at_leader(tp, ask)

    def topics(self) -> list[str]:
        """Return the names of all topics."""
        answer = self._connections.ask_any(lambda connection: ask_metadata(connection, None))
        return [one.name for one in answer.topics]

    def each(self, tp: TopicPartition, take: Callable[[bytes, bytes], object]) -> None:
        """Call ``take`` with the key and value of each record that has both, in order. If the
        leader changes, starts again from the beginning."""

        def read(connection: BrokerConnection) -> None:
            log = OneLog(connection, tp, _BYTES * 16)
            for record in _records(log, tp, log.start, log.end):
                if record[3] is not None and record[4] is not None:
                    take(record[3], record[4])

        self._at_leader(tp, read)

    def _read(
        self, connection: BrokerConnection, tp: TopicPartition, middle: int, span: int
    ) -> Excerpt:
        bounds = self._bounds(connection, tp)
        log = OneLog(connection, tp, _BYTES, committed=bounds.committed)
        begin, end = bounds.part(middle, span)
        records: list[Seen] = []
        size = 0
        for record in _records(log, tp, begin, end):
            if size > _MOST_BYTES:
                end = record[2]
                break
            records.append(_seen(record))
            size += len(record[3] or b"") + len(record[4] or b"")
        return Excerpt(records, begin, end, bounds.earliest, bounds.latest)

    def _read_parts(
        self, connection: BrokerConnection, places: Mapping[TopicPartition, int], span: int
    ) -> Mapping[TopicPartition, Excerpt]:
        """Return the parts that are complete in one answer."""
        logs = {tp: bounds for tp in places if (bounds := self._known.get(tp)) is not None}
        parts = {tp: bounds.part(places[tp], span) for tp, bounds in logs.items()}
        found = {
            tp: Excerpt([], begin, end, logs[tp].earliest, logs[tp].latest)
            for tp, (begin, end) in parts.items()
            if begin == end
        }
        wanted = [
            Want(*tp, begin, _AHEAD_BYTES) for tp, (begin, _) in parts.items() if tp not in found
        ]
        if not wanted:
            return found
        committed = all(one.committed for one in logs.values())
        fetcher = BrokerFetcher(connection, committed=committed)
        for got in fetcher.fetch(wanted, 0, 1, _AHEAD_BYTES * len(wanted)):
            tp = TopicPartition(got.topic, got.partition)
            begin, end = parts[tp]
            if got.error is None and (scan(got.data).next_offset or 0) >= end:
                with suppress(BrokerError):
                    records = [*map(_seen, _below(end, records_of(got, begin)))]
                    found[tp] = Excerpt(records, begin, end, logs[tp].earliest, logs[tp].latest)
        return found

    def _read_times(
        self, tp: TopicPartition, offset: int, connection: BrokerConnection
    ) -> Times | None:
        """Return the times of the batch that has this offset, and of some after it."""
        bounds = self._bounds(connection, tp)
        position = max(bounds.earliest, offset)
        if position >= bounds.latest:
            return None
        log = OneLog(connection, tp, _FEW_BYTES, committed=bounds.committed)
        records, following = next(_answers(log, tp, position, bounds.latest, 0))
        pairs = [(one[2], _time(one)) for one in records]
        columns = [array("q", column) for column in zip(*pairs, strict=True)]
        begin = min(offset, pairs[0][0]) if pairs else offset
        return Times(begin, following, *(columns or [array("q")] * 2))

    def _bounds(self, connection: BrokerConnection, tp: TopicPartition) -> _Bounds:
        failed = self._learn(connection, [tp]).get(tp)
        known = self._known.get(tp)
        if known is None:
            raise failed or LeaderUnavailableError(f"{tp}: the broker did not answer")
        return known

    def _learn(
        self, connection: BrokerConnection, tps: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, BrokerError]:
        """Read where logs begin and end, unless that is known, and return what failed."""
        tps = [tp for tp in tps if self._known.get(tp) is None]
        if not tps:
            return {}
        try:
            ends = list_offsets(connection, tps, LATEST, committed=True)
            committed = True
        except UnsupportedBrokerError:  # without transactions
            ends = list_offsets(connection, tps, LATEST)
            committed = False
        begins = list_offsets(connection, tps, EARLIEST)
        failed: dict[TopicPartition, BrokerError] = {}
        for tp in tps:
            begin, end = begins[tp], ends[tp]
            if isinstance(begin, BrokerError):
                failed[tp] = begin
            elif isinstance(end, BrokerError):
                failed[tp] = end
            else:
                self._known.put(tp, _Bounds(committed, begin, end))
        return failed

    def _by_leader(
        self, tps: Iterable[TopicPartition]
    ) -> Mapping[BrokerConnection, list[TopicPartition]]:
        """Return partitions by their leader, without those that have none."""
        found: dict[BrokerConnection, list[TopicPartition]] = {}
        for tp in tps:
            with suppress(BrokerError):
                found.setdefault(self._leader(tp), []).append(tp)
        return found

    def _at_leader(self, tp: TopicPartition, ask: Callable[[BrokerConnection], T]) -> T:
        deadline = time.monotonic() + self._timeout
        for left in reversed(range(_TRIES)):
            try:
                return ask(self._leader(tp))
            except (LeaderUnavailableError, BrokerUnavailableError, OffsetOutOfRangeError) as error:
                self._leaders.clear()
                self.forget()  # also if retention has deleted more
                silent = isinstance(error, BrokerUnavailableError)
                if not left or (silent and time.monotonic() >= deadline):
                    raise
                time.sleep(_PAUSE)
        raise AssertionError

    def _leader(self, tp: TopicPartition) -> BrokerConnection:
        if tp not in self._leaders:
            self._leaders |= self._connections.leaders({tp.topic})
        if tp not in self._leaders:
            raise LeaderUnavailableError(f"{tp} has no leader")
        return self._leaders[tp]


class OtherCluster:
    """Another Kafka cluster, accessed through its brokers alone. Use it as a context manager.

    Raises BrokerUnavailableError if no broker answers, ConfigError, and MigrationError if the
    cluster's id is not ``expected``. The id is only compared if both are known.
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
                f"{servers.bootstrap} is in the cluster {self.view.cluster_id}, but the plan is "
                f"for {expected}: make a new plan"
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
        """Yield all partitions of the cluster at the time when this object was created."""
        for topic, view in self.view.topics.items():
            yield from (TopicPartition(topic, number) for number in view.partitions)

    def topics(self, names: Collection[str]) -> Mapping[str, TopicView]:
        """Return the topics among ``names`` that exist now. Also updates the list of brokers.
        Raises BrokerUnavailableError."""
        view = self._reader.read(names)
        self.view = replace(self.view, brokers=view.brokers)
        return view.topics

    def __exit__(self, *_error: object) -> None:
        self._reader.close()
        self.kafka.close()
        self.contents.close()


def _records(log: OneLog, tp: TopicPartition, position: int, end: int) -> Iterator[Record]:
    """Yield the records from one offset to another."""
    for records, _ in _answers(log, tp, position, end):
        yield from _below(end, records)


def _below(end: int, records: Iterable[Record]) -> Iterator[Record]:
    return takewhile(lambda record: record[2] < end, records)


def _answers(
    log: OneLog, tp: TopicPartition, position: int, end: int, lowest: int | None = None
) -> Iterator[tuple[Iterator[Record], int]]:
    """Yield records from one offset to another, or beyond, and the offset after them. ``lowest``:
    see ``OneLog.read``."""
    empty = 0
    while position < end:
        got, following = log.read(position, 0, lowest)
        if following > position:
            yield got, following
        empty = 0 if following > position else empty + 1
        position = following
        if empty == _TRIES:
            raise BrokerError(f"{tp}: the broker returned no records at offset {position}")
        if empty:
            time.sleep(_PAUSE)


def _first(found: int) -> int | None:
    return None if found == NONE else found


def _time(record: Record) -> int:
    return record[5] if record[6] is not TimestampType.LOG_APPEND_TIME else NO_TIME


def _seen(record: Record) -> Seen:
    _, _, offset, key, value, _, _, headers = record
    digest = blake2b(digest_size=16)
    for part in (key, value, *(part for name, data in headers for part in (name.encode(), data))):
        digest.update(b"-" if part is None else b"%d:%b" % (len(part), part))
    return Seen(offset, _time(record), digest.digest())
