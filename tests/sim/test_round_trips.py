"""How many sequential round trips to ZooKeeper a change of the group takes.

Virtual time, 10 ms each way, servers that take no time, and no waiting for further changes. The
duration of a change, divided by 20 ms, is the number of round trips. A watch that fires is half of
one.
"""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.scripts import one_by_one
from zkconsumer.core.common.types import ConsumerThreadId, Pattern, Subscription, TopicPartition
from zkconsumer.core.zookeeper import commands, events
from zkconsumer.core.zookeeper.commands import ScriptCommand
from zkconsumer.core.zookeeper.events import Claim
from zkconsumer.core.zookeeper.ops import Create, Ok, Pipelined
from zkconsumer.core.zookeeper.scripts.by_command import script_for
from zkconsumer.core.zookeeper.scripts.common import ScriptContext
from zkconsumer.core.zookeeper.view import MemberSpec
from zkconsumer.core.zookeeper.znodes import GroupPaths, broker_path, topic_path
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.runs.herd import Herd, simulate
from zkconsumer.sim.servers.zk import FakeSession, FakeZk

ONE_WAY = 0.01
PATHS = GroupPaths("g")


@pytest.mark.parametrize(
    ("event", "members", "partitions", "limit"),
    [
        # Connection; registration; then the other members: list, registrations, release; then the
        # new one, when the watch has fired: owners and offsets, claim.
        ("join", 2, 100, 6.5),
        ("join", 2, 2500, 6.5),
        ("join", 20, 200, 6.5),
        # Release, deregistration in two; then the others: list, owners, claim.
        ("leave", 2, 100, 5.5),
        ("leave", 2, 2500, 5.5),
        ("leave", 20, 200, 7.5),  # another member has to release first
    ],
)
def test_round_trips_grow_neither_with_partitions_nor_with_members(
    event: str, members: int, partitions: int, limit: float
) -> None:
    """From the call to the last owner znode, the number of round trips is the same for all
    sizes."""
    herd = Herd(
        members,
        partitions,
        event=event,
        profile="default",
        latency=(ONE_WAY, ONE_WAY),
        service=(0.0, 0.0),
        coalesce=0.0,
        bulk=False,
    )
    found = simulate(herd)
    assert found.unowned_at_end == 0
    assert found.seconds_to_stable is not None
    assert found.seconds_to_stable / (2 * ONE_WAY) <= limit + 0.01


class Member:
    """A member of a group with two topics and 2,400 partitions on a simulated ensemble."""

    def __init__(self, zk: FakeZk, number: int) -> None:
        subscription = Subscription(Pattern.STATIC, {"a": 1, "b": 1})
        self.zk = zk
        self.client: FakeSession = zk.connect(6.0, lambda _: None, lambda *_: None)
        zk.kernel.run(until=zk.kernel.now + 1)
        self.spec = MemberSpec(PATHS, f"g_{number}", subscription)
        self.context = ScriptContext(self.spec, self.client.session_id, lambda: 7)

    def run(self, command: ScriptCommand) -> tuple[events.Event, int]:
        """Return the event that ends the script, and the number of round trips."""
        script = script_for(command, self.context)
        op, trips = next(script), 0
        while True:
            parts = op.ops if isinstance(op, Pipelined) else (op,)
            replies: dict[int, object] = {}
            for place, part in enumerate(parts):
                self.client.submit(part, partial(replies.__setitem__, place))
            self.zk.kernel.run(until=self.zk.kernel.now + 1)
            trips += 1
            answers = tuple(replies[place] for place in range(len(parts)))
            try:
                op = script.send(Ok(answers) if isinstance(op, Pipelined) else answers[0])
            except StopIteration as end:
                return end.value, trips


