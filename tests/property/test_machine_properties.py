"""The machine under any sequence of events, plausible or not: it never raises and breaks no
rule."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from zkconsumer.core.common.commands import (
    AnswerCommit,
    AnswerStart,
    Close,
    Drop,
    Fail,
    Forget,
    NotifyLost,
    NotifyReleasing,
    NotifyStarting,
    Report,
    SetBrokers,
    SetTimer,
    StartFetching,
    StopFetching,
)
from zkconsumer.core.common.events import (
    CloseRequested,
    CommitRequested,
    Dropped,
    FetchingStarted,
    FetchingStopped,
    ListenerDone,
    TimerFired,
)
from zkconsumer.core.common.machine import Machine
from zkconsumer.core.common.types import (
    BrokerEndpoint,
    ConsumerThreadId,
    Pattern,
    Subscription,
    TopicPartition,
)
from zkconsumer.core.groups.classic import ClassicMachine
from zkconsumer.core.groups.kip848 import Kip848Machine
from zkconsumer.core.zookeeper import commands, events
from zkconsumer.core.zookeeper.commands import Command
from zkconsumer.core.zookeeper.committing import GroupRule
from zkconsumer.core.zookeeper.events import Claim, Event
from zkconsumer.core.zookeeper.machine import RebalanceMachine
from zkconsumer.core.zookeeper.ops import Code
from zkconsumer.core.zookeeper.states import CLOSING, COMMIT_STATES, IDLE, State
from zkconsumer.core.zookeeper.view import Decision, GroupView, MemberSpec
from zkconsumer.core.zookeeper.znodes import BROKER_IDS, GroupPaths

ONLY = os.environ.get("ZKC_SEED")
SEEDS = [int(ONLY)] if ONLY else range(600)
STEPS = 120
ME = "g_m"
TPS = [TopicPartition("t", n) for n in range(4)]
PATHS = GroupPaths("g")
OTHER = ConsumerThreadId("g_other", 0)
COMMIT = commands.Commit
ANSWERED_BY = {
    commands.Register: events.Registered,
    commands.LoadView: events.ViewLoaded,
    commands.CheckOwners: events.OwnersChecked,
    StopFetching: FetchingStopped,
    NotifyReleasing: ListenerDone,
    NotifyStarting: ListenerDone,
    commands.Release: events.Released,
    commands.ClaimPartitions: events.Claimed,
    StartFetching: FetchingStarted,
    commands.WatchBlockers: events.BlockersWatched,
    commands.Deregister: events.Deregistered,
    commands.LoadBrokers: events.BrokersLoaded,
    COMMIT: events.Committed,
}


@dataclass(frozen=True)
class ChangingRule:
    """The group's assignment, without the partitions that are forbidden at the moment."""

    spec: MemberSpec
    forbidden: set[TopicPartition] = field(default_factory=set)
    stores_in_kafka: bool = False

    def decide(self, view: GroupView, held: Mapping[TopicPartition, Claim]) -> Decision:
        """See ``ClaimRule``."""
        decision = GroupRule(self.spec).decide(view, held)
        allowed = {tp: of for tp, of in decision.mine.items() if self.may_claim(tp)}
        return Decision(allowed, decision.assignment)

    def may_claim(self, partition: TopicPartition) -> bool:
        """See ``ClaimRule``."""
        return partition not in self.forbidden


