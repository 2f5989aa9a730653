"""One group with members of zkconsumer, kafka-python, librdkafka and the Java consumer."""

from __future__ import annotations

import base64
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import pytest

from tests.integration.group_members import (
    Java,
    Join,
    Jvm,
    KafkaPython,
    Librdkafka,
    Member,
    Ours,
    group_state,
)
from tests.support.groups import Producer
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.groups.assignors.sticky import StickyStrategy
from zkconsumer.core.groups.assignors.strategies import (
    MemberState,
    RangeStrategy,
    RoundRobinStrategy,
)
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
from zkconsumer.core.groups.states import State
from zkconsumer.errors import ClusterError
from zkconsumer.servers import LocalCluster, wait_until

STRATEGIES: Final = ("range", "roundrobin", "sticky", "cooperative-sticky")
PARTITIONS: Final = 8
SETTLED: Final = 40
"""Seconds within which a group must be stable. It usually takes one or two."""


@pytest.fixture(scope="module")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jvm]:
    """The module's JVM."""
    running = Jvm(tmp_path_factory.mktemp("jvm"))
    yield running
    running.close()


@pytest.fixture
def start(jvm: Jvm) -> Iterator[Callable[[str, Join], Member]]:
    """Creates members of any client. Members that are still running stop after the test."""
    makes: Mapping[str, Callable[[Join], Member]] = {
        "ours": Ours,
        "kafka-python": KafkaPython,
        "librdkafka": Librdkafka,
        "java": lambda join: Java(join, jvm),
    }
    made: list[tuple[bool, Member]] = []

    def one(make: str, join: Join) -> Member:
        made.append((join.instance is not None, makes[make](join)))
        return made[-1][1]

    yield one
    left = sorted(made, key=lambda pair: pair[0])
    while left:  # static members last, and only when no rebalance would wait for a stopped one
        static, member = left.pop(0)
        member.close()
        with suppress(ClusterError):
            wait_until(
                lambda static=static: (
                    static or sum(len(m.partitions) for _, m in left) in (0, PARTITIONS)
                ),
                5,
                "settled",
            )


def makes_of(strategy: str) -> list[str]:
    """The clients that support a strategy."""
    known = ["ours", "kafka-python", "librdkafka", "java"]
    return [make for make in known if make != "librdkafka" or strategy != "sticky"]


def shared(members: Mapping[str, Member]) -> bool:
    """Return whether each partition has one owner, and no member has two more than another."""
    shares = [set(member.partitions) for member in members.values()]
    sizes = [len(share) for share in shares]
    return len(set().union(*shares)) == sum(sizes) == PARTITIONS and max(sizes) - min(sizes) <= 1


def at_rest(cluster: LocalCluster, group: str, ours: Ours) -> bool:
    """Return whether no rebalance is under way, and our member knows the outcome of the last one.

    With cooperative-sticky, each partition may have its owner before the last rebalance ends. The
    broker is asked first: a member that is in a group at rest stays there.
    """
    return group_state(cluster, group) == "Stable" and ours.state is State.STABLE


def share_a_group(
    cluster: LocalCluster,
    start: Callable[[str, Join], Member],
    group: str,
    topic: str,
    strategy: str,
    first: str,
    static: bool,
) -> None:
    """The steps of ``test_one_group`` and ``test_one_group_on_1_1``."""
    cluster.create_topic(topic, PARTITIONS)
    makes = makes_of(strategy)
    other = makes[(makes.index(first) + 1) % len(makes)]

    def join(make: str) -> Join:
        # kafka-python's leader gives some members nothing if static and dynamic members are mixed.
        named = static and (make in (first, other) or first == "kafka-python")
        return Join(cluster.bootstrap, group, topic, strategy, make if named else None)

    gone: list[Member] = []
    with Producer(cluster.bootstrap, topic, range(PARTITIONS), interval=0.002) as producer:
        members = {first: start(first, join(first))}
        wait_until(lambda: shared(members), SETTLED, f"{first} has all")
        members |= {make: start(make, join(make)) for make in makes if make != first}
        wait_until(lambda: shared(members), SETTLED, "all have a share")
        ours = members["ours"]
        assert isinstance(ours, Ours)
        wait_until(lambda: at_rest(cluster, group, ours), SETTLED, "the group is at rest")
        assert ours.leader.startswith(first)
        check_subscriptions(ours, strategy, topic)

        if static:
            gone += replace_static(
                members,
                other,
                lambda: start(other, join(other)),
                lambda: at_rest(cluster, group, ours),
            )
        else:
            gone.append(members.pop(other))
            gone[0].close()
        wait_until(lambda: shared(members), SETTLED, "all partitions are shared")
        check_subscriptions(ours, strategy, topic)
        sent = set(producer.stop())

        def got() -> Counter[tuple[int, int]]:
            return Counter(one for member in [*members.values(), *gone] for one in member.got())

        wait_until(lambda: got().keys() >= sent, SETTLED, "everything is delivered")
        twice = {one for one, count in got().items() if count > 1}
        if strategy == "cooperative-sticky":  # Java reads on until revocation
            twice -= {
                one for m in [*members.values(), *gone] if isinstance(m, Java) for one in m.got()
            }
        assert not twice, "nothing is delivered twice"


