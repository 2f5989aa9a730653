"""The machine under any sequence of facts, plausible or not: total, and never careless."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from zkconsumer.core import facts, orders
from zkconsumer.core.dispatch import Dispatcher
from zkconsumer.core.facts import Claim, Fact
from zkconsumer.core.machine import RebalanceMachine
from zkconsumer.core.ops import Code
from zkconsumer.core.orders import Order
from zkconsumer.core.states import ANSWERS, ANYWHERE, CLOSING, COMMIT_STATES, IDLE, State
from zkconsumer.core.types import (
    BrokerEndpoint,
    ConsumerThreadId,
    Pattern,
    Subscription,
    TopicPartition,
)
from zkconsumer.core.view import GroupView, MemberSpec
from zkconsumer.core.znodes import BROKER_IDS, GroupPaths

ONLY = os.environ.get("ZKC_SEED")
SEEDS = [int(ONLY)] if ONLY else range(600)
STEPS = 120
ME = "g_m"
TPS = [TopicPartition("t", n) for n in range(4)]
PATHS = GroupPaths("g")
ANSWERED_BY = {
    orders.Register: facts.Registered,
    orders.LoadView: facts.ViewLoaded,
    orders.CheckOwners: facts.OwnersChecked,
    orders.StopFetching: facts.FetchingStopped,
    orders.NotifyReleasing: facts.ListenerDone,
    orders.NotifyStarting: facts.ListenerDone,
    orders.Release: facts.Released,
    orders.ClaimPartitions: facts.Claimed,
    orders.StartFetching: facts.FetchingStarted,
    orders.WatchBlockers: facts.BlockersWatched,
    orders.Deregister: facts.Deregistered,
    orders.LoadBrokers: facts.BrokersLoaded,
    orders.Commit: facts.Committed,
}


class Chaos:
    """Feeds a machine random facts and watches what it orders."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.scala = self.rng.random() < 0.3
        spec = MemberSpec(
            PATHS,
            ME,
            Subscription(Pattern.STATIC, {"t": 2}),
            scala=self.scala,
            auto_commit=self.rng.random() < 0.8,
        )
        self.machine = RebalanceMachine(spec)
        self.pending: list[Any] = []
        self.timers: list[orders.SetTimer] = []
        self.requests = 0
        self.answered: list[int] = []
        self.tokens: set[int] = set()

    def some(self) -> list[TopicPartition]:
        return self.rng.sample(TPS, self.rng.randint(0, len(TPS)))

    def view(self) -> GroupView:
        rng = self.rng
        members = {ME: {"t": 2}} if rng.random() < 0.9 else {}
        if rng.random() < 0.5:
            members["g_a"] = {"t": rng.randint(1, 2)}
        brokers = (BrokerEndpoint(0, "b", 9092),) if rng.random() < 0.85 else ()
        partitions = {"t": tuple(range(rng.randint(0, len(TPS))))}
        return GroupView(rng.random() < 0.93, brokers, members, {}, partitions)

    def claims(self, wanted: list[TopicPartition]) -> dict[TopicPartition, Claim]:
        rng = self.rng
        thread = ConsumerThreadId(ME, 0)
        return {tp: Claim(thread, rng.choice([None, 3]), rng.choice([None, 5])) for tp in wanted}

    def answer(self, kind: type[Fact], token: int, order: Any = None) -> Fact:
        """An answer of this kind; to the point when ``order`` is given."""
        rng = self.rng
        odd = rng.random() < 0.1
        if kind is facts.ViewLoaded:
            return facts.ViewLoaded(token, self.view())
        if kind is facts.OwnersChecked:
            return facts.OwnersChecked(token, frozenset(self.some() if odd else ()))
        if kind is facts.FetchingStopped:
            return facts.FetchingStopped(token, {tp: rng.randint(0, 9) for tp in self.some()})
        if kind is facts.ListenerDone:
            return facts.ListenerDone(token, "raised" if odd else None)
        if kind is facts.Released:
            return facts.Released(token, frozenset(), odd)
        if kind is facts.Claimed:
            wanted = list(order.wanted) if order else self.some()
            won = [tp for tp in wanted if rng.random() < 0.7]
            blocked = {tp: "g_a-0" for tp in wanted if tp not in won}
            claims = {
                tp: Claim(order.wanted[tp] if order else c.thread, c.version, c.committed)
                for tp, c in self.claims(won).items()
            }
            return facts.Claimed(token, claims, blocked, {}, odd)
        if kind is facts.Committed:
            tps = list(order.claims) if order else self.some()
            fenced = frozenset(tp for tp in tps if rng.random() < 0.1)
            kept = self.claims([tp for tp in tps if tp not in fenced])
            return facts.Committed(token, kept, fenced, unregistered=odd)
        if kind is facts.BlockersWatched:
            return facts.BlockersWatched(token, odd)
        if kind is facts.BrokersLoaded:
            return facts.BrokersLoaded(token, self.view().brokers)
        if kind is facts.RegistrationRefused:
            return facts.RegistrationRefused(token, 77)
        if kind is facts.ScriptFailed:
            return facts.ScriptFailed(token, rng.choice([Code.NO_AUTH, Code.SESSION_EXPIRED]), "/x")
        return kind(token)  # type: ignore[call-arg]

    def next_fact(self) -> Fact:
        rng, roll = self.rng, self.rng.random()
        if self.pending and roll < 0.6:
            order = self.pending.pop(rng.randrange(len(self.pending)))
            kind = ANSWERED_BY[type(order)]
            if rng.random() < 0.05:
                kind = facts.ScriptFailed
            elif isinstance(order, orders.Register) and rng.random() < 0.2:
                kind = facts.RegistrationRefused
            return self.answer(kind, order.token, order)
        if self.timers and roll < 0.7:
            timer = rng.choice(self.timers)
            return facts.TimerFired(timer.token, timer.name)
        kinds: list[Callable[[], Fact]] = [
            lambda: facts.SessionOpened(rng.randint(1, 99)),
            lambda: facts.SessionOpened(rng.randint(1, 99)),
            facts.SessionResumed,
            facts.SessionLost,
            lambda: facts.Changed(PATHS.ids),
            lambda: facts.Changed(PATHS.owner(TPS[0])),
            lambda: facts.Changed(BROKER_IDS),
            lambda: facts.Dropped(dict.fromkeys(self.some(), 7)),
            lambda: facts.OffsetReset(rng.choice(TPS), rng.choice([None, 9])),
            lambda: facts.TimerFired(rng.randint(0, 60), "backoff"),
            self.request,
            lambda: self.answer(
                rng.choice([*ANSWERED_BY.values(), facts.ScriptFailed, facts.RegistrationRefused]),
                rng.randint(0, 200),
            ),
        ]
        if rng.random() < 0.02:
            return facts.CloseRequested()
        return rng.choice(kinds)()

    def request(self) -> Fact:
        self.requests += 1
        positions = {tp: self.rng.randint(0, 9) for tp in self.some()}
        return facts.CommitRequested(self.requests, positions, self.rng.random() < 0.5)

    def feed(self, fact: Fact) -> list[Order]:
        """One fact; checks everything that must hold of the orders and of what is left."""
        machine = self.machine
        if isinstance(fact, facts.SessionLost):
            self.pending.clear()  # scripts are abandoned
            self.timers.clear()
        before = machine.state, machine._awaited, machine._lane.token, machine._brokers_token
        stale = machine.stale_answers
        held = dict(machine.held)
        found = machine.on(fact)
        token = getattr(fact, "token", None)
        if (
            type(fact) not in ANYWHERE
            and token not in before[1:3]
            and before[0] is not State.CLOSED
        ):
            assert found == [], f"a stale answer had an effect: {fact} in {before[0]}"
            assert (machine.state, machine.held) == (before[0], held)
            assert machine.stale_answers == stale + 1
        for order in found:
            self.check(order)
        assert sum(o.token == machine._awaited for o in self.pending) <= 1
        if not self.scala:
            assert machine.fetching <= machine.held.keys()
            if machine.state in (State.NEW, State.SESSIONLESS):
                assert not machine.held
        return found

    def check(self, order: Order) -> None:
        machine = self.machine
        token = getattr(order, "token", None)
        if token is not None:
            assert token not in self.tokens, f"token used twice: {order}"
            self.tokens.add(token)
        if isinstance(order, orders.SetTimer):
            self.timers.append(order)
        elif type(order) in ANSWERED_BY:
            self.pending.append(order)
            assert machine._session is not None, f"ordered without a session: {order}"
        if isinstance(order, orders.AnswerCommit):
            self.answered.append(order.request)
        if isinstance(order, orders.StartFetching):
            assert order.partitions.keys() <= machine.held.keys()
        if isinstance(order, orders.Commit):
            assert order.claims.keys() <= machine.held.keys()
        if isinstance(order, orders.Release):
            assert order.claims.keys() <= machine.held.keys() | machine._unsure.keys()
            assert not order.claims.keys() & machine.fetching
            if isinstance(order, orders.Commit):
                assert order.positions.keys() == order.claims.keys()
        if isinstance(order, orders.ClaimPartitions):
            assert not order.wanted.keys() & machine.held.keys()

    def come_to_rest(self) -> None:
        """Answer everything in good order until nothing is asked any more."""
        self.rng.random = lambda: 0.5  # type: ignore[method-assign] # nothing odd any more
        machine = self.machine
        if machine.state in (State.NEW, State.SESSIONLESS):
            self.feed(facts.SessionOpened(1000))
        for _ in range(200):
            if self.pending:
                order = self.pending.pop(0)
                self.feed(self.answer(ANSWERED_BY[type(order)], order.token, order))
                continue
            due = [t for t in self.timers if machine._timers.get(t.name) == t.token]
            due = [t for t in due if t.name not in ("reread", "blocked")]
            self.timers = [t for t in self.timers if t not in due]
            if not due:
                return
            for timer in due:
                self.feed(facts.TimerFired(timer.token, timer.name))
        raise AssertionError(f"never comes to rest: {machine.state}")


