"""Offsets in Kafka: the group's coordinator, asked without membership (Kafka storage of the old
consumer, ``offsets.storage=kafka``).

An ``OffsetCoordinator`` is used by one thread at a time. It looks for the coordinator through any
registered broker, keeps one connection to it, and tries again until a deadline, never for ever:
the coordinator moves (16), is loading (14) or not available (15), or the connection breaks.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from kafka.protocol.consumer import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse

from zkconsumer.broker.api_versions import FIND_COORDINATOR, OFFSET_COMMIT, OFFSET_FETCH
from zkconsumer.broker.connection import BrokerConnection, error_from_code, mapped_errors
from zkconsumer.core.types import BrokerEndpoint, TopicPartition
from zkconsumer.errors import BrokerError, BrokerUnavailableError, CommitFailedError

_LOADING: Final = 14
_NOT_AVAILABLE: Final = 15
_NOT_COORDINATOR: Final = 16
_UNKNOWN_TOPIC: Final = 3
_NO_SUCH_BROKER: Final = "no broker is registered in ZooKeeper"
#: Codes after which another coordinator is looked for.
MOVED: Final = frozenset({_NOT_AVAILABLE, _NOT_COORDINATOR})
#: Codes after which the same request is sent again.
AGAIN: Final = MOVED | {_LOADING}

T = TypeVar("T")


class _TryAgainError(Exception):
    """This attempt found the coordinator away or not ready."""

    def __init__(self, error: BrokerError) -> None:
        super().__init__(str(error))
        self.error = error


class OffsetCoordinator:
    """Reads and writes offsets of ``group`` in ``__consumer_offsets``.

    Args:
        group: ``group.id``.
        client_id: ``client.id``.
        brokers: called for the brokers registered now.
        timeout: seconds for connecting and for each answer (``offsets.channel.socket.timeout.ms``).
        backoff: seconds between attempts (``offsets.channel.backoff.ms``).
    """

    def __init__(
        self,
        group: str,
        client_id: str,
        brokers: Callable[[], Sequence[BrokerEndpoint]],
        timeout: float,
        backoff: float,
    ) -> None:
        self._group = group
        self._client_id = client_id
        self._brokers = brokers
        self._timeout = timeout
        self._backoff = backoff
        self._closed = threading.Event()
        self._connection: BrokerConnection | None = None

    @property
    def endpoint(self) -> BrokerEndpoint | None:
        """Where the coordinator was found; ``None`` before the first use and after a failure."""
        connection = self._connection
        return None if connection is None else connection.endpoint

    def close(self) -> None:
        """Give up what is under way. Any thread; may be repeated."""
        self._closed.set()
        connection = self._connection
        if connection is not None:
            connection.abort()

    def fetch(
        self, partitions: Iterable[TopicPartition], patience: float
    ) -> dict[TopicPartition, int | None]:
        """Return the stored offset of each partition, ``None`` where there is none.

        Raises BrokerError when no coordinator answered within ``patience`` seconds, or it refuses.
        """
        wanted = list(partitions)
        if not wanted:
            return {}
        return self._until(patience, lambda connection: self._fetch_once(connection, wanted))

    def commit(
        self, positions: Mapping[TopicPartition, int], patience: float
    ) -> dict[TopicPartition, BrokerError]:
        """Store ``positions``; return what was refused, by partition.

        Partitions that the coordinator asks to try again are sent again until ``patience`` seconds
        are over. Raises BrokerError when no coordinator answered at all by then.
        """
        left = dict(positions)
        refused: dict[TopicPartition, BrokerError] = {}
        if not left:
            return refused

        def once(connection: BrokerConnection) -> None:
            codes = self._commit_once(connection, left)
            again: BrokerError | None = None
            for tp in list(left):
                code = codes.get(tp, _NOT_AVAILABLE)
                if code in AGAIN:
                    again = error_from_code(code, f"commit of {tp}")
                    continue
                del left[tp]
                if code:
                    refused[tp] = error_from_code(code, f"commit of {tp}")
            if again is not None:
                raise _TryAgainError(again)

        try:
            self._until(patience, once)
        except BrokerError as error:
            if len(left) == len(positions):
                raise
            refused.update(dict.fromkeys(left, error))
        return refused

    def _until(self, patience: float, once: Callable[[BrokerConnection], T]) -> T:
        # DEVIATION-28: the JVM searches and reads for ever, and retries only some commits.
        deadline = time.monotonic() + patience
        while True:
            try:
                return once(self._coordinator())
            except _TryAgainError as again:
                error = again.error
            except BrokerUnavailableError as unavailable:
                error = unavailable
            self._disconnect()
            wait = min(self._backoff, deadline - time.monotonic())
            if wait <= 0 or self._closed.wait(wait):
                raise CommitFailedError(
                    f"the offset coordinator of group {self._group} did not answer within "
                    f"{patience:g} s: {error}"
                ) from error

    def _coordinator(self) -> BrokerConnection:
        """The connection to the coordinator; looks for it through the brokers in random order."""
        if self._connection is not None:
            return self._connection
        brokers = list(self._brokers())
        random.shuffle(brokers)
        error: BrokerError = BrokerUnavailableError(_NO_SUCH_BROKER)
        for broker in brokers:
            connection = self._connect(broker)
            try:
                found = self._find(connection)
            except (BrokerUnavailableError, _TryAgainError) as failure:
                error = failure.error if isinstance(failure, _TryAgainError) else failure
                continue
            finally:
                connection.close()
            self._connection = self._connect(found)
            if self._closed.is_set():
                self._connection.abort()
            return self._connection
        raise _TryAgainError(error)

    def _connect(self, endpoint: BrokerEndpoint) -> BrokerConnection:
        return BrokerConnection(endpoint, self._client_id, self._timeout, 0)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _find(self, connection: BrokerConnection) -> BrokerEndpoint:
        version = connection.version(FIND_COORDINATOR, 0)
        request = FindCoordinatorRequest(key=self._group)
        answer = connection.call(request, FindCoordinatorResponse, version)
        with mapped_errors(connection.endpoint):
            if answer.error_code:
                error = error_from_code(answer.error_code, f"coordinator of group {self._group}")
                if answer.error_code in AGAIN:
                    raise _TryAgainError(error)
                raise error
            return BrokerEndpoint(answer.node_id, answer.host, answer.port)

    def _fetch_once(
        self, connection: BrokerConnection, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int | None]:
        # DEVIATION-29: version 1 repeats a failure for each partition; version 2 says it once for
        # all, which the JVM's consumer overlooks. Version 0 would read ZooKeeper.
        version = connection.version(OFFSET_FETCH, 1)
        topic = OffsetFetchRequest.OffsetFetchRequestTopic
        request = OffsetFetchRequest(
            group_id=self._group,
            topics=[
                topic(name=name, partition_indexes=indexes, version=version)
                for name, indexes in _by_topic(partitions).items()
            ],
        )
        answer = connection.call(request, OffsetFetchResponse, version)
        offsets: dict[TopicPartition, int | None] = {}
        with mapped_errors(connection.endpoint):
            for entry in answer.topics:
                for part in entry.partitions:
                    tp = TopicPartition(entry.name, part.partition_index)
                    code = part.error_code
                    if code and code != _UNKNOWN_TOPIC:
                        error = error_from_code(code, f"stored offset of {tp}")
                        raise _TryAgainError(error) if code in AGAIN else error
                    found = part.committed_offset
                    offsets[tp] = found if found >= 0 and not code else None
        return {tp: offsets.get(tp) for tp in partitions}

    def _commit_once(
        self, connection: BrokerConnection, positions: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        version = connection.version(OFFSET_COMMIT, 2, 1)
        topic = OffsetCommitRequest.OffsetCommitRequestTopic
        partition = topic.OffsetCommitRequestPartition
        extra: dict[str, Any] = {"commit_timestamp": -1} if version == 1 else {}
        request = OffsetCommitRequest(
            group_id=self._group,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[
                topic(
                    name=name,
                    partitions=[
                        partition(
                            partition_index=index,
                            committed_offset=positions[TopicPartition(name, index)],
                            committed_metadata="",
                            version=version,
                            **extra,
                        )
                        for index in indexes
                    ],
                    version=version,
                )
                for name, indexes in _by_topic(positions).items()
            ],
            **({"retention_time_ms": -1} if version == 2 else {}),
        )
        answer = connection.call(request, OffsetCommitResponse, version)
        with mapped_errors(connection.endpoint):
            return {
                TopicPartition(entry.name, part.partition_index): part.error_code
                for entry in answer.topics
                for part in entry.partitions
            }


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: defaultdict[str, list[int]] = defaultdict(list)
    for topic, index in sorted(partitions):
        topics[topic].append(index)
    return topics
