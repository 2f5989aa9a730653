"""The loop of a member on the coordinator, without servers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.core.common.types import Pattern, Subscription
from zkconsumer.core.coordinator import commands, events
from zkconsumer.core.coordinator.machine import MembershipMachine
from zkconsumer.core.coordinator.spec import GroupSpec
from zkconsumer.core.coordinator.states import State
from zkconsumer.core.coordinator.strategies import RangeStrategy
from zkconsumer.errors import ConnectorClosedError
from zkconsumer.runtime.coordinator import BrokerCoordination
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.loop import MemberLoop
from zkconsumer.runtime.metrics import RebalanceCounts
from zkconsumer.sim.host import Habits, SimHost
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.light import SimPlane
from zkconsumer.testing import wait_until

NOBODY = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}


def test_shutdown_wakes_who_waits_for_streams() -> None:
    """One thread waits for its first rebalance, for which there is no server; another one shuts the
    connector down: the first one is told so at once."""
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
    """A stream whose application works on a message; it asks for no more."""

    in_hand: object | None = object()


class Line:
    """A connection to the coordinator that is answered by hand."""

    coordinator = None

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def start(self, on_answer: Callable[..., object], on_crash: Callable[..., object]) -> None:
        self._on_answer = on_answer

    def submit(self, command: Any) -> None:
        self.sent.append(command)

    def interrupt(self) -> None:
        pass

    def close(self) -> None:
        pass

    def answer(self, kind: type, event: Callable[[int], Any]) -> None:
        """Answer the last request, which is of this kind."""
        assert isinstance(self.sent[-1], kind)
        self._on_answer(self.sent[-1], event(self.sent[-1].token), 0.0, 0)


def test_a_member_that_became_slow_while_joining_leaves_and_comes_back() -> None:
    """An application has a message in hand for longer than max.poll.interval.ms while the member is
    joining. When the coordinator lets the member in, it leaves again, and joins when the
    application continues."""
    kernel, gate, stream, line = Kernel(0), DeliveryGate(now=lambda: 0.0), Stuck(), Line()
    host = SimHost(kernel, "c", None)
    subscription, strategies = Subscription(Pattern.STATIC, {"t": 1}), (RangeStrategy(),)
    spec = GroupSpec("g", "c", None, subscription, True, strategies, True, 30, 5, 3, 0.1, 30)
    coordination = BrokerCoordination(spec, host, gate, line, Line(), [stream], None)
    loop = MemberLoop(
        "c",
        MembershipMachine(spec),
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
