"""Public calls in any order from two threads, with ``shutdown`` anywhere, on real servers.

``ZKC_SEED=N`` repeats a seed, and ``ZKC_SEEDS=100`` makes more of them.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from zkconsumer import CoordinatorConsumerConnector, Whitelist, ZookeeperConsumerConnector
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.errors import ZkConsumerError
from zkconsumer.servers import LocalCluster, wait_until
from zkconsumer.servers.produce import send

ONLY = os.environ.get("ZKC_SEED")
SEEDS = [int(ONLY)] if ONLY else range(int(os.environ.get("ZKC_SEEDS", "4")))
CALLS = 25
END_S = 60.0
"""Seconds for all calls of both threads."""


class Listener:
    """A listener without effect."""

    def before_releasing_partitions(self, _partitions: Any) -> None: ...

    def before_starting_fetchers(self, _consumer_id: str, _assignment: Any) -> None: ...


class Program:
    """One connector that two threads use."""

    def __init__(self, connector: Any, topic: str) -> None:
        self.connector, self.topic = connector, topic
        self.streams: list[Any] = []
        self.calls: dict[str, Callable[[random.Random], object]] = {
            "streams": lambda rng: self._keep(
                connector.create_message_streams({topic: rng.randint(1, 2)})[topic]
            ),
            "filter": lambda rng: self._keep(
                connector.create_message_streams_by_filter(Whitelist(topic))
            ),
            "next": lambda rng: next(iter(self._one(rng))),
            "try_next": lambda rng: self._one(rng).try_next(),
            "batch": lambda rng: next(self._one(rng).batches(3)),
            "mark": lambda rng: self._one(rng).mark_consumed(),
            "commit": lambda rng: connector.commit_offsets(),
            "commit one": lambda rng: connector.commit_offsets({TopicPartition(topic, 0): 1}),
            "commit async": lambda rng: connector.commit_offsets_async(),
            "health": lambda rng: connector.health(),
            "metrics": lambda rng: connector.metrics(),
            "listener": lambda rng: connector.set_consumer_rebalance_listener(Listener()),
        }

    def _keep(self, streams: list[Any]) -> None:
        self.streams += streams

    def _one(self, rng: random.Random) -> Any:
        if not self.streams:
            raise ZkConsumerError("there is no stream yet")
        return rng.choice(self.streams)

    def run(self, seed: int, shuts_down: bool) -> None:
        """Make random calls. A thread. Raises an error that is not documented."""
        rng = random.Random(seed)
        last = rng.randrange(CALLS) if shuts_down else CALLS
        for number in range(CALLS):
            call = self.calls[rng.choice([*self.calls])]
            with suppress(ZkConsumerError, StopIteration):
                if number == last:
                    self.connector.shutdown()
                else:
                    call(rng)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", [ZookeeperConsumerConnector, CoordinatorConsumerConnector])
def test_every_order_ends(
    cluster: LocalCluster, topic: str, config: dict[str, object], kind: Any, seed: int
) -> None:
    """Each call returns, or raises an error of the library, in time. No thread remains."""
    cluster.create_topic(topic, partitions=2)
    send(cluster.bootstrap, topic, [(None, b"%d" % number) for number in range(20)])
    before = set(threading.enumerate())
    config["consumer.timeout.ms"] = 50
    if kind is CoordinatorConsumerConnector:
        config = {key: config[key] for key in ("group.id", "auto.offset.reset")}
        config |= {"bootstrap.servers": cluster.bootstrap, "consumer.timeout.ms": 50}
    program = Program(kind(config), topic)
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(program.run, 2 * seed + number, number == 0) for number in range(2)]
        for one in running:
            one.result(END_S)
    program.connector.shutdown()
    wait_until(lambda: set(threading.enumerate()) <= before, 10, "every thread has ended")
