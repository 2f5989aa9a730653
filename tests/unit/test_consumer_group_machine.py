"""One KIP-848 member without servers: its table of error codes, and short stories."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from tests.support.specs import kip848_spec
from zkconsumer.core.common.commands import (
    AnswerCommit,
    AnswerStart,
    Close,
    Drop,
    Fail,
    NotifyLost,
    NotifyReleasing,
    NotifyStarting,
    Report,
    SetTimer,
    StartFetching,
    StopFetching,
)
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.events import (
    CloseRequested,
    CommitRequested,
    FetchingStarted,
    FetchingStopped,
    ListenerDone,
    TimerFired,
)
from zkconsumer.core.common.types import Pattern, Subscription, TopicPartition
from zkconsumer.core.groups import kip848_commands as commands, kip848_events as events
from zkconsumer.core.groups.commands import (
    CommitOffsets,
    FindCoordinator,
    LeaveGroup,
    LoadTopics,
)
from zkconsumer.core.groups.events import (
    CoordinatorFound,
    Left,
    OffsetsCommitted,
    OffsetsFetched,
    RequestFailed,
    Started,
    TopicsLoaded,
)
from zkconsumer.core.groups.kip848 import IDLE_BEATS, Kip848Machine
from zkconsumer.core.groups.kip848_reactions import HINTS, TABLE
from zkconsumer.core.groups.reactions import UNREACHABLE, Reaction, Request
from zkconsumer.core.groups.states import State

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
T = "id-t"
CommandT = TypeVar("CommandT")


class Story:
    """A member and the servers' answers. ``done`` has all commands since the last ``clear``."""

    def __init__(self, **more: Any) -> None:
        self.machine = Kip848Machine(kip848_spec(session_timeout=45, heartbeat_interval=5, **more))
        self.done: list[Any] = []
        self.tell(Started())
        self.tell(CoordinatorFound(self.last(FindCoordinator).token))

    def tell(self, event: Any) -> None:
        """Give the machine an event."""
        self.done += self.machine.on(event)

    def last(self, kind: type[CommandT]) -> CommandT:
        """Return the last command of a kind. There must be one."""
        return [one for one in self.done if isinstance(one, kind)][-1]

    def has(self, kind: type) -> bool:
        """Return whether there was such a command."""
        return any(isinstance(one, kind) for one in self.done)

    def beat(self, code: int = 0, epoch: int = 1, given: Any = None, detail: str = "") -> None:
        """Answer the last heartbeat."""
        token = self.last(commands.MemberHeartbeat).token
        self.tell(events.MemberHeartbeatAnswered(token, code, detail, epoch, 5.0, given))

    def beats(self, **answer: Any) -> None:
        """Send a heartbeat, and answer it."""
        self.machine._timers["heartbeat"] = 10**6
        self.tell(TimerFired(10**6, "heartbeat"))
        self.beat(**answer)

    def offsets_are_unstable(self) -> None:
        """Refuse the last request for offsets."""
        token = self.last(commands.FetchMemberOffsets).token
        self.tell(RequestFailed(token, ErrorCode.UNSTABLE_OFFSET_COMMIT, "open transaction"))

    def fire(self, name: str) -> None:
        """Let the last timer of that name fire."""
        timer = [o for o in self.done if isinstance(o, SetTimer) and o.name == name][-1]
        self.tell(TimerFired(timer.token, name))

    def start(self) -> None:
        """Names, offsets, listener and fetching for all assigned partitions."""
        if self.machine.state is State.LOADING:
            read = self.last(commands.ReadTopicNames)
            self.tell(events.TopicNamesRead(read.token, {one: one[3:] for one in read.ids}))
        fetch = self.last(commands.FetchMemberOffsets)
        self.tell(OffsetsFetched(fetch.token, dict.fromkeys(fetch.partitions, 7)))
        self.tell(ListenerDone(self.last(NotifyStarting).token))
        self.tell(FetchingStarted(self.last(StartFetching).token))

    def member(self, *numbers: int) -> Story:
        """A member that owns these partitions and waits for nothing."""
        self.beat(given={T: numbers})
        self.beat()
        self.start()
        assert self.machine.state is State.STABLE
        self.done.clear()
        return self


def owned(story: Story) -> Any:
    """Return the partitions that the last heartbeat named."""
    return story.last(commands.MemberHeartbeat).owned


