"""A whole migratable member (three machines as one) gets random events: which partitions it may
deliver.

The test plays the servers. Scripts and requests succeed or get lost, modes change, sessions end,
and the coordinator expels the member. Whatever happens, the member delivers only what the mode
allows.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from tests.support.specs import classic_spec
from zkconsumer.core.common import commands, events
from zkconsumer.core.common.events import FetchingStopped
from zkconsumer.core.common.machine import Handler
from zkconsumer.core.common.types import (
    BrokerEndpoint,
    ConsumerThreadId,
    Pattern,
    Subscription,
    TopicPartition,
)
from zkconsumer.core.groups import commands as group_commands, events as group_events
from zkconsumer.core.groups.assignors.strategies import RangeStrategy
from zkconsumer.core.groups.formats.consumer_protocol import AssignmentData, encode_assignment
from zkconsumer.core.migration.commands import (
    AckStored,
    FromGroup,
    LiveRegistered,
    ModeLoaded,
    ReadMode,
    StoreAck,
    ToGroup,
)
from zkconsumer.core.migration.member import LiveMember
from zkconsumer.core.migration.modes import RULES, Follows, Mode, may_deliver, neighbours
from zkconsumer.core.migration.strategy import OwnStrategy
from zkconsumer.core.zookeeper import commands as zk_commands, events as zk_events
from zkconsumer.core.zookeeper.machine import RebalanceMachine
from zkconsumer.core.zookeeper.view import GroupView, MemberSpec
from zkconsumer.core.zookeeper.znodes import GroupPaths

TOPIC, ME, OTHER = "t", "g_me", "g_other"
ALL = [TopicPartition(TOPIC, n) for n in range(4)]
SEEDS = 40
BROKER = (BrokerEndpoint(0, "localhost", 9092),)


class Keeping(RebalanceMachine):
    """Ignores that its partitions were taken back."""

    ANYWHERE: ClassVar[Mapping[type, Handler]] = {
        **RebalanceMachine.ANYWHERE,
        zk_events.TakenBack: lambda machine, event: None,
    }


class World:
    """One member, and the servers that answer it."""

    def __init__(self, seed: int, weaker: str = "") -> None:
        self.random = random.Random(seed)
        subscription = Subscription(Pattern.STATIC, {TOPIC: 1})
        spec = classic_spec(
            consumer_id=ME,
            subscription=subscription,
            strategies=(OwnStrategy(),),
            session_timeout=10,
            rebalance_timeout=60,
            backoff=1,
            reread=9,
        )
        in_zookeeper = MemberSpec(GroupPaths("g"), ME, subscription)
        self.member = LiveMember(in_zookeeper, spec, "/mode", (RangeStrategy(),))
        if weaker == "keeps what it lost":
            self.member.rebalance = Keeping(in_zookeeper, self.member.rebalance._rule)
        elif weaker == "gives back at once":
            self.member._give_back = self._at_once  # type: ignore[method-assign]
        self.mode, self.version = Mode.ZOOKEEPER, 0
        self.session = 0
        self.pending: list[Any] = []
        self.timers: list[events.TimerFired] = []
        self.delivering: set[TopicPartition] = set()
        self.generation = 0
        self.taken_back: set[TopicPartition] = set()
        self.steps: list[str] = []
        self.seen: set[tuple[Mode, bool]] = set()
        self.before: tuple[Mode | None, frozenset[TopicPartition]] = (None, frozenset())
        self.send(FromGroup(group_events.Started()))

    def _at_once(self) -> bool:
        found = self.member._giving_back
        if found is None:
            return False
        self.member._giving_back = None
        answer = FetchingStopped(found[0], {})
        self.member._todo.append(lambda: self.member._to_group(answer))
        return True

    def send(self, event: Any) -> None:
        """Give the member an event, carry out its commands, and check whether it may deliver."""
        self.steps.append(repr(event)[:200])
        for command in self.member.on(event):
            match command:
                case commands.SetTimer(token, name):
                    self.timers.append(events.TimerFired(token, name))
                case commands.StartFetching(token, starting):
                    self.delivering |= starting.keys()
                    self.pending.append(command)
                case commands.StopFetching(_, partitions) | commands.Drop(partitions):
                    self.delivering -= partitions
                    self.pending.append(command)
                case ToGroup() | ReadMode() | StoreAck():
                    self.pending.append(command)
                case _ if hasattr(command, "token"):
                    self.pending.append(command)
        self.judge()

    def judge(self) -> None:
        """A partition needs the owner znode, and a mode that allows delivery or a release that has
        begun."""
        live = self.member.live
        if not self.session:
            assert not self.delivering, self.steps[-5:]
            return
        if live.mode is None:
            return
        owned = self.member.rebalance.owned
        for tp in self.delivering:
            assert tp in owned, (tp, self.steps[-5:])
            allowed = may_deliver(live.mode, live.joined, tp in live.assigned, owner=True)
            assert allowed or tp in live.giving_up, (tp, live.mode, self.steps[-5:])
        before, self.before = self.before, (live.mode, frozenset(self.member.group.held))
        if before[0] is live.mode and RULES[live.mode].follows is Follows.COORDINATOR:
            back = (before[1] - self.before[1]) & self.delivering
            assert not back, ("released while delivered", back, self.steps[-5:])
        self.seen.add((live.mode, bool(self.delivering)))

    def step(self) -> None:
        """Make one thing happen."""
        chance = self.random.random()
        if not self.session:
            self.session += 1
            self.send(zk_events.SessionOpened(self.session))
        elif chance < 0.01:
            self.session = 0
            self.pending = [one for one in self.pending if isinstance(one, ToGroup)]
            self.send(zk_events.SessionLost())
            self.session = 0
        elif chance < 0.04 and self.member.live.acknowledged == self.version:
            self.mode = self.random.choice(neighbours(self.mode))
            self.version += 1
            self.send(zk_events.Changed("/mode"))
        elif chance < 0.05:
            self.generation = -abs(self.generation) - 1
        elif chance < 0.08:
            self.send(zk_events.Changed("/consumers/g/ids"))
        elif self.timers and (chance < 0.3 or not self.pending):
            self.send(self.timers.pop(self.random.randrange(len(self.timers))))
        elif self.pending:
            self.answer(self.pending.pop(self.random.randrange(len(self.pending))))

    def answer(self, command: Any) -> None:
        """Answer for the servers, the data plane or the listener."""
        pick = frozenset(self.random.sample(ALL, self.random.randint(0, 4)))
        fault = "refused" if len(pick) == 4 else ""
        match command:
            case ToGroup(inner):
                self.send(FromGroup(self.of_coordinator(inner)))
            case ReadMode():
                self.send(ModeLoaded(self.mode, self.version, fault))
            case StoreAck(version):
                self.send(AckStored(version, fault))
            case zk_commands.Register(token):
                self.send(LiveRegistered(token, self.mode, self.version))
            case zk_commands.LoadView(token):
                members = {ME: {TOPIC: 1}, **({OTHER: {TOPIC: 1}} if len(pick) > 2 else {})}
                view = GroupView(True, BROKER, members, {}, {TOPIC: (0, 1, 2, 3)})
                self.send(zk_events.ViewLoaded(token, view))
            case zk_commands.ClaimPartitions(token, _, wanted):
                won = {tp: zk_events.Claim(of, 1, 5) for tp, of in wanted.items() if tp in pick}
                lost = {tp: str(ConsumerThreadId(OTHER, 0)) for tp in wanted.keys() - pick}
                self.send(zk_events.Claimed(token, won, lost, {}, False))
            case zk_commands.Release(token):
                self.send(zk_events.Released(token, frozenset(), False))
            case zk_commands.Commit(token, _, _, claims):
                self.send(zk_events.Committed(token, claims, frozenset(), {}, frozenset(), False))
            case zk_commands.WatchBlockers(token):
                self.send(zk_events.BlockersWatched(token, bool(pick)))
            case zk_commands.CheckOwners(token):
                self.send(zk_events.OwnersChecked(token, frozenset()))
            case commands.StopFetching(token, partitions):
                self.send(events.FetchingStopped(token, dict.fromkeys(partitions, 7)))
            case commands.Drop(partitions):
                self.send(events.Dropped(dict.fromkeys(partitions, 7)))
            case commands.StartFetching(token):
                self.send(events.FetchingStarted(token))
            case commands.NotifyStarting(token) | commands.NotifyReleasing(token):
                self.send(events.ListenerDone(token))

    def of_coordinator(self, command: Any) -> Any:
        """Answer for the coordinator. A negative generation means that it has expelled the
        member."""
        token = command.token
        unknown = group_events.RequestFailed(token, 25, "unknown member")
        match command:
            case group_commands.FindCoordinator():
                return group_events.CoordinatorFound(token)
            case group_commands.LoadTopics():
                return group_events.TopicsLoaded(token, {TOPIC: 4}, BROKER)
            case group_commands.JoinGroup(_, member_id, protocols):
                if member_id and self.generation < 0:
                    return unknown
                self.generation = abs(self.generation) + 1
                name = self.random.choice(protocols)[0]
                return group_events.Joined(
                    token, f"id{self.generation}", self.generation, "x", name
                )
            case group_commands.SyncGroup(_, _, generation):
                if generation != self.generation:
                    return unknown
                given = frozenset(self.random.sample(ALL, self.random.randint(0, 4)))
                return group_events.Synced(token, encode_assignment(AssignmentData(given)))
            case group_commands.Heartbeat(_, _, generation):
                code = 25 if generation != self.generation else self.random.choice((0, 0, 27))
                return group_events.HeartbeatAnswered(token, code)
            case _:
                return group_events.Left(token)


def play(seed: int, weaker: str = "") -> World:
    """Play 600 steps."""
    world = World(seed, weaker)
    for _ in range(600):
        world.step()
    return world


def test_only_what_the_mode_allows_is_delivered() -> None:
    """In random runs a member obeys the mode. It delivers in each mode, so the rule was tested."""
    seen: set[tuple[Mode, bool]] = set()
    for seed in range(SEEDS):
        try:
            seen |= play(seed).seen
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert seen >= {(mode, True) for mode in Mode}


@pytest.mark.parametrize("weaker", ["keeps what it lost", "gives back at once"])
def test_a_weaker_member_is_found(weaker: str) -> None:
    """The rule breaks for a member that does not stop when expelled, or does not wait for the
    release."""

    def broken(seed: int) -> bool:
        try:
            play(seed, weaker)
        except AssertionError:
            return True
        return False

    assert any(map(broken, range(SEEDS)))


def test_the_mode_is_read_again_after_the_registration() -> None:
    """It may have changed before the answer, when the member did not know it yet."""
    world = World(0)
    world.send(zk_events.SessionOpened(1))
    (register,) = (one for one in world.pending if isinstance(one, zk_commands.Register))
    assert ReadMode() not in world.pending
    world.answer(register)
    assert ReadMode() in world.pending
