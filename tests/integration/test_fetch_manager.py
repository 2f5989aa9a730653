"""Fetching from a real broker: from assignment to delivered messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from kafka import KafkaProducer

from tests.support.endpoints import endpoints
from tests.support.tcp_proxy import TcpProxy
from zkconsumer.broker.metadata import fetch_metadata
from zkconsumer.config.consumer import ConsumerConfig
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.errors import ConnectorClosedError, UsageError
from zkconsumer.runtime.delivery.chunks import PartitionTopicInfo
from zkconsumer.runtime.delivery.reader import Reader
from zkconsumer.runtime.delivery.scala_reader import ScalaReader
from zkconsumer.runtime.delivery.streams import KafkaStream
from zkconsumer.runtime.fetch import broker_io
from zkconsumer.runtime.fetch.interface import FetchEvent, FetchEventKind
from zkconsumer.runtime.fetch.threads import ConsumerFetcherManager
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.servers import LocalCluster, wait_until

Make = Callable[..., ConsumerFetcherManager]


def send(cluster: LocalCluster, topic: str, values: Sequence[bytes], partitions: int = 1) -> None:
    """Send the values to the partitions in rotation."""
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, linger_ms=5)
    try:
        for i, value in enumerate(values):
            producer.send(topic, value, partition=i % partitions)
        producer.flush(30)
    finally:
        producer.close(10)


def stream(timeout_ms: int = 10_000, capacity: int = 2, scala: bool = False) -> KafkaStream:
    """A stream whose gate is always open."""
    gate = DeliveryGate(always_open=True)
    return KafkaStream(
        (ScalaReader if scala else Reader)(gate, timeout_ms=timeout_ms, queue_capacity=capacity)
    )


def take(source: KafkaStream, count: int) -> list[bytes]:
    """The next values."""
    return [next(iter(source)).value for _ in range(count)]


@pytest.fixture
def manager() -> Iterator[Make]:
    """Creates fetcher managers that know a cluster's brokers. They are shut down at the end."""
    made: list[ConsumerFetcherManager] = []

    def make(
        brokers: Sequence[BrokerEndpoint],
        on_event: Callable[[FetchEvent], None] | None = None,
        **keys: object,
    ) -> ConsumerFetcherManager:
        mapping: dict[str, object] = {
            "zookeeper.connect": "127.0.0.1:1",
            "group.id": "g",
            "auto.offset.reset": "smallest",
        }
        mapping |= {name.replace("_", "."): value for name, value in keys.items()}
        made.append(ConsumerFetcherManager(ConsumerConfig.parse(mapping), "test", on_event))
        made[-1].set_brokers(brokers)
        return made[-1]

    yield make
    for one in made:
        one.shutdown()


@pytest.mark.parametrize("profile", ["default", "scala"])
def test_slow_stream_holds_its_chunks_and_loses_none(
    cluster: LocalCluster, manager: Make, topic: str, profile: str
) -> None:
    """Without a reader a queue keeps as many chunks as allowed. When reading continues, every
    message arrives in order. In the default profile another stream of the same fetcher is not
    blocked meanwhile."""
    cluster.create_topic(topic, 2)
    keys = {"fetch_message_max_bytes": 2000, "zkconsumer.profile": profile}
    slow, quick = stream(capacity=3), stream()
    manager(endpoints(cluster), **keys).start({PartitionTopicInfo(topic, 0, 0): slow._reader.queue})
    values = [b"%d" % i + b"x" * 500 for i in range(200)]
    for first in range(0, 200, 10):
        send(cluster, topic, values[first : first + 10])
    wait_until(lambda: slow._reader.queue.full, 10, "the queue is full")
    if profile == "default":
        manager(endpoints(cluster), **keys).start(
            {PartitionTopicInfo(topic, 1, 0): quick._reader.queue}
        )
        producer = KafkaProducer(bootstrap_servers=cluster.bootstrap)
        for i in range(20):
            producer.send(topic, b"%d" % i, partition=1).get(10)
            assert take(quick, 1) == [b"%d" % i]
        producer.close(10)
    assert len(slow._reader.queue) == 3
    assert take(slow, 200) == values


def test_one_fetcher_serves_a_quick_stream_beside_a_full_one(
    cluster: LocalCluster, manager: Make, topic: str
) -> None:
    """A full queue of one stream does not block another stream on the same connection, and waiting
    does not become a busy loop."""
    cluster.create_topic(topic, 2)
    send(cluster, topic, [b"x" * 900 for _ in range(400)], 2)
    slow, quick = stream(capacity=1), stream()
    tested = manager(endpoints(cluster), fetch_message_max_bytes=1000)
    tested.start(
        {
            PartitionTopicInfo(topic, 0, 0): slow._reader.queue,
            PartitionTopicInfo(topic, 1, 0): quick._reader.queue,
        }
    )
    wait_until(lambda: slow._reader.queue.full, 10, "the queue is full")
    assert len(take(quick, 200)) == 200
    sent = tested.counts.requests
    begun = time.monotonic()
    time.sleep(0.5)
    assert tested.counts.requests - sent < 80 * (time.monotonic() - begun)
    assert slow._reader.queue.full
    assert len(take(slow, 200)) == 200


