"""Offsets of groups at their coordinators, read and stored without membership.

One thread uses an ``OffsetClient``. It keeps one connection to each broker, looks up each group's
coordinator when it needs it, and retries until a deadline.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.groups.coordinator_calls import (
    StoredOffset,
    check,
    commit,
    fetch_offsets,
    search_coordinator,
    settle,
    until,
)
from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.errors import BrokerError, BrokerUnavailableError, GroupActiveError

BATCH: Final = 2000
"""Partitions or topics in one request."""
NO_BROKER: Final = "no broker is registered in ZooKeeper"

T = TypeVar("T")


class OffsetClient:
    """Sends requests to the coordinators of any groups.

    Args:
        client_id: sent with every request.
        brokers: called for the brokers registered now.
        timeout: seconds for connecting and for each answer.
        patience: seconds to wait for a coordinator that moves, loads or does not answer.
        backoff: seconds between attempts.
        place: returns a key that all groups of the same coordinator share.

    Every method raises BrokerError: no coordinator answered in time, or it refuses.
    """

    def __init__(
        self,
        client_id: str,
        brokers: Callable[[], Sequence[BrokerEndpoint]],
        timeout: float = 10.0,
        patience: float = 60.0,
        backoff: float = 0.2,
        security: KafkaSecurity | None = None,
        place: Callable[[str], Hashable] = str,
        before_request: Callable[[], object] | None = None,
    ) -> None:
        self._before_request = before_request
        self._client_id = client_id
        self._brokers = brokers
        self._timeout = timeout
        self._patience = patience
        self._backoff = backoff
        self._security = security
        self._connections: dict[BrokerEndpoint, BrokerConnection] = {}
        self._place = place
        self._coordinators: dict[Hashable, BrokerEndpoint] = {}
        """By place."""
        self._closed = threading.Event()

    def close(self) -> None:
        """Close all connections."""
        self._closed.set()
        self._forget()

    def stop_waiting(self) -> None:
        """Fail instead of waiting from now on. Any thread."""
        self._closed.set()

    def coordinator(self, group: str) -> BrokerEndpoint:
        """Return the group's coordinator, if it was found already."""
        return self._until(lambda: self._find(group), name_of(group))

    def stored(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, StoredOffset]:
        """Return the stored offsets of these partitions, without negative numbers."""
        wanted = list(partitions)
        if not wanted:
            return {}
        return self._at_coordinator(group, partial(fetch_stored, group, wanted, False))

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, StoredOffset],
        permit: Callable[[], object] = lambda: None,
    ) -> dict[TopicPartition, BrokerError]:
        """Store offsets; return the refused ones, by partition.

        ``permit`` is called right before each request; what it raises ends the operation. The
        leader epoch is stored by brokers since 2.1. Raises GroupActiveError when the coordinator
        refuses because the group has members.
        """
        left, refused = dict(offsets), dict[TopicPartition, BrokerError]()

        def tell(connection: BrokerConnection) -> None:
            # The connection is open, so nothing delays the request after the question.
            def ask(request: Any, response: type[Any], version: int) -> Any:
                permit()
                return connection.call(request, response, version)

            for batch in _batches(left):
                some = {tp: left[tp] for tp in batch}
                codes = commit(connection, group, some, 6, 2, 1, ask=ask)
                if ErrorCode.UNKNOWN_MEMBER_ID in codes.values():
                    raise GroupActiveError(
                        f"the coordinator refuses commits to group {group} because consumers "
                        "have joined it: stop them first"
                    )
                settle(codes, left, refused)

        if left:
            self._at_coordinator(group, tell)
        return refused

    # -- connections ---------------------------------------------------------------------------

    def _forget(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._coordinators.clear()

    def _connection(self, endpoint: BrokerEndpoint) -> BrokerConnection:
        if endpoint not in self._connections:
            self._connections[endpoint] = BrokerConnection(
                endpoint, self._client_id, self._timeout, 0, self._security, self._before_request
            )
        return self._connections[endpoint]

    def _any_broker(self) -> BrokerEndpoint:
        """A broker that a connection can be made to."""
        error: BrokerError = BrokerUnavailableError(NO_BROKER)
        for endpoint in self._order(self._brokers()):
            try:
                self._connection(endpoint).open()
            except BrokerUnavailableError as failure:
                error = failure
            else:
                return endpoint
        raise error

    def _order(self, brokers: Sequence[BrokerEndpoint]) -> list[BrokerEndpoint]:
        """In which order brokers are asked: one of them may be silent."""
        return random.sample(brokers, len(brokers))

    def _find(self, group: str) -> BrokerEndpoint:
        place = self._place(group)
        known = self._coordinators.get(place)
        if known is not None:
            return known
        brokers = self._order(self._brokers())
        if not brokers:
            raise BrokerUnavailableError(NO_BROKER)
        search = search_coordinator(group, brokers, self._connection)
        if search.coordinator is None:
            check(search.code, f"coordinator of group {group}")
            raise search.error
        self._coordinators[place] = search.coordinator
        return search.coordinator

    def _at_coordinator(self, group: str, once: Callable[[BrokerConnection], T]) -> T:
        return self._until(lambda: once(self._connection(self._find(group))), name_of(group))

    def _until(self, once: Callable[[], T], what: str, patience: float | None = None) -> T:
        limit = self._patience if patience is None else patience
        return until(once, self._forget, limit, self._backoff, self._closed, what)


def fetch_stored(
    group: str, partitions: Sequence[TopicPartition], whole: bool, connection: BrokerConnection
) -> dict[TopicPartition, StoredOffset]:
    """Request stored offsets, those of all partitions with ``whole``. Raises TryAgainError."""
    code, what, offsets = fetch_offsets(
        connection, group, partitions, all_stored=whole, stable=whole
    )
    check(code, what)
    return offsets


def name_of(group: str) -> str:
    """The coordinator of a group, for people."""
    return f"the offset coordinator of group {group}"


def _batches(partitions: Iterable[TopicPartition]) -> list[list[TopicPartition]]:
    wanted = sorted(partitions)
    return [wanted[start : start + BATCH] for start in range(0, len(wanted), BATCH)]
