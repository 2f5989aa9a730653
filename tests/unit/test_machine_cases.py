"""Single decisions of the machine that random runs reach too rarely."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import pytest

from zkconsumer.core.common.commands import (
    AnswerCommit,
    AnswerStart,
    Close,
    Drop,
    NotifyReleasing,
    NotifyStarting,
    Outcome,
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
from zkconsumer.core.common.types import (
    BrokerEndpoint,
    ConsumerThreadId,
    Pattern,
    Subscription,
    TopicPartition,
)
from zkconsumer.core.zookeeper import commands, events
from zkconsumer.core.zookeeper.commands import Command
from zkconsumer.core.zookeeper.events import Claim, Event
from zkconsumer.core.zookeeper.known import Known
from zkconsumer.core.zookeeper.machine import RebalanceMachine
from zkconsumer.core.zookeeper.ops import Code, Listing, Node
from zkconsumer.core.zookeeper.states import State
from zkconsumer.core.zookeeper.view import GroupView, MemberSpec
from zkconsumer.core.zookeeper.znodes import BROKER_IDS, GroupPaths

PATHS = GroupPaths("g")
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
MINE = ConsumerThreadId("g_m", 0)
B0, B1 = BrokerEndpoint(0, "b0", 9092), BrokerEndpoint(1, "b1", 9092)
O = TypeVar("O")  # noqa: E741


def machine(scala: bool = False, **spec: Any) -> RebalanceMachine:
    """A member that subscribes to ``t`` with one stream."""
    subscription = Subscription(Pattern.STATIC, {"t": 1})
    return RebalanceMachine(MemberSpec(PATHS, "g_m", subscription, scala=scala, **spec))


def view(*others: str, brokers: tuple[BrokerEndpoint, ...] = (B0,)) -> GroupView:
    """Two partitions, this member and ``others``."""
    members = {name: {"t": 1} for name in ("g_m", *others)}
    return GroupView(True, brokers, members, {}, {"t": (0, 1)})


def only(kind: type[O], found: list[Command]) -> O:
    """Return the only command of this kind."""
    (order,) = [order for order in found if isinstance(order, kind)]
    return order


def loading(member: RebalanceMachine, session: int = 1) -> commands.LoadView:
    """The member has a session and registers. Return the view that follows."""
    found = member.on(events.SessionOpened(session))
    register = only(commands.Register, found)
    assert register.epoch == member.profile.epoch(session)
    return only(commands.LoadView, [*found, *member.on(events.Registered(register.token))])


def claiming(member: RebalanceMachine) -> commands.ClaimPartitions:
    """It is alone in its group. Return its first claim."""
    load = loading(member)
    return only(commands.ClaimPartitions, member.on(events.ViewLoaded(load.token, view())))


def fetching(member: RebalanceMachine, claimed: events.Claimed) -> StartFetching:
    """Its claim is answered, and its listener is called. Return what it begins to fetch."""
    notify = only(NotifyStarting, member.on(claimed))
    return only(StartFetching, member.on(ListenerDone(notify.token)))


def settled() -> RebalanceMachine:
    """A member that delivers both partitions, from offset 10."""
    member = machine()
    claim = claiming(member)
    claims = {tp: Claim(MINE, 1, 10) for tp in (T0, T1)}
    start = fetching(member, events.Claimed(claim.token, claims))
    assert start.partitions == {T0: (MINE, 10), T1: (MINE, 10)}
    member.on(FetchingStarted(start.token))
    assert member.state is State.RESTING
    return member


def begin_again(member: RebalanceMachine, claims: dict[TopicPartition, Claim]) -> StartFetching:
    """A member that lost its session opens another one, and makes these claims."""
    load = loading(member, 2)
    claim = only(commands.ClaimPartitions, member.on(events.ViewLoaded(load.token, view())))
    notify = only(NotifyStarting, member.on(events.Claimed(claim.token, claims)))
    return only(StartFetching, member.on(ListenerDone(notify.token)))


def look_again(member: RebalanceMachine, fact: Event) -> commands.LoadView:
    """The group changes. Return the view that follows."""
    member.on(fact)
    return only(commands.LoadView, member.on(TimerFired(member._timers["coalesce"], "coalesce")))


def joined(member: RebalanceMachine) -> StopFetching:
    """A member that sorts before it joins. Return what it stops."""
    load = look_again(member, events.Changed(PATHS.ids))
    return only(StopFetching, member.on(events.ViewLoaded(load.token, view("g_a"))))


def test_a_rebalance_names_the_change_that_triggered_it() -> None:
    """The first watch event counts, also for a second attempt. A later change is the trigger of the
    next rebalance, and a rebalance without a watch event has none."""
    member = settled()
    member.on(events.Changed(PATHS.ids, 7))
    load = look_again(member, events.Changed(PATHS.ids, 8))
    member.on(events.Changed(PATHS.ids, 9))
    failed = member.on(events.ScriptFailed(load.token, Code.CONNECTION_LOSS))
    backoff = only(SetTimer, failed)
    again = only(commands.LoadView, member.on(TimerFired(backoff.token, backoff.name)))
    assert [load.zxid, again.zxid] == [7, 7]
    member.on(events.Changed(PATHS.ids, 10))
    timer = only(SetTimer, member.on(events.ViewLoaded(again.token, view())))
    load = only(commands.LoadView, member.on(TimerFired(timer.token, timer.name)))
    assert load.zxid == 10
    member.on(events.ViewLoaded(load.token, view()))
    assert look_again(member, events.SessionResumed()).zxid is None


@pytest.mark.parametrize("found_by", ["view", "release", "claim"])
def test_a_rebalance_keeps_its_trigger_while_the_member_registers_again(found_by: str) -> None:
    """A rebalance finds that the registration is gone. It continues when there is a new one, after
    a moment if the group changes meanwhile."""
    member = settled()
    load = look_again(member, events.Changed(PATHS.ids, 7))
    if found_by == "view":
        found = member.on(events.ViewLoaded(load.token, replace(view(), registered=False)))
    elif found_by == "release":
        stop = only(StopFetching, member.on(events.ViewLoaded(load.token, view("g_a"))))
        commit = only(commands.Commit, member.on(FetchingStopped(stop.token, {T0: 12})))
        stored = events.Committed(commit.token, {T0: Claim(MINE, 2, 12)})
        notify = only(NotifyReleasing, member.on(stored))
        release = only(commands.Release, member.on(ListenerDone(notify.token)))
        found = member.on(events.Released(release.token, unregistered=True))
    else:
        member.held.pop(T0)
        claim = only(commands.ClaimPartitions, member.on(events.ViewLoaded(load.token, view())))
        found = member.on(events.Claimed(claim.token, {}, {}, unregistered=True))
    early = only(commands.LoadView, found)
    assert early.zxid == 7
    member.on(events.Changed(PATHS.ids, 8))
    member.on(events.Registered(only(commands.Register, found).token))
    assert look_again(member, events.ViewLoaded(early.token, view())).zxid == 7


def stopping() -> tuple[RebalanceMachine, StopFetching]:
    """A settled member that has to give T0 to a member that sorts before it."""
    member = settled()
    stop = joined(member)
    assert stop.partitions == {T0}
    return member, stop


def test_a_stop_of_a_lost_session_does_not_answer_the_next_one() -> None:
    """Fetchers of the new session still run when the stop of the old session is answered."""
    member, old = stopping()
    member.on(events.SessionLost())
    start = begin_again(member, {tp: Claim(MINE, 2, 10) for tp in (T0, T1)})
    member.on(FetchingStarted(start.token))
    new = joined(member)
    assert member.on(FetchingStopped(old.token, {T0: 11})) == []
    assert (member.state, member.stale_answers) == (State.STOPPING, 1)
    commit = only(commands.Commit, member.on(FetchingStopped(new.token, {T0: 12})))
    assert commit.positions == {T0: 12}


def test_a_resumed_session_reads_the_group_again() -> None:
    """This happens soon, not at the next regular reading, because no watch fired for changes
    meanwhile."""
    member = settled()
    load = look_again(member, events.SessionResumed())
    check = only(commands.CheckOwners, member.on(events.ViewLoaded(load.token, view("g_a"))))
    found = member.on(events.OwnersChecked(check.token, frozenset()))
    assert only(StopFetching, found).partitions == {T0}


def test_a_resumed_session_trusts_no_version() -> None:
    """The servers may have been restored from a backup. The next commit checks each claim, even of
    an offset that is stored already, and reports a version that went back."""
    member = settled()
    member.on(events.SessionResumed())
    commit = commit_under_way(member, T0, 10)
    assert commit.claims == {T0: Claim(MINE, 1, 10, unchecked=True)}
    found = member.on(events.Committed(commit.token, {T0: Claim(MINE, 0, 10)}))
    assert only(Report, found).event == "went-back"
    assert member.held[T0] == Claim(MINE, 0, 10)


def test_an_answer_from_before_a_session_was_resumed_is_not_trusted() -> None:
    """The commit was carried out before the connection broke. What the servers have now is not
    known."""
    member = settled()
    commit = commit_under_way(member, T0, 12)
    member.on(events.SessionResumed())
    member.on(events.Committed(commit.token, {T0: Claim(MINE, 2, 12)}))
    assert member.held[T0] == Claim(MINE, 2, 12, unchecked=True)


def test_a_claim_whose_version_has_not_grown_is_reported() -> None:
    """A claim adds one to the version. So the servers have less than this member has seen."""
    member = settled()
    member.on(events.SessionLost())
    load = loading(member, 2)
    claim = only(commands.ClaimPartitions, member.on(events.ViewLoaded(load.token, view())))
    claims = {T0: Claim(MINE, 1, 5), T1: Claim(MINE, 2, 10)}
    report = only(Report, member.on(events.Claimed(claim.token, claims)))
    assert report.event == "went-back"
    assert PATHS.offset(T0) in report.text


def released() -> RebalanceMachine:
    """A member that has given T0 to another one. Its session is resumed."""
    member, stop = stopping()
    commit = only(commands.Commit, member.on(FetchingStopped(stop.token, {T0: 12})))
    notify = only(
        NotifyReleasing, member.on(events.Committed(commit.token, {T0: Claim(MINE, 2, 12)}))
    )
    release = only(commands.Release, member.on(ListenerDone(notify.token)))
    member.on(events.Released(release.token))
    member.on(events.SessionResumed())
    return member


def checking(member: RebalanceMachine) -> commands.CheckOwners:
    """Its timer ends, and it reads the group. Return the look at owner znodes that follows."""
    (name,) = member._timers.keys() & {"coalesce", "backoff"}
    load = only(commands.LoadView, member.on(TimerFired(member._timers[name], name)))
    check = member.on(events.ViewLoaded(load.token, view("g_a")))
    return only(commands.CheckOwners, check)


@pytest.mark.parametrize("again", [True, False])
def test_a_resumed_session_looks_for_owner_znodes_that_it_has_released(again: bool) -> None:
    """A restored server has the owner znode again, and its session lives: nobody else would ever
    get the partition. If it has not, no offset is read and nothing is released."""
    member = released()
    check = checking(member)
    assert check.partitions == member.owned == {T0, T1}
    found = member.on(events.OwnersChecked(check.token, frozenset() if again else {T0}))
    claims = [one.claims for one in found if isinstance(one, commands.Release)]
    assert claims == ([{T0: Claim(MINE, None, None)}] if again else [])
    assert member.owned == ({T0, T1} if again else {T1})


@pytest.mark.parametrize("event", ["failed", "resumed"])
def test_a_look_for_owner_znodes_that_says_nothing_is_repeated(event: str) -> None:
    """The look fails, or the connection was lost again meanwhile."""
    member = released()
    check = checking(member)
    if event == "failed":
        member.on(events.ScriptFailed(check.token, Code.CONNECTION_LOSS))
        del member._timers["coalesce"]
    else:
        member.on(events.SessionResumed())
        member.on(events.OwnersChecked(check.token, frozenset({T0})))
    assert checking(member).partitions == {T0, T1}


def test_positions_survive_a_lost_session_while_nobody_else_commits() -> None:
    """A claim that finds the same stored offset continues at the delivered position."""
    for stored, start_at in ((10, 17), (13, 13)):
        member = settled()
        drop = only(Drop, member.on(events.SessionLost()))
        assert drop.partitions == {T0, T1}
        member.on(Dropped({T0: 17, T1: 10}))
        start = begin_again(member, {T0: Claim(MINE, 2, stored), T1: Claim(MINE, 2, 10)})
        assert start.partitions == {T0: (MINE, start_at), T1: (MINE, 10)}


@pytest.mark.parametrize(("stored", "start_at"), [(10, 17), (14, 17), (15, 15)])
def test_a_commit_under_way_when_the_session_is_lost_is_not_somebody_else_s(
    stored: int, start_at: int
) -> None:
    """It may have been carried out or not. Either way, no other member has committed."""
    member = settled()
    commit = only(commands.Commit, member.on(CommitRequested(None, {T0: 14, T1: 10})))
    assert commit.positions == {T0: 14}
    member.on(events.SessionLost())
    member.on(Dropped({T0: 17, T1: 10}))
    start = begin_again(member, {T0: Claim(MINE, 2, stored), T1: Claim(MINE, 2, 10)})
    assert start.partitions == {T0: (MINE, start_at), T1: (MINE, 10)}


@pytest.mark.parametrize(("stored", "reached"), [(10, 520), (10, 4)])
def test_a_position_chosen_by_reset_survives_a_lost_session(stored: int, reached: int) -> None:
    """It continues at that position, and may still store less than the invalidated offset."""
    member = settled()
    member.on(events.OffsetReset(T0, stored))
    member.on(events.SessionLost())
    member.on(Dropped({T0: reached, T1: 12}))
    start = begin_again(member, {tp: Claim(MINE, 2, stored) for tp in (T0, T1)})
    assert start.partitions == {T0: (MINE, reached), T1: (MINE, 12)}
    member.on(FetchingStarted(start.token))
    commit = only(commands.Commit, member.on(CommitRequested(None, {T0: reached + 1})))
    assert commit.claims[T0].invalidated


def test_a_reset_replaces_only_what_it_found_out_of_range() -> None:
    """If no offset was stored, a reset may be reported after a first commit, which then counts."""
    for old, refused in ((None, ("below the committed offset 10",)), (10, ())):
        member = settled()
        member.on(events.OffsetReset(T0, old))
        found = member.on(CommitRequested(1, {T0: 3}, strict=True))
        if refused:
            (answer,) = found
            assert isinstance(answer, AnswerCommit)
            assert refused[0] in answer.faults[0]
        else:
            assert only(commands.Commit, found).positions == {T0: 3}


def test_positions_from_before_a_reset_are_not_stored_after_it() -> None:
    """A waiting commit leaves out positions from before the reset, unless a caller named the
    offset. A commit that is under way leaves the offset invalidated."""
    member = settled()
    first = only(commands.Commit, member.on(CommitRequested(1, {T0: 11, T1: 11})))
    assert member.on(CommitRequested(2, {T0: 12, T1: 12})) == []
    assert member.on(CommitRequested(3, {T0: 6}, strict=True)) == []
    member.on(events.OffsetReset(T0, 12))
    claims = {tp: Claim(MINE, 2, 11) for tp in (T0, T1)}
    second = only(commands.Commit, member.on(events.Committed(first.token, claims)))
    assert second.positions == {T1: 12}
    third = only(
        commands.Commit, member.on(events.Committed(second.token, {T1: Claim(MINE, 3, 12)}))
    )
    assert third.positions == {T0: 6}
    assert third.claims[T0] == Claim(MINE, 2, 11, invalidated=True)


@pytest.mark.parametrize("moment", ["under way", "refused", "resumed"])
def test_what_was_stored_before_a_reset_says_nothing_about_lower_positions(moment: str) -> None:
    """The stored offset becomes known again after the reset: by the answer to a commit that was
    under way, by one that Kafka refused, or at a claim after a lost session. A later commit that is
    lost with the session is not answered as stored."""
    member = settled()
    if moment == "under way":
        first = only(commands.Commit, member.on(CommitRequested(1, {T0: 11})))
        member.on(events.OffsetReset(T0, 11))
        member.on(events.Committed(first.token, {T0: Claim(MINE, 2, 11)}))
    elif moment == "refused":
        member.on(events.OffsetReset(T0, 10))
        first = only(commands.Commit, member.on(CommitRequested(1, {T0: 3})))
        refused = Claim(MINE, 1, 10, invalidated=True)
        member.on(events.Committed(first.token, {T0: refused}, broken={T0: "t-0: refused"}))
    else:
        member.on(events.OffsetReset(T0, 10))
        drop = member.on(events.SessionLost())
        assert drop
        member.on(Dropped({T0: 5, T1: 10}))
        start = begin_again(member, {tp: Claim(MINE, 1, 10) for tp in (T0, T1)})
        member.on(FetchingStarted(start.token))
    lost = member.on(CommitRequested(9, {T0: 7}))
    lost += member.on(events.SessionLost())
    assert only(AnswerCommit, lost) == AnswerCommit(9, ("the ZooKeeper session was lost",))


def test_owner_znodes_of_a_claim_that_failed_are_released_when_another_is_to_have_them() -> None:
    """A claim may fail after it created owner znodes, for example because Kafka returns no
    offsets."""
    member = machine()
    claim = claiming(member)
    timer = only(SetTimer, member.on(events.ScriptFailed(claim.token, Code.OTHER, "", "away")))
    load = only(commands.LoadView, member.on(TimerFired(timer.token, timer.name)))
    release = only(commands.Release, member.on(events.ViewLoaded(load.token, view("g_a"))))
    assert set(release.claims) == {T0}
    claim = only(commands.ClaimPartitions, member.on(events.Released(release.token)))
    assert set(claim.wanted) == {T1}
    start = fetching(member, events.Claimed(claim.token, {T1: Claim(MINE, 1, 10)}))
    member.on(FetchingStarted(start.token))
    load = look_again(member, events.Changed(PATHS.ids))
    found = member.on(events.ViewLoaded(load.token, view("g_a")))
    assert not [order for order in found if isinstance(order, commands.Release)], "released once"


def test_a_shutdown_releases_what_a_failed_claim_may_have_left() -> None:
    """Whatever the outcome of a claim without an answer."""
    member = machine()
    load = loading(member)
    member.on(events.ViewLoaded(load.token, view()))
    stop = only(StopFetching, member.on(CloseRequested()))
    release = only(commands.Release, member.on(FetchingStopped(stop.token, {})))
    assert set(release.claims) == {T0, T1}


def test_a_position_whose_commit_failed_is_committed_before_the_next_release() -> None:
    """The second stop does not report a partition that the first one stopped."""
    member, stop = stopping()
    commit = only(commands.Commit, member.on(FetchingStopped(stop.token, {T0: 40})))
    timer = only(SetTimer, member.on(events.ScriptFailed(commit.token, Code.OTHER, "", "away")))
    load = only(commands.LoadView, member.on(TimerFired(timer.token, timer.name)))
    stop = only(StopFetching, member.on(events.ViewLoaded(load.token, view("g_a"))))
    commit = only(commands.Commit, member.on(FetchingStopped(stop.token, {})))
    assert commit.positions == {T0: 40}


def test_an_older_position_is_not_committed_after_a_release_of_unknown_outcome() -> None:
    """The commit before a release may be stored although its answer is lost. An older commit must
    not be sent after it. Without a fence, it would lower the offset."""
    member = settled()
    first = only(commands.Commit, member.on(CommitRequested(1, {T0: 39})))
    member.on(CommitRequested(None, {T0: 39}))
    stop = joined(member)
    member.on(FetchingStopped(stop.token, {T0: 40}))
    away = events.ScriptFailed(first.token, Code.OTHER, "", "no answer")
    release = only(commands.Commit, member.on(away))
    assert release.positions == {T0: 40}
    later = member.on(replace(away, token=release.token))
    assert not [one for one in later if isinstance(one, commands.Commit)]


def test_scala_shuts_down_in_the_middle_of_a_stop_with_a_last_commit() -> None:
    """The JVM's ``shutdown`` does the same with automatic commits."""
    member = machine(scala=True)
    load = loading(member)
    claims = {tp: Claim(MINE, None, 10) for tp in (T0, T1)}
    member.held.update(claims)
    member.fetching.update(claims)
    stop = only(StopFetching, member.on(events.ViewLoaded(load.token, view())))
    member.on(CloseRequested())
    rest = only(StopFetching, member.on(FetchingStopped(stop.token, {T0: 40, T1: 50})))
    commit = only(commands.Commit, member.on(FetchingStopped(rest.token, {})))
    assert commit.positions == {T0: 40, T1: 50}


