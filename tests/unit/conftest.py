"""Members of both kinds on simulated servers.

The real loops, connectors and worker threads run. Only the servers are simulated. So a session
timeout of seconds takes milliseconds.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.types import Pattern, Subscription, TopicPartition
from zkconsumer.core.groups import commands, events
from zkconsumer.core.groups.events import Event
from zkconsumer.core.groups.formats.consumer_protocol import AssignmentData, encode_assignment
from zkconsumer.core.groups.reactions import UNREACHABLE
from zkconsumer.core.zookeeper.ops import Create, Delete, Multi, Node, Reply, SessionEvent, ZkOp
from zkconsumer.core.zookeeper.znodes import (
    BROKER_IDS,
    BROKER_TOPICS,
    GroupPaths,
    broker_path,
    encode_registration,
    topic_path,
)
from zkconsumer.errors import CommitFailedError, ConnectorFailedError, ZkUnavailableError
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.servers.zk import FakeZk

P0 = TopicPartition("t", 0)


@dataclass
class Switch:
    """Controls what the simulated servers do next."""

    broken: BaseException | None = None
    """The next request raises it. It stands for any fault inside the member."""
    closed: list[object] = field(default_factory=list)
    """Clients that were closed."""
    topics: int = 1
    """Number of topics with one partition: t, t1, t2 and so on."""
    brokers: int | None = 1
    """Version of the only broker's registration; ``None``: no broker is registered."""
    topic_error: int = ErrorCode.NONE
    """The brokers' answer about ``t``."""
    filters: int = 0
    """Number of other registered members with the white list ``t.*``."""
    silent: bool = False
    """No server answers."""
    unreachable: bool = False
    """No ZooKeeper server can be connected to."""
    taken: bool = False
    """Another live session is registered as ``g_m``."""
    heartbeat: int = ErrorCode.NONE
    """Answer to the next heartbeat. In ZooKeeper, any code but ``NONE`` makes another member take
    the only partition."""
    offsets_fail: bool = False
    """No commit to the coordinator is answered, and no question for offsets."""
    left: list[object] = field(default_factory=list)
    """Requests to leave the group: ``LeaveGroup``, or the deletion of the registration."""
    pings: list[float] = field(default_factory=list)
    """When the session was last confirmed, in seconds of ``time.monotonic()``."""

    def check(self) -> None:
        if self.broken is not None:
            raise self.broken


class SimulatedDriver:
    """``ZkDriver`` on the simulated ZooKeeper, which answers at once."""

    def __init__(
        self,
        switch: Switch,
        hosts: str,
        chroot: str,
        session_timeout: float,
        on_session: Callable[[SessionEvent, int], object],
        on_watch: Callable[[str], object],
        on_fault: Callable[[BaseException], object],
    ) -> None:
        self._switch = switch
        self.session_timeout = session_timeout
        self.operations = 0
        self.connected = True
        self._on_session = on_session
        self._zk = FakeZk(Kernel(1))
        for path in ("/brokers", BROKER_IDS, BROKER_TOPICS, "/consumers"):
            self._zk.do(Create(path))
        if switch.brokers is not None:
            broker = {"version": switch.brokers, "host": "127.0.0.1", "port": 1, "timestamp": "1"}
            self._zk.do(Create(broker_path(0), json.dumps(broker).encode()))
        topic = {"version": 1, "partitions": {"0": [0]}}
        for number in range(switch.topics):
            name = f"t{number or ''}"
            self._zk.do(Create(topic_path(name), json.dumps(topic).encode()))
        paths = GroupPaths("g")
        for path in (paths.root, paths.ids):
            self._zk.do(Create(path))
        registration = encode_registration(Subscription(Pattern.WHITE_LIST, {"t.*": 1}), 1)
        for number in range(switch.filters):
            self._zk.do(Create(paths.member(f"g_other{number}"), registration))
        self.client = self._zk.connect(
            session_timeout, lambda event: on_watch(event.path), lambda state, session: None
        )
        self._run()
        if switch.taken:
            other = self._zk.connect(600.0, lambda event: None, lambda state, session: None)
            self._run()
            other.submit(Create(paths.member("g_m"), registration, True), lambda reply: None)
            self._run()

    def registration(self) -> Node | None:
        """The znode of ``g_m``."""
        return self._zk.get(GroupPaths("g").member("g_m"))

    def _run(self) -> None:
        self._zk.kernel.run(until=self._zk.kernel.now + 0.1)

    def start(self, _timeout: float, quick: bool) -> None:
        if self._switch.unreachable:
            raise ZkUnavailableError("nowhere:1: no answer")
        self._on_session(SessionEvent.OPENED, self.client.session_id)

    def submit(
        self, op: ZkOp, _session: int, on_reply: Callable[[Reply], object], _resumed: int = 0
    ) -> None:
        self._switch.check()
        if self._switch.silent:
            return
        for one in op.ops if isinstance(op, Multi) else ():
            if isinstance(one, Delete) and one.path.startswith(GroupPaths("g").ids):
                self._switch.left.append(op)
        self.client.submit(op, on_reply)
        self._run()

    def ping(self, on_answer: Callable[[], object]) -> None:
        self._switch.check()
        self._switch.pings.append(time.monotonic())
        on_answer()
        if self._switch.heartbeat:
            self._switch.heartbeat = ErrorCode.NONE
            registration = encode_registration(Subscription(Pattern.STATIC, {"t": 1}), 1)
            self._zk.do(Create(GroupPaths("g").member("g_0"), registration))
            self._run()

    def check(self) -> None:
        """There are no threads."""

    def close(self, *_limit: float) -> None:
        self._switch.closed.append(self)


