"""Offsets in Kafka are stored only while the session that owns the partitions is certain to live.

Kafka stores the offset of any client. A request that is sent after the session has ended could
replace the higher offset of the next owner.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.test_leases import SESSION, HandHost, LateZk
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.groups.classic_client import GroupClient
from zkconsumer.broker.known_brokers import KnownBrokers
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.types import (
    BrokerEndpoint,
    ConsumerThreadId,
    Pattern,
    Subscription,
    TopicPartition,
)
from zkconsumer.core.groups.events import CoordinatorFound
from zkconsumer.core.zookeeper import commands, events
from zkconsumer.core.zookeeper.events import Claim
from zkconsumer.core.zookeeper.ops import Node, Ok, SessionEvent, Stat
from zkconsumer.core.zookeeper.view import MemberSpec
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.errors import BrokerUnavailableError
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.membership.kafka_offsets import KafkaOffsets
from zkconsumer.runtime.membership.line import ServerLine
from zkconsumer.runtime.membership.zookeeper import SessionSignals, ZooKeeperCoordination
from zkconsumer.servers import wait_until

TP = TopicPartition("t", 0)
SOON = 10.0


class Coordinator:
    """The connection to the group's coordinator, which stores what it gets."""

    endpoint = BrokerEndpoint(0, "127.0.0.1", 1)

    def __init__(self) -> None:
        self.stored: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.codes: list[ErrorCode] = []
        """The answers to the first commits; NONE to all that follow."""
        self.opening: Callable[[], object] = lambda: None
        """Called when the connection is opened, which may take long."""
        self.answering: Callable[[], object] = lambda: None
        """Called before each answer."""
        self.aborted = threading.Event()

    def version(self, _key: int, *wanted: int) -> int:
        self.opening()
        return wanted[0]

    def ready(self) -> None:
        """A request can be sent without delay."""

    def call(self, request: Any, _response: type[Any], _version: int) -> Any:
        code = self.codes.pop(0) if self.codes else ErrorCode.NONE
        (topic,) = request.topics
        (part,) = topic.partitions
        if not code:
            self.stored.put(part.committed_offset)
        self.answering()
        answer = SimpleNamespace(partition_index=0, error_code=int(code))
        return SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=[answer])])

    def abort(self, *, discard: bool = False) -> None:
        self.aborted.set()

    def close(self) -> None:
        """There is no connection."""


def _raise(error: BaseException) -> None:
    raise error


class Host(HandHost):
    """The test decides when timers run."""

    def now(self) -> float:
        return self.time

    def run_timers(self) -> None:
        due, self.timers = self.timers, []
        for _, action in due:
            action()


