"""Single decisions of the machine that random runs reach too rarely to stand for them."""

from __future__ import annotations

from typing import Any, TypeVar

from zkconsumer.core import facts, orders
from zkconsumer.core.facts import Claim, Fact
from zkconsumer.core.machine import RebalanceMachine
from zkconsumer.core.ops import Code
from zkconsumer.core.orders import Order, Outcome
from zkconsumer.core.states import State
from zkconsumer.core.types import (
    BrokerEndpoint,
    ConsumerThreadId,
    Pattern,
    Subscription,
    TopicPartition,
)
from zkconsumer.core.view import GroupView, MemberSpec
from zkconsumer.core.znodes import BROKER_IDS, GroupPaths

PATHS = GroupPaths("g")
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
MINE = ConsumerThreadId("g_m", 0)
B0, B1 = BrokerEndpoint(0, "b0", 9092), BrokerEndpoint(1, "b1", 9092)
O = TypeVar("O")  # noqa: E741


def machine(scala: bool = False) -> RebalanceMachine:
    """A member that subscribes to ``t`` with one stream."""
    return RebalanceMachine(
        MemberSpec(PATHS, "g_m", Subscription(Pattern.STATIC, {"t": 1}), scala=scala)
    )


def view(*others: str, brokers: tuple[BrokerEndpoint, ...] = (B0,)) -> GroupView:
    """Two partitions; this member and ``others``."""
    members = {name: {"t": 1} for name in ("g_m", *others)}
    return GroupView(True, brokers, members, {}, {"t": (0, 1)})


def only(kind: type[O], found: list[Order]) -> O:
    """The one order of this kind."""
    (order,) = [order for order in found if isinstance(order, kind)]
    return order


def settled() -> RebalanceMachine:
    """A member that delivers both partitions, from offset 10."""
    member = machine()
    register = only(orders.Register, member.on(facts.SessionOpened(1)))
    load = only(orders.LoadView, member.on(facts.Registered(register.token)))
    claim = only(orders.ClaimPartitions, member.on(facts.ViewLoaded(load.token, view())))
    claims = {tp: Claim(MINE, 1, 10) for tp in (T0, T1)}
    notify = only(orders.NotifyStarting, member.on(facts.Claimed(claim.token, claims)))
    start = only(orders.StartFetching, member.on(facts.ListenerDone(notify.token)))
    assert start.partitions == {T0: (MINE, 10), T1: (MINE, 10)}
    member.on(facts.FetchingStarted(start.token))
    assert member.state is State.RESTING
    return member


def look_again(member: RebalanceMachine, fact: Fact) -> orders.LoadView:
    """The group changed; the view that follows."""
    timer = only(orders.SetTimer, member.on(fact))
    return only(orders.LoadView, member.on(facts.TimerFired(timer.token, timer.name)))


def stopping() -> tuple[RebalanceMachine, orders.StopFetching]:
    """A settled member that has to give T0 to one that sorts before it."""
    member = settled()
    load = look_again(member, facts.Changed(PATHS.ids))
    stop = only(orders.StopFetching, member.on(facts.ViewLoaded(load.token, view("g_a"))))
    assert stop.partitions == {T0}
    return member, stop


def test_a_stop_of_a_lost_session_does_not_answer_the_next_one() -> None:
    """Fetchers of the new session still run when the old session's stop is answered."""
    member, old = stopping()
    member.on(facts.SessionLost())
    register = only(orders.Register, member.on(facts.SessionOpened(2)))
    assert register.epoch == 1
    load = only(orders.LoadView, member.on(facts.Registered(register.token)))
    claim = only(orders.ClaimPartitions, member.on(facts.ViewLoaded(load.token, view())))
    claims = {tp: Claim(MINE, 2, 10) for tp in (T0, T1)}
    notify = only(orders.NotifyStarting, member.on(facts.Claimed(claim.token, claims)))
    start = only(orders.StartFetching, member.on(facts.ListenerDone(notify.token)))
    member.on(facts.FetchingStarted(start.token))
    load = look_again(member, facts.Changed(PATHS.ids))
    new = only(orders.StopFetching, member.on(facts.ViewLoaded(load.token, view("g_a"))))
    assert member.on(facts.FetchingStopped(old.token, {T0: 11})) == []
    assert (member.state, member.stale_answers) == (State.STOPPING, 1)
    commit = only(orders.Commit, member.on(facts.FetchingStopped(new.token, {T0: 12})))
    assert commit.positions == {T0: 12}


