"""One broker's fetcher as steps (Scala: ConsumerFetcherThread): choose, ask, take.

``choose`` returns the next request to the broker, or how long to wait. The caller sends the
request, and passes the answer to ``take`` or the error to ``fail``. No step blocks. After any
error the affected partitions are handed to the leader finder. One thread at a time.

When a stream's queue is full, the default profile leaves its partitions out of the next request,
so a slow stream does not delay others, and enqueues every answer completely. In the ``scala``
profile the worker sends no request until all chunks of the last answer are enqueued: the JVM's
thread blocks on the full queue then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, cast

from zkconsumer.broker.fetching.records import scan
from zkconsumer.broker.types import EpochEnds, Got, Want
from zkconsumer.config.keys import ConsumerKeys
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.errors import BrokerError, OffsetOutOfRangeError
from zkconsumer.runtime.delivery.chunks import Chunk, PartitionTopicInfo
from zkconsumer.runtime.fetch.interface import (
    EpochsRequest,
    FetchEvent,
    FetchEventKind,
    FetchRequest,
    OffsetsRequest,
    OnEvent,
    Retire,
    Wait,
    WorkerRequest,
)
from zkconsumer.runtime.fetch.table import FetchTable, PartitionFetchState, Work, WorkerKey

_NO_LIMIT: Final = 0x7FFFFFFF


class BackPressure(Protocol):
    """How a worker handles full queues. Used by one worker."""

    asks_when_full: bool
    """Whether a partition is requested even if its queue is full."""
    resets_at_once: bool
    """Whether a reset moves the consumed position although older chunks are still in the queue."""

    def ready(self) -> bool:
        """Enqueue chunks that did not fit before. Return whether the next request may be sent."""

    def put(self, state: PartitionFetchState, chunk: Chunk) -> None:
        """Enqueue a chunk, or keep it until there is room. Either way it counts as fetched."""

    def max_bytes(self, states: Iterable[PartitionFetchState]) -> int:
        """Return how many bytes the next answer may contain."""


class LeaveOutFull:
    """Back pressure of the default profile: requests leave out partitions with a full queue."""

    asks_when_full = False
    resets_at_once = False

    def __init__(self, config: ConsumerKeys) -> None:
        self._config = config

    def ready(self) -> bool:
        """Implement ``BackPressure.ready``."""
        return True

    def put(self, state: PartitionFetchState, chunk: Chunk) -> None:
        """Implement ``BackPressure.put``."""
        state.queue.put(chunk)
        state.info.fetched_offset = chunk.next_offset

    def max_bytes(self, states: Iterable[PartitionFetchState]) -> int:
        """Return the bytes for which the streams have room."""
        room = sum(queue.capacity - len(queue) for queue in {state.queue for state in states})
        limit = max(1, room) * self._config.fetch_message_max_bytes
        return min(self._config.fetch_max_bytes, limit, _NO_LIMIT)


def follows_epochs(config: ConsumerKeys) -> bool:
    """Return whether the profile compares leader epochs and topic ids."""
    return config.profile != "scala"  # DEVIATION-32: the JVM's consumer does not know them


def back_pressure_of(config: ConsumerKeys) -> BackPressure:
    """Return the back pressure of a worker's profile."""
    if config.profile != "scala":
        return LeaveOutFull(config)
    from zkconsumer.runtime.fetch.scala_pressure import WaitForRoom

    return WaitForRoom()


_RECREATED: Final = "the topic was deleted and created again"
IDLE_S: Final = 30.0
"""Seconds without partitions after which a worker ends."""
PAUSE_S: Final = 0.025
"""Shortest time in seconds between a request with an empty answer and its repetition."""