def test_what_stays_is_never_stopped() -> None:
    """Stop, commit, listener, and only then a heartbeat without the partition. The remaining
    partition is in none of these."""
    story = Story().member(0, 1)
    story.machine._timers["heartbeat"] = 10**6
    story.tell(TimerFired(10**6, "heartbeat"))
    assert owned(story) is None, "nothing has changed"
    story.beat(given={T: (0,)})
    stop = story.last(StopFetching)
    assert stop.partitions == {P1}
    assert story.machine.releasing, "the lease must not outlast the rebalance timeout"
    story.tell(FetchingStopped(stop.token, {P1: 9}))
    commit = story.last(CommitOffsets)
    assert (commit.generation, commit.positions) == (1, {P1: 9})
    story.tell(OffsetsCommitted(commit.token, {P1: 0}))
    beats = sum(isinstance(one, commands.MemberHeartbeat) for one in story.done)
    story.tell(ListenerDone(story.last(NotifyReleasing).token))
    assert sum(isinstance(one, commands.MemberHeartbeat) for one in story.done) == beats + 1
    assert owned(story) == {T: (0,)}
    assert story.machine.held.keys() == {P0}
    assert not story.machine.releasing
    assert not story.has(StartFetching)
    story.tell(CommitRequested(7, {P0: 9, P1: 9}, strict=True))
    assert story.last(CommitOffsets).positions == {P0: 9}, "P1 is not held any more"


def test_after_a_lost_answer_everything_is_said_again() -> None:
    """The coordinator accepts the previous epoch only with all owned partitions."""
    story = Story().member(0)
    story.machine._timers["heartbeat"] = 10**6
    story.tell(TimerFired(10**6, "heartbeat"))
    story.beat(UNREACHABLE)
    story.tell(CoordinatorFound(story.last(FindCoordinator).token))
    again = story.last(commands.MemberHeartbeat)
    assert (again.full, again.owned, again.epoch) == (True, {T: (0,)}, 1)
    assert story.machine.held.keys() == {P0}


def blocked() -> Story:
    """A member that owns P0, and cannot start P1: an open transaction commits an offset of it."""
    story = Story().member(0)
    story.beats(epoch=2, given={T: (0, 1)})
    story.beat(epoch=2)
    story.offsets_are_unstable()
    story.fire("backoff")
    return story


def test_an_open_transaction_delays_no_release() -> None:
    """It may last longer than the coordinator waits for this member."""
    story = blocked()
    story.beats(epoch=2, given={T: (1,)})
    assert story.machine.state is State.FETCHING_OFFSETS
    story.offsets_are_unstable()
    assert story.last(StopFetching).partitions == {P0}
    story = blocked()
    story.beats(epoch=2, given={T: (0,)})
    assert story.machine.releasing, "the coordinator waits for P1"
    story.offsets_are_unstable()
    assert owned(story) == {T: (0,)}
    assert not story.machine.releasing
    assert story.machine.state is State.STABLE
    assert not story.has(StopFetching)


@pytest.mark.parametrize("code", [110, 25, 69])
def test_a_fenced_member_joins_again(code: int) -> None:
    """Its partitions are dropped without a commit, the listener is told, then the epoch is 0."""
    story = Story().member(0)
    story.machine._timers["heartbeat"] = 10**6
    story.tell(TimerFired(10**6, "heartbeat"))
    story.beat(code)
    assert story.last(Drop).partitions == {P0}
    assert not story.has(CommitOffsets)
    story.tell(ListenerDone(story.last(NotifyLost).token))
    join = story.last(commands.MemberHeartbeat)
    assert (join.epoch, join.full, join.owned, join.member_id) == (0, True, {}, "m")


FENCED = 110


def test_a_member_that_may_not_join_again_takes_another_id() -> None:
    """Brokers 4.0 and 4.1 refuse epoch 0 of a member that missed two epochs. It leaves as that
    member, so that the coordinator does not wait for it, and joins as another one."""
    story = Story().member(0)
    story.machine._timers["heartbeat"] = 10**6
    story.tell(TimerFired(10**6, "heartbeat"))
    story.beat(FENCED)
    story.tell(ListenerDone(story.last(NotifyLost).token))
    assert story.last(commands.MemberHeartbeat).epoch == 0
    assert story.last(commands.MemberHeartbeat).member_id == "m"
    story.beat(FENCED)
    assert not story.has(LeaveGroup)
    story.fire("backoff")
    story.beat(FENCED)
    leave = story.last(LeaveGroup)
    assert leave.member_id == "m"
    story.done.clear()
    story.tell(Left(leave.token))
    join = story.last(commands.MemberHeartbeat)
    assert (join.epoch, join.full) == (0, True)
    assert join.member_id not in ("", "m")
    story.beat(epoch=9, given={T: (0,)})
    story.beat(epoch=9)
    story.start()
    assert story.machine.held.keys() == {P0}
    assert story.machine.generation == 9


