"""The sockets of fetching: implements ``BrokerPort`` with a connection to one broker.

Belongs to one thread, which blocks in it; any other thread may call ``abort``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.fetching.fetch import READ_COMMITTED, BrokerFetcher, FetchSession
from zkconsumer.broker.metadata import fetch_metadata
from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.broker.types import QUICK_S, ClusterMetadata, EpochEnds, Got, Want
from zkconsumer.config.keys import ConsumerKeys
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.errors import BrokerError, BrokerUnavailableError
from zkconsumer.runtime.counters import FetchCounts
from zkconsumer.runtime.fetch.interface import (
    EpochsRequest,
    FetchRequest,
    LeadersRequest,
    OffsetsRequest,
)

_T = TypeVar("_T")


class BrokerIO:
    """A ``BrokerPort`` with real brokers. It keeps the connection to the broker used last.

    Args:
        config: the member's configuration.
        client_id: sent to brokers.
        counts: the counters for fetch requests and answers.
        security: for all connections.
    """

    def __init__(
        self,
        config: ConsumerKeys,
        client_id: str,
        counts: FetchCounts,
        security: KafkaSecurity | None = None,
    ) -> None:
        self._config = config
        self._client_id = client_id
        self._counts = counts
        self._security = security
        self._committed = config.isolation_level == READ_COMMITTED
        self._lock = threading.Lock()
        self._connection: BrokerConnection | None = None
        """Written by the thread that sends requests, under the lock; ``abort`` reads it."""
        self._aborted = False
        self._session = FetchSession()
        """Fetch session with the broker used last. Only the thread that sends requests uses it."""
        self._last_wanted: Sequence[Want] | None = None

    def fetch(self, request: FetchRequest) -> Sequence[Got]:
        """Implement ``BrokerPort.fetch``."""
        fresh = () if request.wanted is self._last_wanted else _unheard(request)
        self._last_wanted = request.wanted

        def send(connection: BrokerConnection) -> Sequence[Got]:
            self._counts.sent()
            begun = time.monotonic()
            fetcher = BrokerFetcher(connection, self._session, committed=self._committed)
            answer = fetcher.fetch(
                request.wanted, request.max_wait_ms, request.min_bytes, request.max_bytes, fresh
            )
            self._counts.answered(time.monotonic() - begun, sum(len(got.data) for got in answer))
            return answer

        return self._ask(request.endpoint, send)

    def list_offsets(self, request: OffsetsRequest) -> Mapping[TopicPartition, int | BrokerError]:
        """Implement ``BrokerPort.list_offsets``."""
        from zkconsumer.broker.fetching.list_offsets import EARLIEST, LATEST, list_offsets

        which = EARLIEST if request.earliest else LATEST
        return self._ask(
            request.endpoint,
            lambda connection: list_offsets(
                connection, request.states.keys(), which, committed=self._committed
            ),
        )

    def epoch_ends(self, request: EpochsRequest) -> EpochEnds:
        """Implement ``BrokerPort.epoch_ends``."""
        from zkconsumer.broker.fetching.epoch_ends import epoch_ends

        known = {tp: state.info.epochs for tp, state in request.states.items()}
        wanted = {tp: (epochs.leader, epochs.read) for tp, epochs in known.items() if epochs}
        return self._ask(request.endpoint, lambda connection: epoch_ends(connection, wanted))

    def metadata(self, request: LeadersRequest) -> ClusterMetadata:
        """Implement ``BrokerPort.metadata``."""
        connection = self._connect(request.endpoint)
        connection.limit_opening(QUICK_S if request.quick else connection.timeout)
        return self._ask(
            request.endpoint, lambda connection: fetch_metadata(connection, request.topics)
        )

    def abort(self) -> None:
        """Wake the thread that waits for an answer, and refuse all further use. Any thread."""
        with self._lock:
            self._aborted = True
            if self._connection is not None:
                self._connection.abort()

    def close(self) -> None:
        """Close the connection. Called by the thread that sends requests."""
        if self._connection is not None:
            self._connection.close()

    def _ask(self, endpoint: BrokerEndpoint, send: Callable[[BrokerConnection], _T]) -> _T:
        """Send a request. Retry once if an earlier connection turns out to be closed. There is no
        retry after a timeout, because a broker that hangs would then take twice the timeout."""
        connection = self._connect(endpoint)
        used = connection.is_open
        try:
            return send(connection)
        except BrokerUnavailableError as error:
            late = isinstance(error.__cause__, TimeoutError | BlockingIOError)
            if not used or late or self._aborted:
                raise
        return send(connection)

    def _connect(self, endpoint: BrokerEndpoint) -> BrokerConnection:
        connection = self._connection
        if connection is None or connection.endpoint != endpoint:
            self.close()
            self._session = FetchSession()
            connection = BrokerConnection(
                endpoint,
                self._client_id,
                self._config.socket_timeout_ms / 1000,
                self._config.socket_receive_buffer_bytes,
                self._security,
            )
            with self._lock:
                self._connection = connection
                if self._aborted:
                    connection.abort()
        return connection


def _unheard(request: FetchRequest) -> list[tuple[str, int]]:
    """Return the partitions of a request whose log end is not known to the member yet."""
    states = request.states.items()
    return [key for key, state in states if state.info.high_watermark is None]
