"""What a ``FetchWorker`` does when a stream's queue is full: one policy for each profile.

In the default profile a partition whose queue is full is left out of the next request, so a slow
stream does not delay others, and one answer is kept as a whole. In the ``scala`` profile the worker
sends no request until all chunks of the last answer are enqueued: the JVM's thread blocks on the
full queue meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol

from zkconsumer.runtime.delivery.chunk_queue import Chunk
from zkconsumer.runtime.fetch.events import FetchConfig
from zkconsumer.runtime.fetch.table import PartitionFetchState

_NO_LIMIT: Final = 0x7FFFFFFF


class BackPressure(Protocol):
    """See the module. One worker owns it."""

    asks_when_full: bool
    """Whether a partition is requested although its queue is full."""
    resets_at_once: bool
    """Whether a reset moves the consumed position while older chunks are still in the queue."""

    def ready(self) -> bool:
        """Enqueue what had no room; return whether the next request may be sent."""

    def put(self, state: PartitionFetchState, chunk: Chunk) -> None:
        """Enqueue a chunk, or keep it until there is room. It counts as fetched."""

    def max_bytes(self, states: Iterable[PartitionFetchState]) -> int:
        """Return how much the next answer may contain."""


class LeaveOutFull:
    """The default profile's."""

    asks_when_full = False
    resets_at_once = False

    def __init__(self, config: FetchConfig) -> None:
        self._config = config

    def ready(self) -> bool:
        """See ``BackPressure``."""
        return True

    def put(self, state: PartitionFetchState, chunk: Chunk) -> None:
        """See ``BackPressure``."""
        state.queue.put(chunk)
        state.info.fetched_offset = chunk.next_offset

    def max_bytes(self, states: Iterable[PartitionFetchState]) -> int:
        """See ``BackPressure``: what the streams have room for."""
        room = sum(queue.capacity - len(queue) for queue in {state.queue for state in states})
        limit = max(1, room) * self._config.fetch_message_max_bytes
        return min(self._config.fetch_max_bytes, limit, _NO_LIMIT)


class WaitForRoom:
    """The ``scala`` profile's."""

    asks_when_full = True
    resets_at_once = True

    def __init__(self) -> None:
        self._backlog: deque[tuple[PartitionFetchState, Chunk]] = deque()
        """Chunks of the last answer that found no room yet, in order."""

    def ready(self) -> bool:
        """See ``BackPressure``."""
        while self._backlog:
            state, chunk = self._backlog[0]
            if not state.queue.offer(chunk):
                return False
            self._backlog.popleft()
        return True

    def put(self, state: PartitionFetchState, chunk: Chunk) -> None:
        """See ``BackPressure``."""
        self._backlog.append((state, chunk))
        state.info.fetched_offset = chunk.next_offset
        self.ready()

    def max_bytes(self, states: Iterable[PartitionFetchState]) -> int:
        """See ``BackPressure``: there is no such limit."""
        return _NO_LIMIT


def back_pressure_of(config: FetchConfig) -> BackPressure:
    """Return the policy of a worker's profile."""
    return WaitForRoom() if config.profile == "scala" else LeaveOutFull(config)
