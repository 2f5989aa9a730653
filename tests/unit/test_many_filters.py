"""Filters of many members on many topics are evaluated once, with the result of one at a time."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

import pytest

from tests.sim.runs.zk_member import run_now
from zkconsumer.core.common import topic_filter
from zkconsumer.core.common.expansion import Expansions, expand
from zkconsumer.core.common.java_regex import compile_java
from zkconsumer.core.common.name_sets import Names
from zkconsumer.core.common.types import Pattern, Subscription
from zkconsumer.core.zookeeper import commands, events
from zkconsumer.core.zookeeper.known import NOTHING, Known
from zkconsumer.core.zookeeper.ops import Create, SetData
from zkconsumer.core.zookeeper.scripts.common import ScriptContext
from zkconsumer.core.zookeeper.view import Assignor, GroupView, MemberSpec, decide
from zkconsumer.core.zookeeper.znodes import (
    BROKER_IDS,
    BROKER_TOPICS,
    GroupPaths,
    broker_path,
    encode_registration,
    topic_path,
)
from zkconsumer.errors import ZnodeFormatError
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.servers.zk import FakeZk

PATHS = GroupPaths("g")
TOPIC = json.dumps({"version": 1, "partitions": {"0": [0]}}).encode()


class Counting:
    """Replaces ``compile_java``, and counts the names that its programs are asked about."""

    def __init__(self) -> None:
        self.names = 0

    def __call__(self, regex: str) -> Any:
        self._program = compile_java(regex)
        return self

    def matches(self, names: Names) -> list[bool]:
        self.names += len(names.names)
        return self._program.matches(names)

    def take(self) -> int:
        """Return the number of names since the last call."""
        names, self.names = self.names, 0
        return names


def registration(regex: str) -> bytes:
    """Return the registration of a member with this white list and one stream."""
    return encode_registration(Subscription(Pattern.WHITE_LIST, {regex: 1}), 1)


def test_equal_filters_are_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 members have one white list. The first look at the group matches each topic's name once,
    the next one none. A new topic, or a member with another filter, costs one more pass."""
    counting = Counting()
    monkeypatch.setattr(topic_filter, "compile_java", counting)
    zk = FakeZk(Kernel(1))
    for path in ("/brokers", BROKER_IDS, BROKER_TOPICS, "/consumers", PATHS.root, PATHS.ids):
        zk.do(Create(path))
    broker = {"version": 1, "host": "h", "port": 1, "timestamp": "1"}
    zk.do(Create(broker_path(0), json.dumps(broker).encode()))
    for number in range(500):
        zk.do(Create(topic_path(f"t{number}"), TOPIC))
    for number in range(40):
        zk.do(Create(PATHS.member(f"g_m{number}"), registration("t.*")))
    spec = MemberSpec(PATHS, "g_m0", Subscription(Pattern.WHITE_LIST, {"t.*": 1}))
    context = ScriptContext(spec, 0, lambda: 1)

    def look(known: Known) -> tuple[GroupView, Known]:
        fact = run_now(zk, commands.LoadView(1, epoch=0, known=known), context)
        assert isinstance(fact, events.ViewLoaded)
        return fact.view, fact.known

    view, known = look(NOTHING)
    assert counting.take() == 500
    assert len(view.members) == 40
    assert all(len(topics) == 500 for topics in view.members.values())
    look(known)
    look(NOTHING)
    assert counting.take() == 0
    zk.do(Create(topic_path("t500"), TOPIC))
    view, known = look(known)
    assert counting.take() == 501
    assert len(view.members["g_m39"]) == 501
    zk.do(Create(PATHS.member("g_n"), registration("t1.*")))
    zk.do(SetData(PATHS.member("g_m5"), registration("t1.*")))
    view, known = look(NOTHING)
    assert counting.take() == 501
    assert len(view.members["g_n"]) == len(view.members["g_m5"]) == 111
    assert len(view.members["g_m6"]) == 501


REGEXES = ("t.*", "t[0-4]", "u,t1", " t1 , t2 ", "(", "(([t-x0-9])+.)+[A-Z]([a-z])+", "__.*", "")


@pytest.mark.parametrize("seed", range(10))
def test_remembered_expansions_are_those_of_one_at_a_time(seed: int) -> None:
    """In random groups whose members and topics change, the remembered expansion of each
    registration equals ``expand``, even the reason if it cannot be used."""
    rng = random.Random(seed)
    expansions = Expansions()
    names = [f"t{n}" for n in range(8)] + ["u", "__consumer_offsets", "not legal", "x" * 60]
    topics, internal = names, True
    for _ in range(30):
        if rng.random() < 0.3:
            topics = rng.sample(names, rng.randint(0, len(names)))
        if rng.random() < 0.1:
            internal = not internal
        group = {}
        for member in range(rng.randint(0, 6)):
            if rng.random() < 0.3:
                chosen = rng.sample(names, 2)
                found = Subscription(Pattern.STATIC, {name: rng.randint(1, 2) for name in chosen})
            else:
                pattern = rng.choice([Pattern.WHITE_LIST, Pattern.BLACK_LIST])
                found = Subscription(pattern, {rng.choice(REGEXES): rng.randint(1, 2)})
            group[f"m{member}"] = found
        expanded, unusable = expansions.of(group, topics, internal)
        assert {*expanded, *unusable} == {*group}
        for member, subscription in group.items():
            one: object
            try:
                one = expand("", subscription, topics, internal)
            except ZnodeFormatError as error:
                one = error.reason
            assert {**expanded, **unusable}[member] == one, f"seed {seed}"


@pytest.mark.parametrize("assignor", ["range", "roundrobin"])
@pytest.mark.parametrize("seed", range(10))
def test_members_that_share_a_mapping_get_the_same_share(seed: int, assignor: str) -> None:
    """The decision depends on the members' subscriptions, and not on shared mappings of topics."""
    rng = random.Random(seed)
    partitions = {f"t{n}": tuple(range(rng.randint(0, 9))) for n in range(5)}
    kinds: list[Mapping[str, int]] = [
        {topic: rng.randint(1, 3) for topic in rng.sample(sorted(partitions), rng.randint(0, 5))}
        for _ in range(3)
    ]
    shared = {f"g_m{n}": rng.choice(kinds) for n in range(rng.randint(1, 12))}
    copied = {member: dict(topics) for member, topics in shared.items()}
    for member in shared:
        one, other = (
            decide(GroupView(True, (), group, {}, partitions), member, Assignor(assignor))
            for group in (shared, copied)
        )
        assert one == other, f"seed {seed}"
