"""The iterator as Scala 1.1.1 has it, for the profile ``scala``: see ``ConsumerIterator``."""

from __future__ import annotations

from itertools import islice

from zkconsumer.broker.records import MessageAndMetadata
from zkconsumer.runtime.delivery.chunk_queue import Chunk
from zkconsumer.runtime.delivery.consumer_iterator import ConsumerIterator, Found


class ScalaConsumerIterator(ConsumerIterator):
    """Messages count as consumed when they are returned. One that was prefetched is delivered even
    after its partition was revoked. After ``shutdown``, the current chunk is finished."""

    _prefetched: MessageAndMetadata | None = None
    """The message that ``has_next`` or ``peek`` has found."""

    def _search_ahead(self) -> Found:
        found = self._search()
        if found is Found.READY and self._prefetched is None:
            self._prefetched = next(self._run.rest)
            self._run.noted = self._run.taken
        return found

    @property
    def _has_more(self) -> bool:
        return self._prefetched is not None or self._run.left > 0

    @property
    def _front(self) -> MessageAndMetadata | None:
        return self._prefetched or super()._front

    @property
    def _count(self) -> int:
        return self._run.delivered - (self._prefetched is not None)

    def _unlock(self, most: int, *, singly: bool) -> None:
        # A message is consumed when it is returned, so each needs the lock.
        run = self._run
        prefetched, self._prefetched = self._prefetched, None
        taken = [] if prefetched is None or run.columns is not None else [prefetched]
        taken += islice(run.rest, most - len(taken))
        run.noted = run.taken
        self._info.consumed_offset = taken[-1].offset + 1
        self._unlocked = iter(taken)

    def _note(self) -> None:
        pass  # nothing is in hand

    def _finish(self, chunk: Chunk) -> None:
        self._end_chunk(chunk)

    def _end_now(self) -> None:
        pass  # the marker is found when the current chunk is used up