def test_positions_survive_a_lost_session_while_nobody_else_commits() -> None:
    """A claim that finds the same stored offset goes on from where delivery stood."""
    for stored, start_at in ((10, 17), (13, 13)):
        member = settled()
        drop = only(orders.Drop, member.on(facts.SessionLost()))
        assert drop.partitions == {T0, T1}
        member.on(facts.Dropped({T0: 17, T1: 10}))
        register = only(orders.Register, member.on(facts.SessionOpened(2)))
        load = only(orders.LoadView, member.on(facts.Registered(register.token)))
        claim = only(orders.ClaimPartitions, member.on(facts.ViewLoaded(load.token, view())))
        claims = {T0: Claim(MINE, 2, stored), T1: Claim(MINE, 2, 10)}
        notify = only(orders.NotifyStarting, member.on(facts.Claimed(claim.token, claims)))
        start = only(orders.StartFetching, member.on(facts.ListenerDone(notify.token)))
        assert start.partitions == {T0: (MINE, start_at), T1: (MINE, 10)}


def test_a_shutdown_in_the_middle_of_a_stop_commits_what_is_being_stopped() -> None:
    """The positions under way belong into the last commit, so nothing is delivered twice."""
    member, stop = stopping()
    assert member.on(facts.CloseRequested()) == []
    rest = only(orders.StopFetching, member.on(facts.FetchingStopped(stop.token, {T0: 12})))
    assert rest.partitions == {T0, T1}
    commit = only(orders.Commit, member.on(facts.FetchingStopped(rest.token, {T1: 15})))
    assert commit.positions == {T0: 12, T1: 15}
    claims = {tp: Claim(MINE, 2, at) for tp, at in commit.positions.items()}
    release = only(orders.Release, member.on(facts.Committed(commit.token, claims)))
    assert set(release.claims) == {T0, T1}
    deregister = only(orders.Deregister, member.on(facts.Released(release.token)))
    close = only(orders.CloseSession, member.on(facts.Deregistered(deregister.token)))
    assert close.faults == ()


def test_a_refusal_is_tried_again_without_a_watch() -> None:
    """A member never stays registered with nothing because ZooKeeper refused once."""
    member, _ = stopping()
    found: list[Any] = []
    member.on(facts.SessionLost())
    register = only(orders.Register, member.on(facts.SessionOpened(2)))
    load = only(orders.LoadView, member.on(facts.Registered(register.token)))
    for _ in range(20):
        found = member.on(facts.ScriptFailed(load.token, Code.NO_AUTH, "/x"))
        timer = only(orders.SetTimer, found)
        assert timer.name == "backoff"
        load = only(orders.LoadView, member.on(facts.TimerFired(timer.token, timer.name)))


def test_brokers_read_before_a_change_do_not_replace_newer_ones() -> None:
    """A broker registers while the group is read: the list is read once more."""
    member = settled()
    load = look_again(member, facts.Changed(PATHS.ids))
    fresh = only(orders.LoadBrokers, member.on(facts.Changed(BROKER_IDS)))
    told = only(orders.SetBrokers, member.on(facts.BrokersLoaded(fresh.token, (B0, B1))))
    assert told.brokers == (B0, B1)
    found = member.on(facts.ViewLoaded(load.token, view(brokers=(B0,))))
    assert not [order for order in found if isinstance(order, orders.SetBrokers)]
    again = only(orders.LoadBrokers, found)
    assert member.on(facts.BrokersLoaded(again.token, (B0, B1))) == []


def test_a_taken_name_is_reported_after_the_patience_for_an_own_old_session() -> None:
    """1.5 session timeouts and a second, as the old session may still live; then it goes on."""
    member = machine()
    register = only(orders.Register, member.on(facts.SessionOpened(1)))
    told: list[orders.AnswerStart] = []
    count = 0
    while not told:
        count += 1
        found = member.on(facts.RegistrationRefused(register.token, 77))
        told = [order for order in found if isinstance(order, orders.AnswerStart)]
        timer = only(orders.SetTimer, found)
        register = only(orders.Register, member.on(facts.TimerFired(timer.token, timer.name)))
    assert told[0].outcome is Outcome.DUPLICATE_ID
    assert "0x4d" in told[0].detail
    assert count * 0.5 > 1.5 * 6.0 + 1 >= (count - 1) * 0.5


def test_scala_keeps_a_trigger_of_an_attempt_that_failed() -> None:
    """The JVM's watcher flag is taken when a rebalance begins; what comes later starts another."""
    member = machine(scala=True)
    register = only(orders.Register, member.on(facts.SessionOpened(1)))
    load = only(orders.LoadView, member.on(facts.Registered(register.token)))
    member.on(facts.Changed(PATHS.ids))
    found: list[Order] = []
    for attempt in range(1, 5):
        found = member.on(facts.ScriptFailed(load.token, Code.NO_NODE, "/x"))
        if attempt < 4:
            timer = only(orders.SetTimer, found)
            assert timer.name == "backoff"
            load = only(orders.LoadView, member.on(facts.TimerFired(timer.token, timer.name)))
    assert member.state is State.FAILED
    assert only(orders.AnswerStart, found).outcome is Outcome.REBALANCE_FAILED
    assert only(orders.SetTimer, found).name == "coalesce"
