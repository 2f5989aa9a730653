"""The leader finder: one thread that finds a broker for every partition that has none.

It waits until partitions are homeless and brokers are known, asks any broker about all of them in
one request (which never creates a topic) and gives each partition to its leader's fetcher. What
stays without a leader is asked for again after ``refresh.leader.backoff.ms``.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.metadata import ClusterMetadata, fetch_metadata
from zkconsumer.core.types import BrokerEndpoint
from zkconsumer.errors import BrokerError, BrokerUnavailableError
from zkconsumer.runtime.fetch_events import FetchEvent, FetchEventKind
from zkconsumer.runtime.partition_info import PartitionTopicInfo

if TYPE_CHECKING:
    from zkconsumer.runtime.fetchers import ConsumerFetcherManager

_log = logging.getLogger(__name__)


class LeaderFinder(threading.Thread):
    """The thread. ``homeless`` and ``endpoints`` are guarded by the manager's lock."""

    def __init__(self, manager: ConsumerFetcherManager, lock: threading.Lock, name: str) -> None:
        super().__init__(name=f"{name}-leader-finder-thread", daemon=True)
        self._manager = manager
        self._condition = threading.Condition(lock)
        self._connection: BrokerConnection | None = None
        self._closing = False
        self.homeless: dict[PartitionTopicInfo, float] = {}
        """Partitions without a leader; from when on (``time.monotonic``) to ask for them."""
        self.endpoints: Mapping[int, BrokerEndpoint] = {}
        """The brokers that the connector knows of."""

    def wake(self) -> None:
        """Look at the shared state again. The caller holds the lock."""
        self._condition.notify()

    def abort(self) -> None:
        """End the thread soon. The caller holds the lock."""
        self._closing = True
        self._condition.notify()
        if self._connection is not None:
            self._connection.abort()

    def run(self) -> None:
        """Serve until ``abort``. No error ends the thread."""
        try:
            while (due := self._wait_for_work()) is not None:
                try:
                    self._find(*due)
                except Exception as exc:  # noqa: BLE001
                    _log.exception("the leader finder met an error of its own")
                    self._postpone(due[0], BrokerError(f"leader finder: {exc!r}"))
        finally:
            if self._connection is not None:
                self._connection.close()

    def _wait_for_work(
        self,
    ) -> tuple[list[PartitionTopicInfo], Mapping[int, BrokerEndpoint]] | None:
        with self._condition:
            while not self._closing:
                pause: float | None = None
                if self.homeless and self.endpoints:
                    now = time.monotonic()
                    due = [info for info, since in self.homeless.items() if since <= now]
                    if due:
                        return due, self.endpoints
                    pause = min(self.homeless.values()) - now
                self._condition.wait(pause)
            return None

    def _find(
        self, due: Collection[PartitionTopicInfo], endpoints: Mapping[int, BrokerEndpoint]
    ) -> None:
        try:
            metadata = self._ask({info.topic for info in due}, endpoints)
        except BrokerError as exc:
            self._manager.report(FetchEvent(FetchEventKind.METADATA_FAILED, None, None, str(exc)))
            self._postpone(due, None)
            return
        found: dict[PartitionTopicInfo, BrokerEndpoint] = {}
        lacking: list[PartitionTopicInfo] = []
        for info in due:
            leader = metadata.leaders.get(info.topic_partition, -1)
            # ZooKeeper's word on where a broker listens goes before the broker's own.
            endpoint = endpoints.get(leader) or metadata.brokers.get(leader)
            if endpoint is None:
                lacking.append(info)
            else:
                found[info] = endpoint
        for topic, error in metadata.errors.items():
            _log.debug("no leaders for %s: %s", topic, error)
        self._postpone(lacking, None)
        self._manager.assign(found)

    def _postpone(self, infos: Collection[PartitionTopicInfo], error: BrokerError | None) -> None:
        again = time.monotonic() + self._manager.backoff
        with self._condition:
            for info in infos:
                if info in self.homeless:
                    self.homeless[info] = again
        if error is not None:
            self._manager.report(FetchEvent(FetchEventKind.METADATA_FAILED, None, None, str(error)))

    def _ask(
        self, topics: Collection[str], endpoints: Mapping[int, BrokerEndpoint]
    ) -> ClusterMetadata:
        """Ask the broker that answered last, then the others in random order.

        Raises the last broker's ``BrokerError`` when none answers.
        """
        last = self._connection
        order = random.sample(list(endpoints.values()), len(endpoints))
        if last is not None and last.endpoint in order:
            order.remove(last.endpoint)
            order.insert(0, last.endpoint)
        error: BrokerError = BrokerUnavailableError("no broker is registered")
        for endpoint in order:
            try:
                return fetch_metadata(self._connect(endpoint), topics)
            except BrokerError as exc:
                error = exc
                _log.debug("metadata: %s", exc)
        raise error

    def _connect(self, endpoint: BrokerEndpoint) -> BrokerConnection:
        connection = self._connection
        if connection is None or connection.endpoint != endpoint:
            if connection is not None:
                connection.close()
            connection = self._manager.connect(endpoint)
            with self._condition:
                self._connection = connection
                if self._closing:
                    connection.abort()
        return connection
