"""Finds offsets in another cluster's copies of topics. One thread.

The two logs of a partition cannot show everything. A record that only the copy has may have been
removed by compaction from the source, or may belong to another partition if the copy uses another
partitioner. The same is true of a record that only the source has. So such records are searched in
the other partitions. If one is found there, no partition of the topic is a copy.

Each position is searched by a generator, which yields what it reads next. So many positions are
searched at the same time, with few requests.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple, TypeVar

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.errors import BrokerError
from zkmigrate.formats.proofs_file import Answer, Asked, ProofsFile
from zkmigrate.plan.clusters.translation import (
    NO_TIME,
    Excerpt,
    Proof,
    Seen,
    Translation,
    shared_part,
    translate,
)
from zkmigrate.stores.contents import Contents
from zkmigrate.stores.mirror_maker import Hints

_SPANS: Final = (16, 128, 1024, 8192)
"""Numbers of offsets to read on each side of a position, in this order, until it is proven."""
_END: Final = 2**62
_OTHERS: Final = 8
"""Number of other partitions, chosen at random, that are searched for the records of a position."""
_PROBES: Final = (8, 64)
"""Numbers of places in a log to search for records of a time, until some are found."""
_READ: Final = (1 << 22, 1 << 12)
"""Records in other partitions to read for a topic, and how many more for each position."""
_REMEMBERED: Final = 10_000
"""Number of results that are cached for other groups with the same offset."""
_OWN: Final = 128
"""If this many records before a copy are the other cluster's own, no older copies are expected."""
_HINTS_S: Final = 60.0
"""Seconds after which the offsets that MirrorMaker 2 has recorded are read again."""
T = TypeVar("T")
W = TypeVar("W", "_Part", "_First")
_Content = tuple[int, bytes]
"""A record's timestamp and digest."""


class _Part(NamedTuple):
    """A part of a log, as for ``Contents.around``. ``there``: in the other cluster."""

    there: bool
    tp: TopicPartition
    middle: int
    span: int


class _First(NamedTuple):
    """The first record of a time, as for ``Contents.at``."""

    there: bool
    tp: TopicPartition
    timestamp: int


class _Read(NamedTuple):
    """What was read ahead. The rest is read when it is needed."""

    parts: dict[_Part, Excerpt]
    firsts: dict[_First, int | None]


_Script = Generator[Sequence[_Part | _First], _Read, T]


