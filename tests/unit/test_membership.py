"""Members on the coordinator without servers: bytes, strategies, reactions and short stories."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.user_data import StickyAssignorUserData
from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

from tests.support.specs import classic_spec
from zkconsumer.core.common.assign import assign_range, thread_ids
from zkconsumer.core.common.commands import (
    AnswerCommit,
    Close,
    Drop,
    Fail,
    Forget,
    NotifyLost,
    NotifyReleasing,
    NotifyStarting,
    Report,
    SetTimer,
    StopFetching,
)
from zkconsumer.core.common.events import (
    CloseRequested,
    CommitRequested,
    FetchingStarted,
    FetchingStopped,
    ListenerDone,
    TimerFired,
)
from zkconsumer.core.common.types import Pattern, Subscription, TopicPartition
from zkconsumer.core.groups import commands, events
from zkconsumer.core.groups.assignors.sticky import StickyStrategy
from zkconsumer.core.groups.assignors.strategies import (
    LegacyStrategy,
    MemberState,
    RangeStrategy,
    RoundRobinStrategy,
    assign_to_streams,
)
from zkconsumer.core.groups.classic import ClassicMachine
from zkconsumer.core.groups.events import GroupMember
from zkconsumer.core.groups.formats.consumer_protocol import (
    AssignmentData,
    SubscriptionData,
    decode_assignment,
    decode_sticky,
    decode_subscription,
    encode_assignment,
    encode_sticky,
    encode_subscription,
)
from zkconsumer.core.groups.reactions import TABLE, Reaction, Request, reaction
from zkconsumer.core.groups.states import State
from zkconsumer.runtime.counters import FetchCounts, RebalanceCounts
from zkconsumer.runtime.delivery.data_plane import DataPlane
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.observation.metrics_snapshot import of_group_member

A = [TopicPartition("a", n) for n in range(7)]


# -- bytes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
def test_subscriptions_are_kafka_pythons_bytes(version: int) -> None:
    """kafka-python reads what we write, and we read what kafka-python writes."""
    ours = SubscriptionData(("a", "b"), b"x", frozenset(A[:2]) if version else frozenset())
    ours = SubscriptionData(ours.topics, b"x", ours.owned, 7 if version == 2 else -1, version)
    raw = encode_subscription(ours)
    theirs = ConsumerProtocolSubscription.decode(raw)
    assert list(theirs.topics) == ["a", "b"]
    assert bytes(theirs.user_data) == b"x"
    if version:
        (owned,) = theirs.owned_partitions
        assert (owned.topic, list(owned.partitions)) == ("a", [0, 1])
    assert decode_subscription(raw) == ours
    assert decode_subscription(theirs.encode()) == ours


def test_assignments_are_kafka_pythons_bytes() -> None:
    """The same for assignments. No bytes are an empty assignment."""
    ours = AssignmentData(frozenset(A[1:3]), b"y")
    theirs = ConsumerProtocolAssignment.decode(encode_assignment(ours))
    (entry,) = theirs.assigned_partitions
    assert (entry.topic, list(entry.partitions)) == ("a", [1, 2])
    assert decode_assignment(theirs.encode()) == ours
    assert decode_assignment(b"").partitions == frozenset()


@pytest.mark.parametrize("generation", [-1, 0, 7, 70_000])
def test_sticky_user_data(generation: int) -> None:
    """A member's previous partitions are read back with any generation, without one as in older
    Java versions, and as kafka-python writes them."""
    raw = encode_sticky(A[:3], generation)
    assert decode_sticky(raw) == (frozenset(A[:3]), generation)
    assert decode_sticky(raw[:-4]) == (frozenset(A[:3]), -1)
    theirs = StickyAssignorUserData([("a", [0, 1, 2])], generation).encode()
    assert decode_sticky(theirs) == (frozenset(A[:3]), generation)


@pytest.mark.parametrize("cut", range(1, 40))
def test_cut_bytes_are_value_errors(cut: int) -> None:
    """Bytes that end too early raise ValueError, whatever is missing."""
    raw = encode_subscription(SubscriptionData(("abc",), b"xyz", frozenset(A[:2]), 3, 2))
    if cut < len(raw):
        with pytest.raises(ValueError):
            decode_subscription(raw[:-cut])


# -- strategies ---------------------------------------------------------------------------------


def members(strategy: Any, topics: dict[str, dict[str, int]]) -> list[GroupMember]:
    """The members as a leader gets them."""
    return [
        GroupMember(name, None, strategy.subscribe(MemberState(f"g_{name}", of, frozenset(), -1)))
        for name, of in topics.items()
    ]


class Cluster:
    """The part of a cluster that kafka-python's assignors use."""

    def __init__(self, partitions: dict[str, int]) -> None:
        self.partitions = partitions

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        count = self.partitions.get(topic)
        return None if count is None else set(range(count))


class Told:
    def __init__(self, member: GroupMember) -> None:
        self.member_id, self.group_instance_id = member.member_id, member.instance_id
        self.metadata = ConsumerProtocolSubscription.decode(member.metadata)


SHAPES: list[dict[str, dict[str, int]]] = [
    {"m1": {"a": 1}, "m2": {"a": 1}},
    {"m2": {"a": 1, "b": 1}, "m1": {"a": 1, "b": 2}, "m10": {"a": 1, "b": 1}},
    {"m2": {"a": 1, "b": 1}, "m1": {"a": 2}, "m10": {"b": 1, "gone": 1}},
]


