"""The threads of fetching, and their interface for the member (Scala: ConsumerFetcherManager).

Only this module of the package starts threads and waits. Each thread steps one worker, or the
leader finder, and does its IO. The threads share the table. Any thread may call the manager.

A thread sleeps until its alarm is set. After every change of the table, the thread that made it
calls ``take_news`` and sets the alarms. An alarm is cleared before each ``choose``, so that no
change is missed.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.config.keys import ConsumerKeys
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.errors import AuthenticationError, BrokerError
from zkconsumer.runtime.counters import FetchCounts
from zkconsumer.runtime.delivery.chunks import ChunkQueue, PartitionTopicInfo
from zkconsumer.runtime.fetch.broker_io import BrokerIO
from zkconsumer.runtime.fetch.error_log import FetchLog
from zkconsumer.runtime.fetch.interface import (
    FetchEvent,
    LeadersRequest,
    OnEvent,
    Retire,
    Wait,
    WorkerRequest,
)
from zkconsumer.runtime.fetch.leaders import LeaderFinder
from zkconsumer.runtime.fetch.table import LEADER_FINDER, FetchTable, WorkerKey
from zkconsumer.runtime.fetch.worker import FetchWorker
from zkconsumer.runtime.membership.threads import has_ended
from zkconsumer.runtime.undisturbed import Alarm

_log = logging.getLogger(__name__)

CLOSE_SECONDS: Final = 2.0
"""Seconds that the threads may take to end, unless the caller passes a timeout."""
_AFTER_OWN_ERROR_S: Final = 1.0
LEADERS_MAX_AGE_S: Final = 300.0
"""Longest time in seconds until all partitions' leaders are looked up again. Each member
shortens it by up to half at random, so that not all members do it at once."""


class ConsumerFetcherManager:
    """Fetches partitions into the queues of streams until stopped.

    Args:
        config: the member's configuration.
        client_id: sent to brokers, and part of the threads' names.
        on_event: called with every ``FetchEvent``.
        security: for all connections to brokers.
    """

    def __init__(
        self,
        config: ConsumerKeys,
        client_id: str,
        on_event: OnEvent | None = None,
        security: KafkaSecurity | None = None,
    ) -> None:
        self.counts = FetchCounts()
        self._config = config
        self._client_id = client_id
        self._security = security
        self._on_event = on_event
        self._table = FetchTable(config.num_consumer_fetchers)
        self._said = FetchLog(logging.getLogger("zkconsumer.member").log)
        self._check_at = time.monotonic() + random.uniform(0.5, 1.0) * LEADERS_MAX_AGE_S
        """When the leaders are looked up again. Used by the watchdog's thread."""
        self._lock = threading.Lock()
        self._threads: dict[WorkerKey, _Thread] = {}
        """Guarded by the lock, which is held only briefly; the table's lock may be taken inside."""
        self._closed = False
        """Written under the lock."""
        self._room = False
        """Whether a queue has room that the table does not know about yet."""

    def set_brokers(self, brokers: Sequence[BrokerEndpoint]) -> None:
        """Set the registered brokers, and search for missing leaders immediately."""
        self._table.set_brokers(brokers)
        self._wake()

    def start(self, assignments: Mapping[PartitionTopicInfo, ChunkQueue]) -> None:
        """Fetch partitions in addition to those already fetched. Returns immediately.

        Raises:
            ConnectorClosedError: after ``shutdown``.
            UsageError: a partition is being fetched or was stopped; a new claim needs a new info.
        """
        for queue in assignments.values():
            queue.when_space(self._queue_has_room)
        self._table.add(assignments)
        self._wake()

    def stop(self, infos: Iterable[PartitionTopicInfo]) -> None:
        """Stop fetching ``infos``. After this returns, none of their chunks is enqueued. Does not
        wait for requests; late answers are dropped. Unknown partitions are ignored."""
        stopped = list(infos)
        self._table.remove(stopped)
        self._said.forget(info.topic_partition for info in stopped)
        self._wake()

    def shutdown(self, timeout: float = CLOSE_SECONDS) -> None:
        """Stop everything and end the threads. May be repeated. Waits at most ``timeout`` seconds;
        a thread that hangs longer in a connection attempt has no effect any more."""
        self._table.close()
        with self._lock:
            self._closed = True
            threads = list(self._threads.values())
        for thread in threads:
            thread.abort()
        deadline = time.monotonic() + timeout
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def check(self) -> None:
        """Check the leaders from time to time, and start threads that have ended too early or could
        not be started. Called once a second.

        A replacement thread runs the same worker. Raises RuntimeError if the process cannot start
        more threads.
        """
        if time.monotonic() >= self._check_at:
            self._check_at += random.uniform(0.5, 1.0) * LEADERS_MAX_AGE_S
            self._table.check_leaders()
            self._wake()
        busy = self._table.busy()
        with self._lock:
            if self._closed:
                return
            for key, thread in list(self._threads.items()):
                if has_ended(thread):
                    _log.warning("the thread %s has ended; starting it again", thread.name)
                    self._start(key, thread.worker)
            for key in busy - self._threads.keys():
                self._start(key)

    def requests_to(self, broker: BrokerEndpoint) -> int:
        """Return how many fetchers read from this broker. Each has a request in flight."""
        return self._table.requests_to(broker)

    def _queue_has_room(self) -> None:
        """Note that a queue has room; the threads update the table themselves. The caller is a
        consuming thread, on which a signal handler may raise, so it takes no lock."""
        self._room = True
        for thread in list(self._threads.values()):
            thread.alarm.set()

    def _note_room(self) -> None:
        if self._room:
            self._room = False
            self._table.queue_has_room()
            self._wake()

    def _wake(self) -> None:
        """Wake the threads of all workers with new work, and start missing threads."""
        news = self._table.take_news()
        if not news:
            return
        with self._lock:
            if self._closed:
                return
            for key in news:
                thread = self._threads.get(key)
                if thread is None:
                    thread = self._start(key)
                thread.alarm.set()

    def _start(self, key: WorkerKey, worker: FetchWorker | LeaderFinder | None = None) -> _Thread:
        """Start a thread that steps ``worker``, or a new worker. Called under the lock."""
        thread = self._make(key, worker)
        thread.start()
        self._threads[key] = thread
        return thread

    def _make(self, key: WorkerKey, worker: FetchWorker | LeaderFinder | None = None) -> _Thread:
        """Return a thread for ``worker``, or for a new worker if it is None."""
        config, clock = self._config, time.monotonic
        broker = BrokerIO(config, self._client_id, self.counts, self._security)
        if key == LEADER_FINDER:
            name = f"{self._client_id}-leader-finder-thread"
            worker = worker or LeaderFinder(
                self._table, config, self._report, clock, random.Random()
            )
        else:
            name = f"ConsumerFetcherThread-{self._client_id}-{key.fetcher}-{key.broker_id}"
            worker = worker or FetchWorker(self._table, key, config, self._report, clock)
        return _Thread(name, self._run, key, worker, broker)

    def _run(self, thread: _Thread) -> None:
        """Step until shutdown, or until the worker has been idle for a long time. Errors do not
        end the loop, except in the few lines of this method; ``check`` then starts a new thread."""
        try:
            while True:
                thread.alarm.clear()
                if self._closed:
                    return
                self._note_room()
                chosen = thread.choose()
                if isinstance(chosen, Wait):
                    thread.alarm.wait(chosen.seconds)
                elif not isinstance(chosen, Retire):
                    thread.ask(chosen)
                    self._wake()
                    self._said.flush()
                elif self._retire(thread.key):
                    return
        finally:
            thread.broker.close()

    def _retire(self, key: WorkerKey) -> bool:
        with self._lock:  # a partition that arrives now finds no thread and starts one
            retired = self._table.retire(key)
            if retired:
                del self._threads[key]
            return retired

    def _report(self, event: FetchEvent) -> None:
        """Log an event and pass it to the connector."""
        _log.debug("%s: %s", event.kind.value, event.detail)
        self._said.add(event)
        if self._on_event is not None:
            try:
                self._on_event(event)
            except BaseException:  # noqa: BLE001
                _log.exception("on_event failed for %s", event)


