"""The bounded queue of chunks between fetcher threads and one consuming thread.

Fetcher threads put, the consuming thread takes, the rebalancing thread discards. No call blocks.
The queue shares its lock with the stream's reader. The callback is run without that lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Set
from dataclasses import dataclass

from zkconsumer.runtime.delivery.partition_info import PartitionTopicInfo
from zkconsumer.runtime.undisturbed import Alarm, Lock


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Record bytes of one partition from one answer; decoded by the consuming thread.

    An empty chunk moves the consumed offset to ``fetch_offset`` (a reset reaches the consumer after
    all earlier chunks).
    """

    info: PartitionTopicInfo
    data: bytes
    fetch_offset: int
    """Records below it are not wanted (a compressed set may begin earlier)."""
    next_offset: int
    """Offset after the last complete entry; equal to ``fetch_offset`` if there is none."""
    damaged: bool = False
    """An entry header is invalid: decoding it will raise."""


class ChunkQueue:
    """Queue of at most ``capacity`` chunks (Scala: a LinkedBlockingQueue for each stream).

    There are two ways to add chunks. ``offer`` refuses a chunk if there is no room (scala profile).
    ``put`` relies on fetchers to request more only while the queue is not ``full``, so the queue
    may also hold the chunks of one answer.
    """

    def __init__(self, capacity: int, lock: Lock) -> None:
        if capacity < 1:
            raise ValueError(f"a queue needs room for at least one chunk, not {capacity}")
        self.capacity = capacity
        self.changed = threading.Condition(lock)
        """Notified, with the lock held, when messages are acknowledged or dropped. The threads that
        release partitions wait for it."""
        self.alarm = Alarm()
        """Set when there may be news for the consuming thread, which waits for that."""
        self.on_space: Callable[[], None] | None = None
        """Called after the queue ceased to be full, possibly more than once. It takes no lock, as
        the consuming thread calls it. Written by the fetcher manager."""
        self.closed = False
        """No more chunks are enqueued. Written by ``close``, under the lock."""
        self.current: Chunk | None = None
        """The chunk that messages are taken from at present. Written under the lock."""
        self._chunks: deque[Chunk] = deque()
        self._freed = False

    def when_space(self, call: Callable[[], None]) -> None:
        """Set ``on_space``: the fetcher manager, before it fills the queue."""
        self.on_space = call

    def __len__(self) -> int:
        return len(self._chunks)

    @property
    def full(self) -> bool:
        """Whether there are ``capacity`` chunks or more. Exact only under the lock."""
        return len(self._chunks) >= self.capacity

    def put(self, chunk: Chunk) -> bool:
        """Append without waiting; return whether the chunk was still wanted."""
        with self.changed:
            return self._append(chunk)

    def offer(self, chunk: Chunk) -> bool:
        """Append if there is room; return false if there is none and the chunk is still wanted."""
        with self.changed:
            if self.full and self._wants(chunk):
                return False
            self._append(chunk)
            return True

    def reset(self, info: PartitionTopicInfo, offset: int, *, at_once: bool) -> None:
        """Let ``info`` continue at ``offset``, which ``auto.offset.reset`` has chosen.

        The new position reaches the consuming thread after all earlier chunks, or without delay if
        there are none, or with ``at_once``. Ignored once ``info`` was stopped or revoked.
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
                info.pending_reset = chunk
                self._append(chunk)
            info.fetched_offset = offset

    def fence(self) -> None:
        """Return when every ``put`` in progress has seen ``PartitionTopicInfo.stopped``."""
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
        """Remove the current chunk from the waiting ones: after ``take``, which a signal handler
        may have ended halfway. The caller does as for ``take``."""
        chunks = self._chunks  # the handler may have called ``shutdown``
        if chunks and chunks[0] is self.current:
            if self.full:
                self._freed = True
            chunks.popleft()

    def end_current(self) -> None:
        """Messages are not taken from the current chunk any more. The caller holds the lock."""
        self.current = None

    def discard(self, infos: Set[PartitionTopicInfo]) -> bool:
        """Remove all chunks of ``infos``. Return whether the caller is to call ``on_space``, which
        it does after releasing the lock that it holds."""
        was_full = self.full
        self._chunks = deque(chunk for chunk in self._chunks if chunk.info not in infos)
        return was_full and not self.full and self.on_space is not None

    def close(self) -> bool:
        """Remove all chunks, and enqueue no more. The caller does as for ``discard``."""
        self.closed = True
        was_full = self.full
        self._chunks = deque()
        return was_full and self.on_space is not None

    def after_fork(self, lock: Lock) -> None:
        """Replace the lock, in a child process."""
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