def test_a_shutdown_in_the_middle_of_a_stop_commits_what_is_being_stopped() -> None:
    """The positions under way are part of the last commit, so nothing is delivered twice."""
    member, stop = stopping()
    assert member.on(CloseRequested()) == []
    rest = only(StopFetching, member.on(FetchingStopped(stop.token, {T0: 12})))
    assert rest.partitions == {T0, T1}
    commit = only(commands.Commit, member.on(FetchingStopped(rest.token, {T1: 15})))
    assert commit.positions == {T0: 12, T1: 15}
    claims = {tp: Claim(MINE, 2, at) for tp, at in commit.positions.items()}
    release = only(commands.Release, member.on(events.Committed(commit.token, claims)))
    assert set(release.claims) == {T0, T1}
    deregister = only(commands.Deregister, member.on(events.Released(release.token)))
    close = only(Close, member.on(events.Deregistered(deregister.token)))
    assert close.faults == ()


def committing() -> tuple[RebalanceMachine, commands.Commit]:
    """A member that has stopped T0, and commits its position before it releases it."""
    member, stop = stopping()
    return member, only(commands.Commit, member.on(FetchingStopped(stop.token, {T0: 12})))


def test_a_shutdown_waits_for_the_commit_before_a_release() -> None:
    """Offsets in Kafka are not fenced. So no commit may still be tried when another member owns
    the partition."""
    member, commit = committing()
    assert member.on(CloseRequested()) == []
    stored = events.Committed(commit.token, {T0: Claim(MINE, 2, 12)})
    stop = only(StopFetching, member.on(stored))
    last = only(commands.Commit, member.on(FetchingStopped(stop.token, {T1: 15})))
    assert last.positions == {T1: 15}
    release = only(
        commands.Release, member.on(events.Committed(last.token, {T1: Claim(MINE, 2, 15)}))
    )
    assert set(release.claims) == {T0, T1}