@pytest.mark.parametrize(
    ("ours", "theirs", "topics"),
    [
        *((RangeStrategy(), RangePartitionAssignor, shape) for shape in SHAPES),
        # kafka-python's fails with a KeyError where subscriptions differ
        *((RoundRobinStrategy(), RoundRobinPartitionAssignor, shape) for shape in SHAPES[:2]),
    ],
)
def test_equal_to_kafka_pythons(ours: Any, theirs: Any, topics: dict[str, dict[str, int]]) -> None:
    """Whichever member leads, the result is the same."""
    group, partitions = members(ours, topics), {"a": 7, "b": 3}
    found = {
        name: decode_assignment(raw).partitions
        for name, raw in ours.assign(group, partitions).items()
    }
    expected = theirs.assign(Cluster(partitions), [Told(member) for member in group])
    for name, raw in expected.items():
        assert found[name] == decode_assignment(raw.encode()).partitions


def test_legacy_range_keeps_the_split_of_zookeeper() -> None:
    """Thread by thread, the result is that of a group in ZooKeeper, streams included."""
    strategy = LegacyStrategy("legacy-range")
    topics = {"m1": {"a": 2}, "m2": {"a": 1}}
    given = strategy.assign(members(strategy, topics), {"a": 7})
    threads = {"a": [t for name in topics for t in thread_ids(f"g_{name}", topics[name])["a"]]}
    expected = assign_range(threads, {"a": range(7)})
    found = {}
    for name, raw in given.items():
        found |= assign_to_streams(f"g_{name}", topics[name], decode_assignment(raw), {})
    assert found == expected


UNENDING = b"[" * 100_000
FOREIGN = [
    b"junk",
    b"[]",
    b'{"streams": 1}',
    b'{"streams": {"a": NaN}, "consumer": "x"}',
    b'{"streams": {"a": Infinity}, "consumer": "x"}',
    b'{"streams": {"a": 1e999}, "consumer": "x"}',
    b'{"streams": {"a": ' + b"9" * 6000 + b'}, "consumer": "x"}',
    UNENDING,
]


@pytest.mark.parametrize("told", FOREIGN, ids=lambda told: str(told[:40]))
@pytest.mark.parametrize("name", ["legacy-range", "legacy-roundrobin"])
def test_foreign_user_data_counts_as_none(name: str, told: bytes) -> None:
    """Whatever a member says about its streams, the leader assigns, with one stream for such a
    member."""
    (good,) = members(strategy := LegacyStrategy(name), {"m1": {"a": 1}})
    bad = GroupMember("m2", None, encode_subscription(SubscriptionData(("a",), told)))
    given = strategy.assign([good, bad], {"a": 4})
    shares = [decode_assignment(given[one]).partitions for one in ("m1", "m2")]
    assert [len(share) for share in shares] == [2, 2]


@pytest.mark.parametrize(
    "said",
    [
        *(b"junk", b"[]", b'{"streams": 1}', b'{"streams": [["a", 0, 0, 0]]}', UNENDING),
        *(b'{"streams": [["a", 0, Infinity]]}', b'{"streams": [["a", 1e999, 1]]}'),
    ],
    ids=lambda said: str(said[:40]),
)
def test_foreign_assignments_are_dealt_evenly(said: bytes) -> None:
    """Whatever a leader says about streams, the member distributes its partitions over its own."""
    found = assign_to_streams("c", {"a": 2}, AssignmentData(frozenset(A[:2]), said), {})
    assert {tp: thread.stream for tp, thread in found.items()} == {A[0]: 0, A[1]: 1}


@pytest.mark.parametrize("cooperative", [False, True])
def test_sticky_with_topics_that_are_not_wanted_any_more(cooperative: bool) -> None:
    """Members may have owned partitions of topics that they no longer subscribe to. These are
    assigned to the subscribers, unless another member owns them."""
    strategy, topics = StickyStrategy(cooperative), ["a", "b"]
    every = [TopicPartition(topic, n) for topic in topics for n in range(4)]
    for seed in range(300):
        rng = random.Random(seed)
        group, wants, had = [], {}, {}
        for name in ("m1", "m2", "m3"):
            wants[name] = tuple(rng.sample(topics, rng.randint(0, 2)))
            had[name] = frozenset(rng.sample(every, 3))
            generation = rng.randint(0, 2)
            user_data = encode_sticky(had[name], generation)
            data = SubscriptionData(wants[name], user_data, had[name], generation, 2)
            group.append(GroupMember(name, None, encode_subscription(data)))
        given = strategy.assign(group, dict.fromkeys(topics, 4))
        shares = {name: decode_assignment(raw).partitions for name, raw in given.items()}
        for name, share in shares.items():
            assert {tp.topic for tp in share} <= set(wants[name])
        dealt = [tp for share in shares.values() for tp in share]
        assert len(dealt) == len(set(dealt))
        wanted = {tp for tp in every for name in wants if tp.topic in wants[name]}
        held = frozenset().union(*had.values()) if cooperative else frozenset()
        assert wanted - held <= set(dealt) <= wanted


def test_cooperative_moves_take_two_rounds() -> None:
    """In the first round, a partition that moves has no owner. In the second, it has the new
    one."""
    strategy = StickyStrategy(True)

    def told(name: str, owned: frozenset[TopicPartition]) -> GroupMember:
        return GroupMember(name, None, strategy.subscribe(MemberState(name, {"a": 1}, owned, 1)))

    owned = {"m1": frozenset(A[:4]), "m2": frozenset[TopicPartition]()}
    rounds = []
    for _ in range(2):
        given = strategy.assign([told(*item) for item in owned.items()], {"a": 4})
        owned = {name: decode_assignment(raw).partitions for name, raw in given.items()}
        rounds.append({name: len(found) for name, found in owned.items()})
    assert rounds == [{"m1": 2, "m2": 0}, {"m1": 2, "m2": 2}]


