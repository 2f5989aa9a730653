"""Commits of a migratable member in Kafka are retried, but never in a later membership."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.groups import commands, events
from zkconsumer.core.migration.machine import Joined, Left, LiveMachine, ModeRead
from zkconsumer.core.migration.member_scripts import MEMBERSHIP_ENDED, scripts_of
from zkconsumer.core.migration.modes import Mode, Offer
from zkconsumer.core.migration.znodes import LivePaths
from zkconsumer.core.zookeeper import commands as zk_commands, events as zk_events
from zkconsumer.core.zookeeper.ops import (
    Code,
    Failed,
    Node,
    Ok,
    Permit,
    Reply,
    Stat,
    StoreOffsets,
)
from zkconsumer.runtime.membership.live_move import LiveOffsets

TP = TopicPartition("t", 0)


class Line:
    """A line of requests. The test answers."""

    def __init__(self) -> None:
        self.coordinator = self.interrupts = 0
        self.sent: list[Any] = []
        self.answer: Callable[..., object] = lambda *_: None

    def submit(self, command: Any, on_answer: Callable[..., object], permission: Any) -> None:
        self.sent.append(command)
        self.answer, self.permission = on_answer, permission

    def interrupt_ended(self) -> None:
        self.interrupts += self.permission() is Permit.ENDED


class Commits:
    """Offsets in Kafka of a member of generation 7, and the result of one commit."""

    def __init__(self) -> None:
        self.later: list[Callable[[], object]] = []
        self.replies: list[Reply] = []
        self.line = Line()
        spec = SimpleNamespace(backoff=0.5, session_timeout=10.0)
        self.group: Any = SimpleNamespace(generation=7, member_id="m", spec=spec)
        self.live: Any = SimpleNamespace(departures=0)
        host: Any = SimpleNamespace(
            now=lambda: 0.0,
            post=lambda action: action(),
            after=lambda _seconds, action: self.later.append(action),
        )
        line: Any = self.line
        self.offsets = LiveOffsets(host, self.group, self.live, line, line)
        self.permit = Permit.GRANTED
        op = StoreOffsets(((TP, 14),))
        self.offsets.submit(op, self.replies.append, lambda: self.permit)

    def refuse(self, code: ErrorCode) -> None:
        """The coordinator refuses the last commit."""
        command = self.line.sent[-1]
        assert isinstance(command, commands.CommitOffsets)
        self.line.answer(events.RequestFailed(command.token, code), 0.0, 0)

    def again(self) -> None:
        """The time for the retry has come."""
        (action,) = self.later
        self.later.clear()
        action()


@pytest.fixture
def tried() -> Commits:
    """A commit that waits for its answer."""
    return Commits()


def test_a_commit_is_tried_again_in_the_next_generation(tried: Commits) -> None:
    """The member was never out of the group, so no other member had its partitions."""
    tried.refuse(ErrorCode.REBALANCE_IN_PROGRESS)
    tried.group.generation = 8
    tried.again()
    assert [command.generation for command in tried.line.sent] == [7, 8]
    assert not tried.replies


def test_a_commit_is_not_carried_out_in_a_later_membership(tried: Commits) -> None:
    """Another member may have owned the partition in between, and have committed a higher
    offset."""
    tried.refuse(ErrorCode.ILLEGAL_GENERATION)
    tried.live.departures, tried.group.generation = 1, 9
    tried.again()
    assert len(tried.line.sent) == 1
    assert tried.replies == [Failed(Code.OTHER, detail=MEMBERSHIP_ENDED)]


def test_an_expulsion_while_owners_are_looked_up_ends_the_commit() -> None:
    """The position is old, although the member is in the group again by then."""
    live = LiveMachine()
    for event in (ModeRead(Mode.OPEN, 3), Joined(Offer.USUAL, frozenset({TP}))):
        live.on(event)
    claim = zk_events.Claim(zk_commands.ConsumerThreadId("m", 0), 3, 9)
    command = zk_commands.Commit(5, 0, {TP: 14}, {TP: claim})
    paths = LivePaths.of("g")
    ctx: Any = SimpleNamespace(spec=SimpleNamespace(paths=paths.group), session_id=1)
    script = scripts_of(paths, live)(command, ctx)
    next(script)
    live.on(Left())
    live.on(Joined(Offer.USUAL, frozenset({TP})))
    owner = Node(b"m-0", Stat(1, 1, 0, 1))
    with pytest.raises(StopIteration) as end:
        script.send(Ok((owner,)))
    assert end.value.value == zk_events.ScriptFailed(5, Code.OTHER, "", MEMBERSHIP_ENDED)


def test_a_commit_waits_until_the_session_surely_lives(tried: Commits) -> None:
    """The member was suspended. Its session may have ended, and another member may have committed
    more."""
    tried.permit = Permit.WAIT
    tried.refuse(ErrorCode.REBALANCE_IN_PROGRESS)
    tried.again()
    assert len(tried.line.sent) == 1
    tried.permit = Permit.GRANTED
    tried.again()
    assert len(tried.line.sent) == 2
    assert not tried.replies


def test_a_commit_of_a_lost_session_is_not_sent_again(tried: Commits) -> None:
    """The time for the retry comes in the next session. Meanwhile, another member may have
    committed more."""
    tried.refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    tried.permit = Permit.ENDED
    tried.again()
    assert len(tried.line.sent) == 1
    assert tried.replies == [Failed(Code.OTHER, detail=Permit.ENDED.value)]
    assert not tried.later


def test_a_request_of_a_lost_session_is_interrupted(tried: Commits) -> None:
    """The line does it. It has the permission of the request in flight."""
    tried.offsets.interrupt_ended()
    assert tried.line.interrupts == 0
    tried.permit = Permit.ENDED
    tried.offsets.interrupt_ended()
    assert tried.line.interrupts == 1
