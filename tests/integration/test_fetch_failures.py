"""Fetching while brokers fail, move leaders, restart and send corrupt responses."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from kafka import KafkaProducer
from kazoo.client import KazooClient

from tests.faults.frame_proxy import Fault, FrameProxy
from tests.support.endpoints import endpoints
from zkconsumer.config.consumer import ConsumerConfig
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.errors import BrokerError, ConsumerTimeoutError, UsageError
from zkconsumer.runtime.delivery.chunks import PartitionTopicInfo
from zkconsumer.runtime.delivery.reader import Reader
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
    target = KafkaStream(Reader(DeliveryGate(always_open=True), timeout_ms=timeout_ms))
    manager.set_brokers(brokers)
    manager.start({PartitionTopicInfo(topic, 0, 0): target._reader.queue})
    return manager, target


def state(cluster: LocalCluster, topic: str) -> dict[str, Any]:
    """The state of partition 0 in ZooKeeper."""
    client = KazooClient(cluster.zookeeper)
    client.start(timeout=15)
    try:
        data, _ = client.get(f"/brokers/topics/{topic}/partitions/0/state")
    finally:
        client.stop()
        client.close()
    return json.loads(data)  # type: ignore[no-any-return]


def test_leader_change_and_broker_restart(pair: LocalCluster, topic: str) -> None:
    """When the leader is stopped, the member fetches from the other broker. When the leader is back
    and the other broker stops, it fetches from the first one again. Nothing is lost or repeated."""
    pair.create_topic(topic, replication=2)
    events: list[FetchEvent] = []
    manager, target = fetch(endpoints(pair), topic, events)
    try:
        first = state(pair, topic)["leader"]
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
            wait_until(lambda: len(state(pair, topic)["isr"]) == 2, 30, "both replicas are in sync")
            expected += 400
        found = [e.broker for e in events if e.kind is FetchEventKind.LEADER_FOUND]
        assert {0, 1} <= set(found)
    finally:
        manager.shutdown()


def test_killed_broker_comes_back(pair: LocalCluster, topic: str) -> None:
    """The broker with the only replica is killed and restarted. Fetching resumes by itself."""
    pair.create_topic(topic)
    events: list[FetchEvent] = []
    manager, target = fetch(endpoints(pair), topic, events)
    try:
        send(pair.bootstrap, topic, [b"before"])
        assert next(iter(target)).value == b"before"
        server = pair.broker_servers[state(pair, topic)["leader"]]
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


@pytest.mark.parametrize("seed", range(8))
def test_hostile_bytes(cluster: LocalCluster, topic: str, seed: int) -> None:
    """Corrupt responses give messages that were sent, or our errors. No thread dies, and nothing
    hangs.

    Only values are compared, because no checksum covers the base offset of a batch.
    """
    cluster.create_topic(topic)
    values = [b"%d-" % i + b"x" * 200 for i in range(400)]
    send(cluster.bootstrap, topic, values)
    corrupt = frozenset({Fault.CORRUPT})
    garbler = FrameProxy(cluster.broker_servers[0].port, seed, 0.4, corrupt, lengths=True)
    died: list[threading.ExceptHookArgs] = []
    old, threading.excepthook = threading.excepthook, died.append
    brokers = [BrokerEndpoint(0, "127.0.0.1", int(garbler.address.rpartition(":")[2]))]
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
        garbler.__exit__()
        threading.excepthook = old
    assert garbler.delivered.total() > 0
    assert died == []


def test_a_truncated_log_is_noticed(pair: LocalCluster, topic: str) -> None:
    """A replica that lacks records becomes the leader (unclean election), and others take their
    offsets. They are delivered from the first one on, and the event says so."""
    pair.create_topic(topic, replication=2, config={"unclean.leader.election.enable": "true"})
    events: list[FetchEvent] = []
    first = state(pair, topic)["leader"]
    leader, follower = pair.broker_servers[first], pair.broker_servers[1 - first]
    manager, target = fetch(endpoints(pair), topic, events)
    try:
        values = [b"kept %d" % i for i in range(50)]
        send(pair.bootstrap, topic, values)
        assert [next(iter(target)).value for _ in values] == values
        follower.stop()
        wait_until(lambda: state(pair, topic)["isr"] == [first], 30, "one replica is in sync")
        values = [b"lost %d" % i for i in range(50)]
        send(leader.address, topic, values)
        assert [next(iter(target)).value for _ in values] == values
        leader.kill()
        follower.start()
        wait_until(lambda: state(pair, topic)["leader"] == 1 - first, 60, "an unclean election")
        values = [b"new %d" % i for i in range(80)]
        send(follower.address, topic, values)
        messages = [next(iter(target)) for _ in values]
        assert [message.value for message in messages] == values
        assert [message.offset for message in messages] == list(range(50, 130))
        (changed,) = [event for event in events if event.kind is FetchEventKind.LOG_CHANGED]
        assert (changed.replaced, changed.chosen) == (100, 50)
        assert (
            "the log was truncated: records up to 100 were read in leader epoch" in changed.detail
        )
    finally:
        manager.shutdown()
        for server in (leader, follower):
            if not server.running:
                server.start()
        leader.wait_ready()


def test_a_topic_that_is_created_again_is_noticed(pair: LocalCluster, topic: str) -> None:
    """Its records are delivered from the first one on, although the position is in the new log,
    too."""
    pair.create_topic(topic)
    events: list[FetchEvent] = []
    manager, target = fetch(endpoints(pair), topic, events)
    try:
        for name in (b"old", b"new"):
            values = [b"%s %d" % (name, i) for i in range(50 if name == b"old" else 80)]
            send(pair.bootstrap, topic, values)
            assert [next(iter(target)).value for _ in values] == values
            if name == b"old":
                pair.delete_topic(topic)
                pair.create_topic(topic)
        (changed,) = [event for event in events if event.kind is FetchEventKind.LOG_CHANGED]
        assert (changed.replaced, changed.chosen) == (50, 0)
        assert changed.detail.endswith("the topic was deleted and created again")
    finally:
        manager.shutdown()
