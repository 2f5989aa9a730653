"""Mixed groups under stress: killed members, constant traffic, uneven subscriptions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from tests.support.legacy_jvm import JvmMembers
from zkconsumer.core.common.java_hash import java_hash
from zkconsumer.core.common.types import TopicPartition

PAIRS = [
    ("1.1.1", "3.9.1"),
    ("1.1.1", "1.1.1"),
    ("0.8.2.2", "3.9.1"),
    ("0.8.2.2", "1.1.1"),
    ("0.8.2.2", "0.8.2.2"),
]
JVMS = ["1.1.1", "0.8.2.2"]


@pytest.mark.parametrize(("jvm", "broker"), PAIRS)
@pytest.mark.parametrize("victim", ["original", "ours"])
def test_killed_member(
    clusters: Callable,
    jvms: Callable,
    groups: Callable,
    process: Callable,
    victim: str,
    jvm: str,
    broker: str,
) -> None:
    """When any member is killed, the others share its partitions and continue from its last commit.
    No message is lost."""
    group = groups(clusters(broker), jvms(jvm))
    topic = group.create("a", 7)
    group.send()
    group.join("j1", topics={topic: 1})
    group.join("p1", topics={topic: 1})
    if victim == "original":
        name, doomed = "j2", JvmMembers(group.jvm.kafka)
        group.join(name, doomed, topics={topic: 1})
    else:
        name, doomed = "p2", process(group.ours | {"consumer.id": "p2"}, topic)
        group.members[name] = doomed
    try:
        shares = set(group.settled().values())
        assert len(shares) == 3
        group.send()
        group.delivered()
        group.lose(name, doomed.kill)
    finally:
        doomed.kill()
    group.send()
    assert set(group.settled().values()) == shares - {f"{group.group}_{name}-0"}
    group.send()
    group.delivered()
    group.leave("p1")
    group.settled()
    group.delivered()
    group.leave("j1")
    assert group.stored() == group.ends()


@pytest.mark.parametrize(
    ("profile", "jvm", "broker"),
    [*(("default", *pair) for pair in PAIRS), *(("scala", jvm, "1.1.1") for jvm in JVMS)],
)
def test_traffic(
    clusters: Callable, jvms: Callable, groups: Callable, profile: str, jvm: str, broker: str
) -> None:
    """While messages arrive, members join and leave, and partitions are added. Every acknowledged
    message is delivered."""
    group = groups(clusters(broker), jvms(jvm), profile=profile)
    topic = group.create("a", 5)
    group.send(1)
    with group.traffic():
        for name in ("j1", "p1", "p2", "j2"):
            group.join(name, topics={topic: 2})
            group.settled()
        group.leave("j1")
        group.leave("p1")
        group.settled()
        group.grow(topic, 8)
        group.settled()
        group.join("j3", topics={topic: 1})
        group.join("p3", topics={topic: 1})
        group.settled()
        group.leave("p2")
        group.leave("j2")
        group.settled()
    group.delivered()
    group.leave("p3")
    group.settled()
    group.leave("j3")
    assert group.stored() == group.ends()


@pytest.mark.parametrize(
    ("strategy", "jvm"), [("range", "1.1.1"), ("range", "0.8.2.2"), ("roundrobin", "1.1.1")]
)
def test_uneven_subscriptions(
    clusters: Callable, jvms: Callable, groups: Callable, strategy: str, jvm: str
) -> None:
    """Members that subscribe to different topics with different numbers of streams agree on the
    assignment. Before 0.10.2 the JVM's roundrobin refuses such groups."""
    group = groups(clusters("1.1.1"), jvms(jvm), strategy=strategy)
    a, b = group.create_telling(5, 4)
    c = group.create("c", 3)
    group.send()
    for name, topics in {
        "j1": {a: 2},
        "p1": {a: 1, b: 2},
        "j2": {b: 1, c: 1},
        "p2": {a: 1, b: 1, c: 4},
    }.items():
        group.join(name, topics=topics)
        group.settled()
        if len(group.members) >= 3:  # from here on some member reads each topic
            group.handed_over()
        group.send()
        if len(group.members) >= 3:
            group.once()
    owned = group.settled()
    for name, topics in {"j1": {a}, "p1": {a, b}, "j2": {b, c}, "p2": {a, b, c}}.items():
        mine = {tp.topic for tp, thread in owned.items() if f"_{name}-" in thread}
        assert mine <= topics
    for name in ("j1", "p1"):
        group.leave(name)
        group.settled()
        group.handed_over()
        group.send()
        group.once()


