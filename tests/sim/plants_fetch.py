"""Bugs to plant in the data plane: table, workers, leader finder, queues, streams, gate."""

from __future__ import annotations

from collections.abc import Set

import pytest

from tests.support.rewriting import rewrite
from zkconsumer.broker.fetching import transactions
from zkconsumer.broker.fetching.records import PythonDecoder
from zkconsumer.runtime.delivery.chunks import ChunkQueue, PartitionTopicInfo
from zkconsumer.runtime.delivery.data_plane import DataPlane
from zkconsumer.runtime.delivery.reader import Reader
from zkconsumer.runtime.delivery.streams import KafkaStream
from zkconsumer.runtime.fetch import worker as worker_module
from zkconsumer.runtime.fetch.leaders import LeaderFinder
from zkconsumer.runtime.fetch.scala_pressure import WaitForRoom
from zkconsumer.runtime.fetch.table import FetchTable
from zkconsumer.runtime.fetch.worker import FetchWorker
from zkconsumer.runtime.gate import DeliveryGate

Patch = pytest.MonkeyPatch
Infos = Set[PartitionTopicInfo]


# The table.


def assigns_without_waking(patch: Patch) -> None:
    """A waiting worker does not learn of a newly assigned partition."""
    rewrite(patch, FetchTable.assign, "self._news.add(key)", "pass")


def loses_leaders_without_waking(patch: Patch) -> None:
    """The leader finder does not learn that a partition needs a leader."""
    rewrite(patch, FetchTable._to_finder, "self._news.add(LEADER_FINDER)", "pass")


def learns_brokers_without_waking(patch: Patch) -> None:
    """No leader is searched for partitions that were started before the brokers were known."""
    rewrite(patch, FetchTable.set_brokers, "self._news.add(LEADER_FINDER)", "pass")


def has_room_without_waking(patch: Patch) -> None:
    """Workers do not learn that a queue has room again."""
    rewrite(patch, FetchTable.queue_has_room, "self._news.update(self._shares)", "pass")


def keeps_failed_partitions(patch: Patch) -> None:
    """A partition that lost its leader also stays with its old worker."""
    old = "del self._shares[state.worker].states[state.info]"
    rewrite(patch, FetchTable._take_from_worker, old, "pass")


def forgets_failed_partitions(patch: Patch) -> None:
    """A partition that lost its leader has no worker, and no leader is searched for it."""
    rewrite(patch, FetchTable._to_finder, "self._leaderless[state.info] = state", "pass")


def keeps_old_addresses(patch: Patch) -> None:
    """A broker with a new address is asked at its old one."""
    rewrite(patch, FetchTable.assign, "share.endpoint = endpoint", "pass")


def ignores_full_queues(patch: Patch) -> None:
    """A partition is fetched although its queue is full."""
    rewrite(patch, FetchTable.work, "also_full or not s.queue.full", "True")


def retries_never(patch: Patch) -> None:
    """No leader is searched again for a partition that once had none."""
    rewrite(patch, FetchTable.postpone, "state.retry_at = until", "state.retry_at = 1e9")


def removes_from_the_list_only(patch: Patch) -> None:
    """A stopped partition stays with its worker."""
    rewrite(patch, FetchTable.remove, "self._take_from_worker(state)", "pass")


# The worker.


def asks_for_the_last_record_again(patch: Patch) -> None:
    """The next request begins with the last record of this answer."""
    old = "= scan(got.data)"
    new = f"{old}; next_offset = next_offset and next_offset - 1"
    rewrite(patch, FetchWorker._take_data, old, new)


def skips_a_record(patch: Patch) -> None:
    """The next request begins one record too late."""
    old = "= scan(got.data)"
    new = f"{old}; next_offset = next_offset and next_offset + 1"
    rewrite(patch, FetchWorker._take_data, old, new)


def counts_the_torn_batch(patch: Patch) -> None:
    """An incomplete batch counts as received."""
    new = """next_offset, valid, damaged, epoch = scan(got.data)
        if valid + 17 <= len(got.data):
            next_offset = scan(got.data.ljust(100_000, b"\\0")).next_offset or next_offset"""
    rewrite(patch, FetchWorker._take_data, "next_offset, _, damaged, epoch = scan(got.data)", new)


def never_resets(patch: Patch) -> None:
    """An offset out of range is requested again and again."""
    patch.setattr(worker_module, "OffsetOutOfRangeError", InterruptedError)


def resets_again_and_again(patch: Patch) -> None:
    """After a reset, the position is reset again."""
    new = "state.unresolved = info.resets == 0"
    rewrite(patch, FetchWorker._reset, "state.unresolved = False", new)


def stays_with_a_failed_broker(patch: Patch) -> None:
    """Whatever fails, the worker keeps its partitions."""
    patch.setattr(FetchWorker, "_mark_failed", lambda self, states, detail: None)


def drops_the_backlog(patch: Patch) -> None:
    """Scala profile: a chunk that does not fit into the queue is lost."""
    rewrite(patch, WaitForRoom.ready, "return False", "self._backlog.clear(); break")


def asks_with_a_backlog(patch: Patch) -> None:
    """Scala profile: more is fetched although the last answer is not enqueued yet."""
    right = WaitForRoom.ready
    patch.setattr(WaitForRoom, "ready", lambda self: right(self) or True)
    patch.setattr(ChunkQueue, "offer", ChunkQueue.put)


# The leader finder.


def remembers_leaders(patch: Patch) -> None:
    """The first broker's answer is used indefinitely."""
    old = "self._answered_last = request.endpoint"
    new = f"""{old}
        answer = self.__dict__.setdefault("first", answer) if answer.leaders else answer"""
    rewrite(patch, LeaderFinder.take, old, new)


