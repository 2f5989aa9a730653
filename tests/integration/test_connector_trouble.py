"""Members on real servers with faults: hostile znodes, administrators, failed starts, early
ends."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path

import pytest

from tests.support.groups import GroupWatch, Producer, Reader, all_delivered
from tests.support.tcp_proxy import TcpProxy
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.errors import (
    ChrootMissingError,
    CommitFailedError,
    ConfigError,
    ConnectorClosedError,
    DuplicateConsumerIdError,
    RebalanceFailedError,
    ZkUnavailableError,
)
from zkconsumer.runtime.gate import CLOCK
from zkconsumer.servers import LocalCluster, free_port, wait_until


@pytest.fixture
def config(config: dict[str, object]) -> dict[str, object]:
    """A member whose session ends soon after its process."""
    return config | {"zookeeper.session.timeout.ms": 2000}


# -- bad starts ---------------------------------------------------------------------------------


def test_duplicate_consumer_id(
    cluster: LocalCluster, watch: GroupWatch, config: dict[str, object], topic: str
) -> None:
    """A second live member with the same id is refused, after waiting for the time a dead member's
    session may still last. The first member is not disturbed. Its id is free again after it has
    left."""
    cluster.create_topic(topic, 1)
    settings = config | {"consumer.id": "same"}
    with ZookeeperConsumerConnector(settings) as first:
        reader = Reader(first.create_message_streams({topic: 1})[topic])
        path = watch.paths.member(first.consumer_id)
        registered = watch.client.get(path)[1].czxid
        began = time.monotonic()
        second = ZookeeperConsumerConnector(settings)
        with pytest.raises(DuplicateConsumerIdError, match=r"consumer\.id: .*ids/.*_same"):
            second.create_message_streams({topic: 1})
        assert 2.0 < time.monotonic() - began < 1.5 * 2.0 + 10.0
        with pytest.raises(ConnectorClosedError):
            second.create_message_streams({topic: 1})
        with Producer(cluster.bootstrap, topic, (0,)) as producer:
            producer.send(3)
        reader.wait(3)
        assert watch.owners(topic) == {0: f"{first.consumer_id}-0"}
        assert watch.client.get(path)[1].czxid == registered, "no member deleted it meanwhile"
        first.commit_offsets()
    with ZookeeperConsumerConnector(settings) as third:
        third.create_message_streams({topic: 1})


def test_bad_starts(cluster: LocalCluster, config: dict[str, object]) -> None:
    """The constructor and the calls refuse bad values with an error that names the key, and leave
    no thread."""
    before = set(threading.enumerate())
    port = free_port()
    with pytest.raises(ChrootMissingError, match="the chroot /not/there does not exist"):
        ZookeeperConsumerConnector(config | {"zookeeper.connect": f"{cluster.zookeeper}/not/there"})
    with pytest.raises(ZkUnavailableError, match=rf"no ZooKeeper answered at 127\.0\.0\.1:{port}"):
        ZookeeperConsumerConnector(
            config
            | {
                "zookeeper.connect": f"127.0.0.1:{port}",
                "zookeeper.connection.timeout.ms": 300,
            }
        )
    with pytest.raises(ConfigError, match=r"group\.id.*\n?.*auto\.offset\.reset"):
        ZookeeperConsumerConnector(config | {"group.id": "a b", "auto.offset.reset": "earliest"})
    with ZookeeperConsumerConnector(config) as member:
        for counts in ({"t": 0}, {"t": "1"}, {"t": True}, {"a/b": 1}, {"": 1}, {"t": 10**9}):
            with pytest.raises(ConfigError):
                member.create_message_streams(counts)
        assert member.create_message_streams({}) == {}
    wait_until(lambda: set(threading.enumerate()) <= before, 10, "no thread is left")


# -- hostile znodes -----------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b" 7", b"\xff"])
def test_malformed_offset(
    cluster: LocalCluster,
    watch: GroupWatch,
    config: dict[str, object],
    topic: str,
    data: bytes,
) -> None:
    """A partition whose offset znode cannot be read is reported and skipped, and its znode is not
    overwritten. The other partitions are read. Once the znode is repaired and something changes,
    this partition is read too."""
    cluster.create_topic(topic, 2)
    path = watch.paths.offset(TopicPartition(topic, 0))
    watch.client.create(path, data, makepath=True)
    settings = config | {"zkconsumer.reread.interval.ms": 300}
    with (
        Producer(cluster.bootstrap, topic, (0, 1)) as producer,
        ZookeeperConsumerConnector(settings) as member,
    ):
        reader = Reader(member.create_message_streams({topic: 1})[topic])
        producer.send(4)
        reader.wait(2)
        assert {found.partition for found in reader.deliveries} == {1}
        assert watch.client.get(path)[0] == data
        assert member._loop is not None
        assert member._loop.reports["broken-offset"] >= 1
        watch.client.set(path, b"1")
        reader.wait(3)
        assert reader.offsets(0) == [1]


# -- administrators -----------------------------------------------------------------------------


def test_registration_deleted(
    cluster: LocalCluster, watch: GroupWatch, config: dict[str, object], topic: str
) -> None:
    """An administrator deletes a registration. The member registers again and continues. Nothing is
    read twice, and members that had taken over release the partitions."""
    cluster.create_topic(topic, 4)
    with (
        Producer(cluster.bootstrap, topic, range(4), interval=0.005) as producer,
        ZookeeperConsumerConnector(config | {"consumer.id": "a"}) as one,
        ZookeeperConsumerConnector(config | {"consumer.id": "b"}) as two,
    ):
        readers = [
            Reader(member.create_message_streams({topic: 1})[topic]) for member in (one, two)
        ]
        a, b = f"{one.consumer_id}-0", f"{two.consumer_id}-0"
        shared = {0: a, 1: a, 2: b, 3: b}
        watch.wait_owners(topic, lambda found: found == shared, 10, "the topic is shared")
        for _ in range(3):
            path = watch.paths.member(one.consumer_id)
            before = watch.client.exists(path).czxid
            watch.client.delete(path)
            wait_until(
                lambda p=path, z=before: (s := watch.client.exists(p)) and s.czxid > z,
                10,
                "registered again",
            )
            watch.wait_owners(topic, lambda found: found == shared, 10, "shared again")
        all_delivered(producer, readers)


def test_owner_deleted(
    cluster: LocalCluster, watch: GroupWatch, config: dict[str, object], topic: str
) -> None:
    """An administrator deletes an owner znode. The periodic refresh notices this and creates it
    again. Nothing is lost."""
    cluster.create_topic(topic, 2)
    settings = config | {"zkconsumer.reread.interval.ms": 300}
    with (
        Producer(cluster.bootstrap, topic, (0, 1)) as producer,
        ZookeeperConsumerConnector(settings) as member,
    ):
        reader = Reader(member.create_message_streams({topic: 1})[topic])
        producer.send(10)
        reader.wait(10)
        watch.client.delete(watch.paths.owner(TopicPartition(topic, 0)))
        watch.wait_owners(topic, lambda found: len(found) == 2, 10, "owned again")
        producer.send(10)
        wait_until(lambda: set(reader.offsets(0)) == set(range(10)), 10, "nothing is lost")
        wait_until(lambda: reader.offsets(1) == list(range(10)), 10, "the other is undisturbed")


def test_delivery_rests_on_the_session_timeout_the_server_grants(
    cluster: LocalCluster, config: dict[str, object], topic: str
) -> None:
    """The member asks for 1,200 s and the server grants 600 s. If it is cut off, the member may
    deliver for 2/3 of that."""
    cluster.create_topic(topic, 1)
    settings = config | {"zookeeper.session.timeout.ms": 1_200_000}
    with ZookeeperConsumerConnector(settings) as member:
        member.create_message_streams({topic: 1})
        wait_until(lambda: member._gate.is_open, 10, "the gate is open")
        assert 300 < member._gate.valid_until - time.clock_gettime(CLOCK) <= 400


# -- the end ------------------------------------------------------------------------------------


def test_shutdown_while_iterating(
    cluster: LocalCluster, watch: GroupWatch, config: dict[str, object], topic: str
) -> None:
    """``shutdown`` from another thread ends the iteration, commits the consumed messages and leaves
    only offset znodes. A second call does nothing."""
    cluster.create_topic(topic, 2)
    with Producer(cluster.bootstrap, topic, (0, 1), interval=0.001) as producer:
        member = ZookeeperConsumerConnector(config)
        reader = Reader(member.create_message_streams({topic: 1})[topic])
        wait_until(lambda: min(len(reader.offsets(n)) for n in (0, 1)) >= 30, 15, "deliveries")
        began = time.monotonic()
        member.shutdown()
        assert time.monotonic() - began < 6, "otherwise it would stop the remaining work after 7 s"
        reader.join(5)
        member.shutdown()
        producer.stop()
    assert watch.members() == []
    assert watch.owners(topic) == {}
    delivered = {n: reader.offsets(n)[-1] + 1 for n in (0, 1)}
    stored = watch.offsets(topic)
    # at most the one unacknowledged message is delivered and not committed
    assert sum(delivered[n] - stored[n] for n in (0, 1)) in (0, 1)


def test_shutdown_in_the_reading_thread(
    cluster: LocalCluster, watch: GroupWatch, config: dict[str, object], topic: str
) -> None:
    """``shutdown`` from within the loop over a stream does not wait for itself. The unacknowledged
    message does not count as consumed unless it was marked."""
    cluster.create_topic(topic, 1)
    with Producer(cluster.bootstrap, topic, (0,)) as producer:
        producer.send(10)
    for first, mark, stored in ((0, False, 2), (2, True, 5)):
        member = ZookeeperConsumerConnector(config)
        stream = member.create_message_streams({topic: 1})[topic][0]
        began = None
        got = []
        for message in stream:
            got.append(message.offset)
            if len(got) == 3:
                if mark:
                    stream.mark_consumed()
                began = time.monotonic()
                member.shutdown()
        assert got == [first, first + 1, first + 2]
        assert began is not None
        assert time.monotonic() - began < 6, "otherwise it would stop the remaining work after 7 s"
        assert watch.offsets(topic) == {0: stored}


def test_exception_in_the_with_block(
    cluster: LocalCluster, watch: GroupWatch, config: dict[str, object], topic: str
) -> None:
    """An exception leaves the block unchanged, and the member leaves the group."""
    cluster.create_topic(topic, 1)

    def fail() -> None:
        with ZookeeperConsumerConnector(config) as member:
            member.create_message_streams({topic: 1})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert watch.members() == []
    assert watch.owners(topic) == {}


def test_shutdown_without_zookeeper(
    cluster: LocalCluster, config: dict[str, object], topic: str
) -> None:
    """If ZooKeeper is gone, ``shutdown`` ends within its time and explains the consequences."""
    cluster.create_topic(topic, 1)
    with Producer(cluster.bootstrap, topic, (0,)) as producer:
        producer.send(5)
    with TcpProxy(cluster.zookeeper_server.port) as proxy:
        member = ZookeeperConsumerConnector(
            config | {"zookeeper.connect": proxy.address, "auto.commit.interval.ms": 60_000}
        )
        reader = Reader(member.create_message_streams({topic: 1})[topic])
        reader.wait(5)
        proxy.refuse()
        proxy.cut()
        began = time.monotonic()
        with pytest.raises(CommitFailedError):
            member.shutdown(timeout=1.5)
        assert time.monotonic() - began < 1.5 + 1
        reader.join(5)


def sockets() -> int:
    """Number of sockets that this process has open."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found += os.readlink(entry).startswith("socket:")
        except OSError:
            continue
    return found


