"""Mutated znodes of every kind that a member reads: each member survives them, and all agree.

Two members of one group read the same ZooKeeper. Whatever is written there, they skip the same
znodes, compute the same assignment, and use 50 ms of CPU time at most; on a slow machine, the time
of an empty loop of three million steps. ``ZKC_SEED=N`` sets the seed. ``ZKC_ZNODES=100000`` makes a
run longer (four minutes on a quiet machine):

    ZKC_ZNODES=100000 .venv/bin/pytest tests/fuzz/test_hostile_znodes.py
"""

from __future__ import annotations

import os
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable

import pytest

from tests.fuzz.catastrophic import CATASTROPHIC
from tests.fuzz.mutate import mutate
from tests.sim.runs.zk_member import run_now
from tests.support.scripts import one_by_one
from zkconsumer.admin.topics import BrokersSnapshot, read_brokers
from zkconsumer.core.common.expansion import expand
from zkconsumer.core.common.java_regex import compile_java
from zkconsumer.core.common.types import ConsumerThreadId, Pattern, Subscription, TopicPartition
from zkconsumer.core.zookeeper import commands, events
from zkconsumer.core.zookeeper.ops import Code, Create, Delete, Failed, Multi, Ok, Reply, SetData
from zkconsumer.core.zookeeper.scripts.by_command import script_for
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
from zkconsumer.sim.members.bulk import read_now
from zkconsumer.sim.servers.zk import FakeZk

SEED = int(os.environ.get("ZKC_SEED", "1"))
ZNODES = int(os.environ.get("ZKC_ZNODES", "600"))
LIMIT_S = 0.05
MEMORY_MB = 100
"""Limit for the memory that a run adds, however long the run is."""

PATHS = GroupPaths("g")
OWNED, STORED = TopicPartition("t1", 0), TopicPartition("t1", 1)
RANGE, ROUND_ROBIN = Assignor("range"), Assignor("roundrobin")
EVIL = PATHS.ids + "/g_evil"
OWN = {
    "g_a": Subscription(Pattern.WHITE_LIST, {"t.*": 2}),
    "g_b": Subscription(Pattern.STATIC, {"t1": 1, "t2": 2}),
}
TOPIC = b'{"version":1,"partitions":{"0":[1],"1":[2,1],"2":[1]}}'
BROKER = (
    b'{"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"endpoints":'
    b'["PLAINTEXT://h:9092"],"jmx_port":-1,"host":"h","timestamp":"1","port":9092,"version":4}'
)
REGISTRATIONS = (
    b'{"version":1,"subscription":{"t1":2,"t2":1},"pattern":"static","timestamp":"15"}',
    b'{"version":1,"subscription":{"t.*|b":1},"pattern":"white_list","timestamp":"1"}',
    b'{"version":1,"subscription":{"(t|u)+[0-9&&[^1]]":3},"pattern":"black_list"}',
    b'{"version":1,"subscription":{"(?=t)(t\\\\d)\\\\1?+":1},"pattern":"white_list"}',
)
CONTENTS = {
    EVIL: REGISTRATIONS,
    broker_path(1): (BROKER, b'{"version":1,"host":"h","port":9092}'),
    topic_path("t1"): (TOPIC,),
    PATHS.owner(OWNED): (b"g_a-0", b"g_evil-1"),
    PATHS.offset(STORED): (b"17", b"-1", b"9223372036854775807"),
}
"""Paths whose contents are mutated, and the content that mutations start from."""
NAMES = {
    PATHS.ids: (b"g_c", b"g_host-1500000000000-abcd1234"),
    BROKER_IDS: (b"1", b"2147483648", b"9" * 5000),
    BROKER_TOPICS: (b"t3", b"topic-with-a-name", b"__consumer_offsets"),
}
"""Parents whose children's names are mutated."""