def test_a_shutdown_tries_a_failed_commit_again() -> None:
    """The commit before a release fails while the member leaves: its position is in the last one,
    and a failure of that is reported."""
    member, commit = committing()
    member.on(CloseRequested())
    refused = events.ScriptFailed(commit.token, Code.OTHER, "", "no coordinator")
    stop = only(StopFetching, member.on(refused))
    last = only(commands.Commit, member.on(FetchingStopped(stop.token, {T1: 15})))
    assert last.positions == {T0: 12, T1: 15}
    again = events.ScriptFailed(last.token, Code.OTHER, "", "no coordinator")
    close = only(Close, member.on(again))
    assert "no coordinator" in close.faults[0]


def test_a_lagging_offset_is_stored_although_it_does_not_change() -> None:
    """The offset in Kafka was higher at the claim, and the group has moved back to ZooKeeper since:
    a plain consumer must not find the lower one there."""
    member = settled()
    member.held[T0] = replace(member.held[T0], lags=True)
    commit = only(commands.Commit, member.on(CommitRequested(1, {T0: 10, T1: 10})))
    assert commit.positions == {T0: 10}


@pytest.mark.parametrize("lags", [False, True])
def test_a_lagging_offset_does_not_count_as_stored(lags: bool) -> None:
    """Without automatic commits it is not stored before a release. ZooKeeper keeps the lower one,
    where the next owner begins, so the caller does not get the answer that it is stored."""
    member = machine(auto_commit=False)
    claim = claiming(member)
    claims = {T0: Claim(MINE, 1, 10, lags=lags), T1: Claim(MINE, 1, 10)}
    start = fetching(member, events.Claimed(claim.token, claims))
    member.on(FetchingStarted(start.token))
    stop = joined(member)
    notify = only(NotifyReleasing, member.on(FetchingStopped(stop.token, {T0: 10})))
    release = only(commands.Release, member.on(ListenerDone(notify.token)))
    assert member.on(CommitRequested(1, {T0: 10})) == []
    answer = only(AnswerCommit, member.on(events.Released(release.token)))
    assert answer.faults == (("t-0: not owned by this member",) if lags else ())