# -- reactions ----------------------------------------------------------------------------------


def test_every_code_of_the_issue_has_its_row() -> None:
    """These error codes are in the table. Any other code has a reaction too."""
    assert {row.code for row in TABLE} >= {14, 15, 16, 22, 25, 27, 30, 79, 82}
    for request in Request:
        assert reaction(request, 0) is Reaction.PROCEED
        assert isinstance(reaction(request, 12345), Reaction)


# -- stories ------------------------------------------------------------------------------------


def stable(
    cooperative: bool = False, instance: str | None = None, auto_commit: bool = True
) -> ClassicMachine:
    """A member alone in its group. It owns a-0 and a-1."""
    strategy = RangeStrategy(cooperative=cooperative)
    subscription = Subscription(Pattern.STATIC, {"a": 1})
    machine = ClassicMachine(
        classic_spec(
            instance_id=instance,
            subscription=subscription,
            strategies=(strategy,),
            session_timeout=10,
            auto_commit=auto_commit,
        )
    )
    tell(machine, events.Started())
    answer(machine, events.CoordinatorFound)
    answer(machine, events.TopicsLoaded, {"a": 2})
    answer(machine, events.RequestFailed, 79, "", "m1")
    mine = strategy.subscribe(MemberState("c", {"a": 1}, frozenset(), -1))
    answer(machine, events.Joined, "m1", 1, "m1", "range", (GroupMember("m1", None, mine),))
    answer(machine, events.Synced, encode_assignment(AssignmentData(frozenset(A[:2]))))
    answer(machine, events.OffsetsFetched, {A[0]: 5, A[1]: None})
    answer(machine, ListenerDone)
    answer(machine, FetchingStarted)
    assert machine.state is State.STABLE
    assert set(machine.held) == set(A[:2])
    return machine


def tell(machine: ClassicMachine, fact: Any) -> list[Any]:
    """Return the commands that follow."""
    return list(machine.on(fact))


def answer(machine: ClassicMachine, kind: Any, *content: Any) -> list[Any]:
    """Give the expected answer."""
    assert machine._awaited is not None
    return tell(machine, kind(machine._awaited, *content))


def beat(machine: ClassicMachine, code: int) -> list[Any]:
    """Answer the next heartbeat with ``code``."""
    tell(machine, TimerFired(machine._timers["heartbeat"], "heartbeat"))
    assert machine._beat is not None
    return tell(machine, events.HeartbeatAnswered(machine._beat[0], code))


def kinds(given: list[Any]) -> list[type]:
    """Return the classes of the commands, without timers."""
    return [type(order) for order in given if not isinstance(order, SetTimer)]


def test_a_transaction_that_commits_offsets_keeps_no_member_from_a_rebalance() -> None:
    """The offsets are asked for again, until other members join or leave: the transaction may last
    longer than they wait."""
    machine = stable()
    beat(machine, 27)
    answer(machine, FetchingStopped, {A[0]: 9, A[1]: 2})
    answer(machine, events.OffsetsCommitted, {A[0]: 0, A[1]: 0})
    answer(machine, ListenerDone)
    answer(machine, events.TopicsLoaded, {"a": 2})
    answer(machine, events.Joined, "m1", 2, "m2", "range", ())
    answer(machine, events.Synced, encode_assignment(AssignmentData(frozenset(A[:1]))))
    for _ in range(2):
        assert kinds(answer(machine, events.RequestFailed, 88)) == []
        again = tell(machine, TimerFired(machine._timers["backoff"], "backoff"))
        assert kinds(again) == [commands.FetchOffsets]
    beat(machine, 27)
    assert kinds(answer(machine, events.RequestFailed, 88)) == [commands.LoadTopics]
    assert kinds(answer(machine, events.TopicsLoaded, {"a": 2}))[-1] is commands.JoinGroup


def test_a_rebalance_commits_before_it_joins() -> None:
    """REBALANCE_IN_PROGRESS: stop, commit with the old generation, listener, then JoinGroup."""
    machine = stable()
    assert kinds(beat(machine, 27)) == [StopFetching]
    (commit,) = answer(machine, FetchingStopped, {A[0]: 9, A[1]: 2})
    assert (commit.generation, commit.positions) == (1, {A[0]: 9, A[1]: 2})
    assert kinds(answer(machine, events.OffsetsCommitted, {A[0]: 0, A[1]: 0})) == [NotifyReleasing]
    assert kinds(answer(machine, ListenerDone)) == [Forget, commands.LoadTopics]
    assert kinds(answer(machine, events.TopicsLoaded, {"a": 2}))[-1] is commands.JoinGroup
    assert not machine.held


def commit_while_joining(machine: ClassicMachine) -> Any:
    """A cooperative member sends JoinGroup, then a commit. Return the commit."""
    beat(machine, 27)
    answer(machine, events.TopicsLoaded, {"a": 2})
    assert machine.state is State.JOINING
    (commit,) = tell(machine, CommitRequested(1, {A[0]: 9}, strict=True))
    assert (commit.generation, commit.positions) == (1, {A[0]: 9})
    return commit


