"""Offsets of members in Kafka: requests are repeated until a deadline.

Commits of a migratable member are never repeated in a later membership.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.groups import commands, events
from zkconsumer.core.groups.reactions import UNREACHABLE
from zkconsumer.core.migration.machine import Joined, Left, LiveMachine, ModeRead
from zkconsumer.core.migration.member_scripts import scripts_of
from zkconsumer.core.migration.modes import Mode, Offer
from zkconsumer.core.migration.znodes import LivePaths
from zkconsumer.core.zookeeper import commands as zk_commands, events as zk_events
from zkconsumer.core.zookeeper.ops import (
    Code,
    Failed,
    FetchOffsets,
    Node,
    Ok,
    Permit,
    Reply,
    Stat,
    StoreOffsets,
    always,
)
from zkconsumer.core.zookeeper.scripts.common import MemberScript
from zkconsumer.core.zookeeper.scripts.kafka_storage import MEMBERSHIP_ENDED
from zkconsumer.errors import CommitFailedError
from zkconsumer.runtime.membership import kafka_offsets
from zkconsumer.runtime.membership.kafka_offsets import KafkaOffsets
from zkconsumer.runtime.membership.live_move import committer

if TYPE_CHECKING:
    from conftest import Switch  # type: ignore[import-not-found]

TP = TopicPartition("t", 0)
TPS = [TopicPartition("t", number) for number in range(7)]


class Line:
    """A line of requests. The test answers."""

    def __init__(self) -> None:
        self.coordinator = None
        self.sent: list[Any] = []
        self.answer: Callable[..., object] = lambda *_: None

    def submit(self, command: Any, on_answer: Callable[..., object], _permission: Any) -> None:
        if isinstance(command, commands.FindCoordinator):
            on_answer(events.CoordinatorFound(command.token), 0.0, 0)
            return
        self.sent.append(command)
        self.answer = on_answer


class Commits:
    """Offsets in Kafka of a member of generation 7, and the result of one commit."""

    def __init__(self) -> None:
        self.later: list[Callable[[], object]] = []
        self.replies: list[Reply] = []
        self.line = Line()
        self.group: Any = SimpleNamespace(generation=7, member_id="m")
        self.live: Any = SimpleNamespace(departures=0)
        self.host: Any = SimpleNamespace(
            now=lambda: 0.0,
            post=lambda action: action(),
            after=lambda _seconds, action: self.later.append(action),
        )
        line: Any = self.line
        member: Any = SimpleNamespace(group=self.group, live=self.live)
        who = partial(committer, member)
        self.offsets = KafkaOffsets(self.host, line, "g", 10.0, 0.5, who)
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


@pytest.mark.parametrize("backoff", [0.0, 0.5])
def test_a_commit_is_tried_again_after_any_pause(
    tried: Commits, monkeypatch: pytest.MonkeyPatch, backoff: float
) -> None:
    """``offsets.channel.backoff.ms`` may be 0: then it is tried again at once."""
    monkeypatch.setattr(tried.offsets, "_backoff", backoff)
    tried.refuse(ErrorCode.NOT_COORDINATOR)
    assert not tried.replies
    (again,) = tried.later
    again()
    assert len(tried.line.sent) == 2


def test_a_commit_that_may_not_be_sent_yet_waits_although_the_pause_is_0(
    tried: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No server is asked meanwhile, so nothing else would slow the member's thread down."""
    monkeypatch.setattr(tried.offsets, "_backoff", 0.0)
    pauses: list[float] = []
    monkeypatch.setattr(tried.host, "after", lambda seconds, _action: pauses.append(seconds))
    tried.permit = Permit.WAIT
    tried.refuse(ErrorCode.NOT_COORDINATOR)
    tried.offsets.submit(StoreOffsets(((TP, 15),)), tried.replies.append, lambda: tried.permit)
    first, second = pauses
    assert (first, second > 0) == (0.0, True)


def test_a_commit_is_not_carried_out_in_a_later_membership(tried: Commits) -> None:
    """Another member may have owned the partition in between, and have committed a higher
    offset."""
    tried.refuse(ErrorCode.ILLEGAL_GENERATION)
    tried.live.departures, tried.group.generation = 1, 9
    tried.again()
    assert len(tried.line.sent) == 1
    assert tried.replies == [Failed(Code.OTHER, detail=MEMBERSHIP_ENDED)]


OWNER = Node(b"m-0", Stat(1, 1, 0, 1))


