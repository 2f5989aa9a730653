"""Offsets translated to another cluster by content, on random logs and mirrors of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from hypothesis import given, settings, strategies as st
from zkmigrate.plan.clusters.translation import (
    NO_TIME,
    Excerpt,
    Proof,
    Seen,
    Translation,
    translate,
)

PROVEN, BOUNDED, UNKNOWN = Proof.PROVEN, Proof.BOUNDED, Proof.UNKNOWN
Content = tuple[int, bytes]


class Mirrored(NamedTuple):
    """Two logs. ``copied``: the contents of all records of the source of which the target has
    copies, with their offsets in the source. ``once``: those of which it has the first copy."""

    source: Excerpt
    target: Excerpt
    copied: Sequence[tuple[int, Content]]
    once: Sequence[tuple[int, Content]]


def log(records: Iterable[Seen], latest: int, earliest: int = 0) -> Excerpt:
    """A complete log."""
    return Excerpt(tuple(records), earliest, latest, earliest, latest)


def digest(number: int) -> bytes:
    """What stands for key, value and headers."""
    return b"%d" % number


@st.composite
def mirrors(draw: st.DrawFn, contents: int = 3, times: int = 4, repeats: bool = True) -> Mirrored:
    """A log with holes, and a mirror that repeats and loses records, after some of its own.

    A log loses a record only with its offset, as by compaction or retention.
    """
    made: list[Seen] = []
    offset = time = 0
    for _ in range(draw(st.integers(0, 14))):
        offset += draw(st.sampled_from((0, 0, 0, 1, 2)))  # transaction markers
        time += draw(st.integers(0, times))
        made.append(Seen(offset, time, digest(draw(st.integers(0, contents)))))
        offset += 1
    end = offset + draw(st.integers(0, 1))
    order = [
        (-1, Seen(0, 1, digest(draw(st.integers(0, 9))))) for _ in range(draw(st.integers(0, 2)))
    ]
    at = 0
    while at < len(made):
        order.append((made[at].offset, made[at]))
        at += 1
        if repeats and draw(st.integers(0, 9)) == 0:
            at -= draw(st.integers(1, at))  # the mirror was killed, and repeats
        if len(order) > 40:
            break
    target: list[Seen] = []
    copied: list[tuple[int, Content]] = []
    once: list[tuple[int, Content]] = []
    offset, last = 0, -1
    for of, record in order:
        offset += draw(st.sampled_from((0, 0, 0, 1)))
        if draw(st.integers(0, 6)):
            target.append(record._replace(offset=offset))
            if of >= 0:
                copied.append((of, record[1:]))
                if of > last:
                    once.append(copied[-1])
        last = max(last, of)
        offset += 1
    kept = [one for one in made if draw(st.integers(0, 6))]
    earliest = draw(st.integers(0, kept[0].offset)) if kept else 0
    return Mirrored(
        log(kept, end, earliest),
        log(target, offset),
        *(copied_of(some, kept) for some in (copied, once)),
    )


def copied_of(
    copied: Iterable[tuple[int, Content]], kept: Iterable[Seen]
) -> list[tuple[int, Content]]:
    """Those that the source has kept."""
    there = {one.offset for one in kept}
    return sorted({one for one in copied if one[0] in there})


def skips(offset: int, at: int, logs: Mirrored) -> bool:
    """Whether a consumer that continues at ``at`` misses a record that was to be consumed."""
    before, after = counted(logs.target, at)
    done, _ = counted(logs.source, offset)
    rest = {content for of, content in logs.copied if of >= offset}
    return any(not after[one] and before[one] > done[one] for one in rest)


def repeats(offset: int, at: int, logs: Mirrored) -> bool:
    """Whether it sees one that was consumed, which the mirror has not repeated."""
    before, after = counted(logs.target, at)
    _, rest = counted(logs.source, offset)
    done = {content for of, content in logs.once if of < offset}
    return any(not before[one] and after[one] > rest[one] for one in done)


def counted(excerpt: Excerpt, offset: int) -> tuple[Counter[Content], Counter[Content]]:
    """How often each content is before an offset, and from it on: records with equal contents
    cannot be told apart."""
    parts: tuple[Counter[Content], Counter[Content]] = Counter(), Counter()
    for one in excerpt.records:
        parts[one.offset >= offset][one[1:]] += 1
    return parts


def positions(source: Excerpt) -> Iterable[int]:
    """All offsets that a group may have committed."""
    return range(source.earliest, source.latest + 1)


@settings(max_examples=300, deadline=None, print_blob=True)
@given(mirrors())
def test_what_is_proven_is_right(logs: Mirrored) -> None:
    """Whatever a mirror repeats and both logs lose: at a proven offset exactly the other records
    follow, and the lower bound of the others skips none."""
    for offset in positions(logs.source):
        found = translate(offset, logs.source, logs.target)
        if found.proof is UNKNOWN:
            assert found.low is found.high is None
            continue
        assert found.low is not None
        assert found.high is not None
        assert logs.target.earliest <= found.low <= found.high <= logs.target.latest
        assert not skips(offset, found.low, logs), (offset, found)
        if found.proof is PROVEN:
            assert found.low == found.high
            assert not repeats(offset, found.low, logs), (offset, found)


@settings(max_examples=100, deadline=None, print_blob=True)
@given(mirrors(contents=10**9, times=10**9), st.integers(1, 4), st.integers(1, 4))
def test_parts_of_logs_prove_the_same(logs: Mirrored, before: int, after: int) -> None:
    """Parts of the logs, around the position and around any candidate, prove nothing else than the
    complete logs."""
    for offset in positions(logs.source):
        whole = translate(offset, logs.source, logs.target)
        if whole.proof is not PROVEN:
            continue
        for middle in range(logs.target.latest + 1):
            found = translate(
                offset,
                part(logs.source, offset - before, offset + after),
                part(logs.target, middle - before, middle + after),
            )
            assert found.proof is not PROVEN or found.low == whole.low, (offset, found, whole)


def part(excerpt: Excerpt, begin: int, end: int) -> Excerpt:
    """A part of an excerpt."""
    begin, end = max(begin, excerpt.earliest), min(end, excerpt.latest)
    records = [one for one in excerpt.records if begin <= one.offset < end]
    return replace(excerpt, records=records, begin=begin, end=end)


@settings(max_examples=100, deadline=None, print_blob=True)
@given(st.data(), st.integers(3, 40))
def test_every_record_of_both_logs_is_proven(data: st.DataObject, count: int) -> None:
    """Compaction, retention and transaction markers in either log, and records before the mirror:
    the position before each record that both logs still have is proven."""
    rng = data.draw(st.randoms(use_true_random=False))
    source = [Seen(2 * at, 1000 + at // 2, digest(at)) for at in range(count)]
    target = [Seen(at, 5, digest(-at - 1)) for at in range(rng.randrange(4))]
    shift = len(target)
    target += [one._replace(offset=at + shift) for at, one in enumerate(source)]
    kept = [one for one in source if rng.random() < 0.7]
    stays = [one for one in target if rng.random() < 0.7]
    logs = log(kept, 2 * count, kept[0].offset if kept else 0), log(stays, count + shift)
    there = {one.digest: one.offset for one in stays}
    both = [one for one in kept if one.digest in there]
    for one in both if len(both) > 2 else ():
        found = translate(one.offset, *logs)
        assert (found.proof, found.low) == (PROVEN, there[one.digest]), (one, found)


def test_another_partitioner_is_noticed() -> None:
    """The records of two partitions, distributed otherwise to two others: most positions are
    unknown, and those that are proven have only equal records around them."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201
    rng = random.Random(seed)
    for _ in range(50):
        source: list[Seen] = []
        target: list[Seen] = []
        for at in range(100):
            if rng.randrange(2):
                source.append(Seen(len(source), 1000 + at, digest(at)))
            if rng.randrange(2):
                target.append(Seen(len(target), 1000 + at, digest(at)))
        logs = log(source, len(source)), log(target, len(target))
        found = [translate(offset, *logs) for offset in range(1, len(source))]
        assert sum(one.proof is UNKNOWN for one in found) > len(found) // 2
        for offset, one in enumerate(found, 1):
            if one.proof is PROVEN and one.low:
                here, there = source[offset - 1 : offset + 1], target[one.low - 1 : one.low + 1]
                here = here[: len(there)]  # at its end, the next one is not there yet
                assert [each.digest for each in here] == [each.digest for each in there]


