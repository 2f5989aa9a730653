"""The assignors against results of the real JVM classes (Kafka 1.1.1 and 0.10.2.2)."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from zkconsumer.core.common.assign import (
    RoundRobinHash,
    assign_range,
    assign_roundrobin,
    thread_ids,
)
from zkconsumer.core.common.expansion import expand
from zkconsumer.core.common.java_hash import java_hash
from zkconsumer.core.common.types import ConsumerThreadId, Pattern, Subscription, TopicPartition

Members = dict[str, dict[str, int]]

DASH, BRACKETS = RoundRobinHash.DASH, RoundRobinHash.BRACKETS


def group(members: Members) -> dict[str, list[ConsumerThreadId]]:
    """Return all members' thread ids by topic."""
    threads: dict[str, list[ConsumerThreadId]] = {}
    for member, topics in members.items():
        for topic, ids in thread_ids(member, topics).items():
            threads.setdefault(topic, []).extend(ids)
    return threads


def by_thread(result: dict[TopicPartition, ConsumerThreadId]) -> dict[str, str]:
    """Return ``{thread: "topic/partition ..."}``, sorted."""
    shares: dict[str, list[TopicPartition]] = {}
    for tp, thread in result.items():
        shares.setdefault(str(thread), []).append(tp)
    return {
        thread: " ".join(f"{tp.topic}/{tp.partition}" for tp in sorted(tps))
        for thread, tps in sorted(shares.items())
    }


def check(
    members: Members,
    sizes: dict[str, int],
    *,
    ranged: dict[str, str],
    dash: dict[str, str],
    brackets: dict[str, str],
) -> None:
    """Compare all three assignments with the expected ones, given as in `by_thread`."""
    threads = group(members)
    partitions = {topic: list(range(size)) for topic, size in sizes.items()}
    assert by_thread(assign_range(threads, partitions)) == dict(sorted(ranged.items()))
    assert by_thread(assign_roundrobin(threads, partitions, DASH)) == dict(sorted(dash.items()))
    found = by_thread(assign_roundrobin(threads, partitions, BRACKETS))
    assert found == dict(sorted(brackets.items()))


def test_two_members_two_streams() -> None:
    """Five partitions for two members with two streams each."""
    dealt = {"g_C1-0": "t5/0 t5/4", "g_C1-1": "t5/1", "g_C2-0": "t5/2", "g_C2-1": "t5/3"}
    check(
        {"g_C1": {"t5": 2}, "g_C2": {"t5": 2}},
        {"t5": 5},
        ranged={"g_C1-0": "t5/0 t5/1", "g_C1-1": "t5/2", "g_C2-0": "t5/3", "g_C2-1": "t5/4"},
        dash=dealt,
        brackets=dealt,
    )


def test_threads_sort_as_text_and_two_digit_partitions_hash_negative() -> None:
    """Twelve streams of one member; the hash forms give different results."""
    order = [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9]
    as_range = {f"g_c-{stream}": f"t12/{part}" for part, stream in enumerate(order)}
    dealt = {10: 0, 11: 1, 0: 10, 1: 11, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6, 7: 7, 8: 8, 9: 9}
    check(
        {"g_c": {"t12": 12}},
        {"t12": 12},
        ranged=as_range,
        dash={f"g_c-{stream}": f"t12/{part}" for part, stream in dealt.items()},
        brackets=as_range,
    )


def test_order_is_that_of_the_joined_text() -> None:
    """Threads of g_c and of a member named g_c-0 interleave."""
    result = {"g_c-0": "t3/0", "g_c-0-0": "t3/1", "g_c-1": "t3/2"}
    check(
        {"g_c": {"t3": 2}, "g_c-0": {"t3": 1}},
        {"t3": 3},
        ranged=result,
        dash=result,
        brackets=result,
    )


def test_different_subscriptions() -> None:
    """A thread that does not subscribe to a topic loses its turn. The hash forms differ."""
    check(
        {"g_a": {"orders": 1, "clicks": 1}, "g_b": {"clicks": 2}},
        {"orders": 4, "clicks": 6},
        ranged={
            "g_a-0": "clicks/0 clicks/1 orders/0 orders/1 orders/2 orders/3",
            "g_b-0": "clicks/2 clicks/3",
            "g_b-1": "clicks/4 clicks/5",
        },
        dash={
            "g_a-0": "clicks/0 clicks/3 orders/0 orders/1 orders/2 orders/3",
            "g_b-0": "clicks/1 clicks/4",
            "g_b-1": "clicks/2 clicks/5",
        },
        brackets={
            "g_a-0": "clicks/2 clicks/5 orders/0 orders/1 orders/2 orders/3",
            "g_b-0": "clicks/0 clicks/3",
            "g_b-1": "clicks/1 clicks/4",
        },
    )