def make_group() -> FakeZk:
    """Create a group with two members, three topics and a broker. Every znode is valid."""
    zk = FakeZk(Kernel(1))
    parents = ["/brokers", BROKER_IDS, BROKER_TOPICS, "/consumers", PATHS.root, PATHS.ids]
    parents += [PATHS.owners, PATHS.owners_topic("t1"), PATHS.offsets, PATHS.offsets_topic("t1")]
    for path in parents:
        zk.do(Create(path))
    for topic in ("t1", "t2", "t3"):
        zk.do(Create(topic_path(topic), TOPIC))
    for member, subscription in OWN.items():
        zk.do(Create(PATHS.member(member), encode_registration(subscription, 1)))
    for path, seeds in CONTENTS.items():
        zk.do(Create(path, seeds[0]))
    return zk


def attack(zk: FakeZk, rng: random.Random) -> tuple[str, Callable[[], object]]:
    """Write one mutated znode. Return a description, and a function that restores the znode."""
    if rng.random() < 0.15:
        parent = rng.choice(list(NAMES))
        name = mutate(rng, NAMES[parent]).decode("utf-8", "replace").replace("/", "")
        path = f"{parent}/{name}"
        seeds = TOPIC if parent == BROKER_TOPICS else BROKER
        data = rng.choice(REGISTRATIONS) if parent == PATHS.ids else seeds
        if isinstance(zk.do(Create(path, data)), Ok) and name not in ("", ".", ".."):
            return f"a child {name!r} of {parent}", lambda: zk.do(Delete(path, -1))
    path = rng.choice(list(CONTENTS))
    data = mutate(rng, CONTENTS[path])
    zk.do(SetData(path, data, -1))
    return f"{path}: {data!r}", lambda: zk.do(SetData(path, CONTENTS[path][0], -1))


def view_of(
    zk: FakeZk, member: str, *, scala: bool = False, assignor: Assignor = RANGE
) -> GroupView | events.ScriptFailed:
    """Return what the member reads, or that reading fails."""
    spec = MemberSpec(PATHS, member, OWN[member], scala=scala, assignor=assignor)
    found = run_now(zk, commands.LoadView(1, epoch=0), ScriptContext(spec, 0, lambda: 1))
    assert isinstance(found, events.ViewLoaded | events.ScriptFailed)
    return found.view if isinstance(found, events.ViewLoaded) else found


def claim(zk: FakeZk) -> object:
    """Claim two partitions. One has an owner, the other an offset. Each write meets another
    epoch."""
    wanted = {OWNED: ConsumerThreadId("g_a", 0), STORED: ConsumerThreadId("g_a", 1)}
    command = commands.ClaimPartitions(1, epoch=0, wanted=wanted)
    spec = MemberSpec(PATHS, "g_a", OWN["g_a"])
    script = one_by_one(script_for(command, ScriptContext(spec, 7, lambda: 1)))
    op = next(script)
    while True:
        reply: Reply
        if isinstance(op, Multi):
            reply = Failed(Code.BAD_VERSION, 0)
        else:
            reply = Failed(Code.NODE_EXISTS) if isinstance(op, Create) else read_now(zk, op)
        try:
            op = script.send(reply)
        except StopIteration as end:
            return end.value


def judge(zk: FakeZk) -> Counter[str]:
    """Let both members read, and a member of the JVM's profile. Compare the results."""
    a, b = view_of(zk, "g_a"), view_of(zk, "g_b")
    assert isinstance(a, GroupView)
    assert isinstance(b, GroupView)
    assert a.registered
    assert b.registered
    group = PATHS.ids + "/"
    assert {path for path in a.quarantined if path.startswith(group)} == {
        path for path in b.quarantined if path.startswith(group)
    }
    assert (a.members, a.brokers) == (b.members, b.brokers)
    shares = decide(a, "g_a", RANGE).assignment, decide(b, "g_b", RANGE).assignment
    common = a.members["g_a"].keys() & b.members["g_b"].keys()
    both = [{tp: share[tp] for tp in share if tp.topic in common} for share in shares]
    assert both[0] == both[1]
    rounds = [decide(view_of(zk, m, assignor=ROUND_ROBIN), m, ROUND_ROBIN) for m in OWN]  # type: ignore[arg-type]
    assert rounds[0].assignment == rounds[1].assignment
    jvm = view_of(zk, "g_a", scala=True)
    if isinstance(jvm, GroupView):
        assert jvm.members == a.members
        assert decide(jvm, "g_a", RANGE) == decide(a, "g_a", RANGE)
    assert claim(zk) is not None
    counts = Counter({"left out": len(a.quarantined)})
    counts["the JVM's profile fails"] += not isinstance(jvm, GroupView)
    return counts


