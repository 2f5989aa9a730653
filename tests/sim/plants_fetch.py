"""Bugs to plant in the data plane: table, workers, leader finder, queues, streams, gate."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from typing import Any

import pytest

from zkconsumer.broker.fetching import transactions
from zkconsumer.broker.fetching.records import MessageAndMetadata, PythonDecoder, Record, Scan, scan
from zkconsumer.broker.types import ClusterMetadata, Got
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.runtime.delivery.chunks import Chunk, ChunkQueue, PartitionTopicInfo
from zkconsumer.runtime.delivery.control import StreamControl
from zkconsumer.runtime.delivery.data_plane import DataPlane
from zkconsumer.runtime.delivery.reader import Reader
from zkconsumer.runtime.delivery.streams import KafkaStream
from zkconsumer.runtime.fetch import worker as worker_module
from zkconsumer.runtime.fetch.interface import LeadersRequest
from zkconsumer.runtime.fetch.leaders import LeaderFinder
from zkconsumer.runtime.fetch.scala_pressure import WaitForRoom
from zkconsumer.runtime.fetch.table import FetchTable, PartitionFetchState, Work, WorkerKey
from zkconsumer.runtime.fetch.worker import FetchWorker
from zkconsumer.runtime.gate import DeliveryGate

Patch = pytest.MonkeyPatch
Infos = Set[PartitionTopicInfo]


# The table.


def forgets_to_wake(patch: Patch, method: str) -> None:
    """A change of the table gives work to a thread, and does not wake it."""
    right: Callable[..., object] = getattr(FetchTable, method)

    def silently(self: FetchTable, *args: object) -> object:
        news = set(self._news)
        result = right(self, *args)
        self._news = news
        return result

    patch.setattr(FetchTable, method, silently)


def assigns_without_waking(patch: Patch) -> None:
    """A waiting worker does not learn of a newly assigned partition."""
    forgets_to_wake(patch, "assign")


def loses_leaders_without_waking(patch: Patch) -> None:
    """The leader finder does not learn that a partition needs a leader."""
    forgets_to_wake(patch, "mark_failed")


def learns_brokers_without_waking(patch: Patch) -> None:
    """No leader is searched for partitions that were started before the brokers were known."""
    forgets_to_wake(patch, "set_brokers")


def has_room_without_waking(patch: Patch) -> None:
    """Workers do not learn that a queue has room again."""
    forgets_to_wake(patch, "queue_has_room")


def keeps_failed_partitions(patch: Patch) -> None:
    """A partition that lost its leader also stays with its old worker."""

    def take_from_worker(self: FetchTable, state: PartitionFetchState) -> None:
        state.worker = None

    patch.setattr(FetchTable, "_take_from_worker", take_from_worker)


def forgets_failed_partitions(patch: Patch) -> None:
    """A partition that lost its leader has no worker, and no leader is searched for it."""
    right = FetchTable.mark_failed

    def mark_failed(
        self: FetchTable, key: WorkerKey, states: Collection[PartitionFetchState], retry_at: float
    ) -> list[PartitionTopicInfo]:
        lost = right(self, key, states, retry_at)
        for info in lost:
            self._leaderless.pop(info, None)
        return lost

    patch.setattr(FetchTable, "mark_failed", mark_failed)


def keeps_old_addresses(patch: Patch) -> None:
    """A broker with a new address is asked at its old one."""
    right = FetchTable.assign

    def assign(
        self: FetchTable, leaders: Mapping[PartitionTopicInfo, BrokerEndpoint]
    ) -> list[PartitionTopicInfo]:
        old = {share: share.endpoint for share in self._shares.values()}
        result = right(self, leaders)
        for share, endpoint in old.items():
            share.endpoint = endpoint
        return result

    patch.setattr(FetchTable, "assign", assign)


def ignores_full_queues(patch: Patch) -> None:
    """A partition is fetched although its queue is full."""
    right = FetchTable.work

    def work(self: FetchTable, key: WorkerKey, *, also_full: bool) -> Work | None:
        return right(self, key, also_full=True)

    patch.setattr(FetchTable, "work", work)


def retries_never(patch: Patch) -> None:
    """No leader is searched again for a partition that once had none."""
    right = FetchTable.postpone

    def postpone(self: FetchTable, infos: Iterable[PartitionTopicInfo], until: float) -> None:
        right(self, infos, 1e9)

    patch.setattr(FetchTable, "postpone", postpone)


def removes_from_the_list_only(patch: Patch) -> None:
    """A stopped partition stays with its worker."""
    right = FetchTable.remove

    def remove(self: FetchTable, infos: Iterable[PartitionTopicInfo]) -> None:
        infos = list(infos)
        kept = {s: (s.states.get(i), i) for s in self._shares.values() for i in infos}
        right(self, infos)
        for share, (state, info) in kept.items():
            if state is not None:
                share.states[info] = state

    patch.setattr(FetchTable, "remove", remove)


# The worker.


def plants_scan(patch: Patch, change: Callable[[bytes, Scan], int | None]) -> None:
    """The next offset is read wrongly from an answer."""

    def wrong(data: bytes) -> Scan:
        found = scan(data)
        return (
            found if found.next_offset is None else found._replace(next_offset=change(data, found))
        )

    patch.setattr(worker_module, "scan", wrong)


def asks_for_the_last_record_again(patch: Patch) -> None:
    """The next request begins with the last record of this answer."""
    plants_scan(patch, lambda _, found: (found.next_offset or 0) - 1)


def skips_a_record(patch: Patch) -> None:
    """The next request begins one record too late."""
    plants_scan(patch, lambda _, found: (found.next_offset or 0) + 1)


def counts_the_torn_batch(patch: Patch) -> None:
    """An incomplete batch counts as received."""

    def change(data: bytes, found: Scan) -> int | None:
        whole = scan(data.ljust(len(data) + 100_000, b"\0"))
        torn = found.valid_bytes + 17 <= len(data)
        return whole.next_offset if torn and whole.next_offset else found.next_offset

    plants_scan(patch, change)


def never_resets(patch: Patch) -> None:
    """An offset out of range is requested again and again."""
    patch.setattr(worker_module, "OffsetOutOfRangeError", InterruptedError)


def resets_again_and_again(patch: Patch) -> None:
    """After a reset, the position is reset again."""
    right = FetchWorker._reset

    def reset(self: FetchWorker, state: PartitionFetchState, offset: int) -> None:
        first = state.info.resets == 0
        right(self, state, offset)
        state.unresolved = first

    patch.setattr(FetchWorker, "_reset", reset)


def stays_with_a_failed_broker(patch: Patch) -> None:
    """Whatever fails, the worker keeps its partitions."""
    patch.setattr(FetchWorker, "_mark_failed", lambda self, states, detail: None)


def drops_the_backlog(patch: Patch) -> None:
    """Scala profile: a chunk that does not fit into the queue is lost."""
    right = WaitForRoom.ready

    def ready(self: WaitForRoom) -> bool:
        right(self)
        self._backlog.clear()
        return True

    patch.setattr(WaitForRoom, "ready", ready)


def asks_with_a_backlog(patch: Patch) -> None:
    """Scala profile: more is fetched although the last answer is not enqueued yet."""
    right = WaitForRoom.ready
    patch.setattr(WaitForRoom, "ready", lambda self: right(self) or True)
    patch.setattr(ChunkQueue, "offer", ChunkQueue.put)


# The leader finder.


def remembers_leaders(patch: Patch) -> None:
    """The first broker's answer is used indefinitely."""
    right = LeaderFinder.take
    first: dict[LeaderFinder, ClusterMetadata] = {}

    def take(self: LeaderFinder, request: LeadersRequest, answer: ClusterMetadata) -> None:
        known = first.setdefault(self, answer)
        right(self, request, known if known.leaders else answer)

    patch.setattr(LeaderFinder, "take", take)