def commit_of(live: LiveMachine) -> MemberScript[Any]:
    """A migratable member commits in mode ``open``. Its session is 1."""
    for event in (ModeRead(Mode.OPEN, 3), Joined(Offer.USUAL, frozenset({TP}))):
        live.on(event)
    claim = zk_events.Claim(zk_commands.ConsumerThreadId("m", 0), 3, 9)
    command = zk_commands.Commit(5, 0, {TP: 14}, {TP: claim})
    paths = LivePaths.of("g")
    spec = SimpleNamespace(paths=paths.group, consumer_id="m")
    ctx: Any = SimpleNamespace(spec=spec, session_id=1)
    return scripts_of(paths, live)(command, ctx)


def test_an_expulsion_while_owners_are_looked_up_ends_the_commit() -> None:
    """The position is old, although the member is in the group again by then."""
    live = LiveMachine()
    script = commit_of(live)
    next(script)
    live.on(Left())
    live.on(Joined(Offer.USUAL, frozenset({TP})))
    with pytest.raises(StopIteration) as end:
        script.send(Ok((OWNER,)))
    assert end.value.value == zk_events.ScriptFailed(5, Code.OTHER, "", MEMBERSHIP_ENDED)


def test_a_migratable_member_reads_owners_again_after_a_reconnection() -> None:
    """Another session owns the partition in a restored ZooKeeper."""
    script = commit_of(LiveMachine())
    read = next(script)
    assert script.send(Ok((OWNER,))) == StoreOffsets(((TP, 14),))
    assert script.send(Failed(Code.CONNECTION_LOSS)) == read
    with pytest.raises(StopIteration) as end:
        script.send(Ok((replace(OWNER, stat=Stat(1, 1, 0, 2)),)))
    assert end.value.value == zk_events.Committed(5, {}, frozenset({TP}))


def test_a_commit_of_a_lost_session_is_not_sent_again(tried: Commits) -> None:
    """The time for the retry comes in the next session. Meanwhile, another member may have
    committed more."""
    tried.refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    tried.permit = Permit.ENDED
    tried.again()
    assert len(tried.line.sent) == 1
    assert tried.replies == [Failed(Code.OTHER, detail=Permit.ENDED.value)]
    assert not tried.later


class Store:
    """The coordinator of a group, its line, and the offsets of a member that uses it.

    ``codes`` are the answers to the next requests, 0 to all that follow. Time passes as soon as the
    member waits.
    """

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.requests: list[Any] = []
        self.stored: dict[TopicPartition, int] = {}
        self.loading: Sequence[TopicPartition] = ()
        """Partitions that are never stored."""
        self.replies: list[Reply] = []
        self.closed: list[str] = []
        self.time = 0.0
        self.timers: list[Callable[[], object]] = []
        itself: Any = self
        self.offsets = KafkaOffsets(itself, itself, "g", 1.0, 0.5)

    def now(self) -> float:
        return self.time

    def post(self, action: Callable[[], object]) -> None:
        action()

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        self.time += seconds
        self.timers.append(action)

    def interrupt(self) -> None:
        self.closed.append("interrupt")

    def close(self) -> None:
        self.closed.append("close")

    def submit(self, command: Any, on_answer: Callable[..., object], _permission: Any) -> None:
        self.requests.append(command)
        on_answer(self._answer(command), 0.0, 0)

    def _answer(self, command: Any) -> Any:
        code = self.codes.pop(0) if self.codes else 0
        match command:
            case commands.CommitOffsets():
                loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                codes = {tp: code or loading * (tp in self.loading) for tp in command.positions}
                self.stored |= {tp: command.positions[tp] for tp in codes if not codes[tp]}
                return events.OffsetsCommitted(0, codes)
            case _ if code:
                return events.RequestFailed(0, code, "no broker is known")
            case commands.FetchOffsets():
                found = {tp: self.stored.get(tp) for tp in command.partitions}
                return events.OffsetsFetched(0, found)
        return events.CoordinatorFound(0)

    def carry_out(self, op: FetchOffsets | StoreOffsets) -> Reply:
        """The reply, after all attempts."""
        self.offsets.submit(op, self.replies.append, always)
        while self.timers:
            self.timers.pop()()
        return self.replies[-1]

    @property
    def kinds(self) -> str:
        """The first letters of the requests."""
        return "".join(type(request).__name__[0] for request in self.requests)


