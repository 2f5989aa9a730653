"""Whole groups of machines on virtual time, with answers that are lost, late or cut off."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from zkconsumer.broker.sticky import StickyStrategy
from zkconsumer.core import facts as common
from zkconsumer.core import orders as common_orders
from zkconsumer.core.membership import facts, orders
from zkconsumer.core.membership.facts import GroupMember
from zkconsumer.core.membership.machine import MembershipMachine
from zkconsumer.core.membership.spec import GroupSpec
from zkconsumer.core.membership.states import State
from zkconsumer.core.membership.strategies import LegacyStrategy, RangeStrategy
from zkconsumer.core.types import Pattern, Subscription, TopicPartition

PARTITIONS = {"t": 5}
ALL = {TopicPartition("t", n) for n in range(5)}
SESSION = 10.0
FENCE = SESSION * 2 / 3


@dataclass
class Seat:
    """One member as the coordinator knows it."""

    metadata: dict[str, bytes]
    order: list[str]
    last_seen: float
    joined: Callable[[Any], None] | None = None
    synced: Callable[[Any], None] | None = None


@dataclass
class Group:
    """The broker's side: members, generation, offsets. Fenced as a broker of 3.9 is."""

    world: World
    seats: dict[str, Seat] = field(default_factory=dict)
    generation: int = 0
    state: str = "empty"
    leader: str = ""
    protocol: str = ""
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    assignments: dict[str, bytes] = field(default_factory=dict)
    numbers: Any = field(default_factory=itertools.count)
    deadline: float = 0.0
    pending: set[str] = field(default_factory=set)

    def join(self, order: orders.JoinGroup, reply: Callable[[Any], None]) -> None:
        if not order.member_id:
            member_id = f"m{next(self.numbers)}"
            self.pending.add(member_id)
            reply(facts.RequestFailed(order.token, 79, "", member_id))
            return
        if order.member_id not in self.seats and order.member_id not in self.pending:
            reply(facts.RequestFailed(order.token, 25))
            return
        self.pending.discard(order.member_id)
        names = [name for name, _ in order.protocols]
        seat = self.seats.get(order.member_id)
        if seat is None:
            seat = self.seats[order.member_id] = Seat({}, names, self.world.now)
        seat.metadata, seat.last_seen = dict(order.protocols), self.world.now
        seat.joined = lambda fact: reply(replace(fact, token=order.token))
        if self.state != "preparing":
            self.state = "preparing"
            self.deadline = self.world.now + 30
            for other in self.seats.values():
                if other.synced is not None:
                    other.synced(facts.RequestFailed(0, 27))
                    other.synced = None
        self.check()

    def check(self) -> None:
        """End sessions; begin the next generation when all are here."""
        now = self.world.now
        for name, seat in list(self.seats.items()):
            waits = seat.joined is not None or seat.synced is not None
            if (now - seat.last_seen > SESSION and not waits) or (
                self.state == "preparing" and now > self.deadline and seat.joined is None
            ):
                self.leave(name)
        if self.state == "preparing" and self.seats:
            if all(seat.joined is not None for seat in self.seats.values()):
                self.begin()
        elif not self.seats:
            self.state = "empty"

    def begin(self) -> None:
        self.generation += 1
        self.state, self.assignments = "syncing", {}
        common_names = set.intersection(*(set(seat.metadata) for seat in self.seats.values()))
        self.protocol = next(n for n in next(iter(self.seats.values())).order if n in common_names)
        if self.leader not in self.seats:
            self.leader = next(iter(self.seats))
        told = tuple(
            GroupMember(name, None, seat.metadata[self.protocol])
            for name, seat in self.seats.items()
        )
        for name, seat in self.seats.items():
            joined, seat.joined, seat.last_seen = seat.joined, None, self.world.now
            assert joined is not None
            members = told if name == self.leader else ()
            joined(facts.Joined(0, name, self.generation, self.leader, self.protocol, members))

    def known(self, member_id: str, generation: int) -> int:
        if member_id not in self.seats:
            return 25
        return 0 if generation == self.generation else 22

    def sync(self, order: orders.SyncGroup, reply: Callable[[Any], None]) -> None:
        code = self.known(order.member_id, order.generation)
        code = code or (27 if self.state == "preparing" else 0)
        if code:
            reply(facts.RequestFailed(order.token, code))
            return
        seat = self.seats[order.member_id]
        seat.last_seen = self.world.now
        seat.synced = lambda fact: reply(replace(fact, token=order.token))
        if order.member_id == self.leader and self.state == "syncing":
            self.state, self.assignments = "stable", dict(order.assignments)
        if self.state == "stable":
            for name, other in self.seats.items():
                if other.synced is not None:
                    other.synced(facts.Synced(0, self.assignments.get(name, b"")))
                    other.synced, other.last_seen = None, self.world.now

    def leave(self, name: str) -> None:
        if self.seats.pop(name, None) is not None and self.state in ("stable", "syncing"):
            self.state, self.deadline = "preparing", self.world.now + 30
            for other in self.seats.values():
                if other.synced is not None:
                    other.synced(facts.RequestFailed(0, 27))
                    other.synced = None

    def answer(self, order: Any, reply: Callable[[Any], None]) -> None:
        """One request arrives."""
        self.check()
        match order:
            case orders.FindCoordinator(token):
                reply(facts.CoordinatorFound(token))
            case orders.LoadTopics(token):
                reply(facts.TopicsLoaded(token, PARTITIONS))
            case orders.JoinGroup():
                self.join(order, reply)
            case orders.SyncGroup():
                self.sync(order, reply)
            case orders.Heartbeat(token, name, generation):
                code = self.known(name, generation)
                if not code:
                    self.seats[name].last_seen = self.world.now
                    code = 27 if self.state == "preparing" else 0
                reply(facts.HeartbeatAnswered(token, code))
            case orders.LeaveGroup(token, name):
                self.leave(name)
                reply(facts.Left(token))
            case orders.FetchOffsets(token, wanted):
                reply(facts.OffsetsFetched(token, {tp: self.offsets.get(tp) for tp in wanted}))
            case orders.CommitOffsets(token, name, generation, positions):
                code = self.known(name, generation)
                if not code and self.state == "syncing":
                    code = 27
                if not code:
                    for tp, offset in positions.items():
                        assert offset >= self.offsets.get(tp, 0), "a commit went down"
                        self.offsets[tp] = offset
                reply(facts.OffsetsCommitted(token, dict.fromkeys(positions, code)))
        self.check()