def replace_static(
    members: dict[str, Member],
    name: str,
    start: Callable[[], Member],
    rests: Callable[[], bool],
) -> list[Member]:
    """Stop a static member and start it again. It gets the same share, and no other member rejoins.
    Return the stopped members.

    A rebalance may still be under way when the member stops: a cooperative leader of kafka-python
    starts another one after the group looks stable. So the member has three tries.
    """
    gone: list[Member] = []
    for _ in range(3):
        wait_until(lambda: rests() and shared(members), SETTLED, "the group is at rest")
        ours = members["ours"]
        assert isinstance(ours, Ours)
        joined = len(ours.assignments)
        gone.append(members.pop(name))
        before = set(gone[-1].partitions)
        gone[-1].close()
        members[name] = start()

        def rejoined(ours: Ours = ours, joined: int = joined) -> bool:
            return members["ours"] is ours and len(ours.assignments) > joined

        wait_until(
            lambda before=before, rejoined=rejoined: (
                members[name].partitions == before or rejoined()
            ),
            SETTLED,
            "it has its share",
        )
        if not rejoined():
            return gone
    raise AssertionError("other members rejoin whenever it returns")


def check_subscriptions(ours: Ours, strategy: str, topic: str) -> None:
    """If our member leads, check that it can read the others' subscriptions, and that our codec
    writes the same bytes for them."""
    for member, raw in ours.subscriptions.items():
        told = decode_subscription(raw)
        assert told.topics == (topic,)
        assert bool(told.owned) <= (strategy == "cooperative-sticky")
        if strategy == "sticky" and told.user_data:
            written = encode_sticky(*decode_sticky(told.user_data))
            kafka_pythons = b"\0\1" + written
            assert told.user_data == (
                kafka_pythons if member.startswith("kafka-python") else written
            )
        written = encode_subscription(replace(told, version=min(told.version, 2)))
        if not told.user_data:  # null or empty, depending on the library
            at = len(encode_subscription(SubscriptionData(told.topics)))
            empty = written[: at - 4] + b"\0\0\0\0" + written[at:]
            written = empty if raw[at - 4 : at] == b"\0\0\0\0" else written
        assert raw[2:].startswith(written[2:]), (member, raw, written)


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize(
    ("strategy", "first"),
    [(strategy, first) for strategy in STRATEGIES for first in makes_of(strategy)],
)
def test_one_group(
    cluster: LocalCluster,
    start: Callable[[str, Join], Member],
    group: str,
    topic: str,
    strategy: str,
    first: str,
    static: bool,
) -> None:
    """The first member to join leads a group with one member of each client. The partitions are
    shared evenly, and each has one owner. When one member leaves, the others get its share. A
    static member returns to its share, and no other member rejoins. Everything is delivered
    once."""
    share_a_group(cluster, start, group, topic, strategy, first, static)


@pytest.mark.parametrize("first", ["ours", "java"])
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_one_group_on_1_1(
    middle: LocalCluster,
    start: Callable[[str, Join], Member],
    group: str,
    topic: str,
    strategy: str,
    first: str,
) -> None:
    """The same on a broker of 1.1, which does not support static members."""
    share_a_group(middle, start, group, topic, strategy, first, static=False)


# -- the same bytes and decisions as Java's -----------------------------------------------------


def b64(raw: bytes) -> str:
    """Bytes in the form that the JVM reads."""
    return base64.b64encode(raw).decode()


def named(partitions: Sequence[TopicPartition]) -> str:
    """Partitions in the form that the JVM reads."""
    return ",".join(f"{tp.topic}:{tp.partition}" for tp in partitions)


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("user_data", [b"", b"x\0y"])
def test_bytes_are_javas(jvm: Jvm, version: int, user_data: bytes) -> None:
    """Subscriptions and assignments are written as Java's codecs write them."""
    owned = [TopicPartition(name, n) for name in ("a", "bb") for n in (0, 1, 12)]
    told = SubscriptionData(
        ("a", "bb"),
        user_data,
        frozenset(owned) if version else frozenset(),
        7 if version == 2 else -1,
        version,
    )
    words = (version, "a,bb", b64(user_data), named(owned), told.generation)
    (theirs,) = jvm.ask("subscription", *words)
    assert b64(encode_subscription(told)) == theirs
    assert decode_subscription(base64.b64decode(theirs)) == told
    (newest,) = jvm.ask("subscription", 3, *words[1:])
    assert decode_subscription(base64.b64decode(newest)).topics == told.topics

    given = AssignmentData(frozenset(owned), user_data)
    (theirs,) = jvm.ask("assignment", 0, named(owned), b64(user_data))
    assert b64(encode_assignment(given)) == theirs
    (newest,) = jvm.ask("assignment", 3, named(owned), b64(user_data))
    assert decode_assignment(base64.b64decode(newest)) == given