@pytest.mark.parametrize("scala", [False, True])
def test_without_a_backoff_there_is_still_a_pause(scala: bool) -> None:
    """``rebalance.backoff.ms=0``: a member that tries indefinitely would never rest. The JVM ends
    after a few attempts."""
    member = machine(scala, backoff=0)
    load = loading(member)
    timer = only(SetTimer, member.on(events.ScriptFailed(load.token, Code.OTHER, "/x")))
    assert (timer.name, timer.seconds > 0) == ("backoff", not scala)
    if not scala:
        load = only(commands.LoadView, member.on(TimerFired(timer.token, timer.name)))
        claim = only(commands.ClaimPartitions, member.on(events.ViewLoaded(load.token, view())))
        blocked = events.Claimed(claim.token, {}, dict.fromkeys((T0, T1), "g_other-0"))
        watch = only(commands.WatchBlockers, member.on(blocked))
        found = member.on(events.BlockersWatched(watch.token, False))
        assert [one.seconds > 0 for one in found if isinstance(one, SetTimer)] == [True]


def test_a_member_that_never_registered_does_not_deregister() -> None:
    """Another live member has registered its id. Leaving does not change that registration."""
    member = machine()
    register = only(commands.Register, member.on(events.SessionOpened(1)))
    member.on(events.RegistrationRefused(register.token, 99))
    stop = only(StopFetching, member.on(CloseRequested()))
    release = only(commands.Release, member.on(FetchingStopped(stop.token, {})))
    assert release.claims == {}
    assert member.on(events.Released(release.token)) == [Close(())]
    assert member.state is State.CLOSED