class Member:
    """One machine and its streams. It reads one message of each partition every 0.1 s."""

    def __init__(self, world: World, name: str, strategy: Any) -> None:
        self.world, self.name = world, name
        self.positions: dict[TopicPartition, int] = {}
        self.fence = -1.0
        self.paused_until = 0.0
        self.alive = True
        self.later: list[Callable[[], None]] = []
        subscription = Subscription(Pattern.STATIC, {"t": 2})
        self.machine = MembershipMachine(
            GroupSpec(
                "g", name, None, subscription, True, (strategy,), True, SESSION, 30, 3, 0.2, 9
            )
        )
        self.take(facts.Started())
        self.read()

    def take(self, fact: Any) -> None:
        """A fact comes; a paused process hears of it when it wakes."""
        if self.world.now < self.paused_until:
            self.later.append(lambda: self.take(fact))
            return
        for order in self.machine.on(fact):
            self.carry_out(order)

    def read(self) -> None:
        """Deliver, while the fence allows it."""
        if not self.alive:
            return
        self.world.after(0.1, self.read)
        if self.world.now < self.paused_until:
            return
        later, self.later = self.later, []
        if self.world.now < self.fence:  # before any fact of the pause is heard of
            for tp in self.positions:
                self.world.delivered(self, tp, self.positions[tp])
                self.positions[tp] += 1
        for act in later:
            act()
        if self.positions and self.world.rng.random() < 0.2:
            self.take(common.CommitRequested(None, dict(self.positions)))

    def carry_out(self, order: Any) -> None:
        match order:
            case common_orders.StopFetching(token, partitions):
                found = {tp: self.positions.pop(tp) for tp in partitions if tp in self.positions}
                self.world.after(0.05, lambda: self.take(common.FetchingStopped(token, found)))
            case common_orders.Drop(partitions):
                for tp in partitions:
                    self.positions.pop(tp, None)
            case common_orders.StartFetching(token, starting):
                for tp, (_, offset) in starting.items():
                    assert tp not in self.positions
                    self.positions[tp] = offset or 0
                self.take(common.FetchingStarted(token))
            case (
                common_orders.NotifyReleasing(token)
                | common_orders.NotifyStarting(token)
                | orders.NotifyLost(token)
            ):
                self.world.after(0.01, lambda: self.take(common.ListenerDone(token)))
            case common_orders.SetTimer(token, name, seconds):
                self.world.after(seconds, lambda: self.take(common.TimerFired(token, name)))
            case _ if hasattr(order, "token"):
                self.send(order)

    def send(self, order: Any) -> None:
        """Over the network: the request or its answer may be lost or late."""
        rng, sent = self.world.rng, self.world.now

        def unanswered() -> None:
            if isinstance(order, orders.Heartbeat):
                self.take(facts.HeartbeatAnswered(order.token, -1))
            else:
                self.take(facts.RequestFailed(order.token, -1))

        def reply(fact: Any) -> None:
            if self.world.troubled and rng.random() < 0.05:
                self.world.after(rng.uniform(0, 3), unanswered)
                return
            late = rng.uniform(0, 5) if self.world.troubled and rng.random() < 0.05 else 0.002

            def arrive() -> None:
                beat = isinstance(fact, facts.HeartbeatAnswered) and fact.code in (0, 27)
                if (beat or isinstance(fact, facts.Synced)) and not self.world.unfenced:
                    self.fence = max(self.fence, sent + FENCE)
                elif self.world.unfenced:
                    self.fence = 10**9
                self.take(fact)

            self.world.after(late, arrive)

        if self.world.troubled and rng.random() < 0.03:
            self.world.after(rng.uniform(0, 3), unanswered)
        else:
            self.world.after(0.002, lambda: self.world.group.answer(order, reply))


