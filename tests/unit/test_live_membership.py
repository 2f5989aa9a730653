"""The coordinator's side of a migratable member while its offer changes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.specs import classic_spec
from zkconsumer.core.common.commands import (
    NotifyStarting,
    Report,
    SetTimer,
    StartFetching,
    StopFetching,
)
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.events import FetchingStarted, ListenerDone, TimerFired
from zkconsumer.core.common.types import Pattern, Subscription, TopicPartition
from zkconsumer.core.groups import commands, events
from zkconsumer.core.groups.assignors.sticky import StickyStrategy
from zkconsumer.core.groups.assignors.strategies import (
    JoinOffer,
    MemberState,
    OfferChanged,
    Strategy,
)
from zkconsumer.core.groups.classic import ClassicMachine
from zkconsumer.core.groups.formats.consumer_protocol import (
    AssignmentData,
    decode_subscription,
    encode_assignment,
)
from zkconsumer.core.migration.member import KEPT_OUT
from zkconsumer.core.migration.strategy import OwnStrategy

OWN = OwnStrategy()
EAGER, COOPERATIVE = StickyStrategy(False), StickyStrategy(True)
TP = TopicPartition("t", 0)
BEAT = "heartbeat"


def offer_of(*strategies: Strategy) -> JoinOffer:
    """A migratable member's offer."""
    return JoinOffer(strategies, KEPT_OUT)


class Member:
    """A member that has sent its first JoinGroup with ``strategies``. The test answers."""

    def __init__(self, *strategies: Strategy) -> None:
        subscription = Subscription(Pattern.STATIC, {"t": 1})
        self.machine = ClassicMachine(
            classic_spec(subscription=subscription, strategies=(OWN,), rebalance_timeout=12),
            offer_of(*strategies),
        )
        self.done: list[Any] = []
        self.on(events.Started())
        self.on(events.CoordinatorFound(self.token))
        self.loaded()

    @property
    def token(self) -> int:
        """The token of the last command."""
        return int(self.done[-1].token)

    def on(self, event: Any) -> None:
        self.done += self.machine.on(event)

    def loaded(self) -> None:
        self.on(events.TopicsLoaded(self.last(commands.LoadTopics).token, {"t": 1}))

    def last(self, kind: type[Any]) -> Any:
        """The last command of a kind."""
        return [one for one in self.done if isinstance(one, kind)][-1]

    def joined(self, protocol: str) -> None:
        """A generation begins, and this member gets the only partition."""
        token = self.last(commands.JoinGroup).token
        self.on(events.Joined(token, "m", 1, "another", protocol))
        given = encode_assignment(AssignmentData(frozenset({TP})))
        self.on(events.Synced(self.last(commands.SyncGroup).token, given))
        self.on(events.OffsetsFetched(self.last(commands.FetchOffsets).token, {TP: 5}))
        self.on(ListenerDone(self.last(NotifyStarting).token))
        self.on(FetchingStarted(self.last(StartFetching).token))


def test_a_round_is_completed_with_the_strategy_that_was_offered() -> None:
    """The mode changes while JoinGroup is on its way, and the group chooses a strategy that the
    member no longer offers. The member completes this round and then joins again."""
    member = Member(OWN, EAGER)
    member.on(OfferChanged(offer_of(OWN)))
    member.joined("sticky")
    assert member.machine.joined_offer == offer_of(OWN, EAGER)
    member.loaded()
    names = [name for name, _ in member.last(commands.JoinGroup).protocols]
    assert names == [OWN.name]


@pytest.mark.parametrize("strategy", [EAGER, COOPERATIVE])
@pytest.mark.parametrize("loading", [False, True])
def test_partitions_are_released_before_a_join_with_an_eager_strategy(
    strategy: StickyStrategy, loading: bool
) -> None:
    """With an eager strategy the leader may assign the member's partition to a plain consumer,
    which delivers at once. With a cooperative one it may not."""
    member = Member(OWN)
    member.joined(OWN.name)
    assert set(member.machine.held) == {TP}
    if loading:  # the member has begun to join again when the offer changes
        (timer,) = [one for one in member.done if isinstance(one, SetTimer) and one.name == BEAT]
        member.on(TimerFired(timer.token, BEAT))
        beat = member.last(commands.Heartbeat)
        member.on(events.HeartbeatAnswered(beat.token, ErrorCode.REBALANCE_IN_PROGRESS))
    count = sum(isinstance(one, commands.JoinGroup) for one in member.done)
    member.on(OfferChanged(offer_of(OWN, strategy)))
    if loading or strategy.cooperative:
        member.loaded()
    joins = sum(isinstance(one, commands.JoinGroup) for one in member.done) - count
    stops = sum(isinstance(one, StopFetching) for one in member.done)
    assert (joins, stops) == ((1, 0) if strategy.cooperative else (0, 1))


def test_a_member_that_is_kept_out_says_so_once() -> None:
    """A plain consumer is in the group. The coordinator refuses each try, and the log names the
    reason once."""
    member = Member(OWN)
    for _ in range(3):
        token = member.last(commands.JoinGroup).token
        member.on(events.RequestFailed(token, ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        timer = member.last(SetTimer)
        member.on(TimerFired(timer.token, timer.name))
        member.loaded()
    (said,) = [one for one in member.done if isinstance(one, Report)]
    assert "a plain Kafka consumer is in the group" in said.text


def test_the_subscription_names_the_partitions_that_the_member_keeps() -> None:
    """A coordinator with KIP-848 members in the group reads only the first strategy's subscription.
    It assigns a partition that no subscription names at once, while the member still delivers
    it."""
    owned = frozenset({TopicPartition("t", 1)})
    subscription = decode_subscription(OWN.subscribe(MemberState("m", {"t": 2}, owned, 7)))
    assert (subscription.topics, subscription.owned, subscription.generation) == (("t",), owned, 7)
    assert subscription.user_data  # the number of streams
