"""How long a member on the coordinator may deliver, and which positions it commits."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from tests.support.specs import classic_spec
from zkconsumer.broker.groups.classic_client import GroupClient
from zkconsumer.broker.known_brokers import KnownBrokers
from zkconsumer.core.common.commands import (
    AnswerCommit,
    NotifyReleasing,
    NotifyStarting,
    StartFetching,
    StopFetching,
)
from zkconsumer.core.common.events import (
    CommitRequested,
    FetchingStarted,
    FetchingStopped,
    ListenerDone,
    TimerFired,
)
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.groups import commands, events
from zkconsumer.core.groups.classic import ClassicMachine
from zkconsumer.core.groups.formats.consumer_protocol import AssignmentData, encode_assignment
from zkconsumer.runtime.gate import CLOCK, DeliveryGate
from zkconsumer.runtime.membership.classic import BrokerCoordination
from zkconsumer.runtime.membership.line import ServerLine
from zkconsumer.runtime.membership.threads import MemberThread

P0 = TopicPartition("t", 0)
SPEC = classic_spec(rebalance_timeout=12.0)


def test_answers_that_ask_to_rejoin_keep_the_gate_open_for_the_rebalance_timeout() -> None:
    """The coordinator waits that long for members to rejoin, and then assigns their partitions to
    others. Heartbeats answered with REBALANCE_IN_PROGRESS confirm nothing beyond that time."""
    gate = DeliveryGate()
    host = MemberThread("c")
    client = GroupClient(
        "g",
        "c",
        None,
        KnownBrokers(lambda: [], lambda broker: 0),
        session_timeout=30.0,
        rebalance_timeout=12.0,
        timeout=1.0,
    )
    line = ServerLine(client, "c_requests", host.crash)
    coordination = BrokerCoordination(SPEC, host, gate, line, line, [], None)
    now = time.clock_gettime(CLOCK)
    coordination.confirm(now, 27)
    assert not gate.is_open, "never in a settled generation"
    coordination.confirm(now, 0)
    assert gate.valid_until == now + 12.0
    coordination.confirm(now + 3, 27)
    assert gate.valid_until == now + 12.0
    coordination.confirm(now + 3, 0)
    assert gate.valid_until == now + 15.0


def _settled(auto_commit: bool = True) -> ClassicMachine:
    """A machine that owns a partition."""
    machine = ClassicMachine(replace(SPEC, auto_commit=auto_commit))

    def token(kind: type, given: list[commands.Command]) -> int:
        return next(int(one.token) for one in given if isinstance(one, kind))  # type: ignore

    given = machine.on(events.Started())
    given = machine.on(events.CoordinatorFound(token(commands.FindCoordinator, given)))
    given = machine.on(events.TopicsLoaded(token(commands.LoadTopics, given), {"t": 1}))
    joined = events.Joined(token(commands.JoinGroup, given), "m", 1, "other", "range")
    given = machine.on(joined)
    mine = encode_assignment(AssignmentData(frozenset({P0})))
    given = machine.on(events.Synced(token(commands.SyncGroup, given), mine))
    given = machine.on(events.OffsetsFetched(token(commands.FetchOffsets, given), {P0: 0}))
    given = machine.on(ListenerDone(token(NotifyStarting, given)))
    machine.on(FetchingStarted(token(StartFetching, given)))
    return machine


def _beat(machine: ClassicMachine, code: int) -> list[commands.Command]:
    """The next heartbeat is answered with ``code``. Return what follows."""
    given = machine.on(TimerFired(machine._timers["heartbeat"], "heartbeat"))
    (beat,) = [one for one in given if isinstance(one, commands.Heartbeat)]
    return machine.on(events.HeartbeatAnswered(beat.token, code))


def _holding(auto_commit: bool = True) -> tuple[ClassicMachine, int]:
    """A machine that owns a partition and is asked to rejoin. Return the token of its stop."""
    machine = _settled(auto_commit)
    (stop,) = [one for one in _beat(machine, 27) if isinstance(one, StopFetching)]
    return machine, stop.token


def test_a_position_read_before_the_stop_is_not_committed_after_it() -> None:
    """A commit whose positions were read before the partition stopped, and that arrives later, does
    not lower the offset that was committed at the stop."""
    machine, token = _holding()
    (commit,) = machine.on(FetchingStopped(token, {P0: 9}))
    assert isinstance(commit, commands.CommitOffsets)
    assert commit.positions == {P0: 9}
    machine.on(CommitRequested(1, {P0: 7}))
    given = machine.on(events.OffsetsCommitted(commit.token, {P0: 0}))
    later = [one for one in given if isinstance(one, commands.CommitOffsets)]
    assert [one.positions for one in later] in ([], [{P0: 9}])
    machine, token = _holding()
    machine.on(FetchingStopped(token, {P0: 9}))
    machine.on(CommitRequested(1, {P0: 7}, strict=True))  # this one is meant
    given = machine.on(events.OffsetsCommitted(commit.token, {P0: 0}))
    assert [one.positions for one in given if isinstance(one, commands.CommitOffsets)] == [{P0: 7}]


@pytest.mark.parametrize("code", [25, 30])
def test_a_commit_under_way_while_its_partition_stops_is_answered_as_it_is_refused(
    code: int,
) -> None:
    """A commit that the coordinator refuses is not answered as stored, although another one with
    the final position is under way. Nor is one that waits behind them."""
    machine, token = _holding()
    first = _sent(machine.on(CommitRequested(1, {P0: 7})))
    machine.on(CommitRequested(2, {P0: 8}))
    last = _sent(machine.on(FetchingStopped(token, {P0: 9})))
    assert last.positions == {P0: 9}
    given = machine.on(events.OffsetsCommitted(first.token, {P0: code}))
    given += machine.on(events.OffsetsCommitted(last.token, {P0: code}))
    for again in [one for one in given if isinstance(one, commands.CommitOffsets)]:
        assert again.positions == {P0: 9}
        given += machine.on(events.OffsetsCommitted(again.token, {P0: code}))
    answers = {one.request: one.faults for one in given if isinstance(one, AnswerCommit)}
    assert answers.keys() == {1, 2}
    assert all(answers.values())


def test_a_commit_whose_partition_is_lost_or_released_meanwhile_is_not_answered_as_stored() -> None:
    """Without automatic commits, nothing else stores its position."""
    for lost in (True, False):
        machine, token = _holding(auto_commit=False)
        first = _sent(machine.on(CommitRequested(1, {P0: 7})))
        machine.on(CommitRequested(2, {P0: 8}))
        if lost:
            given = _beat(machine, 25)
        else:
            given = machine.on(FetchingStopped(token, {P0: 9}))
            (notify,) = [one for one in given if isinstance(one, NotifyReleasing)]
            given = machine.on(ListenerDone(notify.token))
            given += machine.on(events.OffsetsCommitted(first.token, {P0: 22}))
        answers = {one.request: one.faults for one in given if isinstance(one, AnswerCommit)}
        assert answers.keys() == {1, 2}
        assert all(answers.values())


@pytest.mark.parametrize("answered", [True, False], ids=["before", "after"])
def test_what_was_stored_before_a_reset_says_nothing_about_lower_positions(answered: bool) -> None:
    """``auto.offset.reset`` chose an earlier offset, before or after the answer to a commit. Later
    commits that are lost with the generation are not answered as stored."""
    machine = _settled()
    high = _sent(machine.on(CommitRequested(1, {P0: 100})))
    given = machine.on(events.OffsetsCommitted(high.token, {P0: 0})) if answered else []
    given += machine.on(CommitRequested(2, {P0: 5}))
    given += machine.on(CommitRequested(3, {P0: 6}))
    if not answered:
        given += machine.on(events.OffsetsCommitted(high.token, {P0: 0}))
    given += _beat(machine, 25)
    answers = {one.request: one.faults for one in given if isinstance(one, AnswerCommit)}
    assert answers.keys() == {1, 2, 3}
    assert [bool(answers[number]) for number in (1, 2, 3)] == [False, True, True]


def _sent(given: list[Any]) -> commands.CommitOffsets:
    """The commit among these commands."""
    (commit,) = [one for one in given if isinstance(one, commands.CommitOffsets)]
    return commit