def test_constant_records_are_bounded() -> None:
    """Records that are all equal, with equal times: no position is proven, and each is bounded by
    the log, or by a record that differs."""
    same = [Seen(at, 7, b"x") for at in range(50)]
    logs = log(same, 50), log(same[:40], 40)
    for offset in range(50):
        assert translate(offset, *logs)[:3] == (BOUNDED, 0, 39)
    assert translate(50, *logs)[:3] == (BOUNDED, 0, 40)
    part_of = replace(logs[1], records=same[10:20], begin=10, end=20)
    assert translate(5, replace(logs[0], records=same[:10], end=10), part_of)[:3] == (
        BOUNDED,
        0,
        40,
    )
    marked = [Seen(0, 6, b"a"), *(one._replace(offset=one.offset + 1) for one in same)]
    found = translate(
        3, log([*marked, Seen(51, 8, b"z")], 52), log([*marked[:41], Seen(41, 8, b"z")], 42)
    )
    assert found[:3] == (UNKNOWN, None, None)  # the target has lost ten of them without a hole
    found = translate(
        3, log([*marked, Seen(51, 8, b"z")], 52), log([*marked[:41], Seen(51, 8, b"z")], 52)
    )
    assert found[:3] == (BOUNDED, 1, 40)


def test_more_copies_than_were_consumed() -> None:
    """The mirror has repeated two records after copies of those that follow them, all at one time:
    of two equal ones, one was consumed."""
    contents = (b"1", b"2", b"0", b"0")
    source = [*(Seen(at, 0, content) for at, content in enumerate(contents)), Seen(4, 1, b"0")]
    order = [*source[2:4], *source[:2], source[4]]
    target = [one._replace(offset=3 * at) for at, one in enumerate(order)]
    found = translate(3, log(source, 5), log(target, 15))
    assert found.proof is not PROVEN
    assert found.low is not None
    assert found.low <= 3


