"""The reader with the semantics of Scala 1.1.1, for the profile ``scala``: see ``Reader``."""

from __future__ import annotations

from itertools import islice

from zkconsumer.runtime.delivery.chunks import Chunk
from zkconsumer.runtime.delivery.reader import Reader, Request


class ScalaReader(Reader):
    """A reader whose messages count as consumed when they are returned. After ``shutdown`` it
    finishes the current chunk."""

    def _unlock(self, request: Request) -> None:
        # A message is consumed when it is returned, so each needs the lock.
        run, self._asked = self._run, request
        taken = [*islice(run.rest, request.most)]
        run.noted = run.taken
        self._info.consumed_offset = taken[-1].offset + 1
        items = [run.columns] if run.columns is not None else [taken] if request.lists else taken
        self._unlocked = iter(items)

    def _note(self) -> None:
        pass  # nothing is in hand

    def _finish(self, chunk: Chunk) -> None:
        self._end_chunk(chunk)

    def _end_now(self) -> None:
        """End the iteration after the current chunk."""
