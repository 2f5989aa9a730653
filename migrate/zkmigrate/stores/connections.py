"""Connections to brokers, for requests that only a partition's leader or any broker can answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final, TypeVar

from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.metadata import fetch_metadata
from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.errors import BrokerError, LeaderUnavailableError
from zkmigrate.stores.pace import Pace

CLIENT_ID: Final = "zkmigrate"
T = TypeVar("T")


class Connections:
    """Connections to brokers, which are opened when they are first used. Only one thread at a time
    may use this object.

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
        self._brokers = brokers
        self._options = (CLIENT_ID, timeout, 0, security, pace)
        self._open: dict[BrokerEndpoint, BrokerConnection] = {}

    def close(self) -> None:
        """Close all connections."""
        for connection in self._open.values():
            connection.close()

    def leaders(self, topics: Collection[str]) -> dict[TopicPartition, BrokerConnection]:
        """Return a connection to the leader of each partition of these topics. Raises
        BrokerError."""
        brokers = {one.broker_id: one for one in self._brokers()}
        leaders = self._first(brokers.values(), lambda one: fetch_metadata(one, topics)).leaders
        return {tp: self._to(brokers[at]) for tp, at in leaders.items() if at in brokers}

    def ask_any(self, ask: Callable[[BrokerConnection], T]) -> T:
        """Return the answer of the first broker that answers. Raises BrokerError."""
        return self._first(self._brokers(), ask)

    def _first(self, brokers: Iterable[BrokerEndpoint], ask: Callable[[BrokerConnection], T]) -> T:
        failed: BrokerError | None = None
        for broker in brokers:
            try:
                return ask(self._to(broker))
            except BrokerError as error:
                failed = error
        raise failed or LeaderUnavailableError("no broker is registered")

    def _to(self, endpoint: BrokerEndpoint) -> BrokerConnection:
        if endpoint not in self._open:
            self._open[endpoint] = BrokerConnection(endpoint, *self._options)
        return self._open[endpoint]
