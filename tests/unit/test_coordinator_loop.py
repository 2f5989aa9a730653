"""The loop of a member on the coordinator, without servers."""

from __future__ import annotations

import threading
from typing import Any, cast

from zkconsumer.broker.group import GroupClient
from zkconsumer.broker.known_brokers import KnownBrokers
from zkconsumer.config.coordinator import CoordinatorConfig
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.core.membership import facts, orders
from zkconsumer.core.membership.spec import GroupSpec
from zkconsumer.core.membership.states import State
from zkconsumer.core.membership.strategies import RangeStrategy
from zkconsumer.core.types import Pattern, Subscription
from zkconsumer.errors import ConnectorClosedError
from zkconsumer.runtime.data_plane import DataPlane
from zkconsumer.runtime.fetchers import ConsumerFetcherManager
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.group_loop import GroupLoop
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
    wait_until(lambda: member._loop is not None, 10, "it joins")
    member.shutdown()
    creating.join(10)
    assert [str(error) for error in told] == ["the connector was shut down"]


class Stuck:
    """A stream whose application works on a message; it asks for no more."""

    in_hand: object | None = object()


def test_who_became_slow_before_it_was_a_member_leaves() -> None:
    """An application has a message in hand for longer than max.poll.interval.ms while the member is
    joining: when it is let in it leaves again, and comes back when the application goes on."""
    manager = ConsumerFetcherManager(CoordinatorConfig.parse(NOBODY), "c")
    client = GroupClient(
        *("g", "c", None),
        KnownBrokers([], manager.requests_to),
        session_timeout=30.0,
        rebalance_timeout=0.0,
        timeout=1.0,
    )
    subscription, strategies = Subscription(Pattern.STATIC, {"t": 1}), (RangeStrategy(),)
    stream = Stuck()
    loop = GroupLoop(
        GroupSpec("g", "c", None, subscription, True, strategies, True, 30, 0, 3, 0.1, 30),
        *(client, client),
        DataPlane(manager, {}, 1.0),
        DeliveryGate(),
        cast(Any, [stream]),
        lambda: None,
        auto_commit_interval=None,
    )
    machine = loop.machine

    def asked(kind: Any) -> Any:
        """The last request; it is of this kind."""
        while not loop._requests.empty():
            last = loop._requests.get()
        assert isinstance(last, kind)
        return last

    loop._take(facts.Started())
    loop._take(facts.CoordinatorFound(asked(orders.FindCoordinator).token))
    loop._take(facts.TopicsLoaded(asked(orders.LoadTopics).token, {"t": 1}))
    loop._watch_hands()
    loop._watch_hands()
    assert machine.state is State.JOINING
    loop._take(facts.Joined(asked(orders.JoinGroup).token, "m", 1, "other", "range"))
    loop._watch_hands()
    assert machine.state is State.LEAVING
    loop._take(facts.Left(asked(orders.LeaveGroup).token))
    loop._watch_hands()
    assert machine.state is State.OUTSIDE
    assert loop.reports["poll-expired"] == 1
    stream.in_hand = None
    loop._watch_hands()
    assert machine.state is State.LOADING
    manager.shutdown()
