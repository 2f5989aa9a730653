"""Who gets which partition: the range and roundrobin assignors, bit for bit as the JVM's.

Every member computes the whole group's result on its own, so an order that differs in one place
makes two members claim the same partition for ever. Pure functions; any thread may call them.

Order of threads: Java ``String.compareTo`` on the joined text ``<consumer id>-<stream>``, which
compares UTF-16 code units. Order of partitions in roundrobin: signed 32-bit Java string hash of
the partition's text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from zkconsumer.core.types import ConsumerThreadId, TopicPartition


class RoundRobinHash(Enum):
    """The text of a partition that roundrobin hashes. All members must use the same one."""

    DASH = "topic-partition"
    """Kafka 1.0 and later: ``orders-0``."""

    BRACKETS = "[topic,partition]"
    """Kafka 0.8.2 to 0.11: ``[orders,0]``."""


def java_hash(text: str) -> int:
    """Return what Java's ``text.hashCode()`` returns: signed, 32 bits, over UTF-16 code units."""
    return _signed(_hash_more(0, text))


def fetcher_index(topic: str, partition: int, num_fetchers: int) -> int:
    """Return which of a broker's ``num_fetchers`` fetchers reads a partition (Scala getFetcherId).

    Scala's ``abs`` maps the smallest 32-bit integer to 0, and so does this.
    """
    value = _signed((31 * _hash_more(0, topic) + partition) & 0xFFFFFFFF)
    return (0 if value == -0x80000000 else abs(value)) % num_fetchers


def thread_ids(consumer_id: str, topics: Mapping[str, int]) -> dict[str, list[ConsumerThreadId]]:
    """Return the thread ids of one member: streams 0 to n-1 for each topic it subscribes to."""
    return {
        topic: [ConsumerThreadId(consumer_id, stream) for stream in range(streams)]
        for topic, streams in topics.items()
    }


def assign_range(
    threads: Mapping[str, Sequence[ConsumerThreadId]],
    partitions: Mapping[str, Sequence[int]],
) -> dict[TopicPartition, ConsumerThreadId]:
    """Give each topic's threads consecutive runs of its partitions (Scala RangeAssignor).

    ``threads`` holds all members' thread ids by topic, ``partitions`` the partition numbers by
    topic; both in any order. With P partitions and N threads the first ``P mod N`` threads get one
    partition more than the others. The result covers the whole group; a topic without threads or
    without partitions adds nothing to it.
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
) -> dict[TopicPartition, ConsumerThreadId]:
    """Deal all partitions of all topics to a ring of all threads (Scala RoundRobinAssignor).

    The form of Kafka 0.10.2 and later: a thread that does not subscribe to a partition's topic is
    passed over and loses that turn. Arguments and result as in `assign_range`.

    Partitions whose hashes are equal are dealt by topic, then by number. Within one
    topic the JVM does the same; between topics its order is that of a hash map, so it is undefined.
    """
    distinct = _distinct(threads.values())
    rank = _ranks(distinct.values())
    ring = list(rank)
    places_of = {at: sorted({rank[t] for t in ids}) for at, ids in distinct.items()}
    places = {topic: places_of[id(ids)] for topic, ids in threads.items() if ids}
    before, after = ("", "-") if hash_form is RoundRobinHash.DASH else ("[", ",")
    closing = "" if hash_form is RoundRobinHash.DASH else "]"

    deck: list[tuple[int, str, int]] = []
    for topic in places:
        prefix = _hash_more(0, f"{before}{topic}{after}")
        for number in partitions.get(topic, ()):
            hashed = _signed(_hash_more(prefix, f"{number}{closing}"))
            deck.append((hashed, topic, number))
    # DEVIATION-24: the JVM orders equal hashes of different topics by chance.
    deck.sort()

    result: dict[TopicPartition, ConsumerThreadId] = {}
    turn = 0
    for _, topic, number in deck:
        eligible = places[topic]
        found = bisect_left(eligible, turn)
        place = eligible[found] if found < len(eligible) else eligible[0]
        result[TopicPartition(topic, number)] = ring[place]
        turn = place + 1
    return result


def _distinct(
    lists: Iterable[Sequence[ConsumerThreadId]],
) -> dict[int, Sequence[ConsumerThreadId]]:
    """Each list once, by its identity: topics may share one."""
    return {id(some): some for some in lists}


def _ranks(threads: Iterable[Sequence[ConsumerThreadId]]) -> dict[ConsumerThreadId, int]:
    """All distinct threads in Java order, each with its place."""
    distinct = {thread for some in threads for thread in some}
    ordered = sorted(distinct, key=lambda thread: _java_key(f"{thread.consumer}-{thread.stream}"))
    return {thread: place for place, thread in enumerate(ordered)}


def _java_key(text: str) -> bytes:
    """A key whose byte order is the order of ``String.compareTo``."""
    return text.encode("utf-16-be", "surrogatepass")


def _hash_more(value: int, text: str) -> int:
    """Carry a Java string hash (unsigned 32 bits) on over more text."""
    if text.isascii():
        for unit in text.encode():
            value = (31 * value + unit) & 0xFFFFFFFF
        return value
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value


def _signed(value: int) -> int:
    return value - 0x100000000 if value & 0x80000000 else value