COMMIT = StoreOffsets(tuple((tp, 5) for tp in TPS))


def test_a_large_commit_is_sent_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each offset is sent once."""
    monkeypatch.setattr(kafka_offsets, "BATCH", 3)
    store = Store()
    assert store.carry_out(COMMIT) == Ok((None,) * len(TPS))
    assert [len(commit.positions) for commit in store.requests[1:]] == [3, 3, 1]
    assert store.stored == dict(COMMIT.positions)
    assert store.carry_out(FetchOffsets((TP, TopicPartition("t", 9)))) == Ok((5, None))
    assert store.kinds == "FCCCF", "the coordinator is searched for once"


@pytest.mark.parametrize("stored", range(len(TPS) + 1))
def test_an_offset_that_no_coordinator_took_is_not_stored(stored: int) -> None:
    """The coordinator stores some partitions, and is not ready for the others before the deadline.
    What it has stored is not sent again."""
    store = Store()
    store.loading = TPS[stored:]
    reply = store.carry_out(COMMIT)
    if stored:
        assert isinstance(reply, Ok)
        assert isinstance(reply.value, tuple)
        assert [fault is None for fault in reply.value] == [tp in TPS[:stored] for tp in TPS]
    else:
        assert isinstance(reply, Failed)
        why = "the offset coordinator of group g did not answer within 1 s: commit of t-"
        assert reply.detail.startswith(why)
    assert set(store.stored) == set(TPS[:stored])
    assert all(list(again.positions) == store.loading for again in store.requests[2:])


@pytest.mark.parametrize("op", [COMMIT, FetchOffsets((TP,))])
def test_an_operation_is_answered_when_no_broker_is_known(op: FetchOffsets | StoreOffsets) -> None:
    """Without an answer the member would wait indefinitely."""
    reply = Store(*[UNREACHABLE] * 9).carry_out(op)
    why = "the offset coordinator of group g did not answer within 1 s: no broker is known"
    assert reply == Failed(Code.OTHER, detail=why)


@pytest.mark.parametrize(
    ("code", "requests"),
    [
        (ErrorCode.NOT_COORDINATOR, "FCFC"),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, "FCFC"),
        (ErrorCode.REQUEST_TIMED_OUT, "FCFC"),
        (UNREACHABLE, "FCFC"),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "FCC"),
    ],
)
def test_a_coordinator_that_moved_is_searched_for_again(code: int, requests: str) -> None:
    """While it only loads the group it stays the same."""
    store = Store(0, code)
    assert store.carry_out(COMMIT) == Ok((None,) * len(TPS))
    assert store.kinds == requests


def test_a_refusal_ends_at_once() -> None:
    """A member in ZooKeeper is not a member on the coordinator, and never becomes one."""
    store = Store(0, ErrorCode.UNKNOWN_MEMBER_ID)
    reply = store.carry_out(COMMIT)
    assert isinstance(reply, Ok)
    assert isinstance(reply.value, tuple)
    assert all("group g because consumers have joined it: stop" in fault for fault in reply.value)
    assert store.kinds == "FC"
    store.codes = [ErrorCode.GROUP_AUTHORIZATION_FAILED]
    reply = store.carry_out(FetchOffsets((TP,)))
    assert reply == Failed(Code.OTHER, detail="no broker is known")


def test_nothing_is_sent_after_the_end() -> None:
    """The attempt in progress is interrupted, and never repeated."""
    store = Store()
    store.offsets.close()
    assert store.closed == ["interrupt", "close"]
    store.offsets.submit(COMMIT, store.replies.append, always)
    assert not store.requests


def test_a_shutdown_waits_for_the_coordinator_once(switch: Switch) -> None:
    """The coordinator is away. A commit that is tried while the member leaves, and the last commit
    after it, have one deadline together."""
    keys = {"offsets.channel.socket.timeout.ms": 1200, "offsets.channel.backoff.ms": 50}
    member = ZookeeperConsumerConnector(
        {
            "group.id": "g",
            "zookeeper.connect": "nowhere:1",
            "offsets.storage": "kafka",
            "offsets.commit.max.retries": 0,
            **keys,
        }
    )
    member.create_message_streams({"t": 1})
    switch.offsets_fail = True
    member.commit_offsets_async()
    with pytest.raises(CommitFailedError, match="did not answer within 1\\.2 s"):
        member.shutdown(timeout=2.6)  # of these, 0.65 s are for an end without an answer