def test_joins_that_are_fenced_become_rarer() -> None:
    """Ten a second for 45 s would be a storm. A static member keeps its id: its instance id belongs
    to that (KAFKA-19222, KAFKA-19233)."""
    story = Story(instance_id="i")
    pauses = []
    for _ in range(8):
        story.beat(FENCED)
        timers = [o for o in story.done if isinstance(o, SetTimer) and o.name == "backoff"]
        pauses.append(timers[-1].seconds)
        story.fire("backoff")
    assert pauses == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 3.2, 3.2, 3.2])
    assert story.last(commands.MemberHeartbeat).member_id == "m"
    story.beat(given={T: (0,)})
    assert story.machine._fenced == 0


def test_a_stale_commit_is_sent_with_the_next_epoch() -> None:
    """A heartbeat is sent at once, and after its answer the commit is sent again."""
    story = Story().member(0)
    story.tell(CommitRequested(5, {P0: 8}))
    commit = story.last(CommitOffsets)
    story.tell(OffsetsCommitted(commit.token, {P0: 113}))
    assert story.last(CommitOffsets) is commit
    story.beat(epoch=2)
    again = story.last(CommitOffsets)
    assert (again.generation, again.positions) == (2, {P0: 8})
    story.tell(OffsetsCommitted(again.token, {P0: 0}))
    assert story.last(AnswerCommit).faults == ()


def test_an_instance_id_in_use_is_waited_for() -> None:
    """For the session timeout. Then the error names the key."""
    story = Story(instance_id="i")
    for _ in range(3):
        story.beat(111)
        story.fire("backoff")
    assert not story.has(Fail)
    story.fire("instance")
    story.beat(111)
    assert not story.has(Fail), "a late answer to a heartbeat from before"
    story.fire("backoff")
    story.beat(111, detail="taken")
    failed = story.last(Fail)
    assert "UNRELEASED_INSTANCE_ID" in failed.text
    assert "group.instance.id" in failed.text


def test_a_coordinator_that_takes_over_is_waited_for_anew() -> None:
    """It counts the previous member's session timeout from then on (simulated, seed 201)."""
    story = Story(instance_id="i")
    story.beat(111)
    story.fire("backoff")
    story.fire("instance")
    story.beat(14)
    story.fire("backoff")
    story.beat(111)
    assert not story.has(Fail)
    story.fire("instance")
    story.fire("backoff")
    story.beat(111)
    assert story.has(Fail)


@pytest.mark.parametrize("code", sorted(HINTS.keys() - {111}))
def test_what_the_coordinator_refuses_for_good(code: int) -> None:
    """The error has the code's name, the broker's text and the fix."""
    story = Story()
    story.beat(code, detail="the broker says so")
    failed = story.last(Fail)
    assert failed.code == code
    assert "the broker says so" in failed.text
    assert HINTS[code] in failed.text


@pytest.mark.parametrize("request_", ["heartbeat", "commit", "search"])
def test_a_broker_that_starts_does_not_offer_the_protocol_yet(request_: str) -> None:
    """After one accepted heartbeat, no answer that denies the protocol ends the member. It looks
    for the coordinator again, and keeps its partitions."""
    story = Story()
    story.beat(given={T: (0, 1)})
    story.beat()
    story.start()
    if request_ == "commit":
        story.tell(CommitRequested(None, {P0: 9, P1: 9}))
        token = story.last(CommitOffsets).token
        story.tell(RequestFailed(token, 35, "starting"))
    else:
        story.fire("heartbeat")
        story.beat(35 if request_ == "heartbeat" else UNREACHABLE, detail="starting")
    if request_ == "search":
        story.tell(RequestFailed(story.last(FindCoordinator).token, 35, "starting"))
        story.fire("backoff")
    assert not story.has(Fail)
    story.tell(CoordinatorFound(story.last(FindCoordinator).token))
    story.beat()
    assert not story.has(Fail)
    assert story.machine.held.keys() == {P0, P1}


def test_a_topic_without_a_name_is_asked_for_again() -> None:
    """The topic is new. Topics with a name begin at once."""
    story = Story()
    story.beat(given={"id-t": (0,), "id-u": (0,)})
    story.beat()
    read = story.last(commands.ReadTopicNames)
    story.tell(events.TopicNamesRead(read.token, {T: "t"}))
    story.start()
    assert story.machine.held.keys() == {P0}
    story.fire("names")
    assert story.last(commands.ReadTopicNames).ids == ("id-u",)


def test_internal_topics_are_owned_and_not_read() -> None:
    """A pattern may select them, because the coordinator does not know
    ``exclude.internal.topics``."""
    story = Story(subscription=Subscription(Pattern.WHITE_LIST, {".*": 1}))
    story.beat(given={"id-__consumer_offsets": (0,), "id-t": (2,)})
    assert owned(story) == {"id-__consumer_offsets": (0,), "id-t": (2,)}
    story.beat()
    story.start()
    assert story.machine.held.keys() == {P2}