@pytest.fixture
def zk() -> FakeZk:
    """Three brokers and two topics of 1,200 partitions. The group is empty."""
    zk = FakeZk(Kernel(1))
    for path in ("/brokers", "/brokers/ids", "/brokers/topics", "/consumers", PATHS.root):
        zk.do(Create(path))
    for path in (PATHS.ids, PATHS.owners, PATHS.offsets):
        zk.do(Create(path))
    for topic in "ab":
        numbers = ",".join(f'"{n}":[0]' for n in range(1200))
        zk.do(Create(topic_path(topic), f'{{"version":1,"partitions":{{{numbers}}}}}'.encode()))
        zk.do(Create(PATHS.owners_topic(topic)))
        zk.do(Create(PATHS.offsets_topic(topic)))
    for number in range(3):
        zk.do(Create(broker_path(number), b'{"version":1,"host":"h","port":1,"jmx_port":-1}'))
    return zk


def test_each_script_sends_together_what_does_not_depend_on_answers(zk: FakeZk) -> None:
    """Registering, reading, claiming, committing and releasing 2,400 partitions."""
    one, two = Member(zk, 1), Member(zk, 2)
    every = [TopicPartition(topic, n) for topic in "ab" for n in range(1200)]

    def trips(member: Member, command: ScriptCommand) -> int:
        event, count = member.run(command)
        assert not isinstance(event, events.ScriptFailed)
        found.append(event)
        return count

    found: list[events.Event] = []
    assert trips(one, commands.Register(1, 0)) == 1
    assert trips(two, commands.Register(1, 3)) == 1
    assert trips(one, commands.LoadView(1, epoch=0)) == 2
    view = found[-1]
    assert isinstance(view, events.ViewLoaded)
    assert sorted(view.view.members) == ["g_1", "g_2"]
    assert trips(one, commands.LoadView(1, epoch=0, known=view.known)) == 1

    wanted = dict.fromkeys(every, ConsumerThreadId("g_1", 0))
    for topic in "ab":  # otherwise their parents have to be created first, if they are missing
        one.context.known_paths.add(PATHS.owners_topic(topic))
        one.context.known_paths |= {PATHS.offsets, PATHS.offsets_topic(topic)}
    assert trips(one, commands.ClaimPartitions(1, 0, wanted)) == 2
    claimed = found[-1]
    assert isinstance(claimed, events.Claimed)
    assert sorted(claimed.claims) == every

    blockers = frozenset(every[:100])
    assert trips(two, commands.WatchBlockers(1, blockers)) == 1
    assert found[-1] == events.BlockersWatched(1, gone=False)

    positions = dict.fromkeys(every, 5)
    assert trips(one, commands.Commit(1, 0, positions, claimed.claims)) == 2  # looks, for the first
    committed = found[-1]
    assert isinstance(committed, events.Committed)
    assert committed.claims == {tp: Claim(wanted[tp], 0, 5) for tp in every}
    positions = dict.fromkeys(every, 6)
    assert trips(one, commands.Commit(1, 0, positions, committed.claims)) == 1
    committed = found[-1]
    assert isinstance(committed, events.Committed)
    assert trips(one, commands.Release(1, 0, committed.claims, mixed=False)) == 1
    assert found[-1] == events.Released(1, frozenset(), False)
    assert trips(two, commands.WatchBlockers(1, blockers)) == 1
    assert found[-1] == events.BlockersWatched(1, gone=True)


def test_pipelined_operations_can_be_carried_out_one_by_one(zk: FakeZk) -> None:
    """Simulations that read in bulk see single operations. The script gets the same replies."""
    member = Member(zk, 1)
    member.run(commands.Register(1, 0))
    together, _ = member.run(commands.LoadView(1, epoch=0))
    script = one_by_one(script_for(commands.LoadView(1, epoch=0), member.context))
    op, names = next(script), []
    while True:
        assert not isinstance(op, Pipelined)
        names.append(type(op).__name__)
        replies: list[object] = []
        member.client.submit(op, replies.append)
        zk.kernel.run(until=zk.kernel.now + 1)
        try:
            op = script.send(replies[0])
        except StopIteration as end:
            alone = end.value
            break
    assert names == ["GetChildren", "GetMany", "GetChildren", "GetMany", "GetMany"]
    assert isinstance(together, events.ViewLoaded)
    assert alone.view == together.view
