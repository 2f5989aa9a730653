"""Overlapping intervals of two owners."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

_R = TypeVar("_R")


class Interval(NamedTuple, Generic[_R]):
    """A period from ``begin`` up to, but excluding, ``end``, and the table row that it belongs
    to."""

    owner: Any
    begin: int
    end: int
    row: _R


class Overlap(NamedTuple, Generic[_R]):
    """Two rows whose periods overlap, and the period that they share. ``row`` began later than
    ``other``."""

    row: _R
    other: _R
    begin: int
    end: int


def overlaps(intervals: Iterable[Interval[_R]]) -> Iterator[Overlap[_R]]:
    """Yield an overlap for each interval that begins during an interval of another owner.

    Intervals of one owner that touch or overlap count as one, with the row of the first.
    """
    longest: Interval[_R] | None = None
    for interval in sorted(
        _merged(intervals), key=lambda interval: (interval.begin, interval.end, interval.owner)
    ):
        if longest is not None and longest.end > interval.begin:
            yield Overlap(interval.row, longest.row, interval.begin, min(interval.end, longest.end))
        if longest is None or (interval.end, interval.begin) > (longest.end, longest.begin):
            longest = interval


def _merged(intervals: Iterable[Interval[_R]]) -> Iterator[Interval[_R]]:
    by_owner: dict[Any, list[Interval[_R]]] = {}
    for interval in intervals:
        if interval.begin < interval.end:
            by_owner.setdefault(interval.owner, []).append(interval)
    for own in by_owner.values():
        own.sort(key=lambda interval: (interval.begin, interval.end))
        last = own[0]
        for interval in own[1:]:
            if interval.begin > last.end:
                yield last
                last = interval
            elif interval.end > last.end:
                last = last._replace(end=interval.end)
        yield last
