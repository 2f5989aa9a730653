"""The fetch table: which partitions are fetched, from which broker, by which worker (Scala:
ConsumerFetcherManager's partitionMap and noLeaderPartitionSet, AbstractFetcherThread's
PartitionFetchState).

Decisions only: no IO, no thread, and no clock (the caller passes the time). Any thread may call
it. Its lock is held only briefly, and no lock of a stream or queue is taken inside it.

Every partition is in one of three states: without a leader (the leader finder searches it),
assigned to one worker, or failed (no longer fetched). The table records which workers have new
work; ``take_news`` returns them to the caller, which wakes their threads.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from zkconsumer.core.common.java_hash import java_hash
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.errors import ConnectorClosedError, UsageError
from zkconsumer.runtime.delivery.chunks import ChunkQueue, PartitionTopicInfo


class WorkerKey(NamedTuple):
    """The key of a worker: its broker, and its number among that broker's workers."""

    broker_id: int
    fetcher: int


LEADER_FINDER: Final = WorkerKey(-1, -1)
"""Key of the leader finder in a set of workers with new work."""


class PartitionFetchState:
    """A partition that is being fetched, and the queue for its chunks."""

    __slots__ = ("info", "lost", "queue", "retry_at", "unresolved", "worker")

    def __init__(self, info: PartitionTopicInfo, queue: ChunkQueue) -> None:
        self.info = info
        self.queue = queue
        self.worker: WorkerKey | None = None
        """The worker that fetches the partition; ``None`` while it has no leader, and after it was
        stopped or failed. Written by the table, under its lock."""
        self.retry_at = 0.0
        """When to search for a missing leader. Written by the table, under its lock."""
        self.unresolved = info.fetched_offset is None
        """Whether ``auto.offset.reset`` must choose the position first. Written by its worker."""
        self.lost = ""
        """Why the position is no longer in the log, if so. Written by its worker."""


class Work(NamedTuple):
    """The partitions that one worker can fetch now."""

    endpoint: BrokerEndpoint
    states: Sequence[PartitionFetchState]
    """The partitions in request order. Those served last are at the end."""
    left_out: int
    """Number of the worker's other partitions, whose queues are full."""


class _Share:
    """The partitions of one worker, guarded by the table's lock."""

    def __init__(self, endpoint: BrokerEndpoint) -> None:
        self.endpoint = endpoint
        """Address of the broker. Updated at each assignment, as the broker may have moved."""
        self.states: dict[PartitionTopicInfo, PartitionFetchState] = {}
        """The partitions, in request order."""