def test_a_refusal_is_tried_again_without_a_watch() -> None:
    """A member never stays registered without partitions because ZooKeeper refused once."""
    member, _ = stopping()
    found: list[Any] = []
    member.on(events.SessionLost())
    load = loading(member, 2)
    for _ in range(20):
        found = member.on(events.ScriptFailed(load.token, Code.NO_AUTH, "/x"))
        timer = only(SetTimer, found)
        assert timer.name == "backoff"
        load = only(commands.LoadView, member.on(TimerFired(timer.token, timer.name)))


def test_brokers_read_before_a_change_do_not_replace_newer_ones() -> None:
    """A broker registers while the group is read, so the list is read again."""
    member = settled()
    load = look_again(member, events.Changed(PATHS.ids))
    fresh = only(commands.LoadBrokers, member.on(events.Changed(BROKER_IDS)))
    told = only(SetBrokers, member.on(events.BrokersLoaded(fresh.token, (B0, B1))))
    assert told.brokers == (B0, B1)
    found = member.on(events.ViewLoaded(load.token, view(brokers=(B0,))))
    assert not [order for order in found if isinstance(order, SetBrokers)]
    again = only(commands.LoadBrokers, found)
    assert member.on(events.BrokersLoaded(again.token, (B0, B1))) == []


