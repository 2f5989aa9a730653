"""``zkconsumer consume --partition``: prints one partition, without a group and without commits.

Everything runs on the main thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from zkconsumer.broker.cluster_reader import ClusterReader
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.fetching.fetch import READ_COMMITTED
from zkconsumer.broker.fetching.one_log import OneLog
from zkconsumer.broker.fetching.records import MessageAndMetadata, Record
from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.config.coordinator_keys import CoordinatorConfig
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.errors import (
    BrokerUnavailableError,
    ConfigError,
    ConsumerTimeoutError,
    LeaderUnavailableError,
)

_CLIENT: Final = "zkconsumer-console"
_TIMEOUT: Final = 10.0
_PAUSE: Final = 0.2
"""Seconds until the leader is searched again."""
_WAIT_MS: Final = 500
_BYTES: Final = 1024 * 1024


def messages_of(
    config: CoordinatorConfig,
    tp: TopicPartition,
    start: str,
    timeout: float | None,
    check: Callable[[], None],
) -> Iterator[MessageAndMetadata]:
    """Yield the messages of a partition indefinitely.

    Args:
        config: the brokers and the settings for connecting to them.
        tp: the partition.
        start: ``earliest``, ``latest`` or an offset, as in Kafka's console consumer.
        timeout: seconds without a message after which ConsumerTimeoutError is raised.
        check: called between requests; may raise to end the iteration. If the leader moves or
            fails, the next leader is read. Raises BrokerError, also when no broker
    answers, and ConfigError when there is no such partition or offset.
    """
    security = KafkaSecurity(config)
    reader = ClusterReader(config.bootstrap_servers, _CLIENT, _TIMEOUT, security)
    connection: BrokerConnection | None = None
    offset: int | None = None
    last = time.monotonic()
    try:
        while True:
            check()
            records: Iterable[Record] = ()
            try:
                if connection is None:
                    connection = BrokerConnection(
                        _leader(reader, tp), _CLIENT, _TIMEOUT, 0, security
                    )
                committed = config.isolation_level == READ_COMMITTED
                log = OneLog(connection, tp, _BYTES, committed=committed)
                if offset is None:
                    offset = _first(log, tp, start)
                records, offset = log.read(offset, _WAIT_MS)
            except (LeaderUnavailableError, BrokerUnavailableError) as error:
                if connection is not None:
                    connection.close()
                elif isinstance(error, BrokerUnavailableError):
                    raise  # no broker answers
                # The leader has moved or ended, or another one is being elected.
                connection = None
                time.sleep(_PAUSE)
            for record in records:
                last = time.monotonic()
                yield MessageAndMetadata(*record)
            if timeout is not None and time.monotonic() - last >= timeout:
                raise ConsumerTimeoutError(f"no message within {timeout:g} s")
    finally:
        if connection is not None:
            connection.close()
        reader.disconnect()


def _leader(reader: ClusterReader, tp: TopicPartition) -> BrokerEndpoint:
    view = reader.read()
    topic = view.topics.get(tp.topic)
    if topic is None or tp.partition not in topic.partitions:
        what = f"topic {tp.topic}" if topic is None else f"partition {tp.partition} in {tp.topic}"
        raise ConfigError([f"--partition {tp.partition}: there is no {what}"])
    leader = topic.partitions[tp.partition].leader
    for broker in view.brokers:
        if broker.broker_id == leader:
            return broker
    raise LeaderUnavailableError(f"{tp} has no leader")


def _first(log: OneLog, tp: TopicPartition, start: str) -> int:
    earliest, latest = log.start, log.end
    if start in ("earliest", "latest"):
        return earliest if start == "earliest" else log.readable_end
    if not earliest <= int(start) <= latest:
        raise ConfigError(
            [f"--offset {start}: partition {tp.partition} has {earliest} to {latest}"]
        )
    return int(start)
