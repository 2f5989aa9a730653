"""A member's work for each partition and each member grows at most linearly.

Four times the work may take up to eight times the CPU time of this thread (linear is four,
quadratic sixteen). The shortest of several runs of each counts, so that a busy machine does not
decide.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable

import pytest

from zkconsumer.core.common.assign import (
    RoundRobinHash,
    assign_range,
    assign_roundrobin,
    thread_ids,
)
from zkconsumer.core.common.expansion import Expansions
from zkconsumer.core.common.types import (
    BrokerEndpoint,
    ConsumerThreadId,
    Pattern,
    Subscription,
    TopicPartition,
)
from zkconsumer.core.zookeeper.ops import Create, SetData
from zkconsumer.core.zookeeper.scripts.common import packets
from zkconsumer.core.zookeeper.znodes import GroupPaths, decode_topic
from zkconsumer.runtime.delivery.chunks import ChunkQueue, PartitionTopicInfo
from zkconsumer.runtime.delivery.reader import Reader
from zkconsumer.runtime.fetch.table import FetchTable, WorkerKey
from zkconsumer.runtime.gate import DeliveryGate

PARTITIONS, MEMBERS = 20_000, 1_000
BROKER = BrokerEndpoint(0, "127.0.0.1", 9092)
WORKER = WorkerKey(0, 0)


def group(scale: float) -> tuple[dict[str, list[ConsumerThreadId]], dict[str, list[int]]]:
    """Threads and partitions of a group, in two topics."""
    threads: dict[str, list[ConsumerThreadId]] = {"a": [], "b": []}
    for number in range(int(MEMBERS * scale)):
        for topic, ids in thread_ids(f"g_host{number}-1-{number:x}", {"a": 1, "b": 1}).items():
            threads[topic] += ids
    half = int(PARTITIONS * scale) // 2
    return threads, {"a": list(range(half)), "b": list(range(half))}


def ranges(scale: float) -> Callable[[], object]:
    """The range strategy."""
    threads, partitions = group(scale)
    return lambda: assign_range(threads, partitions)


def round_robin(scale: float) -> Callable[[], object]:
    """The round-robin strategy."""
    threads, partitions = group(scale)
    return lambda: assign_roundrobin(threads, partitions, RoundRobinHash.DASH)


def topic(scale: float) -> Callable[[], object]:
    """A topic's znode."""
    replicas = {str(number): [0, 1, 2] for number in range(int(PARTITIONS * scale))}
    data = json.dumps({"version": 1, "partitions": replicas}).encode()
    return lambda: decode_topic("/brokers/topics/a", data)


def filters(scale: float) -> Callable[[], object]:
    """Expand the members' filters, all of them different, and again from memory."""
    subscriptions = {
        f"m{number}": Subscription(Pattern.WHITE_LIST, {f"topic-{number % 50}.*|t{number}": 1})
        for number in range(int(MEMBERS * scale) // 4)
    }
    topics = [f"topic-{number}" for number in range(200)]

    def run() -> None:
        expansions = Expansions()
        first, _ = expansions.of(subscriptions, topics, True)
        again, _ = expansions.of(subscriptions, topics, True)
        assert all(again[name] is first[name] for name in first)

    return run


def claims(scale: float) -> Callable[[], object]:
    """Build the packets of a claim."""
    paths = GroupPaths("g")
    parts = [TopicPartition("a", number) for number in range(int(PARTITIONS * scale))]
    return lambda: list(
        packets(
            (tp, (Create(paths.owner(tp), b"m-0", True), SetData(paths.offset(tp), b"1", 0)))
            for tp in parts
        )
    )


def fetching(scale: float) -> Callable[[], object]:
    """The fetch table: partitions are added, get leaders, are served, lose leaders, are removed."""

    def run() -> None:
        queue = ChunkQueue(2, DeliveryGate()._lock)
        infos = [PartitionTopicInfo("a", number, 0) for number in range(int(PARTITIONS * scale))]
        table = FetchTable(1)
        table.set_brokers([BROKER])
        table.add(dict.fromkeys(infos, queue))
        table.due(0.0)
        table.assign(dict.fromkeys(infos, BROKER))
        work = table.work(WORKER, also_full=False)
        assert work is not None
        assert len(work.states) == len(infos)
        table.served(work.states[:100])
        table.mark_failed(WORKER, work.states, 0.0)
        table.remove(infos)

    return run


def revoking(scale: float) -> Callable[[], object]:
    """A stream loses all its partitions."""

    def run() -> None:
        stream = Reader(DeliveryGate())
        infos = [PartitionTopicInfo("a", number, 0) for number in range(int(PARTITIONS * scale))]
        stream.revoke(infos)
        assert stream.release(infos)
        assert all(info.position == 0 for info in infos)

    return run


def cost(run: Callable[[], object]) -> float:
    """Return the CPU seconds of the shortest of several runs, without the garbage collector's
    share."""
    times = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            begun = time.thread_time()
            run()
            times.append(time.thread_time() - begun)
    finally:
        gc.enable()
    return min(times)


@pytest.mark.parametrize("make", [ranges, round_robin, topic, filters, claims, fetching, revoking])
def test_four_times_the_group_costs_four_times_as_much(
    make: Callable[[float], Callable[[], object]],
) -> None:
    """Up to 20,000 partitions and 1,000 members. A busy machine may disturb one measurement, so the
    best of three counts."""
    seen = []
    for _ in range(3):
        small, large = cost(make(0.25)), cost(make(1.0))
        if large < 8 * small:
            return
        seen.append(f"{small * 1000:.1f} ms, then {large * 1000:.1f} ms")
    pytest.fail("; ".join(seen))