def test_brokers_that_are_back_before_they_were_missed_pull_a_trigger() -> None:
    """A new session reads the group while no broker is registered. The same brokers are back when
    the list is read again. Then the group is read again and claimed."""
    member = settled()
    member.on(events.SessionLost())
    load = loading(member, 2)
    member.on(events.Changed(BROKER_IDS))
    again = only(commands.LoadBrokers, member.on(events.ViewLoaded(load.token, view(brokers=()))))
    assert member.state is State.RESTING
    look_again(member, events.BrokersLoaded(again.token, (B0,)))


def test_a_taken_name_is_reported_after_the_patience_for_an_own_old_session() -> None:
    """1.5 session timeouts and a second, because the old session may still live. Then it
    continues."""
    member = machine()
    register = only(commands.Register, member.on(events.SessionOpened(1)))
    told: list[AnswerStart] = []
    count = 0
    while not told:
        count += 1
        found = member.on(events.RegistrationRefused(register.token, 77))
        told = [order for order in found if isinstance(order, AnswerStart)]
        timer = only(SetTimer, found)
        register = only(commands.Register, member.on(TimerFired(timer.token, timer.name)))
    assert told[0].outcome is Outcome.DUPLICATE_ID
    assert "0x4d" in told[0].detail
    assert count * 0.5 > 1.5 * 6.0 + 1 >= (count - 1) * 0.5


def test_scala_keeps_a_trigger_of_an_attempt_that_failed() -> None:
    """The JVM resets its watcher flag when a rebalance begins. Later events start another one."""
    member = machine(scala=True)
    load = loading(member)
    member.on(events.Changed(PATHS.ids))
    found: list[Command] = []
    for attempt in range(1, 5):
        found = member.on(events.ScriptFailed(load.token, Code.NO_NODE, "/x"))
        if attempt < 4:
            timer = only(SetTimer, found)
            assert timer.name == "backoff"
            load = only(commands.LoadView, member.on(TimerFired(timer.token, timer.name)))
    assert member.state is State.FAILED
    assert only(AnswerStart, found).outcome is Outcome.REBALANCE_FAILED
    assert only(SetTimer, found).name == "coalesce"


def blocked() -> tuple[RebalanceMachine, NotifyStarting]:
    """A member that has claimed T0 while another one still owns T1."""
    member = machine()
    claim = claiming(member)
    claimed = events.Claimed(claim.token, {T0: Claim(MINE, 1, 10)}, {T1: "g_a-0"})
    return member, only(NotifyStarting, member.on(claimed))


def watching(member: RebalanceMachine, notify: NotifyStarting) -> commands.WatchBlockers:
    """It delivers T0, and watches the owner of T1."""
    start = only(StartFetching, member.on(ListenerDone(notify.token)))
    watch = only(commands.WatchBlockers, member.on(FetchingStarted(start.token)))
    assert watch.partitions == {T1}
    return watch


def test_an_owner_znode_that_goes_during_an_attempt_is_claimed_at_once() -> None:
    """Its watch fires while the listener is called, and no second event follows."""
    member, notify = blocked()
    assert member.on(events.Changed(PATHS.owner(T1))) == []
    watch = watching(member, notify)
    found = member.on(events.BlockersWatched(watch.token, gone=False))
    assert only(commands.ClaimPartitions, found).wanted == {T1: MINE}


def test_an_owner_that_has_gone_before_it_was_watched_is_claimed_at_once() -> None:
    """The watch was set too late, so it does not fire."""
    member, notify = blocked()
    watch = watching(member, notify)
    found = member.on(events.BlockersWatched(watch.token, gone=True))
    assert only(commands.ClaimPartitions, found).wanted == {T1: MINE}


def test_a_blocked_partition_is_claimed_again_without_an_event() -> None:
    """The event may have been lost, so the claim is repeated after the backoff."""
    member, notify = blocked()
    watch = watching(member, notify)
    timer = only(SetTimer, member.on(events.BlockersWatched(watch.token, gone=False)))
    assert (timer.name, timer.seconds) == ("blocked", member.spec.backoff)
    found = member.on(TimerFired(timer.token, timer.name))
    assert only(commands.ClaimPartitions, found).wanted == {T1: MINE}


def test_brokers_of_an_earlier_question_do_not_replace_newer_ones() -> None:
    """After two changes and two reads, only the second answer counts."""
    member = settled()
    first = only(commands.LoadBrokers, member.on(events.Changed(BROKER_IDS)))
    second = only(commands.LoadBrokers, member.on(events.Changed(BROKER_IDS)))
    assert member.on(events.BrokersLoaded(first.token, (B1,))) == []
    told = only(SetBrokers, member.on(events.BrokersLoaded(second.token, (B0, B1))))
    assert told.brokers == (B0, B1)


