"""Translates an offset to another cluster's copy of the topic, by content. Pure.

Records are compared, never the numbers of their offsets: a mirror assigns other offsets, leaves
out compacted and aborted records, and may repeat records. A record whose content (time, key, value
and headers) occurs once in both logs is an *anchor*. The position is *proven* if the next record
to consume is an anchor, or lies between two anchors with the same records between them, and if the
difference between the logs around it has a visible reason: a record can only be absent from a log
where its offsets have a gap. A gap does not show which record was there. So the result names the
records that only one log has. They must not be in another partition of the other log's topic,
which ``stores.translator`` checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

NO_TIME: Final = -1
"""Timestamp of a record without a timestamp that a mirror keeps: formats before Kafka 0.10, and
topics whose brokers set it (``LogAppendTime``)."""
_ANCHORS: Final = 5
"""Number of anchors that are compared on each side of a position."""
_ENOUGH: Final = 3
"""Number of anchors that must be equal, if the source has that many records."""


class Seen(NamedTuple):
    """The data by which a record is compared with the records in another log.

    Args:
        offset: the record's offset in its own log.
        timestamp: milliseconds, or ``NO_TIME``.
        digest: a hash of key, value and headers.
    """

    offset: int
    timestamp: int
    digest: bytes


@dataclass(frozen=True)
class Excerpt:
    """One part of a log, with all records that consumers can read.

    Args:
        records: all records from ``begin`` to ``end``, in offset order.
        begin: the lowest offset of this part.
        end: the offset after this part.
        earliest: the beginning of the whole log.
        latest: the end of the whole log.
    """

    records: Sequence[Seen]
    begin: int
    end: int
    earliest: int
    latest: int

    @property
    def begins(self) -> bool:
        """Whether the log has no record before this part."""
        return self.begin <= self.earliest

    @property
    def ends(self) -> bool:
        """Whether the log has no record after this part."""
        return self.end >= self.latest

    @cached_property
    def times(self) -> tuple[int, int, int]:
        """The lowest timestamp, the highest, and the slack, in milliseconds. The slack is the
        largest amount by which a record's timestamp is below that of an earlier record."""
        highest = lowest = slack = NO_TIME
        for record in self.records:
            if record.timestamp == NO_TIME:
                return NO_TIME, NO_TIME, 0
            highest = max(highest, record.timestamp)
            lowest = record.timestamp if lowest == NO_TIME else min(lowest, record.timestamp)
            slack = max(slack, highest - record.timestamp)
        return lowest, highest, max(slack, 0)

    def nothing_before(self, timestamp: int) -> bool:
        """Whether no record before this part can have this timestamp. Allows for the slack in
        ``times``."""
        lowest, _, slack = self.times
        return self.begins or (timestamp != NO_TIME and NO_TIME < lowest < timestamp - slack)

    def nothing_after(self, timestamp: int) -> bool:
        """Whether no record after this part can have this timestamp. Allows for the slack in
        ``times``."""
        _, highest, slack = self.times
        return self.ends or (timestamp != NO_TIME and highest > timestamp + slack)


def shared_part(excerpt: Excerpt, other: Excerpt) -> Excerpt | None:
    """Return the part of an excerpt from the first to the last record that ``other`` also has;
    ``None`` if they share no record.

    The removed records were not copied from one cluster to the other, and would disturb the order
    of timestamps.
    """
    timed = NO_TIME not in (excerpt.times[0], other.times[0])
    content = _with_time if timed else _without_time
    known = set(map(content, other.records))
    shared = [at for at, one in enumerate(excerpt.records) if content(one) in known]
    if not shared:
        return None
    records = excerpt.records[shared[0] : shared[-1] + 1]
    begin, end = records[0].offset, records[-1].offset + 1
    return replace(excerpt, records=records, begin=begin, end=end)


class Proof(Enum):
    """How certain a translated offset is. Plans contain the value."""

    PROVEN = "proven"
    BOUNDED = "bounded"
    UNKNOWN = "unknown"