def forgets_the_leaderless(patch: Patch) -> None:
    """After all brokers have failed, the leader finder asks no broker again."""

    def fail(self: LeaderFinder, request: LeadersRequest, error: object) -> None:
        self._table.postpone(request.infos, 1e9)

    patch.setattr(LeaderFinder, "fail", fail)


# Streams and queues.


def consumes_early(patch: Patch) -> None:
    """A message counts as consumed when it is returned."""
    right = KafkaStream.try_next

    def try_next(self: KafkaStream) -> MessageAndMetadata | None:
        message = right(self)
        if message is not None:
            self._control.reader._info.consumed_offset = message.offset + 1
        return message

    patch.setattr(KafkaStream, "try_next", try_next)


def revokes_queued_chunks_only(patch: Patch) -> None:
    """The rest of the current chunk is delivered after the revoke."""

    def revoke(self: StreamControl, infos: Infos) -> None:
        with self._lock:
            for info in infos:
                info.revoke()
            freed = self.queue.discard(infos)
        if freed and self.queue.on_space is not None:
            self.queue.on_space()

    patch.setattr(StreamControl, "revoke", revoke)


def revokes_the_current_chunk_only(patch: Patch) -> None:
    """Chunks in the queue are delivered after the revoke."""
    patch.setattr(ChunkQueue, "discard", lambda self, infos: None)


def decodes_past_a_revoke(patch: Patch) -> None:
    """Messages that were decoded during the revoke are delivered."""
    right = Reader._decode_more

    def decode_more(self: Reader, chunk: Chunk, wanted: int) -> None:
        lists = self._lists
        self._lock.release()
        try:
            records = next(lists, None)
        finally:
            self._lock.acquire()
        self._lists = iter([] if records is None else [records])
        self._queue.current = chunk
        right(self, chunk, wanted)
        if self._queue.current is chunk:
            self._lists = lists

    patch.setattr(Reader, "_decode_more", decode_more)


def releases_what_is_in_hand(patch: Patch) -> None:
    """The release of a partition does not wait for the unacknowledged message."""
    patch.setattr(Reader, "release", lambda self, infos, force: True)


def forgets_the_deadline(patch: Patch) -> None:
    """A message that is unacknowledged beyond the release wait counts as consumed later."""

    def release(self: Reader, infos: Infos, *, force: bool) -> bool:
        return force or self._held is None or self._info not in infos

    patch.setattr(Reader, "release", release)


