"""The times and offsets of commits to Kafka, read from the log of ``__consumer_offsets``.

No request returns commit times. A group's commits are in one partition of that topic, which is
read from its beginning; compaction keeps it short. Used by one thread.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.fetching.one_log import OneLog
from zkconsumer.broker.metadata import fetch_metadata
from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.core.common.java_hash import java_hash
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.core.groups.formats.offset_records import OffsetKey, decode_key, decode_offset
from zkconsumer.errors import BrokerError, BrokerUnavailableError

OFFSETS_TOPIC: Final = "__consumer_offsets"
_FETCH_BYTES: Final = 4 * 1024 * 1024
_WAIT_MS: Final = 100


def commit_times(
    groups: Collection[str],
    partitions: int,
    brokers: Mapping[int, BrokerEndpoint],
    client_id: str,
    timeout: float,
    security: KafkaSecurity | None = None,
    before_request: Callable[[], object] | None = None,
) -> dict[tuple[str, TopicPartition], int]:
    """Return the time of each group's last commit of each partition, in ms since 1970.

    ``partitions``: number of partitions of ``__consumer_offsets``; 0 if it does not exist yet.
    Commits in formats other than those of Kafka 0.8.2 to 3.9, and all commits in an unreadable
    partition, are left out. Raises BrokerError if no broker answers.
    """
    by_partition: defaultdict[TopicPartition, set[str]] = defaultdict(set)
    for group in groups if partitions else ():
        by_partition[TopicPartition(OFFSETS_TOPIC, place(group, partitions))].add(group)
    connections = {
        number: BrokerConnection(endpoint, client_id, timeout, 0, security, before_request)
        for number, endpoint in brokers.items()
    }
    try:
        leaders: Mapping[TopicPartition, int] = {}
        deadline = time.monotonic() + timeout
        while not by_partition.keys() <= leaders.keys():  # the topic may be new
            leaders = _leaders(connections.values())
            if time.monotonic() >= deadline:
                break
            time.sleep(0.02)
        times: dict[tuple[str, TopicPartition], int] = {}
        for tp in sorted(by_partition):
            if leaders.get(tp) not in connections:
                continue
            known: dict[tuple[str, TopicPartition], int] = {}
            try:
                log = _log(connections[leaders[tp]], tp)
                for record in _commits(log, log.start, log.end):
                    if record.group in by_partition[tp]:
                        if record.at_ms is None:
                            known.pop((record.group, record.tp), None)
                        else:
                            known[(record.group, record.tp)] = record.at_ms
            except BrokerError:
                continue  # what was read is not the last word
            times.update(known)
        return times
    finally:
        for connection in connections.values():
            connection.close()


def log_end(connection: BrokerConnection, partition: int) -> int:
    """Return the log end offset of a partition of ``__consumer_offsets``. Raises BrokerError."""
    return _log(connection, TopicPartition(OFFSETS_TOPIC, partition)).end


def commits_since(
    connection: BrokerConnection, group: str, partition: int, position: int
) -> list[tuple[TopicPartition, int | None]]:
    """Return a group's commits from ``position`` on, in order; ``None`` is a deletion.

    Raises BrokerError.
    """
    log = _log(connection, TopicPartition(OFFSETS_TOPIC, partition))
    return [
        (commit.tp, commit.offset)
        for commit in _commits(log, position, log.end)
        if commit.group == group
    ]


def _leaders(connections: Iterable[BrokerConnection]) -> Mapping[TopicPartition, int]:
    """Return the leaders of the topic's partitions, according to the first broker that answers."""
    error: BrokerError = BrokerUnavailableError("no broker is registered")
    for connection in connections:
        try:
            return fetch_metadata(connection, {OFFSETS_TOPIC}).leaders
        except BrokerUnavailableError as failed:
            error = failed
    raise error


def place(group: str, partitions: int) -> int:
    """Return the partition of ``__consumer_offsets`` that has a group's commits:
    ``Utils.abs(group.hashCode) % partitions``.

    As in Kafka, the absolute value of the smallest integer is 0.
    """
    code = java_hash(group)
    return (0 if code == -(2**31) else abs(code)) % partitions


class _Commit(NamedTuple):
    """One commit. Without offset and time, the offset was deleted."""

    group: str
    tp: TopicPartition
    offset: int | None
    at_ms: int | None


def _log(connection: BrokerConnection, tp: TopicPartition) -> OneLog:
    return OneLog(connection, tp, _FETCH_BYTES)


def _commits(log: OneLog, position: int, end: int) -> Iterator[_Commit]:
    """Yield the commits in a part of a log."""
    while position < end:
        records, following = log.read(position, _WAIT_MS)
        for record in records:
            commit = _commit(record[3], record[4])
            if commit is not None:
                yield commit
        if following == position:
            return  # compaction has left nothing up to the end
        position = following


def _commit(key: bytes | None, value: bytes | None) -> _Commit | None:
    """Decode one record. Return ``None`` if it is not about an offset.

    A commit that cannot be decoded, because a later release wrote it, replaces earlier ones and
    is returned without offset and time.
    """
    try:
        about = decode_key(key)
    except ValueError:
        return None
    if not isinstance(about, OffsetKey):
        return None
    tp = TopicPartition(about.topic, about.partition)
    if value is None:
        return _Commit(about.group, tp, None, None)
    try:
        stored = decode_offset(value)
    except ValueError:
        return _Commit(about.group, tp, None, None)
    return _Commit(about.group, tp, stored.offset, stored.commit_ms)