class Translation(NamedTuple):
    """The result of translating an offset to another cluster.

    Args:
        proof: how certain the result is.
        low: the lowest offset that is possible. A consumer that continues here skips no record.
            ``None`` if unknown.
        high: the highest offset that is possible; equal to ``low`` if proven.
        compared: the number of equal records in both logs near the offset.
        why: what proves the result, or what is missing.
        more: whether reading larger parts of the logs may prove it.
        only_here: records that the source has more often than the target, although the part of the
            target that was read should have them all. If another partition of the target has them,
            the target is not a copy.
        only_there: likewise, records that the target has more often.
        differs: whether the target has the records in another order, or has lost some without a
            gap.
    """

    proof: Proof
    low: int | None
    high: int | None
    compared: int
    why: str
    more: bool = False
    only_here: tuple[Seen, ...] = ()
    only_there: tuple[Seen, ...] = ()
    differs: bool = False


class _Content(Protocol):
    def __call__(self, record: Seen) -> object: ...


def translate(offset: int, source: Excerpt, target: Excerpt) -> Translation:
    """Return the position in ``target`` of a consumer whose next offset in ``source`` is
    ``offset``.

    ``source``: the part of the log around ``offset``. Open transactions can hide the records before
    ``offset``, so this part may end below it.
    """
    return _Comparison(offset, source, target).result()


@dataclass(frozen=True)
class _Pair:
    """An anchor: the indexes of its record in both excerpts."""

    source: int
    target: int


