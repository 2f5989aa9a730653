"""Members of both kinds on simulated servers, with faults in the member itself.

The real loops, connectors and worker threads run; only the servers' side is simulated. So what
would take a real session's timeout is seen in milliseconds.
"""

from __future__ import annotations

import itertools
import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.topic_filter import Whitelist
from zkconsumer.core.common.types import Pattern, Subscription, TopicPartition
from zkconsumer.core.coordinator import commands, events
from zkconsumer.core.coordinator.events import Event
from zkconsumer.core.coordinator.wire import AssignmentData, encode_assignment
from zkconsumer.core.zookeeper.ops import (
    Code,
    Create,
    Delete,
    Failed,
    FetchOffsets,
    Multi,
    Ok,
    Reply,
    SessionEvent,
    StoreOffsets,
    ZkOp,
)
from zkconsumer.core.zookeeper.znodes import (
    BROKER_IDS,
    BROKER_TOPICS,
    GroupPaths,
    broker_path,
    encode_registration,
    topic_path,
)
from zkconsumer.errors import (
    BrokerError,
    CommitFailedError,
    ConnectorClosedError,
    ConnectorFailedError,
)
from zkconsumer.runtime.offset_worker import OffsetWorker
from zkconsumer.runtime.streams import KafkaStream
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.zk import FakeZk
from zkconsumer.testing import wait_until

P0 = TopicPartition("t", 0)
SOON = 10.0
"""Seconds: far longer than anything takes here, far shorter than any timeout of the members."""


@dataclass
class Switch:
    """What the simulated servers do next."""

    broken: BaseException | None = None
    """Raised by the next request, which stands for any fault inside the member."""
    closed: list[object] = field(default_factory=list)
    """Clients that were closed."""
    topics: int = 1
    """How many topics of one partition there are: t, t1, t2 and so on."""
    filters: int = 0
    """How many other members with the white list ``t.*`` are registered."""
    heartbeat: int = ErrorCode.NONE
    """What the next heartbeat is answered with. In ZooKeeper any code but ``NONE`` makes a member
    that takes the only partition away."""
    left: list[object] = field(default_factory=list)
    """Requests to leave the group: ``LeaveGroup``, or the deletion of the registration."""
    pings: list[float] = field(default_factory=list)
    """When the session was confirmed, in seconds of ``time.monotonic()``."""

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
    ) -> None:
        self._switch = switch
        self.session_timeout = session_timeout
        self.operations = 0
        self.connected = True
        self._on_session = on_session
        self._zk = FakeZk(Kernel(1))
        for path in ("/brokers", BROKER_IDS, BROKER_TOPICS, "/consumers"):
            self._zk.do(Create(path))
        broker = {"version": 1, "host": "127.0.0.1", "port": 1, "timestamp": "1"}
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

    def _run(self) -> None:
        self._zk.kernel.run(until=self._zk.kernel.now + 0.1)

    def start(self, _timeout: float) -> None:
        self._on_session(SessionEvent.OPENED, self.client.session_id)

    def submit(self, op: ZkOp, _session: int, on_reply: Callable[[Reply], object]) -> None:
        self._switch.check()
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

    def close(self, *_limit: float) -> None:
        self._switch.closed.append(self)


class SimulatedClient:
    """``GroupClient`` on a coordinator that gives this member all partitions."""

    coordinator = None

    def __init__(self, switch: Switch) -> None:
        self._switch = switch

    def interrupt(self) -> None:
        """There is nothing under way."""

    def close(self) -> None:
        self._switch.closed.append(self)

    def execute(self, order: Any) -> Event:
        self._switch.check()
        token = order.token
        match order:
            case commands.FindCoordinator():
                return events.CoordinatorFound(token)
            case commands.LoadTopics():
                return events.TopicsLoaded(token, {"t": 1})
            case commands.JoinGroup():
                return events.Joined(token, "m", 1, "other", "range")
            case commands.SyncGroup():
                mine = AssignmentData(frozenset({P0}))
                return events.Synced(token, encode_assignment(mine))
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
    """Simulated servers for the connectors made in the test."""
    switch = Switch()
    monkeypatch.setattr(
        "zkconsumer.connector.ZkDriver", lambda *given: SimulatedDriver(switch, *given)
    )
    monkeypatch.setattr(
        "zkconsumer.coordinator.GroupClient", lambda *_, **__: SimulatedClient(switch)
    )
    return switch