class Translator:
    """Translates offsets of a cluster ``here`` to offsets of a cluster ``there``.

    ``proofs``: a file of offsets that an earlier run has proven, to which new ones are added.
    ``back``: the topics ``here`` are the copies.
    """

    def __init__(
        self,
        here: Contents,
        there: Contents,
        proofs: ProofsFile | None = None,
        back: bool = False,
    ) -> None:
        self._here, self._there, self._back = here, there, back
        self._proofs = proofs
        self._hints = Hints(here, there, back)
        self._hints_at = time.monotonic()
        self._left: dict[str, int] = {}
        """Remaining number of records of other partitions that may be read, by topic."""
        self._found: dict[Asked, Translation] = {}
        """The results for the last groups, because many groups are at the end of a log."""
        self._mixed: dict[str, str] = {}
        self._differs: dict[str, TopicPartition] = {}

    def again(self) -> None:
        """Forget all results that new records can change. What is known about topics that are not
        copies is kept."""
        self._found.clear()
        self._here.forget()
        self._there.forget()
        if time.monotonic() - self._hints_at > _HINTS_S:
            self._hints = Hints(self._here, self._there, self._back)
            self._hints_at = time.monotonic()

    def find(
        self, asked: Iterable[tuple[Asked, Collection[int]]]
    ) -> Sequence[Translation | BrokerError]:
        """Return the offsets in the partitions' copies in the other cluster, or why a copy is
        unreadable.

        Compares the records of both logs, in larger and larger parts, until the result is certain.
        ``asked``: the offsets to translate, each with all partitions of its topic. A result of an
        earlier run is only used if the topics' ids are known. Raises MigrationError if a proven
        offset cannot be added to the file.
        """
        scripts = [self._find(*one) for one in asked]
        found: dict[_Script[Translation], Translation | BrokerError] = {}
        got: _Read | None = None
        while len(found) < len(scripts):
            wanted: list[_Part | _First] = []
            for script in scripts:
                if script in found:
                    continue
                try:
                    wanted += next(script) if got is None else script.send(got)
                except StopIteration as done:
                    found[script] = done.value
                except BrokerError as error:
                    found[script] = error
            got = self._read_ahead(wanted)
        return [found[script] for script in scripts]

    def _read_ahead(self, wanted: Iterable[_Part | _First]) -> _Read:
        """Read with few requests. Leave out what is too much for that, or unreadable."""
        parts: dict[tuple[bool, int], list[_Part]] = {}
        firsts: dict[bool, list[_First]] = {}
        for one in dict.fromkeys(wanted):
            if isinstance(one, _First):
                firsts.setdefault(one.there, []).append(one)
            elif one.span < _SPANS[-1]:
                parts.setdefault((one.there, one.span), []).append(one)
        got = _Read({}, {})
        for there, times in firsts.items():
            for looked in _rounds(times):
                at = self._contents(there).look_ahead(
                    {tp: one.timestamp for tp, one in looked.items()}
                )
                got.firsts.update((looked[tp], offset) for tp, offset in at.items())
        for (there, span), places in parts.items():
            for some in _rounds(places):
                read = self._contents(there).read_ahead(
                    {tp: one.middle for tp, one in some.items()}, span
                )
                got.parts.update((some[tp], part) for tp, part in read.items())
        return got

    def _contents(self, there: bool) -> Contents:
        return self._there if there else self._here

    def _part(self, want: _Part, got: _Read) -> Excerpt:
        part = got.parts.get(want)
        return self._contents(want.there).around(*want[1:]) if part is None else part

    def _first(self, want: _First, got: _Read) -> int | None:
        if want in got.firsts:
            return got.firsts[want]
        return self._contents(want.there).at(*want[1:])

    def _around(self, *place: Any) -> _Script[Excerpt]:
        want = _Part(*place)
        return self._part(want, (yield [want]))

    def _at(self, *time: Any) -> _Script[int | None]:
        want = _First(*time)
        return self._first(want, (yield [want]))

    def _find(self, asked: Asked, partitions: Collection[int]) -> _Script[Translation]:
        tp, offset, other, _ = asked
        if asked in self._found:
            return self.judged(other.topic, self._found[asked])
        before = None if self._proofs is None else self._proofs.get(asked)
        if before is not None:
            at, compared, why, doubtful = before
            found = Translation(Proof.PROVEN, at, at, compared, why)
            if doubtful:
                found = found._replace(only_here=(Seen(offset, NO_TIME, b""),))
            return self.judged(other.topic, found)
        self._left[other.topic] = self._left.get(other.topic, _READ[0]) + _READ[1]
        found = yield from self._in_partition(tp, offset, other)
        if found.differs:
            self._differs.setdefault(other.topic, other)
        if (found.low is not None or found.only_here) and other.topic not in self._mixed:
            others = sorted({*partitions} - {tp.partition})
            chosen = random.Random(str(tp)).sample(others, min(_OTHERS, len(others)))
            why = yield from self._search(tp, other, chosen, found)
            if why and found.proof is Proof.PROVEN:
                found = found._replace(proof=Proof.BOUNDED, why=why)
        some = (*found.only_here, *found.only_there)[:1]  # whether there are any is enough
        if len(self._found) >= _REMEMBERED:
            self._found.clear()
        found = self._found[asked] = found._replace(only_here=some, only_there=())
        found = self.judged(other.topic, found)
        if found.proof is Proof.PROVEN and found.low is not None and self._proofs is not None:
            self._proofs.add(asked, Answer(found.low, found.compared, found.why, bool(some)))
        return found

    def judged(self, topic: str, found: Translation) -> Translation:
        """Return a translation with its current verdict.

        The verdict changes if records of other partitions show that the topic in the other cluster
        is not a copy.
        """
        why = self._mixed.get(topic)
        if why is None and topic in self._differs and (found.only_here or found.only_there):
            why = f"not all records are in both, and {self._differs[topic]} is not a copy"
        if why is not None and found.low is not None:
            return Translation(Proof.UNKNOWN, None, None, 0, why)
        if topic in self._differs and found.proof is Proof.PROVEN:
            # A record of that partition may be in this one, in a part that was not read.
            why = f"{self._differs[topic]} is not a copy"
            return found._replace(proof=Proof.BOUNDED, why=why)
        return found

    def _in_partition(
        self, tp: TopicPartition, offset: int, other: TopicPartition
    ) -> _Script[Translation]:
        found: Translation | None = None
        proof: Translation | None = None
        known, middle = None, 0
        source: Excerpt | None = None
        target: Excerpt | None = None
        for span in _SPANS:
            if source is None or not _is_whole(source):
                source = yield from self._around(False, tp, offset, span)
            if found is None and offset > source.latest and offset > self._here.end(tp):
                return Translation(
                    Proof.UNKNOWN, None, None, 0, "the offset is past the end of its log"
                )
            before = known
            known = _known(source, offset)
            if found is None or before != known:
                middle, target = yield from self._candidate(tp, source, known, other)
                proof = None  # it was of another record
            if target is None or (found is not None and not _is_whole(target)):
                target = yield from self._around(True, other, middle, span)
            found = translate(offset, source, target)
            part = shared_part(target, source)
            if found.proof is not Proof.PROVEN and not found.differs and part is not None:
                again = translate(offset, source, part)
                if again.proof is Proof.PROVEN:
                    found = _with_others(again, found)
            if found.proof is Proof.PROVEN and known is not None:
                earlier = yield from self._time_before(False, tp, source, known)
                copied = yield from self._time_before(True, other, target, known)
                if earlier is not None:
                    why = "an earlier part of the source has records of that time"
                    found = _in_doubt(found, found.low, target.latest, why)
                elif copied is not None:  # the mirror may have begun again after these records
                    proof = found
                    why = "an earlier part of the copy has records of that time"
                    found = _in_doubt(found, copied, found.high, why)
            first = proof is not None and _is_first_copy(proof, offset, source, target, part)
            if proof is not None and first and not found.differs:
                found = _with_others(proof, found)
            if found.proof is Proof.PROVEN or not found.more:
                break
        assert found is not None
        return found

    def _candidate(
        self, tp: TopicPartition, source: Excerpt, known: Seen | None, other: TopicPartition
    ) -> _Script[tuple[int, Excerpt | None]]:
        """Return where the copy of a record may be, with the records read there: the first place
        that has records of its excerpt.

        The places are: where the log first has that time; near the offsets that MirrorMaker 2 has
        recorded, if the other cluster's own records are newer or there are no times; where a search
        finds that time.
        """
        if known is None:
            return 0, None
        timed = known.timestamp != NO_TIME
        at = (yield from self._at(True, other, known.timestamp)) if timed else 0
        first = _place(at)
        places = chain([first], self._by_hints(tp, known, other), self._by_search(known, other))
        tried: set[int] = set()
        for place in places:
            if place in tried:
                continue
            tried.add(place)
            for span in _SPANS[:2]:
                part = yield from self._around(True, other, place, span)
                if shared_part(part, source) is not None:
                    return place, part
        return first, None

    def _by_hints(self, tp: TopicPartition, known: Seen, other: TopicPartition) -> Iterator[int]:
        pairs = self._hints.of(tp, other)
        low = max((one.there for one in pairs if one.here <= known.offset), default=None)
        high = min((one.there for one in pairs if one.here > known.offset), default=None)
        if low is not None:
            near = max(one for one in pairs if one.here <= known.offset)
            yield near.there + known.offset - near.here
        if low is not None or high is not None:
            whole = self._there.around(other, 0, 0)
            low, high = low or whole.earliest, high or whole.latest
            yield self._bisect(known, other, low, high)

    def _by_search(self, known: Seen, other: TopicPartition) -> Iterator[int]:
        """Search ever more places of the log, and further between two neighbours if only one is
        older."""
        if known.timestamp == NO_TIME:
            return
        whole = self._there.around(other, 0, 0)
        for count in _PROBES:
            step = (whole.latest - whole.earliest) // count + 1
            if step <= _SPANS[0]:
                return  # the largest part has it all
            older: int | None = whole.earliest
            for place in range(whole.earliest, whole.latest + step, step):
                part, time = self._there.times_at(other, place) or (None, _END)
                if part is not None and known.timestamp in part.times:
                    yield part.offsets[part.times.index(known.timestamp)]
                newer = time >= known.timestamp
                if older is not None and newer:
                    yield self._bisect(known, other, older, min(place, whole.latest))
                older = None if newer else place

    def _bisect(self, known: Seen, other: TopicPartition, low: int, high: int) -> int:
        """Return an offset near the first one of a record's time between two offsets."""
        while known.timestamp != NO_TIME and high - low > _SPANS[0]:
            middle = (low + high) // 2
            _, time = self._there.times_at(other, middle) or (None, _END)
            if time < known.timestamp:
                low = middle
            else:
                high = middle
        return low

    def _time_before(
        self, there: bool, tp: TopicPartition, part: Excerpt, known: Seen
    ) -> _Script[int | None]:
        """Return where a log has the first record of a time or a newer one, if that is before a
        part.

        Records there may be equal to those of the part: a producer has sent them twice, or a mirror
        has copied them twice. Only times show that.
        """
        if part.begins or known.timestamp == NO_TIME:
            return None
        first = yield from self._at(there, tp, known.timestamp)
        return first if first is not None and first < part.begin else None

    def _search(
        self, tp: TopicPartition, other: TopicPartition, others: Iterable[int], found: Translation
    ) -> _Script[str]:
        """Search for records that only one log has, in the other partitions of the other log's
        topic.

        Return why these could not be read far enough; empty if they could.
        """
        here, there = (False, tp), (True, other)
        for records, where, home in (
            (found.only_there, here, there),
            (found.only_here, there, here),
        ):
            wanted = {one[1:] for one in records}
            if not wanted:
                continue
            got = yield from self._search_ahead(wanted, *where, others)
            for partition in others:
                if self._left[other.topic] <= 0:
                    return (
                        "not all records are in both, and they were not looked for in other "
                        "partitions: too many records were read there"
                    )
                copies = self._count(wanted, *where, partition, other.topic, got)
                its_own = copies and self._count(copies, *home, partition, other.topic, got)
                if copies is None or its_own is None:
                    return (
                        "records without times may be in another partition, which is too long to "
                        "read"
                    )
                if copies - its_own:
                    self._mixed[other.topic] = (
                        f"records of {home[1]} are in partition {partition} of {where[1].topic}: "
                        "not the same partitions"
                    )
                    return ""
        return ""

    def _search_ahead(
        self,
        wanted: Collection[_Content],
        there: bool,
        tp: TopicPartition,
        others: Iterable[int],
    ) -> _Script[_Read]:
        """Read the records of other partitions that ``_count`` needs first."""
        times = [timestamp for timestamp, _ in wanted]
        if NO_TIME in times:
            return _Read({}, {})
        tps = [TopicPartition(tp.topic, one) for one in others]
        begins = [_First(there, one, min(times)) for one in tps]
        ends = [_First(there, one, max(times) + 1) for one in tps]
        looked = yield [*begins, *ends]
        firsts = {one: self._first(one, looked) for one in (*begins, *ends)}
        read = yield [_Part(there, one.tp, _place(firsts[one]), _SPANS[1]) for one in begins]
        return _Read(read.parts, firsts)

    def _count(
        self,
        wanted: Collection[_Content],
        there: bool,
        tp: TopicPartition,
        partition: int,
        topic: str,
        got: _Read,
    ) -> Counter[_Content] | None:
        """Count the copies of records in another partition of that topic; None if it cannot be
        read as far as is needed. Their times are ``NO_TIME`` if there are none to compare.
        ``topic``: the other cluster's. ``got``: was read ahead."""
        contents, tp = self._contents(there), TopicPartition(tp.topic, partition)
        times = [timestamp for timestamp, _ in wanted]
        begin = end = None
        if timed := NO_TIME not in times:
            begin = self._first(_First(there, tp, min(times)), got)
            end = self._first(_First(there, tp, max(times) + 1), got)
        span = _SPANS[1]
        part = self._part(_Part(there, tp, _place(begin), span), got)
        if begin is not None:
            length = (part.latest if end is None else end) - begin
            if length > span // 2:
                part = contents.around(tp, begin, min(length + span, _SPANS[-1]))
        self._left[topic] -= len(part.records)
        if timed and (not part.records or NO_TIME not in part.times):
            return Counter(one[1:] for one in part.records if one[1:] in wanted)
        part = contents.around(tp, 0, _SPANS[-1])
        self._left[topic] -= len(part.records)
        digests = {digest for _, digest in wanted}
        found = ((NO_TIME, one.digest) for one in part.records if one.digest in digests)
        return Counter(found) if part.ends else None