def partition(text: str) -> TopicPartition:
    """A partition as the JVM writes it."""
    name, _, number = text.partition(":")
    return TopicPartition(name, int(number))


def counts(topics: Mapping[str, int]) -> str:
    """Topics in the form that the JVM reads."""
    return ",".join(f"{name}={count}" for name, count in topics.items())


def member_word(member: GroupMember) -> str:
    """A member in the form that the JVM reads."""
    return f"{member.member_id}={member.instance_id or ''}={b64(member.metadata)}"


def shape(chance: random.Random, alike: bool) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Topics with their partitions, and members with their subscriptions."""
    topics = {f"t{n}": chance.randint(0, 9) for n in range(chance.randint(1, 4))}
    wanted = {
        f"m{n}-{chance.randrange(1000)}": sorted(
            topics if alike else chance.sample(sorted(topics), chance.randint(1, len(topics)))
        )
        for n in range(chance.randint(1, 5))
    }
    return topics, wanted


@pytest.mark.parametrize("strategy", [RangeStrategy(), RoundRobinStrategy()], ids=["range", "rr"])
def test_leaders_decide_as_java(jvm: Jvm, strategy: Any) -> None:
    """For 200 random groups, some with static members, the assignment equals that of Java's
    leader."""
    chance = random.Random(8)
    for _ in range(200):
        topics, wanted = shape(chance, alike=False)
        group = [
            GroupMember(
                name,
                f"i{chance.randrange(1000)}" if chance.random() < 0.3 else None,
                strategy.subscribe(MemberState(name, dict.fromkeys(names, 1), frozenset(), -1)),
            )
            for name, names in wanted.items()
        ]
        answer = jvm.ask("assign", strategy.name, counts(topics), *map(member_word, group))
        theirs = dict(word.split("=") for word in answer)
        ours = {
            name: ",".join(sorted(named(sorted(decode_assignment(raw).partitions)).split(",")))
            for name, raw in strategy.assign(group, topics).items()
        }
        assert ours == theirs, (topics, wanted)


@pytest.mark.parametrize("cooperative", [False, True], ids=["sticky", "cooperative-sticky"])
def test_sticky_leaders_are_as_good_as_java(jvm: Jvm, cooperative: bool) -> None:
    """For 200 random groups after members joined or left, as many partitions keep their owner as
    with Java's leader. The shares are equally even. The input is in Java's newest format."""
    strategy = StickyStrategy(cooperative)
    chance = random.Random(9)
    for _ in range(200):
        topics, wanted = shape(chance, alike=True)
        every = [TopicPartition(name, n) for name, count in topics.items() for n in range(count)]
        chance.shuffle(every)
        members, generation = list(wanted), chance.randrange(1, 1000)
        former = max(len(members) - chance.randint(0, 1), 1)
        had = {
            name: frozenset(every[n::former] if n < former else ())
            for n, name in enumerate(members)
        }
        group = []
        for name in members:
            standing = MemberState(
                name, dict.fromkeys(topics, 1), had[name], generation, (had[name], generation)
            )
            told = decode_subscription(strategy.subscribe(standing))
            words = (",".join(told.topics), b64(told.user_data), named(sorted(told.owned)))
            (newest,) = jvm.ask("subscription", 3, *words, told.generation)
            group.append(GroupMember(name, None, base64.b64decode(newest)))
        answer = jvm.ask("assign", strategy.name, counts(topics), *map(member_word, group))
        theirs = {
            name: frozenset(map(partition, filter(None, texts.split(","))))
            for name, texts in (word.split("=") for word in answer)
        }
        ours = {
            name: decode_assignment(raw).partitions
            for name, raw in strategy.assign(group, topics).items()
        }
        kept = [sum(len(found[n] & had[n]) for n in members) for found in (ours, theirs)]
        sizes = [sorted(map(len, found.values())) for found in (ours, theirs)]
        assert kept[0] == kept[1], (topics, had, ours, theirs)
        assert sizes[0] == sizes[1], (topics, had, ours, theirs)
