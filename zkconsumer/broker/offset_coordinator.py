"""Offsets in Kafka, from the group's coordinator without membership (Kafka storage of the old
consumer, ``offsets.storage=kafka``).

An ``OffsetCoordinator`` is used by one thread at a time. It looks for the coordinator through any
registered broker, keeps one connection to it, and retries until a deadline.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.coordinator_calls import (
    StoredOffset,
    TryAgainError,
    check,
    check_permission,
    commit,
    fetch_offsets,
    find_coordinator,
    settle,
    until,
)
from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.core.zookeeper.ops import (
    Code,
    Failed,
    FetchOffsets,
    OffsetOp,
    Ok,
    Permission,
    Reply,
    always,
)
from zkconsumer.errors import BrokerError, BrokerUnavailableError

_NO_SUCH_BROKER: Final = "no broker is registered in ZooKeeper"

T = TypeVar("T")


class OffsetCoordinator:
    """Reads and writes offsets of ``group`` in ``__consumer_offsets``.

    Args:
        group: ``group.id``.
        client_id: ``client.id``.
        brokers: called for the brokers registered now.
        timeout: seconds for connecting and for each answer (``offsets.channel.socket.timeout.ms``).
        backoff: seconds between attempts (``offsets.channel.backoff.ms``).
        patience: seconds after which ``execute`` ends.
    """

    def __init__(
        self,
        group: str,
        client_id: str,
        brokers: Callable[[], Sequence[BrokerEndpoint]],
        timeout: float,
        backoff: float,
        security: KafkaSecurity | None = None,
        patience: float = 0.0,
    ) -> None:
        self._patience = patience
        self._group = group
        self._client_id = client_id
        self._brokers = brokers
        self._timeout = timeout
        self._backoff = backoff
        self._security = security
        self._closed = threading.Event()
        self._connection: BrokerConnection | None = None
        self._latest: BrokerConnection | None = None
        """The connection that was made last: the one in use."""

    @property
    def endpoint(self) -> BrokerEndpoint | None:
        """The coordinator's address; ``None`` before the first use and after a failure."""
        connection = self._connection
        return None if connection is None else connection.endpoint

    def close(self) -> None:
        """Abandon the operation in progress. Any thread; may be repeated."""
        self._closed.set()
        self.interrupt()

    def interrupt(self) -> None:
        """End the attempt in progress. It is repeated if it is still permitted. Any thread."""
        connection = self._latest
        if connection is not None:
            connection.abort(discard=True)

    def execute(self, op: OffsetOp, permission: Permission) -> Reply:
        """Carry out an operation; return its reply. A BrokerError becomes ``Failed``."""
        try:
            if isinstance(op, FetchOffsets):
                found = self.fetch(op.partitions, self._patience, permission)
                return Ok(tuple(found[tp] for tp in op.partitions))
            refused = self.commit(dict(op.positions), self._patience, permission)
            return Ok(tuple(str(refused[tp]) if tp in refused else None for tp, _ in op.positions))
        except BrokerError as error:
            return Failed(Code.OTHER, detail=str(error))

    def fetch(
        self,
        partitions: Iterable[TopicPartition],
        patience: float,
        permission: Permission = always,
    ) -> dict[TopicPartition, int | None]:
        """Return the stored offset of each partition, ``None`` if there is none.

        Raises BrokerError when no coordinator answered within ``patience`` seconds, it refuses, or
        ``permission`` has ended.
        """
        wanted = list(partitions)
        if not wanted:
            return {}
        return self._until(
            patience, permission, lambda connection: self._fetch_once(connection, wanted)
        )

    def commit(
        self,
        positions: Mapping[TopicPartition, int],
        patience: float,
        permission: Permission = always,
    ) -> dict[TopicPartition, BrokerError]:
        """Store ``positions``; return the refused ones, by partition.

        Partitions for which the coordinator requests a retry are sent again until ``patience``
        seconds have passed, or ``permission`` has ended. Raises BrokerError when no coordinator has
        answered by then.
        """
        left = {tp: StoredOffset(offset) for tp, offset in positions.items()}
        refused: dict[TopicPartition, BrokerError] = {}
        if not left:
            return refused

        def once(connection: BrokerConnection) -> None:
            ask = partial(self._ask, connection, permission)
            settle(commit(connection, self._group, left, 2, 1, ask=ask), left, refused)

        try:
            self._until(patience, permission, once)
        except BrokerError as error:
            if len(left) == len(positions):
                raise
            refused.update(dict.fromkeys(left, error))
        return refused

    def _ask(
        self,
        connection: BrokerConnection,
        permission: Permission,
        request: Any,
        response: type[Any],
        version: int,
    ) -> Any:
        """Send a request. The connection is open, so nothing delays it after the question."""
        check_permission(permission)
        return connection.call(request, response, version)

    def _until(
        self, patience: float, permission: Permission, once: Callable[[BrokerConnection], T]
    ) -> T:
        def attempt() -> T:
            check_permission(permission)  # before the search for the coordinator, which may be long
            return once(self._coordinator())

        return until(
            attempt,
            self._disconnect,
            patience,
            self._backoff,
            self._closed,
            f"the offset coordinator of group {self._group}",
        )

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
                found = find_coordinator(connection, self._group)
            except (BrokerUnavailableError, TryAgainError) as failure:
                error = failure.error if isinstance(failure, TryAgainError) else failure
                continue
            finally:
                connection.close()
            self._connection = self._connect(found)
            if self._closed.is_set():
                self._connection.abort()
            return self._connection
        raise TryAgainError(error)

    def _connect(self, endpoint: BrokerEndpoint) -> BrokerConnection:
        connection = BrokerConnection(endpoint, self._client_id, self._timeout, 0, self._security)
        self._latest = connection
        return connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _fetch_once(
        self, connection: BrokerConnection, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int | None]:
        code, what, offsets = fetch_offsets(connection, self._group, partitions)
        check(code, what)
        return {tp: offsets[tp].offset if tp in offsets else None for tp in partitions}