def check_cpu_time(work: Callable[[], object], what: str) -> float:
    """Run ``work`` until it takes ``LIMIT_S`` of CPU time or less, or less than an empty loop that
    ran next to it. Return the least time, in seconds. Fails after ten runs, because other
    processes that use the same core make each of them longer."""
    least = loop = float("inf")
    for _ in range(10):
        begun = time.thread_time()
        work()
        least = min(least, time.thread_time() - begun)
        if least <= LIMIT_S:
            return least
        begun = time.thread_time()
        for _step in range(3_000_000):
            pass
        loop = min(loop, time.thread_time() - begun)
        if least <= loop:
            return least
    raise AssertionError(f"{least:.3f} s of CPU time, {loop:.3f} s for the loop: {what}")


def test_members_survive_and_judge_alike() -> None:
    """No content or name of a znode makes a member fail or compute for 50 ms. Members with
    different subscriptions skip the same znodes and give each partition to the same member. A
    member of the JVM's profile agrees, or fails its attempt as the JVM does."""
    rng = random.Random(SEED)
    zk = make_group()
    assert judge(zk)["left out"] == 0
    found: Counter[str] = Counter()
    slowest = 0.0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(ZNODES):
        what, repair = attack(zk, rng)
        try:
            found += judge(zk)
            slowest = max(slowest, check_cpu_time(lambda: judge(zk), what))
        except Exception as error:
            error.add_note(f"{what} (ZKC_SEED={SEED})")
            raise
        repair()
    assert judge(zk)["left out"] == 0
    sys.stdout.write(f"ZKC_SEED={SEED}: {dict(found)}, slowest {slowest * 1000:.1f} ms\n")
    assert found["left out"] > ZNODES / 10
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < MEMORY_MB, f"{grown:.0f} MiB more"


TOPICS = ["t1", "test-commands", "__consumer_offsets", "a" * 240, "ab-" * 80, "t" * 249]
TOPICS += [f"team.orders-{number}.{'x' * (number % 200)}" for number in range(1000)]


def test_catastrophic_regexes_cost_little_and_all_members_agree() -> None:
    """Each of fifty filters would take a backtracking matcher hours; none takes 50 ms. Two members
    that list the topics in different orders skip the same topics, and no regex matches."""
    assert len(set(CATASTROPHIC)) == 50
    other = TOPICS[::-1]
    for regex in CATASTROPHIC:
        own = Subscription(Pattern.WHITE_LIST, {regex: 1})

        def verdict(topics: list[str], own: Subscription = own) -> str:
            compile_java.cache_clear()
            try:
                assert expand("/z", own, topics, True) == {}
            except ZnodeFormatError as error:
                return error.reason
            return ""

        assert verdict(TOPICS) == verdict(other), regex[:80]
        check_cpu_time(lambda verdict=verdict: verdict(TOPICS), regex[:80])  # type: ignore[misc]


BROKER_NAMES = ["2147483648", "99999999999", "9" * 5000, "\u0663", "01", "-1", "x"]


@pytest.mark.parametrize("name", BROKER_NAMES, ids=[ascii(name)[:14] for name in BROKER_NAMES])
def test_a_broker_whose_name_is_not_a_number(name: str) -> None:
    """If something else is registered as a broker, members read the other brokers."""
    zk = make_group()
    zk.do(Create(f"{BROKER_IDS}/{name}", BROKER))
    judge(zk)
    view = view_of(zk, "g_a")
    assert isinstance(view, GroupView)
    assert [broker.broker_id for broker in view.brokers] == [1]
    snapshot = run_now_admin(zk)
    assert snapshot.registered == {1}


def run_now_admin(zk: FakeZk) -> BrokersSnapshot:
    """Read the brokers as the tools do."""
    script = read_brokers()
    op = next(script)
    while True:
        try:
            op = script.send(read_now(zk, op))
        except StopIteration as end:
            found: BrokersSnapshot = end.value
            return found