def test_everything_is_read_again_periodically() -> None:
    """The timer is set again each time, and everything known only from watches is read again. An
    earlier timer no longer counts."""
    member = settled()
    node = Node(b"", None)  # type: ignore[arg-type]
    known = Known({"0": node}, Listing((), 1, 1), {}, {"t": node})
    for _ in range(3):
        load = look_again(member, events.Changed(PATHS.ids))
        member.on(events.ViewLoaded(load.token, view(), known))
        member.on(TimerFired(member._timers["coalesce"], "coalesce"))
        fired = TimerFired(member._timers["reread"], "reread")
        timers = [one for one in member.on(fired) if isinstance(one, SetTimer)]
        assert [one.name for one in timers] == ["reread", "coalesce"]
        assert member.on(fired) == []
        load = only(commands.LoadView, member.on(TimerFired(timers[1].token, "coalesce")))
        assert (load.known.brokers, load.known.topics) == (None, {})
        check = only(commands.CheckOwners, member.on(events.ViewLoaded(load.token, view(), known)))
        member.on(events.OwnersChecked(check.token, frozenset()))


def commit_under_way(member: RebalanceMachine, tp: TopicPartition, at: int) -> commands.Commit:
    """A user asks for a commit, and it is sent."""
    return only(commands.Commit, member.on(CommitRequested(1, {tp: at})))


def test_the_last_commit_waits_for_the_one_under_way() -> None:
    """It needs the version that the current commit creates."""
    member = settled()
    first = commit_under_way(member, T0, 15)
    stop = only(StopFetching, member.on(CloseRequested()))
    assert member.on(FetchingStopped(stop.token, {T0: 16, T1: 10})) == []
    found = member.on(events.Committed(first.token, {T0: Claim(MINE, 2, 15)}))
    last = only(commands.Commit, found)
    assert (last.positions, last.claims[T0]) == ({T0: 16, T1: 10}, Claim(MINE, 2, 15))


def test_a_release_waits_for_the_commit_under_way() -> None:
    """The listener asked for it, and it needs the owner znode."""
    member, stop = stopping()
    commit = only(commands.Commit, member.on(FetchingStopped(stop.token, {T0: 12})))
    found = member.on(events.Committed(commit.token, {T0: Claim(MINE, 2, 12)}))
    notify = only(NotifyReleasing, found)
    asked = commit_under_way(member, T1, 15)
    assert member.on(ListenerDone(notify.token)) == []
    found = member.on(events.Committed(asked.token, {T1: Claim(MINE, 2, 15)}))
    assert set(only(commands.Release, found).claims) == {T0}


def test_a_partition_that_moves_to_another_stream_is_released() -> None:
    """Its owner znode names the stream, and the other stream's thread delivers it."""
    spec = MemberSpec(PATHS, "g_m", Subscription(Pattern.STATIC, {"t": 2}))
    member = RebalanceMachine(spec)
    alone = GroupView(True, (B0,), {"g_m": {"t": 2}}, {}, {"t": (0, 1)})
    joined = replace(alone, members={"g_a": {"t": 1}, "g_m": {"t": 2}})
    load = loading(member)
    claim = only(commands.ClaimPartitions, member.on(events.ViewLoaded(load.token, alone)))
    assert claim.wanted == {T0: MINE, T1: ConsumerThreadId("g_m", 1)}
    claims = {tp: Claim(thread, 1, 10) for tp, thread in claim.wanted.items()}
    start = fetching(member, events.Claimed(claim.token, claims))
    member.on(FetchingStarted(start.token))
    load = look_again(member, events.Changed(PATHS.ids))
    stop = only(StopFetching, member.on(events.ViewLoaded(load.token, joined)))
    assert stop.partitions == {T0, T1}


def test_a_partition_whose_owner_znode_is_gone_is_dropped_and_claimed_again() -> None:
    """Another member may have claimed it meanwhile, so it is no longer delivered."""
    member = settled()
    load = look_again(member, events.SessionResumed())
    check = only(commands.CheckOwners, member.on(events.ViewLoaded(load.token, view())))
    found = member.on(events.OwnersChecked(check.token, frozenset({T1})))
    assert only(Drop, found).partitions == {T1}
    assert only(commands.ClaimPartitions, found).wanted == {T1: MINE}


def test_a_fenced_partition_is_dropped_and_the_group_is_read_again() -> None:
    """Another session owns it. Its delivery ends at once, and the caller is told why."""
    member = settled()
    commit = commit_under_way(member, T0, 15)
    found = member.on(events.Committed(commit.token, {}, fenced=frozenset({T0})))
    assert only(Drop, found).partitions == {T0}
    assert only(AnswerCommit, found).faults
    assert set(member.held) == {T1}
    fired = member.on(TimerFired(member._timers["coalesce"], "coalesce"))
    assert only(commands.LoadView, fired)


def test_the_owner_of_a_blocked_partition_is_reported_once() -> None:
    """With its session. Another owner, or the same one after it had released, is reported again."""
    member = machine()
    claim = claiming(member)

    def blocked(claim: commands.ClaimPartitions, owner: str, session: int) -> list[str]:
        answer = events.Claimed(claim.token, {}, {T0: owner}, sessions={T0: session})
        given = member.on(answer)
        watch = only(commands.WatchBlockers, given)
        member.on(events.BlockersWatched(watch.token, False))
        return [one.text for one in given if isinstance(one, Report)]

    def again() -> commands.ClaimPartitions:
        fired = events.Changed(PATHS.owner(T0))
        return only(commands.ClaimPartitions, member.on(fired))

    text = "assigned to this member: t-0, owned by g_alien-0 (session 0x17)"
    assert blocked(claim, "g_alien-0", 0x17) == [text]
    assert blocked(again(), "g_alien-0", 0x17) == []
    assert blocked(again(), "g_alien-0", 0x18) == [text.replace("17", "18")]
    assert blocked(again(), "g_old-0", 0) == [
        "assigned to this member: t-0, owned by g_old-0 (no session)"
    ]