@pytest.fixture(params=["zookeeper", "coordinator"])
def member(request: pytest.FixtureRequest, switch: Switch) -> Iterator[Member]:
    """A connector without streams; its servers are asked ten times a second."""
    common = {"group.id": "g", "rebalance.backoff.ms": 10}
    made: Member
    if request.param == "zookeeper":
        made = ZookeeperConsumerConnector(
            common | {"zookeeper.connect": "nowhere:1", "zookeeper.session.timeout.ms": 600}
        )
    else:
        made = CoordinatorConsumerConnector(
            common | {"bootstrap.servers": "127.0.0.1:1", "heartbeat.interval.ms": 100}
        )
    yield made
    try:
        made.shutdown(timeout=2.0)
    except (CommitFailedError, ConnectorFailedError):
        pass


class InBackground:
    """A call on a thread of its own; ``outcome`` is what it returned or raised."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self.outcome: object = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.outcome = self._call()
        except BaseException as error:  # noqa: BLE001
            self.outcome = error

    def result(self) -> Any:
        self._thread.join(SOON)
        assert not self._thread.is_alive(), "the call does not end"
        return self.outcome


def one_stream(member: Member) -> KafkaStream:
    """The stream of a member that owns the only partition."""
    streams = InBackground(lambda: member.create_message_streams({"t": 1})).result()
    assert isinstance(streams, dict), streams
    (stream,) = streams["t"]
    assert isinstance(stream, KafkaStream)
    return stream


class Leaving:
    """A rebalance listener that shuts its connector down."""

    def __init__(self, member: Member, *when: str) -> None:
        self._member = member
        self._when = when
        self.called: list[str] = []
        self.ended = threading.Event()

    def before_releasing_partitions(self, _partitions: object) -> None:
        self._call("releasing")

    def before_starting_fetchers(self, _consumer: str, _assignment: object) -> None:
        self._call("starting")

    def on_partitions_lost(self, _partitions: object) -> None:
        self._call("lost")

    def _call(self, name: str) -> None:
        self.called.append(name)
        if name in self._when:
            self._member.shutdown()
            self.ended.set()


def test_a_listener_may_shut_the_member_down_before_it_starts(
    member: Member, switch: Switch
) -> None:
    """The member leaves at once, although its listener waits for that and does not return."""
    listener = Leaving(member, "starting")
    member.set_consumer_rebalance_listener(listener)
    outcome = InBackground(lambda: member.create_message_streams({"t": 1})).result()
    assert isinstance(outcome, ConnectorClosedError)
    assert listener.ended.wait(SOON / 2)
    assert (listener.called, len(switch.left)) == (["starting"], 1)


@pytest.mark.parametrize(
    ("member", "code", "when"),
    [
        ("zookeeper", ErrorCode.REBALANCE_IN_PROGRESS, "releasing"),
        ("coordinator", ErrorCode.REBALANCE_IN_PROGRESS, "releasing"),
        ("coordinator", ErrorCode.ILLEGAL_GENERATION, "lost"),
    ],
    indirect=["member"],
)
def test_a_listener_may_shut_the_member_down_in_a_rebalance(
    member: Member, switch: Switch, code: ErrorCode, when: str
) -> None:
    """As before the start. It is not called again: it is busy."""
    listener = Leaving(member, when)
    member.set_consumer_rebalance_listener(listener)
    one_stream(member)
    switch.heartbeat = code
    assert listener.ended.wait(SOON / 2)
    assert (listener.called, len(switch.left)) == (["starting", when], 1)


class Exiting:
    """A rebalance listener that calls ``sys.exit()`` on the thread it is called on."""

    def __init__(self, *when: str) -> None:
        self._when = when
        self.called: list[str] = []

    def before_releasing_partitions(self, _partitions: object) -> None:
        self._call("releasing")

    def before_starting_fetchers(self, _consumer: str, _assignment: object) -> None:
        self._call("starting")

    def on_partitions_revoked(self, _partitions: object) -> None:
        self._call("releasing")

    def _call(self, name: str) -> None:
        self.called.append(name)
        if name in self._when:
            sys.exit(3)


def test_a_listener_that_exits_does_not_stop_the_rebalance(
    member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    """``sys.exit()`` in a listener is reported like any error it raises: the member fetches, and
    leaves in order."""
    listener = Exiting("starting", "releasing")
    member.set_consumer_rebalance_listener(listener)
    one_stream(member)
    assert member.metrics().owned_partitions == 1
    assert listener.called == ["starting"]
    assert "listener-error: the rebalance listener raised SystemExit(3)" in caplog.text
    assert InBackground(member.shutdown).result() is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("fault", [RuntimeError("can't start new thread"), SystemExit(4)])
def test_a_fault_in_the_member_is_raised_wherever_the_application_looks(
    member: Member, switch: Switch, fault: BaseException
) -> None:
    """After an internal fault a waiting stream raises ConnectorFailedError with the reason, and so
    does ``shutdown``; commits of both forms are answered at once; the servers' clients close."""
    stream = one_stream(member)
    waiting = InBackground(lambda: next(iter(stream)))
    switch.broken = fault
    raised = waiting.result()
    assert isinstance(raised, ConnectorFailedError), raised
    assert repr(fault) in str(raised)
    assert raised.__cause__ is fault
    began = time.monotonic()
    with pytest.raises(CommitFailedError, match=r"the connector has failed.*(thread|4)"):
        member.commit_offsets()
    with pytest.raises(CommitFailedError, match="the connector has failed"):
        member.commit_offsets({P0: 1})
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    member.commit_offsets_async(callback=told.put)
    assert "the connector has failed" in str(told.get(timeout=SOON))
    assert time.monotonic() - began < 2.0
    wait_until(lambda: switch.closed, SOON, "the servers' clients are closed")
    ended = InBackground(member.shutdown).result()
    assert isinstance(ended, ConnectorFailedError), ended
    assert member.closed


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_stream_that_was_not_read_meanwhile_raises_the_fault(
    member: Member, switch: Switch
) -> None:
    """The application asks for a message only after the fault and the shutdown: the stream does
    not end as if all were well."""
    stream = one_stream(member)
    switch.broken = OSError(28, "No space left on device")
    wait_until(lambda: switch.closed, SOON, "the member has left")
    with pytest.raises(ConnectorFailedError):
        member.shutdown()
    for ask in (lambda: next(iter(stream)), lambda: iter(stream).has_next()):
        raised = InBackground(ask).result()
        assert "No space left on device" in str(raised), repr(raised)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_before_the_first_rebalance_fails_the_start(member: Member, switch: Switch) -> None:
    """Creating streams raises ConnectorFailedError, long before a start is given up."""
    switch.broken = RuntimeError("broken")
    raised = InBackground(lambda: member.create_message_streams({"t": 1})).result()
    assert isinstance(raised, ConnectorFailedError), repr(raised)
    assert "RuntimeError('broken')" in str(raised)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_in_a_worker_thread_is_not_swallowed(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that waits for the message in hand fails: the member fails, it does not wait for
    an answer indefinitely."""
    stream = one_stream(member)
    waiting = InBackground(lambda: next(iter(stream)))

    def fail(*_: object) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(KafkaStream, "wait_released", fail)
    monkeypatch.setattr(KafkaStream, "held_by_caller", False)
    ended = InBackground(member.shutdown).result()
    assert isinstance(ended, ConnectorFailedError), repr(ended)
    assert "ZeroDivisionError" in str(waiting.result())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_thread_that_cannot_be_started_is_a_fault(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process may have no more threads when partitions are released."""
    stream = one_stream(member)
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.endswith("_blocking"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    ended = InBackground(member.shutdown).result()
    assert isinstance(ended, ConnectorFailedError), repr(ended)
    assert "can't start new thread" in str(InBackground(lambda: next(iter(stream))).result())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_every_commit_is_answered_while_the_member_fails(member: Member, switch: Switch) -> None:
    """Threads that commit while the loop ends get one answer for each commit."""
    one_stream(member)
    asked, answers = [0] * 4, queue.SimpleQueue[Any]()
    enough = threading.Event()

    def commit(thread: int) -> None:
        while not enough.is_set() or asked[thread] < 200:
            member.commit_offsets_async(callback=answers.put)
            asked[thread] += 1

    committing = [InBackground(lambda n=n: commit(n)) for n in range(4)]  # type: ignore[misc]
    wait_until(lambda: sum(asked) > 100, SOON, "commits are asked for")
    switch.broken = RuntimeError("broken")
    wait_until(lambda: switch.closed, SOON, "the member has left")
    enough.set()
    assert [thread.result() for thread in committing] == [None] * 4
    wait_until(lambda: answers.qsize() >= sum(asked), SOON, "all are answered")
    assert answers.qsize() == sum(asked)


def test_a_commit_callback_that_exits_does_not_end_the_member(
    member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    """``sys.exit()`` in the callback of a commit is logged; the member goes on."""
    one_stream(member)
    member.commit_offsets_async(callback=lambda _: sys.exit(5))
    member.commit_offsets()
    wait_until(lambda: "the callback of a commit raised" in caplog.text, SOON, "it is logged")
    member.commit_offsets()
    assert InBackground(member.shutdown).result() is None


class FaultyCoordinator:
    """An offset coordinator that fails in a way nobody thought of, once for each operation."""

    def __init__(self) -> None:
        self.faults: list[BaseException] = [KeyError("host"), SystemExit(1), BrokerError("refused")]

    def fetch(self, partitions: tuple[TopicPartition, ...], _patience: float) -> object:
        if self.faults:
            raise self.faults.pop(0)
        return dict.fromkeys(partitions, 7)

    def commit(self, _positions: object, _patience: float) -> dict[TopicPartition, object]:
        raise self.faults.pop(0)

    def close(self) -> None:
        """There is no connection."""


def test_the_offset_worker_always_answers() -> None:
    """Whatever an operation in Kafka raises, it is answered, and so are those after it."""
    faulty: Any = FaultyCoordinator()
    worker = OffsetWorker(faulty, 1.0, "offsets")
    answers: queue.SimpleQueue[Reply] = queue.SimpleQueue()
    for op in (FetchOffsets((P0,)), StoreOffsets(((P0, 3),)), *[FetchOffsets((P0,))] * 2):
        worker.submit(op, answers.put)
    found = [answers.get(timeout=SOON) for _ in range(4)]
    worker.close()
    failed = [answer.detail for answer in found if isinstance(answer, Failed)]
    assert failed == [
        "offsets in Kafka: KeyError('host')",
        "offsets in Kafka: SystemExit(1)",
        "refused",
    ]
    assert all(answer.code is Code.OTHER for answer in found[:3] if isinstance(answer, Failed))
    assert found[3] == Ok((7,))


def test_many_filters_on_many_topics_do_not_stop_the_heartbeat(switch: Switch) -> None:
    """A member joins 200 others with the same white list on 5,000 topics in seconds. Its session
    is confirmed meanwhile, so delivery would not pause."""
    switch.topics, switch.filters = 5000, 200
    member = ZookeeperConsumerConnector(
        {
            "group.id": "g",
            "zookeeper.connect": "nowhere:1",
            "zookeeper.session.timeout.ms": 6000,
            "partition.assignment.strategy": "roundrobin",
        }
    )
    began = time.monotonic()
    joining = InBackground(lambda: member.create_message_streams_by_filter(Whitelist("t.*")))
    assert isinstance(joining.result(), list)
    assert member.metrics().owned_partitions == 24
    confirmed = [began, *switch.pings, time.monotonic()]
    longest = max(after - before for before, after in itertools.pairwise(confirmed))
    assert longest < 4.0, "two thirds of the session timeout"
    member.shutdown()
