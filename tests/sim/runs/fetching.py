"""Fetching on virtual time: the real table, workers and leader finder, stepped by the kernel.

Replaces ``ConsumerFetcherManager``, and lacks only its threads. A worker is never stepped while its
request is in flight, nor inside its own step; others may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from tests.sim.runs.broker_log import Answer, Request, SimBrokers
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.errors import BrokerError
from zkconsumer.runtime.counters import FetchCounts
from zkconsumer.runtime.delivery.chunks import ChunkQueue, PartitionTopicInfo
from zkconsumer.runtime.fetch.interface import (
    FetchEvent,
    Retire,
    Wait,
    WorkerRequest,
)
from zkconsumer.runtime.fetch.leaders import LeaderFinder
from zkconsumer.runtime.fetch.table import LEADER_FINDER, FetchTable, WorkerKey
from zkconsumer.runtime.fetch.worker import FetchWorker

_SWITCH_S = 0.0005
"""At most this long after its alarm a thread runs."""


@dataclass
class SimConfig:
    """The keys that fetching uses, of ``ConsumerKeys``."""

    fetch_message_max_bytes: int
    fetch_max_bytes: int
    num_consumer_fetchers: int
    refresh_leader_backoff_ms: int
    auto_offset_reset: str
    profile: str
    fetch_min_bytes: int = 1
    fetch_wait_max_ms: int = 100
    socket_timeout_ms: int = 600
    socket_receive_buffer_bytes: int = 0
    isolation_level: str = "read_uncommitted"


class Host(Protocol):
    """The host that runs the steps (``zkconsumer.sim.members.host.SimHost``)."""

    random: Random

    def post(self, action: Callable[[], object]) -> None:
        """Run ``action`` soon."""

    def after(self, seconds: float, action: Callable[[], object]) -> Callable[[], object]:
        """Run ``action`` in ``seconds``; call the result to cancel."""

    def now(self) -> float:
        """The present time in seconds."""


class _Thread:
    """Replaces a thread: a worker, and when it is stepped next."""

    def __init__(self, worker: FetchWorker | LeaderFinder) -> None:
        self.worker = worker
        self.busy = False
        """A request is in flight, or a step is running."""
        self.alarm = 0
        """Number of the next step; one that was postponed is ignored."""
        self.cancel: Callable[[], object] = lambda: None
        """Cancels the next step."""


class SimFetching:
    """``ConsumerFetcherManager`` without threads.

    Args:
        host: time, random numbers, and the runner of the steps.
        brokers: receive the requests.
        config: a ``SimConfig``.
        on_event: called with every ``FetchEvent``.
        on_rule: called with the name of a broken rule and a line about it.
        idle: seconds after which a worker without partitions retires.
    """

    def __init__(
        self,
        host: Host,
        brokers: SimBrokers,
        config: Any,
        on_event: Callable[[FetchEvent], None],
        on_rule: Callable[[str, str], object],
        *,
        idle: float,
    ) -> None:
        self.counts = FetchCounts()
        self._host = host
        self._idle = idle
        self._brokers = brokers
        self._config = config
        self._on_event = on_event
        self._on_rule = on_rule
        self._table = FetchTable(config.num_consumer_fetchers)
        self._threads: dict[WorkerKey, _Thread] = {}
        self._asked: set[PartitionTopicInfo] = set()
        """Partitions in a request in flight."""
        self._closed = False

    def set_brokers(self, brokers: Sequence[BrokerEndpoint]) -> None:
        """See ``ConsumerFetcherManager.set_brokers``."""
        self._table.set_brokers(brokers)
        self._wake()

    def start(self, assignments: Mapping[PartitionTopicInfo, ChunkQueue]) -> None:
        """See ``ConsumerFetcherManager.start``."""
        for queue in assignments.values():
            queue.when_space(self._queue_has_room)
        self._table.add(assignments)
        self._wake()

    def stop(self, infos: Iterable[PartitionTopicInfo]) -> None:
        """See ``ConsumerFetcherManager.stop``."""
        self._table.remove(infos)
        self._wake()

    def shutdown(self, timeout: float = 0.0) -> None:
        """See ``ConsumerFetcherManager.shutdown``. Answers in flight still arrive."""
        self._closed = True
        self._table.close()

    def _queue_has_room(self) -> None:
        self._table.queue_has_room()
        self._wake()

    def _wake(self) -> None:
        for key in sorted(self._table.take_news()):
            if self._closed:
                return
            thread = self._threads.get(key)
            if thread is None:
                self._threads[key] = thread = _Thread(self._make(key))
            if not thread.busy:
                self._step_in(self._host.random.random() * _SWITCH_S, key, thread)

    def _make(self, key: WorkerKey) -> FetchWorker | LeaderFinder:
        clock = self._host.now
        if key != LEADER_FINDER:
            return FetchWorker(
                self._table, key, self._config, self._on_event, clock, idle=self._idle
            )
        return LeaderFinder(self._table, self._config, self._on_event, clock, self._host.random)

    def _step_in(self, delay: float, key: WorkerKey, thread: _Thread) -> None:
        thread.cancel()
        thread.alarm += 1
        alarm = thread.alarm
        thread.cancel = self._host.after(delay, lambda: self._step(key, thread, alarm))

    def _step(self, key: WorkerKey, thread: _Thread, alarm: int) -> None:
        if self._closed or thread.busy or thread.alarm != alarm:
            return
        try:
            chosen = thread.worker.choose()
        except Exception as error:  # noqa: BLE001
            self._on_rule("no_error_of_its_own", f"{key}: {error!r}")
            return
        if isinstance(chosen, Wait):
            if chosen.seconds is not None:
                self._step_in(chosen.seconds + 1e-6, key, thread)
        elif isinstance(chosen, Retire):
            if self._table.retire(key):
                del self._threads[key]
            else:
                self._step_in(0, key, thread)
        else:
            thread.busy = True
            asked = self._check(chosen)
            self._brokers.ask(
                chosen,
                lambda answer: self._host.post(lambda: self._answered(key, thread, chosen, answer)),
            )
            self._asked |= asked

    def _check(self, request: Request) -> set[PartitionTopicInfo]:
        if not isinstance(request, WorkerRequest):
            return set()
        infos = {state.info for state in request.states.values()}
        for info in infos:
            if info.stopped:
                self._on_rule("stopped_is_not_asked_for", f"{info}")
            if info in self._asked:
                self._on_rule("asked_by_one_worker", f"{info} by {request.endpoint.broker_id}")
        return infos

    def _answered(
        self, key: WorkerKey, thread: _Thread, request: Request, answer: Answer | BrokerError
    ) -> None:
        if isinstance(request, WorkerRequest):
            self._asked -= {state.info for state in request.states.values()}
        worker: Any = thread.worker  # its requests fit its answers, which types cannot tell
        try:
            if isinstance(answer, BrokerError):
                worker.fail(request, answer)
            else:
                worker.take(request, answer)
        except Exception as error:  # noqa: BLE001
            self._on_rule("no_error_of_its_own", f"{key}: {error!r}")
        thread.busy = False
        self._wake()
        if not self._closed:
            self._step_in(0.0001, key, thread)
