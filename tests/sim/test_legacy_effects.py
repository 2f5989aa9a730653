"""Faults of the JVM's consumer: the ``scala`` profile has them, the default profile does not.

Each effect is one scenario, run in both profiles.
"""

from __future__ import annotations

import pytest

from tests.sim.runs.at_rest import no_orphan
from tests.sim.runs.world import World
from tests.sim.runs.zk_member import WholeMember
from zkconsumer.core.common.commands import Outcome
from zkconsumer.core.common.types import Pattern, Subscription, TopicPartition
from zkconsumer.core.zookeeper.ops import Create, Delete
from zkconsumer.core.zookeeper.states import State
from zkconsumer.core.zookeeper.view import MemberSpec
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.members.host import Habits

BOTH = pytest.mark.parametrize("scala", [True, False], ids=["scala", "default"])


def world_with(partitions: int) -> World:
    """A simulated world with one topic, ``t``."""
    world = World.make(Kernel(4711))
    world.set_topic("t", partitions)
    return world


def join(world: World, name: str, scala: bool, habits: Habits | None = None) -> WholeMember:
    """Start a member that subscribes to ``t`` with one stream."""
    subscription = Subscription(Pattern.STATIC, {"t": 1})
    spec = MemberSpec(world.paths, name, subscription, scala=scala)
    return world.add_member(spec, habits or Habits())


def owners(world: World) -> dict[int, str]:
    """Return the owners by partition."""
    found = {}
    for name in world.zk.children(world.paths.owners_topic("t")):
        node = world.zk.get(world.paths.owner(TopicPartition("t", int(name))))
        assert node is not None
        found[int(name)] = node.data.decode()
    return found


@BOTH
def test_a_member_stays_registered_and_owns_nothing(scala: bool) -> None:
    """The other member's listener takes longer than all attempts. The JVM gives up for good, and
    its share has no owner. By default, the share is claimed as soon as it is released."""
    world = world_with(4)
    slow = join(world, "g_a", scala, Habits(listener=(15.0, 15.0)))
    world.kernel.run(until=40)
    late = join(world, "g_b", scala)
    world.kernel.run(until=120)
    assert world.zk.children(world.paths.ids) == ("g_a", "g_b")
    assert owners(world) == {0: "g_a-0", 1: "g_a-0"} | ({} if scala else {2: "g_b-0", 3: "g_b-0"})
    assert slow.machine.state is State.RESTING
    assert late.machine.state is (State.FAILED if scala else State.RESTING)
    assert late.loop.started.result(0).outcome is (
        Outcome.REBALANCE_FAILED if scala else Outcome.SETTLED
    )
    members = [slow.at_rest(), late.at_rest()]
    tps = [TopicPartition("t", n) for n in range(4)]
    orphans = no_orphan(0, tps, world.observer.owners, members)
    assert orphans == []  # the table allows orphans of legacy members
    assert (len(late.at_rest().fetching) == 0) is scala


@BOTH
def test_a_commit_of_a_former_owner_lowers_the_offset(scala: bool) -> None:
    """A member that lost its owner znode without noticing commits later. The JVM's write lowers the
    new owner's offset. By default, the write is refused."""
    world = world_with(1)
    tp = TopicPartition("t", 0)
    former = join(world, "g_a", scala, Habits(commit_interval=2.0))
    world.kernel.run(until=10.5)
    while former.plane.positions()[tp] == world.observer.committed[tp]:
        world.kernel.step()  # until it has read past its last commit
    former.pause(5.0)
    assert world.do(Delete(world.paths.owner(tp)))
    # Between two commits of the former owner, the new owner gets further.
    join(world, "g_B", False, Habits(commit_interval=0.5))
    world.kernel.run(until=30)
    lowered = [v.rule for v in world.observer.allowed if v.rule == "offsets_never_lowered"]
    assert bool(lowered) is scala
    assert world.observer.violations == []


@BOTH
def test_one_conflict_undoes_the_whole_attempt(scala: bool) -> None:
    """The owner znode of one partition was created by another client. The JVM then owns nothing at
    all. By default, all other partitions are claimed and delivered."""
    world = world_with(4)
    for path in ("/consumers/g", "/consumers/g/owners", "/consumers/g/owners/t"):
        assert world.do(Create(path))
    assert world.do(Create(world.paths.owner(TopicPartition("t", 1)), b"stranger-0"))
    member = join(world, "g_a", scala)
    world.kernel.run(until=60)
    mine = {} if scala else {0: "g_a-0", 2: "g_a-0", 3: "g_a-0"}
    assert owners(world) == {1: "stranger-0"} | mine
    assert {tp.partition for tp in member.at_rest().fetching} == set(mine)
