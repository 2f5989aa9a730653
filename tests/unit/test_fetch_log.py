"""What fetching logs: an error once, as a warning when it is repeated, and rarely after that."""

from __future__ import annotations

import logging
import random
import threading

import pytest

from tests.sim.runs.fetching import SimConfig
from tests.unit.test_health import Made
from zkconsumer.broker.types import ClusterMetadata, Got
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.errors import BrokerError
from zkconsumer.runtime.delivery.chunks import ChunkQueue, PartitionTopicInfo
from zkconsumer.runtime.fetch.error_log import FetchLog
from zkconsumer.runtime.fetch.interface import (
    FetchEvent,
    FetchEventKind,
    FetchRequest,
    LeadersRequest,
    Wait,
)
from zkconsumer.runtime.fetch.leaders import LeaderFinder
from zkconsumer.runtime.fetch.table import FetchTable, WorkerKey
from zkconsumer.runtime.fetch.worker import FetchWorker
from zkconsumer.runtime.observation.health import Membership

BROKERS = [BrokerEndpoint(n, "127.0.0.1", 9092 + n) for n in (1, 2)]
KEY = WorkerKey(2, 0)


class Bench:
    """Partitions led by broker 2, with the real table, leader finder and worker, and a clock."""

    def __init__(self, partitions: int) -> None:
        self.now = 100.0
        self.lines: list[tuple[int, str]] = []
        self.log = FetchLog(lambda level, text: self.lines.append((level, text)), self.clock)
        self.table = FetchTable(1)
        self.table.set_brokers(BROKERS)
        self.infos = [PartitionTopicInfo("t", n, 0) for n in range(partitions)]
        config = SimConfig(1000, 10_000, 1, 200, "smallest", "default")
        self.worker = FetchWorker(self.table, KEY, config, self.log.add, self.clock)
        self.finder = LeaderFinder(self.table, config, self.log.add, self.clock, random.Random(1))
        self.leaders = dict.fromkeys((info.topic_partition for info in self.infos), 2)
        self.errors: dict[str, BrokerError] = {}
        self.table.add({info: ChunkQueue(9, threading.Lock()) for info in self.infos})

    def clock(self) -> float:
        return self.now

    def run(self, seconds: float, error: BrokerError | None, whole: bool = False) -> None:
        """Let time pass. Each fetch is answered with ``error``; ``whole``: the request fails."""
        until = self.now + seconds
        while self.now < until:
            found = self.finder.choose()
            if isinstance(found, LeadersRequest):
                self.finder.take(found, ClusterMetadata({}, self.leaders, self.errors))
                self.log.flush()
            request = self.worker.choose()
            if isinstance(request, FetchRequest):
                if error is not None and whole:
                    self.worker.fail(request, error)
                else:
                    got = [Got(topic, part, error, 0, b"") for topic, part in request.states]
                    self.worker.take(request, got)
                self.log.flush()
            self.now += 0.05


def test_a_dead_broker_is_three_lines_however_many_partitions_it_led() -> None:
    """It was 43,573 lines in 16 s. The first error is information, the second a warning."""
    bench = Bench(300)
    bench.run(1, None)
    names = "300 partitions (t-0, t-1, t-2, t-3, t-4, ...)"
    assert bench.lines == [(logging.INFO, f"{names} are fetched from broker 2")]
    del bench.lines[:]
    refused = BrokerError("broker 2 at 127.0.0.1:9094: Connection refused")
    bench.run(16, refused, whole=True)
    assert bench.lines == [
        (logging.INFO, f"{names}: {refused}"),
        (logging.WARNING, f"{names}: {refused}"),
    ]
    bench.run(30, refused, whole=True)
    assert bench.lines[2:] == [(logging.WARNING, f"{names}: {refused}")]
    bench.run(1, None)
    assert bench.lines[3:] == [(logging.INFO, f"{names} are fetched again, from broker 2")]
    bench.run(40, None)
    bench.run(5, refused, whole=True)
    assert [level for level, _ in bench.lines[4:]] == [logging.INFO, logging.WARNING]


@pytest.mark.parametrize("where", ["read", "describe"])
def test_a_topic_that_is_denied_is_a_warning_every_half_minute_and_named_in_the_health(
    where: str,
) -> None:
    """Whether a fetch is refused, or the question for the leader."""
    bench = Bench(2)
    denied = BrokerError("topic t: TOPIC_AUTHORIZATION_FAILED (29)")
    if where == "describe":
        bench.leaders, bench.errors = {}, {"t": denied}
    bench.run(100, denied)
    warned = [text for level, text in bench.lines if level == logging.WARNING]
    assert warned == [f"2 partitions (t-0, t-1): {denied}"] * 4
    assert len(bench.lines) <= 6
    made = Made()
    made.infos, made.member = bench.infos, Membership("R", "resting", True, True, 2, 2)
    for _ in range(12):
        bench.run(1, denied)
        made.after(1)
    (reason,) = made.monitor.read(10.0).reasons
    assert str(reason).startswith(f"t-0, t-1: {denied}: allow this member's principal to read")


def test_an_error_that_comes_and_goes_is_no_flood() -> None:
    """Every second fetch fails."""
    bench = Bench(1)
    for _ in range(100):
        bench.run(0.3, BrokerError("fetching t-0: NOT_LEADER_OR_FOLLOWER (6)"))
        bench.run(0.3, None)
    assert len(bench.lines) < 12


def test_another_error_or_another_leader_is_a_line() -> None:
    """Each change is new. A partition that was given up starts from the beginning."""
    bench = Bench(1)
    for text in ("one", "two", "one"):
        bench.run(0.01, BrokerError(text))
        bench.now += 0.2
    assert [text for _, text in bench.lines] == [
        "t-0 is fetched from broker 2",
        "t-0: one",
        "t-0: two",
        "t-0: one",
    ]
    assert [level for level, _ in bench.lines] == [
        logging.INFO,
        logging.INFO,
        logging.INFO,
        logging.WARNING,
    ]
    del bench.lines[:]
    bench.leaders = dict.fromkeys(bench.leaders, 1)
    bench.run(0.1, None)
    assert bench.lines == [(logging.INFO, "t-0 is fetched from broker 1")]
    bench.log.forget([TopicPartition("t", 0)])
    found = FetchEvent(FetchEventKind.LEADER_FOUND, TopicPartition("t", 0), 1, "t-0 is fetched")
    bench.log.add(found)
    bench.log.flush()
    assert len(bench.lines) == 2


def test_without_a_worker_there_is_nothing_to_flush() -> None:
    """Another thread's events wait for that thread."""
    bench = Bench(1)
    thread = threading.Thread(
        target=lambda: bench.log.add(FetchEvent(FetchEventKind.LEADER_FOUND, None, 1, "found"))
    )
    thread.start()
    thread.join()
    bench.log.flush()
    assert bench.lines == []
    assert isinstance(bench.worker.choose(), Wait)
