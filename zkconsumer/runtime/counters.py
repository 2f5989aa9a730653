"""Metrics instruments: meters, histograms, counts of requests and rebalances. They have no thread.

Each docstring names the thread that writes it; any thread may read them.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import expm1

from zkconsumer.core.common import commands

_MINUTE = 60.0
#: Bounds of the histogram of the fetchers' requests.
FETCH_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class HistogramValue:
    """The counts of a histogram."""

    count: int
    sum: float
    buckets: Mapping[float, int]
    """Ascending upper bounds, each with the number of values up to it; in total ``count``."""


class Meter:
    """A total and its one-minute rate. Any thread may use it.

    ``rate`` takes a sample. More samples make the rate more accurate: counts between two samples
    are assumed to be evenly spread.

    Args:
        count: returns the total, which never decreases; may take a stream's lock.
        clock: seconds.
    """

    def __init__(
        self, count: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._count = count
        self._clock = clock
        self._lock = threading.RLock()
        self._total = count()
        self._at = clock()
        self._mean = 0.0
        self._weight = 0.0

    @property
    def total(self) -> int:
        """The current total."""
        return self._count()

    def rate(self) -> float:
        """Counts per second over the last minute. In the first minute, the mean since the start."""
        with self._lock:
            now, total = self._clock(), self._count()
            passed = now - self._at
            if passed > 0:
                fresh = -expm1(-passed / _MINUTE)
                self._mean += ((total - self._total) / passed - self._mean) * fresh
                self._weight += (1 - self._weight) * fresh
                self._total, self._at = total, now
            return self._mean / self._weight if self._weight else 0.0


class Histogram:
    """Counts of values by size. Any thread may call it."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._lock = threading.RLock()
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count ``value``."""
        with self._lock:
            self._counts[bisect_left(self._bounds, value)] += 1
            self._sum += value

    @property
    def value(self) -> HistogramValue:
        """The current counts."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        buckets: dict[float, int] = {}
        so_far = 0
        for bound, count in zip(self._bounds, counts, strict=False):
            so_far += count
            buckets[bound] = so_far
        return HistogramValue(sum(counts), total, buckets)


class FetchCounts:
    """Counts of fetch requests and answers. Fetcher threads record them with ``sent`` and
    ``answered``."""

    def __init__(self) -> None:
        self.requests = 0
        self.bytes = 0
        self.seconds = Histogram(FETCH_SECONDS)
        self._lock = threading.RLock()

    def sent(self) -> None:
        """Count a request before it is sent."""
        with self._lock:
            self.requests += 1

    def answered(self, seconds: float, size: int) -> None:
        """Count an answer that arrived after ``seconds``, with ``size`` record bytes."""
        self.seconds.add(seconds)
        with self._lock:
            self.bytes += size


class RebalanceCounts:
    """Number and duration of rebalances. Written by the loop's thread.

    A rebalance counts if partitions were stopped or started.

    Args:
        settled: states in which no rebalance is in progress.
        outside: states outside the group, in which no rebalance is measured.
        before: states that do not begin a rebalance, but may occur during one.
        clock: seconds.
    """

    def __init__(
        self,
        settled: Collection[Enum],
        outside: Collection[Enum],
        before: Collection[Enum],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.count = 0
        self.seconds = 0.0
        self.last_seconds = 0.0
        self._settled, self._outside, self._before = settled, outside, before
        self._clock = clock
        self._begun: float | None = None
        self._moved = False

    def stepped(self, state: Enum, following: Sequence[object]) -> None:
        """Count a step of the machine that ended in ``state`` and returned these commands."""
        if any(isinstance(command, _MOVES) for command in following):
            self._moved = True
        if state in self._outside:
            self._begun = None
        elif state in self._settled:
            if self._begun is not None and self._moved:
                self.last_seconds = self._clock() - self._begun
                self.count += 1
                self.seconds += self.last_seconds
            self._begun = None
        elif self._begun is None and state not in self._before:
            self._begun = self._clock()
            self._moved = any(isinstance(command, _MOVES) for command in following)


_MOVES = commands.StopFetching | commands.StartFetching
