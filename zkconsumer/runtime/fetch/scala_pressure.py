"""Back pressure as in Scala 1.1.1, for the profile ``scala``: see ``BackPressure``."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from zkconsumer.runtime.delivery.chunks import Chunk
from zkconsumer.runtime.fetch.table import PartitionFetchState


class WaitForRoom:
    """Back pressure of the ``scala`` profile: the worker waits until the full queues have room."""

    asks_when_full = True
    resets_at_once = True

    def __init__(self) -> None:
        self._backlog: deque[tuple[PartitionFetchState, Chunk]] = deque()
        """Chunks of the last answer that did not fit into the queue yet, in order."""

    def ready(self) -> bool:
        """Implement ``BackPressure.ready``."""
        while self._backlog:
            state, chunk = self._backlog[0]
            if not state.queue.offer(chunk):
                return False
            self._backlog.popleft()
        return True

    def put(self, state: PartitionFetchState, chunk: Chunk) -> None:
        """Implement ``BackPressure.put``."""
        self._backlog.append((state, chunk))
        state.info.fetched_offset = chunk.next_offset
        self.ready()

    def max_bytes(self, states: Iterable[PartitionFetchState]) -> int:
        """Implement ``BackPressure.max_bytes``. There is no limit."""
        return 0x7FFFFFFF