class SimulatedClient:
    """``GroupClient`` on a coordinator that assigns all partitions to this member."""

    coordinator = None

    def __init__(self, switch: Switch) -> None:
        self._switch = switch
        self._given_up = threading.Event()

    def interrupt(self) -> None:
        self._given_up.set()

    def close(self) -> None:
        self._given_up.set()
        self._switch.closed.append(self)

    def execute(self, order: Any, _permission: object = None) -> Event:
        self._switch.check()
        token = order.token
        if self._switch.silent:
            self._given_up.wait()
            return events.RequestFailed(token, -1, "no answer")
        match order:
            case commands.FindCoordinator():
                return events.CoordinatorFound(token)
            case commands.LoadTopics():
                if code := self._switch.topic_error:
                    return events.TopicsLoaded(token, {}, errors={"t": code})
                return events.TopicsLoaded(token, {"t": 1})
            case commands.JoinGroup():
                return events.Joined(token, "m", 1, "other", "range")
            case commands.SyncGroup():
                mine = AssignmentData(frozenset({P0}))
                return events.Synced(token, encode_assignment(mine))
            case commands.FetchOffsets() | commands.CommitOffsets() if self._switch.offsets_fail:
                return events.RequestFailed(token, UNREACHABLE, "no answer")
            case commands.FetchOffsets():
                return events.OffsetsFetched(token, {P0: 0})
            case commands.CommitOffsets():
                return events.OffsetsCommitted(token, dict.fromkeys(order.positions, 0))
            case commands.Heartbeat():
                code, self._switch.heartbeat = self._switch.heartbeat, ErrorCode.NONE
                return events.HeartbeatAnswered(token, code)
            case commands.LeaveGroup():
                self._switch.left.append(order)
        return events.Left(token)


Member = ZookeeperConsumerConnector | CoordinatorConsumerConnector


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> Switch:
    """Simulated servers for the connectors of the test."""
    switch = Switch()
    monkeypatch.setattr(
        "zkconsumer.connector.ZkDriver", lambda *given, **_: SimulatedDriver(switch, *given)
    )
    for client in ("coordinator.GroupClient", "broker.groups.classic_client.GroupClient"):
        monkeypatch.setattr(f"zkconsumer.{client}", lambda *_, **__: SimulatedClient(switch))
    return switch


def new_member(kind: str) -> Member:
    """A connector without streams. Its servers are asked ten times a second."""
    common = {"group.id": "g", "rebalance.backoff.ms": 10}
    if kind == "zookeeper":
        return ZookeeperConsumerConnector(
            common | {"zookeeper.connect": "nowhere:1", "zookeeper.session.timeout.ms": 600}
        )
    return CoordinatorConsumerConnector(
        common | {"bootstrap.servers": "127.0.0.1:1", "heartbeat.interval.ms": 100}
    )


@pytest.fixture(params=["zookeeper", "coordinator"])
def member(request: pytest.FixtureRequest, switch: Switch) -> Iterator[Member]:
    """A connector without streams, of either kind."""
    made = new_member(request.param)
    yield made
    try:
        made.shutdown(timeout=2.0)
    except (CommitFailedError, ConnectorFailedError):
        pass
