"""The fetching threads, with brokers that answer at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

import pytest

from tests.sim.runs.fetching import SimConfig
from tests.support.batches import counted
from zkconsumer.broker.types import ClusterMetadata, Got
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.errors import BrokerUnavailableError
from zkconsumer.runtime.delivery.chunks import PartitionTopicInfo
from zkconsumer.runtime.delivery.reader import Reader
from zkconsumer.runtime.delivery.streams import KafkaStream
from zkconsumer.runtime.fetch import threads
from zkconsumer.runtime.fetch.interface import (
    FetchEvent,
    FetchEventKind,
    FetchRequest,
    LeadersRequest,
    OffsetsRequest,
)
from zkconsumer.runtime.fetch.threads import ConsumerFetcherManager
from zkconsumer.runtime.fetch.worker import FetchWorker
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.servers import wait_until

HERE = BrokerEndpoint(7, "127.0.0.1", 1)


class Broker:
    """Leads every partition and has one record at every offset."""

    faults: ClassVar[list[Exception]] = []
    """Errors for the next fetches, one each."""
    checks: ClassVar[list[LeadersRequest]] = []
    """Requests that compared the leaders."""

    def __init__(self, *_: object) -> None:
        self.aborted = threading.Event()

    def metadata(self, request: LeadersRequest) -> ClusterMetadata:
        if request.check:
            self.checks.append(request)
        leaders = {TopicPartition(topic, n): 7 for topic in request.topics for n in range(4)}
        return ClusterMetadata({7: HERE}, leaders, {})

    def list_offsets(self, request: OffsetsRequest) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(request.states, 0)

    def fetch(self, request: FetchRequest) -> list[Got]:
        if self.aborted.is_set():
            raise BrokerUnavailableError("aborted")
        if self.faults:
            raise self.faults.pop()
        return [Got(*w[:2], None, 99, counted(w.offset)) for w in request.wanted]

    def abort(self) -> None:
        self.aborted.set()

    def close(self) -> None:
        pass


@pytest.fixture
def events() -> list[FetchEvent]:
    """The reported events."""
    return []


@pytest.fixture
def manager(
    monkeypatch: pytest.MonkeyPatch, events: list[FetchEvent]
) -> Iterator[ConsumerFetcherManager]:
    """A manager that knows one broker. Its workers retire as soon as they are idle."""
    monkeypatch.setattr(threads, "BrokerIO", Broker)
    monkeypatch.setattr(threads, "FetchWorker", partial(FetchWorker, idle=0.0))
    monkeypatch.setattr(Broker, "faults", [])
    monkeypatch.setattr(Broker, "checks", [])
    config: Any = SimConfig(1000, 10_000, 1, 10, "smallest", "default")
    made = ConsumerFetcherManager(config, "me", events.append)
    made.set_brokers([HERE])
    yield made
    made.shutdown()


def stream() -> KafkaStream:
    """A stream that is always open."""
    return KafkaStream(Reader(DeliveryGate(always_open=True), timeout_ms=10_000))


def running() -> set[str]:
    """Return the names of the fetching threads."""
    names = {thread.name for thread in threading.enumerate()}
    return {name for name in names if name.startswith(("me-", "ConsumerFetcherThread-me-"))}


def test_threads_are_the_jvm_s_and_end(manager: ConsumerFetcherManager) -> None:
    """There are none before there is something to fetch. Then there are the leader finder and one
    fetcher for the broker. The fetcher ends when it has nothing to do, and starts with the next
    partition. All end at shutdown."""
    assert running() == set()
    finder, fetcher = "me-leader-finder-thread", "ConsumerFetcherThread-me-0-7"
    for _ in range(3):
        info, target = PartitionTopicInfo("t", 0, 0), stream()
        manager.start({info: target._reader.queue})
        assert [next(iter(target)).offset for _ in range(20)] == list(range(20))
        assert running() == {finder, fetcher}
        assert manager.requests_to(HERE) == 1
        manager.stop([info])
        assert manager.requests_to(HERE) == 0
        wait_until(lambda: running() == {finder}, 10, "the idle worker ends")
    manager.shutdown()
    assert running() == set()


@pytest.mark.parametrize("fault", [BrokerUnavailableError("broken"), ValueError("our own bug")])
def test_no_fault_ends_a_thread(
    manager: ConsumerFetcherManager, events: list[FetchEvent], fault: Exception
) -> None:
    """Whatever a step raises, the partition's leader is found again, and it is fetched."""
    Broker.faults.append(fault)
    target = stream()
    manager.start({PartitionTopicInfo("t", 0, None): target._reader.queue})
    assert next(iter(target)).offset == 0
    kinds = [event.kind for event in events]
    assert kinds.count(FetchEventKind.BROKER_FAILED) == 1
    assert kinds.count(FetchEventKind.LEADER_FOUND) == 2


def test_leaders_are_looked_up_again_from_time_to_time(
    manager: ConsumerFetcherManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while every fetch succeeds. The first time is within five minutes."""
    target = stream()
    manager.start({PartitionTopicInfo("t", 0, 0): target._reader.queue})
    next(iter(target))
    begun = time.monotonic()
    manager.check()
    assert Broker.checks == []
    with monkeypatch.context() as later:
        later.setattr(threads.time, "monotonic", lambda: begun + threads.LEADERS_MAX_AGE_S)
        manager.check()
    wait_until(lambda: len(Broker.checks) == 1, 10, "the leaders are compared")
    assert next(iter(target)) is not None


def test_partitions_that_come_and_go_beside_a_retiring_worker(
    manager: ConsumerFetcherManager,
) -> None:
    """However a start coincides with the end of an idle worker, the partition is fetched."""
    for number in range(300):
        info, target = PartitionTopicInfo("t", number % 4, 0), stream()
        manager.start({info: target._reader.queue})
        assert next(iter(target)).offset == 0
        manager.stop([info])
        target._reader.shutdown()


def test_news_that_arrive_while_a_thread_chooses_are_not_lost(
    manager: ConsumerFetcherManager,
) -> None:
    """The thread has read the table and is about to sleep. It reads the table once more."""
    chosen: list[int] = []

    class Worker(threading.Thread):
        alarm = threading.Event()
        broker = Broker()
        key = threads.LEADER_FINDER

        def choose(self) -> threads.Wait:
            chosen.append(1)
            if len(chosen) == 1:
                self.alarm.set()
            else:
                manager._closed = True
                self.alarm.set()
            return threads.Wait(None)

        def run(self) -> None:
            manager._run(self)  # type: ignore[arg-type]

    thread = Worker(daemon=True)
    thread.start()
    thread.join(10)
    assert len(chosen) == 2
