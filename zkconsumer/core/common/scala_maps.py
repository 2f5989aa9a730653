"""The order in which Scala's hash maps return topics, by which the JVM's roundrobin breaks ties.

Two partitions of different topics can have the same hash, for example ``Aa-0`` and ``BB-0``. The
JVM sorts partitions by hash with a stable sort, so such partitions stay in the order in which its
map of topics returns them. That order is determined by the topics' names, by their number, and
within one bucket by the order of insertion.

Sources: Kafka 0.8.2.2 to 1.1.1 ``AssignmentContext``, ``ZkUtils.getConsumersPerTopic``,
``ZkUtils.getPartitionsForTopics`` and ``TopicCount.makeConsumerThreadIdsPerTopic``; Scala 2.10 to
2.12 ``immutable.Map``, ``immutable.HashMap.HashTrieMap`` and ``mutable.HashTable``. Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zkconsumer.core.common.java_hash import MASK, java_hash_bits

_SMALL = 4  # Map.Map1 to Map.Map4 keep the order of insertion
_FIRST_BITS = 4  # HashTable.initialSize is 16; its seed is tableSizeSeed, set once for that size


def immutable_order(keys: Sequence[str]) -> list[str]:
    """Return distinct ``keys``, inserted in this order, in the iteration order of
    ``immutable.Map``.

    Up to four keys stay in order. More keys are in a trie that branches on five bits of the
    improved hash at a time, lowest bits first. Keys with the same hash stay in order
    (``HashMapCollision1``).
    """
    return list(keys) if len(keys) <= _SMALL else sorted(keys, key=_trie_path)


def mutable_order(keys: Iterable[str]) -> list[str]:
    """Return distinct ``keys``, inserted in this order, in the iteration order of
    ``mutable.HashMap``.

    Buckets are read from the last to the first. A new key is put at the head of its bucket. Above a
    load of 3/4 the table doubles, which reverses keys that remain in the same bucket.
    """
    bits, limit = _FIRST_BITS, 12
    table: list[list[tuple[int, str]]] = [[] for _ in range(1 << bits)]  # a bucket's head is last
    for count, key in enumerate(keys, start=1):
        place = _place(key)
        table[place >> (32 - bits)].append((place, key))
        if count > limit:
            bits, limit = bits + 1, 2 * limit
            old, table = table, [[] for _ in range(1 << bits)]
            for bucket in reversed(old):
                for entry in reversed(bucket):
                    table[entry[0] >> (32 - bits)].append(entry)
    return [key for bucket in reversed(table) for _, key in reversed(bucket)]


def topic_order(subscriptions: Iterable[Sequence[str]], *, own_topics: bool = False) -> list[str]:
    """Return all topics of a group in the order in which the JVM's roundrobin visits them.

    ``subscriptions`` has each member's topics without duplicates, members in the order in which
    ZooKeeper lists them. A static registration's topics are in the order of its JSON, a filter's
    in the order in which ZooKeeper lists ``/brokers/topics``. ``own_topics`` selects the code of
    Kafka 0.8.2 to 0.10.1, in which all members must subscribe to the same topics, because a member
    looks up the partitions of its own topics, not of those in ``consumersForTopic``.
    """
    met: dict[str, None] = {}
    for topics in subscriptions:
        if not all(topic in met for topic in topics):
            met |= dict.fromkeys(mutable_order(immutable_order(topics)))
    # consumersForTopic, then the maps of getPartitionAssignmentForTopics and getPartitionsForTopics
    by_topic = list(met) if own_topics else mutable_order(met)
    return mutable_order(mutable_order(by_topic))


def _trie_path(key: str) -> tuple[int, ...]:
    """Return the branch numbers from the root (``HashMap.improve``, five bits at a time)."""
    mixed = java_hash_bits(0, key)
    mixed = (mixed + ~(mixed << 9)) & MASK
    mixed ^= mixed >> 14
    mixed = (mixed + (mixed << 4)) & MASK
    mixed ^= mixed >> 10
    return tuple(mixed >> shift & 31 for shift in range(0, 32, 5))


def _place(key: str) -> int:
    """Return ``HashTable.HashUtils.improve``, whose highest bits are the bucket's index."""
    mixed = java_hash_bits(0, key) * 0x9E3775CD & MASK
    mixed = int.from_bytes(mixed.to_bytes(4, "little"), "big") * 0x9E3775CD & MASK
    return (mixed >> _FIRST_BITS | mixed << (32 - _FIRST_BITS)) & MASK