class _Thread(threading.Thread):
    """Steps one worker or the leader finder. Errors do not end it."""

    def __init__(
        self,
        name: str,
        run: Callable[[_Thread], None],
        key: WorkerKey,
        worker: FetchWorker | LeaderFinder,
        broker: BrokerIO,
    ) -> None:
        super().__init__(name=name, daemon=True, target=run, args=(self,))
        self.key = key
        self.broker = broker
        self.alarm = Alarm()
        """Set by any thread that has work for this worker; cleared by this thread."""
        self.worker: Any = worker  # its requests fit its answers, which types cannot tell
        self._aborted = False

    def choose(self) -> WorkerRequest | LeadersRequest | Wait | Retire:
        """Return the next action."""
        try:
            chosen: WorkerRequest | Wait = self.worker.choose()
        except BaseException:  # noqa: BLE001 - also a SystemExit must not end the thread
            _log.exception("%s met an error of its own", self.name)
            return Wait(_AFTER_OWN_ERROR_S)
        return chosen

    def ask(self, request: WorkerRequest | LeadersRequest) -> None:
        """Ask the broker and handle its answer."""
        try:
            self.worker.take(request, request.ask(self.broker))
        except AuthenticationError as exc:  # the connector's checks end the member
            self.worker.fail(request, BrokerError(str(exc)))
        except BrokerError as exc:
            if not self._aborted:
                self.worker.fail(request, exc)
        except BaseException as exc:  # noqa: BLE001
            _log.exception("%s met an error of its own", self.name)
            self.broker.close()  # the rest of an answer may be there
            self.worker.fail(request, BrokerError(f"fetching: {exc!r}"))

    def abort(self) -> None:
        """End the thread soon, even during a request. Any thread."""
        self._aborted = True
        self.broker.abort()
        self.alarm.set()
