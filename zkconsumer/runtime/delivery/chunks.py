"""Chunks that are queued for the consuming thread, and the positions of their partitions.

One ``PartitionTopicInfo`` for each claim: a partition that is lost and claimed again gets a new
one, so that late events cannot reach the new claim. The docstring of each attribute names the
thread that writes it; all of them may be read by any thread.

Fetcher threads put chunks into a queue, the consuming thread takes them, the rebalancing thread
discards them. No call blocks. The queue shares its lock with the stream's reader. The callback is
run without that lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Set
from dataclasses import InitVar, dataclass, field
from operator import length_hint
from typing import TYPE_CHECKING, Any

from zkconsumer.core.common.faults import Fault, Trouble
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.runtime.undisturbed import Alarm, Lock

if TYPE_CHECKING:
    from zkconsumer.broker.fetching.epochs import PartitionEpochs
    from zkconsumer.broker.fetching.records import MessageAndMetadata


class Run:
    """Decoded messages of one partition, which ``rest`` yields one at a time.

    Taking a message is a single step of a list iterator. This needs no lock, because the
    interpreter runs one thread at a time and switches only between steps. All counts are derived
    from the iterator's position.

    Args:
        messages: what to deliver.
        before: number of messages that were delivered before them.
        columns: the ``RecordBatch`` to deliver; ``messages`` then has one placeholder for it.
    """

    __slots__ = ("base", "before", "columns", "dropped", "messages", "noted", "rest", "singly")

    def __init__(
        self, messages: list[MessageAndMetadata], before: int = 0, columns: Any = None
    ) -> None:
        self.messages = messages
        self.rest = iter(messages)
        self.before = before
        self.columns = columns
        self.noted = 0
        """Number of taken messages that the reader has recorded as delivered."""
        self.base = 0
        """Number of messages taken before the last list."""
        self.singly = False
        """Whether messages are currently taken one at a time, not as lists."""
        self.dropped = False
        """Whether the remaining messages were dropped because the partition was revoked."""

    def begin(self, singly: bool) -> None:
        """Make the messages available, one at a time or as a list."""
        self.base, self.singly = len(self.messages) - length_hint(self.rest), singly

    @property
    def left(self) -> int:
        """Number of messages not taken."""
        return length_hint(self.rest)

    @property
    def taken(self) -> int:
        """Number of messages taken. Wrong while another thread runs ``drain``."""
        return len(self.messages) - length_hint(self.rest)

    @property
    def delivered(self) -> int:
        """Number of messages delivered, including the last one taken."""
        return self.before + self.taken * (1 if self.columns is None else self.columns.num_rows)

    @property
    def consumed(self) -> int | None:
        """Offset after the second to last message taken; ``None`` if fewer than two were taken."""
        taken = self.taken
        return self.messages[taken - 2].offset + 1 if taken > 1 else None

    def drain(self) -> None:
        """Drop the messages that were not taken."""
        left = len(list(self.rest))  # one step
        del self.messages[len(self.messages) - left :]
        self.dropped = True

    def from_index(self, first: int) -> Run:
        """Return a run of the messages from this index on, with none of them taken."""
        rows = 1 if self.columns is None else self.columns.num_rows
        return Run(self.messages[first:], self.before + first * rows, self.columns)


@dataclass(slots=True, eq=False, repr=False)
class PartitionTopicInfo:
    """Positions and state of one claim of a partition. Compared by identity.

    ``start_offset`` is the offset to read first, as committed; ``None``, or a negative number
    (which old tools may have stored), if there is none. Then ``auto.offset.reset`` decides.
    """

    topic: str
    partition: int
    start_offset: InitVar[int | None]
    topic_partition: TopicPartition = field(init=False)
    _consumed: int | None = field(init=False)
    run: Run | None = None
    """Messages currently taken without the lock. Written under the stream's lock."""
    fetched_offset: int | None = field(init=False)
    """Offset to fetch next; ``None`` until known. Written by the partition's fetch worker."""
    finished_offset: int = 0
    """Offset after the last chunk that was consumed. Written under the stream's lock."""
    high_watermark: int | None = None
    """High watermark in the last answer. Written by the partition's fetch worker."""
    last_stable_offset: int | None = None
    """With ``read_committed``: the first offset of the oldest open transaction, otherwise the
    high watermark. Written by the partition's fetch worker."""
    answered_at: float | None = None
    """When a broker last answered for the partition, in seconds of the fetcher's clock;
    ``None``: never. Written by the partition's fetch worker."""
    answers: int = 0
    """Number of brokers' answers for the partition. Written by its fetch worker."""
    epochs: PartitionEpochs | None = None
    """Leader epochs, if the brokers support them. Written by the leader finder."""
    fault: Fault | None = None
    """Why the last attempt to fetch the partition failed; cleared by a success. Written by
    the fetch worker and the leader finder; only one of them has the partition at a time."""
    leader_from: BrokerEndpoint | None = None
    """The broker that last answered which broker leads the partition. Written by the leader
    finder."""
    resets: int = 0
    """How often ``auto.offset.reset`` chose the position. Written by the fetch worker."""
    pending_reset: Chunk | None = None
    """The chunk with a position that ``auto.offset.reset`` chose. It reaches the consuming
    thread after all earlier chunks. Written under the stream's lock: set by
    ``ChunkQueue.reset``, cleared by the consuming thread."""
    reset_back: bool = False
    """Whether that position is below the last fetched offset: the log was truncated, and
    queued messages may still be in the log."""
    revoked: bool = False
    """Whether delivery has been stopped. Written by ``Reader.revoke``, under the stream's lock."""
    stopped: bool = False
    """Whether enqueuing has been stopped. Written by ``FetchTable.remove``."""

    def __post_init__(self, start_offset: int | None) -> None:
        self.topic_partition = TopicPartition(self.topic, self.partition)
        start = start_offset if start_offset is not None and start_offset >= 0 else None
        self._consumed = self.fetched_offset = start

    def failed(self, text: str) -> None:
        """Record that an attempt to fetch the partition has failed."""
        self.fault = Fault(Trouble.FETCHING, text, str(self.topic_partition))

    @property
    def consumed_offset(self) -> int | None:
        """Offset of the next message to be consumed; ``None`` until known. Written under the
        stream's lock: by the consuming thread, and by ``ChunkQueue.reset``."""
        run = self.run
        if run is not None:
            consumed = run.consumed
            # Otherwise it may be in ``drain``; what it reported before is noted soon.
            if consumed is not None and self.run is run:
                return max(consumed, self._consumed or 0)
        return self._consumed

    @consumed_offset.setter
    def consumed_offset(self, offset: int | None) -> None:
        self._consumed = offset

    @property
    def position(self) -> int | None:
        """The position that a commit stores; ``None`` until known.

        A reset takes effect at once (as in Scala 1.1.1
        ConsumerFetcherThread.handleOffsetOutOfRange), because the earlier positions are no longer
        in the log. A backward reset does not raise the position: the queued messages may be in the
        log and must not be skipped.
        """
        reset = self.pending_reset
        consumed = self.consumed_offset
        if reset is None:
            return consumed
        if self.reset_back and consumed is not None:
            return min(consumed, reset.fetch_offset)
        return reset.fetch_offset

    @property
    def lag(self) -> int | None:
        """Number of messages from the position to the last readable one; ``None`` until known."""
        return self._left_after(self.position)

    @property
    def caught_up(self) -> bool:
        """Whether every readable message has been consumed. In profile ``scala``, ``lag`` may be
        above 0 even then."""
        return 0 in (self.lag, self._left_after(self.finished_offset))

    def _left_after(self, position: int | None) -> int | None:
        end = self.high_watermark if self.last_stable_offset is None else self.last_stable_offset
        return None if end is None or position is None else max(0, end - position)

    def __repr__(self) -> str:
        state = " revoked" if self.revoked else " stopped" if self.stopped else ""
        return (
            f"<{self.topic_partition} consumed {self.consumed_offset} "
            f"fetched {self.fetched_offset}{state}>"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Record bytes of one partition from one answer; decoded by the consuming thread.

    An empty chunk moves the consumed offset to ``fetch_offset``: a reset takes effect after all
    earlier chunks.
    """

    info: PartitionTopicInfo
    data: bytes
    fetch_offset: int
    """First wanted offset. A compressed set may begin earlier."""
    next_offset: int
    """Offset after the last complete entry; equal to ``fetch_offset`` without one."""
    damaged: bool = False
    """Whether an entry header is invalid. Decoding the chunk will raise."""


class ChunkQueue:
    """Queue of at most ``capacity`` chunks (Scala: a LinkedBlockingQueue for each stream).

    There are two ways to add chunks. ``offer`` refuses a chunk if there is no room (scala
    profile). ``put`` relies on fetchers to request more only while the queue is not ``full``, so
    the queue may exceed ``capacity`` by the chunks of one answer.
    """

    def __init__(self, capacity: int, lock: Lock) -> None:
        if capacity < 1:
            raise ValueError(f"a queue needs room for at least one chunk, not {capacity}")
        self.capacity = capacity
        self.changed = threading.Condition(lock)
        """Notified, with the lock held, when messages are acknowledged or dropped. Threads that
        release partitions wait for it."""
        self.alarm = Alarm()
        """Set when the consuming thread, which waits for it, should check for changes."""
        self.on_space: Callable[[], None] | None = None
        """Called after the queue stopped being full, possibly more than once. It must not take a
        lock, as the consuming thread calls it. Written by the fetcher manager."""
        self.closed = False
        """Whether the queue accepts no more chunks. Written by ``close``, under the lock."""
        self.current: Chunk | None = None
        """The chunk from which messages are currently taken. Written under the lock."""
        self._chunks: deque[Chunk] = deque()
        self._freed = False

    def when_space(self, call: Callable[[], None]) -> None:
        """Set ``on_space``, which is called when the queue has room again."""
        self.on_space = call

    def __len__(self) -> int:
        return len(self._chunks)

    @property
    def full(self) -> bool:
        """Whether there are at least ``capacity`` chunks. Exact only under the lock."""
        return len(self._chunks) >= self.capacity

    def has(self, info: PartitionTopicInfo) -> bool:
        """Whether a chunk of this partition is queued."""
        with self.changed:
            return any(chunk.info is info for chunk in self._chunks)

    def put(self, chunk: Chunk) -> bool:
        """Append a chunk without waiting. Return whether the chunk was still wanted."""
        with self.changed:
            return self._append(chunk)

    def offer(self, chunk: Chunk) -> bool:
        """Append a chunk if there is room. Return false if there is no room and the chunk is still
        wanted."""
        with self.changed:
            if self.full and self._wants(chunk):
                return False
            self._append(chunk)
            return True

    def reset(self, info: PartitionTopicInfo, offset: int, *, at_once: bool) -> None:
        """Let ``info`` continue at ``offset``, which ``auto.offset.reset`` has chosen.

        The new position reaches the consuming thread after all earlier chunks, or immediately if
        there are none, or with ``at_once``. Ignored if ``info`` has been stopped or revoked.
        """
        chunk = Chunk(info, b"", offset, offset)
        with self.changed:
            if not self._wants(chunk):
                return
            # While a chunk of it is the current one, the consuming thread writes the consumed
            # offset once more at the chunk's end, also if all its messages are consumed.
            idle = self.current is None or self.current.info is not info
            if at_once or (idle and info.consumed_offset == info.fetched_offset):
                info.consumed_offset = offset
            else:
                info.reset_back = info.fetched_offset is not None and offset < info.fetched_offset
                info.pending_reset = chunk
                self._append(chunk)
            info.fetched_offset, info.finished_offset = offset, 0

    def fence(self) -> None:
        """Wait until every ``put`` in progress has seen ``PartitionTopicInfo.stopped``."""
        with self.changed:
            pass

    def take(self) -> Chunk | None:
        """Make the first chunk current. The caller holds the lock, and calls
        ``tell_space`` after releasing it."""
        chunks = self._chunks
        if not chunks:
            return None
        self.current = chunk = chunks[0]
        self.settle()
        return chunk

    def settle(self) -> None:
        """Complete a ``take`` that a signal handler interrupted: remove the current chunk from
        the queue. The caller has the same duties as for ``take``."""
        chunks = self._chunks  # the handler may have called ``shutdown``
        if chunks and chunks[0] is self.current:
            if self.full:
                self._freed = True
            chunks.popleft()

    def end_current(self) -> None:
        """Take no more messages from the current chunk. The caller holds the lock."""
        self.current = None

    def discard(self, infos: Set[PartitionTopicInfo]) -> bool:
        """Remove all chunks of ``infos``. Return whether the caller must call ``on_space``, after
        it has released its lock."""
        was_full = self.full
        self._chunks = deque(chunk for chunk in self._chunks if chunk.info not in infos)
        return was_full and not self.full and self.on_space is not None

    def close(self) -> bool:
        """Remove all chunks, and accept no more. Returns the same as ``discard``."""
        self.closed = True
        was_full = self.full
        self._chunks = deque()
        return was_full and self.on_space is not None

    def after_fork(self, lock: Lock) -> None:
        """Replace the lock in a child process."""
        self.changed = threading.Condition(lock)

    def tell_space(self) -> None:
        """Call ``on_space`` if ``take`` has made room. The consuming thread only."""
        if self._freed and not self.full:
            if self.on_space is not None:
                self.on_space()
            self._freed = False  # not before: a signal handler may have raised in between

    def _wants(self, chunk: Chunk) -> bool:
        return not (self.closed or chunk.info.stopped or chunk.info.revoked)

    def _append(self, chunk: Chunk) -> bool:
        if not self._wants(chunk):
            return False
        self._chunks.append(chunk)
        self.alarm.set()
        return True
