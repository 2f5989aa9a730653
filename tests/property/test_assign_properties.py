"""The assignors on random groups: a naive second implementation, and the promises of the
original's PartitionAssignorTest."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from random import Random

import pytest

from tests.unit.test_assign import group
from zkconsumer.core.common.assign import (
    RoundRobinHash,
    assign_range,
    assign_roundrobin,
)
from zkconsumer.core.common.scala_maps import topic_order
from zkconsumer.core.common.types import ConsumerThreadId, TopicPartition

Result = dict[TopicPartition, ConsumerThreadId]
Threads = dict[str, list[ConsumerThreadId]]


def covered(result: Result, threads: Threads, partitions: Mapping[str, Sequence[int]]) -> None:
    """Check that each partition of each topic has exactly one owner, which subscribes to the
    topic."""
    expected = {TopicPartition(t, p) for t in threads for p in partitions.get(t, ())}
    assert set(result) == expected
    assert all(thread in threads[tp.topic] for tp, thread in result.items())


def units(text: str) -> list[int]:
    """Return the text's UTF-16 code units."""
    data = text.encode("utf-16-le")
    return [data[i] + 256 * data[i + 1] for i in range(0, len(data), 2)]


def naive_hash(text: str) -> int:
    """The closed form: the sum of unit * 31^(number of units to its right), as a signed 32-bit
    integer."""
    code = units(text)
    total = sum(unit * 31 ** (len(code) - 1 - i) for i, unit in enumerate(code))
    return (total + 2**31) % 2**32 - 2**31


def naive_range(threads: Threads, partitions: Mapping[str, Sequence[int]]) -> Result:
    """Assign one partition at a time: position i gets partitions until its quota is full."""
    result: Result = {}
    for topic, ids in threads.items():
        queue = sorted(partitions.get(topic, ()))
        quotas = [len(queue) // len(ids)] * len(ids)
        for i in range(len(queue) % len(ids)):
            quotas[i] += 1
        for thread, quota in zip(sorted(ids, key=lambda t: units(str(t))), quotas, strict=True):
            for _ in range(quota):
                result[TopicPartition(topic, queue.pop(0))] = thread
    return result


def naive_roundrobin(
    threads: Threads,
    partitions: Mapping[str, Sequence[int]],
    form: RoundRobinHash,
    order: Sequence[str],
) -> Result:
    """Walk the ring one step at a time. ``order`` is the order of topics with equal hashes."""
    readers = {topic: set(ids) for topic, ids in threads.items()}
    ring = deque(sorted(set().union(*readers.values()), key=lambda t: units(str(t))))
    shape = "{}-{}" if form is RoundRobinHash.DASH else "[{},{}]"
    deck = [(t, p) for t in order for p in sorted(partitions.get(t, ()))]
    deck.sort(key=lambda tp: naive_hash(shape.format(*tp)))
    result: Result = {}
    for topic, partition in deck:
        while ring[0] not in readers[topic]:
            ring.rotate(-1)
        result[TopicPartition(topic, partition)] = ring[0]
        ring.rotate(-1)
    return result


TOPICS = ("t", "t1", "Aa", "BB", "orders", "x.y-z")
LETTERS = "abAB09._-"
BEYOND_ASCII = "é\u0661\uff5e\U0001f600\U0010ffff"
"""Java orders the last two, which have two UTF-16 code units, before U+FF5E."""


def random_group(rng: Random) -> tuple[dict[str, dict[str, int]], dict[str, list[int]]]:
    """Return members with their streams by topic, and partitions by topic in any order."""
    members = {
        f"g_{''.join(rng.choices(letters, k=rng.randint(1, 5)))}": {
            topic: rng.randint(1, 12) for topic in rng.sample(TOPICS, rng.randint(0, 5))
        }
        for letters in rng.choices([LETTERS, LETTERS + BEYOND_ASCII], k=rng.randint(0, 6))
    }
    if rng.random() < 0.2:
        members = dict.fromkeys(members, next(iter(members.values()), {}))
    topics = rng.sample(TOPICS, rng.randint(0, 6))
    return members, {topic: rng.sample(range(131), rng.randint(0, 16)) for topic in topics}


@pytest.mark.parametrize("seed", range(20))
def test_assignors_equal_the_naive_ones(seed: int) -> None:
    """On any topology, the fast assignors and the naive ones return the same result. If all threads
    read all topics, their numbers of partitions from roundrobin differ by one at most."""
    rng = Random(seed)
    for _ in range(40):
        members, layout = random_group(rng)
        threads = {topic: ids for topic, ids in group(members).items() if ids}
        result = assign_range(threads, layout)
        assert result == naive_range(threads, layout)
        covered(result, threads, layout)
        everyone = {thread for ids in threads.values() for thread in ids}
        subscriptions = [list(topics) for topics in members.values()]
        for form in RoundRobinHash:
            order = topic_order(subscriptions, own_topics=form is RoundRobinHash.BRACKETS_0_8_2)
            order = [topic for topic in order if topic in threads]
            expected = naive_roundrobin(threads, layout, form, order)
            result = assign_roundrobin(threads, layout, form, subscriptions)
            assert result == expected
            covered(result, threads, layout)
            if everyone and all(everyone == set(ids) for ids in threads.values()):
                counts = Counter(result.values())
                sizes = [counts[thread] for thread in everyone]
                assert max(sizes) - min(sizes) <= 1