def test_a_cooperative_member_commits_while_it_joins() -> None:
    """JoinGroup may wait for a slow member for minutes, and messages are delivered all the time."""
    machine = stable(cooperative=True)
    commit = commit_while_joining(machine)
    (done,) = tell(machine, events.OffsetsCommitted(commit.token, {A[0]: 0}))
    assert done == AnswerCommit(1, ())
    (commit,) = tell(machine, CommitRequested(None, {A[1]: 4}))
    assert commit.positions == {A[1]: 4}


@pytest.mark.parametrize("code", [22, 25])
def test_a_commit_that_crosses_the_end_of_the_join_follows_it(code: int) -> None:
    """The group has a new generation, and the answer to JoinGroup is on its way. The commit is
    refused, the partitions are kept, and the commit is sent again once in the new generation."""
    machine = stable(cooperative=True)
    commit = commit_while_joining(machine)
    assert tell(machine, events.OffsetsCommitted(commit.token, {A[0]: code})) == []
    assert set(machine.held) == set(A[:2])
    assert kinds(answer(machine, events.Joined, "m1", 2, "other", "range")) == [commands.SyncGroup]
    given = answer(machine, events.Synced, encode_assignment(AssignmentData(frozenset(A[:2]))))
    again = sent(given)
    assert (again.generation, again.positions) == (2, {A[0]: 9})


def test_a_commit_is_refused_if_the_group_has_gone_on_without_the_member() -> None:
    """The answer to JoinGroup says so."""
    machine = stable(cooperative=True)
    commit = commit_while_joining(machine)
    tell(machine, events.OffsetsCommitted(commit.token, {A[0]: 25}))
    given = answer(machine, events.RequestFailed, 25)
    (refused,) = (one for one in given if isinstance(one, AnswerCommit))
    assert refused.faults
    assert not machine.held


def test_a_member_that_may_have_been_removed_joins_again_without_its_partitions() -> None:
    """A group of KIP-848 has accepted its JoinGroup, but perhaps as that of a new member. It drops
    its partitions without a commit, and names none in its next JoinGroup."""
    machine = stable(cooperative=True)
    commit_while_joining(machine)
    token = machine._awaited
    assert token is not None
    assert kinds(tell(machine, events.MembershipLapsed())) == [
        Drop,
        Report,
        NotifyLost,
        AnswerCommit,
    ]
    assert tell(machine, events.Joined(token, "m1", 2, "", "range")) == []
    answer(machine, ListenerDone)
    given = answer(machine, events.TopicsLoaded, {"a": 2})
    (join,) = (one for one in given if isinstance(one, commands.JoinGroup))
    assert join.member_id == "m1"
    assert decode_subscription(join.protocols[0][1]).owned == frozenset()
    assert not machine.held


@pytest.mark.parametrize(("code", "keeps_id"), [(22, True), (25, False)])
def test_who_is_expelled_drops_at_once(code: int, keeps_id: bool) -> None:
    """ILLEGAL_GENERATION and UNKNOWN_MEMBER_ID: partitions are dropped in the same step without a
    commit, then the member rejoins."""
    machine = stable()
    given = beat(machine, code)
    assert kinds(given)[:1] == [Drop]
    assert commands.CommitOffsets not in kinds(given)
    assert not machine.held
    assert bool(machine.member_id) is keeps_id
    assert kinds(answer(machine, ListenerDone)) == [commands.LoadTopics]


@pytest.mark.parametrize("code", [15, 16, -1])
def test_a_lost_coordinator_is_no_rebalance(code: int) -> None:
    """The member finds the new coordinator, and keeps its partitions."""
    machine = stable()
    assert kinds(beat(machine, code)) == [commands.FindCoordinator]
    assert kinds(answer(machine, events.CoordinatorFound)) == [commands.Heartbeat]
    assert (machine.state, set(machine.held)) == (State.STABLE, set(A[:2]))


@pytest.mark.parametrize("code", [16, -1])
def test_a_coordinator_that_is_none_is_looked_for_after_a_pause(code: int) -> None:
    """Brokers name the former coordinator for a while. Neither heartbeats nor retries of a commit
    are sent to it as fast as it answers."""
    machine = stable()
    (commit,) = tell(machine, CommitRequested(1, {A[0]: 7}))
    for attempt in range(machine.spec.commit_attempts - 1):
        given = tell(machine, events.OffsetsCommitted(commit.token, {A[0]: code}))
        if attempt:
            assert kinds(given) == []
            given = tell(machine, TimerFired(machine._timers["backoff"], "backoff"))
        assert kinds(given) == [commands.FindCoordinator]
        given = answer(machine, events.CoordinatorFound)
        commit = sent(given)
    told = tell(machine, events.OffsetsCommitted(commit.token, {A[0]: 0}))
    assert told == [AnswerCommit(1, ())]
    tell(machine, events.HeartbeatAnswered(machine._beat[0] if machine._beat else 0, 0))
    assert kinds(beat(machine, code)) == [commands.FindCoordinator], "after an answer: at once"


def fire(machine: ClassicMachine, name: str) -> list[Any]:
    """Let the timer of this name fire."""
    return tell(machine, TimerFired(machine._timers[name], name))


def limit_of(given: list[Any]) -> float:
    """How long a release whose commit has just failed may retry."""
    timers = (one for one in given if isinstance(one, SetTimer))
    (limit,) = (timer.seconds for timer in timers if timer.name == "release")
    return float(limit)