class Bench:
    """A member that owns ``TP`` in session 1, and stores offsets in Kafka on the real thread."""

    def __init__(self) -> None:
        self.host, self.zk, self.broker = Host(), LateZk(), Coordinator()
        self.gate = DeliveryGate(now=self.host.lease_now)
        host: Any = self.host
        zk: Any = self.zk
        self.signals = SessionSignals(host, self.gate)
        broker: Any = self.broker
        client = GroupClient("g", "c", None, KnownBrokers(lambda: [], lambda _: 0), timeout=5.0)
        client._connection = lambda *_: broker  # type: ignore[method-assign]
        client._connections[broker.endpoint, 5.0] = broker
        client.coordinator = broker.endpoint
        client._find = lambda command: CoordinatorFound(command.token)  # type: ignore[method-assign]
        self.line = ServerLine(client, "offsets", _raise)
        self.offsets = KafkaOffsets(host, self.line, "g", SOON, 0.01)
        self.coordination = ZooKeeperCoordination(
            host, self.gate, zk, self.signals, SESSION, offsets=self.offsets
        )
        spec = MemberSpec(
            GroupPaths("g"), "c", Subscription(Pattern.STATIC, {"t": 1}), kafka_storage=True
        )
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        member: Any = SimpleNamespace(
            machine=SimpleNamespace(spec=spec, attempts=0),
            observer=None,
            take=self._take,
            post=self._take,
            every=lambda seconds, action: None,
        )
        self.coordination.begin(member)
        self.signals.on_session(SessionEvent.OPENED, 1)
        self.zk.pings.pop()()

    def _take(self, event: Any) -> None:
        if isinstance(event, events.Committed | events.ScriptFailed):
            self.events.put(event)

    def commit(self, position: int) -> None:
        """Commit; ZooKeeper confirms that this session owns the partition."""
        claim = Claim(ConsumerThreadId("c", 0), 3, 9)
        self.coordination.carry_out(commands.Commit(1, 0, {TP: position}, {TP: claim}))
        self.answer_owner(self.coordination.session_id)

    def answer_owner(self, session: int) -> None:
        """ZooKeeper answers a read of the owner znode."""
        self.zk.sent.pop()(Ok((Node(b"c-0", Stat(1, 1, 0, session)),)))

    def lose_session(self) -> None:
        """Another member may now claim the partition, and commit more."""
        self.signals.on_session(SessionEvent.LOST, 1)

    def wait_for_a_retry(self) -> None:
        """The request has failed, and is to be sent again later."""
        wait_until(lambda: bool(self.host.timers), SOON, "a retry is planned")

    def next_session(self) -> None:
        """The member is in a new session, and the time for what was to be sent again has come."""
        self.signals.on_session(SessionEvent.OPENED, 2)
        self.zk.pings.pop()()
        self.host.run_timers()
        self.commit(500)
        assert self.broker.stored.get(timeout=SOON) == 500
        committed = self.events.get(timeout=SOON)
        assert isinstance(committed, events.Committed)
        assert committed.claims[TP].committed == 500


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A member with a session."""
    made = Bench()
    yield made
    made.offsets.close()


def test_a_commit_is_not_repeated_after_its_session(bench: Bench) -> None:
    """The coordinator loads the group for a while, and the session is lost meanwhile."""
    loading = threading.Event()

    def lost() -> None:
        if not loading.is_set():
            bench.lose_session()
            loading.set()

    bench.broker.codes = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    bench.broker.answering = lost
    bench.commit(100)
    bench.wait_for_a_retry()
    bench.next_session()
    assert bench.broker.stored.empty()


@pytest.mark.parametrize("owner", [1, 2])
def test_owners_are_read_again_after_a_reconnection(bench: Bench, owner: int) -> None:
    """ZooKeeper may have been restored from a backup in which another session owns the partition.
    The commit is repeated only for the session that owns it now."""
    bench.broker.codes = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    bench.commit(100)
    bench.wait_for_a_retry()
    bench.signals.on_session(SessionEvent.RESUMED, 1)
    bench.zk.pings.pop()()
    bench.host.run_timers()
    bench.answer_owner(owner)
    committed = bench.events.get(timeout=SOON)
    assert isinstance(committed, events.Committed)
    assert committed.fenced == (frozenset() if owner == 1 else {TP})
    assert bench.broker.stored.empty() == (owner == 2)


def test_permission_is_asked_after_the_connection_is_open(bench: Bench) -> None:
    """To connect, to log in and to learn the versions may take longer than the session lives."""
    opened = threading.Event()

    def lost() -> None:
        if not opened.is_set():
            bench.lose_session()
            opened.set()

    bench.broker.opening = lost
    bench.commit(100)
    bench.wait_for_a_retry()
    bench.next_session()
    assert bench.broker.stored.empty()


def test_a_commit_waits_while_the_session_may_have_ended(bench: Bench) -> None:
    """ZooKeeper does not answer any more. The commit is sent when it does."""
    bench.host.time += SESSION
    bench.commit(100)
    assert len(bench.host.timers) == 1, "it was sent"
    bench.coordination._ping()
    bench.zk.pings.pop()()
    bench.host.run_timers()
    assert bench.broker.stored.get(timeout=SOON) == 100


def test_a_request_in_flight_ends_with_its_session(bench: Bench) -> None:
    """So the next session's first request does not wait for an answer that is of no use."""
    waiting = threading.Event()
    ended: list[bool] = []

    def silent() -> None:
        if not waiting.is_set():
            waiting.set()
            ended.append(bench.broker.aborted.wait(SOON))
            raise BrokerUnavailableError("the connection is closed")

    bench.broker.answering = silent
    bench.commit(100)
    assert waiting.wait(SOON)
    assert bench.broker.stored.get(timeout=SOON) == 100
    bench.lose_session()
    bench.wait_for_a_retry()
    bench.next_session()
    assert bench.broker.stored.empty(), "the request was sent again"
    assert ended == [True]


def test_an_idle_connection_survives_a_lost_session(bench: Bench) -> None:
    """The next session uses it."""
    bench.lose_session()
    assert not bench.broker.aborted.is_set()
    bench.next_session()


def test_an_aborted_request_is_not_sent_later() -> None:
    """A server that does not read holds the request in this machine. The system would send it for
    minutes, also after the connection is closed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        connection = BrokerConnection(BrokerEndpoint(0, host, port), "tests", 60.0, 0)
        connection._connect()
        server, _ = listener.accept()
        sending = threading.Thread(target=_send_until_aborted, args=(connection,))
        sending.start()
        with server:
            server.settimeout(SOON)
            assert server.recv(1)
            connection.abort(discard=True)
            sending.join(SOON)
            assert not sending.is_alive()
            with pytest.raises(ConnectionResetError):
                _read_to_the_end(server)


def _read_to_the_end(server: socket.socket) -> None:
    while server.recv(1 << 20):
        pass


def _send_until_aborted(connection: BrokerConnection) -> None:
    with pytest.raises(BrokerUnavailableError):
        connection.exchange(8, 2, bytes(64 << 20))