def test_stop_is_quick_and_final(
    cluster: LocalCluster, manager: Make, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopping 1,000 partitions does not wait for the pending long poll. None of their messages are
    enqueued afterwards. Starting them took only a few metadata requests."""
    cluster.create_topic(topic, 1000)
    asked = []
    monkeypatch.setattr(
        broker_io,
        "fetch_metadata",
        lambda *args: (asked.append(args), fetch_metadata(*args))[1],
    )
    events: list[FetchEvent] = []
    tested = manager(
        endpoints(cluster), events.append, fetch_wait_max_ms=20_000, num_consumer_fetchers=2
    )
    target = stream(capacity=10_000)
    queue = target._reader.queue
    infos = {PartitionTopicInfo(topic, p, 0): queue for p in range(1000)}
    tested.start(infos)
    wait_until(
        lambda: sum(e.kind is FetchEventKind.LEADER_FOUND for e in events) == 1000, 10, "leaders"
    )
    assert 1 <= len(asked) < 10
    begun = time.monotonic()
    tested.stop(infos)
    assert time.monotonic() - begun < 5
    assert not any(tested.requests_to(broker) for broker in endpoints(cluster))
    send(cluster, topic, [b"late"] * 1000, 1000)
    again = PartitionTopicInfo(topic, 5, 0)
    tested.start({again: queue})
    assert take(target, 1) == [b"late"]
    assert len(queue) == 0
    with pytest.raises(UsageError):
        tested.start({next(iter(infos)): target._reader.queue})


def test_shutdown_interrupts_a_long_poll(cluster: LocalCluster, manager: Make, topic: str) -> None:
    """Shutdown does not wait for a pending request, and leaves no thread."""
    cluster.create_topic(topic)
    before = set(threading.enumerate())
    tested = manager(endpoints(cluster), fetch_wait_max_ms=20_000)
    tested.start({PartitionTopicInfo(topic, 0, 0): stream()._reader.queue})
    wait_until(lambda: tested.counts.requests, 10, "a request")
    begun = time.monotonic()
    tested.shutdown()
    assert time.monotonic() - begun < 5
    assert set(threading.enumerate()) <= before
    with pytest.raises(ConnectorClosedError):
        tested.start({PartitionTopicInfo(topic, 0, 0): stream()._reader.queue})


def test_brokers_that_come_late(cluster: LocalCluster, manager: Make, topic: str) -> None:
    """Partitions that start while no broker is known are fetched as soon as one is, without a
    pause."""
    cluster.create_topic(topic)
    send(cluster, topic, [b"v"])
    target = stream()
    tested = manager([], refresh_leader_backoff_ms=60_000)
    tested.start({PartitionTopicInfo(topic, 0, None): target._reader.queue})
    tested.set_brokers(endpoints(cluster))
    assert take(target, 1) == [b"v"]


def test_a_dead_broker_among_the_registered(
    cluster: LocalCluster, manager: Make, topic: str
) -> None:
    """A broker that refuses connections causes only a retry."""
    cluster.create_topic(topic)
    send(cluster, topic, [b"v"])
    target = stream()
    dead = [BrokerEndpoint(100 + i, "127.0.0.1", 1) for i in range(5)]
    manager(dead + endpoints(cluster)).start(
        {PartitionTopicInfo(topic, 0, None): target._reader.queue}
    )
    assert take(target, 1) == [b"v"]


def test_cut_connections(cluster: LocalCluster, manager: Make, topic: str) -> None:
    """If connections are cut again and again, nothing is lost or repeated."""
    cluster.create_topic(topic)
    values = [b"%d" % i + b"x" * 300 for i in range(3000)]
    target, got = stream(), list[bytes]()
    with TcpProxy(cluster.broker_servers[0].port) as proxy:
        port = int(proxy.address.rpartition(":")[2])
        tested = manager(
            [BrokerEndpoint(0, "127.0.0.1", port)],
            fetch_message_max_bytes=5000,
            refresh_leader_backoff_ms=10,
        )
        tested.start({PartitionTopicInfo(topic, 0, 0): target._reader.queue})
        send(cluster, topic, values)
        for _ in range(30):
            proxy.cut()
            got += take(target, 100)
        assert got == values