class FetchTable:
    """Records which worker fetches which partition, and which partitions have no leader.

    Args:
        fetchers: ``num.consumer.fetchers``: how many workers share a broker's partitions.
    """

    def __init__(self, fetchers: int) -> None:
        self._fetchers = fetchers
        self._lock = threading.Lock()
        # All below is guarded by the lock.
        self._states: dict[PartitionTopicInfo, PartitionFetchState] = {}
        self._leaderless: dict[PartitionTopicInfo, PartitionFetchState] = {}
        self._shares: dict[WorkerKey, _Share] = {}
        self._brokers: Mapping[int, BrokerEndpoint] = {}
        self._news: set[WorkerKey] = set()
        self._check = False
        self._closed = False

    # For the data plane.

    def set_brokers(self, brokers: Iterable[BrokerEndpoint]) -> None:
        """Replace the registered brokers, and search for missing leaders immediately."""
        with self._lock:
            self._brokers = {broker.broker_id: broker for broker in brokers}
            for state in self._leaderless.values():
                state.retry_at = 0.0
                self._news.add(LEADER_FINDER)

    def add(self, queues: Mapping[PartitionTopicInfo, ChunkQueue]) -> None:
        """Fetch partitions in addition to those already in the table, each into its queue.

        Raises:
            ConnectorClosedError: after ``close``.
            UsageError: a partition is in the table or was stopped; a new claim needs a new info.
        """
        with self._lock:
            if self._closed:
                raise ConnectorClosedError("fetching has been shut down")
            for info in queues:
                if info in self._states or info.stopped:
                    raise UsageError(f"{info.topic_partition} was already started")
            for info, queue in queues.items():
                self._states[info] = self._leaderless[info] = PartitionFetchState(info, queue)
                self._news.add(LEADER_FINDER)

    def remove(self, infos: Iterable[PartitionTopicInfo]) -> None:
        """Stop fetching ``infos``. After this returns, none of their chunks is enqueued. Does not
        wait for requests; late answers are dropped. Unknown partitions are ignored."""
        wanted = list(infos)
        for info in wanted:
            info.stopped = True
        queues: dict[ChunkQueue, None] = {}
        with self._lock:
            for info in wanted:
                state = self._states.pop(info, None)
                if state is not None:
                    queues[state.queue] = None
                    self._leaderless.pop(info, None)
                    if state.worker is not None:
                        self._news.add(state.worker)
                        self._take_from_worker(state)
        # A put that looked at ``stopped`` before it was set is over once its queue's lock was ours.
        for queue in queues:
            queue.fence()

    def close(self) -> None:
        """Stop everything. ``add`` raises from now on."""
        with self._lock:
            self._closed = True
            infos = list(self._states)
        self.remove(infos)

    def queue_has_room(self) -> None:
        """Record that a queue has room: workers may fetch the partitions that they left out."""
        with self._lock:
            self._news.update(self._shares)

    def check_leaders(self) -> None:
        """Require a new lookup of all partitions' leaders."""
        with self._lock:
            if self._shares:
                self._check = True
                self._news.add(LEADER_FINDER)

    def requests_to(self, broker: BrokerEndpoint) -> int:
        """Return how many workers fetch from this address. Each has a request in flight."""
        with self._lock:
            return sum(
                bool(share.states)
                and (share.endpoint.host, share.endpoint.port) == (broker.host, broker.port)
                for share in self._shares.values()
            )

    def take_news(self) -> set[WorkerKey]:
        """Return the workers with new work since the last call. The caller wakes their threads."""
        with self._lock:
            news, self._news = self._news, set()
            return news

    def busy(self) -> set[WorkerKey]:
        """Return the workers that have work now."""
        with self._lock:
            busy = {key for key, share in self._shares.items() if share.states}
            return busy | {LEADER_FINDER} if self._leaderless else busy

    # For the leader finder.

    @property
    def brokers(self) -> Mapping[int, BrokerEndpoint]:
        """The registered brokers, by their ids."""
        with self._lock:
            return self._brokers

    def due(self, now: float) -> tuple[Sequence[PartitionTopicInfo], float | None]:
        """Return the partitions whose leaders must be found now, and the time of the next search.
        ``None`` means: not before the table changes. Without brokers nothing is due."""
        with self._lock:
            if not (self._leaderless and self._brokers):
                return (), None
            infos = [info for info, state in self._leaderless.items() if state.retry_at <= now]
            return infos, min(state.retry_at for state in self._leaderless.values())

    def take_check(self) -> Sequence[PartitionTopicInfo]:
        """Return the partitions whose leaders must be checked, and clear the requirement."""
        with self._lock:
            wanted, self._check = self._check, False
            if not wanted:
                return ()
            return [info for share in self._shares.values() for info in share.states]

    def contradict(
        self, leaders: Mapping[PartitionTopicInfo, int]
    ) -> list[tuple[PartitionTopicInfo, int]]:
        """Take partitions away from workers whose broker does not lead them according to newer
        metadata. Return each of these partitions, with the broker that it was taken away from.
        Their leaders are looked up immediately."""
        lost: list[tuple[PartitionTopicInfo, int]] = []
        with self._lock:
            for info, leader in leaders.items():
                state = self._states.get(info)
                if state is None or state.worker is None or state.worker.broker_id == leader:
                    continue
                lost.append((info, state.worker.broker_id))
                self._to_finder(state, 0.0)
        return lost

    def assign(
        self, leaders: Mapping[PartitionTopicInfo, BrokerEndpoint]
    ) -> list[PartitionTopicInfo]:
        """Assign partitions to the workers of their leaders.

        Return those that were assigned, because some may have been stopped in the meantime.
        """
        assigned: list[PartitionTopicInfo] = []
        with self._lock:
            for info, endpoint in leaders.items():
                state = self._leaderless.pop(info, None)
                if state is None:
                    continue
                index = fetcher_index(info.topic, info.partition, self._fetchers)
                key = state.worker = WorkerKey(endpoint.broker_id, index)
                share = self._shares.setdefault(key, _Share(endpoint))
                share.endpoint = endpoint
                share.states[info] = state
                self._news.add(key)
                assigned.append(info)
        return assigned

    def postpone(self, infos: Iterable[PartitionTopicInfo], until: float) -> None:
        """Search for the leaders of ``infos`` again at the time ``until``."""
        with self._lock:
            for info in infos:
                state = self._leaderless.get(info)
                if state is not None:
                    state.retry_at = until

    # For the workers.

    def work(self, key: WorkerKey, *, also_full: bool) -> Work | None:
        """Return the partitions that worker ``key`` can fetch; ``None`` if it has none.

        Partitions whose queue is full are left out unless ``also_full``.
        """
        with self._lock:
            share = self._shares.get(key)
            if share is None or not share.states:
                return None
            states = [s for s in share.states.values() if also_full or not s.queue.full]
            return Work(share.endpoint, states, len(share.states) - len(states))

    def served(self, states: Iterable[PartitionFetchState]) -> None:
        """Record that these partitions had data, so that the worker requests its other partitions
        first next time."""
        with self._lock:
            for state in states:
                if state.worker is not None:
                    share = self._shares[state.worker].states
                    share[state.info] = share.pop(state.info)

    def mark_failed(
        self, key: WorkerKey, states: Collection[PartitionFetchState], retry_at: float
    ) -> list[PartitionTopicInfo]:
        """Take partitions away from worker ``key``, and search for their leaders from ``retry_at``
        on. Return those that the worker still had, because some may have been stopped."""
        lost: list[PartitionTopicInfo] = []
        with self._lock:
            for state in states:
                if state.worker == key:
                    self._to_finder(state, retry_at)
                    lost.append(state.info)
        return lost

    def give_up(self, state: PartitionFetchState) -> None:
        """Stop fetching a partition whose stream is about to fail."""
        with self._lock:
            if state.worker is not None:
                self._take_from_worker(state)

    def retire(self, key: WorkerKey) -> bool:
        """Remove a worker. Return false if it has received work in the meantime."""
        with self._lock:
            share = self._shares.get(key)
            if share is not None and share.states:
                return False
            self._shares.pop(key, None)
            return True

    def _to_finder(self, state: PartitionFetchState, retry_at: float) -> None:
        self._take_from_worker(state)
        state.retry_at = retry_at
        self._leaderless[state.info] = state
        self._news.add(LEADER_FINDER)

    def _take_from_worker(self, state: PartitionFetchState) -> None:
        assert state.worker is not None
        del self._shares[state.worker].states[state.info]
        state.worker = None


def fetcher_index(topic: str, partition: int, fetchers: int) -> int:
    """Return which of a broker's ``fetchers`` threads fetches a partition (Scala 1.1.1
    AbstractFetcherManager.getFetcherId): abs(31 * javaHash(topic) + partition) in 32 bits, where
    abs of the smallest integer is 0."""
    number = (31 * java_hash(topic) + partition) & 0xFFFFFFFF
    if number >= 1 << 31:
        number = (1 << 32) - number
    return 0 if number == 1 << 31 else number % fetchers