def committing(machine: ClassicMachine, times: int, code: int) -> list[Any]:
    """Answer the commit before a release with ``code`` this often. Return the last commands."""
    given: list[Any] = []
    for _ in range(times):
        assert machine.state is State.COMMITTING
        answer(machine, events.OffsetsCommitted, {A[0]: code, A[1]: 0})
        given = resume(machine, code)
    return given


def resume(machine: ClassicMachine, code: int) -> list[Any]:
    """The pause after a commit with this ``code`` is over, and it is sent again."""
    assert machine.state is State.BACKING_OFF
    given = fire(machine, "backoff")
    if code != 14:
        assert commands.FindCoordinator in kinds(given)
        given = answer(machine, events.CoordinatorFound)
    assert sent(given).positions == {A[0]: 9}, "what is stored is not sent again"
    return given


@pytest.mark.parametrize("code", [14, 15, 16, -1])
def test_a_release_waits_for_a_moving_coordinator(code: int) -> None:
    """The commit before a release is retried while the coordinator is away or loads, until half the
    rebalance timeout is over. So nothing is delivered twice because the coordinator moved."""
    machine = stable()
    beat(machine, 27)
    answer(machine, FetchingStopped, {A[0]: 9, A[1]: 2})
    assert limit_of(answer(machine, events.OffsetsCommitted, {A[0]: code, A[1]: 0})) == 15.0
    resume(machine, code)
    committing(machine, 40, code)
    assert kinds(answer(machine, events.OffsetsCommitted, {A[0]: 0})) == [NotifyReleasing]


@pytest.mark.parametrize("state", [State.COMMITTING, State.BACKING_OFF, State.FINDING])
def test_a_release_gives_its_commit_up_in_time(state: State) -> None:
    """When half the rebalance timeout is over, the release continues, whatever it waits for. There
    is time left for the listener and JoinGroup. The log says what is not stored and why."""
    machine = stable()
    beat(machine, 27)
    answer(machine, FetchingStopped, {A[0]: 9, A[1]: 2})
    committing(machine, 3, 16)
    if state is not State.COMMITTING:
        answer(machine, events.OffsetsCommitted, {A[0]: 16})
    if state is State.FINDING:
        fire(machine, "backoff")
    assert machine.state is state
    given = fire(machine, "release")
    if state is State.COMMITTING:  # its answer may be good
        assert kinds(given) == []
        given = answer(machine, events.OffsetsCommitted, {A[0]: 16})
    told = "offsets are not stored: a-0: NOT_COORDINATOR (16)"
    assert Report("commit-failed", told) in given
    assert NotifyReleasing in kinds(given)
    assert commands.FindCoordinator in kinds(given), "while the listener works"
    answer(machine, ListenerDone)
    assert not machine.held
    assert machine.state is State.FINDING


def test_the_last_commit_of_a_member_that_leaves_has_its_session_timeout() -> None:
    """``shutdown`` waits for little more than that, so it can report what is not stored. A member
    that is asked to leave during a release has no more time either."""
    machine = stable()
    tell(machine, CloseRequested())
    answer(machine, FetchingStopped, {A[0]: 9, A[1]: 2})
    assert limit_of(answer(machine, events.OffsetsCommitted, {A[0]: 16, A[1]: 0})) == 10.0
    resume(machine, 16)
    committing(machine, 20, 16)
    fire(machine, "release")
    given = answer(machine, events.OffsetsCommitted, {A[0]: 16})
    assert kinds(given)[:2] == [Report, NotifyReleasing]
    machine = stable()
    beat(machine, 27)
    answer(machine, FetchingStopped, {A[0]: 9, A[1]: 2})
    committing(machine, 1, 16)
    assert limit_of(tell(machine, CloseRequested())) == 10.0


def test_a_later_release_has_a_limit_of_its_own() -> None:
    """A late timer of one release does not end the commit of the next one."""
    machine = stable()
    beat(machine, 27)
    answer(machine, FetchingStopped, {A[0]: 9, A[1]: 2})
    committing(machine, 1, 16)
    old = machine._timers["release"]
    answer(machine, events.OffsetsCommitted, {A[0]: 0})
    answer(machine, ListenerDone)
    answer(machine, events.TopicsLoaded, {"a": 2})
    answer(machine, events.Joined, "m1", 2, "other", "range")
    answer(machine, events.Synced, encode_assignment(AssignmentData(frozenset(A[:2]))))
    answer(machine, events.OffsetsFetched, {A[0]: 9, A[1]: 2})
    answer(machine, ListenerDone)
    answer(machine, FetchingStarted)
    beat(machine, 0)  # sent to the coordinator in the generation before
    beat(machine, 27)
    answer(machine, FetchingStopped, {A[0]: 9, A[1]: 2})
    tell(machine, TimerFired(old, "release"))
    committing(machine, 10, 16)
    tell(machine, TimerFired(old, "release"))
    committing(machine, 10, 16)


def wait_in(state: State) -> ClassicMachine:
    """A member with a generation that waits in ``state`` for its application or its fetchers."""
    machine = stable(cooperative=True)
    if state in (State.STOPPING, State.NOTIFYING_RELEASE):
        tell(machine, CloseRequested())
    else:
        beat(machine, 27)
        answer(machine, events.TopicsLoaded, {"a": 3})
        answer(machine, events.Joined, "m1", 2, "other", "range")
        answer(machine, events.Synced, encode_assignment(AssignmentData(frozenset(A[:3]))))
        answer(machine, events.OffsetsFetched, {A[2]: 5})
    if state is State.NOTIFYING_RELEASE:
        answer(machine, FetchingStopped, {})
    elif state is State.STARTING:
        answer(machine, ListenerDone)
    assert machine.state is state
    return machine