class _Comparison:
    def __init__(self, offset: int, source: Excerpt, target: Excerpt) -> None:
        self.offset, self.source, self.target = offset, source, target
        timed = NO_TIME not in (source.times[0], target.times[0])
        self.content: _Content = _with_time if timed else _without_time
        self.timed = timed
        self.next = next(
            (at for at, one in enumerate(source.records) if one.offset >= offset),
            len(source.records),
        )
        """Index of the next record to consume; the number of records if there is none yet."""
        self.where: dict[object, list[int]] = {}
        for at, record in enumerate(target.records):
            self.where.setdefault(self.content(record), []).append(at)
        anchors = self._anchors()
        self.before = [one for one in anchors if one.source < self.next][-_ANCHORS:]
        self.after = [one for one in anchors if one.source >= self.next][:_ANCHORS]
        self.crossed = self._crossed(anchors)
        self.more = not (source.begins and source.ends and target.begins and target.ends)

    def result(self) -> Translation:
        """Return the translation."""
        found = self._found()
        if found.low is not None or not self._has_any():
            here, there = self._only_in_one()
            found = found._replace(only_here=here, only_there=there)
        if self.offset >= self.source.earliest or found.low is None:
            return found
        why = "the source has lost the next record"
        more = found.more and found.proof is not Proof.PROVEN
        return found._replace(proof=Proof.BOUNDED, low=self.target.earliest, why=why, more=more)

    def _found(self) -> Translation:
        if not self.target.records:
            return self._none_in_target()
        if not self.source.records:
            bounds = self.target.earliest, self.target.latest
            return self._bounded(*bounds, "the source has no record to compare")
        if self.crossed:
            why = "the records have another order there: not the same partitions"
            return self._unknown(why)._replace(differs=True)
        around = (*self.before, *self.after)
        lost, extra = self._unexplained(around)
        if lost:
            why = f"{lost} records between equal ones are missing there"
            return self._unknown(why)._replace(differs=True)
        if around and self._compared() < min(_ENOUGH, len(self.source.records)):
            high = self._offset(self.after[0].target) if self.after else self.target.latest
            why = "too few records nearby are equal and unique"
            return self._bounded(self.target.earliest, high, why)
        at, why = self._position(around)
        if at is None:
            return self._between(why)
        first = self._first_remaining()
        low = at if first is None else min(first, at)
        if extra:
            return self._bounded(low, at, f"{extra} records between equal ones exist only there")
        if low < at:
            return self._bounded(low, at, "records that follow it are also before it there")
        if self._other_side():
            return self._bounded(at, at, "the records on one side of it differ")
        if self._consumed_follow(at):
            return self._bounded(at, at, "records before it are only after it there")
        return Translation(Proof.PROVEN, at, at, self._compared(), why)

    def _anchors(self) -> list[_Pair]:
        """Return the records that occur once in both logs, in the source's order."""
        counts = Counter(map(self.content, self.source.records))
        return [
            _Pair(at, self.where[content][0])
            for at, record in enumerate(self.source.records)
            if counts[content := self.content(record)] == 1
            and len(self.where.get(content, ())) == 1
            and self._is_closed(self.source, record)
            and self._is_closed(self.target, record)
        ]

    def _is_closed(self, excerpt: Excerpt, record: Seen) -> bool:
        time = record.timestamp if self.timed else NO_TIME
        return excerpt.nothing_before(time) and excerpt.nothing_after(time)

    def _crossed(self, anchors: Iterable[_Pair]) -> bool:
        """Whether records before and after the position have changed sides, or their order near
        it."""
        anchors = list(anchors)
        low = max((one.target for one in anchors if one.source < self.next), default=-1)
        after = [one.target for one in anchors if one.source >= self.next]
        around = (*self.before, *self.after)
        return low >= min(after, default=low + 1) or any(
            one.target >= other.target for one, other in pairwise(around)
        )

    def _unexplained(self, around: Sequence[_Pair]) -> tuple[int, int]:
        """Return how many records between the anchors are absent without a gap in the log.

        The result has the number of records only in the source, and only in the target. Records
        that the mirror has repeated are in both.
        """
        lost = extra = 0
        known = set(map(self.content, self.source.records))
        for one, other in pairwise(around):
            here = _Part(self.source, one.source, other.source, self.content)
            there = _Part(self.target, one.target, other.target, self.content)
            missing = (here.contents - there.contents).total()
            added = sum(count for each, count in there.contents.items() if each not in known)
            lost += max(0, missing - there.hole)
            extra += max(0, added - here.hole)
        return lost, extra

    def _only_in_one(self) -> tuple[tuple[Seen, ...], tuple[Seen, ...]]:
        """Return the records of which each log has more than the other, if the parts that were
        read can show this: among records of the same time, or between records that both have."""

        def only(excerpt: Excerpt, other: Excerpt) -> tuple[Seen, ...]:
            known = Counter(map(self.content, other.records))
            surplus = Counter(map(self.content, excerpt.records)) - known
            shared = [at for at, one in enumerate(excerpt.records) if self.content(one) in known]
            first, last = min(shared, default=0), max(shared, default=0)
            return tuple(
                one
                for at, one in enumerate(excerpt.records)
                if self.content(one) in surplus
                and (first < at < last or self._is_closed(other, one))
            )

        return only(self.source, self.target), only(self.target, self.source)

    def _first_remaining(self) -> int | None:
        """Return where the target has the first of the records that are not consumed yet.

        A record that may be a consumed one counts if there are more copies up to it than were
        consumed, or if the mirror has repeated some. If the first copies are gone, only the order
        of times shows that.
        """
        rest = set(map(self.content, self.source.records[self.next :]))
        consumed = Counter(map(self.content, self.source.records[: self.next]))
        repeated = self.timed and self.target.times[2] > self.source.times[2]
        copies: Counter[object] = Counter()
        for one in self.target.records:
            content = self.content(one)
            copies[content] += 1
            if content in rest and (repeated or copies[content] > consumed[content]):
                return one.offset
        return None

    def _other_side(self) -> bool:
        """Whether both logs have records on one side of the position, but none is equal.

        This does not count if the target has a gap there, in which the source's records may have
        been.
        """
        source, target = self.source.records, self.target.records
        if self.before and self.after:
            return False
        if self.after:
            first = self.after[0]
            lost, others = first.source, first.target
            hole = self._offset(others) - self.target.begin - others
            if self.target.begins and self.target.earliest > 0:
                return False  # retention has removed them
        else:
            last = self.before[-1]
            lost, others = len(source) - last.source - 1, len(target) - last.target - 1
            hole = self.target.end - self._offset(last.target) - 1 - others
        return lost > hole and others > 0

    def _consumed_follow(self, at: int) -> bool:
        """Whether the target has a consumed record at or after this offset, but not before it."""
        rest = Counter(map(self.content, self.source.records[self.next :]))
        consumed = set(map(self.content, self.source.records[: self.next]))
        found = ((self.where.get(one, ()), rest[one]) for one in consumed)
        return any(there and self._offset(there[0]) >= at and len(there) > n for there, n in found)

    def _position(self, around: Sequence[_Pair]) -> tuple[int | None, str]:
        """Return the offset that the anchors prove, if any, and the proof."""
        records, before, after = self.source.records, self.before[-1:], self.after[:1]
        previous = bool(before) and before[0].source == self.next - 1
        if after and after[0].source == self.next:
            return self._offset(after[0].target), "the next record and its neighbours are equal"
        if self.next == len(records):
            if previous and self.source.ends and self.offset <= self.source.latest:
                at = self._offset(before[0].target) + 1
                return at, "the last record and those before it are equal"
            return None, "the last records are not unique"
        if before and after and self._equal(before[0], after[0]):
            at = before[0].target + self.next - before[0].source
            return self._offset(at), "all records between two unique ones are equal"
        if self.content(records[self.next]) in self.where:
            return None, "the next record is not unique"
        last = bool(before) and before[0].target == len(self.target.records) - 1
        if previous and last and self.target.ends:
            at = self._offset(before[0].target) + 1
            return at, "the next record is not there yet, and those before it are equal"
        return None, "the next record is not there"

    def _equal(self, one: _Pair, other: _Pair) -> bool:
        here = self.source.records[one.source : other.source]
        there = self.target.records[one.target : other.target]
        return [*map(self.content, here)] == [*map(self.content, there)]

    def _between(self, why: str) -> Translation:
        """Return the bounds between which the position must be."""
        low = self._offset(self.before[-1].target) + 1 if self.before else None
        high = self._offset(self.after[0].target) if self.after else None
        if self.next < len(self.source.records):
            record = self.source.records[self.next]
            first = self.before[-1].target if self.before else -1
            last = self.after[0].target if self.after else len(self.target.records)
            copies = [at for at in self.where.get(self.content(record), ()) if first < at < last]
            time = record.timestamp if self.timed else NO_TIME
            if copies:
                end = (
                    self._offset(copies[-1])
                    if self.target.nothing_after(time)
                    else self.target.latest
                )
                low = self.target.earliest if low is None else low
                high = min(end, high) if high is not None else end
            elif self.after and not self.before and self.target.begins:
                low = self.target.earliest
        if self.before and high is None and self.target.ends:
            high = self.target.latest
        if self.next == len(self.source.records) and low is None and self._has_any():
            low, high = self.target.earliest, self.target.latest
        if low is None or high is None:
            return self._unknown(why if self._has_any() else "no record nearby is equal")
        remaining = self._first_remaining()
        return self._bounded(low if remaining is None else min(low, remaining), high, why)

    def _has_any(self) -> bool:
        return any(self.content(one) in self.where for one in self.source.records)

    def _none_in_target(self) -> Translation:
        if not (self.target.begins and self.target.ends):
            return self._unknown("no record was found there")
        if self.source.records or self.source.latest > self.source.earliest:
            return self._unknown("the partition is empty there")
        return Translation(
            Proof.BOUNDED, self.target.latest, self.target.latest, 0, "both logs are empty"
        )

    def _compared(self) -> int:
        """Return the number of equal records between the outermost anchors."""
        around = (*self.before, *self.after)
        equal = len(around)
        for one, other in pairwise(around):
            here = _Part(self.source, one.source, other.source, self.content)
            there = _Part(self.target, one.target, other.target, self.content)
            equal += (here.contents & there.contents).total()
        return equal

    def _offset(self, at: int) -> int:
        return self.target.records[at].offset

    def _bounded(self, low: int, high: int, why: str) -> Translation:
        return Translation(Proof.BOUNDED, low, max(low, high), self._compared(), why, self.more)

    def _unknown(self, why: str) -> Translation:
        return Translation(Proof.UNKNOWN, None, None, 0, why, self.more)


class _Part:
    """The records between two records of an excerpt: their contents, and the number of offsets
    without one."""

    def __init__(self, excerpt: Excerpt, first: int, last: int, content: _Content) -> None:
        between = excerpt.records[first + 1 : last]
        self.contents: Counter[object] = Counter(map(content, between))
        length = excerpt.records[last].offset - excerpt.records[first].offset - 1
        self.hole = length - len(between)


def _with_time(record: Seen) -> object:
    return record.timestamp, record.digest


def _without_time(record: Seen) -> object:
    return record.digest
