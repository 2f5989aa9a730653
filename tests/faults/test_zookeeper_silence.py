"""A member whose ZooKeeper answers late, loses responses or is silent delivers again by itself, and
every call of its connector ends within its time."""

from __future__ import annotations

import os
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.support.groups import GroupWatch, Producer, Reader, all_delivered
from tests.support.tcp_proxy import TcpProxy
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.errors import CommitFailedError, RebalanceFailedError
from zkconsumer.servers import LocalCluster, wait_until

SESSION = 3.0
"""Session timeout in seconds."""
SLACK = 1.0
"""Seconds that a busy machine may add to a measured time."""


@pytest.fixture
def proxies(cluster: LocalCluster) -> Iterator[list[TcpProxy]]:
    """Two addresses of one ZooKeeper."""
    with ExitStack() as stack:
        port = cluster.zookeeper_server.port
        yield [stack.enter_context(TcpProxy(port)) for _ in range(2)]


@pytest.fixture
def config(group: str, proxies: list[TcpProxy]) -> dict[str, object]:
    """Settings of a member that uses both proxies."""
    return {
        "zookeeper.connect": ",".join(proxy.address for proxy in proxies),
        "group.id": group,
        "zookeeper.session.timeout.ms": int(SESSION * 1000),
        "auto.offset.reset": "smallest",
        "auto.commit.interval.ms": 500,
        "rebalance.backoff.ms": 300,
        "refresh.leader.backoff.ms": 50,
    }


def used(proxies: list[TcpProxy]) -> TcpProxy:
    """The proxy that the member's connection goes through."""

    def one_used() -> list[TcpProxy]:
        """The member's previous connection may end a moment later."""
        found = [proxy for proxy in proxies if proxy.connections]
        return found if len(found) == 1 else []

    (found,) = wait_until(one_used, 10, "one connection")
    return found


def stored(member: ZookeeperConsumerConnector) -> bool:
    """Return whether ZooKeeper stores this member's offsets."""
    try:
        member.commit_offsets()
    except CommitFailedError:
        return False
    return True


def deliver(producer: Producer, reader: Reader, until: float, trouble: str) -> None:
    """Write two messages, which must be delivered by ``until``."""
    sent = set(producer.send(2))
    left = max(SLACK, until - time.monotonic())
    wait_until(lambda: sent <= set(reader.values()), left, f"{trouble}: delivered again")


TROUBLES = ("answer", "request", "late", "server", "answers", "all", "thread")


@pytest.mark.timeout(180)
def test_a_member_delivers_again(
    cluster: LocalCluster,
    group: str,
    topic: str,
    config: dict[str, object],
    proxies: list[TcpProxy],
) -> None:
    """After any of the faults below, the member stores offsets and delivers new messages within
    twice the session timeout. Nothing is lost. The test is seeded.

    These are the faults: one response or request is lost, or responses are late. The server in use
    is silent in both directions, or does not respond. All servers are silent until delivery pauses.
    The connection thread fails.
    """
    seed = int(os.environ.get("SILENCE_SEED", str(random.randrange(10**6))))
    print(f"SILENCE_SEED={seed}")  # noqa: T201
    chance = random.Random(seed)
    cluster.create_topic(topic, 2)
    with (
        Producer(cluster.bootstrap, topic, (0, 1)) as producer,
        ZookeeperConsumerConnector(config) as member,
        GroupWatch(cluster.zookeeper, group, [topic]) as watch,
    ):
        reader = Reader(member.create_message_streams({topic: 1})[topic])
        producer.send(2)
        reader.wait(2)
        for trouble in chance.sample(TROUBLES, len(TROUBLES)):
            proxy = used(proxies)
            if trouble == "answer":
                proxy.drop("answers")
            elif trouble == "request":
                proxy.drop("requests")
            elif trouble == "late":
                proxy.delay(chance.uniform(0.1, SESSION / 4), "answers")
            elif trouble == "server":
                proxy.stall()
            elif trouble == "answers":
                proxy.stall("answers")
            elif trouble == "all":
                for each in proxies:
                    each.stall()
                before = member.metrics().suspended_seconds
                wait_until(
                    lambda b=before: member.metrics().suspended_seconds > b,
                    2 * SESSION,
                    "delivery has paused",
                )
                for each in proxies:
                    each.resume()
            else:
                fail_once(member)
            wait_until(lambda p=proxy: not p.dropping, SESSION, f"{trouble}: a frame is lost")
            until = time.monotonic() + 2 * SESSION
            deliver(producer, reader, until, trouble)  # there must be something to store
            wait_until(lambda: stored(member), until - time.monotonic(), f"{trouble}: stored")
            deliver(producer, reader, until, trouble)
            for each in proxies:
                each.resume()
        assert watch.members() == [member.consumer_id]
        all_delivered(producer, [reader])