class FetchWorker:
    """Fetches the partitions that the table assigns to ``key``.

    Args:
        table: the partitions to fetch.
        key: the worker's name in the table.
        config: the member's configuration.
        report: called with every ``FetchEvent``, without locks.
        clock: the current time in seconds, as for ``FetchTable``.
        idle: seconds without partitions until it retires.
    """

    def __init__(
        self,
        table: FetchTable,
        key: WorkerKey,
        config: ConsumerKeys,
        report: OnEvent,
        clock: Callable[[], float],
        *,
        idle: float = IDLE_S,
    ) -> None:
        self._table = table
        self._key = key
        self._config = config
        self._pressure = back_pressure_of(config)
        self._backoff = config.refresh_leader_backoff_ms / 1000
        self._report = report
        self._clock = clock
        self._idle = idle
        self._idle_since: float | None = None
        self._asked_at = 0.0
        self._fruitless: Sequence[PartitionFetchState] | None = None
        """Partitions of the last request, if its answer was empty."""
        self._again: FetchRequest | None = None
        """The last request. It is repeated while there are no other partitions to request."""

    def choose(self) -> WorkerRequest | Wait | Retire:
        """Return the next action."""
        now = self._clock()
        if not self._pressure.ready():
            return Wait(None)  # until a queue has room, or a partition is stopped
        work = self._table.work(self._key, also_full=self._pressure.asks_when_full)
        if work is None:
            if self._idle_since is None:
                self._idle_since = now
            left = self._idle_since + self._idle - now
            return Wait(left) if left > 0 else Retire()
        self._idle_since = None
        if not work.states:
            return Wait(None)
        pause = self._asked_at + PAUSE_S - now
        if pause > 0 and work.states == self._fruitless:
            return Wait(pause)
        self._asked_at, again, self._again = now, self._again, None
        unchecked = {s.info.topic_partition: s for s in work.states if _changed(s)}
        changed = unchecked or any(s.unresolved for s in work.states)
        if again is not None and not changed and work == (again.endpoint, self._fruitless, 0):
            return again
        self._fruitless = None
        if unchecked:
            return EpochsRequest(work.endpoint, unchecked)
        unresolved = {s.info.topic_partition: s for s in work.states if s.unresolved}
        # No record of a recreated topic was read.
        recreated = {tp: s for tp, s in unresolved.items() if s.lost == _RECREATED}
        if unresolved:
            earliest = bool(recreated) or self._config.auto_offset_reset == "smallest"
            return OffsetsRequest(work.endpoint, recreated or unresolved, earliest)
        return self._fetch(work)

    def take(
        self, request: WorkerRequest, answer: Sequence[Got] | Mapping[TopicPartition, Any]
    ) -> None:
        """Handle the answer to ``request``. Partitions stopped in the meantime are ignored."""
        if isinstance(request, FetchRequest):
            self._take_records(request, cast(Sequence[Got], answer))
        elif isinstance(request, EpochsRequest):
            self._take_ends(request, cast(EpochEnds, answer))
        else:
            self._take_offsets(request, cast(Mapping[TopicPartition, Any], answer))

    def fail(self, request: WorkerRequest, error: BrokerError) -> None:
        """Handle the failure of ``request`` as a whole."""
        broker = request.endpoint.broker_id
        self._report(FetchEvent(FetchEventKind.BROKER_FAILED, None, broker, str(error)))
        self._mark_failed(request.states.values(), str(error))

    def _fetch(self, work: Work) -> FetchRequest:
        limit = self._config.fetch_message_max_bytes
        wanted: list[Want] = []
        states: dict[tuple[str, int], PartitionFetchState] = {}
        for state in work.states:
            info = state.info
            assert info.fetched_offset is not None
            epoch = -1 if info.epochs is None else info.epochs.leader
            wanted.append(Want(info.topic, info.partition, info.fetched_offset, limit, epoch))
            states[info.topic_partition] = state
        return FetchRequest(
            work.endpoint,
            states,
            wanted,
            # A partition that was left out is asked for as soon as its queue has room: so the
            # broker must not hold this request for long.
            0 if work.left_out else self._config.fetch_wait_max_ms,
            self._config.fetch_min_bytes,
            self._pressure.max_bytes(work.states),
        )

    def _take_records(self, request: FetchRequest, answer: Sequence[Got]) -> None:
        served: list[PartitionFetchState] = []
        seen: set[PartitionFetchState] = set()
        failed: set[PartitionFetchState] = set()
        for got in answer:
            state = request.states.get((got.topic, got.partition))
            if state is None or state in seen or not self._has(state):
                continue
            seen.add(state)
            offset = state.info.fetched_offset  # only this worker changes it
            assert offset is not None
            epochs = state.info.epochs
            if isinstance(got.error, OffsetOutOfRangeError):
                state.unresolved = True
                if epochs is not None and epochs.has_another_id:
                    state.lost = _RECREATED
                served.append(state)
            elif got.error is not None:
                failed.add(state)
                self._mark_failed([state], str(got.error))
            else:
                if epochs is not None:
                    epochs.note_in_log()
                state.info.high_watermark = got.high_watermark
                state.info.last_stable_offset = got.last_stable_offset
                if got.data:
                    served.append(state)
                    self._take_data(state, offset, got)
        for state in request.states.values():  # a session's answer leaves out what has nothing new
            if state not in failed:
                state.info.answers += 1
                state.info.answered_at = self._clock()
                if state.info.fault and self._has(state) and not state.unresolved:
                    self._recovered(state.info)
        self._table.served(served)
        if not served:
            self._fruitless = list(request.states.values())
            self._again = None if failed or not request.max_wait_ms else request

    def _recovered(self, info: PartitionTopicInfo) -> None:
        info.fault = None
        detail = f"{info.topic_partition} is fetched again, from broker {self._key.broker_id}"
        self._event(FetchEventKind.RECOVERED, info, detail)

    def _take_data(self, state: PartitionFetchState, offset: int, got: Got) -> None:
        info = state.info
        next_offset, _, damaged, epoch = scan(got.data)
        if info.epochs is not None:
            info.epochs.note_read(epoch)
        data = got.data
        if got.aborted:
            from zkconsumer.broker.fetching.transactions import without_aborted

            try:
                data = without_aborted(data, got.aborted)
            except BrokerError as error:
                self._mark_failed([state], f"{info.topic_partition} from offset {offset}: {error}")
                return
        if next_offset is None:  # damaged at once, or (brokers before 0.10.1) one message's head
            chunk = Chunk(info, data, offset, offset, damaged)
        elif next_offset <= offset and not damaged:
            detail = f"{info.topic_partition}: the answer ends below offset {offset}"
            self._mark_failed([state], detail)
            return
        else:
            chunk = Chunk(info, data, offset, max(offset, next_offset), damaged)
        # Only what is in the queue counts as fetched: an error in between loses nothing.
        self._pressure.put(state, chunk)
        if next_offset is None or damaged:
            self._give_up(state, chunk)

    def _give_up(self, state: PartitionFetchState, chunk: Chunk) -> None:
        """Stop fetching a partition whose iterator will fail."""
        self._table.give_up(state)
        what = "damaged" if chunk.damaged else "larger than fetch.message.max.bytes"
        tp = state.info.topic_partition
        detail = f"{tp}: the message at or after offset {chunk.next_offset} is {what}"
        self._event(FetchEventKind.PARTITION_FAILED, state.info, detail)

    def _take_offsets(
        self, request: OffsetsRequest, answer: Mapping[TopicPartition, int | BrokerError]
    ) -> None:
        for tp, state in request.states.items():
            if not self._has(state):
                continue
            offset = answer[tp]
            if isinstance(offset, BrokerError):
                self._mark_failed([state], str(offset))
            else:
                self._reset(state, offset)

    def _take_ends(self, request: EpochsRequest, answer: EpochEnds) -> None:
        """Continue at the first offset where the leader's log may differ from the records read."""
        for tp, state in request.states.items():
            epochs, position = state.info.epochs, state.info.fetched_offset
            if epochs is None or position is None or not self._has(state):
                continue
            end = answer[tp]
            if isinstance(end, BrokerError):
                self._mark_failed([state], str(end))
            elif why := epochs.truncation(position, end):
                state.lost = why
                if end is not None and end.offset >= 0:
                    self._reset(state, end.offset)
                else:
                    state.unresolved = True

    def _reset(self, state: PartitionFetchState, offset: int) -> None:
        info = state.info
        old, lost, state.lost = info.fetched_offset, state.lost, ""
        state.unresolved = False
        info.resets += 1
        if info.epochs is not None:
            info.epochs.forget_read()
        state.queue.reset(info, offset, at_once=self._pressure.resets_at_once)
        why = "no offset was committed" if old is None else lost or f"{old} is out of range"
        kind = FetchEventKind.LOG_CHANGED if lost and old else FetchEventKind.OFFSET_RESET
        self._event(kind, info, f"{info.topic_partition} starts at {offset}: {why}", old, offset)
        if offset == old and not lost:
            # The broker refuses this offset and offers it as well: the log is being truncated or
            # moved. Asking again at once would bring the same.
            detail = f"{info.topic_partition} is being truncated or moved"
            self._mark_failed([state], detail)

    def _mark_failed(self, states: Collection[PartitionFetchState], detail: str) -> None:
        again = self._clock() + self._backoff
        for info in self._table.mark_failed(self._key, states, again):
            info.failed(detail)
            self._event(FetchEventKind.LEADER_LOST, info, detail)

    def _event(
        self, kind: FetchEventKind, info: PartitionTopicInfo, detail: str, *offsets: int | None
    ) -> None:
        broker = self._key.broker_id
        self._report(FetchEvent(kind, info.topic_partition, broker, detail, *offsets))

    def _has(self, state: PartitionFetchState) -> bool:
        return state.worker == self._key and not state.info.stopped


def _changed(state: PartitionFetchState) -> bool:
    """Return whether a new leader must be asked for the position, or a recreated topic's."""
    epochs = state.info.epochs
    if epochs is not None and epochs.take_recreated():
        state.unresolved, state.lost = True, _RECREATED
    return epochs is not None and epochs.unchecked and not state.unresolved
