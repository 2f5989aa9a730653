"""Intervals of two owners that overlap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

_R = TypeVar("_R")


class Interval(NamedTuple, Generic[_R]):
    """From ``begin`` to before ``end``, with the row that it is from."""

    owner: Any
    begin: int
    end: int
    row: _R


class Overlap(NamedTuple, Generic[_R]):
    """An interval that begins during the interval of another owner, and what the two share."""

    row: _R
    other: _R
    begin: int
    end: int


def overlaps(intervals: Iterable[Interval[_R]]) -> Iterator[Overlap[_R]]:
    """Yield an overlap for each interval that begins during another owner's.

    Intervals of one owner that touch or overlap are one, with the row of the first.
    """
    longest: Interval[_R] | None = None
    for one in sorted(_merged(intervals), key=lambda one: (one.begin, one.end, one.owner)):
        if longest is not None and longest.end > one.begin:
            yield Overlap(one.row, longest.row, one.begin, min(one.end, longest.end))
        if longest is None or (one.end, one.begin) > (longest.end, longest.begin):
            longest = one


def _merged(intervals: Iterable[Interval[_R]]) -> Iterator[Interval[_R]]:
    by_owner: dict[Any, list[Interval[_R]]] = {}
    for one in intervals:
        if one.begin < one.end:
            by_owner.setdefault(one.owner, []).append(one)
    for own in by_owner.values():
        own.sort(key=lambda one: (one.begin, one.end))
        last = own[0]
        for one in own[1:]:
            if one.begin > last.end:
                yield last
                last = one
            elif one.end > last.end:
                last = last._replace(end=one.end)
        yield last