@pytest.mark.parametrize(
    "state", [State.STOPPING, State.NOTIFYING_RELEASE, State.NOTIFYING_START, State.STARTING]
)
def test_a_coordinator_lost_meanwhile_is_looked_for(state: State) -> None:
    """A commit of the listener is answered with NOT_COORDINATOR. The member looks for the
    coordinator, again after a pause, until it is found. Then heartbeats continue, and the same
    commit is sent."""
    machine = wait_in(state)
    awaited = machine._awaited
    (commit,) = tell(machine, CommitRequested(1, {A[0]: 7}, strict=True))
    (find,) = tell(machine, events.OffsetsCommitted(commit.token, {A[0]: 16}))
    assert isinstance(find, commands.FindCoordinator)
    (pause,) = tell(machine, events.RequestFailed(find.token, 15))
    assert (pause.name, pause.seconds) == ("search", 0.1)
    (find,) = tell(machine, TimerFired(pause.token, "search"))
    beats, again = tell(machine, events.CoordinatorFound(find.token))
    assert isinstance(beats, commands.Heartbeat)
    assert isinstance(again, commands.CommitOffsets)
    assert again.positions == commit.positions
    (told,) = tell(machine, events.OffsetsCommitted(again.token, {A[0]: 0}))
    assert told == AnswerCommit(1, ())
    assert (machine.state, machine._awaited) == (state, awaited)
    tell(machine, events.HeartbeatAnswered(beats.token, 0))
    assert kinds(beat(machine, 0)) == []


def test_it_is_looked_for_once() -> None:
    """The listener returns during the search. The member waits for its end before it continues."""
    machine = wait_in(State.NOTIFYING_START)
    (find,) = (one for one in beat(machine, -1) if isinstance(one, commands.FindCoordinator))
    answer(machine, ListenerDone)
    assert kinds(answer(machine, FetchingStarted)) == []
    assert machine.state is State.FINDING
    assert kinds(tell(machine, events.CoordinatorFound(find.token))) == [commands.Heartbeat]
    assert machine.state is State.STABLE


@pytest.mark.parametrize("code", [30, 82])
def test_a_refused_member_ends(code: int) -> None:
    """The partitions are dropped, and the streams end with the error."""
    machine = stable()
    given = beat(machine, code)
    assert kinds(given) == [Drop, Fail]
    assert machine.state is State.FAILED


def test_a_commit_is_sent_again_when_the_coordinator_loads() -> None:
    """COORDINATOR_LOAD_IN_PROGRESS: the same commit is sent after the pause. Then the caller is
    told that all is stored."""
    machine = stable()
    (commit,) = tell(machine, CommitRequested(1, {A[0]: 7}))
    given = tell(machine, events.OffsetsCommitted(commit.token, {A[0]: 14}))
    assert kinds(given) == []
    (again,) = tell(machine, TimerFired(machine._timers["commit"], "commit"))
    assert again.positions == {A[0]: 7}
    (told,) = tell(machine, events.OffsetsCommitted(again.token, {A[0]: 0}))
    assert told == AnswerCommit(1, ())


def test_who_is_out_hears_at_once_that_nothing_is_stored() -> None:
    """A commit of a member that has left by itself is refused without waiting for the group. Its
    caller may be busy with the very message that keeps the member out."""
    machine = stable()
    assert Drop in kinds(tell(machine, events.PollExpired()))
    (told,) = tell(machine, CommitRequested(1, {A[0]: 7}, strict=True))
    assert isinstance(told, AnswerCommit)
    assert "not in the group" in told.faults[0]
    assert tell(machine, CommitRequested(2, {})) == [AnswerCommit(2, ())]


def test_an_offset_that_was_fetched_counts_as_stored() -> None:
    """The member has read nothing since it fetched the committed offset, and is out of the group: a
    commit of the same position has nothing to store."""
    machine = stable()
    tell(machine, events.PollExpired())
    fetched = machine._commits.stored[A[0]]
    assert tell(machine, CommitRequested(1, {A[0]: fetched})) == [AnswerCommit(1, ())]
    (told,) = tell(machine, CommitRequested(2, {A[0]: fetched + 1}))
    assert "not in the group" in told.faults[0]


def test_no_commit_is_sent_without_a_generation() -> None:
    """Whatever happens to a waiting request: the coordinator would accept a commit of generation -1
    as one of a group without members."""
    machine = stable()
    machine.generation = -1
    machine._commits.add(CommitRequested(1, {A[0]: 7}))
    assert commands.CommitOffsets not in kinds(tell(machine, events.PollResumed()))
    machine.generation = 1
    assert commands.CommitOffsets in kinds(tell(machine, events.PollResumed()))


def test_a_static_member_does_not_sign_off() -> None:
    """Its partitions wait for its return."""
    machine = stable(instance="static")
    tell(machine, CloseRequested())
    answer(machine, FetchingStopped, {A[0]: 9})
    answer(machine, events.OffsetsCommitted, {A[0]: 0})
    assert kinds(answer(machine, ListenerDone)) == [Forget, Close]


