"""One fetcher thread: one broker, one connection, a share of the partitions (Scala:
ConsumerFetcherThread).

Each round it chooses the partitions whose queue has room, resolves start positions, fetches and
enqueues. Nothing ends the thread but shutdown and idleness: whatever goes wrong sends its
partitions to the leader finder.

Back-pressure in the default profile: a partition whose queue is full is left out of the next
request, so a slow stream holds up nobody else, and what one answer brings is kept whole. In the
scala profile the thread blocks on the full queue, as the JVM's does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from zkconsumer.broker.connection import BrokerConnection, error_from_code
from zkconsumer.broker.fetch import Fetcher, Got, Want
from zkconsumer.broker.list_offsets import EARLIEST, LATEST, list_offsets
from zkconsumer.broker.records import scan
from zkconsumer.core.types import BrokerEndpoint, TopicPartition
from zkconsumer.errors import BrokerError, BrokerUnavailableError
from zkconsumer.runtime.chunk_queue import Chunk, ChunkQueue
from zkconsumer.runtime.fetch_events import FetchEvent, FetchEventKind
from zkconsumer.runtime.partition_info import PartitionTopicInfo

if TYPE_CHECKING:
    from zkconsumer.runtime.fetchers import ConsumerFetcherManager

_log = logging.getLogger(__name__)

_OFFSET_OUT_OF_RANGE: Final = 1
_IDLE_S: Final = 30.0
_PAUSE_S: Final = 0.025
"""Least time between a request that brought nothing and the next."""
_NO_LIMIT: Final = 0x7FFFFFFF


class Feed:
    """A partition that is being fetched, and where its chunks go."""

    __slots__ = ("fetcher", "info", "queue", "unresolved")

    def __init__(self, info: PartitionTopicInfo, queue: ChunkQueue) -> None:
        self.info = info
        self.queue = queue
        self.fetcher: FetcherThread | None = None
        """Guarded by the manager's lock; ``None`` while there is no leader."""
        self.unresolved = info.fetched_offset is None
        """Whether ``auto.offset.reset`` must choose the position first. Fetcher thread only."""


