"""The range and roundrobin assignors, with exactly the JVM's results.

Every member computes the whole group's assignment itself, so any difference in order makes two
members claim the same partition indefinitely. Pure functions; any thread may call them.

Order of threads: Java ``String.compareTo`` on the joined text ``<consumer id>-<stream>``, which
compares UTF-16 code units. Order of partitions in roundrobin: signed 32-bit Java string hash of
the partition's text; equal hashes in the order of the JVM's map of topics (``scala_maps``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from itertools import pairwise

from zkconsumer.core.common.java_hash import java_hash_bits, signed
from zkconsumer.core.common.types import ConsumerThreadId, TopicPartition


class RoundRobinHash(Enum):
    """The form of a partition's text that roundrobin hashes. It must be the same in all members."""

    DASH = "topic-partition"
    """Kafka 1.0 and later: ``orders-0``."""

    BRACKETS = "[topic,partition]"
    """Kafka 0.10.2 and 0.11: ``[orders,0]``."""

    BRACKETS_0_8_2 = "[topic,partition]-0.8.2"
    """Kafka 0.8.2 to 0.10.1: the same text, but ties between topics are broken in another way."""


def thread_ids(consumer_id: str, topics: Mapping[str, int]) -> dict[str, list[ConsumerThreadId]]:
    """Return the thread ids of one member: streams 0 to n-1 for each subscribed topic."""
    return {
        topic: [ConsumerThreadId(consumer_id, stream) for stream in range(streams)]
        for topic, streams in topics.items()
    }


def assign_range(
    threads: Mapping[str, Sequence[ConsumerThreadId]], partitions: Mapping[str, Sequence[int]]
) -> dict[TopicPartition, ConsumerThreadId]:
    """Assign each topic's partitions to its threads in consecutive runs (Scala RangeAssignor).

    ``threads`` has all members' thread ids by topic, ``partitions`` the partition numbers by topic;
    both in any order. With P partitions and N threads the first ``P mod N`` threads get one more
    partition than the others. The result covers the whole group; topics without threads or
    partitions are not in it.
    """
    distinct = _distinct(threads.values())
    rank = _ranks(distinct.values())
    in_order = {at: sorted(ids, key=rank.__getitem__) for at, ids in distinct.items()}
    result: dict[TopicPartition, ConsumerThreadId] = {}
    for topic, unsorted_threads in threads.items():
        numbers = sorted(partitions.get(topic, ()))
        if not numbers or not unsorted_threads:
            continue
        ordered = in_order[id(unsorted_threads)]
        share, extra = divmod(len(numbers), len(ordered))
        start = 0
        for position, thread in enumerate(ordered[: len(numbers)]):  # the rest gets nothing
            end = start + share + (position < extra)
            for number in numbers[start:end]:
                result[TopicPartition(topic, number)] = thread
            start = end
    return result


def assign_roundrobin(
    threads: Mapping[str, Sequence[ConsumerThreadId]],
    partitions: Mapping[str, Sequence[int]],
    hash_form: RoundRobinHash,
    subscriptions: Iterable[Sequence[str]] | None = None,
) -> dict[TopicPartition, ConsumerThreadId]:
    """Assign all partitions of all topics to a ring of all threads (Scala RoundRobinAssignor).

    As in Kafka 0.10.2 and later, a thread that does not subscribe to a partition's topic is
    skipped and loses that turn. Arguments and result are those of `assign_range`.

    Partitions with equal hashes are assigned by number within a topic, and across topics in the
    order of the JVM's topic map. ``subscriptions`` determines that order (see `topic_order`). By
    default it is derived from ``threads``: members and topics in the order of their first
    appearance. Nothing else depends on the order of the arguments.
    """
    distinct = _distinct(threads.values())
    rank = _ranks(distinct.values())
    ring = list(rank)
    places_of = {at: sorted({rank[t] for t in ids}) for at, ids in distinct.items()}
    places = {topic: places_of[id(ids)] for topic, ids in threads.items() if ids}
    before, between, after = ("", "-", "") if hash_form is RoundRobinHash.DASH else ("[", ",", "]")

    deck: list[tuple[int, str, int]] = []
    for topic in places:
        prefix = java_hash_bits(0, f"{before}{topic}{between}")
        for number in partitions.get(topic, ()):
            hashed = signed(java_hash_bits(prefix, f"{number}{after}"))
            deck.append((hashed, topic, number))
    deck.sort()
    if any(card[0] == next_[0] and card[1] != next_[1] for card, next_ in pairwise(deck)):
        from zkconsumer.core.common.scala_maps import topic_order

        topic_lists = _subscriptions(threads) if subscriptions is None else subscriptions
        order = topic_order(topic_lists, own_topics=hash_form is RoundRobinHash.BRACKETS_0_8_2)
        visited = {topic: place for place, topic in enumerate(order)}
        deck.sort(key=lambda card: (card[0], visited[card[1]], card[2]))

    result: dict[TopicPartition, ConsumerThreadId] = {}
    turn = 0
    for _, topic, number in deck:
        eligible = places[topic]
        at = bisect_left(eligible, turn)
        place = eligible[at] if at < len(eligible) else eligible[0]
        result[TopicPartition(topic, number)] = ring[place]
        turn = place + 1
    return result


def _distinct(lists: Iterable[Sequence[ConsumerThreadId]]) -> dict[int, Sequence[ConsumerThreadId]]:
    """Return each list once, by identity, because topics may share one."""
    return {id(some): some for some in lists}


def _ranks(threads: Iterable[Sequence[ConsumerThreadId]]) -> dict[ConsumerThreadId, int]:
    """Return all distinct threads in Java's order, each with its rank."""
    distinct = {thread for some in threads for thread in some}
    ordered = sorted(distinct, key=lambda thread: _java_key(f"{thread.consumer}-{thread.stream}"))
    return {thread: place for place, thread in enumerate(ordered)}


def _subscriptions(threads: Mapping[str, Sequence[ConsumerThreadId]]) -> Iterable[Sequence[str]]:
    """Return each consumer's topics, both in the order of their first appearance."""
    topics_of: dict[str, dict[str, None]] = {}
    for topic, ids in threads.items():
        for thread in ids:
            topics_of.setdefault(thread.consumer, {})[topic] = None
    return [list(topics) for topics in topics_of.values()]


def _java_key(text: str) -> bytes:
    """Return a key whose byte order equals the order of ``String.compareTo``."""
    return text.encode("utf-16-be", "surrogatepass")