def _known(source: Excerpt, offset: int) -> Seen | None:
    """Return the record at an offset or after it, or else the last one."""
    following = (one for one in source.records if one.offset >= offset)
    return next(following, source.records[-1] if source.records else None)


def _is_whole(part: Excerpt) -> bool:
    """Whether a part is the whole log."""
    return part.begins and part.ends


def _rounds(wanted: Sequence[W]) -> Iterator[dict[TopicPartition, W]]:
    """Divide requests, so that none has a partition twice."""
    while wanted:
        some = {one.tp: one for one in reversed(wanted)}
        yield some
        wanted = [one for one in wanted if some[one.tp] is not one]


def _is_first_copy(
    proof: Translation, offset: int, source: Excerpt, target: Excerpt, copies: Excerpt | None
) -> bool:
    """Whether the copies in this part of a log follow many records that are not copies, and no copy
    before the proven offset is of a record that is not consumed yet."""
    if copies is None or proof.low is None:
        return False
    own = sum(1 for one in target.records if one.offset < copies.begin)
    unread = {one.digest for one in source.records if one.offset >= offset}
    before = (one.digest for one in target.records if one.offset < proof.low)
    return own >= _OWN and unread.isdisjoint(before)


def _with_others(proof: Translation, found: Translation) -> Translation:
    """Return a proof with the records that only one log has according to either comparison."""
    here = (*found.only_here, *proof.only_here)
    return proof._replace(only_here=here, only_there=(*found.only_there, *proof.only_there))


def _in_doubt(found: Translation, low: int | None, high: int | None, why: str) -> Translation:
    return found._replace(proof=Proof.BOUNDED, low=low, high=high, why=why, more=True)


def _place(at: int | None) -> int:
    """Return where to read: at the end, if no record has the time."""
    return _END if at is None else at