@pytest.mark.parametrize("jvm", JVMS)
def test_kinds_in_one_group(clusters: Callable, jvms: Callable, groups: Callable, jvm: str) -> None:
    """Named topics, white lists and black lists work together in one group. A topic that is created
    later goes to the members whose filters allow it."""
    group = groups(clusters("1.1.1"), jvms(jvm))
    a = group.create("a", 4)
    group.create("b", 3)
    group.send()
    group.join("j1", whitelist=f"{group.group}-.", streams=2)
    group.join("p1", topics={a: 2})
    group.join("p2", blacklist=f"(?!{group.group}-).*")
    group.join("j2", blacklist=f"(?!{group.group}-).*", streams=1)
    group.settled()
    group.delivered()
    late = group.create("c", 4)
    owned = group.settled()
    threads = {owned[TopicPartition(late, partition)] for partition in range(4)}
    assert threads == {f"{group.group}_{end}" for end in ("j1-0", "j1-1", "j2-0", "p2-0")}
    group.send()
    group.delivered()
    group.leave("p2")
    group.leave("j2")
    group.settled()
    group.handed_over()
    group.send()
    group.delivered()


@pytest.mark.parametrize("jvm", JVMS)
def test_equal_hashes(clusters: Callable, jvms: Callable, groups: Callable, jvm: str) -> None:
    """Partitions of two topics have equal hashes, so roundrobin takes them in the order of the
    JVM's hash map of topics. All members still agree."""
    group = groups(clusters("1.1.1"), jvms(jvm), strategy="roundrobin")
    # Created in this order, so that the names do not decide the tie.
    ends = ("BB", "Aa") if jvm == "1.1.1" else ("Aa", "BB")
    first, second = (group.create(end, 4) for end in ends)
    assert java_hash(first) == java_hash(second)
    group.send()
    group.join("j1", whitelist=f"{group.group}-.*")
    group.join("p1", whitelist=f"{group.group}-.*")
    assert len(set(group.settled().values())) == 2
    group.join("p2", topics={first: 1, second: 1})
    group.join("j2", topics={first: 1, second: 1})
    assert len(set(group.settled().values())) == 4
    group.leave("j1")
    group.settled()
    group.delivered()


@pytest.mark.parametrize("jvm", JVMS)
def test_escaped_dot(clusters: Callable, jvms: Callable, groups: Callable, jvm: str) -> None:
    r"""All members read a registered filter with ``\.`` in the same way. A 1.1.1 member registers
    its filter with an extra backslash. This matches no topic, so the zkconsumer member has all
    partitions."""
    group = groups(clusters("1.1.1"), jvms(jvm))
    topic = group.create("a.b", 4)
    group.send()
    regex = group.group + r"-a\.b"
    group.join("j1", whitelist=regex)
    group.join("p1", whitelist=regex)
    owned = group.settled()
    shared = {f"{group.group}_{name}-0" for name in (("j1", "p1") if jvm != "1.1.1" else ("p1",))}
    assert {owned[TopicPartition(topic, partition)] for partition in range(4)} == shared
    group.delivered()


@pytest.mark.parametrize("jvm", JVMS)
def test_default_settings(
    clusters: Callable,
    jvms: Callable,
    groups: Callable,
    record_property: Callable,
    jvm: str,
) -> None:
    """A JVM member with default timing never uses up its attempts because of zkconsumer members.
    This holds even if their applications work on a message for longer than a release waits."""
    group = groups(clusters("3.9.1"), jvms(jvm))
    for key in ("rebalance.backoff.ms", "rebalance.max.retries", "zookeeper.session.timeout.ms"):
        del group.theirs[key], group.ours[key]
    topic = group.create("a", 9)
    group.send()
    done = threading.Event()
    hold = {"handle": lambda delivery: done.wait(2.0)}
    began = {}
    attempts = {}
    try:
        group.join("p1", topics={topic: 3}, **hold)
        group.join("p2", topics={topic: 1}, **hold)
        group.settled()
        for name in ("j1", "p3", "j2"):
            before = group.jvm.attempts(f"{group.group}_j1")
            began[name] = time.monotonic()
            group.join(name, topics={topic: 1}, **({} if name.startswith("j") else hold))
            group.settled()
            began[name] = round(time.monotonic() - began[name], 1)
            attempts[name] = group.jvm.attempts(f"{group.group}_j1") - before
        record_property("settled_after", began)
        record_property("attempts", attempts)
        assert max(attempts.values()) <= 3
        assert f"{group.group}_j1 can't rebalance" not in group.jvm.log_text()
    finally:
        done.set()
    group.delivered()
