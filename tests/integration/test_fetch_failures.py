"""Fetching while brokers fail, move leaders, restart and send corrupt responses."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator, Sequence

import pytest
from kafka import KafkaProducer
from kazoo.client import KazooClient

from tests.support.endpoints import endpoints
from zkconsumer.config.consumer import ConsumerConfig
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.errors import BrokerError, ConsumerTimeoutError, UsageError
from zkconsumer.runtime.delivery.chunks import PartitionTopicInfo
from zkconsumer.runtime.delivery.control import StreamControl
from zkconsumer.runtime.delivery.streams import KafkaStream
from zkconsumer.runtime.fetch.interface import FetchEvent, FetchEventKind
from zkconsumer.runtime.fetch.threads import ConsumerFetcherManager
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.servers import LocalCluster, wait_until


@pytest.fixture(scope="module")
def pair() -> Iterator[LocalCluster]:
    """Two brokers for this module only, which are stopped and started."""
    with LocalCluster("3.9", brokers=2) as running:
        yield running


def send(bootstrap: str, topic: str, values: Sequence[bytes]) -> None:
    """Send the values to partition 0, in order."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, linger_ms=5, retries=50)
    futures = [producer.send(topic, value, partition=0) for value in values]
    producer.flush(60)
    for future in futures:
        future.get(60)
    producer.close(10)


def fetch(
    brokers: Sequence[BrokerEndpoint],
    topic: str,
    events: list[FetchEvent] | None = None,
    timeout_ms: int = 30_000,
    **keys: object,
) -> tuple[ConsumerFetcherManager, KafkaStream]:
    """Fetch partition 0 from its start."""
    mapping: dict[str, object] = {
        "zookeeper.connect": "127.0.0.1:1",
        "group.id": "g",
        "refresh.leader.backoff.ms": 50,
    }
    config = ConsumerConfig.parse(
        mapping | {name.replace("_", "."): value for name, value in keys.items()}
    )
    manager = ConsumerFetcherManager(config, "c", None if events is None else events.append)
    target = KafkaStream(StreamControl(DeliveryGate(always_open=True), timeout_ms=timeout_ms))
    manager.set_brokers(brokers)
    manager.start({PartitionTopicInfo(topic, 0, 0): target._control.queue})
    return manager, target


def leader(cluster: LocalCluster, topic: str) -> int:
    """Broker id of the leader of partition 0, from ZooKeeper."""
    client = KazooClient(cluster.zookeeper)
    client.start(timeout=15)
    try:
        data, _ = client.get(f"/brokers/topics/{topic}/partitions/0/state")
    finally:
        client.stop()
        client.close()
    return int(data.partition(b'"leader":')[2].partition(b",")[0])


def test_leader_change_and_broker_restart(pair: LocalCluster, topic: str) -> None:
    """When the leader is stopped, the member fetches from the other broker. When the leader is back
    and the other broker stops, it fetches from the first one again. Nothing is lost or repeated."""
    pair.create_topic(topic, replication=2)
    events: list[FetchEvent] = []
    manager, target = fetch(endpoints(pair), topic, events)
    try:
        first = leader(pair, topic)
        expected = 0
        for stopped in (first, 1 - first):
            values = [b"%d" % i for i in range(expected, expected + 200)]
            send(pair.bootstrap, topic, values)
            assert [next(iter(target)).value for _ in range(200)] == values
            pair.broker_servers[stopped].stop()
            values = [b"%d" % i for i in range(expected + 200, expected + 400)]
            send(pair.broker_servers[1 - stopped].address, topic, values)
            assert [next(iter(target)).value for _ in range(200)] == values
            pair.broker_servers[stopped].start()
            pair.broker_servers[stopped].wait_ready()
            wait_until(lambda: in_sync(pair, topic) == 2, 30, "both replicas are in sync")
            expected += 400
        found = [e.broker for e in events if e.kind is FetchEventKind.LEADER_FOUND]
        assert {0, 1} <= set(found)
    finally:
        manager.shutdown()


def in_sync(cluster: LocalCluster, topic: str) -> int:
    """Number of replicas of partition 0 that are in sync."""
    client = KazooClient(cluster.zookeeper)
    client.start(timeout=15)
    try:
        data, _ = client.get(f"/brokers/topics/{topic}/partitions/0/state")
    finally:
        client.stop()
        client.close()
    return len(data.partition(b'"isr":[')[2].partition(b"]")[0].split(b","))


def test_killed_broker_comes_back(pair: LocalCluster, topic: str) -> None:
    """The broker with the only replica is killed and restarted. Fetching resumes by itself."""
    pair.create_topic(topic)
    events: list[FetchEvent] = []
    manager, target = fetch(endpoints(pair), topic, events)
    try:
        send(pair.bootstrap, topic, [b"before"])
        assert next(iter(target)).value == b"before"
        server = pair.broker_servers[leader(pair, topic)]
        server.kill()
        wait_until(
            lambda: any(e.kind is FetchEventKind.LEADER_LOST for e in events), 30, "loss is seen"
        )
        server.start()
        server.wait_ready()
        send(pair.bootstrap, topic, [b"after"])
        assert next(iter(target)).value == b"after"
    finally:
        manager.shutdown()


class Garbler:
    """A proxy for a broker that corrupts some of its responses after the first few.

    Each direction of each connection has one thread. ``rate`` is the share of received chunks in
    which some bytes are overwritten.
    """

    def __init__(self, target: int, seed: int, rate: float) -> None:
        self._target, self._rng, self._rate = target, random.Random(seed), rate
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.spoiled = self.passed = 0
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            broker = socket.create_connection(("127.0.0.1", self._target))
            self._open += [client, broker]
            for source, sink, spoil in ((client, broker, False), (broker, client, True)):
                threading.Thread(target=self._pass, args=(source, sink, spoil), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, spoil: bool) -> None:
        try:
            while data := bytearray(source.recv(65536)):
                self.passed += 1
                if spoil and self._rng.random() < self._rate:
                    self.spoiled += 1
                    for _ in range(self._rng.choice((1, 1, 4))):
                        data[self._rng.randrange(len(data))] = self._rng.choice((0, 1, 127, 255))
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        """Close all connections and the proxy."""
        self._listener.close()
        for end in self._open:
            end.close()


@pytest.mark.parametrize("seed", range(8))
def test_hostile_bytes(cluster: LocalCluster, topic: str, seed: int) -> None:
    """Corrupt responses give messages that were sent, or our errors. No thread dies, and nothing
    hangs.

    Only values are compared, because no checksum covers the base offset of a batch.
    """
    cluster.create_topic(topic)
    values = [b"%d-" % i + b"x" * 200 for i in range(400)]
    send(cluster.bootstrap, topic, values)
    garbler = Garbler(cluster.broker_servers[0].port, seed, 0.4)
    died: list[threading.ExceptHookArgs] = []
    old, threading.excepthook = threading.excepthook, died.append
    brokers = [BrokerEndpoint(0, "127.0.0.1", garbler.port)]
    manager, target = fetch(
        brokers,
        topic,
        timeout_ms=1000,
        fetch_message_max_bytes=2000,
        socket_timeout_ms=300,
        refresh_leader_backoff_ms=5,
    )
    try:
        for message in target:
            assert message.value in values
    except ConsumerTimeoutError:
        pass  # everything was delivered, or a corrupt offset sent the fetcher beyond the end
    except BrokerError:
        with pytest.raises(UsageError):
            next(iter(target))
    finally:
        manager.shutdown()
        garbler.close()
        threading.excepthook = old
    assert garbler.spoiled > 0, garbler.passed
    assert died == []