def test_fifty_cycles_leave_nothing(
    cluster: LocalCluster, watch: GroupWatch, config: dict[str, object], topic: str
) -> None:
    """MetricsTest.testMetricsLeak, for this library's resources. Members join, read and leave. They
    leave no thread, no socket and no znode, and each one gets its messages at once."""
    cluster.create_topic(topic, 2)
    with Producer(cluster.bootstrap, topic, (0, 1)) as producer:
        gc.collect()
        threads, open_before = set(threading.enumerate()), sockets()
        for _ in range(50):
            producer.send(2)
            with ZookeeperConsumerConnector(config | {"auto.commit.interval.ms": 60_000}) as member:
                stream = member.create_message_streams({topic: 1})[topic][0]
                iterator = iter(stream)
                assert {next(iterator).partition for _ in range(2)} == {0, 1}
                stream.mark_consumed()
        assert watch.offsets(topic) == {0: 50, 1: 50}
        wait_until(lambda: set(threading.enumerate()) <= threads, 10, "no thread is left")
        gc.collect()
        wait_until(lambda: sockets() <= open_before, 10, "no socket is left")
        assert watch.members() == []
        assert watch.sessions() == set()


# -- the scala profile --------------------------------------------------------------------------


def test_scala_profile_zombie(
    cluster: LocalCluster, watch: GroupWatch, config: dict[str, object], topic: str
) -> None:
    """After ``rebalance.max.retries`` attempts against a foreign owner, a scala member raises an
    error and stays registered without owning anything. The next change of the group repairs it. A
    member of the default profile starts with the free partitions and takes the others when they are
    released."""
    cluster.create_topic(topic, 2)
    path = watch.paths.owner(TopicPartition(topic, 0))
    watch.client.create(path, b"somebody-0", makepath=True, ephemeral=True)
    settings = config | {
        "zkconsumer.profile": "scala",
        "rebalance.max.retries": 3,
        "rebalance.backoff.ms": 100,
        "consumer.id": "z",
    }
    zombie = ZookeeperConsumerConnector(settings)
    with pytest.raises(RebalanceFailedError, match="can't rebalance after 3 attempts"):
        zombie.create_message_streams({topic: 1})
    assert watch.members() == [zombie.consumer_id]
    assert watch.owners(topic) == {0: "somebody-0"}
    found = zombie.metrics()
    assert (found.failed_attempts, found.state, found.rebalances) == (3, "FAILED", 1)
    assert found.rebalance_seconds >= 0.2
    watch.client.delete(path)
    with ZookeeperConsumerConnector(settings | {"consumer.id": "other"}) as other:
        other.create_message_streams({})
        watch.wait_owners(
            topic,
            lambda found: set(found.values()) == {f"{zombie.consumer_id}-0"} and len(found) == 2,
            10,
            "healed",
        )
    zombie.shutdown()

    watch.client.create(path, b"somebody-0", ephemeral=True)
    with ZookeeperConsumerConnector(config) as member:
        member.create_message_streams({topic: 1})
        mine = f"{member.consumer_id}-0"
        assert watch.owners(topic) == {0: "somebody-0", 1: mine}
        watch.client.delete(path)
        watch.wait_owners(topic, lambda found: found == {0: mine, 1: mine}, 10, "taken over")