def fail_once(member: ZookeeperConsumerConnector) -> None:
    """Raise an error in the loop of kazoo's connection thread."""
    connection = member._zk._client._connection
    read = connection._read_socket

    def fail(timeout: float) -> object:
        connection._read_socket = read
        raise SystemExit("planted")

    connection._read_socket = fail
    wait_until(lambda: connection._read_socket == read, 10, "the thread failed")


def ended_within(seconds: float, call: Callable[[], object]) -> BaseException | None:
    """The exception that ``call`` raises. It must end within ``seconds``."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), f"still not back after {seconds:g} s"
    return raised[0] if raised else None


def test_shutdown_while_zookeeper_is_silent(
    cluster: LocalCluster, topic: str, config: dict[str, object], proxies: list[TcpProxy]
) -> None:
    """``shutdown(timeout=2)`` takes 2 s if no ZooKeeper answers. It raises an error, ends the
    streams and a waiting commit, and leaves no thread."""
    cluster.create_topic(topic, 1)
    before = set(threading.enumerate())
    with Producer(cluster.bootstrap, topic, (0,)) as producer:
        member = ZookeeperConsumerConnector(config)
        reader = Reader(member.create_message_streams({topic: 1})[topic])
        producer.send(5)
        reader.wait(5)
        for proxy in proxies:
            proxy.stall()
        commits: queue.Queue[CommitFailedError | None] = queue.Queue()
        member.commit_offsets_async(callback=commits.put)
        error = ended_within(2.0 + SLACK, lambda: member.shutdown(timeout=2.0))
        assert isinstance(error, CommitFailedError)
        assert "shutdown did not end within 2 s" in str(error)
        reader.join(SLACK)
        assert isinstance(commits.get(timeout=SLACK), CommitFailedError)
    for proxy in proxies:
        proxy.close()
    wait_until(lambda: set(threading.enumerate()) <= before, 10, "no thread is left")


def test_start_while_zookeeper_is_silent(
    topic: str,
    config: dict[str, object],
    proxies: list[TcpProxy],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If no ZooKeeper answers, creating streams ends within its time with the documented error. The
    member has not registered, so it need not leave, and there is no note."""
    monkeypatch.setattr("zkconsumer.connector.START_PATIENCE", 1.0)
    member = ZookeeperConsumerConnector(config)
    for proxy in proxies:
        proxy.stall()
    limit = 1.0 + 2 * SESSION
    error = ended_within(limit + SLACK, lambda: member.create_message_streams({topic: 1}))
    assert isinstance(error, RebalanceFailedError)
    assert "the first rebalance did not end" in str(error)
    assert not getattr(error, "__notes__", [])
    assert member.closed


def test_unused_connector_ends_while_zookeeper_is_silent(
    config: dict[str, object], proxies: list[TcpProxy]
) -> None:
    """``shutdown`` of a connector without streams also ends within its time."""
    member = ZookeeperConsumerConnector(config)
    for proxy in proxies:
        proxy.stall()
    assert ended_within(1.0 + SLACK, lambda: member.shutdown(timeout=1.0)) is None