class Chaos:
    """Feeds random events to a machine, and checks its commands."""

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
        self.rule = ChangingRule(spec)
        self.machine = RebalanceMachine(spec, self.rule)
        self.pending: list[Any] = []
        self.timers: list[SetTimer] = []
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

    def answer(self, kind: type[Event], token: int, order: Any = None) -> Event:
        """Return an answer of this kind. It fits if ``order`` is given."""
        rng = self.rng
        odd = rng.random() < 0.1
        if kind is events.ViewLoaded:
            return events.ViewLoaded(token, self.view())
        if kind is events.OwnersChecked:
            return events.OwnersChecked(token, frozenset(self.some() if odd else ()))
        if kind is FetchingStopped:
            return FetchingStopped(token, {tp: rng.randint(0, 9) for tp in self.some()})
        if kind is ListenerDone:
            return ListenerDone(token, "raised" if odd else None)
        if kind is events.Released:
            return events.Released(token, frozenset(), odd)
        if kind is events.Claimed:
            wanted = list(order.wanted) if order else self.some()
            won = [tp for tp in wanted if rng.random() < 0.7]
            blocked = {tp: "g_a-0" for tp in wanted if tp not in won}
            claims = {
                tp: Claim(order.wanted[tp] if order else c.thread, c.version, c.committed)
                for tp, c in self.claims(won).items()
            }
            return events.Claimed(token, claims, blocked, {}, odd)
        if kind is events.Committed:
            tps = list(order.claims) if order else self.some()
            fenced = frozenset(tp for tp in tps if rng.random() < 0.1)
            kept = self.claims([tp for tp in tps if tp not in fenced])
            return events.Committed(token, kept, fenced, unregistered=odd)
        if kind is events.BlockersWatched:
            return events.BlockersWatched(token, odd)
        if kind is events.BrokersLoaded:
            return events.BrokersLoaded(token, self.view().brokers)
        if kind is events.RegistrationRefused:
            return events.RegistrationRefused(token, 77)
        if kind is events.ScriptFailed:
            return events.ScriptFailed(
                token, rng.choice([Code.NO_AUTH, Code.SESSION_EXPIRED]), "/x"
            )
        return kind(token)  # type: ignore[call-arg]

    def next_fact(self) -> Event:
        rng, roll = self.rng, self.rng.random()
        if self.pending and roll < 0.6:
            order = self.pending.pop(rng.randrange(len(self.pending)))
            kind = ANSWERED_BY[type(order)]
            if rng.random() < 0.05:
                kind = events.ScriptFailed
            elif isinstance(order, commands.Register) and rng.random() < 0.2:
                kind = events.RegistrationRefused
            return self.answer(kind, order.token, order)
        if self.timers and roll < 0.7:
            timer = rng.choice(self.timers)
            return TimerFired(timer.token, timer.name)
        kinds: list[Callable[[], Event]] = [
            lambda: events.SessionOpened(rng.randint(1, 99)),
            lambda: events.SessionOpened(rng.randint(1, 99)),
            events.SessionResumed,
            events.SessionLost,
            lambda: events.Changed(PATHS.ids),
            lambda: events.Changed(PATHS.owner(TPS[0])),
            lambda: events.Changed(BROKER_IDS),
            lambda: Dropped(dict.fromkeys(self.some(), 7)),
            lambda: events.OffsetReset(rng.choice(TPS), rng.choice([None, 9])),
            self.change_rules,
            lambda: events.TakenBack(frozenset(self.some())),
            lambda: TimerFired(rng.randint(0, 60), "backoff"),
            self.request,
            lambda: self.answer(
                rng.choice(
                    [*ANSWERED_BY.values(), events.ScriptFailed, events.RegistrationRefused]
                ),
                rng.randint(0, 200),
            ),
        ]
        if rng.random() < 0.02:
            return CloseRequested()
        return rng.choice(kinds)()

    def change_rules(self) -> Event:
        self.rule.forbidden.clear()
        if not self.scala:  # no live move there
            self.rule.forbidden.update(self.some())
        return events.RulesChanged()

    def request(self) -> Event:
        self.requests += 1
        positions = {tp: self.rng.randint(0, 9) for tp in self.some()}
        return CommitRequested(self.requests, positions, self.rng.random() < 0.5)

    def feed(self, fact: Event) -> list[Command]:
        """Feed one event. Check everything that must hold of the commands and of the remaining
        state."""
        machine = self.machine
        if isinstance(fact, events.SessionLost):
            self.pending.clear()  # scripts are abandoned
            self.timers.clear()
        before = machine.state, machine._awaited, machine._commits.token, machine._brokers.token
        stale = machine.stale_answers
        held = dict(machine.held)
        found = machine.on(fact)
        token = getattr(fact, "token", None)
        if (
            type(fact) not in RebalanceMachine.ANYWHERE
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

    def check(self, order: Command) -> None:
        machine = self.machine
        token = getattr(order, "token", None)
        if token is not None:
            assert token not in self.tokens, f"token used twice: {order}"
            self.tokens.add(token)
        if isinstance(order, SetTimer):
            self.timers.append(order)
        elif type(order) in ANSWERED_BY:
            self.pending.append(order)
            assert machine._registration.session is not None, f"acted without a session: {order}"
        if isinstance(order, AnswerCommit):
            self.answered.append(order.request)
        if isinstance(order, StartFetching):
            assert order.partitions.keys() <= machine.held.keys()
            assert all(map(self.rule.may_claim, order.partitions)), "the rule forbids it"
        if isinstance(order, COMMIT):
            held = {tp: machine.held.get(tp) for tp in order.positions}
            assert order.claims == held, "a commit that is not fenced by its claims"
        if isinstance(order, commands.Release):
            assert order.claims.keys() <= machine.held.keys() | machine._unknown_claims.keys()
            assert not order.claims.keys() & machine.fetching
        if isinstance(order, commands.ClaimPartitions):
            assert not order.wanted.keys() & machine.held.keys()

    def come_to_rest(self) -> None:
        """Answer all commands in order until the machine sends no more."""
        self.rng.random = lambda: 0.5  # type: ignore[method-assign] # no more random faults
        machine = self.machine
        if machine.state in (State.NEW, State.SESSIONLESS):
            self.feed(events.SessionOpened(1000))
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
                self.feed(TimerFired(timer.token, timer.name))
        raise AssertionError(f"never comes to rest: {machine.state}")


def survive(seed: int) -> None:
    """Feed random events, then only good answers. Check everything on the way and at the end."""
    chaos = Chaos(seed)
    for _ in range(STEPS):
        chaos.feed(chaos.next_fact())
    chaos.come_to_rest()
    machine = chaos.machine
    assert machine.state in (*IDLE, State.CLOSED), machine.state
    assert not machine._due.group or machine.state is State.CLOSED
    assert sorted(chaos.answered) == list(range(1, chaos.requests + 1))
    if machine.state is State.RESTING and machine.view and machine.view.brokers:
        mine = machine.decision.mine
        assert machine.held.keys() | machine.blocked.keys() == mine.keys()
        assert machine.fetching == machine.held.keys()
        assert all(map(chaos.rule.may_claim, machine.held))


def survive_all(seeds: Iterable[int]) -> None:
    """Play all these seeds, and name the one that fails."""
    for seed in seeds:
        try:
            survive(seed)
        except BaseException:
            sys.stdout.write(f"replay with ZKC_SEED={seed}\n")
            raise


def test_any_facts_in_any_state() -> None:
    """No sequence of events raises or uses a token twice. The member fetches and commits only its
    own partitions, acts only with a session, ignores stale answers, and begins only what its rule
    allows. It loses no trigger and answers each commit. Afterwards it becomes stable with its
    share."""
    survive_all(SEEDS)


def test_an_unchecked_token_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The property above finds a machine that accepts answers with any token."""

    def answer(self: Any, _token: int, event: Any) -> bool:
        handler = self.ANSWERS.get(self.state, {}).get(type(event))
        if handler is None:
            return False
        self._awaited = None
        handler(self, event)
        return True

    monkeypatch.setattr(Machine, "_answer", answer)
    with pytest.raises((AssertionError, KeyError)):
        survive_all(range(50))


def test_a_rule_that_is_not_asked_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The property above finds a machine that begins to fetch what it was allowed to claim."""
    monkeypatch.setattr(RebalanceMachine, "_release_forbidden", lambda self: None)
    with pytest.raises(AssertionError, match="the rule forbids it"):
        survive_all(range(300))


@pytest.mark.parametrize(
    "claims_of",
    [
        lambda claims: dict(list(claims.items())[1:]),
        lambda claims: {tp: replace(claim, version=None) for tp, claim in claims.items()},
        lambda claims: claims | {TopicPartition("other", 0): Claim(OTHER, 0, 0)},
    ],
    ids=["one missing", "another version", "one too many"],
)
def test_a_commit_without_its_claims_is_found(
    monkeypatch: pytest.MonkeyPatch, claims_of: Callable[[Any], Any]
) -> None:
    """The property above finds a commit that is not fenced by the claims of its partitions."""
    monkeypatch.setattr(
        "zkconsumer.core.zookeeper.committing.commands.Commit",
        lambda token, epoch, positions, claims: COMMIT(token, epoch, positions, claims_of(claims)),
    )
    with pytest.raises(AssertionError, match="not fenced by its claims"):
        survive_all(range(50))


@pytest.mark.parametrize(
    "machine",
    [RebalanceMachine, ClassicMachine, Kip848Machine],
)
def test_the_tables_name_each_machines_own_handlers(machine: type[Machine[Any, Any, Any]]) -> None:
    """A machine that overrides a handler names it in its own table: the table's is what runs."""
    handlers = [handler for of in machine.ANSWERS.values() for handler in of.values()]
    for handler in [*handlers, *machine.ANYWHERE.values()]:
        assert getattr(machine, handler.__name__) is handler


def test_the_tables_fit_the_machine() -> None:
    """Each event and command has its place in the tables."""
    answers, anywhere = RebalanceMachine.ANSWERS, RebalanceMachine.ANYWHERE
    placed = {kind for of in answers.values() for kind in of} | set(anywhere)
    assert placed | {events.ScriptFailed} == set(events.Event.__args__)
    told = {
        *(SetBrokers, Drop, SetTimer, AnswerCommit),
        *(AnswerStart, Report, Close),
        *(NotifyLost, Forget, Fail),  # of the coordinator's members only
    }
    assert set(ANSWERED_BY) | told == set(commands.Command.__args__)
    assert not COMMIT_STATES & CLOSING
    waiting = set(State) - set(answers) - IDLE
    assert waiting == {State.NEW, State.SESSIONLESS, State.BACKING_OFF, State.CLOSED}
