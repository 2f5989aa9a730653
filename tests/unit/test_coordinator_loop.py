"""The loop of a member on the coordinator, without servers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.specs import classic_spec
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.types import Pattern, Subscription
from zkconsumer.core.groups import commands, events
from zkconsumer.core.groups.assignors.strategies import RangeStrategy
from zkconsumer.core.groups.classic import ClassicMachine
from zkconsumer.core.groups.states import State
from zkconsumer.errors import ConnectorClosedError
from zkconsumer.runtime.counters import RebalanceCounts
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.membership.classic import BrokerCoordination
from zkconsumer.runtime.membership.loop import MemberLoop
from zkconsumer.servers import wait_until
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.members.host import Habits, SimHost
from zkconsumer.sim.members.light import SimPlane

NOBODY = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}


def test_shutdown_wakes_who_waits_for_streams() -> None:
    """One thread waits for its first rebalance, for which there is no server. Another thread shuts
    down the connector, and the first one gets the error at once."""
    member = CoordinatorConsumerConnector(NOBODY)
    told: list[BaseException] = []

    def create() -> None:
        try:
            member.create_message_streams({"t": 1})
        except ConnectorClosedError as error:
            told.append(error)

    creating = threading.Thread(target=create, daemon=True)
    creating.start()
    wait_until(lambda: member.metrics().state != "NEW", 10, "it joins")
    member.shutdown()
    creating.join(10)
    assert [str(error) for error in told] == ["the connector was shut down"]


class Stuck:
    """A stream whose application is busy with a message and asks for no more."""

    in_hand: object | None = object()


class Line:
    """A connection to the coordinator. The test answers."""

    coordinator = None

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def submit(self, command: Any, on_answer: Callable[..., object]) -> None:
        self.sent.append(command)
        self._on_answer = on_answer

    def interrupt(self) -> None:
        pass

    def close(self) -> None:
        pass

    def answer(self, kind: type, event: Callable[[int], Any]) -> None:
        """Answer the last request, which is of this kind."""
        assert isinstance(self.sent[-1], kind)
        self._on_answer(event(self.sent[-1].token), 0.0, 0)


def test_a_member_that_became_slow_while_joining_leaves_and_comes_back() -> None:
    """While the member joins, an application is busy with a message for longer than
    max.poll.interval.ms. When the coordinator admits the member, it leaves again, and joins when
    the application continues."""
    kernel, gate, stream, line = Kernel(0), DeliveryGate(now=lambda: 0.0), Stuck(), Line()
    host = SimHost(kernel, "c", None)
    subscription, strategies = Subscription(Pattern.STATIC, {"t": 1}), (RangeStrategy(),)
    spec = classic_spec(subscription=subscription, strategies=strategies, rebalance_timeout=5)
    coordination = BrokerCoordination(spec, host, gate, line, Line(), [stream], None)
    loop = MemberLoop(
        "c",
        ClassicMachine(spec),
        coordination,
        SimPlane(host, gate, None, None, Habits(), lambda: 0),
        gate,
        host,
        None,
        auto_commit_interval=None,
        rebalances=RebalanceCounts((), (), ()),
    )
    machine = loop.machine
    loop.begin()
    line.answer(commands.FindCoordinator, events.CoordinatorFound)
    line.answer(commands.LoadTopics, lambda token: events.TopicsLoaded(token, {"t": 1}))
    kernel.run(until=7)
    assert machine.state is State.JOINING
    line.answer(commands.JoinGroup, lambda token: events.Joined(token, "m", 1, "other", "range"))
    kernel.run(until=9)
    assert machine.state is State.LEAVING
    line.answer(commands.LeaveGroup, events.Left)
    kernel.run(until=11)
    assert machine.state is State.OUTSIDE
    assert loop.reports["poll-expired"] == 1
    stream.in_hand = None
    kernel.run(until=13)
    assert machine.state is State.LOADING


class Bench:
    """The coordination of one member, without its machine."""

    def __init__(self, listener: Any = None) -> None:
        kernel, gate = Kernel(0), DeliveryGate(now=lambda: 0.0)
        subscription, strategies = Subscription(Pattern.STATIC, {"t": 1}), (RangeStrategy(),)
        spec = classic_spec(subscription=subscription, strategies=strategies, rebalance_timeout=5)
        self.requests, self.heartbeats, self.taken = Line(), Line(), list[Any]()
        self.gate = gate
        host = SimHost(kernel, "c", None)
        self.coordination = BrokerCoordination(
            spec, host, gate, self.requests, self.heartbeats, [], listener
        )
        machine = SimpleNamespace(state=State.STABLE, generation=1, rejoins=1)
        self.member: Any = SimpleNamespace(
            machine=machine, take=self.taken.append, every=lambda seconds, action: None
        )
        self.coordination.begin(self.member)
        self.kernel = kernel


def test_heartbeats_have_a_line_of_their_own() -> None:
    """They do not wait for a JoinGroup. They go to the coordinator that the other client found."""
    bench = Bench()
    beat, find = commands.Heartbeat(1, "m", 1), commands.FindCoordinator(2)
    for command in (find, commands.JoinGroup(3, "m", ()), beat):
        bench.coordination.carry_out(command)
    assert bench.heartbeats.sent == [beat]
    assert beat not in bench.requests.sent
    found: Any = object()
    bench.requests.coordinator = found
    bench.coordination._answered(find, events.CoordinatorFound(2), 0.0, 0)
    assert bench.heartbeats.coordinator is found


def test_a_commit_does_not_wait_for_join_group() -> None:
    """It is sent on the other line, and JoinGroup continues to wait."""
    bench = Bench()
    first, second, third = (commands.CommitOffsets(n, "m", 1, {}) for n in (1, 3, 5))
    join = commands.JoinGroup(2, "m", ())
    for command in (first, join, second):
        bench.coordination.carry_out(command)
    assert bench.requests.sent == [first, join]
    assert bench.heartbeats.sent == [second]
    bench.requests._on_answer(events.Joined(2, "m", 2, "m", "range"), 0.0, 0)
    bench.kernel.run(until=1)
    bench.coordination.carry_out(third)
    assert bench.requests.sent[-1] is third


@pytest.mark.parametrize(
    ("leader", "lease", "lapsed"), [("", 0.0, True), ("", 1.0, False), ("m", 0.0, False)]
)
def test_a_lease_that_expired_before_the_join_is_reported(
    leader: str, lease: float, lapsed: bool
) -> None:
    """A group of KIP-848, which names no leader, does not refuse a member that it has removed."""
    bench = Bench()
    bench.gate.extend(lease)
    joined = events.Joined(1, "m", 2, leader, "range")
    bench.coordination.carry_out(commands.JoinGroup(1, "m", ()))
    bench.requests.answer(commands.JoinGroup, lambda token: joined)
    bench.kernel.run(until=1)
    assert bench.taken[1:] == [events.MembershipLapsed()] * lapsed + [joined]


def test_offsets_are_committed_before_a_cooperative_member_joins() -> None:
    """Automatically, if commits are automatic. Reading topics again at rest needs no commit."""
    bench = Bench()
    commits: list[int] = []
    bench.member.commit_consumed = lambda: commits.append(1)
    bench.coordination.carry_out(commands.LoadTopics(1, None))
    bench.kernel.run(until=1)
    assert not commits
    bench.member.machine.state = State.LOADING
    bench.coordination.carry_out(commands.LoadTopics(2, None))
    bench.kernel.run(until=2)
    assert commits == [1]


def test_an_id_that_the_coordinator_gives_is_no_fault() -> None:
    """MEMBER_ID_REQUIRED is a normal step of a first JoinGroup."""
    bench = Bench()
    join = commands.JoinGroup(1, "", ())
    failed = events.RequestFailed(1, ErrorCode.MEMBER_ID_REQUIRED, "JoinGroup: MEMBER_ID_REQUIRED")
    bench.coordination._take_answer(join, failed, 0)
    assert not bench.coordination.last_fault
    bench.coordination._take_answer(join, events.RequestFailed(1, 25, "unknown"), 0)
    assert bench.coordination.last_fault == "unknown"


def test_a_listener_that_hangs_is_no_progress() -> None:
    """Its call has taken longer than max.poll.interval.ms."""
    listener = SimpleNamespace(since=0.0)
    bench = Bench(listener)
    for until, expected in ((4.0, 0), (6.0, 1)):
        bench.kernel.run(until=until)
        bench.coordination._watch_progress()
        assert bench.taken.count(events.PollExpired()) == expected
    listener.since = None
    bench.coordination._watch_progress()
    assert bench.taken[-1] == events.PollResumed()