def forgets_the_leaderless(patch: Patch) -> None:
    """After a broker has failed, the leader finder asks no broker again for these partitions."""
    new = "return self._table.postpone(request.infos, 1e9)"
    rewrite(patch, LeaderFinder.fail, "self._failed.add(request.endpoint)", new)


# Streams and queues.


def consumes_early(patch: Patch) -> None:
    """A message counts as consumed when it is returned."""
    old = "return take(self._reader.polled)"
    new = """message = take(self._reader.polled)
        if message is not None:
            self._reader._info.consumed_offset = message.offset + 1
        return message"""
    rewrite(patch, KafkaStream.try_next, old, new)


def revokes_queued_chunks_only(patch: Patch) -> None:
    """The rest of the current chunk is delivered after the revoke."""
    rewrite(patch, Reader.revoke, "self._drop_chunk()", "pass")


def revokes_the_current_chunk_only(patch: Patch) -> None:
    """Chunks in the queue are delivered after the revoke."""
    patch.setattr(ChunkQueue, "discard", lambda self, infos: None)


def decodes_past_a_revoke(patch: Patch) -> None:
    """Messages that were decoded during the revoke are delivered."""
    taken = "self.queue.current is not chunk or self._lists is not lists"
    old = "self._lock.acquire()"
    new = f"{old}; self.queue.current, self._lists = chunk, lists"
    rewrite(patch, Reader._decode_more, old, new, taken, "False")


def releases_what_is_in_hand(patch: Patch) -> None:
    """The release of a partition does not wait for the unacknowledged message."""
    patch.setattr(Reader, "release", lambda self, infos, force=False: True)


def forgets_the_deadline(patch: Patch) -> None:
    """A message that is unacknowledged beyond the release wait counts as consumed later."""
    rewrite(patch, Reader.release, "self._given_up, self._held = self._held, None", "pass")


def passes_the_gate(patch: Patch) -> None:
    """Messages are delivered while the session is uncertain."""
    old = "(clock_gettime, CLOCK) if now is None else (lambda _clock: now(), 0)"
    rewrite(patch, DeliveryGate.__init__, old, "(lambda _clock: -math.inf, 0)")
    patch.setattr(DeliveryGate, "wait_turn", lambda self, wake: True)


def delivers_below_the_position(patch: Patch) -> None:
    """Records of a batch that begins before the position are delivered as well."""
    rewrite(patch, PythonDecoder.decode, "start, None)", "0, None)")


def keeps_the_position_at_a_reset(patch: Patch) -> None:
    """A reset that reaches the consumer does not move its position."""
    new = "if chunk.data: info.consumed_offset = chunk.fetch_offset"
    rewrite(patch, Reader._begin, "info.consumed_offset = chunk.fetch_offset", new)


def delivers_what_was_aborted(patch: Patch) -> None:
    """The aborted transactions of an answer are ignored."""
    patch.setattr(transactions, "without_aborted", lambda data, aborted: data)


def takes_no_marker_for_the_end(patch: Patch) -> None:
    """After an ABORT marker, the next transactions of that producer are left out too."""
    patch.setattr(transactions, "_type_of", lambda _: 1)


def looks_for_the_end_in_what_is_left(patch: Patch) -> None:
    """The position does not pass aborted transactions at the end of an answer."""
    old = "next_offset, _, damaged, epoch = scan(got.data)"
    new = f"""from zkconsumer.broker.fetching.transactions import without_aborted
        got = got._replace(data=without_aborted(got.data, got.aborted), aborted=())
        {old}"""
    rewrite(patch, FetchWorker._take_data, old, new)


def resets_while_a_chunk_ends(patch: Patch) -> None:
    """A reset is written while the consuming thread is about to end a chunk."""
    old = "idle = self.current is None or self.current.info is not info"
    rewrite(patch, ChunkQueue.reset, old, "idle = True")


def resets_what_was_stopped(patch: Patch) -> None:
    """A late answer changes the final position of a stopped partition."""
    old = "with self.changed:"
    new = f"info.consumed_offset = offset if info.stopped else info.consumed_offset\n        {old}"
    rewrite(patch, ChunkQueue.reset, old, new)
    patch.setattr(FetchWorker, "_has", lambda self, state: True)


def overtakes_with_a_reset(patch: Patch) -> None:
    """A reset takes effect before the messages that were fetched earlier are delivered."""
    rewrite(patch, ChunkQueue.reset, "if at_once or", "if True or")


def enqueues_what_was_stopped(patch: Patch) -> None:
    """A late answer is enqueued although its partition was stopped."""
    patch.setattr(ChunkQueue, "_wants", lambda self, chunk: True)
    patch.setattr(FetchWorker, "_has", lambda self, state: True)


def never_tells_of_room(patch: Patch) -> None:
    """Workers do not learn that a queue is no longer full."""
    patch.setattr(ChunkQueue, "tell_space", lambda self: None)


def takes_the_newest(patch: Patch) -> None:
    """The last chunk in the queue is read first."""
    new = "chunks = self._chunks; chunks.rotate(1)"
    rewrite(patch, ChunkQueue.take, "chunks = self._chunks", new)


def discards_everything(patch: Patch) -> None:
    """A revoke also drops the chunks of other partitions."""
    rewrite(patch, ChunkQueue.discard, "if chunk.info not in infos", "if False")


def fetches_on_after_a_stop(patch: Patch) -> None:
    """The data plane revokes partitions but does not stop fetching them."""
    rewrite(patch, DataPlane._revoke, "self._manager.stop([info for info, _ in revoked])", "pass")