def passes_the_gate(patch: Patch) -> None:
    """Messages are delivered while the session is uncertain."""
    right = DeliveryGate.__init__

    def init(self: DeliveryGate, **options: Any) -> None:
        right(self, **options)
        self.clock = (lambda _clock: -math.inf, 0)  # type: ignore[misc]

    patch.setattr(DeliveryGate, "__init__", init)
    patch.setattr(DeliveryGate, "wait_turn", lambda self, wake: True)


def delivers_below_the_position(patch: Patch) -> None:
    """Records of a batch that begins before the position are delivered as well."""
    right = PythonDecoder.decode

    def decode(
        self: PythonDecoder, data: bytes, topic: str, partition: int, start: int
    ) -> Iterator[list[Record]]:
        return right(self, data, topic, partition, 0)

    patch.setattr(PythonDecoder, "decode", decode)


def keeps_the_position_at_a_reset(patch: Patch) -> None:
    """A reset that reaches the consumer does not move its position."""
    right = Reader._begin

    def begin(self: Reader, chunk: Chunk) -> None:
        old = chunk.info.consumed_offset
        right(self, chunk)
        if not chunk.data:
            chunk.info.consumed_offset = old

    patch.setattr(Reader, "_begin", begin)


def delivers_what_was_aborted(patch: Patch) -> None:
    """The aborted transactions of an answer are ignored."""
    patch.setattr(transactions, "without_aborted", lambda data, aborted: data)


def takes_no_marker_for_the_end(patch: Patch) -> None:
    """After an ABORT marker, the next transactions of that producer are left out too."""
    patch.setattr(transactions, "_type_of", lambda _: 1)


def looks_for_the_end_in_what_is_left(patch: Patch) -> None:
    """The position does not pass aborted transactions at the end of an answer."""
    right = FetchWorker._take_data

    def take_data(self: FetchWorker, state: PartitionFetchState, offset: int, got: Got) -> None:
        left = transactions.without_aborted(got.data, got.aborted)
        right(self, state, offset, got._replace(data=left, aborted=()))

    patch.setattr(FetchWorker, "_take_data", take_data)


def resets_while_a_chunk_ends(patch: Patch) -> None:
    """A reset is written while the consuming thread is about to end a chunk."""
    right = ChunkQueue.reset

    def reset(self: ChunkQueue, info: PartitionTopicInfo, offset: int, *, at_once: bool) -> None:
        current, self.current = self.current, None
        right(self, info, offset, at_once=at_once)
        self.current = current

    patch.setattr(ChunkQueue, "reset", reset)


def resets_what_was_stopped(patch: Patch) -> None:
    """A late answer changes the final position of a stopped partition."""
    right = ChunkQueue.reset

    def reset(self: ChunkQueue, info: PartitionTopicInfo, offset: int, *, at_once: bool) -> None:
        if info.stopped:
            info.consumed_offset = offset
        right(self, info, offset, at_once=at_once)

    patch.setattr(ChunkQueue, "reset", reset)
    patch.setattr(FetchWorker, "_has", lambda self, state: True)


def overtakes_with_a_reset(patch: Patch) -> None:
    """A reset takes effect before the messages that were fetched earlier are delivered."""
    right = ChunkQueue.reset

    def at_once(self: ChunkQueue, info: PartitionTopicInfo, offset: int, **_: bool) -> None:
        right(self, info, offset, at_once=True)

    patch.setattr(ChunkQueue, "reset", at_once)


def enqueues_what_was_stopped(patch: Patch) -> None:
    """A late answer is enqueued although its partition was stopped."""
    patch.setattr(ChunkQueue, "_wants", lambda self, chunk: True)
    patch.setattr(FetchWorker, "_has", lambda self, state: True)


def never_tells_of_room(patch: Patch) -> None:
    """Workers do not learn that a queue is no longer full."""
    patch.setattr(ChunkQueue, "tell_space", lambda self: None)


def takes_the_newest(patch: Patch) -> None:
    """The last chunk in the queue is read first."""
    right = ChunkQueue.take

    def take(self: ChunkQueue) -> Chunk | None:
        self._chunks.rotate(1)
        return right(self)

    patch.setattr(ChunkQueue, "take", take)


def discards_everything(patch: Patch) -> None:
    """A revoke also drops the chunks of other partitions."""

    right = ChunkQueue.discard

    def discard(self: ChunkQueue, infos: Infos) -> bool:
        right(self, {chunk.info for chunk in self._chunks})
        return False

    patch.setattr(ChunkQueue, "discard", discard)


def fetches_on_after_a_stop(patch: Patch) -> None:
    """The data plane revokes partitions but does not stop fetching them."""
    right = DataPlane._revoke

    def revoke(self: DataPlane, partitions: Any, keep: bool) -> Any:
        manager: Any = self._manager
        stop, manager.stop = manager.stop, lambda infos: None
        try:
            return right(self, partitions, keep)
        finally:
            manager.stop = stop

    patch.setattr(DataPlane, "_revoke", revoke)