def test_a_record_of_the_targets_own_equals_the_next_one() -> None:
    """What was consumed is only after it, so it is not the mirror's."""
    source = [Seen(at, min(at, 3), digest(at)) for at in range(8)]
    copied = [one._replace(offset=one.offset + 1) for one in source if one.offset != 2]
    again = [one._replace(offset=one.offset + 20) for one in source[:2]]  # the mirror repeats
    target = [source[2]._replace(offset=0), *copied[:2], *again, *copied[2:]]
    target = [one._replace(offset=2 * at) for at, one in enumerate(target)]
    found = translate(2, log(source, 8), log(target, 2 * len(target)))
    assert found.proof is BOUNDED
    assert found.low == 0


def test_equal_records_between_unique_ones() -> None:
    """Equal records that are all there, between records that occur once, are proven by counting."""
    source = [Seen(0, 1, b"a"), *(Seen(at, 7, b"x") for at in range(1, 6)), Seen(6, 8, b"z")]
    target = [one._replace(offset=100 + 2 * one.offset) for one in source]
    for offset in range(7):
        assert translate(offset, log(source, 7), log(target, 120, 100))[:3] == (
            PROVEN, 100 + 2 * offset, 100 + 2 * offset,
        )  # fmt: skip


def test_ends_of_logs() -> None:
    """The end of the source, records that are not mirrored yet, and logs that are empty."""
    records = [Seen(at, at, digest(at)) for at in range(10)]
    source = log(records, 10)

    def found(offset: int, target: Excerpt, source: Excerpt = source) -> Translation:
        return translate(offset, source, target)

    assert found(10, log(records, 12))[:3] == (PROVEN, 10, 10)
    assert found(13, log(records, 12))[:3] == (BOUNDED, 10, 12)  # beyond an open transaction
    more = [*records, Seen(11, 50, b"its own")]
    assert found(10, log(more, 12))[:3] == (PROVEN, 10, 10)
    assert found(6, log(records[:6], 6))[:3] == (PROVEN, 6, 6)  # the next one will be there
    assert found(8, log(records[:6], 6))[:3] == (BOUNDED, 6, 6)
    assert found(2, log(records[5:], 10, 5))[:3] == (BOUNDED, 5, 5)  # lost by retention
    assert found(4, log([], 0))[:3] == (UNKNOWN, None, None)
    assert found(4, log([Seen(at, 99, b"other") for at in range(9)], 9))[0] is UNKNOWN
    assert found(0, log([], 3, 3), log([], 0))[:3] == (BOUNDED, 3, 3)
    assert found(7, log(records, 10), log([], 7, 7))[:3] == (BOUNDED, 0, 10)
    assert found(1, log(records, 10), log(records[5:], 10, 5))[:3] == (BOUNDED, 0, 5)
    assert found(5, log(records, 10), log(records[5:], 10, 5))[:3] == (PROVEN, 5, 5)


