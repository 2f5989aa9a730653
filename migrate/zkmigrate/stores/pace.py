"""Limits the load: the number of requests per second to all servers together.

A token bucket. Any thread; all connections of a command share one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

_BURST: Final = 0.1
"""Seconds whose requests may be sent in a burst."""


class Pace:
    """Limits the number of requests per second.

    Args:
        per_second: the limit; ``None``: no limit.
        clock: returns seconds.
        sleep: waits for the given seconds.
    """

    def __init__(
        self,
        per_second: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._each = 0.0 if per_second is None else 1 / per_second
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._next = float("-inf")
        """When the bucket has a token again, after all requests that may already be sent."""

    def __call__(self, requests: int = 1) -> None:
        """Wait until this many requests may be sent."""
        if not self._each:
            return
        with self._lock:
            now = self._clock()
            begin = max(self._next, now - _BURST)
            self._next = begin + requests * self._each
        if begin > now:
            self._sleep(begin - now)
