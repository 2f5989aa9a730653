"""Virtual time for the simulator: one event queue, one clock, one seeded random source.

Determines the order of all events in a simulation. Single-threaded: the caller's thread runs every
event. Time is counted in whole microseconds, so sums of delays are exact and a run is a pure
function of its seed; events due at the same microsecond run in the order they were scheduled.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush

_MICROS = 1_000_000


class Handle:
    """One scheduled event, which :meth:`Kernel.cancel` can cancel."""

    __slots__ = ("_action", "due_us")

    def __init__(self, due_us: int, action: Callable[[], object]) -> None:
        self.due_us = due_us
        self._action: Callable[[], object] | None = action

    @property
    def pending(self) -> bool:
        """Whether the event has neither run nor been cancelled."""
        return self._action is not None


class Kernel:
    """Event queue on a virtual clock.

    ``rng`` is the only random source a simulation may use; ``seed`` is kept to be printed on
    failure. ``now`` is in seconds, ``now_us`` the same moment in microseconds (exact).
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now_us = 0
        self._sequence = 0
        self._queue: list[tuple[int, int, Handle]] = []
        self._cancelled = 0

    @property
    def now(self) -> float:
        """Seconds since the simulation began."""
        return self.now_us / _MICROS

    @property
    def pending(self) -> int:
        """Number of events that are scheduled and not cancelled."""
        return len(self._queue) - self._cancelled

    def next_due(self) -> float | None:
        """Time of the next scheduled event, in seconds; ``None`` if there is none."""
        while self._queue and self._queue[0][2]._action is None:
            heappop(self._queue)
            self._cancelled -= 1
        return self._queue[0][0] / _MICROS if self._queue else None

    def schedule(self, delay: float, action: Callable[[], object]) -> Handle:
        """Run ``action`` in ``delay`` seconds, rounded to microseconds.

        A delay above 0 is at least one microsecond. So time moves even if code waits for a
        remainder that is only a rounding error.

        Raises ValueError for a negative or infinite delay.
        """
        if not 0 <= delay < float("inf"):
            raise ValueError(f"delay must be finite and not negative: {delay}")
        due_us = self.now_us
        if delay:
            due_us += round(delay * _MICROS) or 1
        handle = Handle(due_us, action)
        self._sequence += 1
        heappush(self._queue, (due_us, self._sequence, handle))
        return handle

    def schedule_at_us(self, due_us: int, action: Callable[[], object]) -> Handle:
        """Run ``action`` at the time ``due_us``, in microseconds. Raises ValueError if that is in
        the past."""
        if due_us < self.now_us:
            raise ValueError(f"due time {due_us} us is before now, {self.now_us} us")
        handle = Handle(due_us, action)
        self._sequence += 1
        heappush(self._queue, (due_us, self._sequence, handle))
        return handle

    def cancel(self, handle: Handle) -> bool:
        """Drop a scheduled event; return false if it already ran or was cancelled."""
        if handle._action is None:
            return False
        handle._action = None
        self._cancelled += 1
        if self._cancelled > 64 and self._cancelled * 2 > len(self._queue):
            # Timers that are mostly cancelled (session timeouts) must not fill the queue.
            # In place: ``run`` holds a reference to this very list.
            self._queue[:] = sorted(e for e in self._queue if e[2]._action is not None)
            self._cancelled = 0
        return True

    def step(self) -> bool:
        """Run the next event and move the clock to it; return false if none is scheduled."""
        return self.run(max_events=1) == 1

    def run(self, until: float | None = None, max_events: int | None = None) -> int:
        """Run events in order and return how many ran.

        Stops when the queue is empty, after ``max_events``, or before the first event later than
        ``until`` (seconds on the virtual clock; the clock is then exactly at ``until``, unless
        ``max_events`` stopped the run first). An exception raised by an event leaves the kernel
        usable: that event has run, later ones are still queued.
        """
        queue = self._queue
        last_us = None if until is None else round(until * _MICROS)
        count = 0
        while count != max_events:
            if not queue or (last_us is not None and queue[0][0] > last_us):
                if last_us is not None and last_us > self.now_us:
                    self.now_us = last_us
                break
            due_us, _, handle = heappop(queue)
            action = handle._action
            if action is None:
                self._cancelled -= 1
                continue
            handle._action = None
            self.now_us = due_us
            count += 1
            action()
        return count