def test_order_and_strangers() -> None:
    """Another order of the records is refused; records of another producer are a decision."""
    records = [Seen(at, at, digest(at)) for at in range(10)]
    swapped = [one._replace(offset=9 - one.offset) for one in reversed(records)]
    assert translate(5, log(records, 10), log(swapped, 10)).proof is UNKNOWN
    wider = [one._replace(offset=2 * one.offset) for one in records]
    mixed = sorted([*wider, *(Seen(2 * at + 1, at, b"its own") for at in range(10))])
    assert translate(5, log(records, 10), log(mixed, 20))[:3] == (BOUNDED, 10, 10)
    assert translate(5, log(records, 10), log(wider[::2], 20))[0] is not PROVEN  # 5 is missing
    thinner = [one._replace(offset=at) for at, one in enumerate(records[::2])]
    assert translate(4, log(records, 10), log(thinner, 5)).proof is UNKNOWN


def test_records_without_times() -> None:
    """Without times, only complete logs show that a record occurs once."""
    records = [Seen(at, NO_TIME, digest(at)) for at in range(10)]
    target = log([Seen(at, 50, digest(at)) for at in range(10)], 10)
    assert translate(5, log(records, 10), target)[:3] == (PROVEN, 5, 5)
    less = replace(target, records=target.records[2:], begin=2)
    assert translate(5, log(records, 10), less).proof is BOUNDED
    assert translate(5, log(records, 10), less).more


@settings(max_examples=60, deadline=None, print_blob=True)
@given(mirrors(), st.integers(0, 20))
def test_what_the_source_has_lost_is_not_proven(logs: Mirrored, cut: int) -> None:
    """Below the beginning of the source, the target may still have the records that follow."""
    cut = min(cut, logs.source.latest)
    source = replace(part(logs.source, cut, logs.source.latest), earliest=cut)
    for offset in range(logs.source.earliest, cut):
        found = translate(offset, source, logs.target)
        assert found.proof is not PROVEN
        assert found.low is None or not skips(offset, found.low, logs), (offset, found)


@settings(max_examples=60, deadline=None, print_blob=True)
@given(mirrors(repeats=False), st.booleans(), st.integers(1, 5), st.integers(1, 5))
def test_bounds_of_parts_of_logs_skip_nothing(
    logs: Mirrored, timed: bool, before: int, after: int
) -> None:
    """Also if few contents occur often, so that a part shows records that others have. The mirror
    repeats none: a copy outside the part is seen by the order of times only.
    """
    if not timed:
        logs = without_times(logs)
    for offset in positions(logs.source):
        for middle in range(logs.target.latest + 1):
            found = translate(
                offset,
                part(logs.source, offset - before, offset + after),
                part(logs.target, middle - before, middle + after),
            )
            if found.low is not None:
                assert not skips(offset, found.low, logs), (offset, middle, found)


def without_times(logs: Mirrored) -> Mirrored:
    """The same with records that have no times."""
    source, target = (
        replace(one, records=[each._replace(timestamp=NO_TIME) for each in one.records])
        for one in logs[:2]
    )
    copied, once = ([(of, (NO_TIME, content)) for of, (_, content) in some] for some in logs[2:])
    return Mirrored(source, target, copied, once)
