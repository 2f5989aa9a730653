"""The assignors on random groups: the promises of the original, and a naive second
implementation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from zkconsumer.core.common.assign import (
    RoundRobinHash,
    assign_range,
    assign_roundrobin,
    thread_ids,
)
from zkconsumer.core.common.scala_maps import topic_order
from zkconsumer.core.common.types import ConsumerThreadId, TopicPartition

Result = dict[TopicPartition, ConsumerThreadId]
Threads = dict[str, list[ConsumerThreadId]]


def group(members: Mapping[str, Mapping[str, int]]) -> Threads:
    """Return all members' thread ids by topic."""
    threads: Threads = {}
    for member, topics in members.items():
        for topic, ids in thread_ids(member, topics).items():
            threads.setdefault(topic, []).extend(ids)
    return threads


def covered(result: Result, threads: Threads, partitions: Mapping[str, Sequence[int]]) -> None:
    """Check that each partition of each topic has exactly one owner, which subscribes to the
    topic."""
    expected = {TopicPartition(t, p) for t in threads for p in partitions.get(t, ())}
    assert set(result) == expected
    assert all(thread in threads[tp.topic] for tp, thread in result.items())


def uniform(result: Result, threads: Threads) -> None:
    """Check that the threads' numbers of partitions differ by one at most."""
    counts = Counter(result.values())
    sizes = [counts[thread] for thread in {t for ids in threads.values() for t in ids}]
    assert max(sizes) - min(sizes) <= 1


# --- Scala PartitionAssignorTest ------------------------------------------------------------------


@pytest.fixture(params=range(3))
def random(request: pytest.FixtureRequest) -> Random:
    """One of three rounds, as in the original. The number in the test's name is the seed."""
    return Random(request.param)


@pytest.mark.parametrize("form", list(RoundRobinHash))
def test_round_robin_partition_assignor(random: Random, form: RoundRobinHash) -> None:
    """Scala testRoundRobinPartitionAssignor: filters ``.*`` are covered once and uniformly."""
    sizes = {f"topic-{n}": random.randint(8, 119) for n in range(random.randint(0, 100))}
    members = {
        f"g1c{n}": dict.fromkeys(sizes, random.randint(1, 8)) for n in range(random.randint(1, 10))
    }
    threads, partitions = group(members), {t: range(n) for t, n in sizes.items()}
    result = assign_roundrobin(threads, partitions, form)
    covered(result, threads, partitions)
    if threads:
        uniform(result, threads)


@pytest.mark.parametrize("form", list(RoundRobinHash))
def test_round_robin_partition_assignor_static_subscriptions(
    random: Random, form: RoundRobinHash
) -> None:
    """Scala testRoundRobinPartitionAssignorStaticSubscriptions: equal maps, one stream each."""
    sizes = {f"topic-{n}": random.randint(8, 119) for n in range(random.randint(1, 100))}
    members = {f"g1c{n}": dict.fromkeys(sizes, 1) for n in range(random.randint(1, 10))}
    threads, partitions = group(members), {t: range(n) for t, n in sizes.items()}
    result = assign_roundrobin(threads, partitions, form)
    covered(result, threads, partitions)
    uniform(result, threads)


@pytest.mark.parametrize("form", list(RoundRobinHash))
def test_round_robin_partition_assignor_unbalanced_static_subscriptions(
    random: Random, form: RoundRobinHash
) -> None:
    """Scala testRoundRobinPartitionAssignorUnbalancedStaticSubscriptions: covered once."""
    topics = [f"topic-{n}" for n in range(10)]
    members = {
        f"g1c{k}": dict.fromkeys(topics[: 10 - k % 5], 3) for k in range(random.randint(5, 10))
    }
    threads, partitions = group(members), {topic: range(10) for topic in topics}
    covered(assign_roundrobin(threads, partitions, form), threads, partitions)


def test_range_partition_assignor(random: Random) -> None:
    """Scala testRangePartitionAssignor: random maps with 1 to 8 streams are covered once."""
    sizes = {f"topic-{n}": random.randint(8, 119) for n in range(random.randint(1, 100))}
    members = {
        f"g1c{n}": {topic: random.randint(1, 8) for topic in sizes}
        for n in range(random.randint(1, 10))
    }
    threads, partitions = group(members), {t: range(n) for t, n in sizes.items()}
    covered(assign_range(threads, partitions), threads, partitions)


# --- a naive second implementation ----------------------------------------------------------------


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
    ring = sorted({t for ids in threads.values() for t in ids}, key=lambda t: units(str(t)))
    shape = "{}-{}" if form is RoundRobinHash.DASH else "[{},{}]"
    deck = [(t, p) for t in order for p in sorted(partitions.get(t, ()))]
    deck.sort(key=lambda tp: naive_hash(shape.format(*tp)))
    result: Result = {}
    for topic, partition in deck:
        while ring[0] not in threads[topic]:
            ring.append(ring.pop(0))
        result[TopicPartition(topic, partition)] = ring[0]
        ring.append(ring.pop(0))
    return result


names = st.text("abAB09._-", min_size=1, max_size=6)
members = st.dictionaries(
    st.one_of(names.map("g_{}".format), st.text(min_size=1, max_size=4)),
    st.dictionaries(
        st.sampled_from(["t", "t1", "Aa", "BB", "orders", "x.y-z"]), st.integers(1, 12), max_size=5
    ),
    max_size=6,
)
layouts = st.dictionaries(
    st.sampled_from(["t", "t1", "Aa", "BB", "orders", "x.y-z"]),
    st.lists(st.integers(0, 130), unique=True, max_size=16),
)


@settings(max_examples=700, deadline=None, print_blob=True)
@given(members=members, layout=layouts)
def test_assignors_equal_the_naive_ones(
    members: dict[str, dict[str, int]], layout: dict[str, list[int]]
) -> None:
    """On any topology, the fast assignors and the naive ones return the same result."""
    threads = {topic: ids for topic, ids in group(members).items() if ids}
    assert assign_range(threads, layout) == naive_range(threads, layout)
    subscriptions = [list(topics) for topics in members.values()]
    for form in RoundRobinHash:
        order = topic_order(subscriptions, own_topics=form is RoundRobinHash.BRACKETS_0_8_2)
        order = [topic for topic in order if topic in threads]
        expected = naive_roundrobin(threads, layout, form, order)
        assert assign_roundrobin(threads, layout, form, subscriptions) == expected