def survive(seed: int) -> None:
    """Random facts, then peace: everything is checked on the way and at the end."""
    chaos = Chaos(seed)
    for _ in range(STEPS):
        chaos.feed(chaos.next_fact())
    chaos.come_to_rest()
    machine = chaos.machine
    assert machine.state in (*IDLE, State.CLOSED), machine.state
    assert not machine._trigger or machine.state is State.CLOSED
    assert sorted(chaos.answered) == list(range(1, chaos.requests + 1))
    if machine.state is State.RESTING and machine.view and machine.view.brokers:
        mine = machine.decision.mine
        assert machine.held.keys() | machine.blocked.keys() == mine.keys()
        assert machine.fetching == machine.held.keys()


def survive_all(seeds: Iterable[int]) -> None:
    """All these seeds; names the one that fails."""
    for seed in seeds:
        try:
            survive(seed)
        except BaseException:
            sys.stdout.write(f"replay with ZKC_SEED={seed}\n")
            raise


def test_any_facts_in_any_state() -> None:
    """No sequence of facts raises, uses a token twice, fetches or commits what is not held, acts
    without a session, lets a stale answer through, loses a trigger or leaves a commit unanswered;
    and afterwards the member comes to rest with its share.
    """
    survive_all(SEEDS)


def test_an_unchecked_token_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The property above notices a machine that takes answers whatever their token is."""

    def answer(self: Any, fact: Any) -> None:
        handler = ANSWERS.get(self.state, {}).get(type(fact))
        if handler is None:
            self.stale_answers += 1
        else:
            self._awaited = None
            getattr(self, handler)(fact)

    monkeypatch.setattr(Dispatcher, "_answer", answer)
    with pytest.raises((AssertionError, KeyError)):
        survive_all(range(50))


def test_the_tables_fit_the_machine() -> None:
    """Each handler named in the tables exists, each fact has its place, and so has each order."""
    names = [name for handlers in ANSWERS.values() for name in handlers.values()]
    for name in [*names, *ANYWHERE.values()]:
        assert callable(getattr(RebalanceMachine, name))
    placed = {kind for handlers in ANSWERS.values() for kind in handlers} | set(ANYWHERE)
    assert placed | {facts.ScriptFailed} == set(facts.Fact.__args__)
    told = {
        *(orders.SetBrokers, orders.Drop, orders.SetTimer, orders.AnswerCommit),
        *(orders.AnswerStart, orders.Report, orders.Close),
    }
    assert set(ANSWERED_BY) | told == set(orders.Order.__args__)
    assert not COMMIT_STATES & CLOSING
    waiting = set(State) - set(ANSWERS) - IDLE
    assert waiting == {State.NEW, State.SESSIONLESS, State.BACKING_OFF, State.CLOSED}