@pytest.mark.parametrize("instance", [None, "i"])
def test_leaving(instance: str | None) -> None:
    """Everything is released and committed, then the coordinator is told, even by static
    members."""
    story = Story(instance_id=instance).member(0)
    story.tell(CloseRequested())
    stop = story.last(StopFetching)
    story.tell(FetchingStopped(stop.token, {P0: 9}))
    commit = story.last(CommitOffsets)
    story.tell(OffsetsCommitted(commit.token, {P0: 0}))
    story.tell(ListenerDone(story.last(NotifyReleasing).token))
    leave = story.last(LeaveGroup)
    assert leave.member_id == "m"
    story.tell(Left(leave.token))
    assert story.machine.state is State.CLOSED
    assert story.last(Close).faults == ()


def test_the_table_has_an_entry_for_each_request_that_can_get_the_code() -> None:
    """Codes of a moving coordinator apply to all requests. Codes of epochs never end a member."""
    rows = {row.code: row.reactions for row in TABLE}
    assert len(rows) == len(TABLE)
    for code in (14, 15, 16, UNREACHABLE):
        assert rows[code].keys() == set(Request) - {Request.SYNC}
    for code in (110, 113, 25):
        assert Reaction.FATAL not in rows[code].values()


# -- a member without partitions ------------------------------------------------------------------


def idle(**more: Any) -> Story:
    """A member that was accepted, and that is still assigned nothing at the next heartbeat."""
    story = Story(**more)
    for _ in range(IDLE_BEATS):
        assert not story.has(LoadTopics), "partitions may follow"
        story.beat(given={})
        story.fire("heartbeat")
    story.beat()
    return story


def reports(story: Story) -> list[str]:
    """Return the texts that were logged because nothing can be assigned."""
    found = [one for one in story.done if isinstance(one, Report)]
    return [one.text for one in found if one.event == "unassignable"]


@pytest.mark.parametrize(
    ("errors", "text"),
    [
        ({"t": 3}, "topic t does not exist, nor does any other that it names"),
        (
            {"t": 29},
            "TOPIC_AUTHORIZATION_FAILED (29): this member's principal is not authorized to "
            "describe t",
        ),
    ],
)
def test_an_idle_member_says_why(errors: dict[str, int], text: str) -> None:
    """It asks for its topics once, and again when it reads topics again. The reason is logged once,
    and it is gone as soon as something is assigned."""
    story = idle()
    assert story.has(AnswerStart)
    load = story.last(LoadTopics)
    assert load.topics == ("t",)
    story.tell(TopicsLoaded(load.token, {}, errors=errors))
    assert story.machine.obstacle.startswith(text)
    story.fire("heartbeat")
    story.beat()
    assert story.last(LoadTopics) is load
    story.fire("reread")
    again = story.last(LoadTopics)
    assert again is not load
    story.tell(TopicsLoaded(again.token, {}, errors=errors))
    assert [one.startswith(text) for one in reports(story)] == [True]
    story.fire("heartbeat")
    story.beat(given={T: (0,)})
    assert story.machine.obstacle == ""
    story.beat()
    story.start()
    story.fire("reread")
    assert story.last(commands.ReadTopicNames).ids == (T,)


def test_an_idle_member_of_an_existing_topic_has_no_obstacle() -> None:
    """The other members have all partitions."""
    story = idle()
    story.tell(TopicsLoaded(story.last(LoadTopics).token, {"t": 3}))
    assert story.machine.obstacle == ""
    assert reports(story) == []


def test_an_answer_about_topics_that_is_late_is_no_obstacle() -> None:
    """Partitions were assigned while the broker was asked. A failed request is repeated with the
    next reading of topics."""
    story = idle()
    load = story.last(LoadTopics)
    story.fire("heartbeat")
    story.beat(given={T: (0,)})
    story.tell(TopicsLoaded(load.token, {}, errors={"t": 3}))
    assert story.machine.obstacle == ""
    story = idle()
    load = story.last(LoadTopics)
    story.tell(RequestFailed(load.token, UNREACHABLE, "no answer"))
    assert story.machine.obstacle == ""
    story.fire("reread")
    assert story.last(LoadTopics) is not load


def test_a_member_that_joins_again_looks_for_the_obstacle_again() -> None:
    """The topic may have been created and deleted meanwhile."""
    story = idle()
    load = story.last(LoadTopics)
    story.tell(TopicsLoaded(load.token, {}, errors={"t": 3}))
    story.fire("heartbeat")
    story.beat(25)
    for _ in range(IDLE_BEATS):
        story.beat(given={})
        story.fire("heartbeat")
    assert story.last(LoadTopics) is not load


def test_a_pattern_that_matches_nothing_is_no_obstacle() -> None:
    """As in the other kinds of groups."""
    story = idle(subscription=Subscription(Pattern.WHITE_LIST, {"x.*": 1}))
    story.fire("reread")
    assert not story.has(LoadTopics)
    assert story.machine.obstacle == ""
