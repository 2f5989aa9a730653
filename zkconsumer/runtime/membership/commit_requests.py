"""CommitRequests: requested commits, each answered once, even if the member fails.

Any thread may use it.
"""

from __future__ import annotations

import itertools
import logging
import threading
from concurrent.futures import Future

logger = logging.getLogger("zkconsumer.member")

CommitFuture = Future[tuple[str, ...]]
"""Its result is the errors; empty if all offsets are stored."""

SHUT_DOWN = "the connector is shut down"
"""The reason why a commit is refused after a normal shutdown."""


class CommitRequests:
    """Requested commits that are not answered yet. Each is answered once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, CommitFuture] = {}
        self._ended: str | None = None

    def ask(self) -> tuple[int, CommitFuture]:
        """Return the number and the future of a new request; after ``end`` it is answered."""
        future: CommitFuture = Future()
        with self._lock:
            number = next(self._numbers)
            if self._ended is None:
                self._waiting[number] = future
            else:
                future.set_result((self._ended,))
        return number, future

    def answer(self, number: int, faults: tuple[str, ...]) -> None:
        """Answer a request, unless it is answered already."""
        with self._lock:
            future = self._waiting.pop(number, None)
        if future is not None:
            _resolve(future, faults)

    def waits(self, number: int) -> bool:
        """Whether a request is not answered yet."""
        return number in self._waiting

    def end(self, reason: str) -> None:
        """Answer all requests with ``reason``, also those that follow. The first reason counts."""
        with self._lock:
            if self._ended is None:
                self._ended = reason
            waiting, self._waiting = self._waiting, {}
            reason = self._ended
        for future in waiting.values():
            _resolve(future, (reason,))


def _resolve(future: CommitFuture, faults: tuple[str, ...]) -> None:
    """Set the result. A user's callback that raises ``SystemExit`` does not end anything else."""
    try:
        future.set_result(faults)
    except BaseException:
        logger.warning("the callback of a commit raised", exc_info=True)
