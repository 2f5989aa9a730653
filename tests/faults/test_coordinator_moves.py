"""Another broker becomes the coordinator of a group in a planned move."""

from __future__ import annotations

import json
import struct
import threading
from typing import Any

from kafka.record.default_records import DefaultRecordBatchBuilder

from tests.faults.coordinated import HEAL, PARTITIONS, config, held, twice
from tests.support.groups import Delivery, Producer, Reader, all_delivered
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.core.groups.states import State
from zkconsumer.servers import LocalCluster, wait_until
from zkconsumer.servers.servers import read_metadata
from zkconsumer.servers.topics.in_zookeeper import zookeeper_session


def home_of(group: str) -> int:
    """The partition of ``__consumer_offsets`` whose leader coordinates a group (Java's hash)."""
    number = 0
    for letter in group:
        number = (31 * number + ord(letter)) & 0xFFFFFFFF
    return (number & 0x7FFFFFFF) % 4


def fill(broker: BrokerEndpoint, partition: int, records: int) -> None:
    """Append offset tombstones to ``__consumer_offsets``, so that the next broker takes long to
    load it."""
    name = b"nobody"
    key = struct.pack(">hh", 1, len(name)) + name + struct.pack(">h", len(name)) + name
    builder = DefaultRecordBatchBuilder(2, 1, False, -1, -1, -1, 1 << 24)
    for number in range(10_000):
        builder.append(number, 1_700_000_000_000, key + struct.pack(">i", number), None, [])
    batch = bytes(builder.build())
    topic = b"__consumer_offsets"
    head = struct.pack(">hhii", -1, -1, 30_000, 1) + struct.pack(">h", len(topic)) + topic
    body = head + struct.pack(">iii", 1, partition, len(batch)) + batch
    connection = BrokerConnection(broker, "__admin_client", 30.0, 0)  # clients may not write there
    for _ in range(records // 10_000):
        answer = connection.exchange(0, 3, body)
        (code,) = struct.unpack_from(">h", answer, 4 + 2 + len(topic) + 4 + 4)
        assert code == 0
    connection.close()


def test_the_coordinator_moves(pair: LocalCluster, group: str, topic: str) -> None:
    """Another broker becomes the coordinator. The old one answers NOT_COORDINATOR, and the new one
    COORDINATOR_LOAD_IN_PROGRESS until it has loaded the group. The members look for the new
    coordinator, repeat failed requests, and continue without a rebalance. Nothing is lost or
    repeated."""
    pair.create_topic(topic, PARTITIONS, replication=2)
    seen: set[int] = set()

    def note(_broker: object, _request: object, answer: Any) -> None:
        seen.add(getattr(answer, "error_code", 0))
        if type(answer).__name__ == "OffsetCommitResponse":
            seen.update(part.error_code for one in answer.topics for part in one.partitions)

    with (
        Producer(pair.bootstrap, topic, range(PARTITIONS), interval=0.01) as producer,
        CoordinatorConsumerConnector(config(pair, group), on_exchange=note) as member,
        CoordinatorConsumerConnector(config(pair, group), on_exchange=note) as other,
    ):
        members = (member, other)
        readers = [Reader(one.create_message_streams({topic: 1})[topic]) for one in members]
        wait_until(lambda: [held(m) for m in members] == [2, 2], 20, "shared")
        for reader in readers:
            reader.wait(20)
        loops = [one._loop for one in members if one._loop is not None]
        former = loops[0].coordination.coordinator
        assert former is not None
        fill(former, home_of(group), 2_000_000)
        rejoins = [loop.machine.rejoins for loop in loops]
        seen.clear()
        lead_by(pair, home_of(group), 1 - former.broker_id)
        wait_until(
            lambda: all(loop.coordination.coordinator not in (None, former) for loop in loops),
            30,
            "the members know the new coordinator",
        )
        wait_until(lambda: all(o.machine.state is State.STABLE for o in loops), HEAL, "stable")
        counts = [one.metrics().kafka_commits for one in members]
        wait_until(
            lambda: all(
                m.metrics().kafka_commits > n for m, n in zip(members, counts, strict=True)
            ),
            HEAL,
            "both commit again",
        )
        assert seen >= {14, 16}
        assert [loop.machine.rejoins for loop in loops] == rejoins
        all_delivered(producer, readers)
        assert not twice(*readers)


def lead_by(cluster: LocalCluster, partition: int, broker: int) -> None:
    """Make ``broker`` the leader of a partition of ``__consumer_offsets``: prefer it, then
    elect."""
    one = {"topic": "__consumer_offsets", "partition": partition}
    port = cluster.broker_servers[broker].port
    with zookeeper_session(cluster.zookeeper) as client:

        def order(path: str, content: dict[str, object]) -> None:
            client.create(path, json.dumps({"version": 1, "partitions": [content]}).encode())
            wait_until(lambda: client.exists(path) is None, 120, f"{path} is carried out")

        def leads() -> bool:  # it is not elected until it has all records
            order("/admin/preferred_replica_election", one)
            view = read_metadata(port)
            return view is not None and view.leaders["__consumer_offsets"][partition] == broker

        order("/admin/reassign_partitions", one | {"replicas": [broker, 1 - broker]})
        wait_until(leads, 180, f"broker {broker} leads")


def test_a_release_waits_for_the_coordinator_that_moves(
    pair: LocalCluster, group: str, topic: str
) -> None:
    """A second member joins. Before the first member has committed and released, another broker
    becomes the coordinator and loads the group for seconds. The first member commits as soon as it
    can. Nothing that it has delivered is delivered again, and nothing is lost."""
    pair.create_topic(topic, PARTITIONS, replication=2)
    settings = config(pair, group, zkconsumer_release_wait_ms=600_000) | {
        "auto.commit.interval.ms": 600_000,  # the commit before the release stores everything
        "max.poll.interval.ms": 1_200_000,  # a release has half of it
        "offsets.commit.max.retries": 1,  # another commit is given up after the second refusal
        "rebalance.backoff.ms": 100,
    }
    armed, reached, go_on = (threading.Event() for _ in range(3))
    seen: list[int] = []

    def handle(_found: Delivery) -> None:
        if armed.is_set():
            reached.set()
            go_on.wait(300)

    def note(_broker: object, _request: object, answer: Any) -> None:
        if type(answer).__name__ == "OffsetCommitResponse":
            seen.extend(part.error_code for one in answer.topics for part in one.partitions)

    readers: list[Reader] = []
    with (
        Producer(pair.bootstrap, topic, range(PARTITIONS), interval=0.01) as producer,
        CoordinatorConsumerConnector(settings, on_exchange=note) as first,
        CoordinatorConsumerConnector(settings) as second,
    ):
        readers.append(Reader(first.create_message_streams({topic: 1})[topic], handle))
        readers[0].wait(200)
        assert first._loop is not None
        former = first._loop.coordination.coordinator
        assert former is not None
        fill(former, home_of(group), 2_000_000)
        armed.set()
        assert reached.wait(20)

        def join() -> None:
            readers.append(Reader(second.create_message_streams({topic: 1})[topic]))

        joining = threading.Thread(target=join, daemon=True)
        joining.start()
        wait_until(
            lambda: first.metrics().state == State.STOPPING.name,
            60,
            "the first member must release",
        )
        armed.clear()
        lead_by(pair, home_of(group), 1 - former.broker_id)
        go_on.set()
        wait_until(lambda: [held(first), held(second)] == [2, 2], 300, "shared")
        joining.join(20)
        all_delivered(producer, readers)
        assert first._loop.reports["commit-failed"] == 0
        assert not twice(*readers)
        assert seen.count(14) + seen.count(16) > 2 * PARTITIONS, "it moved too fast for this test"