def test_a_commit_that_waits_for_a_release_is_answered_by_what_is_stored() -> None:
    """The commit before the release is refused. The one that waits is sent with the final position,
    not answered as stored."""
    member, stop = stopping()
    first = only(commands.Commit, member.on(CommitRequested(1, {T0: 11, T1: 11})))
    member.on(CommitRequested(2, {T0: 12, T1: 12}))
    member.on(FetchingStopped(stop.token, {T0: 13}))
    claims = {tp: Claim(MINE, 2, 11) for tp in (T0, T1)}
    last = only(commands.Commit, member.on(events.Committed(first.token, claims)))
    assert last.positions == {T0: 13}
    again = only(commands.Commit, member.on(events.ScriptFailed(last.token, Code.NO_AUTH, "/x")))
    assert again.positions == {T0: 13, T1: 12}
    found = member.on(events.ScriptFailed(again.token, Code.NO_AUTH, "/x"))
    assert only(AnswerCommit, found) == AnswerCommit(2, ("/x: no auth",))


def test_a_commit_whose_partition_is_released_before_it_is_sent() -> None:
    """It is answered as stored only if the commit before the release has stored its position."""
    for position, stored in ((12, True), (14, False)):
        member, stop = stopping()
        last = only(commands.Commit, member.on(FetchingStopped(stop.token, {T0: 13})))
        committed = events.Committed(last.token, {T0: Claim(MINE, 2, 13)})
        notify = only(NotifyReleasing, member.on(committed))
        release = only(commands.Release, member.on(ListenerDone(notify.token)))
        assert member.on(CommitRequested(1, {T0: position})) == []
        found = member.on(events.Released(release.token, frozenset()))
        assert bool(only(AnswerCommit, found).faults) is not stored


def test_a_lone_change_is_acted_on_at_once() -> None:
    """Changes that follow soon are collected for ``zkconsumer.coalesce.ms``, at most twice as long.
    Those that arrive during an attempt too, from its end."""
    member = settled()
    assert member.on(TimerFired(member._timers["coalesce"], "coalesce")) == []
    lone = only(SetTimer, member.on(events.Changed(PATHS.ids)))
    assert (lone.name, lone.seconds, lone.jitter) == ("coalesce", 0.0, 0.0)
    found = member.on(TimerFired(lone.token, "coalesce"))
    load, collect = only(commands.LoadView, found), only(SetTimer, found)
    assert (collect.name, collect.seconds, collect.jitter) == ("coalesce", 0.05, 0.05)

    member.on(events.ViewLoaded(load.token, view()))
    assert member.on(events.Changed(PATHS.ids)) == []
    assert member.on(events.Changed(PATHS.ids)) == []
    load = only(commands.LoadView, member.on(TimerFired(collect.token, "coalesce")))

    assert member.on(events.Changed(PATHS.ids)) == []
    collect = only(SetTimer, member.on(events.ViewLoaded(load.token, view())))
    assert (collect.name, collect.seconds, collect.jitter) == ("coalesce", 0.05, 0.05)
    assert only(commands.LoadView, member.on(TimerFired(collect.token, "coalesce")))


@pytest.mark.parametrize("between", ["", BROKER_IDS, "answer", "refusal"])
def test_the_group_is_read_together_with_the_registration(between: str) -> None:
    """That view counts if the registration was made before."""
    member = machine()
    found = member.on(events.SessionOpened(1))
    register, load = only(commands.Register, found), only(commands.LoadView, found)
    if between == BROKER_IDS:
        member.on(events.Changed(between))
    elif between == "answer":
        assert member.on(events.ViewLoaded(load.token, view())) == []
    elif between == "refusal":
        timer = only(SetTimer, member.on(events.RegistrationRefused(register.token, 99)))
        register = only(commands.Register, member.on(TimerFired(timer.token, timer.name)))
    found = member.on(events.Registered(register.token))
    again = [one for one in found if isinstance(one, commands.LoadView)]
    assert bool(again) == (between in {"answer", "refusal"})
    load = again[0] if again else load
    found = member.on(events.ViewLoaded(load.token, view()))
    assert only(commands.ClaimPartitions, found)
    assert (commands.LoadBrokers in map(type, found)) == (between == BROKER_IDS)
    assert member.attempts == 1


@pytest.mark.parametrize("registered_first", [True, False])
@pytest.mark.parametrize("change", ["change", "reversed"])
def test_members_that_register_together_collect_changes(
    change: str, registered_first: bool
) -> None:
    """An early view that has changed since does not count: nothing is claimed by it. Neither does
    one from before the registration, whose order a lost connection may reverse."""
    member = machine()
    found = member.on(events.SessionOpened(1))
    register, load = only(commands.Register, found), only(commands.LoadView, found)
    early = [events.Registered(register.token), events.Changed(PATHS.ids, 7)]
    for event in early if registered_first else reversed(early):
        if change == "change" or isinstance(event, events.Registered):
            member.on(event)
    seen = replace(view(), registered=change == "change")
    assert member.on(events.ViewLoaded(load.token, seen)) == []
    load = look_again(member, events.Changed(PATHS.ids, 8))
    assert load.zxid == (7 if change == "change" else None)
    assert only(commands.ClaimPartitions, member.on(events.ViewLoaded(load.token, view())))
    assert member.attempts == 1