class World:
    """Virtual time and what is checked."""

    def __init__(self, seed: int, unfenced: bool = False) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.troubled = True
        self.unfenced = unfenced
        self.group = Group(self)
        self.members: list[Member] = []
        self.last: dict[TopicPartition, tuple[float, str]] = {}
        self.faults: list[str] = []
        self.highest: dict[TopicPartition, int] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), act))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, act = heapq.heappop(self._events)
            act()
        self.now = until

    def delivered(self, member: Member, tp: TopicPartition, offset: int) -> None:
        """Two members deliver one partition at the same time, or a message is passed over."""
        if offset > self.highest.get(tp, -1) + 1:
            self.faults.append(f"{tp}: {offset} after {self.highest.get(tp, -1)}: lost")
        self.highest[tp] = max(self.highest.get(tp, -1), offset)
        at, who = self.last.get(tp, (-1.0, ""))
        holders = [m.name for m in self.members if tp in m.positions and m.fence > self.now]
        if len(holders) > 1:
            self.faults.append(f"{self.now:.2f} {tp} is delivered by {holders}, {who} at {at:.2f}")
        self.last[tp] = (self.now, member.name)


def play(seed: int, unfenced: bool = False) -> World:
    """Three members, forty seconds of trouble, then peace."""
    world = World(seed, unfenced)
    cooperative = world.rng.random() < 0.5
    strategies = [
        RangeStrategy(),
        LegacyStrategy("legacy-range"),
        StickyStrategy(False),
    ]
    strategy = StickyStrategy(True) if cooperative else world.rng.choice(strategies)
    for number in range(3):
        world.after(
            world.rng.uniform(0, 15),
            lambda n=number: world.members.append(Member(world, f"c{n}", strategy)),
        )
    for _ in range(2):
        at = world.rng.uniform(15, 40)

        def pause() -> None:
            member = world.rng.choice(world.members)
            member.paused_until = world.now + world.rng.uniform(1, 25)

        world.after(at, pause)
    world.run(45)
    world.troubled = False
    world.run(45 + 25 + SESSION + 30 + 15)
    return world


@pytest.mark.parametrize("block", range(10))
def test_a_thousand_groups(block: int) -> None:
    """With answers lost and late and processes paused no partition is delivered by two members at
    once, nothing is passed over, no commit goes down; in peace all partitions are held again."""
    for seed in range(block * 100, block * 100 + 100):
        world = play(seed)
        states = [member.machine.state for member in world.members]
        assert not world.faults, (seed, world.faults[:3])
        assert states == [State.STABLE] * 3, (seed, states)
        held = [tp for member in world.members for tp in member.positions]
        assert sorted(held) == sorted(ALL), seed
        assert all(found > 50 for found in world.highest.values()), seed


def test_without_the_fence_it_is_seen() -> None:
    """The checks see a member that delivers after a pause without a confirmed heartbeat."""
    assert any(play(seed, unfenced=True).faults for seed in range(60))