@pytest.mark.parametrize(
    ("members", "sizes"),
    [({"g_a": {"nosuch": 1}}, {}), ({"g_a": {}}, {}), ({}, {}), ({}, {"t": 3})],
)
def test_nothing_to_assign(members: Members, sizes: dict[str, int]) -> None:
    """An absent topic, an empty subscription or an empty group gives an empty result."""
    check(members, sizes, ranged={}, dash={}, brackets={})


def test_order_of_names_beyond_ascii_is_that_of_utf16() -> None:
    """Java compares code units, so a character beyond the BMP sorts before U+FF5E."""
    threads = group({"g_\uff5e": {"t": 1}, "g_\U0001f600": {"t": 1}})
    assert by_thread(assign_range(threads, {"t": [0, 1]})) == {
        "g_\U0001f600-0": "t/0",
        "g_\uff5e-0": "t/1",
    }


TIES = json.loads(Path(__file__).with_name("roundrobin_ties.json").read_text())


@pytest.mark.parametrize("form", list(RoundRobinHash))
def test_ties_between_topics_are_broken_as_the_jvm_breaks_them(form: RoundRobinHash) -> None:
    """Every partition goes to the thread that the JVM's own classes chose.

    The groups have many partitions of different topics with equal hashes. The results come from
    four builds of Kafka for each form (tests/interop/roundrobin_ties.py), from 0.8.2.2 to 1.1.1 on
    Scala 2.10 to 2.12.
    """
    text = "{}-{}" if form is DASH else "[{},{}]"
    groups = TIES[form.value]["groups"]
    tied = 0
    for number, known in enumerate(groups):
        threads: dict[str, list[ConsumerThreadId]] = {}
        subscriptions = []
        for name, pattern, wanted in known["members"]:
            subscription = Subscription(Pattern(pattern), wanted)
            topics = expand("/ids", subscription, list(known["topics"]), exclude_internal=True)
            subscriptions.append(list(topics))
            for topic, ids in thread_ids(name, topics).items():
                threads.setdefault(topic, []).extend(ids)
        result = assign_roundrobin(threads, known["topics"], form, subscriptions)
        owners = {f"{tp.topic}/{tp.partition}": str(thread) for tp, thread in result.items()}
        assert owners == known["owners"], f"group {number} of {form.value}"
        tied += len(result) - len({java_hash(text.format(*tp)) for tp in result})
    assert len(groups) == 40
    assert tied > 150


def test_before_0_10_2_a_tie_between_two_topics_goes_the_other_way() -> None:
    """Aa and BB have the same hash. Which of them comes first depends on the release."""
    assert java_hash("Aa-0") == java_hash("BB-0")
    threads = group({"g_a": {"Aa": 1, "BB": 1}, "g_b": {"Aa": 1, "BB": 1}})
    found = {
        form: by_thread(assign_roundrobin(threads, {"BB": [0], "Aa": [0]}, form))
        for form in RoundRobinHash
    }
    assert found[DASH] == found[BRACKETS] == {"g_a-0": "Aa/0", "g_b-0": "BB/0"}
    assert found[RoundRobinHash.BRACKETS_0_8_2] == {"g_a-0": "BB/0", "g_b-0": "Aa/0"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("t1-0", 3504288),
        ("orders-0", 1234322248),
        ("clicks-0", 906470094),
        ("t12-10", -927198889),
        ("t12-2", 108637690),
        ("[orders,0]", -1093576615),
        ("[clicks,0]", 1627908499),
        ("topic1", -868034334),
        ("", 0),
        ("é", 233),
        ("\U0001f600", 1772899),
    ],
)
def test_java_hash(text: str, expected: int) -> None:
    """Hashes equal Java's, over UTF-16 code units."""
    assert java_hash(text) == expected


def test_large_groups_are_fast() -> None:
    """200 members and 2,000 partitions take well under 100 ms, in one topic or in many."""
    for topics in (1, 10, 100):
        sizes = {f"topic-{n}": range(2000 // topics) for n in range(topics)}
        threads = group(
            {
                f"g_host{m}": {topic: 1 for n, topic in enumerate(sizes) if (m + n) % 3 or not n}
                for m in range(200)
            }
        )
        for form in (None, DASH):
            best = 1.0
            for _ in range(3):
                start = time.thread_time()
                if form is None:
                    result = assign_range(threads, sizes)
                else:
                    result = assign_roundrobin(threads, sizes, form)
                best = min(best, time.thread_time() - start)
            assert len(result) == 2000
            assert best < 0.1
