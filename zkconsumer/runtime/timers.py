"""Timers: what a loop's thread has to do at certain times, between the items of its mailbox.

Belongs to the thread that calls ``wait``; the actions run on it.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Timers:
    """Actions and when they are due. At least one must be set before the first ``wait``."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Do it once, so many seconds from now."""
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), action))

    def every(self, seconds: float, action: Callable[[], object]) -> None:
        """Do it again and again, for the first time so many seconds from now."""

        def again() -> None:
            self.after(seconds, again)
            action()

        self.after(seconds, again)

    def wait(self, mailbox: queue.SimpleQueue[T]) -> T | None:
        """Wait for the next item or action; do what is due; return the item, if there is one."""
        timeout = max(0.0, self._due[0][0] - time.monotonic())
        try:
            item = mailbox.get(timeout=timeout)
        except queue.Empty:
            item = None
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()
        return item