def test_what_was_announced_is_taken_back() -> None:
    """The member is expelled while the listener is told of new partitions. The listener is then
    told that they are lost."""
    machine = stable()
    beat(machine, 27)
    answer(machine, FetchingStopped, {})
    answer(machine, ListenerDone)
    answer(machine, events.TopicsLoaded, {"a": 2})
    answer(machine, events.Joined, "m1", 2, "other", "range")
    answer(machine, events.Synced, encode_assignment(AssignmentData(frozenset(A[:1]))))
    (told,) = answer(machine, events.OffsetsFetched, {A[0]: 5})
    assert isinstance(told, NotifyStarting)
    given = [order for order in beat(machine, 25) if isinstance(order, NotifyLost)]
    assert [order.partitions for order in given] == [frozenset(A[:1])]


def test_lost_partitions_are_counted_and_not_the_times() -> None:
    """As in a group in ZooKeeper. Partitions that it releases are not lost."""
    machine = stable()
    loop: Any = SimpleNamespace(
        machine=machine,
        closed=Future(),
        reports=Counter({"lost": 1}),
        rebalances=RebalanceCounts((), (), ()),
    )
    plane = DataPlane(MagicMock(counts=FetchCounts()), {}, 0.0, MagicMock())

    def lost() -> int:
        return of_group_member(DeliveryGate(), loop, 0, plane, 0).lost_owners

    assert lost() == 0
    beat(machine, 25)
    assert lost() == 2


def test_a_restarted_static_member_follows_its_topic() -> None:
    """It may be the leader without knowing it, so it rejoins when its topic gets more partitions.
    Another follower leaves that to the leader."""
    for instance, expected in (("one", True), (None, False)):
        machine = stable(instance=instance)
        machine._round.leads = False
        tell(machine, TimerFired(machine._timers["reread"], "reread"))
        assert machine._reread is not None
        given = tell(machine, events.TopicsLoaded(machine._reread, {"a": 4}))
        assert (StopFetching in kinds(given)) is expected


def join_again(machine: ClassicMachine, generation: int, mine: list[TopicPartition]) -> None:
    """From the stop before JoinGroup to the next generation, led by this member."""
    if machine.state is State.STOPPING:
        answer(machine, FetchingStopped, dict.fromkeys(machine.held, 9))
        answer(machine, events.OffsetsCommitted, dict.fromkeys(machine.held, 0))
        answer(machine, ListenerDone)
    answer(machine, events.TopicsLoaded, {"a": 2})
    state = MemberState("c", {"a": 1}, frozenset(machine.held), generation - 1)
    told = GroupMember("m1", None, machine.spec.strategies[0].subscribe(state))
    answer(machine, events.Joined, "m1", generation, "m1", "range", (told,))
    answer(machine, events.Synced, encode_assignment(AssignmentData(frozenset(mine))))


def test_a_heartbeat_of_an_earlier_generation_says_nothing_about_this_one() -> None:
    """Its answer is late, and the member has rejoined meanwhile."""
    machine = stable()
    (old,) = fire(machine, "heartbeat")
    (load,) = (one for one in fire(machine, "reread") if isinstance(one, commands.LoadTopics))
    assert StopFetching in kinds(tell(machine, events.TopicsLoaded(load.token, {"a": 3})))
    join_again(machine, 2, A[:2])
    answer(machine, events.OffsetsFetched, {A[0]: 9, A[1]: 9})
    answer(machine, ListenerDone)
    answer(machine, FetchingStarted)
    assert (machine.state, machine.generation) == (State.STABLE, 2)
    for code in (22, 25, 27):
        assert kinds(tell(machine, events.HeartbeatAnswered(old.token, code))) == []
    assert set(machine.held) == set(A[:2])


def test_a_cooperative_member_joins_again_after_it_gave_partitions_up() -> None:
    """Other members get them only in the next generation."""
    machine = stable(cooperative=True)
    beat(machine, 27)
    join_again(machine, 2, A[:1])
    assert machine.state is State.STOPPING
    answer(machine, FetchingStopped, {A[1]: 9})
    answer(machine, events.OffsetsCommitted, {A[1]: 0})
    assert kinds(answer(machine, ListenerDone)) == [Forget, commands.LoadTopics]
    assert set(machine.held) == set(A[:1])


def test_a_commit_is_given_up_after_so_many_attempts() -> None:
    """Each attempt follows a pause. Then the caller is told why."""
    machine = stable()
    given = tell(machine, CommitRequested(1, {A[0]: 7}))
    for attempt in range(machine.spec.commit_attempts):
        if attempt:
            given = fire(machine, "commit")
        (commit,) = given
        given = tell(machine, events.OffsetsCommitted(commit.token, {A[0]: 14}))
        assert commands.CommitOffsets not in kinds(given), "without a pause"
    (told,) = (one for one in given if isinstance(one, AnswerCommit))
    assert "COORDINATOR_LOAD_IN_PROGRESS" in told.faults[0]


def test_static_members_come_first() -> None:
    """As in Kafka's assignors, the remainder goes to them, whatever their member ids are."""
    metadata = RangeStrategy().subscribe(MemberState("c", {"a": 1}, frozenset(), -1))
    told = [GroupMember("m1", None, metadata), GroupMember("m9", "i", metadata)]
    for strategy in (RangeStrategy(), RoundRobinStrategy()):
        given = strategy.assign(told, {"a": 3})
        shares = {name: decode_assignment(raw).partitions for name, raw in given.items()}
        assert {name: len(share) for name, share in shares.items()} == {"m1": 1, "m9": 2}
        assert A[0] in shares["m9"]


@pytest.mark.parametrize("code", [22, 25])
def test_a_commit_of_a_generation_that_is_over_drops_at_once(code: int) -> None:
    """The group has assigned the partitions to others. The answer to a commit shows this as well as
    the answer to a heartbeat."""
    machine = stable()
    (commit,) = tell(machine, CommitRequested(1, {A[0]: 7}))
    given = tell(machine, events.OffsetsCommitted(commit.token, {A[0]: code}))
    assert Drop in kinds(given)
    assert not machine.held


