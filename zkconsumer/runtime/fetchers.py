"""The fetcher manager: which partitions are fetched, by which thread (Scala:
ConsumerFetcherManager, AbstractFetcherManager).

Any thread may call it. One lock guards the table of partitions, the fetchers' shares of it and the
leader finder's list; it is held for moments only, never during a request or an enqueue, and no
stream's lock is taken inside it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.fetch import BrokerFetcher, Fetcher
from zkconsumer.core.types import BrokerEndpoint
from zkconsumer.errors import ConnectorClosedError, UsageError
from zkconsumer.runtime.chunk_queue import ChunkQueue
from zkconsumer.runtime.fetch_events import FetchConfig, FetchEvent, FetchEventKind, OnEvent
from zkconsumer.runtime.fetcher_thread import Feed, FetcherThread
from zkconsumer.runtime.leader_finder import LeaderFinder
from zkconsumer.runtime.metrics import FetchCounts
from zkconsumer.runtime.partition_info import PartitionTopicInfo
from zkconsumer.runtime.streams import KafkaStream

_log = logging.getLogger(__name__)

CLOSE_SECONDS: Final = 2.0
"""How long the threads may take to end, unless the caller says so."""


class ConsumerFetcherManager:
    """Fetches partitions into the queues of streams until told to stop.

    Args:
        config: the keys in ``FetchConfig``.
        client_id: sent to brokers, and part of the threads' names.
        on_event: called with every ``FetchEvent``.
    """

    def __init__(
        self, config: FetchConfig, client_id: str, on_event: OnEvent | None = None
    ) -> None:
        self.config = config
        self.counts = FetchCounts()
        self.backoff = config.refresh_leader_backoff_ms / 1000
        self._client_id = client_id
        self._on_event = on_event
        self._lock = threading.Lock()
        self._feeds: dict[PartitionTopicInfo, Feed] = {}
        self._fetchers: dict[tuple[int, int], FetcherThread] = {}
        self._finder = LeaderFinder(self, self._lock, client_id)
        self._closed = False

    def set_brokers(self, brokers: Sequence[BrokerEndpoint]) -> None:
        """Tell which brokers are registered. Partitions without a leader are asked for at once."""
        with self._lock:
            self._finder.endpoints = {broker.broker_id: broker for broker in brokers}
            for info in self._finder.homeless:
                self._finder.homeless[info] = 0.0
            self._finder.wake()

    def start(self, assignments: Mapping[PartitionTopicInfo, KafkaStream | ChunkQueue]) -> None:
        """Fetch partitions in addition to those already fetched; returns at once.

        Raises:
            ConnectorClosedError: after ``shutdown``.
            UsageError: a partition is being fetched or was stopped; a new claim needs a new info.
        """
        with self._lock:
            if self._closed:
                raise ConnectorClosedError("fetching has been shut down")
            for info in assignments:
                if info in self._feeds or info.stopped:
                    raise UsageError(f"{info!r} has been started before")
            for info, target in assignments.items():
                queue = target.queue if isinstance(target, KafkaStream) else target
                queue.on_space = self._notify_fetchers
                self._feeds[info] = Feed(info, queue)
                self._finder.homeless[info] = 0.0
            if self._finder.ident is None and assignments:
                self._finder.start()
            self._finder.wake()

    def stop(self, infos: Iterable[PartitionTopicInfo]) -> None:
        """Stop fetching; once this returns nothing more of ``infos`` is enqueued.

        Waits for no request: late answers are dropped. Unknown partitions are ignored.
        """
        wanted = list(infos)
        for info in wanted:
            info.stopped = True
        queues: dict[ChunkQueue, None] = {}
        with self._lock:
            for info in wanted:
                feed = self._feeds.pop(info, None)
                if feed is None:
                    continue
                queues[feed.queue] = None
                self._finder.homeless.pop(info, None)
                if feed.fetcher is not None:
                    feed.fetcher.feeds.pop(info, None)
        # A put that looked at ``stopped`` before it was set is over once its queue's lock was ours.
        for queue in queues:
            queue.fence()

    def shutdown(self, timeout: float = CLOSE_SECONDS) -> None:
        """Stop everything and end the threads. May be repeated; waits ``timeout`` seconds at most
        for threads that hang in a connection attempt, which can do no harm any more."""
        with self._lock:
            self._closed = True
            infos = list(self._feeds)
        self.stop(infos)
        with self._lock:
            threads: list[threading.Thread] = list(self._fetchers.values())
            self._finder.abort()
            for fetcher in self._fetchers.values():
                fetcher.abort()
        if self._finder.ident is not None:
            threads.append(self._finder)
        deadline = time.monotonic() + timeout
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def requests_to(self, broker: BrokerEndpoint) -> int:
        """How many fetchers read from the broker at this address; each has a request under way."""
        with self._lock:
            return sum(
                bool(fetcher.feeds)
                and (fetcher.endpoint.host, fetcher.endpoint.port) == (broker.host, broker.port)
                for fetcher in self._fetchers.values()
            )

    # What follows is for the fetchers and the leader finder.

    def connect(self, endpoint: BrokerEndpoint) -> BrokerConnection:
        """Return a new connection, not yet opened."""
        return BrokerConnection(
            endpoint,
            self._client_id,
            self.config.socket_timeout_ms / 1000,
            self.config.socket_receive_buffer_bytes,
        )

    def fetcher_for(self, connection: BrokerConnection) -> Fetcher:
        """Return what fetches over ``connection``: the one place to exchange it."""
        return BrokerFetcher(connection)

    def assign(self, leaders: Mapping[PartitionTopicInfo, BrokerEndpoint]) -> None:
        """Give partitions to the fetchers of their leaders; those stopped meanwhile are left."""
        found: list[tuple[PartitionTopicInfo, int]] = []
        with self._lock:
            if self._closed:
                return
            for info, endpoint in leaders.items():
                feed = self._feeds.get(info)
                if feed is None or self._finder.homeless.pop(info, None) is None:
                    continue
                feed.fetcher = self._fetcher(info, endpoint)
                feed.fetcher.feeds[info] = feed
                found.append((info, endpoint.broker_id))
            self._notify_all()
        for info, broker in found:
            self.report(
                FetchEvent(
                    FetchEventKind.LEADER_FOUND,
                    info.topic_partition,
                    broker,
                    f"{info.topic_partition} is fetched from broker {broker}",
                )
            )

    def give_back(
        self, fetcher: FetcherThread, infos: Collection[PartitionTopicInfo], detail: str
    ) -> None:
        """Take partitions from ``fetcher`` for the leader finder, which pauses first."""
        lost: list[PartitionTopicInfo] = []
        again = time.monotonic() + self.backoff
        with self._lock:
            for info in infos:
                feed = fetcher.feeds.pop(info, None)
                if feed is not None:
                    feed.fetcher = None
                    self._finder.homeless[info] = again
                    lost.append(info)
            self._finder.wake()
        for info in lost:
            self.report(
                FetchEvent(
                    FetchEventKind.LEADER_LOST,
                    info.topic_partition,
                    fetcher.endpoint.broker_id,
                    detail,
                )
            )

    def retire(self, fetcher: FetcherThread) -> bool:
        """Forget a fetcher that has nothing to do; the caller holds the lock."""
        if fetcher.feeds:
            return False
        self._fetchers.pop((fetcher.endpoint.broker_id, fetcher.index), None)
        return True

    def report(self, event: FetchEvent) -> None:
        """Log an event and hand it to the connector."""
        _log.debug("%s: %s", event.kind.value, event.detail)
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:  # noqa: BLE001
                _log.exception("on_event failed for %s", event)

    def _fetcher(self, info: PartitionTopicInfo, endpoint: BrokerEndpoint) -> FetcherThread:
        index = fetcher_index(info.topic, info.partition, self.config.num_consumer_fetchers)
        fetcher = self._fetchers.get((endpoint.broker_id, index))
        if fetcher is None:
            fetcher = FetcherThread(self, self._lock, self._client_id, endpoint, index)
            self._fetchers[endpoint.broker_id, index] = fetcher
            fetcher.start()
        fetcher.endpoint = endpoint
        return fetcher

    def _notify_fetchers(self) -> None:
        with self._lock:
            self._notify_all()

    def _notify_all(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.wake()


def fetcher_index(topic: str, partition: int, fetchers: int) -> int:
    """Return which of a broker's ``fetchers`` threads fetches a partition (Scala 1.1.1
    AbstractFetcherManager.getFetcherId): abs(31 * javaHash(topic) + partition) in 32 bits."""
    units = topic.encode("utf-16-be")
    number = 0
    for i in range(0, len(units), 2):
        number = (31 * number + int.from_bytes(units[i : i + 2], "big")) & 0xFFFFFFFF
    number = (31 * number + partition) & 0xFFFFFFFF
    if number >= 1 << 31:
        number = (1 << 32) - number
    return 0 if number == 1 << 31 else number % fetchers
