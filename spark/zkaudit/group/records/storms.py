"""Many events in a short time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

Events = Sequence[tuple[int, int]]
"""Pairs of a time and the number of events at that time, in order."""


class Storm(NamedTuple):
    """Many events in a short time. ``places``: the indexes of the events. ``most``: the largest
    number of events within one span."""

    places: Sequence[int]
    most: int


def recent(events: Events, span: int) -> list[int]:
    """Return, for each event, the number of events within the span that ends with it."""
    times = [time for time, _ in events]
    sums = [0, *accumulate(number for _, number in events)]
    return [
        sums[bisect_right(times, time)] - sums[bisect_left(times, time - span)] for time in times
    ]


def storms_of(events: Events, span: int, least: int) -> list[Storm]:
    """Return the storms. A storm is a series of spans with at least ``least`` events each, which
    are at most one span apart."""
    counts = recent(events, span)
    hot: dict[int, int] = {}  # place to the number of the storm
    last: int | None = None
    number = -1
    for place, (time, _) in enumerate(events):
        if counts[place] >= least:
            number += last is None or time - last > span
            hot[place], last = number, time
    places: list[list[int]] = [[] for _ in range(number + 1)]
    following: tuple[int, int] | None = None
    for place in reversed(range(len(events))):
        time = events[place][0]
        if place in hot:
            following = time, hot[place]
        if following is not None and following[0] - time <= span:
            places[following[1]].append(place)
    return [Storm(inside[::-1], max(counts[place] for place in inside)) for inside in places]