def sent(given: list[Any]) -> commands.CommitOffsets:
    """Return the only commit among these commands."""
    (commit,) = (one for one in given if isinstance(one, commands.CommitOffsets))
    return commit


def answers(given: list[Any]) -> dict[int, bool]:
    """Return which callers are told of a fault."""
    return {one.request: bool(one.faults) for one in given if isinstance(one, AnswerCommit)}


@pytest.mark.parametrize("strict", [False, True])
def test_a_position_read_before_the_stop_is_not_committed_after_it(strict: bool) -> None:
    """A commit whose positions were read before the partition stopped, and that arrives later, does
    not lower the offset that was committed at the stop. An offset that a user named is meant."""
    machine = stable()
    beat(machine, 27)
    assert sent(answer(machine, FetchingStopped, {A[0]: 9})).positions == {A[0]: 9}
    tell(machine, CommitRequested(1, {A[0]: 7}, strict=strict))
    given = answer(machine, events.OffsetsCommitted, {A[0]: 0})
    later = [one.positions for one in given if isinstance(one, commands.CommitOffsets)]
    assert later == [{A[0]: 7}] if strict else later in ([], [{A[0]: 9}])


@pytest.mark.parametrize("code", [25, 30])
def test_a_commit_under_way_while_its_partition_stops_is_answered_as_it_is_refused(
    code: int,
) -> None:
    """A commit that the coordinator refuses is not answered as stored, although another one with
    the final position is under way. Nor is one that waits behind them."""
    machine = stable()
    beat(machine, 27)
    first = sent(tell(machine, CommitRequested(1, {A[0]: 7})))
    tell(machine, CommitRequested(2, {A[0]: 8}))
    last = sent(answer(machine, FetchingStopped, {A[0]: 9}))
    assert last.positions == {A[0]: 9}
    given = tell(machine, events.OffsetsCommitted(first.token, {A[0]: code}))
    given += tell(machine, events.OffsetsCommitted(last.token, {A[0]: code}))
    for again in [one for one in given if isinstance(one, commands.CommitOffsets)]:
        assert again.positions == {A[0]: 9}
        given += tell(machine, events.OffsetsCommitted(again.token, {A[0]: code}))
    assert answers(given) == {1: True, 2: True}


@pytest.mark.parametrize("lost", [True, False])
def test_a_commit_whose_partition_is_lost_or_released_meanwhile_is_not_answered_as_stored(
    lost: bool,
) -> None:
    """Without automatic commits, nothing else stores its position."""
    machine = stable(auto_commit=False)
    beat(machine, 27)
    first = sent(tell(machine, CommitRequested(1, {A[0]: 7})))
    tell(machine, CommitRequested(2, {A[0]: 8}))
    if lost:
        given = beat(machine, 25)
    else:
        assert NotifyReleasing in kinds(answer(machine, FetchingStopped, {A[0]: 9}))
        given = answer(machine, ListenerDone)
        given += tell(machine, events.OffsetsCommitted(first.token, {A[0]: 22}))
    assert answers(given) == {1: True, 2: True}


@pytest.mark.parametrize("answered", [True, False], ids=["before", "after"])
def test_what_was_stored_before_a_reset_says_nothing_about_lower_positions(answered: bool) -> None:
    """``auto.offset.reset`` chose an earlier offset, before or after the answer to a commit. Later
    commits that are lost with the generation are not answered as stored."""
    machine = stable()
    commit = sent(tell(machine, CommitRequested(1, {A[0]: 100})))
    high = events.OffsetsCommitted(commit.token, {A[0]: 0})
    given = tell(machine, high) if answered else []
    given += tell(machine, CommitRequested(2, {A[0]: 5}))
    given += tell(machine, CommitRequested(3, {A[0]: 6}))
    if not answered:
        given += tell(machine, high)
    given += beat(machine, 25)
    assert answers(given) == {1: False, 2: True, 3: True}


def test_a_leader_watches_topics_that_do_not_exist_yet() -> None:
    """Another member wants one. When it is created, only the leader can notice."""
    machine = stable()
    beat(machine, 27)
    answer(machine, FetchingStopped, {})
    answer(machine, ListenerDone)
    answer(machine, events.TopicsLoaded, {"a": 2})
    told = tuple(
        GroupMember(
            name, None, RangeStrategy().subscribe(MemberState(name, topics, frozenset(), 1))
        )
        for name, topics in (("m1", {"a": 1}), ("m2", {"new": 1}))
    )
    given = answer(machine, events.Joined, "m1", 2, "m1", "range", told)
    (load,) = (one for one in given if isinstance(one, commands.LoadTopics))
    assert load.topics == ("a", "new")
    answer(machine, events.TopicsLoaded, {"a": 2})
    answer(machine, events.Synced, encode_assignment(AssignmentData(frozenset(A[:2]))))
    answer(machine, events.OffsetsFetched, {A[0]: 9, A[1]: 9})
    answer(machine, ListenerDone)
    answer(machine, FetchingStarted)
    (load,) = (one for one in fire(machine, "reread") if isinstance(one, commands.LoadTopics))
    assert load.topics == ("a", "new")
    given = tell(machine, events.TopicsLoaded(load.token, {"a": 2, "new": 1}))
    assert StopFetching in kinds(given)