class FetcherThread(threading.Thread):
    """The thread. ``feeds`` and ``endpoint`` are guarded by the manager's lock."""

    def __init__(
        self,
        manager: ConsumerFetcherManager,
        lock: threading.Lock,
        client_id: str,
        endpoint: BrokerEndpoint,
        index: int,
    ) -> None:
        super().__init__(
            name=f"ConsumerFetcherThread-{client_id}-{index}-{endpoint.broker_id}", daemon=True
        )
        self._manager = manager
        self._config = manager.config
        self._scala = manager.config.profile == "scala"
        self._condition = threading.Condition(lock)
        self._closing = False
        self._some_full = False
        self._connection: BrokerConnection | None = None
        self._fetch: Fetcher | None = None
        self.endpoint = endpoint
        """Where the broker is; the manager changes it when the broker has moved."""
        self.index = index
        self.feeds: dict[PartitionTopicInfo, Feed] = {}
        """The thread's partitions in the order they are asked for."""

    def wake(self) -> None:
        """Look at the shared state again. The caller holds the lock."""
        self._condition.notify()

    def abort(self) -> None:
        """End the thread soon, also out of a request. The caller holds the lock."""
        self._closing = True
        self._condition.notify()
        if self._connection is not None:
            self._connection.abort()

    def run(self) -> None:
        """Serve until ``abort``, or until there was nothing to do for a while."""
        try:
            while (feeds := self._choose()) is not None:
                try:
                    self._round(feeds)
                except BrokerError as exc:
                    self._fail(feeds, exc)
                except Exception as exc:  # noqa: BLE001
                    _log.exception("a fetcher met an error of its own")
                    self._fail(feeds, BrokerError(f"fetcher: {exc!r}"))
        finally:
            if self._connection is not None:
                self._connection.close()

    def _choose(self) -> list[Feed] | None:
        """Wait until some partition can be fetched and return all that can; ``None`` to end."""
        with self._condition:
            while not self._closing:
                if self._scala:
                    chosen = list(self.feeds.values())
                else:
                    chosen = [feed for feed in self.feeds.values() if not feed.queue.full]
                if chosen:
                    self._some_full = len(chosen) < len(self.feeds)
                    return chosen
                woken = self._condition.wait(None if self.feeds else _IDLE_S)
                if not woken and self._manager.retire(self):
                    return None
            return None

    def _round(self, feeds: Sequence[Feed]) -> None:
        unresolved = [feed for feed in feeds if feed.unresolved]
        if unresolved:
            self._resolve(unresolved)
        ready = [feed for feed in feeds if feed.fetcher is self and not feed.unresolved]
        if not ready:
            return
        asked: dict[tuple[str, int], tuple[Feed, int]] = {}
        wanted: list[Want] = []
        limit = self._config.fetch_message_max_bytes
        for feed in ready:
            info = feed.info
            offset = info.fetched_offset
            assert offset is not None
            asked[info.topic_partition] = feed, offset
            wanted.append(Want(info.topic, info.partition, offset, limit))
        # With a full queue about, waiting happens here and not at the broker: room in that queue
        # must end it.
        max_wait = 0 if self._some_full else self._config.fetch_wait_max_ms
        begun = time.monotonic()
        answer = self._request(wanted, max_wait, self._max_bytes(ready))
        if not self._handle(answer, asked):
            with self._condition:
                pause = begun + _PAUSE_S - time.monotonic()
                if pause > 0 and not self._closing:
                    self._condition.wait(pause)

    def _max_bytes(self, ready: Sequence[Feed]) -> int:
        """Limit an answer to what the streams have room for."""
        if self._scala:
            return _NO_LIMIT
        room = sum(queue.capacity - len(queue) for queue in {feed.queue for feed in ready})
        return min(
            self._config.fetch_max_bytes,
            max(1, room) * self._config.fetch_message_max_bytes,
            _NO_LIMIT,
        )

    def _request(self, wanted: Sequence[Want], max_wait: int, max_bytes: int) -> list[Got]:
        """Fetch; on a connection that was open before try once more after an error."""
        connection, fetch = self._connected()
        used = connection.is_open
        try:
            return self._send(fetch, wanted, max_wait, max_bytes)
        except BrokerUnavailableError:
            if not used or self._closing:
                raise
        return self._send(fetch, wanted, max_wait, max_bytes)

    def _send(
        self, fetch: Fetcher, wanted: Sequence[Want], max_wait: int, max_bytes: int
    ) -> list[Got]:
        counts = self._manager.counts
        counts.sent()
        begun = time.monotonic()
        answer = fetch.fetch(wanted, max_wait, self._config.fetch_min_bytes, max_bytes)
        counts.answered(time.monotonic() - begun, sum(len(got.data) for got in answer))
        return answer

    def _connected(self) -> tuple[BrokerConnection, Fetcher]:
        with self._condition:
            endpoint = self.endpoint
        connection, fetch = self._connection, self._fetch
        if connection is None or fetch is None or connection.endpoint != endpoint:
            if connection is not None:
                connection.close()
            connection = self._manager.connect(endpoint)
            fetch = self._manager.fetcher_for(connection)
            with self._condition:
                self._connection, self._fetch = connection, fetch
                if self._closing:
                    connection.abort()
        return connection, fetch

    def _handle(
        self, answer: Sequence[Got], asked: dict[tuple[str, int], tuple[Feed, int]]
    ) -> bool:
        """Enqueue what came; return whether anything did. Parts not asked for are ignored."""
        served: list[PartitionTopicInfo] = []
        for got in answer:
            feed, offset = asked.pop((got.topic, got.partition), (None, 0))
            if feed is None or feed.fetcher is not self or feed.info.stopped:
                continue
            info = feed.info
            if got.error == _OFFSET_OUT_OF_RANGE:
                feed.unresolved = True
                served.append(info)
            elif got.error:
                error = error_from_code(got.error, f"fetching {info.topic_partition}")
                self._manager.give_back(self, [info], str(error))
            else:
                info.high_watermark = got.high_watermark
                if got.data:
                    served.append(info)
                    self._enqueue(feed, offset, got.data)
        with self._condition:
            for info in served:  # next time the others come first
                if info in self.feeds:
                    self.feeds[info] = self.feeds.pop(info)
        return bool(served)

    def _enqueue(self, feed: Feed, offset: int, data: bytes) -> None:
        info = feed.info
        next_offset, _, damaged = scan(data)
        if next_offset is None:
            chunk = Chunk(info, data, offset, offset, damaged)
            broken = True  # damaged at once, or (brokers before 0.10.1) one message's head
        elif next_offset <= offset and not damaged:
            self._manager.give_back(
                self, [info], f"{info.topic_partition}: the answer ends below offset {offset}"
            )
            return
        else:
            chunk = Chunk(info, data, offset, max(offset, next_offset), damaged)
            broken = damaged
        if broken:
            self._give_up(feed, chunk)
        info.fetched_offset = chunk.next_offset
        self._put(feed, chunk)

    def _put(self, feed: Feed, chunk: Chunk) -> None:
        if self._scala:
            feed.queue.put_when_space(chunk)
        else:
            feed.queue.put(chunk)

    def _give_up(self, feed: Feed, chunk: Chunk) -> None:
        """Fetch no more of a partition whose iterator is going to fail."""
        with self._condition:
            self.feeds.pop(feed.info, None)
        what = "damaged" if chunk.damaged else "larger than fetch.message.max.bytes"
        self._manager.report(
            FetchEvent(
                FetchEventKind.PARTITION_FAILED,
                feed.info.topic_partition,
                self.endpoint.broker_id,
                f"{feed.info.topic_partition}: the message at or after offset "
                f"{chunk.next_offset} is {what}",
            )
        )

    def _resolve(self, feeds: Sequence[Feed]) -> None:
        """Ask for the positions that ``auto.offset.reset`` means; set what was answered."""
        which = EARLIEST if self._config.auto_offset_reset == "smallest" else LATEST
        by_partition: dict[TopicPartition, Feed] = {
            feed.info.topic_partition: feed for feed in feeds
        }
        connection, _ = self._connected()
        used = connection.is_open
        try:
            found = list_offsets(connection, by_partition.keys(), which)
        except BrokerUnavailableError:
            if not used or self._closing:
                raise
            found = list_offsets(connection, by_partition.keys(), which)
        for partition, feed in by_partition.items():
            offset = found[partition]
            if isinstance(offset, BrokerError):
                self._manager.give_back(self, [feed.info], str(offset))
            else:
                self._reset(feed, offset)

    def _reset(self, feed: Feed, offset: int) -> None:
        info = feed.info
        old = info.fetched_offset
        feed.unresolved = False
        info.resets += 1
        # Equal means that everything fetched is consumed: no other thread writes then. Otherwise
        # the new position must reach the consumer after what is still on its way.
        if self._scala or info.consumed_offset == old:
            info.consumed_offset = info.fetched_offset = offset
        else:
            info.fetched_offset = offset
            info.pending_reset = reset = Chunk(info, b"", offset, offset)
            self._put(feed, reset)
        self._manager.report(
            FetchEvent(
                FetchEventKind.OFFSET_RESET,
                info.topic_partition,
                self.endpoint.broker_id,
                f"{info.topic_partition} starts at {offset}: "
                + ("no offset was committed" if old is None else f"{old} is out of range"),
                old,
            )
        )
        if offset == old:  # the broker contradicts itself: not at full speed
            self._manager.give_back(self, [info], f"{info.topic_partition} is being cut or moved")

    def _fail(self, feeds: Collection[Feed], error: BrokerError) -> None:
        if not self._closing:
            self._manager.report(
                FetchEvent(FetchEventKind.BROKER_FAILED, None, self.endpoint.broker_id, str(error))
            )
        self._manager.give_back(self, [feed.info for feed in feeds], str(error))
